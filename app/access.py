"""Who reads the pages, and whether they may decide."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a page: their name, "" where nobody signs in, and whether they may decide.

    `why_not` says, of one who may not decide, what they need.
    """

    name: str = ""
    decides: bool = True
    why_not: str = ""


def current_reader() -> Reader:
    """The reader of this session."""
    return Reader()
