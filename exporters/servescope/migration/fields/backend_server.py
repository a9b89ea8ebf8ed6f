"""The backend server's JSON (S5): what the fields of its two configurations may be, and the rules between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from servescope.migration.document.document import Document
from servescope.migration.document.nodes import DocumentNode
from servescope.migration.document.shapes import (
    ChoiceShape,
    ConfigurationFinding,
    FieldShape,
    ListShape,
    NamedShape,
    NumberShape,
    SwitchShape,
    TableShape,
    TextShape,
    ValueShape,
    WholeShape,
    wrong,
)
from servescope.migration.fields.body import is_management_body
from servescope.migration.fields.config_yaml import CONFIG

BackendPart = Literal["optimisation", "pipeline"]

ALGORITHMS: Final = ("draft", "n-gram", "eagle", "eagle3", "nextn")
DEFAULT_STEPS: Final = 5
PARSERS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = MappingProxyType({
    "reasoning_parser": {"v3": ("deepseek_r1", "qwen3"), "v4": ("deepseek-r1", "qwen3")},
    "tool_call_parser": {
        "v3": ("mistral", "llama3_json", "llama4_json", "hermes"),
        "v4": ("mistral", "llama4", "llama3", "qwen25"),
    },
})  # fmt: skip
"""The parsers that each backend has."""


def _field(shape: ValueShape, default: Any = None) -> FieldShape:
    return FieldShape(shape, default=default, source="S5")


def _table(keys: Mapping[str, FieldShape]) -> TableShape:
    return TableShape(keys=MappingProxyType(dict(keys)))


_COUNT: Final = WholeShape(low=1)
_COUNT_OR_NULL: Final = WholeShape(low=1, is_nullable=True)
_LLM: Final = _field(ChoiceShape(values=("llm",)), "llm")
_AUTO: Final = _field(ChoiceShape(values=("auto",)), "auto")

_BOTH: Final = {
    "context_length": _field(_COUNT_OR_NULL),
    "gpu_memory_utilization": _field(NumberShape(low=0, high=1, is_nullable=True)),
    **{
        name: _field(ChoiceShape(values=tuple(dict.fromkeys((*names["v4"], *names["v3"]))), is_nullable=True))
        for name, names in PARSERS.items()
    },
}
V4_ONLY: Final = {
    "max_running_requests": _field(_COUNT_OR_NULL),
    "max_total_tokens": _field(_COUNT_OR_NULL),
    "chunked_prefill_size": _field(_COUNT_OR_NULL),
    "max_prefill_tokens": _field(_COUNT, 16384),
    "enable_torch_compile": _field(SwitchShape(), default=False),
    "torch_compile_max_bs": _field(_COUNT, 32),
    "cuda_graph_max_bs": _field(_COUNT, 32),
}
"""The parameters that v3 does not have."""

SPECULATION: Final = _table({
    "algorithm": _field(ChoiceShape(values=ALGORITHMS), "draft"),
    "draft_model_path": _field(TextShape(pattern=r"(?s).+", what="a path", is_nullable=True)),
    "num_draft_tokens": _field(_COUNT, 64),
    "num_steps": _field(_COUNT, DEFAULT_STEPS),
    "topk": _field(_COUNT, 4),
    "tp_size": _field(_COUNT, 1),
})  # fmt: skip

_OPTIMISATION: Final = {
    "backend": _field(_table({
        "name": _field(ChoiceShape(values=("auto", "v3", "v4")), "auto"),
        "version": _field(TextShape(), "latest"),
        "extra_params": _field(_table({**_BOTH, **V4_ONLY})),
    })),
    "warmups": _field(_table({
        "enabled": _field(SwitchShape(), default=True),
        "iterations": _field(WholeShape(low=0), 5),
        "sample_input_data": _field(ListShape(), ()),
    })),
    "model_type": _LLM,
    "quantization": _field(ChoiceShape(values=("float16", "float8", "w4")), "float16"),
    "optimisations": _field(_table({
        "model_type": _LLM,
        "attention_caching": _field(_table({
            "type": _AUTO, "enabled": _field(SwitchShape(), default=False), "extra_params": _field(NamedShape()),
        })),
        "speculative_decoding": _field(_table({
            "type": _AUTO, "enabled": _field(SwitchShape(), default=True), "extra_params": _field(SPECULATION),
        })),
    })),
    "tensor_parallel_size": _field(_COUNT, 1),
}  # fmt: skip
_PIPELINE: Final = {
    "mode": _field(ChoiceShape(values=("chat", "completion", "embedding")), "chat"),
    "type": _LLM,
    "loras": _field(ListShape(item=NamedShape()), ()),
    "lora_repo": _field(_table({
        "path": _field(TextShape(), ""),
        "type": _field(TextShape(), ""),
        "secret": _field(_table({"type": _field(TextShape(is_secret=True), "")})),
        "ownership": _field(TextShape(), ""),
    })),
    "load_lora_dynamic": _field(SwitchShape(), default=False),
}  # fmt: skip


def _beside(known: Mapping[str, FieldShape], part: BackendPart) -> dict[str, FieldShape]:
    return {name: FieldShape(elsewhere=f"belongs into the {part} configuration, a file of its own") for name in known}


BACKEND_SERVER: Final[Mapping[BackendPart, TableShape]] = MappingProxyType(
    {
        "optimisation": _table({**_OPTIMISATION, **_beside(_PIPELINE, "pipeline")}),
        "pipeline": _table({**_PIPELINE, **_beside(_OPTIMISATION, "optimisation")}),
    }
)
"""The fields of both configurations; where the documents' text contradicts their samples, the field tables win."""


