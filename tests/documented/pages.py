"""The commands of the pages, in their order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "exporters/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_BLOCK = re.compile(r"(?ms)^ *```(\w*)\n(.*?)^ *```$")
_LINES = ("console", "sh", "shell")
_SCRIPTS = ("bash",)
_COMMENT = re.compile(r"\s+#\s.*$")
_PROGRAMS = re.compile(
    r"\s*(?:[A-Z_]+=\S+ )?(?:\.venv/bin/)?(?:servescope|python|pip|make|pytest|curl|docker|kubectl)\b"
)


@dataclass(frozen=True, slots=True)
class Command:
    """A line of a block of commands, or a whole script; without comments, continued lines joined."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def read_commands(page: Path) -> list[Command]:
    """Every command of a page."""
    name = str(page.relative_to(ROOT))
    return [Command(name, text) for text in _texts(page.read_text(encoding="utf-8"))]


def _texts(page: str) -> Iterator[str]:
    for language, block in _BLOCK.findall(page):
        if language in _SCRIPTS:
            yield block.strip()
        if language in _LINES:
            for line in block.replace("\\\n", " ").splitlines():
                if text := _COMMENT.sub("", line).strip():
                    yield re.sub(r"  +", " ", text) if "'" not in text else text


def unmarked_commands(page: Path) -> list[str]:
    """Lines that look like commands in blocks that are marked as nothing: they would not be run."""
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    lines = [line for language, block in blocks if language in ("", "text") for line in block.splitlines()]
    return [line for line in lines if _PROGRAMS.match(line)]
