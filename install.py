"""Install what `make demo` and `make test` need into a virtual environment, with uv.

    python3 install.py requirements.lock    # what the lock pins, checked by its hashes, and servescope, editable
    python3 install.py --environment DIRECTORY --resolution highest    # the newest that pyproject.toml allows
    python3 install.py --lock    # resolve anew and write both locks

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
UV = "uv>=0.8"
LOCK = "requirements.lock"
DEVELOPMENT_LOCK = "requirements-dev.lock"  # pins hatchling as well, which builds servescope
# uv reads none of pip's configuration: where a mirror, certificates or a proxy is set for pip, set it for uv as well.
# An extra index is left out: each package of the locks is on the main one.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "no-index": "UV_NO_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}


def main() -> int:
    """Install, print each step before it starts and the seconds of all together; 1 when a step fails."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs on whatever Python there is
        print(f"servescope needs Python 3.11 or newer, this is {platform.python_version()}: make PYTHON=python3.11 ...")
        return 1
    arguments = _read_arguments()
    started = time.monotonic()
    try:
        uv = prepare(arguments.environment)
        if arguments.lock:
            write_locks(uv)
        elif arguments.resolution:
            install_resolved(uv, arguments.resolution)
        else:
            install_locked(uv, arguments.locks)
    except subprocess.CalledProcessError as error:
        # pip or uv printed the reason.
        print(f"installation failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    print(f"{'resolution' if arguments.lock else 'installation'} took {time.monotonic() - started:.1f} s", flush=True)
    return 0


@dataclass(frozen=True)
class Uv:
    """uv, with the virtual environment it is in and the configuration that pip has on this machine."""

    program: Path
    variables: dict[str, str]

    def run(self, *words: str) -> None:
        """Run a command of `uv pip`; raises subprocess.CalledProcessError."""
        command, *rest = words
        python = ["--python", str(self.program.with_name("python"))]
        subprocess.run([str(self.program), "pip", command, *python, *rest], cwd=ROOT, env=self.variables, check=True)


def install_locked(uv: Uv, locks: Sequence[str]) -> None:
    """Install exactly what the locks pin, and servescope, editable."""
    _say(f"installing {_count_packages(locks)} packages of {' and '.join(locks)}")
    uv.run("install", "--require-hashes", *(word for lock in locks for word in ("-r", lock)))
    _say("installing servescope itself, editable")
    uv.run("install", "--no-deps", "--build-constraints", DEVELOPMENT_LOCK, "--editable", ".")


def install_resolved(uv: Uv, resolution: str) -> None:
    """Install servescope, editable, with all extras and the dev group, in the versions of a resolution."""
    _say(f"installing servescope, all extras and the dev group: the {resolution} versions pyproject.toml allows")
    uv.run("install", "--resolution", resolution, "--upgrade", "--editable", ".[all]", "--group", "dev")


def write_locks(uv: Uv) -> None:
    """Write both locks, in the newest versions, for every Python and platform that pyproject.toml allows."""
    # Without the header, which would hold the command and its paths.
    every = ["--universal", "--generate-hashes", "--python-version", "3.11", "--no-header", "--upgrade", "--quiet"]
    _say(f"resolving {LOCK}")
    uv.run("compile", *every, "--extra", "all", "--output-file", LOCK, "pyproject.toml")
    _say(f"resolving {DEVELOPMENT_LOCK}")
    uv.run("compile", *every, "--group", "dev", "--constraints", LOCK, "--output-file", DEVELOPMENT_LOCK)


def prepare(environment: Path) -> Uv:
    """The uv of this environment; both are made where they are missing; raises SystemExit where pip finds no uv."""
    python = environment.absolute() / "bin" / "python"
    if not python.exists():
        _say(f"making the virtual environment {environment}")
        venv.create(environment, with_pip=True)
    if not python.with_name("uv").exists():
        _say("installing uv")
        # Without --only-binary pip would compile it with Rust.
        options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--only-binary", "uv"]
        if subprocess.run([str(python), "-m", "pip", "install", *options, UV], check=False).returncode:
            raise SystemExit(
                f"pip could not install {UV!r}, its message is above; where uv has no wheel for this platform\n"
                f"({platform.platform()}), install with pip, which takes longer:\n"
                f"  {environment}/bin/python -m pip install '.[all]'\n"
                f"  {environment}/bin/servescope demo"
            )
    listing = [str(python), "-m", "pip", "config", "list"]
    configuration = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    return Uv(python.with_name("uv"), {**os.environ, **uv_variables(configuration)})


def uv_variables(pip_configuration: str) -> dict[str, str]:
    """uv's environment variables for the output of `pip config list`; what is set for uv already is left alone."""
    settings: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):  # the later one wins, as in pip
        for line in pip_configuration.splitlines():
            key, _, value = line.partition("=")
            variable = UV_VARIABLES.get(key.removeprefix(section)) if key.startswith(section) else None
            if variable is not None:
                settings[variable] = ast.literal_eval(value).strip()
    if "UV_FIND_LINKS" in settings:
        settings["UV_FIND_LINKS"] = ",".join(settings["UV_FIND_LINKS"].split())
    return {name: value for name, value in settings.items() if name not in os.environ}


def _count_packages(locks: Sequence[str]) -> int:
    lines = [line for lock in locks for line in (ROOT / lock).read_text(encoding="utf-8").splitlines()]
    return len({line.split("==")[0] for line in lines if "==" in line and line[0].isalnum()})


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Install what `make demo` and `make test` need.")
    parser.add_argument("--environment", type=Path, default=Path(".venv"), help="virtual environment (default: .venv)")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("locks", nargs="*", metavar="LOCK", default=[], help="install exactly what these files pin")
    what.add_argument("--resolution", choices=("lowest-direct", "highest"), help="install without a lock")
    what.add_argument("--lock", action="store_true", help="write both locks")
    return parser.parse_args()


def _say(step: str) -> None:
    print(f"{step} …", flush=True)


if __name__ == "__main__":
    sys.exit(main())
