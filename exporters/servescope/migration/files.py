"""The files of `servescope migrate`: found in folders, read, migrated, replaced in one step with the old one kept."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from stat import S_ISREG

from servescope.errors import ServescopeError, UsageError
from servescope.migration.document.document import LARGEST_BYTES, Document, DocumentError, decode
from servescope.migration.document.json_document import is_named_json, read_named
from servescope.migration.fields.backend_server import check_backend_server, find_part
from servescope.migration.fields.body import ManagementBody, check_body, is_management_body, make_body, with_speculation
from servescope.migration.fields.config_yaml import ACCELERATORS, CONFIG
from servescope.migration.fields.llm_config import SPECULATIVE, require
from servescope.migration.fields.masking import Masker
from servescope.migration.fields.meaning import describe_backend_move, describe_meaning, describe_rollback, token_target
from servescope.migration.fields.trt_llm import LARGEST_V2_BATCH_TOKENS, V2_BUILD_TABLE, V2_RUNTIME, Stack
from servescope.migration.finding import follow
from servescope.migration.report import FileReport, NewFile
from servescope.migration.traffic.measuring import CHOOSING, measure
from servescope.migration.traffic.token_target import TokenTargets
from servescope.migration.translation.backend_translation import BackendAnswers, BackendMigration, translate_backend
from servescope.migration.translation.translation import Answers, Migration, translate
from servescope.migration.writing import create_files, remove_leftovers, replace_file


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """How files are migrated: to which stack, with which answers, and whether they are written."""

    to: Stack
    answers: Answers
    body: ManagementBody
    is_strict: bool
    is_written: bool
    backend_answers: BackendAnswers = field(default_factory=BackendAnswers)
    pipeline: Document | None = None


def read_numbers(arguments: argparse.Namespace) -> TokenTargets | None:
    """The numbers from the traffic that the options choose; None where they choose none.

    Raises UsageError where they cannot be made, or there are several configurations, and ServescopeError.
    """
    configs: list[Path] = arguments.configs
    documents: list[Document | None] = [None, None]
    if any(getattr(arguments, name) is not None for name in CHOOSING):
        if len(configs) > 1 or any(path.is_dir() for path in configs):
            raise UsageError("traffic is of one deployment, expected one configuration beside it, or none")
        paths = configs[0] if configs else None, arguments.llm_config
        documents = [_read(path) if path is not None else None for path in paths]
    elif not configs:
        raise UsageError("no CONFIG is given, expected a configuration, or the traffic of a deployment (--deployment)")
    return measure(arguments, *documents)


def read_options(arguments: argparse.Namespace, numbers: TokenTargets | None = None) -> MigrationOptions:
    """The options of the command line, with the target that was measured where it is asked for.

    Raises UsageError for answers that are out of range, or do not go together.
    """
    answer = arguments.max_num_tokens
    if answer is not None and not 65 <= answer <= LARGEST_V2_BATCH_TOKENS:
        raise UsageError(f"--max-num-tokens is {answer}, expected 65 to {LARGEST_V2_BATCH_TOKENS}")
    given = _read(arguments.llm_config) if arguments.llm_config is not None else None
    body = make_body(
        given,
        n_gram=arguments.n_gram,
        target_in_flight_tokens=_read_target(arguments, numbers),
        strict=arguments.strict,
    )
    errors = [each for each in body.findings if each.severity == "error"]
    if errors:
        place = f"{arguments.llm_config}:{errors[0].line}:{errors[0].column}: " if errors[0].line else ""
        raise UsageError(f"{place}{_quote(given, errors[0].sentence, arguments)}")
    backend_answers = _read_backend_answers(arguments, has_speculation="speculative_config" in body.body["llm_config"])
    pipeline = _read_pipeline(arguments) if arguments.pipeline is not None else None
    return MigrationOptions(
        "v1" if arguments.back else "v2",
        Answers(answer),
        body,
        arguments.strict,
        arguments.write,
        backend_answers,
        pipeline,
    )


def migrate_file(path: Path, options: MigrationOptions, folder: Path | None = None) -> FileReport:
    """What becomes of one file, which is written where the options say so; no error of one file is raised.

    A link is followed within the folder, which is that of the file unless another is given.
    """
    name = path.as_posix()
    document: Document | None = None
    try:
        target = follow(path, folder or path.parent)
        if options.is_written:
            remove_leftovers(target.parent)
        document = _read(path, target)
        report = report_document(document, options, target.parent)
        if report.new_files:
            return _place_new_files(path, target, document, report, options)
        found = report.translation
        if options.is_written and found is not None and found.text is not None and found.is_changed:
            kept = replace_file(path, target, document.text, found.text, found.stack or "")
            report = replace(report, written=name, kept=kept.as_posix())
    except ServescopeError as error:
        return FileReport(name, "error", error=str(error), document=document)
    return report


def report_document(document: Document, options: MigrationOptions, folder: Path | None = None) -> FileReport:
    """What becomes of a document, of which nothing is written; raises DocumentError where it cannot be edited.

    `folder` is where its file is, None where it is of none.
    """
    return replace(_report_any(document, options, folder), document=document)


def _report_any(document: Document, options: MigrationOptions, folder: Path | None) -> FileReport:
    if is_management_body(document):
        return _check_body(document.origin, document, options)
    if find_part(document) is not None:
        return _report_backend(document, options)
    if is_named_json(document.origin):
        _check_known(document)
    found = translate(document, options.to, options.answers, strict=options.is_strict, folder=folder)
    return _report(document.origin, found, options)


def _check_body(name: str, document: Document, options: MigrationOptions) -> FileReport:
    findings = check_body(document, strict=options.is_strict)
    if any(each.severity == "error" for each in findings):
        return FileReport(name, "error", findings=findings, note="a body of the Management API with errors")
    return FileReport(name, "unchanged", findings=findings, note="a body of the Management API: nothing to migrate")


def _check_known(document: Document) -> None:
    """Refuse a file whose keys say nothing of what it is."""
    value = document.value
    if not isinstance(value, dict) or not value.keys() & CONFIG.keys.keys():
        what = (
            "is no configuration that is known, expected a Truss configuration (trt_llm), a body of the Management API "
            "(llm_config), or the backend server's (backend and optimisations; mode and loras)"
        )
        raise document.error(document.root, what)


def _report_backend(document: Document, options: MigrationOptions) -> FileReport:
    """What becomes of a document of the backend server: a new config.yaml, and the body where it holds something."""
    name = document.origin
    if not is_named_json(name):
        raise DocumentError(name, 0, 0, "is the backend server's by its keys, which is JSON: name it with .json")
    if options.to == "v1":
        raise DocumentError(name, 0, 0, "is the backend server's, expected a configuration of v2 for --back")
    found = translate_backend(document, options.pipeline, options.backend_answers, strict=options.is_strict)
    report = _report(name, found, options)
    if report.status in ("error", "asked"):
        return report
    if found.text is None:
        note = "a pipeline configuration of the backend server, for --pipeline beside an optimisation configuration"
        return replace(report, note=note)
    body = with_speculation(options.body, found.speculative_config) if found.speculative_config else options.body
    new_files = [NewFile(_beside(name, "config.yaml"), None, found.text)]
    if body.call:
        text = json.dumps(body.body, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace").decode() + "\n"
        new_files.append(NewFile(_beside(name, "llm_models.json"), None, text))
    pipeline = options.pipeline.root if options.pipeline is not None else None
    meaning = describe_backend_move(document.root, pipeline) if document.root is not None else ()
    return replace(report, meaning=meaning, body=body, new_files=tuple(new_files))


def _beside(name: str, other: str) -> str:
    return Path(name).with_name(other).as_posix()


def _place_new_files(
    path: Path, target: Path, document: Document, report: FileReport, options: MigrationOptions
) -> FileReport:
    """Compare the files that are made with those that are there, and write them where the options say so."""
    if options.is_written:
        remove_leftovers(path.parent)
    new_files = tuple(replace(each, before=_read_text(Path(each.name))) for each in report.new_files)
    report = replace(report, new_files=new_files)
    if all(each.before == each.text for each in new_files) and report.translation is not None:
        note = f"{' and '.join(Path(each.name).name for each in new_files)} are there already: nothing to do"
        unchanged = replace(report.translation, changes=())
        return replace(report, status="unchanged", translation=unchanged, meaning=(), body=None, note=note)
    if options.is_written:
        create_files(path, target, document.text, new_files)
        report = replace(report, written=new_files[0].name, kept=report.name)
    return report


def _report(name: str, found: Migration, options: MigrationOptions) -> FileReport:
    if found.has_errors:
        return FileReport(name, "error", found, found.findings)
    if found.questions:
        return FileReport(name, "asked", found, found.findings)
    if not found.is_changed:
        return FileReport(name, "unchanged", found, found.findings)
    if found.document.root is None or isinstance(found, BackendMigration):
        return FileReport(name, "changed", found, found.findings)
    if options.to == "v1":
        return FileReport(name, "changed", found, found.findings, describe_rollback(found.document.root))
    meaning = describe_meaning(found.document.root)
    return FileReport(name, "changed", found, found.findings, meaning, options.body)


def _read_target(arguments: argparse.Namespace, numbers: TokenTargets | None) -> int | None:
    target: int | None = arguments.target_in_flight_tokens
    if arguments.measured_target and numbers is not None:
        return _take_measured(arguments, numbers)
    factors = {
        "--concurrency-target": arguments.concurrency_target,
        "--tokens-per-request": arguments.tokens_per_request,
    }
    given = {name: value for name, value in factors.items() if value is not None}
    if not given:
        return target
    if target is not None:
        raise UsageError(f"--target-in-flight-tokens is there beside {next(iter(given))}, expected one of both")
    if numbers is not None and numbers.formula is not None and arguments.tokens_per_request is None:
        return numbers.formula.target
    for name, value in factors.items():
        if value is None:
            raise UsageError(f"{next(iter(given))} needs {name} beside it")
        if not 0 < value < 1e9:
            raise UsageError(f"{name} is {value:g}, expected a number above 0")
    return token_target(arguments.concurrency_target, arguments.tokens_per_request)


def _take_measured(arguments: argparse.Namespace, numbers: TokenTargets) -> int:
    for option in ("target_in_flight_tokens", "tokens_per_request"):
        if getattr(arguments, option) is not None:
            raise UsageError(f"--{option.replace('_', '-')} is there beside --measured-target, expected one of both")
    if not numbers.recommendation.is_met:
        reason = numbers.recommendation.reason
        raise UsageError(f"--measured-target: {reason}; choose one with --target-in-flight-tokens")
    return numbers.recommendation.target


def _read_backend_answers(arguments: argparse.Namespace, *, has_speculation: bool) -> BackendAnswers:
    """The answers for the backend server's JSON; raises UsageError for values that v2 does not have."""
    shapes = {
        "quantization_type": V2_BUILD_TABLE.keys, "max_seq_len": V2_RUNTIME.keys, "max_batch_size": V2_RUNTIME.keys,
        "speculative_model_dir": SPECULATIVE.keys, "num_nextn_predict_layers": SPECULATIVE.keys,
    }  # fmt: skip
    for name, fields in shapes.items():
        if getattr(arguments, name) is not None:
            require(fields[name].shape.check, getattr(arguments, name), f"--{name.replace('_', '-')}")
    if arguments.accelerator is not None and arguments.accelerator not in ACCELERATORS:
        raise UsageError(f"--accelerator is {arguments.accelerator!r}, expected one of: {', '.join(ACCELERATORS)}")
    if arguments.checkpoint is not None and not all(arguments.checkpoint.partition(":")):
        raise UsageError(f"--checkpoint is {arguments.checkpoint!r}, expected SOURCE:REPO, such as HF:owner/name")
    one_model = arguments.eagle3_one_model
    return BackendAnswers(
        arguments.checkpoint, arguments.accelerator, arguments.quantization_type, arguments.speculative_model_dir,
        None if one_model is None else one_model == "yes", arguments.num_nextn_predict_layers, arguments.max_seq_len,
        arguments.max_batch_size, arguments.max_num_tokens, has_speculation,
    )  # fmt: skip


