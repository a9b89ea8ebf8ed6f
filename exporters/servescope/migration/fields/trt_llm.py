"""The `trt_llm` block of both stacks: what its fields may be, and the rules between them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, Literal

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
    WholeShape,
    each_entry,
    wrong,
)

Stack = Literal["v1", "v2"]

TRUSS: Final = "truss 0.18.35"
"""The source of what only the vendor's published tool says."""

ENCODERS: Final = ("encoder", "encoder_bert")
LOOKAHEAD: Final = "LOOKAHEAD_DECODING"
LOOKAHEAD_SIZES: Final = ("lookahead_windows_size", "lookahead_ngram_size", "lookahead_verification_set_size")
_RECOMMENDED_LOOKAHEAD: Final = MappingProxyType(dict(zip(LOOKAHEAD_SIZES, ((5, 8), (3, 5), (3, 5)), strict=True)))
MOST_DRAFT_TOKENS: Final = 2048
LARGEST_V2_BATCH_TOKENS: Final = 131_072
V2_BUILD: Final = (
    "checkpoint_repository", "quantization_type", "quantization_config", "num_builder_gpus", "skip_build_result",
)  # fmt: skip
"""The fields that v2 keeps under `build` (S1)."""

_QUANTIZATIONS: Final = ("no_quant", "fp8", "fp8_kv", "fp4", "fp4_kv", "fp4_mlp_only", "fp8_mlp_only")
_LEGACY: Final = "is no longer built, expected one of: " + ", ".join(_QUANTIZATIONS[:-1])
_LEGACY_QUANTIZATIONS: Final = (
    "weights_int8", "weights_kv_int8", "weights_int4", "weights_int4_kv_int8", "smooth_quant",
)  # fmt: skip
_RENAMED: Final = "was renamed to decoder, which detects the architecture from the checkpoint"

_CHECKPOINT: Final = TableShape(keys=MappingProxyType({
    "source": FieldShape(ChoiceShape(values=("HF", "S3", "GCS", "AZURE", "REMOTE_URL", "BASETEN_TRAINING"),
                         refused={"LOCAL": "a local checkpoint cannot be deployed"}), is_required=True),
    "repo": FieldShape(TextShape(), is_required=True),
    "revision": FieldShape(TextShape(is_nullable=True)),
    "runtime_secret_name": FieldShape(TextShape(), default="hf_access_token"),
}))  # fmt: skip

_CALIBRATION: Final = WholeShape(low=64, high=16384, multiple=64)
_QUANTIZATION: Final = TableShape(keys=MappingProxyType({
    "calib_size": FieldShape(_CALIBRATION, default=1024),
    "calib_dataset": FieldShape(TextShape(), default="abisee/cnn_dailymail"),
    "calib_max_seq_length": FieldShape(_CALIBRATION, default=1536),
}))  # fmt: skip

_KEPT_BUILD: Final = {
    "checkpoint_repository": FieldShape(_CHECKPOINT),
    "quantization_type": FieldShape(
        ChoiceShape(values=_QUANTIZATIONS, refused=dict.fromkeys(_LEGACY_QUANTIZATIONS, _LEGACY)), default="no_quant"
    ),
    "quantization_config": FieldShape(_QUANTIZATION),
    "num_builder_gpus": FieldShape(WholeShape(low=1, is_nullable=True)),
    "skip_build_result": FieldShape(SwitchShape(), default=False, source="S1"),
}  # fmt: skip

_SIZES: Final = {
    "max_seq_len": FieldShape(WholeShape(low=1, high=1_048_576, is_nullable=True)),
    "max_batch_size": FieldShape(WholeShape(low=1, high=2048), default=256),
}

SPECULATOR: Final = TableShape(is_nullable=True, keys=MappingProxyType({
    "speculative_decoding_mode": FieldShape(
        ChoiceShape(values=(LOOKAHEAD,), refused={
            "DRAFT_TOKENS_EXTERNAL": f"is discontinued, expected {LOOKAHEAD}, or no speculator on the way to v2",
        }),
        is_required=True,
    ),
    **{name: FieldShape(WholeShape(low=1)) for name in LOOKAHEAD_SIZES},
    "num_draft_tokens": FieldShape(WholeShape(low=1, high=MOST_DRAFT_TOKENS, is_nullable=True)),
    "enable_b10_lookahead": FieldShape(SwitchShape(is_nullable=True), default=False),
    "checkpoint_repository": FieldShape(_CHECKPOINT, source=TRUSS),
    "runtime": FieldShape(elsewhere="is of a draft model, which lookahead does not have", source=TRUSS),
    "build": FieldShape(elsewhere="is of a draft model, which lookahead does not have", source=TRUSS),
}))  # fmt: skip

