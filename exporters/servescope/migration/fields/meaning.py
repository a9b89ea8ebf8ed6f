"""What a move to v2 changes beyond the fields: for clients, memory, GPUs, autoscaling, speculation, and the tier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from servescope.migration.document.nodes import DocumentNode
from servescope.migration.fields.trt_llm import LOOKAHEAD_SIZES

Topic = Literal[
    "clients", "memory", "gpus", "autoscaling", "speculation", "routing", "disaggregation", "tier", "ignored"
]

TITLES: Final[dict[Topic, str]] = {
    "clients": "Clients",
    "memory": "Memory",
    "gpus": "GPUs",
    "autoscaling": "Autoscaling",
    "speculation": "Speculation",
    "routing": "Routing",
    "disaggregation": "Disaggregation",
    "tier": "Tier",
    "ignored": "Ignored",
}
_LEGACY_TAG: Final = "force-legacy-api-non-openai-compatible"
_V1_VERSIONS: Final = ("engine_builder_version", "briton_version", "bei_version", "bei_bert_version")
_V2_VERSIONS: Final = ("v2_llm_version",)


@dataclass(frozen=True, slots=True)
class MeaningChange:
    """One thing that behaves differently after the move, for this configuration, and where that is documented."""

    topic: Topic
    text: str
    source: str


_OTHER_SERVER: Final = MeaningChange("clients", (
    "Stop sequences, tool calls and structured outputs come from another server. The documents name no difference: "
    "send both deployments the requests that your clients send, before traffic is moved."
), "S2")  # fmt: skip


def token_target(concurrency_target: float, tokens_per_request: float) -> int:
    """v2's `target_in_flight_tokens` for a v1 `concurrency_target`, by the documented formula (S1)."""
    return round(concurrency_target * tokens_per_request)


def describe_meaning(root: DocumentNode) -> tuple[MeaningChange, ...]:
    """What changes for a v1 configuration, which has a `trt_llm` block, when it is moved to v2."""
    trt_llm = root.find("trt_llm")
    if trt_llm is None:
        return ()
    return (
        *_clients(root, trt_llm),
        *_memory(trt_llm),
        *_gpus(trt_llm),
        *_autoscaling(),
        *_speculation(trt_llm),
        *_new_features(),
        *_ignored(trt_llm, _V1_VERSIONS, "v1"),
    )


def describe_backend_move(root: DocumentNode, pipeline: DocumentNode | None) -> tuple[MeaningChange, ...]:
    """What changes when the backend server's configuration is moved to v2; `pipeline` is None where none was given."""
    return (*_backend_clients(root, pipeline), *_backend_engine(root), *_autoscaling(), *_new_features())


def describe_rollback(root: DocumentNode) -> tuple[MeaningChange, ...]:
    """What cannot go back when the v1 file of a v2 configuration is made."""
    trt_llm = root.find("trt_llm")
    kwargs = trt_llm.find("runtime", "patch_kwargs") if trt_llm is not None else None
    lost = f" patch_kwargs ({', '.join(map(str, kwargs.value))}) has no place in v1." if kwargs and kwargs.value else ""
    return (
        MeaningChange("memory", (
            "What only v1 has returns at its default: kv_cache_free_gpu_mem_fraction 0.9, total_token_limit 500000, "
            "guaranteed_no_evict, no request_default_max_tokens. The v1 file from before the move, if it was kept, has "
            f"its own values.{lost}"
        ), "S4"),
        MeaningChange("speculation", (
            "Speculation, KV-aware routing and disaggregation of the Management API have no place in v1's file: v1 "
            "speculates by lookahead, under trt_llm.build.speculator, and routes by load."
        ), "S1"),
        MeaningChange("autoscaling", (
            "v1 scales on requests: set concurrency_target and target_utilization_percentage again; "
            "target_in_flight_tokens has no meaning there."
        ), "S1"),
        *(_ignored(trt_llm, _V2_VERSIONS, "v2") if trt_llm is not None else ()),
    )  # fmt: skip


def _clients(root: DocumentNode, trt_llm: DocumentNode) -> Iterator[MeaningChange]:
    tokens = trt_llm.value_of("runtime", "request_default_max_tokens")
    if tokens is not None:
        text = (f"Requests without max_tokens no longer stop at {tokens} tokens: answers may become longer, and take "
                "more of the KV cache. Have clients send max_tokens.")  # fmt: skip
        yield MeaningChange("clients", text, "S4")
    route = trt_llm.value_of("runtime", "webserver_default_route")
    if route is not None:
        text = f"No default route: requests without a path no longer reach {route}. Have clients send the path."
        yield MeaningChange("clients", text, "S4")
    tags = root.value_of("model_metadata", "tags")
    if isinstance(tags, list) and _LEGACY_TAG in tags:
        text = f"v2 serves OpenAI's API only: the tag {_LEGACY_TAG} has no effect, and clients of the old API fail."
        yield MeaningChange("clients", text, "S2")
    yield _OTHER_SERVER


