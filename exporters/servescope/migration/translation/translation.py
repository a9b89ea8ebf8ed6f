"""A configuration translated from v1 to v2, or back for a rollback: what changes and why, what is asked, the result."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from servescope.migration.document.document import Document
from servescope.migration.document.editing import EditedMapping, EntryText, RemovedComment, TextEdit, apply, quoted
from servescope.migration.document.nodes import DocumentNode, MappingEntry
from servescope.migration.document.shapes import ConfigurationFinding
from servescope.migration.fields.config_yaml import check_config
from servescope.migration.fields.trt_llm import ENCODERS, LARGEST_V2_BATCH_TOKENS, Stack, stack_of
from servescope.migration.translation.fates import BACK, ENCODER_FATE, FATES, FateKind, FieldFate

Origin = Stack | Literal["backend-server"]

_SECTIONS: Final = ("build", "runtime")


@dataclass(frozen=True, slots=True)
class Answers:
    """What the person who migrates decided; None where nothing was."""

    max_num_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field that changes: its path and value before and after, why, and where that is documented.

    Paths are below `trt_llm`, empty where a stack has no place for it. `comments` were removed with the field.
    """

    kind: FateKind
    before: str
    after: str
    value: Any
    new_value: Any
    why: str
    todo: str
    source: str
    line: int
    comments: tuple[RemovedComment, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """What has to be decided before the file can be translated; `flag` answers it, empty where nothing can."""

    kind: Literal["asked", "blocking"]
    path: str
    line: int
    column: int
    message: str
    flag: str = ""


@dataclass(frozen=True, slots=True)
class Migration:
    """What becomes of one file.

    `stack` is what it declares, or what it is a file of, None without a `trt_llm` block. `new` is the file afterwards:
    the same where nothing changes, None while there are errors or questions.
    """

    document: Document
    to: Stack
    stack: Origin | None
    findings: tuple[ConfigurationFinding, ...]
    changes: tuple[FieldChange, ...] = ()
    questions: tuple[Question, ...] = ()
    new: Document | None = None

    @property
    def text(self) -> str | None:
        """The text of the file afterwards."""
        return None if self.new is None else self.new.text

    @property
    def has_errors(self) -> bool:
        """Whether the file as it is has errors."""
        return any(each.severity == "error" for each in self.findings)

    @property
    def is_changed(self) -> bool:
        """Whether the translated file differs."""
        return self.text is not None and self.text != self.document.text


def translate(
    document: Document,
    to: Stack = "v2",
    answers: Answers | None = None,
    *,
    strict: bool = False,
    folder: Path | None = None,
) -> Migration:
    """The translation of a `config.yaml` to a stack; raises DocumentError where the file cannot be edited in place.

    With `strict` every warning is an error. What the file names beside it is looked for in `folder`. A file that
    declares the stack already, or has no `trt_llm` block, stays as it is.
    """
    answers = answers or Answers()
    found_there = check_config(document, folder)
    findings = tuple(replace(each, severity="error") if strict else each for each in found_there)
    trt_llm = document.root.find("trt_llm") if document.root is not None else None
    has_block = trt_llm is not None and trt_llm.kind == "mapping"
    found = Migration(document, to, stack_of(trt_llm) if has_block and trt_llm is not None else None, findings)
    if found.has_errors:
        return found
    if found.stack in (None, to) or document.root is None or trt_llm is None:
        return replace(found, new=document)
    questions = tuple(_ask(trt_llm, answers) if to == "v2" else _ask_back(document.root, trt_llm))
    plan = _Plan(document, trt_llm, to, answers)
    changes = tuple(plan.changes())
    if questions:
        return replace(found, changes=changes, questions=questions)
    edited = apply(document, plan.edits(), plan.intended())
    wrong = [each for each in check_config(edited) if each.severity == "error"]
    if wrong:
        raise document.error(trt_llm, f"its translation would not be valid: {wrong[0].sentence}")
    return replace(found, changes=changes, new=edited)


def _ask(trt_llm: DocumentNode, answers: Answers) -> Iterator[Question]:
    base_model = trt_llm.find("build", "base_model")
    if base_model is not None and base_model.value in ENCODERS:
        what = f"is {base_model.value}: encoders stay on v1, where embeddings, reranking and classification are served"
        yield Question("blocking", "trt_llm.build.base_model", base_model.line, base_model.column, what)
    adapters = trt_llm.find("build", "lora_adapters")
    if adapters is not None and adapters.value:
        names = ", ".join(map(str, adapters.value))
        what = f"has {names}: only v1 serves LoRA adapters; keep it on v1, or deploy each adapter merged into its model"
        yield Question("blocking", "trt_llm.build.lora_adapters", adapters.line, adapters.column, what)
    tokens = trt_llm.find("build", "max_num_tokens")
    if tokens is not None and tokens.value > LARGEST_V2_BATCH_TOKENS and answers.max_num_tokens is None:
        what = (
            f"is {tokens.value}, above v2's limit of {LARGEST_V2_BATCH_TOKENS}: decide how many tokens a pass may have"
        )
        flag = "--max-num-tokens N"
        yield Question("asked", "trt_llm.build.max_num_tokens", tokens.line, tokens.column, what, flag)


def _ask_back(root: DocumentNode, trt_llm: DocumentNode) -> Iterator[Question]:
    build = trt_llm.find("build")
    if build is not None and build.find("checkpoint_repository") is None:
        what = "is missing, and v1 builds its engine from it: add it"
        yield Question("blocking", "trt_llm.build.checkpoint_repository", build.line, build.column, what)
    size = trt_llm.find("runtime", "tensor_parallel_size")
    accelerator = root.find("resources", "accelerator")
    kind = str(accelerator.value) if accelerator is not None else ""
    count = int(kind.partition(":")[2] or 1)
    tensor = 1 if size is None else size.value
    if tensor != count:
        at = size or trt_llm
        what = (
            f"is {tensor}, and v1 wants the number of GPUs in resources.accelerator, which is {count}: make them equal"
        )
        yield Question("blocking", "trt_llm.runtime.tensor_parallel_size", at.line, at.column, what)


class _Plan:
    """The changes of one `trt_llm` block, the edits that make them, and the tree they lead to."""

    def __init__(self, document: Document, trt_llm: DocumentNode, to: Stack, answers: Answers) -> None:
        self._document = document
        self._trt_llm = trt_llm
        self._to = to
        self._answers = answers
        root = document.root
        entry = next(each for each in root.entries if each.value is trt_llm) if root is not None and any(
            each.value is trt_llm for each in root.entries
        ) else None  # fmt: skip
        if entry is None:
            raise document.error(trt_llm, "trt_llm comes with a merge (<<): write the block out")
        self._top = EditedMapping(document, entry)
        self._sections = {name: EditedMapping(document, each) for name in _SECTIONS if (each := self._entry(name))}
        self._fates = {self._from(fate): fate for fate in (FATES if to == "v2" else BACK)}

    def _entry(self, name: str) -> MappingEntry | None:
        return next((each for each in self._trt_llm.entries if each.key.value == name), None)

    def _from(self, fate: FieldFate) -> str:
        return fate.v1 if self._to == "v2" else fate.v2

    def _onto(self, fate: FieldFate) -> str:
        return fate.v2 if self._to == "v2" else fate.v1

    def _there(self) -> Iterator[tuple[str, FieldFate, DocumentNode]]:
        """The fields of both sections that have a fate other than to be kept, in the order of the text."""
        for name, entry in ((each.key.value, each) for each in self._trt_llm.entries):
            if name in _SECTIONS:
                for inner in entry.value.entries:
                    path = f"{name}.{inner.key.value}"
                    fate = self._fates.get(path)
                    if fate is not None and fate.kind != "kept":
                        yield path, fate, inner.value

    def _new_value(self, path: str, node: DocumentNode) -> Any:
        answer = self._answers.max_num_tokens
        if path == "build.max_num_tokens" and node.value > LARGEST_V2_BATCH_TOKENS and answer is not None:
            return answer
        return node.value

    def changes(self) -> Iterator[FieldChange]:
        declared = self._trt_llm.find("inference_stack")
        fate = self._fates["inference_stack"]
        line = declared.line if declared is not None else self._trt_llm.line
        before = declared.value if declared is not None else None
        yield FieldChange("set", "inference_stack" if declared else "", "inference_stack", before, self._to, fate.why,
                          "", fate.source, line)  # fmt: skip
        for path, fate, node in self._there():
            onto = self._onto(fate)
            section, _, name = path.partition(".")
            comments = () if onto else tuple(self._sections[section].removed_comments(name))
            if path == "build.base_model" and node.value in ENCODERS:
                fate = ENCODER_FATE
            kind = fate.kind
            if kind == "blocking" and not node.value:
                kind = "unsupported"  # no adapter is there
            yield FieldChange(kind, path, onto, node.value, self._new_value(path, node) if onto else None, fate.why,
                              fate.todo, fate.source, self._line_of(path), comments)  # fmt: skip

    def _line_of(self, path: str) -> int:
        section, _, name = path.partition(".")
        return self._sections[section].entry(name).key.line

    def intended(self) -> Any:
        """The tree of the new file, made from the tree of the old one without its text."""
        tree = copy.deepcopy(self._document.value)
        block = tree["trt_llm"]
        taken: list[tuple[str, Any]] = []
        for path, fate, node in self._there():
            section, _, name = path.partition(".")
            del block[section][name]
            if onto := self._onto(fate):
                taken.append((onto, self._new_value(path, node)))
        block["inference_stack"] = self._to
        if "runtime" not in block:
            block["runtime"] = {}
        for onto, value in taken:
            section, _, name = onto.partition(".")
            block[section][name] = value
        return tree

    def edits(self) -> list[TextEdit]:
        deleted: dict[str, list[str]] = {name: [] for name in _SECTIONS}
        inserted: dict[str, list[EntryText]] = {name: [] for name in _SECTIONS}
        edits: list[TextEdit] = []
        self._check_anchors()
        for path, fate, node in self._there():
            section, _, name = path.partition(".")
            onto = self._onto(fate)
            new_section, _, new_name = onto.partition(".")
            if onto and new_section == section:
                edits.append(self._sections[section].rename(name, new_name))
                continue
            deleted[section].append(name)
            if onto:
                piece = self._sections[section].piece(name, new_name)
                value = self._new_value(path, node)
                inserted[new_section].append(piece if value is node.value else replace(piece, value=str(value)))
        for name, edited in self._sections.items():
            edits += edited.rewrite(deleted[name], self._in_style(edited, inserted[name]))
        return [*edits, *self._declare(), *self._add_runtime(inserted["runtime"])]

    def _in_style(self, section: EditedMapping, pieces: Iterable[EntryText]) -> list[EntryText]:
        return [quoted(each) if section.is_quoted and each.key[:1] not in ('"', "'") else each for each in pieces]

    def _declare(self) -> Iterator[TextEdit]:
        entry = self._entry("inference_stack")
        if entry is None:
            yield from self._top.rewrite((), self._in_style(self._top, [EntryText("inference_stack", self._to)]))
        elif self._to == "v1" or entry is self._trt_llm.entries[0]:
            quote = entry.value.style if entry.value.style in ("'", '"') else ""
            if entry.value.alias is not None:
                raise self._document.error(entry.value, f"alias *{entry.value.alias} is the stack: write it out")
            yield TextEdit(entry.value.start, entry.value.end, f"{quote}{self._to}{quote}")
        else:
            piece = replace(self._top.piece("inference_stack"), value=self._to)
            yield from self._top.rewrite(["inference_stack"], self._in_style(self._top, [piece]))

    def _add_runtime(self, pieces: Sequence[EntryText]) -> Iterator[TextEdit]:
        if "runtime" in self._sections:
            return
        value = self._top.write_mapping(self._in_style(self._top, pieces))
        key = '"runtime"' if self._top.is_quoted else "runtime"
        yield from self._top.insert_after("build", EntryText(key, value))

    def _check_anchors(self) -> None:
        """Refuse an anchor that leaves its place while an alias elsewhere needs it, and an alias before its anchor."""
        root = self._document.root
        uses = [node for node in root.walk() if node.alias is not None] if root is not None else []
        moving = [(path, self._sections[path.partition(".")[0]].entry(path.partition(".")[2])) for path, fate, _
                  in self._there() if path.partition(".")[0] != self._onto(fate).partition(".")[0]]  # fmt: skip
        edited = [self._trt_llm, *(each.value for name in _SECTIONS if (each := self._entry(name)))]
        for use in uses:
            if any(use.real is node for node in edited):
                raise self._document.error(use, f"alias *{use.alias} repeats keys that are moved: write them out here")
            for path, entry in moving:
                anchored = [node for each in (entry.key, entry.value) for node in each.walk() if node is use.real]
                is_within = entry.key.start <= use.start < max(entry.value.end, entry.key.end)
                if anchored and not is_within:
                    what = f"alias *{use.alias} needs its anchor in trt_llm.{path}, which is moved: write it out here"
                    raise self._document.error(use, what)
                if is_within and not anchored and self._fates[path].kind in ("moved", "renamed"):
                    what = f"alias *{use.alias} is the value of trt_llm.{path}, which is moved: write it out"
                    raise self._document.error(use, what)