_LORA_CACHE: Final = (
    "lora_cache_max_adapter_size", "lora_cache_optimal_adapter_size", "lora_cache_gpu_memory_fraction",
    "lora_cache_host_memory_bytes",
)  # fmt: skip

V1_BUILD: Final = TableShape(keys=MappingProxyType({
    "base_model": FieldShape(
        ChoiceShape(values=("decoder", *ENCODERS), refused={
            **dict.fromkeys(("palmyra", "qwen", "llama", "mistral", "deepseek"), _RENAMED),
            "whisper": "is no longer deployed by trt_llm",
        }), default="decoder"),
    **_KEPT_BUILD,
    "checkpoint_repository": FieldShape(_CHECKPOINT, is_required=True),
    **_SIZES,
    "max_num_tokens": FieldShape(WholeShape(low=65, high=1_048_576), default=8192),
    "tensor_parallel_count": FieldShape(WholeShape(low=1), default=1),
    "plugin_configuration": FieldShape(TableShape(keys=MappingProxyType({
        "paged_kv_cache": FieldShape(SwitchShape(), default=True, source="S1"),
        "use_paged_context_fmha": FieldShape(SwitchShape(), default=True, source="S1"),
        "use_fp8_context_fmha": FieldShape(SwitchShape(), default=False, source="S1"),
    })), source="S1"),
    "speculator": FieldShape(SPECULATOR),
    "lora_adapters": FieldShape(NamedShape(item=_CHECKPOINT, pattern=r"[a-zA-Z0-9_\-.:]+", is_nullable=True,
                               what="letters, digits, '_', '-', '.' and ':'")),
    "lora_configuration": FieldShape(TableShape(is_nullable=True, keys=MappingProxyType({
        "max_lora_rank": FieldShape(WholeShape(low=1), default=64),
        "lora_target_modules": FieldShape(ListShape(item=TextShape()), default=()),
    }))),
    "moe_expert_parallel_option": FieldShape(WholeShape(low=-1, excluded=(0,)), default=-1),
    "max_beam_width": FieldShape(WholeShape(low=1, high=1), default=1, source=TRUSS),
    "max_prompt_embedding_table_size": FieldShape(WholeShape(low=0), default=0, source=TRUSS),
    "gather_all_token_logits": FieldShape(SwitchShape(), default=False, source=TRUSS),
    "strongly_typed": FieldShape(SwitchShape(), default=False, source=TRUSS),
    "pipeline_parallel_count": FieldShape(WholeShape(low=1), default=1, source=TRUSS),
    "sequence_parallel_count": FieldShape(WholeShape(low=1), default=1, source=TRUSS),
    **{name: FieldShape(elsewhere="must be configured under trt_llm.runtime, not trt_llm.build", source=TRUSS)
       for name in _LORA_CACHE},
}))  # fmt: skip

_V1_RUNTIME: Final = {
    "kv_cache_free_gpu_mem_fraction": FieldShape(NumberShape(low=0, high=1, is_above=True), default=0.9),
    "kv_cache_host_memory_bytes": FieldShape(WholeShape(low=1, is_nullable=True)),
    "enable_chunked_context": FieldShape(SwitchShape(), default=True),
    "batch_scheduler_policy": FieldShape(ChoiceShape(values=("guaranteed_no_evict", "max_utilization")),
                                  default="guaranteed_no_evict"),
    "request_default_max_tokens": FieldShape(WholeShape(low=1, is_nullable=True)),
    "served_model_name": FieldShape(TextShape(is_nullable=True)),
    "total_token_limit": FieldShape(WholeShape(low=1), default=500_000),
    # /predict_tokens is in the public documentation only (D).
    "webserver_default_route": FieldShape(
        ChoiceShape(values=("/v1/embeddings", "/rerank", "/predict", "/predict_tokens"), is_nullable=True)
    ),
    "lora_cache_max_adapter_size": FieldShape(WholeShape(low=1, is_nullable=True), source=TRUSS),
    "lora_cache_optimal_adapter_size": FieldShape(WholeShape(low=1, is_nullable=True), source=TRUSS),
    "lora_cache_gpu_memory_fraction": FieldShape(
        NumberShape(low=0, high=1, is_above=True, is_nullable=True), source=TRUSS
    ),
    "lora_cache_host_memory_bytes": FieldShape(WholeShape(low=1, is_nullable=True), source=TRUSS),
}  # fmt: skip

