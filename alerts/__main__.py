"""`python -m alerts` writes `alerts/generated/`; with `--check` it writes nothing and says what is out of date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from alerts.recording import render_recording_rules

GENERATED = Path(__file__).parent / "generated"
FILES: Mapping[str, Callable[[], str]] = MappingProxyType({"recording.rules.yml": render_recording_rules})


def main() -> int:
    """Write the files, or check them: 1 when one differs from what the catalog says."""
    parser = argparse.ArgumentParser(prog="python -m alerts", description="Write the rules compiled from the catalog.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    check = parser.parse_args().check
    stale = [name for name, render in FILES.items() if not _is_current(GENERATED / name, render())]
    if check:
        for name in stale:
            sys.stderr.write(f"{GENERATED / name} is out of date: run `python -m alerts`\n")
        return 1 if stale else 0
    GENERATED.mkdir(exist_ok=True)
    for name in stale:
        (GENERATED / name).write_text(FILES[name](), encoding="utf-8")
    return 0


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