def find_part(document: Document) -> BackendPart | None:
    """Which configuration of the backend server a document is, by its keys; None where it is another file's."""
    value = document.value
    if not isinstance(value, dict) or is_management_body(document) or "trt_llm" in value:
        return None
    shared = {"model_type"}  # a key of config.yaml as well
    if value.keys() & (CONFIG.keys.keys() - shared):
        return None
    parts: dict[BackendPart, int] = {
        "optimisation": len(value.keys() & _OPTIMISATION.keys()), "pipeline": len(value.keys() & _PIPELINE.keys()),
    }  # fmt: skip
    part = max(parts, key=lambda each: parts[each])
    return part if parts[part] else None


def check_backend_server(document: Document, part: BackendPart) -> list[ConfigurationFinding]:
    """The findings of one of the two configurations, in the order of the text."""
    root = document.root
    if root is None:
        return []
    found = list(BACKEND_SERVER[part].check(root, ""))
    if root.kind == "mapping":
        found += _check_backend(root) if part == "optimisation" else _check_adapters(root)
    return sorted(found, key=lambda each: (each.line, each.column))


def _check_backend(root: DocumentNode) -> Iterator[ConfigurationFinding]:
    """What belongs to one backend only: a part of the parameters, and of the parsers."""
    path = "backend.extra_params"
    parameters = root.find("backend", "extra_params")
    if parameters is None or parameters.kind != "mapping":
        return
    name = root.value_of("backend", "name")
    needs: dict[str, str] = {}  # a backend, and what only it has here
    for entry in parameters.entries:
        key, value = entry.key.value, entry.value.value
        backends = _backends_of(key, value)
        if value is None or len(backends) != 1:
            continue
        (only,) = backends
        shown = f"{key} {value!r}" if key in PARSERS else key
        if name in ("v3", "v4") and name != only:
            at = entry.value if key in PARSERS else entry.key
            yield wrong(at, f"{path}.{key}", _foreign(key, value, only, name))
        needs.setdefault(only, shown)
    if name not in ("v3", "v4") and len(needs) > 1:
        what = f"has {needs['v3']} of backend v3 beside {needs['v4']} of v4: no backend has both"
        yield wrong(parameters, path, what)
    yield from _check_compile(parameters, f"{path}.torch_compile_max_bs")


def _backends_of(key: str, value: object) -> set[str]:
    """The backends that have a parameter with this value; none where it is not known."""
    if key in PARSERS:
        return {backend for backend, names in PARSERS[key].items() if value in names}
    return {"v4"} if key in V4_ONLY else {"v3", "v4"} if key in _BOTH else set()


def _foreign(key: str, value: object, only: str, name: str) -> str:
    if key in PARSERS:
        return f"is {value!r}, a parser of backend {only}, expected one of {name}: {', '.join(PARSERS[key][name])}"
    return f"is a parameter of backend {only}, and backend.name is {name}"


def _check_compile(parameters: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
    size = parameters.find("torch_compile_max_bs")
    if size is not None and not parameters.value_of("enable_torch_compile"):
        what = "has no effect: enable_torch_compile is false, which is its default"
        yield ConfigurationFinding("warning", path, size.line, size.column, what)


def _check_adapters(root: DocumentNode) -> Iterator[ConfigurationFinding]:
    adapters, dynamic = root.find("loras"), root.find("load_lora_dynamic")
    if adapters is not None and len(adapters.items) == 1 and dynamic is not None and dynamic.value is True:
        what = "is true beside one adapter, which is merged into the model instead"
        yield ConfigurationFinding("warning", "load_lora_dynamic", dynamic.line, dynamic.column, what)
