"""A pasted configuration: what a session keeps of it, what the page shows of it, and the files that follow from it.

The text as it was pasted is in the memory of its session only, for the files that have to work; whatever is shown is
made from the same text with its secrets masked.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from servescope.errors import ServescopeError
from servescope.migrate import DRAFTS, make_draft
from servescope.migration import command, report
from servescope.migration.advice.advice import Advice
from servescope.migration.advice.advising import advise
from servescope.migration.document.document import Document, DocumentError, decode
from servescope.migration.document.json_document import read_named
from servescope.migration.fields.body import make_body
from servescope.migration.fields.masking import mask_document, mask_error
from servescope.migration.files import MigrationOptions, read_options, report_document
from servescope.migration.masked_report import mask_report
from servescope.migration.moves import read_move
from servescope.migration.report import FileReport
from servescope.migration.traffic.token_target import TokenTargets

NAMES: Final[Mapping[str, str]] = {
    "plan": "cutover.toml", "collector": "servescope.toml", "emulate": "rehearsal.toml", "checklist": "after.md",
}  # fmt: skip
"""What the drafts are called as files, by their options."""


@dataclass(frozen=True, slots=True)
class PastedText:
    """A text that somebody pasted or uploaded, which no representation of it shows."""

    name: str
    text: str = field(repr=False)

    @property
    def extent(self) -> str:
        """How long it is: `1 line`, `13 lines`."""
        lines = len(self.text.splitlines())
        return f"{lines} {'line' if lines == 1 else 'lines'}"


@dataclass(frozen=True, slots=True)
class Answered:
    """What a reader decided, by the option of the command; options that are left out are not decided."""

    options: Mapping[str, Any]
    llm_config: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Readiness:
    """What becomes of a pasted configuration: the report that is shown, its secrets masked, and one for the files."""

    shown: FileReport
    _real: FileReport = field(repr=False)
    numbers: TokenTargets | None = None

    def advice(self) -> tuple[Advice, ...]:
        """Whether what v2 adds pays for the traffic; nothing without traffic."""
        return tuple(advise(self.numbers.traffic, None)) if self.numbers is not None else ()

    def files(self) -> dict[str, str]:
        """The files of a move that have to work as they are, by name: they hold the secrets that were pasted."""
        found, body = self._real.translation, self._real.body
        if self._real.status != "changed" or found is None or found.text is None:
            return {}
        files = {"config.yaml": found.text}
        if body is not None and body.call:
            files["llm_models.json"] = f"{json.dumps(body.body, indent=2, ensure_ascii=False)}\n"
            files["llm_models.sh"] = f"{body.call}\n"
        return files

    def drafts(self) -> dict[str, str]:
        """The files in which secrets are masked, by name: the diff, the report, and what is drafted for the cutover."""
        shown = json.dumps(
            report.to_json([self.shown], self.numbers, self.advice()), indent=1, ensure_ascii=False, allow_nan=False
        )
        files = {"migration.json": f"{shown}\n"}
        if difference := report.diff(self.shown):
            files["migration.diff"] = difference
        if self.shown.status == "changed":
            move, served = read_move(self.shown), self.numbers.traffic if self.numbers is not None else None
            for draft in DRAFTS:
                try:
                    files[NAMES[draft]] = make_draft(draft, move, served)
                except ServescopeError:
                    continue  # what cannot be rehearsed is said by `unrehearsed`
        return files

    def unrehearsed(self) -> str:
        """Why there is no scenario among the drafts; "" where there is one."""
        try:
            make_draft("emulate", read_move(self.shown), self.numbers.traffic if self.numbers is not None else None)
        except ServescopeError as error:
            return str(error)
        return ""


def take_upload(name: str, data: bytes) -> PastedText:
    """An uploaded file; raises DocumentError where it is no text, or too large."""
    return PastedText("config.json" if name.lower().endswith(".json") else "config.yaml", decode(data, name[-80:]))


def take_paste(text: str) -> PastedText:
    """A pasted text: JSON where it is an object of JSON, else YAML."""
    try:
        is_object = isinstance(json.loads(text), dict) if text.lstrip()[:1] == "{" else False
    except (ValueError, RecursionError):
        is_object = False
    return PastedText("config.json" if is_object else "config.yaml", text)


def read_readiness(pasted: PastedText, answered: Answered, numbers: TokenTargets | None = None) -> Readiness:
    """What becomes of a text with these answers; raises ServescopeError, which quotes nothing of the text."""
    try:
        real = _report(read_named(pasted.text, pasted.name), _read_options(answered))
    except ServescopeError as error:
        raise ServescopeError(mask_error(error)) from None
    return Readiness(mask_report(real), real, numbers)


def mask_pasted(pasted: PastedText) -> Document:
    """The text with its secrets masked, for what reads more of it; raises DocumentError."""
    return mask_document(read_named(pasted.text, pasted.name))


def _report(document: Document, options: MigrationOptions) -> FileReport:
    try:
        return report_document(document, options)
    except DocumentError as error:
        return FileReport(document.origin, "error", error=str(error), document=document)


def _read_options(answered: Answered) -> MigrationOptions:
    """The options of the command with these answers; raises ServescopeError where one is out of range."""
    parser = argparse.ArgumentParser()
    command.configure(parser)
    arguments = parser.parse_args(["pasted"])
    for name, value in answered.options.items():
        setattr(arguments, name, value)
    options = read_options(arguments)
    if not answered.llm_config.strip():
        return options
    name = take_paste(answered.llm_config).name.replace("config", "llm_config")
    target = (options.body.body.get("autoscaling_settings") or {}).get("target_in_flight_tokens")
    given = read_named(answered.llm_config, name)
    body = make_body(given, n_gram=arguments.n_gram, target_in_flight_tokens=target)
    for finding in body.findings:
        if finding.severity == "error":
            raise DocumentError(name, finding.line, finding.column, finding.sentence)
    drafts = "speculative_config" in body.body["llm_config"]
    return replace(options, body=body, backend_answers=replace(options.backend_answers, has_speculation=drafts))
