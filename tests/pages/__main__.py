"""Write the pages of engines that no machine of ours runs from their source maps: `python -m tests.pages`."""

from __future__ import annotations

import sys

from tests.pages.writing import FOLDER, texts


def main() -> int:
    """Write every page."""
    for name, text in texts().items():
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
