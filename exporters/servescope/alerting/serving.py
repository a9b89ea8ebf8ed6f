"""The alerts on engines that do not keep up."""

from __future__ import annotations

from typing import Final

from servescope.alerting.choices import bound
from servescope.alerting.records import NUMBER, WHO, Alert, All, Compare, Measured, Over, Runbook, Shown
from servescope.contract.bounds import QUEUE_FLOOR
from servescope.contract.expressions import level, rate

_QUEUED: Final = Shown("queued_requests")
_FLOOR: Final = bound(QUEUE_FLOOR)

SERVING_ALERTS: Final = (
    Alert(
        "ServescopeUpButNotServing", "critical", "engine", "serving",
        All((
            Compare(Measured(level("concurrent_requests"), ("replica",)), ">", 0.0),
            Compare(Measured(rate("output_tokens_total"), ("replica",)), "==", 0.0),
            Compare(Measured(rate("input_tokens_total"), ("replica",)), "==", 0.0),
        )),
        "A replica accepts requests but processes no tokens.",
        f"Replica {{{{ $labels.replica }}}} of {WHO} has {NUMBER} requests in flight and processes no tokens.",
        Runbook(
            "The replica answers scrapes and health checks and has requests in flight, but reads no prompt tokens and "
            "writes no output tokens.",
            "Its requests hang until they time out, and the router keeps sending more.",
            "Check its log and its GPU for a blocked collective operation, a lost device or a deadlock.",
            "Remove it from routing and restart it; save a dump of its stacks first.",
            "An engine that reports its tokens only at the end of a request, on requests longer than 10 minutes.",
        ),
        "requests", "concurrent_requests", wait="5m", keep="5m", panel="Up but not serving",
    ),
    Alert(
        "ServescopeQueueGrowing", "warning", "engine", "serving",
        All((
            Compare(_QUEUED, ">", Over("avg", _QUEUED, "5m", before="10m")),
            Compare(_QUEUED, ">=", _FLOOR),
        )),
        "Requests arrive faster than they are served.",
        f"{WHO} has {NUMBER} queued requests, more than 10 minutes ago.",
        Runbook(
            f"The queue has {_FLOOR:g} requests or more and keeps growing.",
            "The time to first token grows until requests are rejected or time out.",
            "Compare the request rate, batch size and KV cache usage with earlier: is there more traffic, or do the "
            "engines serve less?",
            "Add replicas; follow the alerts on the autoscaler if it does not.",
            "A batch of offline requests sent at once.",
        ),
        "requests", "queued_requests", wait="15m", keep="5m",
    ),
)  # fmt: skip
