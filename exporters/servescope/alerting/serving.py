"""The alerts on engines that do not keep up."""

from __future__ import annotations

from typing import Final

from servescope.alerting.choices import bound
from servescope.alerting.listing import ENGINES, scrape_age
from servescope.alerting.records import (
    NUMBER,
    WHO,
    Alert,
    All,
    Any,
    Compare,
    Except,
    Extreme,
    Measured,
    Over,
    Runbook,
    Scaled,
    Shown,
)
from servescope.contract.bounds import QUEUE_FLOOR, QUEUE_SHARE, SERVING_AGE
from servescope.contract.expressions import level, rate
from servescope.contract.identity import DEPLOYMENT_LABELS

_QUEUED: Final = Shown("queued_requests")
_FLOOR: Final = bound(QUEUE_FLOOR)
_FRESH: Final = bound(SERVING_AGE)
_SHARE: Final = bound(QUEUE_SHARE)

SERVING_ALERTS: Final = (
    Alert(
        "ServescopeUpButNotServing", "critical", "engine", "serving",
        Except(
            All((
                Compare(Measured(level("concurrent_requests"), ("replica",)), ">", 0.0),
                Compare(Measured(rate("output_tokens_total"), ("replica",)), "==", 0.0),
                Compare(Measured(rate("input_tokens_total"), ("replica",)), "==", 0.0),
            )),
            # Counters that are not read do not move either.
            Compare(Extreme("min", scrape_age(ENGINES), (*DEPLOYMENT_LABELS, "replica")), ">", _FRESH),
        ),
        "A replica accepts requests but processes no tokens.",
        f"Replica {{{{ $labels.replica }}}} of {WHO} has {NUMBER} requests in flight and processes no tokens.",
        Runbook(
            "The replica answers scrapes and health checks and has requests in flight, but reads no prompt tokens and "
            f"writes no output tokens. It is judged only by scrapes of the last {_FRESH:g} seconds: a target that is "
            "scraped more seldom, as by a limit of scrapes per minute, cannot fire it.",
            "Its requests hang until they time out, and the router keeps sending more.",
            "Open this panel first, by deployment; each line is a replica that hangs, with its requests "
            "in flight; no line is good. Check the replica's log and its GPU (`nvidia-smi`, `dmesg | grep -i xid`) for "
            "a lost device, a blocked collective operation or a deadlock. vLLM logs `EngineDeadError` or a watchdog "
            "of NCCL, SGLang a `Watchdog timeout`, TensorRT-LLM a hang detector of its executor, a Dynamo worker "
            "lost leases.",
            "Remove the replica from routing first, then save a dump of its stacks (`py-spy dump --pid`), then "
            "restart it. Leave the other replicas alone, they serve. If several replicas hang at "
            "once, call whoever owns the GPUs and the network. It is over when the replica's output tokens per second "
            "are above 0.",
            "An engine that reports its tokens only at the end of a request, on requests longer than 10 minutes.",
        ),
        "requests", "concurrent_requests", wait="5m", keep="5m", panel="Up but not serving",
    ),
    Alert(
        "ServescopeQueueGrowing", "warning", "engine", "serving",
        All((
            Compare(_QUEUED, ">=", _FLOOR),
            Any((
                Compare(_QUEUED, ">", Over("avg", _QUEUED, "5m", before="10m")),
                # A queue that has stopped growing is as long as before, and everybody waits for all of it.
                Compare(_QUEUED, ">", Scaled(Shown("concurrent_requests"), _SHARE)),
            )),
        )),
        "Requests arrive faster than they are served.",
        f"{WHO} has {NUMBER} queued requests: more than 10 minutes ago, or more than {_SHARE:%} of all in flight.",
        Runbook(
            f"The queue has {_FLOOR:g} requests or more, and it keeps growing or is more than {_SHARE:%} of all "
            "requests in flight, so that it does not drain.",
            "The time to first token grows until requests are rejected or time out.",
            "Compare the request rate, batch size and KV cache usage with earlier: is there more traffic, or do the "
            "engines serve less?",
            "Add replicas; follow the alerts on the autoscaler if it does not.",
            "A batch of offline requests sent at once. Dynamo's frontend counts a request as queued until its first "
            "token: prompts that take longer than their answers look like a queue there; raise queue_share.",
        ),
        "requests", "queued_requests", wait="15m", keep="5m",
    ),
)  # fmt: skip
