"""The files of `servescope migrate`: found in folders, read, migrated, replaced in one step with the old one kept."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from servescope.errors import ServescopeError, UsageError
from servescope.migration.body import ManagementBody, check_body, is_management_body, make_body
from servescope.migration.document import LARGEST_BYTES, Document, DocumentError, decode
from servescope.migration.json_document import read_named
from servescope.migration.meaning import describe_meaning, describe_rollback, token_target
from servescope.migration.report import FileReport
from servescope.migration.translation import Answers, Migration, translate
from servescope.migration.trt_llm import LARGEST_V2_BATCH_TOKENS, Stack

NAMES: Final = ("config.yaml", "config.yml")
"""The files that are migrated in a folder."""


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """How files are migrated: to which stack, with which answers, and whether they are written."""

    to: Stack
    answers: Answers
    body: ManagementBody
    is_strict: bool
    is_written: bool


def read_options(arguments: argparse.Namespace) -> MigrationOptions:
    """The options of the command line; raises UsageError for answers that are out of range, or do not go together."""
    answer = arguments.max_num_tokens
    if answer is not None and not 65 <= answer <= LARGEST_V2_BATCH_TOKENS:
        raise UsageError(f"--max-num-tokens is {answer}, expected 65 to {LARGEST_V2_BATCH_TOKENS}")
    given = _read(arguments.llm_config) if arguments.llm_config is not None else None
    body = make_body(
        given, n_gram=arguments.n_gram, target_in_flight_tokens=_read_target(arguments), strict=arguments.strict
    )
    errors = [each for each in body.findings if each.severity == "error"]
    if errors:
        place = f"{arguments.llm_config}:{errors[0].line}:{errors[0].column}: " if given is not None else ""
        raise UsageError(f"{place}{errors[0].sentence}")
    return MigrationOptions("v1" if arguments.back else "v2", Answers(answer), body, arguments.strict, arguments.write)


def find_configs(paths: Iterable[Path]) -> Iterator[Path]:
    """The files that were named, and those of the folders that were, hidden folders left out, in order.

    Raises UsageError for a folder without such a file: nothing would be checked there.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = False
        for folder, folders, files in os.walk(path):
            folders[:] = sorted(each for each in folders if not each.startswith("."))
            for name in sorted(set(files) & set(NAMES)):
                found = True
                yield Path(folder) / name
        if not found:
            raise UsageError(f"{path}: has no {' or '.join(NAMES)} in it")


def migrate_file(path: Path, options: MigrationOptions) -> FileReport:
    """What becomes of one file, which is written where the options say so; no error of one file is raised."""
    name = path.as_posix()
    try:
        document = _read(path)
        report = report_document(document, options)
        found = report.translation
        if options.is_written and found is not None and found.text is not None and found.is_changed:
            kept = _write(path, document.text, found)
            report = replace(report, written=name, kept=kept.as_posix())
    except ServescopeError as error:
        return FileReport(name, "error", error=str(error))
    return report


def report_document(document: Document, options: MigrationOptions) -> FileReport:
    """What becomes of a document, of which nothing is written; raises DocumentError where it cannot be edited."""
    if is_management_body(document):
        return _check_body(document.origin, document, options)
    found = translate(document, options.to, options.answers, strict=options.is_strict)
    return _report(document.origin, found, options)


def _check_body(name: str, document: Document, options: MigrationOptions) -> FileReport:
    findings = check_body(document, strict=options.is_strict)
    if any(each.severity == "error" for each in findings):
        return FileReport(name, "error", findings=findings, note="a body of the Management API with errors")
    return FileReport(name, "unchanged", findings=findings, note="a body of the Management API: nothing to migrate")


def _report(name: str, found: Migration, options: MigrationOptions) -> FileReport:
    if found.has_errors:
        return FileReport(name, "error", found, found.findings)
    if found.questions:
        return FileReport(name, "asked", found, found.findings)
    if not found.is_changed:
        return FileReport(name, "unchanged", found, found.findings)
    if found.document.root is None:
        return FileReport(name, "changed", found, found.findings)
    if options.to == "v1":
        return FileReport(name, "changed", found, found.findings, describe_rollback(found.document.root))
    meaning = describe_meaning(found.document.root)
    return FileReport(name, "changed", found, found.findings, meaning, options.body)


def _read_target(arguments: argparse.Namespace) -> int | None:
    target: int | None = arguments.target_in_flight_tokens
    factors = {
        "--concurrency-target": arguments.concurrency_target,
        "--tokens-per-request": arguments.tokens_per_request,
    }
    given = {name: value for name, value in factors.items() if value is not None}
    if not given:
        return target
    if target is not None:
        raise UsageError(f"--target-in-flight-tokens is there beside {next(iter(given))}, expected one of both")
    for name, value in factors.items():
        if value is None:
            raise UsageError(f"{next(iter(given))} needs {name} beside it")
        if not 0 < value < 1e9:
            raise UsageError(f"{name} is {value:g}, expected a number above 0")
    return token_target(arguments.concurrency_target, arguments.tokens_per_request)


def _read(path: Path) -> Document:
    origin = path.as_posix()
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise DocumentError(origin, 0, 0, f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a name with a null byte
        raise DocumentError(origin, 0, 0, f"cannot be read: {error}") from error
    return read_named(decode(data, origin), origin)


def _write(path: Path, before: str, found: Migration) -> Path:
    """Replace a file in one step, and keep the old one beside it as `FILE.v1`; returns the path of that copy.

    Raises DocumentError where such a copy is there with another content, or the file changed since it was read: then
    nothing was written.
    """
    target = path.resolve()
    kept = target.with_name(f"{target.name}.{found.stack}")
    old = before.encode()
    try:
        if target.read_bytes() != old:
            raise DocumentError(path.as_posix(), 0, 0, "changed while it was migrated; nothing was written")
        if kept.exists() and kept.read_bytes() != old:
            what = f"would be kept as {kept.name}, which is there already; nothing was written"
            raise DocumentError(path.as_posix(), 0, 0, what)
        mode = target.stat().st_mode
        is_new = not kept.exists()
        _replace(kept, old, mode)
        try:
            _replace(target, (found.text or "").encode(), mode)
        except OSError:
            if is_new:
                kept.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DocumentError(path.as_posix(), 0, 0, f"cannot be written: {error.strerror or error}") from error
    return kept


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Give a file its new content, or leave it as it is."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(mode & 0o7777)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
