"""Reports as they are shown: everything that is quoted of a document with its secrets masked."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from servescope.migration.body import ManagementBody
from servescope.migration.document import DocumentError
from servescope.migration.json_document import read_json, read_named
from servescope.migration.llm_config import make_call
from servescope.migration.masking import Masker, mask_document, mask_error, mask_text, mask_values
from servescope.migration.report import FileReport, NewFile
from servescope.migration.shapes import ConfigurationFinding
from servescope.migration.translation import FieldChange, Migration

_UNSHOWN = "cannot be shown with its secrets masked; the command shows it with --show-secrets"


def mask_report(report: FileReport) -> FileReport:
    """The report with every secret masked in what it quotes; status, findings and hashes are those of the file.

    Where the masked file could not be read, nothing of it is shown, and the error says so.
    """
    if report.document is None:
        text = report.error.removeprefix(report.name)
        return replace(report, error=f"{report.name}{mask_error(text)}" if report.error else "", unmasked=report)
    masker = Masker(report.document)
    shown = replace(
        report, findings=_mask_findings(report.findings, masker), error=masker.text(report.error), unmasked=report
    )
    try:
        return replace(
            shown,
            translation=_mask_migration(report.translation, masker) if report.translation is not None else None,
            meaning=tuple(replace(each, text=masker.text(each.text)) for each in report.meaning),
            body=_mask_body(report.body) if report.body is not None else None,
            new_files=tuple(map(_mask_new_file, report.new_files)),
        )
    except DocumentError:
        error = report.error or f"{report.name}: {_UNSHOWN}"
        return replace(shown, translation=None, meaning=(), body=None, new_files=(), error=masker.text(error))


def _mask_findings(findings: Iterable[ConfigurationFinding], masker: Masker) -> tuple[ConfigurationFinding, ...]:
    return tuple(replace(each, path=mask_text(each.path), message=masker.text(each.message)) for each in findings)


def _mask_migration(found: Migration, masker: Masker) -> Migration:
    return replace(
        found,
        document=mask_document(found.document),
        new=mask_document(found.new) if found.new is not None else None,
        findings=_mask_findings(found.findings, masker),
        changes=tuple(_mask_change(each, masker) for each in found.changes),
        questions=tuple(replace(each, message=masker.text(each.message)) for each in found.questions),
    )


def _mask_change(change: FieldChange, masker: Masker) -> FieldChange:
    comments = tuple(replace(each, text=masker.comment(each.text)) for each in change.comments)
    return replace(
        change, value=masker.value(change.value), new_value=masker.value(change.new_value), comments=comments
    )


def _mask_body(body: ManagementBody) -> ManagementBody:
    masked = mask_document(read_json(json.dumps(mask_values(body.body)), "llm_config.json")).value
    return replace(body, body=masked, call=make_call(masked) if body.call else "")


def _mask_new_file(file: NewFile) -> NewFile:
    def mask(text: str) -> str:
        return mask_document(read_named(text, file.name)).text

    return replace(file, text=mask(file.text), before=None if file.before is None else mask(file.before))
