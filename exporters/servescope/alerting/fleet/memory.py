"""The alerts on GPUs and their memory: a GPU that is gone, a KV cache without room, requests that are preempted."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.capacity import GPU, KV_MEMORY
from servescope.alerting.rules.choices import bound
from servescope.alerting.rules.records import (
    NUMBER,
    PERCENT,
    WHO,
    AdHocExpression,
    Alert,
    All,
    Any,
    Because,
    Compare,
    Except,
    FigureRef,
    FirstCheck,
    OverTime,
    Present,
    Quotient,
    Runbook,
    Subquery,
    by_cause,
    by_replica,
)
from servescope.contract.bounds import COMPARED_TRAFFIC, KV_FULL, PREEMPTED_SHARE, QUEUE_FLOOR
from servescope.contract.expressions import level, rate

_FULL: Final = bound(KV_FULL)
_PREEMPTED: Final = bound(PREEMPTED_SHARE)
_QUEUE: Final = bound(QUEUE_FLOOR)
_GPU: Final = AdHocExpression(level("gpu_memory_usage"), ("replica", "gpu"))
_PREEMPTS: Final = All((
    # What is rejected was never admitted, and would hide how often those that were are preempted.
    Compare(
        Quotient(FigureRef("preemptions_rate"), AdHocExpression(rate("requests_total", outcome="ok"))), ">", _PREEMPTED
    ),
    Compare(FigureRef("request_rate"), ">=", bound(COMPARED_TRAFFIC)),
))  # fmt: skip

_WAITS: Final = Except(
    All((
        # An engine that is full has some room for a moment whenever a request ends.
        Compare(OverTime("avg", FigureRef("kv_cache_usage"), "5m"), ">=", _FULL),
        Compare(FigureRef("queued_requests"), ">=", _QUEUE),
    )),
    # One of the two suffices.
    _PREEMPTS,
)  # fmt: skip

MEMORY_ALERTS: Final = (
    Alert(
        "ServescopeGpuGone", "warning", "engine", "memory",
        All((
            Except(Present(Subquery("max", _GPU, "6h")), Present(_GPU)),
            # A replica that is gone as a whole is another alert's.
            Present(AdHocExpression(level("concurrent_requests"), ("replica",))),
        )),
        "A replica no longer reports one of its GPUs.",
        f"GPU {{{{ $labels.gpu }}}} of replica {{{{ $labels.replica }}}} of {WHO} was read within the last 6 hours and "
        "cannot be read any more.",
        Runbook(
            "The replica is scraped, and a GPU whose memory it reported within the last 6 hours is missing: the driver "
            "has lost it, or a restarted process sees fewer GPUs.",
            "Requests on this replica hang or are slow. Most engines stop at their next step, which is a page of "
            "ServescopeUpButNotServing; others go on with what is left, more slowly.",
            "On the machine: `nvidia-smi` lists the GPU or says that it is lost, and `dmesg | grep -i xid` has the "
            "cause (fallen off the bus, an uncorrectable memory error). If all GPUs are listed, the process was "
            "restarted with fewer of them.",
            "Take the replica out of routing, drain the machine, and reset or replace the GPU.",
            "A process that was restarted on purpose with fewer GPUs.",
            FirstCheck(
                FigureRef("gpu_memory_usage"),
                "down by the memory of a GPU, at one minute.",
                "as before: the GPU is reported again.",
                _GPU,
                "Each line is a GPU of a replica: the line that ends is the GPU. Several that end at once share a "
                "machine or its power.",
                lowest=True,
            ),
            (GPU,),
            "Do not restart the engine on the same machine before that: it fails again, or starts without the GPU.",
            "Whoever owns the machines, now if several GPUs are gone, else in the morning.",
            "The GPU is reported again, or 6 hours have passed since it was.",
        ),
        "scale", "gpu_memory_usage", for_="5m", keep_firing_for="5m", panel="GPU memory",
    ),
    Alert(
        "ServescopeKvCacheFull", "warning", "engine", "memory",
        Any((Because("preempted", _PREEMPTS, "Requests preempted"), Because("waiting", _WAITS))),
        "The KV cache has no room for the requests.",
        by_cause({
            "preempted": f"For each request that is served, engines of {WHO} preempt {NUMBER} requests.",
            "waiting": f"{PERCENT} of the KV cache of {WHO} have been in use for 5 minutes, and requests queue.",
        }),
        Runbook(
            f"`preempted`: there are more than {_PREEMPTED:g} preemptions for each served request, and what was "
            f"computed for the preempted ones is computed again. `waiting`: replicas use {_FULL:%} or more of their KV "
            f"cache on average, and {_QUEUE:g} requests or more wait.",
            "Answers stop in the middle for seconds and then go on, or users wait longer for the first word: new "
            "requests wait for others to end.",
            "Open the request rate, the input tokens and the output tokens per request: is there more traffic, are "
            "prompts or answers longer than before, or is the cache smaller than before, as after a change of version "
            "or arguments?",
            "Add replicas; route part of the traffic to the other stack; limit the length of prompts at the gateway. "
            "If no replicas can be had, limit the requests that run at the same time; that takes a restart of one "
            "replica after the other.",
            "Short bursts of very long prompts, or a batch of offline requests sent at once.",
            FirstCheck(
                FigureRef("kv_cache_usage"),
                f"at {_FULL:%} or more, and level.",
                "up and down below that.",
                by_replica("kv_cache_usage"),
                "One replica alone is full: the router prefers it, or its cache is smaller. All are full: there is too "
                "little memory for the traffic.",
            ),
            (KV_MEMORY,),
            "Do not restart replicas: their caches would be empty, and all prompts computed again. Do not raise the "
            "share of GPU memory under load: the engine may run out of memory and end.",
            "Whoever owns the capacity, in the morning; now if an alert on an objective pages too and the autoscaler "
            "cannot add replicas.",
            "The queue is gone, and preemptions are rare again.",
        ),
        "cache", "kv_cache_usage", for_="10m", keep_firing_for="10m", panel="KV cache in use",
    ),
)  # fmt: skip
