"""The report on files that are migrated: for a person, and as JSON by a published schema."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, get_args
from unicodedata import category

from servescope.migration.advice.advice import ADVICE_TITLES, Advice, Answer
from servescope.migration.document.document import BREAK, Document
from servescope.migration.document.shapes import ConfigurationFinding, show
from servescope.migration.fields.body import ManagementBody
from servescope.migration.fields.masking import hash_configuration
from servescope.migration.fields.meaning import TITLES, MeaningChange
from servescope.migration.fields.trt_llm import Stack
from servescope.migration.traffic.token_report import targets_json, targets_schema
from servescope.migration.traffic.token_target import TokenTargets
from servescope.migration.translation.checklist import Checklist, make_checklist
from servescope.migration.translation.fates import MEANINGS, meaning
from servescope.migration.translation.translation import FieldChange, Migration, Question
from servescope.settings.json_schema import closed_object

Status = Literal["unchanged", "changed", "asked", "error"]

SCHEMA_ID: Final = "urn:servescope:migration:1"
"""What the schema is called; the number changes when a program that reads reports has to."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file made beside the one that is migrated; `before` is what is there already, None where nothing is."""

    name: str
    before: str | None
    text: str


@dataclass(frozen=True, slots=True)
class FileReport:
    """What becomes of one file; `error` is why it could not be read or written, empty where it could.

    `note` is what somebody reads who wonders why nothing changes; `new_files` is empty where the file is edited.
    `document` is what was read, None where it could not be; `unmasked` is the report without masks, where this is the
    one that is shown.
    """

    name: str
    status: Status
    translation: Migration | None = None
    findings: tuple[ConfigurationFinding, ...] = ()
    meaning: tuple[MeaningChange, ...] = ()
    body: ManagementBody | None = None
    error: str = ""
    note: str = ""
    new_files: tuple[NewFile, ...] = ()
    written: str = ""
    kept: str = ""
    document: Document | None = field(default=None, repr=False)
    unmasked: FileReport | None = field(default=None, repr=False)

    @property
    def changes(self) -> tuple[FieldChange, ...]:
        """The fields that change."""
        return self.translation.changes if self.translation is not None else ()

    @property
    def questions(self) -> tuple[Question, ...]:
        """What has to be decided first."""
        return self.translation.questions if self.translation is not None else ()


def checklist_of(report: FileReport) -> Checklist | None:
    """What to look after when the traffic has moved; None where nothing moves to v2."""
    found = report.translation
    if report.status != "changed" or found is None or found.to != "v2":
        return None
    body = report.body.body if report.body is not None else {}
    return make_checklist(report.changes, body.get("llm_config") or {})


def describe(report: FileReport) -> str:
    """The report of one file for a person."""
    return "\n".join(map(_printable, _describe(report))) + "\n"


def describe_summary(reports: Sequence[FileReport]) -> str:
    """One line on all files."""
    counts = Counter("blocked" if _is_blocked(each) else _COUNTED[each.status] for each in reports)
    *others, errors = _COUNTED.values()
    shown = ", ".join(f"{counts[kind]} {kind}" for kind in (*others, "blocked", errors) if counts[kind])
    return f"{len(reports)} {'file' if len(reports) == 1 else 'files'}: {shown or 'none to migrate'}"


def summarise(reports: Sequence[FileReport]) -> dict[Status, int]:
    """How many files have each status."""
    return {status: sum(each.status == status for each in reports) for status in _COUNTED}


def diff(report: FileReport) -> str:
    """The unified diff of one file; empty where nothing changes."""
    if report.new_files:
        return "".join(_diff(each.name, each.before, each.text) for each in report.new_files)
    found = report.translation
    if found is None or found.text is None or not found.is_changed:
        return ""
    return _diff(report.name, found.document.text, found.text)


def hides_secrets(report: FileReport) -> bool:
    """Whether the diff of one file has a secret masked, so that it cannot be applied."""
    real = report.unmasked
    if real is None or real.translation is None or report.translation is None:
        return False
    if not real.new_files and report.translation.document.text == real.translation.document.text:
        return False
    return diff(report) != diff(real)


