"""The backend server's JSON translated to v2: a new `config.yaml`, and the speculation of the Management API's body."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import yaml

from servescope.migration.document.document import Document, is_same, read_document
from servescope.migration.document.nodes import DocumentNode
from servescope.migration.document.shapes import WholeShape
from servescope.migration.fields.backend_server import DEFAULT_STEPS, check_backend_server, find_part
from servescope.migration.fields.config_yaml import check_config
from servescope.migration.fields.trt_llm import V2_RUNTIME
from servescope.migration.translation.backend_fates import (
    OPTIMISATION_FATES,
    PIPELINE_FATES,
    SPECULATION_FIELDS,
    SPECULATION_PATH,
    SPECULATIVE_CONFIG,
)
from servescope.migration.translation.fates import FieldFate
from servescope.migration.translation.translation import FieldChange, Migration, Question

_HEAD: Final = "# Translated from the backend server's configuration by `servescope migrate`.\n"
_QUANTIZATIONS: Final = {"float16": "no_quant", "float8": "fp8"}
_DECODING_TYPES: Final = {"n-gram": "NGram", "eagle": "Eagle", "eagle3": "Eagle", "nextn": "MTP"}
_EAGLE: Final = {
    "algorithm": "decoding_type",
    "draft_model_path": "speculative_model_dir",
    "num_steps": "max_draft_len",
}
_MOVED: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "n-gram": {"algorithm": "decoding_type"},
        "eagle": _EAGLE,
        "eagle3": _EAGLE,
        "nextn": {"algorithm": "decoding_type", "num_steps": "num_nextn_predict_layers"},
        "draft": {},
    }
)
"""Which fields of a speculation v2 has, by the algorithm, and their names there."""


@dataclass(frozen=True, slots=True)
class BackendAnswers:
    """What the person who migrates decided; None where nothing was.

    `checkpoint` is `SOURCE:REPO`. With `has_speculation` the Management API's body has a speculation already, which
    replaces that of the file.
    """

    checkpoint: str | None = None
    accelerator: str | None = None
    quantization_type: str | None = None
    speculative_model_dir: str | None = None
    eagle3_one_model: bool | None = None
    num_nextn_predict_layers: int | None = None
    max_seq_len: int | None = None
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    has_speculation: bool = False


@dataclass(frozen=True, slots=True)
class BackendMigration(Migration):
    """What becomes of a configuration of the backend server.

    `new` is the new `config.yaml`, None while there are errors or questions, and for a pipeline configuration, which
    has none of its own. `speculative_config` belongs into the Management API's body. Paths of changes are whole ones.
    """

    speculative_config: Mapping[str, Any] | None = None

    @property
    def is_changed(self) -> bool:
        """Whether there is a new file."""
        return self.text is not None


def translate_backend(
    document: Document, pipeline: Document | None = None, answers: BackendAnswers | None = None, *, strict: bool = False
) -> BackendMigration:
    """The translation of one of the two configurations, an optimisation configuration with its pipeline beside it.

    Raises DocumentError where what was answered makes no valid file. With `strict` every warning is an error.
    """
    part = find_part(document)
    if part is None:
        raise document.error(document.root, "is no configuration of the backend server")
    answers = answers or BackendAnswers()
    findings = tuple(replace(each, severity="error") if strict else each
                     for each in check_backend_server(document, part))  # fmt: skip
    found = BackendMigration(document, "v2", "backend-server", findings)
    root = document.root
    if found.has_errors or root is None:
        return found
    if part == "pipeline":
        return replace(found, changes=tuple(_list_changes(root, PIPELINE_FATES)), questions=tuple(_ask_pipeline(root)))
    plan = _Plan(root, answers)
    changes = [*plan.changes()]
    questions = [*plan.questions()]
    if pipeline is not None and pipeline.root is not None:
        changes += _list_changes(pipeline.root, PIPELINE_FATES, "pipeline.")
        questions += _ask_pipeline(pipeline.root, "pipeline.")
    found = replace(found, changes=tuple(changes), questions=tuple(questions))
    if questions:
        return found
    text = _HEAD + yaml.safe_dump(plan.tree(), sort_keys=False, allow_unicode=True, width=10_000)
    made = read_document(text, "config.yaml")
    wrong = [each for each in check_config(made) if each.severity == "error"]
    if wrong or not is_same(made.value, plan.tree()):
        what = wrong[0].sentence if wrong else "it would not mean the same"
        raise document.error(root, f"its translation would not be valid: {what}")
    return replace(found, new=made, speculative_config=plan.speculative_config())


def _leaves(node: DocumentNode, fates: Mapping[str, FieldFate], path: str = "") -> Iterator[tuple[str, DocumentNode]]:
    """The fields that have a fate, with their values, in the order of the text."""
    for entry in node.entries:
        inner = f"{path}.{entry.key.value}" if path else str(entry.key.value)
        if inner in fates:
            yield inner, entry.value
        else:
            yield from _leaves(entry.value, fates, inner)


def _list_changes(root: DocumentNode, fates: tuple[FieldFate, ...], prefix: str = "") -> Iterator[FieldChange]:
    """The changes of fields that have no place in v2."""
    by_path = {fate.v1: fate for fate in fates}
    for path, node in _leaves(root, by_path):
        yield _change(by_path[path], f"{prefix}{path}", node)


def _change(fate: FieldFate, path: str, node: DocumentNode, after: str = "", new_value: Any = None) -> FieldChange:
    """The change of one field; lists and mappings, which may hold prompts and secrets, are shown by their size."""
    value = node.value
    if value and isinstance(value, list | dict):
        value = f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
    kind, todo = fate.kind, fate.todo
    if kind in ("moved", "renamed") and not after:
        kind = "automatic"
    elif kind == "blocking":
        kind, todo = ("blocking", "") if value else ("unsupported", todo)
    why = "null sets nothing." if value is None else fate.why
    return FieldChange(kind, path, after, value, new_value, why, todo, fate.source, node.line)


def _ask_pipeline(root: DocumentNode, prefix: str = "") -> Iterator[Question]:
    mode, adapters, dynamic = (root.find(name) for name in ("mode", "loras", "load_lora_dynamic"))
    if mode is not None and mode.value == "embedding":
        yield _block(f"{prefix}mode", mode, "is embedding: v2 serves no embeddings; keep this deployment where it is")
    if adapters is not None and adapters.value:
        what = f"has {len(adapters.value)} adapters: v2 serves none; keep this deployment where it is, or deploy each"
        if len(adapters.value) == 1:
            what = "has one adapter, which is merged into the model: v2 serves none; name the merged model by"
            what += " --checkpoint, and remove the adapter here"
        else:
            what += " merged into its model"
        yield _block(f"{prefix}loras", adapters, what)
    if dynamic is not None and dynamic.value is True:
        what = "is true: v2 loads no LoRA adapters; keep this deployment where it is, or deploy each in its model"
        yield _block(f"{prefix}load_lora_dynamic", dynamic, what)


def _block(path: str, node: DocumentNode, what: str, flag: str = "") -> Question:
    return Question("blocking", path, node.line, node.column, what, flag)


def _ask(path: str, node: DocumentNode, what: str, flag: str) -> Question:
    return Question("asked", path, node.line, node.column, what, flag)


class _Plan:
    """The new file and the speculation of one optimisation configuration."""

    def __init__(self, root: DocumentNode, answers: BackendAnswers) -> None:
        self._root = root
        self._answers = answers
        self._fates = {fate.v1: fate for fate in OPTIMISATION_FATES}
        self._fields = dict(_leaves(root, self._fates))
        self._block = root.find(*SPECULATION_PATH.split("."))
        enabled = self._value(f"{SPECULATION_PATH}.enabled")
        is_enabled = self._block is not None and enabled is not False
        self._algorithm = self._value(f"{SPECULATION_FIELDS}.algorithm") or "draft" if is_enabled else None
        if answers.has_speculation:
            self._algorithm = None
        self._moved = _MOVED[self._algorithm] if self._algorithm is not None else {}

    def _value(self, path: str) -> Any:
        node = self._fields.get(path)
        return None if node is None else node.value

    def changes(self) -> Iterator[FieldChange]:
        line = self._root.line
        yield FieldChange("set", "", "trt_llm.inference_stack", None, "v2", "v2 is declared, as v1 is the default.", "",
                          "S1", line)  # fmt: skip
        if self._answers.checkpoint is not None:
            yield FieldChange("set", "", "trt_llm.build.checkpoint_repository", None, self._answers.checkpoint,
                              "The backend server's JSON does not name the model.", "", "S1", line)  # fmt: skip
        for path, node in self._fields.items():
            after = self._after(path, node)
            new_value = self._new_value(after, node.value) if after else None
            changed = _change(self._fates[path], path, node, after, new_value)
            yield changed if not self._is_unused(path) else replace(changed, why=self._why_unused(), todo="")
        for name, value in (self.speculative_config() or {}).items():
            if value is not None and name not in {self._moved.get(each) for each in self._speculation_set()}:
                yield self._added(name, value)

    def _added(self, name: str, value: Any) -> FieldChange:
        why = f"num_steps is {DEFAULT_STEPS} by default." if name == "max_draft_len" else "It was answered."
        line = self._block.line if self._block is not None else 0
        return FieldChange("set", "", f"{SPECULATIVE_CONFIG}.{name}", None, value, why, "", "S3", line)

    def _speculation_set(self) -> Iterator[str]:
        """The fields of the speculation that are set, by their last names."""
        for path, node in self._fields.items():
            if path.startswith(f"{SPECULATION_FIELDS}.") and node.value is not None:
                yield path.rpartition(".")[2]

    def _is_unused(self, path: str) -> bool:
        return path.startswith(f"{SPECULATION_FIELDS}.") and self._algorithm is None

    def _why_unused(self) -> str:
        given = self._answers.has_speculation
        return "The Management API's body has a speculation of its own." if given else "Speculation is off here."

    def _after(self, path: str, node: DocumentNode) -> str:
        """Where a field goes, empty where it has no place or sets nothing."""
        if node.value is None:
            return ""
        if path.startswith(f"{SPECULATION_FIELDS}."):
            name = self._moved.get(path.rpartition(".")[2], "")
            return f"{SPECULATIVE_CONFIG}.{name}" if name else ""
        return self._fates[path].v2

    def _new_value(self, after: str, value: Any) -> Any:
        name = after.rpartition(".")[2]
        if after.startswith(SPECULATIVE_CONFIG):
            return (self.speculative_config() or {}).get(name)
        if name == "quantization_type":
            return _QUANTIZATIONS.get(value, self._answers.quantization_type)
        return value if _fits(name, value) else getattr(self._answers, name)

    def speculative_config(self) -> dict[str, Any] | None:
        """v2's speculation; a value is None while its question stands. None without one."""
        if self._algorithm is None or self._algorithm not in _DECODING_TYPES:
            return None
        answers, steps = self._answers, self._value(f"{SPECULATION_FIELDS}.num_steps")
        config: dict[str, Any] = {"decoding_type": _DECODING_TYPES[self._algorithm]}
        if self._algorithm in ("eagle", "eagle3"):
            path = self._value(f"{SPECULATION_FIELDS}.draft_model_path")
            config["speculative_model_dir"] = path or answers.speculative_model_dir
            config["max_draft_len"] = steps or DEFAULT_STEPS
        if self._algorithm == "eagle3":
            config["eagle3_one_model"] = answers.eagle3_one_model
        if self._algorithm == "nextn":
            config["num_nextn_predict_layers"] = answers.num_nextn_predict_layers
        return config

    def questions(self) -> Iterator[Question]:
        """What stops the move, in the order of the text after what the file does not have at all."""
        if self._answers.checkpoint is None:
            what = "is missing: v2 builds its engine from a checkpoint, which the backend server's JSON does not name"
            yield _ask("trt_llm.build.checkpoint_repository", self._root, what, "--checkpoint SOURCE:REPO")
        for path, node in self._fields.items():
            after = self._fates[path].v2
            name = after.rpartition(".")[2]
            if after.startswith("trt_llm.") and self._after(path, node) and self._new_value(after, node.value) is None:
                yield self._ask_value(path, node, name)
        if self._block is not None and self._algorithm is not None:
            yield from self._ask_speculation(self._block)

    def _ask_value(self, path: str, node: DocumentNode, name: str) -> Question:
        if name == "quantization_type":
            what = "is w4, and v2 has no 4-bit weights but fp4, for B200 or newer: choose v2's type"
            return _ask(path, node, what, "--quantization-type TYPE")
        shape = V2_RUNTIME.keys[name].shape
        what = f"is {node.value}, and v2's {name} is {shape.text}: decide which it is to be"
        return _ask(path, node, what, f"--{name.replace('_', '-')} N")

    def _ask_speculation(self, block: DocumentNode) -> Iterator[Question]:
        if self._algorithm == "draft":
            path, is_default = f"{SPECULATION_FIELDS}.algorithm", f"{SPECULATION_FIELDS}.algorithm" not in self._fields
            what = ("is draft, its default" if is_default else "is draft") + (
                ": v2 has no draft models; set enabled to false, or choose another speculation"
            )
            yield _block(path, self._fields.get(path, block), what, "--n-gram, or --llm-config FILE")
        for name, value in (self.speculative_config() or {}).items():
            if value is None:
                yield self._ask_setting(name, block)

    def _ask_setting(self, name: str, block: DocumentNode) -> Question:
        algorithm = self._fields.get(f"{SPECULATION_FIELDS}.algorithm", block)
        path = f"{SPECULATIVE_CONFIG}.{name}"
        if name == "speculative_model_dir":
            what = f"is missing: {self._algorithm} drafts by the main model here, and v2's Eagle by weights of its own"
            return _ask(path, algorithm, what, "--speculative-model-dir PATH")
        if name == "eagle3_one_model":
            what = (
                "is to be decided: whether v2 runs the Eagle3 head and the model as one, if the checkpoint supports it"
            )
            return _ask(path, algorithm, what, "--eagle3-one-model yes|no")
        steps = self._fields.get(f"{SPECULATION_FIELDS}.num_steps", algorithm)
        count = self._value(f"{SPECULATION_FIELDS}.num_steps") or DEFAULT_STEPS
        what = f"is to be confirmed: the model's layers that predict next tokens, where num_steps is {count}"
        return _ask(path, steps, what, "--num-nextn-predict-layers N")

    def tree(self) -> dict[str, Any]:
        """The new `config.yaml`, once nothing is asked."""
        source, _, repo = (self._answers.checkpoint or "").partition(":")
        config: dict[str, Any] = {"trt_llm": {
            "inference_stack": "v2",
            "build": {"checkpoint_repository": {"source": source, "repo": repo}},
            "runtime": {},
        }}  # fmt: skip
        for path, node in self._fields.items():
            after = self._after(path, node)
            block, _, rest = after.partition(".")
            if block == "trt_llm":
                section, _, name = rest.partition(".")
                config["trt_llm"][section][name] = self._new_value(after, node.value)
        if self._answers.accelerator is not None:
            count = self._value("tensor_parallel_size") or 1
            kind = self._answers.accelerator
            config = {"resources": {"accelerator": kind if count == 1 else f"{kind}:{count}"}, **config}
        return config


def _fits(name: str, value: Any) -> bool:
    """Whether v2 has room for a value of its runtime."""
    shape = V2_RUNTIME.keys[name].shape
    low, high = (shape.low, shape.high) if isinstance(shape, WholeShape) else (None, None)
    return (low is None or value >= low) and (high is None or value <= high)
