"""What happens to each field of `trt_llm` between v1 and v2, as one table: the report and docs/migration.md read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from servescope.migration.fields.trt_llm import TRUSS, Stack

FateKind = Literal["set", "kept", "moved", "renamed", "automatic", "unsupported", "blocking"]

MEANINGS: Final[Mapping[FateKind, str]] = MappingProxyType({
    "set": "set",
    "kept": "kept as it is",
    "moved": "moved",
    "renamed": "renamed",
    "automatic": "dropped, as {to} does it automatically",
    "unsupported": "dropped, as {to} has no equivalent",
    "blocking": "stops the move",
})  # fmt: skip


def meaning(kind: FateKind, to: Stack = "v2") -> str:
    """What happens to a field on the way to a stack, in words."""
    return MEANINGS[kind].format(to=to)


@dataclass(frozen=True, slots=True)
class FieldFate:
    """What happens to a field on the way from v1 to v2; paths are below `trt_llm`, `v2` is empty where it has no place.

    `why` is a sentence, `todo` what somebody does about a field that is dropped; `source` is S1 to S5 or D, which
    `report.SOURCES` spells out, or the vendor's tool.
    """

    v1: str
    v2: str
    kind: FateKind
    why: str
    source: str
    todo: str = ""


def _kept(path: str, why: str, source: str) -> FieldFate:
    return FieldFate(path, path, "kept", why, source)


_PLUGIN: Final = "v2 handles paged_kv_cache, use_paged_context_fmha and use_fp8_context_fmha automatically."
_LOOKAHEAD: Final = "v2 does not support lookahead decoding; speculation is configured in the Management API."
_N_GRAM: Final = (
    "N-gram is the nearest: `--n-gram` puts it into the Management API's body; Eagle and MTP need Enterprise."
)
_LORA: Final = "Only v1 serves LoRA adapters."
_NO_ADAPTERS: Final = "Nothing: without adapters it has no effect."
_LORA_ADVICE: Final = "Keep this deployment on v1, or deploy each adapter merged into its model."
_PARALLEL: Final = "v2 has tensor_parallel_size only."
_NOT_IN_V2: Final = "v2's build section has no such field."

FATES: Final = (
    FieldFate("inference_stack", "inference_stack", "set", "v2 is declared first, as v1 is the default.", "S1"),
    _kept("version_overrides", "Versions of v1's images have no effect in v2; v2_llm_version is v2's.", TRUSS),
    FieldFate("build.base_model", "", "automatic", "v2 detects the architecture from the checkpoint.", "S1"),
    _kept("build.checkpoint_repository", "v2 builds from the same checkpoint.", "S1"),
    _kept("build.quantization_type", "v2 has the same types.", "S1"),
    _kept("build.quantization_config", "v2 calibrates with the same settings.", "S1"),
    _kept("build.num_builder_gpus", "v2 keeps it (S1; where S4 lists three fields, S1 wins).", "S1"),
    _kept("build.skip_build_result", "A field of v2.", "S1"),
    FieldFate("build.max_seq_len", "runtime.max_seq_len", "moved", "v2 has it there.", "S1"),
    FieldFate("build.max_batch_size", "runtime.max_batch_size", "moved", "v2 has it there.", "S1"),
    FieldFate("build.max_num_tokens", "runtime.max_num_tokens", "moved", "v2 has it there, up to 131072.", "S1"),
    FieldFate("build.tensor_parallel_count", "runtime.tensor_parallel_size", "renamed", "v2 has it there.", "S1"),
    FieldFate("build.plugin_configuration", "", "automatic", _PLUGIN, "S1"),
    FieldFate("build.speculator", "", "unsupported", _LOOKAHEAD, "S1", _N_GRAM),
    FieldFate("build.lora_adapters", "", "blocking", _LORA, "S4", _LORA_ADVICE),
    FieldFate("build.lora_configuration", "", "unsupported", _LORA, "S4", _NO_ADAPTERS),
    FieldFate("build.moe_expert_parallel_option", "", "unsupported", "v2 has no setting of expert parallelism.", "S4",
         "Compare throughput of a mixture of experts before the cutover."),
    FieldFate("build.max_beam_width", "", "automatic", "Only 1 is supported, which v2 has.", TRUSS),
    FieldFate("build.max_prompt_embedding_table_size", "", "unsupported", _NOT_IN_V2, TRUSS,
         "Ask the vendor where prompt tuning is used."),
    FieldFate("build.gather_all_token_logits", "", "unsupported", _NOT_IN_V2, TRUSS,
         "Ask the vendor where clients read logits of every token."),
    FieldFate("build.strongly_typed", "", "automatic", "v2 sets the types of its engine itself.", TRUSS),
    FieldFate("build.pipeline_parallel_count", "", "unsupported", _PARALLEL, TRUSS,
         "Size tensor_parallel_size to the GPUs of a replica."),
    FieldFate("build.sequence_parallel_count", "", "unsupported", _PARALLEL, TRUSS,
         "Size tensor_parallel_size to the GPUs of a replica."),
    FieldFate("runtime.kv_cache_free_gpu_mem_fraction", "", "automatic", "v2 sizes its KV cache itself.", "S1",
         "Watch kv_cache_usage and preemptions: the cache may be larger or smaller than before."),
    FieldFate("runtime.kv_cache_host_memory_bytes", "", "unsupported", "v2 keeps no KV cache in host memory.", "S4",
         "Expect fewer cache hits where blocks were offloaded; memory that was requested for it can be returned."),
    FieldFate("runtime.enable_chunked_context", "runtime.enable_chunked_prefill", "renamed",
         "The same switch; both default to true, so false is carried over.", "S1"),
    FieldFate("runtime.batch_scheduler_policy", "", "unsupported", "v2 has no choice of a scheduling policy.", "S4",
         "Watch queued_requests and preemptions."),
    FieldFate("runtime.request_default_max_tokens", "", "unsupported", "v2 has no default of max_tokens.", "S4",
         "Have clients send max_tokens: answers without it may become longer."),
    _kept("runtime.served_model_name", "v2 returns the same name.", "S4"),
    FieldFate("runtime.total_token_limit", "", "unsupported", "v2 has no limit of scheduled tokens.", "S4",
         "max_num_tokens and max_batch_size bound what is scheduled at once."),
    FieldFate("runtime.webserver_default_route", "", "unsupported", "v2 has no default route.", "S4",
         "Have clients call the route by its path."),
    *(FieldFate(f"runtime.{name}", "", "unsupported", _LORA, TRUSS, _NO_ADAPTERS)
      for name in ("lora_cache_max_adapter_size", "lora_cache_optimal_adapter_size", "lora_cache_gpu_memory_fraction",
                   "lora_cache_host_memory_bytes")),
)  # fmt: skip
"""One row for each field of v1's `trt_llm`."""