def _printable(line: str) -> str:
    """A line without what a terminal would act on, and what has no encoding: both are escaped."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() or category(each) == "Zs" else repr(each)[1:-1] for each in line)


def _diff(name: str, before: str | None, after: str) -> str:
    name = _printable(name)
    old, new = (name, name) if name.startswith("/") else (f"a/{name}", f"b/{name}")
    lines = difflib.unified_diff(_split(before or ""), _split(after), "/dev/null" if before is None else old, new)
    return "".join(line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n" for line in lines)


def exit_code(reports: Sequence[FileReport], *, check: bool) -> int:
    """2 on an error, 3 where something is asked or stays on v1, 1 where a check finds changes, else 0."""
    there = {each.status for each in reports}
    if "error" in there:
        return 2
    if "asked" in there:
        return 3
    return 1 if check and "changed" in there else 0


def to_json(
    reports: Sequence[FileReport], numbers: TokenTargets | None = None, advice: Sequence[Advice] = ()
) -> dict[str, Any]:
    """All reports, the numbers from traffic and the advice on it, as `migration_schema` describes them."""
    return {
        "files": [_file_json(each) for each in reports],
        "traffic": targets_json(numbers) if numbers is not None else None,
        "advice": [_plain(asdict(each)) for each in advice],
        "summary": summarise(reports),
    }


SOURCES: Final[Mapping[str, str]] = {
    "S1": "the vendor's migration guide",
    "S2": "its BIS-LLM overview",
    "S3": "its advanced features",
    "S4": "its config.yaml reference",
    "S5": "its backend server's options",
    "D": "its public documentation",
    "ours": "our mapping, as no document compares both",
}
"""What the marks of sources mean."""

_COUNTED: Final[Mapping[Status, str]] = {
    "changed": "to change",
    "unchanged": "with nothing to do",
    "asked": "waiting for an answer",
    "error": "with errors",
}


def _describe(report: FileReport) -> Iterator[str]:
    if report.error and report.error.startswith(f"{report.name}:"):
        yield report.error  # with its line, where it has one
        return
    yield f"{report.name}: {report.note or _headline(report)}"
    if report.error:
        return
    for finding in report.findings:
        place = f"{report.name}:{finding.line}:{finding.column}" if finding.line else report.name
        yield f"  {finding.severity}: {place}: {finding.sentence}"
    if report.translation is not None and report.changes and report.status != "error":
        yield ""
        for change in report.changes:
            yield from _describe_change(change, report.translation.to)
    if report.questions:
        yield ""
        yield "  To be decided first:"
        for question in report.questions:
            answer = f"; answer with {question.flag}" if question.flag else ""
            yield f"    {question.path} (line {question.line}) {question.message}{answer}"
    if report.meaning:
        yield ""
        yield "  What changes beside the fields:"
        for each in report.meaning:
            yield f"    {TITLES[each.topic]}: {each.text} [{each.source}]"
    if report.body is not None and report.body.call:
        yield ""
        needs = f" (needs the Enterprise tier: {', '.join(report.body.enterprise)})" if report.body.enterprise else ""
        yield f"  The call of the Management API{needs}:"
        for finding in report.body.findings:
            place = f"{report.body.origin}:{finding.line}:{finding.column}: " if finding.line else ""
            yield f"    {finding.severity}: {place}{finding.sentence}"
        yield from (f"    {line}" for line in report.body.call.splitlines())
    checklist = checklist_of(report)
    if checklist is not None:
        yield ""
        yield "  After the move:"
        yield from (f"    {line}" for line in checklist.lines())
    marks = {change.source for change in report.changes} | {each.source for each in report.meaning}
    marks &= SOURCES.keys()
    if marks:
        yield ""
        yield f"  Sources: {', '.join(f'{mark} {SOURCES[mark]}' for mark in sorted(marks))}"
    if report.written:
        yield ""
        written = ", ".join(each.name for each in report.new_files) or report.written
        yield f"  written: {written}; the old file is {report.kept}"


def _headline(report: FileReport) -> str:
    if report.error:
        return report.error
    found = report.translation
    if report.status == "error":
        count = sum(each.severity == "error" for each in report.findings)
        return f"{count} {'error' if count == 1 else 'errors'}: nothing was translated"
    if found is None or found.stack is None:
        return "no trt_llm block: nothing to migrate"
    if report.status == "unchanged":
        return f"declares {found.stack} already: nothing to do"
    if report.status == "asked":
        what = "cannot be moved as it is" if _is_blocked(report) else "an answer is needed"
        return f"{found.stack} → {found.to}: {what}"
    return f"{found.stack} → {found.to}"


def _is_blocked(report: FileReport) -> bool:
    """Whether something in the file keeps it on its stack, and not only an answer is needed."""
    return report.status == "asked" and any(each.kind == "blocking" for each in report.questions)


def _describe_change(change: FieldChange, to: Stack) -> Iterator[str]:
    before = f"{change.before}: {show(change.value)}" if change.before else ""
    after = f"{change.after}: {show(change.new_value)}" if change.after else ""
    arrow = " → ".join(part for part in (before, after) if part)
    yield f"  line {change.line}  {arrow}  ({meaning(change.kind, to)})"
    yield f"      {change.why} [{change.source}]" + (f" {change.todo}" if change.todo else "")
    for comment in change.comments:
        yield f"      removed with it, line {comment.line}: {comment.text}"


def _split(text: str) -> list[str]:
    """Lines with their ends, as a diff shows them; `\\r` alone ends none there."""
    parts = []
    at = 0
    for match in BREAK.finditer(text):
        if match.group() in ("\n", "\r\n"):
            parts.append(text[at : match.end()])
            at = match.end()
    return [*parts, text[at:]] if at < len(text) else parts


def _file_json(report: FileReport) -> dict[str, Any]:
    found = report.translation
    hashed = report.unmasked.translation if report.unmasked is not None else found
    body = report.body
    checklist = checklist_of(report)
    return {
        "file": report.name,
        "status": report.status,
        "from": found.stack if found is not None else None,
        "to": found.to if found is not None else None,
        "hash": None if hashed is None else hash_configuration(hashed.document.value),
        "new_hash": None if hashed is None or hashed.new is None else hash_configuration(hashed.new.value),
        "error": report.error or None,
        "note": report.note or None,
        "findings": [asdict(each) for each in report.findings],
        "changes": [_plain(asdict(each)) for each in report.changes],
        "questions": [asdict(each) for each in report.questions],
        "meaning": [asdict(each) for each in report.meaning],
        "management_api": None if body is None or not body.call else {
            "body": _plain(body.body), "call": body.call, "enterprise": list(body.enterprise),
            "findings": [asdict(each) for each in body.findings],
        },
        "new_files": [each.name for each in report.new_files],
        "checklist": None if checklist is None else _checklist_json(checklist),
        "diff": diff(report),
        "written": report.written or None,
        "kept": report.kept or None,
    }  # fmt: skip


def _checklist_json(checklist: Checklist) -> dict[str, Any]:
    return {
        "watch": [asdict(each) for each in checklist.watch],
        "alerts": [asdict(each) for each in checklist.alerts],
        "bands": dict(checklist.bands),
        "absent_bands": list(checklist.absent_bands),
    }


def _plain(value: Any) -> Any:
    """A value as JSON has it: what YAML has beyond (dates, bytes, infinity) as its text."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