def _memory(trt_llm: DocumentNode) -> Iterator[MeaningChange]:
    share = trt_llm.value_of("runtime", "kv_cache_free_gpu_mem_fraction")
    taken = f"{share:g}" if isinstance(share, int | float) else "0.9 (its default)"
    text = f"v2 sizes the KV cache itself; v1 took {taken} of the free GPU memory. Watch kv_cache_usage."
    yield MeaningChange("memory", text, "S1")
    host = trt_llm.value_of("runtime", "kv_cache_host_memory_bytes")
    if isinstance(host, int):
        text = f"No KV cache in host memory: {host / 2**30:.1f} GiB of blocks that were offloaded are computed again."
        yield MeaningChange("memory", text, "S4")
    if trt_llm.value_of("runtime", "batch_scheduler_policy") == "max_utilization":
        text = "v1 paused requests when memory ran out (max_utilization); v2 has no such choice. Watch preemptions."
        yield MeaningChange("memory", text, "S4")


def _gpus(trt_llm: DocumentNode) -> Iterator[MeaningChange]:
    builders = trt_llm.value_of("build", "num_builder_gpus")
    if builders is not None:
        text = f"num_builder_gpus {builders} is kept: v2 has it under build (S4 lists three fields there, S1 five)."
        yield MeaningChange("gpus", text, "S1")
    for name in ("pipeline_parallel_count", "sequence_parallel_count"):
        count = trt_llm.value_of("build", name)
        if isinstance(count, int) and count > 1:
            text = f"{name} {count} is gone: a replica uses tensor_parallel_size GPUs, so {count} times fewer."
            yield MeaningChange("gpus", text, "S4")


def _backend_clients(root: DocumentNode, pipeline: DocumentNode | None) -> Iterator[MeaningChange]:
    if pipeline is None:
        text = ("No pipeline configuration was given (--pipeline): its defaults are assumed, which are chat, and no "
                "LoRA adapter.")  # fmt: skip
        yield MeaningChange("clients", text, "S5")
    for name in ("reasoning_parser", "tool_call_parser"):
        parser = root.value_of("backend", "extra_params", name)
        if parser is not None:
            text = f"{name} {parser} is gone, and v2's documents name no parser: compare such answers of both."
            yield MeaningChange("clients", text, "S4")
    yield _OTHER_SERVER


def _backend_engine(root: DocumentNode) -> Iterator[MeaningChange]:
    share = root.value_of("backend", "extra_params", "gpu_memory_utilization")
    before = f"; the backend server took {share:g} of the GPU memory" if isinstance(share, int | float) else ""
    yield MeaningChange("memory", f"v2 sizes the KV cache itself{before}. Watch kv_cache_usage.", "S1")
    if root.value_of("backend", "extra_params", "max_prefill_tokens") is None:
        text = "A pass has up to 8192 tokens by v2's default of max_num_tokens; v4 prefills up to 16384 by its default."
        yield MeaningChange("memory", text, "S4")
    if root.value_of("optimisations", "attention_caching", "enabled") is not True:
        text = "Attention caching is off here; v2 reuses the KV cache of equal prefixes, and has no switch for it."
        yield MeaningChange("memory", text, "S3")
    count = root.value_of("tensor_parallel_size") or 1
    text = (f"A replica needs {count} {'GPU' if count == 1 else 'GPUs'}: --accelerator writes resources.accelerator, "
            "which the backend server's JSON does not have.")  # fmt: skip
    yield MeaningChange("gpus", text, "S4")


def _autoscaling() -> Iterator[MeaningChange]:
    yield MeaningChange("autoscaling", (
        "v2 scales on tokens: the deployment API rejects concurrency_target and target_utilization_percentage, and "
        "wants target_in_flight_tokens = concurrency_target × average tokens per request "
        "(--concurrency-target and --tokens-per-request compute it); sensible is 50 000 to 150 000."
    ), "S1")  # fmt: skip
    yield MeaningChange("autoscaling", (
        "Replicas decay with a half-life of 900 s instead of in steps, and min_replica is 1 or more: v2 does not scale "
        "to zero."
    ), "D")  # fmt: skip


def _speculation(trt_llm: DocumentNode) -> Iterator[MeaningChange]:
    speculator = trt_llm.find("build", "speculator")
    if speculator is None or speculator.value is None:
        return
    sizes = ", ".join(str(speculator.value_of(name)) for name in LOOKAHEAD_SIZES)
    yield MeaningChange("speculation", (
        f"Lookahead ({sizes}) is gone: without speculation tokens come slower. N-gram is the nearest (--n-gram); Eagle "
        "needs a trained head, MTP a model with such layers, and both the Enterprise tier."
    ), "S1")  # fmt: skip


def _new_features() -> Iterator[MeaningChange]:
    yield MeaningChange("routing", (
        "KV-aware routing becomes available (S3 has it on by default): prompts that share prefixes get their first "
        "token sooner. The level of kv_cache_hit_rate depends on model and traffic: watch its change."
    ), "S1")  # fmt: skip
    yield MeaningChange("disaggregation", (
        "Disaggregated serving becomes available, for long or mixed prompts and strict times to first token."
    ), "S1")  # fmt: skip
    yield MeaningChange("tier", (
        "Eagle, MTP, KV-aware routing and disaggregated serving need the vendor's Enterprise tier."
    ), "S1")  # fmt: skip


def _ignored(trt_llm: DocumentNode, names: Sequence[str], stack: str) -> Iterator[MeaningChange]:
    """Versions of the images of a stack, which the other one does not run."""
    for name in names:
        version = trt_llm.value_of("version_overrides", name)
        if version is not None:
            text = f"version_overrides.{name} {version} is of an image of {stack}."
            yield MeaningChange("ignored", text, "truss 0.18.35")
