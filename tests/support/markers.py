"""The part of a page that a program writes, between two markers; the other text stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from servescope.errors import ServescopeError


class Markers(NamedTuple):
    """The lines between which a page's part is."""

    begin: str
    end: str

    def check(self, page: Path) -> None:
        """Raise ServescopeError when nothing can be put into a page."""
        if not page.is_file():
            raise ServescopeError(f"{page} does not exist, expected a page with {self.begin!r} and {self.end!r}")
        text = page.read_text(encoding="utf-8")
        if not 0 <= text.find(self.begin) < text.find(self.end):
            raise ServescopeError(f"{page} has no lines {self.begin!r} and {self.end!r} to put the results between")

    def write(self, page: Path, text: str) -> None:
        """Put a text between the markers of a page; raises ServescopeError when it has none."""
        self.check(page)
        before, _, rest = page.read_text(encoding="utf-8").partition(self.begin)
        page.write_text(f"{before}{self.begin}\n\n{text}\n{self.end}{rest.partition(self.end)[2]}", encoding="utf-8")
