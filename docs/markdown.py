"""What the generated pages write in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A table, and the empty line that ends it."""
    titles = tuple(titles)
    yield _row(titles)
    yield f"|{'---|' * len(titles)}"
    yield from map(_row, rows)
    yield ""


def _row(cells: Iterable[str]) -> str:
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def codes(words: Iterable[str]) -> str:
    """The words as code, with commas."""
    return ", ".join(f"`{word}`" for word in words)