ENCODER_FATE: Final = FieldFate("build.base_model", "", "blocking", "Only v1 serves encoders.", "S4",
                                "Keep this deployment on v1.")  # fmt: skip
"""What happens to `base_model` where it is one of them."""

BACK: Final = (
    FieldFate("inference_stack", "inference_stack", "set", "v1 is declared.", "S1"),
    FieldFate("build.max_seq_len", "runtime.max_seq_len", "moved", "v1 has it there.", "S1"),
    FieldFate("build.max_batch_size", "runtime.max_batch_size", "moved", "v1 has it there.", "S1"),
    FieldFate("build.max_num_tokens", "runtime.max_num_tokens", "moved", "v1 has it there.", "S1"),
    FieldFate("build.tensor_parallel_count", "runtime.tensor_parallel_size", "renamed", "v1 has it there.", "S1"),
    FieldFate("runtime.enable_chunked_context", "runtime.enable_chunked_prefill", "renamed", "The same switch.", "S1"),
    FieldFate("", "build.skip_build_result", "unsupported", "v1 always builds its engine.", "S1", "Expect a build."),
    FieldFate("", "runtime.patch_kwargs", "unsupported", "v1 has no such field.", "D",
         "Set by hand in v1 what it set, where v1 has a field for it."),
    FieldFate("", "runtime.gated_features", "unsupported", "v1 has no such field.", TRUSS,
         "Set by hand in v1 what it set, where v1 has a field for it."),
)  # fmt: skip
"""What happens on the way back from v2 to v1; fields of neither list stay as they are."""
