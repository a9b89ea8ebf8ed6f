"""The alerts on GPUs and their memory: a GPU that is gone, a KV cache without room, requests that are preempted."""

from __future__ import annotations

from typing import Final

from servescope.alerting.choices import bound
from servescope.alerting.records import (
    NUMBER,
    PERCENT,
    WHO,
    Alert,
    All,
    Compare,
    Except,
    Lately,
    Measured,
    Present,
    Quotient,
    Runbook,
    Shown,
)
from servescope.contract.bounds import COMPARED_TRAFFIC, KV_FULL, PREEMPTED_SHARE, QUEUE_FLOOR
from servescope.contract.expressions import level

_FULL: Final = bound(KV_FULL)
_PREEMPTED: Final = bound(PREEMPTED_SHARE)
_QUEUE: Final = bound(QUEUE_FLOOR)
_GPU: Final = Measured(level("gpu_memory_usage"), ("replica", "gpu"))
_PREEMPTS: Final = All((
    Compare(Quotient(Shown("preemptions_rate"), Shown("request_rate")), ">", _PREEMPTED),
    Compare(Shown("request_rate"), ">=", bound(COMPARED_TRAFFIC)),
))  # fmt: skip

MEMORY_ALERTS: Final = (
    Alert(
        "ServescopeGpuGone", "warning", "engine", "serving",
        All((
            Except(Present(Lately("max", _GPU, "6h")), Present(_GPU)),
            # A replica that is gone as a whole is another alert's.
            Present(Measured(level("concurrent_requests"), ("replica",))),
        )),
        "A replica no longer reports one of its GPUs.",
        f"GPU {{{{ $labels.gpu }}}} of replica {{{{ $labels.replica }}}} of {WHO} was read within the last 6 hours and "
        "cannot be read any more.",
        Runbook(
            "The replica is scraped, and a GPU whose memory it reported within the last 6 hours is missing: the driver "
            "has lost it, or a restarted process sees fewer GPUs.",
            "Most engines stop at their next step and hang, which is a page of ServescopeUpButNotServing; others go "
            "on with what is left, more slowly.",
            "On the machine: `nvidia-smi` lists the GPU or says that it is lost, and `dmesg | grep -i xid` has the "
            "cause (fallen off the bus, an uncorrectable memory error). Good: all GPUs are listed, and the process was "
            "restarted with fewer of them. vLLM, SGLang, TensorRT-LLM and Dynamo log a CUDA error at their next step.",
            "Remove the replica from routing, drain the machine, and reset or replace the GPU. Do not restart the "
            "engine on the same machine before that: it fails again, or starts without the GPU. Call whoever owns the "
            "machines. It is over when the GPU is reported again, or 6 hours after it was.",
            "A process that was restarted on purpose with fewer GPUs.",
        ),
        "requests", "gpu_memory_usage", wait="5m", keep="5m", panel="GPU gone",
    ),
    Alert(
        "ServescopeRequestsPreempted", "warning", "engine", "memory",
        _PREEMPTS,
        "Engines preempt many requests to free KV cache.",
        f"For each request that ends, engines of {WHO} preempt {NUMBER} requests.",
        Runbook(
            f"There are more than {_PREEMPTED:g} preemptions for each request: the KV cache has no room for the "
            "requests that were admitted, and what was computed for the preempted ones is computed again.",
            "The output of preempted requests stops for seconds; time per output token and throughput get worse for "
            "all.",
            "Open this panel first, then the KV cache in use and the output tokens per request. Good: a few "
            "preemptions during a burst. Bad: a cache that stays full, longer outputs than before, or a smaller cache "
            "than before. vLLM logs the number of KV blocks at its start and warns of preemptions, SGLang logs "
            "`KV cache pool is full. Retract requests`, TensorRT-LLM paused requests.",
            "Add replicas, or limit the running requests: vLLM `--max-num-seqs`, SGLang `--max-running-requests`, "
            "TensorRT-LLM `max_batch_size`; behind Dynamo the engine's own switch. Do not raise the share of GPU "
            "memory under load: the engine may run out of memory. It is over when preemptions are rare.",
            "Short bursts of very long prompts.",
        ),
        "cache", "preemptions_rate", wait="10m", keep="10m",
    ),
    Alert(
        "ServescopeKvCacheFull", "warning", "engine", "memory",
        Except(
            All((
                Compare(Shown("kv_cache_usage"), ">=", _FULL), Compare(Shown("queued_requests"), ">=", _QUEUE),
            )),
            # One alert of the two suffices.
            _PREEMPTS,
        ),
        "The KV cache is full, and requests wait for room in it.",
        f"{PERCENT} of the KV cache of {WHO} are in use, and requests queue.",
        Runbook(
            f"Replicas use {_FULL:%} or more of their KV cache on average, and {_QUEUE:g} requests or more wait.",
            "New requests wait for others to end: the time to first token grows.",
            "Open this panel first, then the request rate and the input tokens per request: is there more traffic, are "
            "the prompts longer, or is the cache smaller than before? vLLM (`GPU KV cache size`), SGLang "
            "(`max_total_num_tokens`) and TensorRT-LLM log the size of the cache at their start; behind Dynamo its "
            "workers do.",
            "Add replicas; route part of the traffic to the other stack; limit the length of prompts. Do not restart "
            "replicas: their caches would be empty, and all prompts computed again. It is over when the queue is gone.",
            "A batch of offline requests sent at once.",
        ),
        "cache", "kv_cache_usage", wait="10m", keep="10m",
    ),
)  # fmt: skip
