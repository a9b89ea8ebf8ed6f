"""From a bare clone to the first live page: `make demo` as the README has it, timed.

    python -m tests.first_page          # uv and pip download everything
    python -m tests.first_page --warm   # their caches are used

Prints the seconds of the installation, those from its end until a browser shows figures of both deployments, this
machine's slowness, and whether the start stayed within its budget; exits with 1 where it did not.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.pictures import WIDE, open_browser, open_page
from tests.support.slowness import slowness
from tests.support.waiting import deadline_seconds
from tests.tools import chromium_binary

ROOT = Path(__file__).parent.parent
START_SECONDS = 20.0
"""At usual speed, from the end of the installation to figures in a browser."""

_ALIVE = """() => {
    const rows = [...document.querySelectorAll("table.fleet tbody tr")];
    const firstToken = row => row.querySelector("td[data-label^='Time to first token']");
    return rows.length === 2 && rows.every(row => /[0-9]/.test(firstToken(row)?.innerText ?? ""));
}"""


def main() -> int:
    """Clone, run `make demo`, look at its first page, and print the figures."""
    parser = argparse.ArgumentParser(description="Time `make demo` in a fresh clone until its first figures are live.")
    parser.add_argument("--warm", action="store_true", help="use the caches of pip and uv")
    arguments = parser.parse_args()
    chromium = chromium_binary()
    if chromium is None:
        print("no browser found: `python -m tests.tools` prepares one or says why it is not available", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="servescope-first-page-") as name, open_browser(chromium) as browser:
        folder = Path(name)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "clone")], check=True)
        page = open_page(browser, "light", WIDE)
        with _make_demo(folder, is_warm=arguments.warm) as process:
            _read_until(process, r"installation took")
            installed = time.monotonic()
            address = _read_until(process, r"http://\S+").group()
            page.goto(f"{address}/fleet", timeout=deadline_seconds() * 1000)
            page.wait_for_function(_ALIVE, timeout=deadline_seconds() * 1000)
            seconds = time.monotonic() - installed
    budget = START_SECONDS * slowness()
    print(f"start, from the end of the installation to live figures of both deployments: {seconds:.1f} s")
    print(f"budget: {START_SECONDS:.0f} s × {slowness():.2f}, the slowness of this machine = {budget:.1f} s")
    print("within the budget" if seconds <= budget else "BEYOND THE BUDGET")
    return 0 if seconds <= budget else 1


@contextmanager
def _make_demo(folder: Path, *, is_warm: bool) -> Iterator[subprocess.Popen[str]]:
    """`make demo` in the clone, without the environment that runs this; it and what it started end with the block."""
    left_out = {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "MAKEFLAGS", "MAKELEVEL"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    if not is_warm:
        environment |= {"UV_CACHE_DIR": str(folder / "uv"), "PIP_NO_CACHE_DIR": "1"}
    process = subprocess.Popen(
        ["make", "demo", f"OPTIONS=--no-browser --listen 127.0.0.1:0 --directory {folder / 'demo'}"],
        cwd=folder / "clone", env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        # A group of its own, as that of a terminal which Ctrl-C reaches.
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=deadline_seconds())


def _read_until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """The match in the first line that has one; prints every line on the way."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if match := re.search(pattern, line):
            return match
    raise SystemExit(f"`make demo` ended with code {process.wait()}")


if __name__ == "__main__":
    sys.exit(main())
