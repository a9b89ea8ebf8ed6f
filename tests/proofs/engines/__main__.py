"""Ask every panel of every engine: `python -m tests.proofs.engines`, with `--write` for `docs/engines.md`.

Ends with 0 when every empty panel is empty for the reason it gives, 1 when one is not or something needed is not there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import tools
from tests.conftest import ROOT
from tests.proofs.engines.matrix import make_matrix
from tests.proofs.engines.page import PAGE, render_page
from tests.support.proofs import run_in_folder


def main(words: Sequence[str] | None = None) -> int:
    """Make the matrix and print the page, or write it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.proofs.engines", description="Which panel works on the captures of which engine."
    )
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}, instead of printing it")
    arguments = parser.parse_args(words)
    reference = Path(os.environ.get("SERVESCOPE_REFERENCE", ROOT.parent / "shared"))
    prometheus, promtool = tools.prometheus_binary(), tools.promtool_binary()
    if prometheus is None or promtool is None:
        print("prometheus and promtool not found: run `python -m tests.tools`", file=sys.stderr)
        return 1
    if not (reference / "captures").is_dir():
        print(f"no captures in {reference}: set SERVESCOPE_REFERENCE", file=sys.stderr)
        return 1

    def prove(folder: Path) -> int:
        matrix = make_matrix(prometheus, promtool, reference / "captures", folder)
        page = render_page(matrix, reference / "captures")
        if arguments.write:
            PAGE.write_text(page, encoding="utf-8")
        else:
            print(page)
        undeclared = matrix.undeclared()
        for each in undeclared:
            print(each, file=sys.stderr)
        return 1 if undeclared else 0

    return run_in_folder("tests.proofs.engines", prove, keep=False)


if __name__ == "__main__":
    sys.exit(main())
