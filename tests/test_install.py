"""The installer of the two commands: what pip is configured with is uv's as well."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pip
import pytest

import install
from tests.conftest import ROOT

LISTING = """\
:env:.cert='/etc/certificates.crt'
:env:.index-url='https://mirror.example/environment'
global.extra-index-url='https://other.example/simple'
global.index-url='https://mirror.example/file'
global.find-links='/wheels /more'
list.format='columns'
"""


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in install.UV_VARIABLES.values():
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("bare")
def test_uv_gets_what_pip_is_configured_with() -> None:
    """Mirror, certificates and folders of wheels; an environment variable wins over a file, as it does in pip."""
    assert install.uv_variables(LISTING) == {
        "UV_DEFAULT_INDEX": "https://mirror.example/environment",
        "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/etc/certificates.crt",
    }


@pytest.mark.usefixtures("bare")
def test_what_is_configured_for_uv_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of uv's own that is set wins over pip's configuration."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://mine.example/simple")

    assert "UV_DEFAULT_INDEX" not in install.uv_variables(LISTING)


@pytest.mark.slow
def test_no_uv_for_this_platform_is_reported_with_what_to_do_instead(tmp_path: Path) -> None:
    """The error names what was asked for and the slower way, and is no traceback."""
    venv.create(tmp_path / "venv")
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # Installing it there takes longer than all the rest.
    (packages / "pip").symlink_to(Path(pip.__file__).parent)
    done = subprocess.run(
        [sys.executable, ROOT / "install.py", "--environment", tmp_path / "venv", "requirements.lock"],
        capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1"},
    )  # fmt: skip

    assert done.returncode == 1
    assert "pip could not install 'uv>=0.8'" in done.stderr
    assert "python -m pip install '.[all]'" in done.stderr
    assert "Traceback" not in done.stderr