def _read_pipeline(arguments: argparse.Namespace) -> Document:
    """The pipeline configuration of the backend server; raises UsageError where it is another file, or has errors."""
    path: Path = arguments.pipeline
    document = _read(path)
    if not is_named_json(path.as_posix()) or find_part(document) != "pipeline":
        raise UsageError(f"{path}: is no pipeline configuration in JSON, expected mode, loras, lora_repo …")
    for finding in check_backend_server(document, "pipeline"):
        if arguments.strict or finding.severity == "error":
            said = _quote(document, finding.sentence, arguments)
            raise UsageError(f"{path}:{finding.line}:{finding.column}: {said}")
    return document


def _quote(document: Document | None, sentence: str, arguments: argparse.Namespace) -> str:
    """What is said of a document, as it may be printed."""
    return sentence if document is None or arguments.show_secrets else Masker(document).text(sentence)


def _read_text(path: Path) -> str | None:
    """What is in a file now, None where there is none; raises DocumentError where it cannot be read."""
    if not os.path.lexists(path):
        return None
    return decode(_read_bytes(path, follow(path, path.parent)), path.as_posix())


def _read(path: Path, target: Path | None = None) -> Document:
    """What is in a file, or in the one that it leads to."""
    origin = path.as_posix()
    return read_named(decode(_read_bytes(path, target or path), origin), origin)


def _read_bytes(path: Path, target: Path) -> bytes:
    origin = path.as_posix()
    try:
        if not S_ISREG(target.stat().st_mode):
            raise DocumentError(origin, 0, 0, "is no regular file")  # a pipe would be waited for
        with target.open("rb") as file:
            return file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise DocumentError(origin, 0, 0, f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a name with a null byte
        raise DocumentError(origin, 0, 0, f"cannot be read: {error}") from error
