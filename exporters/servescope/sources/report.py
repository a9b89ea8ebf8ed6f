"""The report of an inspection as text for a terminal, or as JSON."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, get_args

from servescope.contract.metrics import PROCESS_RATIOS
from servescope.contract.types import Component
from servescope.sources.families import Families
from servescope.sources.inspection import Entry, Report
from servescope.sources.maps import Evidence

_EVIDENCE: Final[Mapping[Evidence, str]] = {
    "run": "the program was run, and what it counted compared with its clients' own counts",
    "driven": "the program's own metric classes were driven by a script, and no model served",
    "read": "read from its source, never run: its figures gate nothing in a cutover",
}


def render_json(report: Report) -> str:
    """The report as JSON, one object."""
    found = report.identification
    document = {
        "subject": report.subject,
        "source": report.source.name if report.source else None,
        "title": report.source.title if report.source else None,
        "versions": found.versions,
        "evidence": report.source.evidence_of(found.versions) if report.source else None,
        "nearest": found.nearest,
        "reason": found.reason if report.source is None else None,
        "advice": found.advice if report.source is None else None,
        "since": "process start" if report.span == "start" else "earlier exposition",
        "seconds": report.seconds,
        "notes": list(report.notes),
        "ignored": [{"name": name, "reason": reason} for name, reason in report.families.ignored.items()],
        "unknown": list(report.families.unknown),
        "metrics": [row for entry in report.entries for row in _rows(entry)],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _rows(entry: Entry) -> Iterator[dict[str, object]]:
    for name, value in ((entry.name, entry.value), *entry.parts):
        yield {
            "name": name,
            "kind": entry.kind,
            "status": entry.status,
            "value": value,
            "unit": entry.unit,
            "measure": entry.measure,
            "native": entry.native,
            "reason": entry.reason,
            "verdict": entry.verdict,
        }


def render_text(report: Report, *, all_families: bool = False) -> str:
    """The report for people, in lines as wide as the terminal and not below 100 columns.

    The families that the map ignores are counted, and with `all_families` listed with the reasons.
    """
    width = max(100, shutil.get_terminal_size((120, 24)).columns)
    lines = [*_headline(report, width), ""]
    for component in get_args(Component):
        entries = [entry for entry in report.entries if entry.component == component]
        if entries:
            lines += [*_section(component, entries, width), ""]
    if all_families:
        lines += _ignored_families(report.families, width)
    return "\n".join(lines)


def _headline(report: Report, width: int) -> Iterator[str]:
    found = report.identification
    if report.source is None:
        guess = f"; it looks like {found.nearest}" if found.nearest else ""
        versions = f" {found.versions}" if found.versions else ""
        headline = f"{report.subject}: answers, not understood{guess}{versions}"
        for text in (headline, f"Why: {found.reason}.", f"What to do: {found.advice}."):
            yield from textwrap.wrap(text, width, break_on_hyphens=False)
        return
    versions = f", {found.versions}" if found.versions else ""
    yield f"{report.subject}: {report.source.title}{versions} (source map {report.source.name!r})"
    yield f"Evidence of the map: {_EVIDENCE[report.source.evidence_of(found.versions)]}."
    yield _explain_span(report)
    for note in report.notes:
        yield from textwrap.wrap(f"note: {note}", width)
    yield from _describe_families(report.families, width)


def _describe_families(families: Families, width: int) -> Iterator[str]:
    if families.unknown:
        text = f"{_count(families.unknown)} that the map does not know: {', '.join(families.unknown)}"
        yield from textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
    if families.ignored:
        yield f"{_count(families.ignored)} that the map ignores, listed with --all"


def _count(families: Collection[str]) -> str:
    return "1 family" if len(families) == 1 else f"{len(families)} families"


def _ignored_families(families: Families, width: int) -> Iterator[str]:
    """The families that the map ignores, together where they are for the same reason."""
    if families.ignored:
        yield "IGNORED FAMILIES"
    for reason in dict.fromkeys(families.ignored.values()):
        yield from textwrap.wrap(reason, width, initial_indent="  ", subsequent_indent="  ")
        yield from (f"    {name}" for name, why in families.ignored.items() if why == reason)
        yield ""


def _explain_span(report: Report) -> str:
    if report.span == "start":
        return "One exposition: totals, means and ratios are since its process started; there are no rates."
    if report.seconds is None:
        return "Two expositions: increases, means and ratios between them; rates need --seconds."
    return f"Two expositions {report.seconds:g} s apart: increases, means, ratios and rates between them."


def _section(component: str, entries: Sequence[Entry], width: int) -> Iterator[str]:
    rows = {entry.name: list(_text_rows(entry)) for entry in entries}
    columns = [max(len(row[column]) for each in rows.values() for row in each) for column in range(4)]
    yield component.upper()
    for entry in entries:
        for row in rows[entry.name]:
            yield from _aligned(row, columns, width)


def _aligned(row: tuple[str, ...], columns: Sequence[int], width: int) -> Iterator[str]:
    name, value, measure, status, remark = row
    head = f"  {name:<{columns[0]}}  {value:>{columns[1]}}  {measure:<{columns[2]}}  {status:<{columns[3]}}  "
    # Where a terminal leaves no room for a column of reasons, the lines grow longer than it.
    room = max(width - len(head), 40)
    first, *rest = textwrap.wrap(remark, room, break_on_hyphens=False, break_long_words=False) or [""]
    yield (head + first).rstrip()
    yield from (" " * len(head) + line for line in rest)


def _text_rows(entry: Entry) -> Iterator[tuple[str, ...]]:
    # The series that a derived figure is computed from are with the metrics above it.
    native = entry.native if entry.kind == "metric" and entry.name not in PROCESS_RATIOS else None
    remark = " · ".join(filter(None, (native, entry.verdict, entry.reason)))
    yield entry.name, _format(entry.value, entry.unit), entry.measure, entry.status, remark
    for name, value in entry.parts:
        yield f"  {name.removeprefix(entry.name)}", _format(value, entry.unit), "", "", ""


def _format(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "ratio":
        return f"{value:.4f}"
    if unit == "seconds":
        return f"{value * 1000:.4g} ms" if abs(value) < 1 else f"{value:,.2f} s"
    if unit == "bytes":
        return f"{value / 2**20:,.1f} MiB"
    return f"{value:,.0f} {unit}" if value == round(value) else f"{value:,.4g} {unit}"
