"""Where the programs that tests run come from: the hosts that this machine's package managers are configured with."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests import tools
from tests.conftest import ROOT

DEB822 = """\
# Debian's own file
Types: deb
# http://archive.example/older
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main

Types: deb deb-src
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
"""
UNSTABLE = "Types: deb\nURIs: http://mirror.example/debian\nSuites: unstable\nComponents: main\n"


def configured(folder: Path, *, name: str, text: str) -> Path:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_unstable_is_on_the_mirror_of_the_machines_release(tmp_path: Path) -> None:
    """With its key, in either format; the security suite's host and a source that is switched off are left aside."""
    lines = (
        "# deb http://commented.example/debian trixie main\n"
        "deb http://mirror.example/debian-security trixie-security main\n"
        "deb [arch=amd64 signed-by=/keys/debian.gpg] http://mirror.example/debian trixie main contrib # the release\n"
    )
    off = DEB822.replace("Types: deb deb-src", "Enabled: no\nTypes: deb")

    assert tools.unstable_source(configured(tmp_path / "list", name="sources.list", text=lines)) == (
        UNSTABLE + "Signed-By: /keys/debian.gpg\n"
    )
    deb822 = configured(
        configured(tmp_path / "deb822", name="none", text=""), name="sources.list.d/a.sources", text=DEB822
    )
    assert tools.unstable_source(deb822) == (
        UNSTABLE + "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n"
    )
    with pytest.raises(tools.ToolError, match="no source of a Debian release"):
        tools.unstable_source(configured(deb822, name="sources.list.d/a.sources", text=off))


def test_no_registry_is_named_in_the_tree() -> None:
    """The clients of the registries know their hosts; pictures and captures of others are not ours to change."""
    # Written so that this line does not match itself.
    hosts = r"registry[.]npmjs|pypi[.]org|python[h]osted|deb[.]debian[.]org|proxy[.]golang"
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    texts = [ROOT / name for name in files if name and not name.endswith((".png", ".parquet", ".gz"))]

    assert not [
        path for path in texts if path.is_file() and re.search(hosts, path.read_text("utf-8", errors="replace"))
    ]