_V2_RUNTIME: Final = {
    **_SIZES,
    "max_num_tokens": FieldShape(WholeShape(low=65, high=LARGEST_V2_BATCH_TOKENS), default=8192),
    "tensor_parallel_size": FieldShape(WholeShape(low=1), default=1),
    "enable_chunked_prefill": FieldShape(SwitchShape(), default=True),
    "served_model_name": FieldShape(TextShape(is_nullable=True)),
    "patch_kwargs": FieldShape(NamedShape(), source="D", note="is a preview: its fields may change"),
}


def _not_here(known: Mapping[str, FieldShape], here: Mapping[str, FieldShape], why: str) -> dict[str, FieldShape]:
    return {name: FieldShape(elsewhere=why.format(name=name)) for name in known if name not in here}


V1_RUNTIME: Final = TableShape(keys=MappingProxyType({
    **_V1_RUNTIME,
    **_not_here(_V2_RUNTIME, _V1_RUNTIME, "is a field of v2's runtime, and inference_stack is v1"),
    **{name: FieldShape(elsewhere="belongs to trt_llm.build in v1; a file of v2 declares inference_stack: v2")
       for name in (*_SIZES, "max_num_tokens")},
}))  # fmt: skip

V2_RUNTIME: Final = TableShape(keys=MappingProxyType({
    **_V2_RUNTIME,
    **_not_here(_V1_RUNTIME, _V2_RUNTIME, "is a field of v1's runtime: v2 has none of this name"),
    "tensor_parallel_count": FieldShape(elsewhere="is named tensor_parallel_size in v2"),
    "gated_features": FieldShape(NamedShape(), source=TRUSS, note="is an older name of patch_kwargs"),
}))  # fmt: skip

V2_BUILD_TABLE: Final = TableShape(keys=MappingProxyType({
    **_KEPT_BUILD,
    **{name: FieldShape(elsewhere=f"Field trt_llm.build.{name} is not allowed to be set when using v2 inference stack")
       for name in V1_BUILD.keys if name not in V2_BUILD},
}))  # fmt: skip

_VERSION: Final = TextShape(pattern=r"\d.*", what="a version, which starts with a number", is_nullable=True)
_SHARED: Final = {
    "inference_stack": FieldShape(ChoiceShape(values=("v1", "v2")), default="v1"),
    "version_overrides": FieldShape(TableShape(keys=MappingProxyType({
        **{name: FieldShape(_VERSION, source=TRUSS)
           for name in ("engine_builder_version", "briton_version", "bei_version", "bei_bert_version")},
        "v2_llm_version": FieldShape(TextShape(is_nullable=True), source=TRUSS),
    })), source=TRUSS),
}  # fmt: skip


def _block(build: TableShape, runtime: TableShape, *, needs_runtime: bool) -> TableShape:
    """The `trt_llm` block of a stack; a field that is not in its section is named with the one it belongs to."""
    of_build = {name: "trt_llm.build" for name, field in build.keys.items() if not field.elsewhere}
    of_runtime = {name: "trt_llm.runtime" for name, field in runtime.keys.items() if not field.elsewhere}
    return TableShape(misplaced=MappingProxyType({**of_build, **of_runtime}), keys=MappingProxyType({
        **_SHARED,
        "build": FieldShape(replace(build, misplaced=of_runtime), is_required=True),
        "runtime": FieldShape(replace(runtime, misplaced=of_build), is_required=needs_runtime),
    }))  # fmt: skip


TRT_LLM: Final[Mapping[Stack, TableShape]] = MappingProxyType({
    "v1": _block(V1_BUILD, V1_RUNTIME, needs_runtime=False),
    "v2": _block(V2_BUILD_TABLE, V2_RUNTIME, needs_runtime=True),
})  # fmt: skip

_FP8: Final = ("fp8", "fp8_kv", "fp8_mlp_only")
_FP4: Final = ("fp4", "fp4_kv", "fp4_mlp_only")
_NO_TENSOR_RT: Final = ("T4", "V100")
_BEFORE_FP8: Final = ("A10G", "A100", "A100_40GB", *_NO_TENSOR_RT)
_BEFORE_FP4: Final = (*_BEFORE_FP8, "H100", "H100_40GB", "H200", "L4", "L40S")


