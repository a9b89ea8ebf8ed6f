"""The wheel, built from the tree and installed where nothing else of the checkout is found."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tests.conftest import ROOT
from tests.support.waiting import deadline_seconds


def build_wheel(folder: Path) -> Path:
    """The wheel, in this folder."""
    _run("-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT))
    (built,) = folder.glob("*.whl")
    return built


def install_wheel(wheel: Path, environment: Path) -> dict[str, str]:
    """Environment variables, no others, of a new virtual environment with the wheel, and what it depends on.

    Its dependencies are those of the tests' own environment, of which no `.pth` is read: the checkout is not on its
    path.
    """
    venv.create(environment)
    python = environment / "bin" / "python"
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile")
    _run("-m", "pip", "--python", str(python), "install", *options, str(wheel))
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    path = f"{environment / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    return {"PATH": path, "HOME": str(environment), "LANG": "C.UTF-8"}


def _run(*words: str) -> None:
    settings = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run(
        [sys.executable, *words], check=True, capture_output=True, timeout=deadline_seconds(120), env=settings
    )
