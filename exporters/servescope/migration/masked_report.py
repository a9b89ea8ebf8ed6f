"""Reports as they are shown: everything that is quoted of a document with its secrets masked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from servescope.migration.document.document import Document, DocumentError
from servescope.migration.document.json_document import read_named
from servescope.migration.document.shapes import ConfigurationFinding
from servescope.migration.fields.body import ManagementBody
from servescope.migration.fields.llm_config import make_call
from servescope.migration.fields.masking import MASK, Masker, mask_error, mask_text, mask_values
from servescope.migration.report import FileReport, NewFile
from servescope.migration.translation.translation import FieldChange, Migration


def mask_report(report: FileReport) -> FileReport:
    """The report with every secret masked in what it quotes; status, findings and hashes are those of the file.

    Its documents have their texts alone.
    """
    if report.document is None:
        text = report.error.removeprefix(report.name)
        return replace(report, error=f"{report.name}{mask_error(text)}" if report.error else "", unmasked=report)
    masker = Masker(report.document)
    return replace(
        report,
        translation=_mask_migration(report.translation, masker) if report.translation is not None else None,
        findings=_mask_findings(report.findings, masker),
        meaning=tuple(replace(each, text=masker.text(each.text)) for each in report.meaning),
        body=_mask_body(report.body) if report.body is not None else None,
        new_files=tuple(map(_mask_new_file, report.new_files)),
        error=masker.text(report.error),
        unmasked=report,
    )


def _mask_findings(findings: Iterable[ConfigurationFinding], masker: Masker) -> tuple[ConfigurationFinding, ...]:
    return tuple(replace(each, path=mask_text(each.path), message=masker.text(each.message)) for each in findings)


def _mask_migration(found: Migration, masker: Masker) -> Migration:
    return replace(
        found,
        document=Document(masker.whole(), found.document.origin, None),
        new=Document(Masker(found.new).whole(), found.new.origin, None) if found.new is not None else None,
        findings=_mask_findings(found.findings, masker),
        changes=tuple(_mask_change(each, masker) for each in found.changes),
        questions=tuple(replace(each, message=masker.text(each.message)) for each in found.questions),
    )


def _mask_change(change: FieldChange, masker: Masker) -> FieldChange:
    texts = masker.comments([each.text for each in change.comments])
    comments = tuple(replace(each, text=text) for each, text in zip(change.comments, texts, strict=True))
    return replace(
        change, value=masker.value(change.value), new_value=masker.value(change.new_value), comments=comments
    )


def _mask_body(body: ManagementBody) -> ManagementBody:
    masked = mask_values(body.body)
    findings = tuple(
        replace(each, path=mask_text(each.path), message=mask_text(each.message)) for each in body.findings
    )
    return replace(body, body=masked, call=make_call(masked) if body.call else "", findings=findings)


def _mask_new_file(file: NewFile) -> NewFile:
    before = None if file.before is None else _mask_whole(file.before, file.name)
    return replace(file, text=_mask_whole(file.text, file.name), before=before)


def _mask_whole(text: str, name: str) -> str:
    try:
        return Masker(read_named(text, name)).whole()
    except DocumentError:  # of a file that is there already: any part of it may be a secret
        return f"{MASK}\n"