def stack_of(trt_llm: DocumentNode) -> Stack:
    """The stack a block declares; v1 where it declares none, or none that there is."""
    node = trt_llm.find("inference_stack")
    return "v2" if node is not None and node.value == "v2" else "v1"


def check_trt_llm(
    trt_llm: DocumentNode, accelerator: str | None, count: int, nodes: int | None
) -> Iterator[ConfigurationFinding]:
    """The findings of a `trt_llm` block, for a deployment with `count` accelerators of one kind on each of its nodes.

    `accelerator` and `nodes` are None where the configuration says nothing of them.
    """
    stack = stack_of(trt_llm)
    yield from TRT_LLM[stack].check(trt_llm, "trt_llm")
    build = trt_llm.find("build")
    if build is None or build.kind != "mapping":
        return
    yield from _check_checkpoints(build)
    yield from _check_quantization(build, accelerator)
    if accelerator in _NO_TENSOR_RT and _value(build, "base_model") != "encoder_bert":
        yield wrong(build, "resources.accelerator", f"is {accelerator}, which TRT-LLM does not support, expected A10G, "
                    "A100 or newer")  # fmt: skip
    yield from _check_context(trt_llm, stack)
    if stack == "v1":
        yield from _check_v1(trt_llm, build, count)
    else:
        yield from _check_v2(trt_llm, build, accelerator, count * (nodes or 1))


def _value(node: DocumentNode, *keys: str, default: Any = None) -> Any:
    found = node.find(*keys)
    return default if found is None else found.value


def _whole(node: DocumentNode, *keys: str, default: int) -> int | None:
    """A whole number; None where it is none, which was found already."""
    value = _value(node, *keys, default=default)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _check_checkpoints(build: DocumentNode) -> Iterator[ConfigurationFinding]:
    checkpoint = build.find("checkpoint_repository")
    if checkpoint is not None:
        yield from _check_checkpoint(checkpoint, "trt_llm.build.checkpoint_repository")
    adapters = build.find("lora_adapters")
    if adapters is not None and adapters.kind == "mapping":
        for name, each in each_entry(adapters):
            yield from _check_checkpoint(each, f"trt_llm.build.lora_adapters.{name.value}")


