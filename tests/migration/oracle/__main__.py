"""`python -m tests.migration.oracle --write` asks the vendor's tool anew, and writes what it says and the page's table.

Without --write it compares; the tool has an environment of its own, which is made where it is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from tests.migration.oracle.verdicts import PAGE, VERDICTS, ask, fill_page, find_differences, read_verdicts


def main() -> int:
    """Ask, then write or compare; 1 where something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.migration.oracle")
    parser.add_argument("--write", action="store_true", help="write the verdicts and the table of docs/migration.md")
    is_writing = parser.parse_args().write
    asked = ask()
    if is_writing:
        VERDICTS.write_text(json.dumps(asked, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        PAGE.write_text(fill_page(), encoding="utf-8")
        return 0
    differences = find_differences(asked, read_verdicts())
    sys.stderr.writelines(f"{line}\n" for line in differences)
    return 1 if differences else 0


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[3])
    raise SystemExit(main())
