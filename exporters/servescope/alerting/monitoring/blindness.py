"""The alert on a fleet of which too little is seen: targets whose scrapes fail, and those that nothing scrapes."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.failures import UNREACHABLE
from servescope.alerting.rules import records
from servescope.alerting.rules.choices import bound, in_words
from servescope.alerting.rules.listing import (
    ANY_PHASE,
    ENGINES,
    RETIRED,
    SENT,
    START_GRACE,
    TARGET_STARTING,
    target_up,
    unseen,
)
from servescope.contract.bounds import FAILING_TARGETS, SEEN_SHARE
from servescope.contract.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS
from servescope.contract.own_metrics import UNSEEN_SERIES

_UP: Final = records.Extreme("max", target_up(), IDENTITY_LABELS)
_COUNTED_UP: Final = records.SelfMetric("servescope_targets", (*DEPLOYMENT_LABELS, "health"), (("health", ("up",)),))

_FAILING: Final[records.Condition] = records.Except(
    records.Except(
        records.Except(
            records.Except(records.Compare(_UP, "==", 0.0), TARGET_STARTING),
            # A deployment without an engine that answers has a page of its own, unless it may be so.
            records.Compare(records.Extreme("max", target_up(ENGINES), ANY_PHASE), "==", 0.0),
        ),
        RETIRED,
    ),
    # Listed are more than the autoscaler wants: a scale-down that the list does not know of.
    records.Compare(SENT, "<=", _COUNTED_UP),
)
"""A target whose scrapes fail though its deployment needs it, and serves."""

_SEVERAL_FAIL: Final = records.All((_FAILING, records.Compare(records.Count(_FAILING), ">=", bound(FAILING_TARGETS))))

_NOT_SEEN: Final = records.Any((_SEVERAL_FAIL, records.Present(unseen())))
_EXPECTED: Final = records.Any((records.Compare(_UP, "==", 1.0), _NOT_SEEN))
SEEN: Final[records.Term] = records.Shifted(
    records.Scaled(records.Quotient(records.Count(_NOT_SEEN), records.Count(_EXPECTED)), -1.0), 1.0
)
"""The share of targets that are seen, of those that ought to be; absent while all are."""

_LEAST: Final = bound(SEEN_SHARE)

FLEET_UNSEEN: Final = "ServescopeFleetUnseen"
"""The page on a fleet of which too little is seen."""

BLINDNESS_ALERTS: Final = (
    records.Alert(
        FLEET_UNSEEN, "critical", "telemetry", "telemetry",
        records.Compare(SEEN, "<", _LEAST),
        "Too few targets are seen.",
        f"Only {records.PERCENT} of the targets are seen: totals lack the others, and alerts on them cannot fire.",
        records.Runbook(
            f"Fewer than {_LEAST:%} of the targets that ought to be are seen. Either nothing asks the others any more, "
            "as their agent, translator or collector is dead, or their scrapes fail one by one in deployments that "
            "still serve. A target counts until an hour after it was last scraped, and as long as an agent or a "
            "collector is down; one that left the lists does not count, nor does one whose whole deployment is down, "
            "which has a page of its own. One page replaces the tickets on agents, translators, collectors and single "
            "targets.",
            "Nothing by itself. Every total is too low by the unseen part, ratios and latencies are those of the other "
            "targets, and nobody is notified of what happens to the unseen ones. An autoscaler that reads these totals "
            "may scale down.",
            "The notification lists the parts of the monitoring that do not answer. If it lists none, "
            f"`{UNSEEN_SERIES}` by `why` says what is missing, and the Sources page of the console the error of "
            "targets whose scrapes fail.",
            "Start what is dead: an agent sends what its log on disk still holds, a translator keeps nothing, a "
            "collector goes on with its store. If nothing is dead, restore what the targets share: a network, a "
            "certificate, credentials. Until then read totals as those of the share that is seen.",
            "Replicas that were stopped by hand and are still listed, where no autoscaler says how many are wanted; "
            f"many new ones at once that take longer than {in_words(START_GRACE)} to start.",
            records.FirstCheck(
                SEEN,
                f"below {_LEAST:%}, since one minute.",
                "absent: every target is seen.",
                records.Extreme("min", target_up(), ANY_PHASE),
                "Each line is a deployment; 0 has a target whose scrapes fail. One without a line is not scraped at "
                "all.",
                lowest=True,
            ),
            (UNREACHABLE,),
            "Do not restart engines: they were not asked. Do not change how many agents there are meanwhile: each "
            "would get other targets.",
            "Whoever runs the agents, translators and collectors, now; whoever owns the network if none of them is "
            "down.",
            "No target is unseen, and five minutes later totals are whole.",
        ),
        "health", "servescope_targets", for_="3m", keep_firing_for="5m", panel="Targets by health",
        waits_less="it must be known before the tickets and pages that it replaces, and before whole windows of totals "
        "are too low",
    ),
)  # fmt: skip