def _check_checkpoint(node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
    if node.kind != "mapping":
        return
    source, repo = node.find("source"), node.find("repo")
    if source is None or repo is None or not isinstance(repo.value, str):
        return
    if source.value == "HF" and not _is_hub_name(repo.value):
        yield wrong(repo, f"{path}.repo", f"is {repo.value!r}, expected a Hugging Face name such as 'owner/model'")
    if source.value == "REMOTE_URL" and not repo.value.startswith(("http://", "https://")):
        # Not the value: a presigned URL is as good as a password.
        yield wrong(repo, f"{path}.repo", "is no HTTP URL, which source REMOTE_URL requires")
    if source.value == "BASETEN_TRAINING" and not _value(node, "revision"):
        yield wrong(node, f"{path}.revision", "is missing: source BASETEN_TRAINING requires it")


def _is_hub_name(repo: str) -> bool:
    """Whether the Hugging Face Hub takes this as the name of a repository."""
    is_formed = re.fullmatch(r"(\b[\w\-.]{1,96}\b/)?\b[\w\-.]{1,96}\b", repo, re.ASCII) is not None
    return is_formed and "--" not in repo and ".." not in repo and not repo.endswith(".git")


def _check_quantization(build: DocumentNode, accelerator: str | None) -> Iterator[ConfigurationFinding]:
    node = build.find("quantization_type")
    kind = "no_quant" if node is None else node.value
    config = build.find("quantization_config")
    if config is not None and kind == "no_quant":
        yield ConfigurationFinding("warning", "trt_llm.build.quantization_config", config.line, config.column,
                      "has no effect: quantization_type is no_quant")  # fmt: skip
    if node is None or not isinstance(kind, str):
        return
    path = "trt_llm.build.quantization_type"
    if kind == "fp8_mlp_only":
        yield ConfigurationFinding(
            "warning", path, node.line, node.column, f"fp8_mlp_only is known to {TRUSS}, but not documented"
        )
    repo = _value(build, "checkpoint_repository", "repo")
    if kind == "fp8_kv" and isinstance(repo, str) and re.search(r"(?i)qwen-?2\.5", repo):
        what = f"is {kind}, which is not compatible with models that use bias=True, such as Qwen 2.5"
        yield ConfigurationFinding("warning", path, node.line, node.column, what)
    if kind in _FP8 and accelerator in _BEFORE_FP8:
        yield wrong(
            node, path, f"is {kind}, which {accelerator} does not support, expected L4, H100, H200, B200 or newer"
        )
    if kind in _FP4 and accelerator in _BEFORE_FP4:
        yield wrong(node, path, f"is {kind}, which requires B200 or newer, and the accelerator is {accelerator}")


def _check_context(trt_llm: DocumentNode, stack: Stack) -> Iterator[ConfigurationFinding]:
    """Prompts that are not prefilled in chunks have to fit into one pass."""
    sizes, switch = ("build", "enable_chunked_context") if stack == "v1" else ("runtime", "enable_chunked_prefill")
    is_encoder = _value(trt_llm, "build", "base_model") in ENCODERS
    longest = trt_llm.find(sizes, "max_seq_len")
    tokens = _whole(trt_llm, sizes, "max_num_tokens", default=8192)
    if longest is None or not isinstance(longest.value, int) or tokens is None or longest.value <= tokens:
        return
    if is_encoder or _value(trt_llm, "runtime", switch, default=True) is False:
        why = "of an encoder" if is_encoder else f"without {switch}"
        what = f"is {longest.value}, but {why} max_num_tokens, which is {tokens}, limits the context"
        path = f"trt_llm.{sizes}.max_seq_len"
        yield ConfigurationFinding("warning", path, longest.line, longest.column, what)


def _check_v1(trt_llm: DocumentNode, build: DocumentNode, count: int) -> Iterator[ConfigurationFinding]:
    base_model = _value(build, "base_model", default="decoder")
    is_paged = [_value(build, "plugin_configuration", name, default=True)
                for name in ("paged_kv_cache", "use_paged_context_fmha")]  # fmt: skip
    plugins = build.find("plugin_configuration")
    where = "trt_llm.build.plugin_configuration"
    if is_paged == [False, True]:
        yield wrong(plugins, where, "use_paged_context_fmha requires paged_kv_cache: true")
    if build.find("speculator") is not None and _value(build, "speculator") is not None and False in is_paged:
        yield wrong(plugins, where, "the speculator requires paged_kv_cache and use_paged_context_fmha to be true")
    chunked = _value(trt_llm, "runtime", "enable_chunked_context", default=True)
    if base_model not in ENCODERS and chunked is True and False in is_paged:
        at = trt_llm.find("runtime", "enable_chunked_context") or plugins
        what = "is true, which requires paged_kv_cache and use_paged_context_fmha to be true"
        yield wrong(at, "trt_llm.runtime.enable_chunked_context", what)
    if base_model == "decoder":
        yield from _check_parallelism(build, count)
    speculator = build.find("speculator")
    if speculator is not None and speculator.kind == "mapping":
        yield from _check_speculator(build, speculator)
    yield from _check_lora_cache(trt_llm)
    if base_model in ENCODERS:
        for name in ("served_model_name", "total_token_limit"):
            node = trt_llm.find("runtime", name)
            if node is not None and node.value is not None:
                what = f"has no effect: it is for generative models, and base_model is {base_model}"
                yield ConfigurationFinding("warning", f"trt_llm.runtime.{name}", node.line, node.column, what)


def _check_parallelism(build: DocumentNode, count: int) -> Iterator[ConfigurationFinding]:
    names = ("tensor_parallel_count", "pipeline_parallel_count", "sequence_parallel_count")
    tensor = _whole(build, "tensor_parallel_count", default=1)
    sizes = [size for name in names if (size := _whole(build, name, default=1)) is not None]
    if len(sizes) == len(names) and math.prod(sizes) != count:
        node = build.find("tensor_parallel_count") or build
        what = f"is {tensor}, which must equal the number of GPUs in resources.accelerator, which is {count}"
        yield wrong(node, "trt_llm.build.tensor_parallel_count", what)
    option = build.find("moe_expert_parallel_option")
    experts = _whole(build, "moe_expert_parallel_option", default=-1)
    if option is None or experts is None or tensor is None or experts < 1:
        return
    path = "trt_llm.build.moe_expert_parallel_option"
    if experts > tensor:
        yield wrong(option, path, f"is {experts}, expected -1, or 1 to tensor_parallel_count, which is {tensor}")
    elif tensor % experts:
        what = f"is {experts}, which does not divide tensor_parallel_count, {tensor}: the performance suffers"
        yield ConfigurationFinding("warning", path, option.line, option.column, what)


def _check_speculator(build: DocumentNode, speculator: DocumentNode) -> Iterator[ConfigurationFinding]:
    path = "trt_llm.build.speculator"
    if _value(speculator, "speculative_decoding_mode") != LOOKAHEAD:
        return
    missing = [name for name in LOOKAHEAD_SIZES if speculator.find(name) is None]
    for name in missing:
        yield wrong(speculator, f"{path}.{name}", f"is missing: {LOOKAHEAD} requires it")
    sizes = [_whole(speculator, name, default=0) for name in LOOKAHEAD_SIZES]
    if not missing and all(size is not None and size >= 1 for size in sizes):
        windows, ngram, verification = (size or 0 for size in sizes)
        # What the engine drafts at most: https://github.com/NVIDIA/TensorRT-LLM/tree/main/examples/lookahead
        drafted = (0 if ngram == 1 else ngram - 2) + (windows - 1 + verification) * (ngram - 1)
        wanted = _whole(speculator, "num_draft_tokens", default=drafted)
        if not drafted and wanted == drafted:
            yield wrong(speculator, f"{path}.num_draft_tokens", "is missing: lookahead_ngram_size 1 needs it")
        elif drafted > MOST_DRAFT_TOKENS:
            yield wrong(speculator, path, f"its sizes draft {drafted} tokens, expected at most {MOST_DRAFT_TOKENS}")
        elif wanted is not None and wanted < drafted:
            node = speculator.find("num_draft_tokens")
            yield wrong(node, f"{path}.num_draft_tokens", f"is {wanted}, less than the {drafted} its sizes draft")
    if _value(speculator, "enable_b10_lookahead") is not True:
        for name, (low, high) in _RECOMMENDED_LOOKAHEAD.items():
            node = speculator.find(name)
            if node is not None and isinstance(node.value, int) and not low <= node.value <= high:
                what = f"is {node.value}, recommended are {low} to {high}"
                yield ConfigurationFinding("warning", f"{path}.{name}", node.line, node.column, what)
    batch = _whole(build, "max_batch_size", default=256)
    if batch is not None and batch > 64:
        what = f"works best with max_batch_size of 64 or less, which is {batch}"
        yield ConfigurationFinding("warning", path, speculator.line, speculator.column, what)


def _check_lora_cache(trt_llm: DocumentNode) -> Iterator[ConfigurationFinding]:
    low, high = (_value(trt_llm, "runtime", name)
                 for name in ("lora_cache_optimal_adapter_size", "lora_cache_max_adapter_size"))  # fmt: skip
    if isinstance(low, int) and isinstance(high, int) and low > high:
        yield wrong(trt_llm.find("runtime", "lora_cache_optimal_adapter_size"),
                    "trt_llm.runtime.lora_cache_optimal_adapter_size",
                    f"is {low}, above lora_cache_max_adapter_size, which is {high}")  # fmt: skip


def _check_v2(
    trt_llm: DocumentNode, build: DocumentNode, accelerator: str | None, count: int
) -> Iterator[ConfigurationFinding]:
    if build.find("checkpoint_repository") is None and _value(build, "skip_build_result") is not True:
        what = "is missing: it is required unless skip_build_result is true"
        yield wrong(build, "trt_llm.build.checkpoint_repository", what)
    patches = trt_llm.find("runtime", "patch_kwargs")
    for name, _ in each_entry(patches) if patches is not None else ():
        if name.value in _V2_RUNTIME:
            what = f"is rejected: it is a field of its own, trt_llm.runtime.{name.value}"
            yield wrong(name, f"trt_llm.runtime.patch_kwargs.{name.value}", what)
    size = _whole(trt_llm, "runtime", "tensor_parallel_size", default=1)
    node = trt_llm.find("runtime", "tensor_parallel_size")
    if accelerator is None or size is None or size == count:
        return
    path = "trt_llm.runtime.tensor_parallel_size"
    at = node or trt_llm.find("runtime") or trt_llm
    if size > count:
        yield wrong(at, path, f"is {size}, but resources.accelerator has {count}")
    else:
        yield ConfigurationFinding(
            "warning", path, at.line, at.column, f"is {size}, so {count - size} of {count} GPUs stay idle"
        )
