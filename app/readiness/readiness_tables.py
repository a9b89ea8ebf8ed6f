"""The tables of the readiness page, as HTML: findings, fields, meaning, and what to look after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from app.elements.markup import cell, draw_lines, element, grid, heading
from app.elements.plain import escape
from servescope.migration.document.shapes import ConfigurationFinding, show
from servescope.migration.fields.meaning import TITLES, MeaningChange
from servescope.migration.report import SOURCES
from servescope.migration.translation.fates import meaning
from servescope.migration.translation.translation import FieldChange

MOST_ROWS: Final = 200
"""A longer table is cut, and says so: the report as a file has all of it."""


def draw_findings(findings: Sequence[ConfigurationFinding]) -> str:
    """What is wrong, or to be looked at, by its place."""
    rows = [
        element("tr", "".join((
            element("th", escape(f"{each.line}:{each.column}" if each.line else "–"), scope="row"),
            cell("Finding", _severity(each)),
            cell("Field", element("code", escape(each.path))),
            cell("What", escape(each.message)),
        )))
        for each in findings[:MOST_ROWS]
    ]  # fmt: skip
    heads = [heading("Place", "line:column"), heading(""), heading("Field"), heading("What")]
    return grid("readiness", heads, [*rows, *_cut(len(findings), 4)])


def _severity(finding: ConfigurationFinding) -> str:
    critical = finding.severity == "error"
    return element("span", "✕ error" if critical else "! warning", f"value {'critical' if critical else 'warning'}")


def draw_changes(changes: Sequence[FieldChange]) -> str:
    """What happens to each field, why, and what somebody does about it."""
    rows = [element("tr", "".join(_change_cells(each))) for each in changes[:MOST_ROWS]]
    heads = [heading("Line", numeric=True), heading("v1"), heading("v2"), heading("What happens", "source")]
    return grid("readiness", heads, [*rows, *_cut(len(changes), 4)])


def _change_cells(change: FieldChange) -> Iterable[str]:
    yield cell("Line", str(change.line), "", "number")
    yield cell("v1", *_field(change.before, change.value))
    yield cell("v2", *_field(change.after, change.new_value))
    removed = [f"removed with it, line {each.line}: {each.text}" for each in change.comments]
    below = draw_lines([*([change.todo] if change.todo else []), *removed])
    source = SOURCES.get(change.source, change.source)
    yield cell("What happens", escape(f"{meaning(change.kind)}. {change.why} [{source}]"), below)


def _field(path: str, value: object) -> tuple[str, str]:
    if not path:
        return element("span", "–", "quiet"), ""
    return element("code", escape(path)), escape(show(value))


def draw_meaning(meaning: Sequence[MeaningChange]) -> str:
    """What changes its meaning, by topic."""
    rows = [
        element("tr", element("th", escape(TITLES[each.topic]), scope="row")
                + cell("What changes", escape(each.text), escape(SOURCES.get(each.source, each.source))))
        for each in meaning
    ]  # fmt: skip
    return grid("readiness", [heading("Topic"), heading("What changes", "source")], rows)


def draw_checklist(lines: Sequence[str]) -> str:
    """What to look after when the traffic has moved."""
    return element("div", element("ul", "".join(element("li", escape(line)) for line in lines)), "scope")


def _cut(count: int, columns: int) -> Iterable[str]:
    if count > MOST_ROWS:
        text = f"and {count - MOST_ROWS} more: migration.json has all of them"
        yield element("tr", element("td", escape(text), "quiet", colspan=str(columns)))