# --- The schema -------------------------------------------------------------------------------------------------------


def migration_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of `to_json`."""
    text, number, maybe = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": ["string", "null"]}
    stack = {"enum": ["v1", "v2", "backend-server", None]}
    below = "below `trt_llm` where the file is edited"
    comment = closed_object({"line": number, "text": text})
    finding = closed_object({
        "severity": {"enum": ["error", "warning"]}, "path": text, "line": number, "column": number, "message": text,
    })  # fmt: skip
    change = closed_object({
        "kind": {"enum": list(MEANINGS), "description": "What happens to the field."},
        "before": {**text, "description": f"Its path before, {below}; empty where it was not there."},
        "after": {**text, "description": f"Its path after, {below}; empty where it has no place."},
        "value": {"description": "Its value before."},
        "new_value": {"description": "Its value after, null where it has no place."},
        "why": text,
        "todo": {**text, "description": "What somebody does about it; empty without."},
        "source": {**text, "description": "S1 to S5 and D: the vendor's documents; or its tool; or `ours`."},
        "line": number,
        "comments": {"type": "array", "items": comment, "description": "Comments that were removed with the field."},
    })  # fmt: skip
    question = closed_object({
        "kind": {"enum": ["asked", "blocking"]}, "path": text, "line": number, "column": number, "message": text,
        "flag": {**text, "description": "The option that answers it, empty where none can."},
    })  # fmt: skip
    meaning = closed_object({"topic": {"enum": list(TITLES)}, "text": text, "source": text})
    advice = closed_object({
        "topic": {"enum": list(ADVICE_TITLES)}, "answer": {"enum": list(get_args(Answer))}, "text": text,
        "reasons": {"type": "array", "items": text, "description": "The figures and rules behind the answer."},
    })  # fmt: skip
    management = closed_object({
        "body": {"type": "object", "description": "The body of POST /v1/llm_models."},
        "call": {**text, "description": "The call, to paste into a shell."},
        "enterprise": {"type": "array", "items": text, "description": "What in it needs the Enterprise tier."},
        "findings": {
            "type": "array", "items": finding, "description": "Of its file, and with line 0 of what was decided.",
        },
    })  # fmt: skip
    checklist = closed_object({
        "watch": {"type": "array", "items": closed_object({"figure": text, "why": text})},
        "alerts": {"type": "array", "items": closed_object({
            "name": text, "before": {"type": "boolean", "description": "Whether it can fire on v1."},
            "after": {"type": "boolean", "description": "Whether it can fire on v2 as configured."}, "why_not": text,
        })},
        "bands": {"type": "object", "additionalProperties": text, "description": "By figure, where v2 is good."},
        "absent_bands": {"type": "array", "items": text, "description": "Figures that this v2 does not have."},
    })  # fmt: skip
    file = closed_object({
        "file": text,
        "status": {"enum": list(_COUNTED)},
        "from": {**stack, "description": "The stack it declares, or is a file of; null without a `trt_llm` block."},
        "to": {"enum": ["v1", "v2", None]},
        "hash": {**maybe, "description": "The hash of what the file says, secrets left out: what a plan records."},
        "new_hash": {**maybe, "description": "The same of the file afterwards."},
        "error": {**maybe, "description": "Why it could not be read, edited, written, or shown with secrets masked."},
        "note": {**maybe, "description": "Why nothing is done, where that is not plain; a link that is not followed."},
        "findings": {"type": "array", "items": finding},
        "changes": {"type": "array", "items": change},
        "questions": {"type": "array", "items": question},
        "meaning": {"type": "array", "items": meaning, "description": "What changes beside the fields."},
        "management_api": {"anyOf": [management, {"type": "null"}]},
        "new_files": {"type": "array", "items": text, "description": "The files made beside it."},
        "checklist": {
            "anyOf": [checklist, {"type": "null"}], "description": "What to look after when the traffic has moved.",
        },
        "diff": {**text, "description": "Unified, secrets masked unless they are asked for; empty without changes."},
        "written": {**maybe, "description": "The file that was written; of new ones the first."},
        "kept": {**maybe, "description": "The copy of the old file."},
    })  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "A migration of configurations by servescope",
        **closed_object({
            "files": {"type": "array", "items": file},
            "traffic": {
                "anyOf": [targets_schema(), {"type": "null"}],
                "description": "Numbers from the traffic that v1 served; null where none was chosen.",
            },
            "advice": {
                "type": "array", "items": advice,
                "description": "Whether what v2 adds pays for the traffic; empty without traffic or a trace.",
            },
            "summary": closed_object(dict.fromkeys(_COUNTED, number)),
        }),
    }  # fmt: skip
