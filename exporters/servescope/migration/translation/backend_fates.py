"""What happens to each field of the backend server's JSON on the way to v2, as one table like that of `fates`."""

from __future__ import annotations

from typing import Final

from servescope.migration.fields.trt_llm import TRUSS
from servescope.migration.translation.fates import FateKind, FieldFate

SPECULATION_PATH: Final = "optimisations.speculative_decoding"
SPECULATION_FIELDS: Final = f"{SPECULATION_PATH}.extra_params"
SPECULATIVE_CONFIG: Final = "llm_config.speculative_config"

_PARAMETERS: Final = "backend.extra_params"
_CACHING: Final = "optimisations.attention_caching"
_NO_PARSER: Final = "v2's documents name no parser."
_COMPARE: Final = "Send both deployments requests that call tools and that reason, and compare the answers."
_NO_WARMUP: Final = "v2's documents name no warm-up requests."
_WARM: Final = "Send requests to a new deployment before it gets traffic."
_NO_COMPILATION: Final = "v2 builds a TensorRT-LLM engine, which PyTorch does not compile."
_REUSES: Final = "v2 reuses the KV cache of equal prefixes itself, and has no switch for it."
_NO_DRAFTING: Final = "v2's speculation has no such setting."
_RATE: Final = "Compare tokens per second, and watch speculation_rate."
_NO_ADAPTERS: Final = "Nothing: without adapters it has no effect."
_ARCHITECTURE: Final = "v2 detects the architecture from the checkpoint."


def _dropped(prefix: str, names: str, kind: FateKind, why: str, source: str, todo: str = "") -> tuple[FieldFate, ...]:
    return tuple(FieldFate(f"{prefix}.{name}", "", kind, why, source, todo) for name in names.split())


OPTIMISATION_FATES: Final = (
    FieldFate("backend.name", "", "automatic", "v2 has one engine, TensorRT-LLM.", "S1"),
    FieldFate("backend.version", "", "automatic", "v2 has versions of its own; v2_llm_version pins one.", TRUSS),
    FieldFate(f"{_PARAMETERS}.context_length", "trt_llm.runtime.max_seq_len", "renamed",
              "The longest sequence, prompt and answer together.", "S4"),
    *_dropped(_PARAMETERS, "gpu_memory_utilization", "automatic", "v2 sizes its KV cache itself.", "S1",
              "Watch kv_cache_usage and preemptions: the cache may be larger or smaller than before."),
    FieldFate(f"{_PARAMETERS}.max_running_requests", "trt_llm.runtime.max_batch_size", "renamed",
              "The most requests that run at once.", "ours"),
    *_dropped(_PARAMETERS, "max_total_tokens", "unsupported", "v2 has no limit of scheduled tokens.", "S4",
              "max_num_tokens and max_batch_size bound what is scheduled at once."),
    *_dropped(_PARAMETERS, "chunked_prefill_size", "automatic",
              "v2 splits prompts into passes of max_num_tokens: enable_chunked_prefill is true by default.", "S4"),
    FieldFate(f"{_PARAMETERS}.max_prefill_tokens", "trt_llm.runtime.max_num_tokens", "renamed",
              "The most tokens of a pass, which in v2 counts those that are decoded as well.", "ours"),
    *_dropped(_PARAMETERS, "reasoning_parser tool_call_parser", "unsupported", _NO_PARSER, "S4", _COMPARE),
    *_dropped(_PARAMETERS, "enable_torch_compile torch_compile_max_bs cuda_graph_max_bs", "automatic",
              _NO_COMPILATION, "ours"),
    *_dropped("warmups", "enabled iterations sample_input_data", "unsupported", _NO_WARMUP, "S4", _WARM),
    FieldFate("model_type", "", "automatic", _ARCHITECTURE, "S1"),
    FieldFate("quantization", "trt_llm.build.quantization_type", "renamed",
              "float16 is no_quant, float8 is fp8, and w4 is asked.", "ours"),
    FieldFate("optimisations.model_type", "", "automatic", _ARCHITECTURE, "S1"),
    *_dropped(_CACHING, "type enabled extra_params", "automatic", _REUSES, "S3"),
    *_dropped(SPECULATION_PATH, "type enabled", "automatic",
              "v2 speculates where the Management API's body has a speculative_config.", "S3"),
    FieldFate(f"{SPECULATION_FIELDS}.algorithm", f"{SPECULATIVE_CONFIG}.decoding_type", "renamed",
              "n-gram is NGram, eagle and eagle3 are Eagle (eagle3_one_model is asked), nextn is MTP; draft stops the "
              "move.", "ours"),
    FieldFate(f"{SPECULATION_FIELDS}.draft_model_path", f"{SPECULATIVE_CONFIG}.speculative_model_dir", "renamed",
              "Of eagle and eagle3, which need it in v2: asked where it is not set.", "ours"),
    *_dropped(SPECULATION_FIELDS, "num_draft_tokens", "unsupported", _NO_DRAFTING, "ours", _RATE),
    FieldFate(f"{SPECULATION_FIELDS}.num_steps", f"{SPECULATIVE_CONFIG}.max_draft_len", "renamed",
              "Of eagle and eagle3; of nextn it is num_nextn_predict_layers, which is to be confirmed.", "ours"),
    *_dropped(SPECULATION_FIELDS, "topk tp_size", "unsupported", _NO_DRAFTING, "ours", _RATE),
    FieldFate("tensor_parallel_size", "trt_llm.runtime.tensor_parallel_size", "moved", "v2 has it there.", "S1"),
)  # fmt: skip
"""One row for each field of the optimisation configuration; `v1` is its path, `v2` that of the new file or the body."""

PIPELINE_FATES: Final = (
    FieldFate("mode", "", "automatic",
              "v2 serves chat and completions by OpenAI's API; embedding stops the move.", "S2"),
    FieldFate("type", "", "automatic", _ARCHITECTURE, "S1"),
    FieldFate("loras", "", "blocking", "v2 serves no LoRA adapters.", "S4",
              _NO_ADAPTERS),
    *_dropped("lora_repo", "path type secret.type ownership", "unsupported", "v2 serves no LoRA adapters.", "S4",
              _NO_ADAPTERS),
    FieldFate("load_lora_dynamic", "", "blocking", "v2 loads no LoRA adapters.", "S4",
              _NO_ADAPTERS),
)  # fmt: skip
"""One row for each field of the pipeline configuration."""
