"""The alerts on disaggregated serving: a phase without workers, and KV that does not get from one to the other."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.failures import UNREACHABLE
from servescope.alerting.playbooks.routing import KV_TRANSFER
from servescope.alerting.rules.choices import bound, in_words
from servescope.alerting.rules.listing import (
    ANY_PHASE,
    ENGINES,
    NONE_WANTED_LATELY,
    RETIRED,
    START_GRACE,
    starting,
    target_up,
)
from servescope.alerting.rules.records import (
    NUMBER,
    WHO,
    Alert,
    All,
    Any,
    Because,
    Compare,
    Except,
    Extreme,
    FigureRef,
    FirstCheck,
    OverTime,
    Runbook,
    Scaled,
    an_hour_ago,
    by_cause,
    by_replica,
)
from servescope.contract.bounds import COMPARED_TRAFFIC, KV_TRANSFER_TIME, SAME_TRAFFIC
from servescope.contract.expressions import Matchers
from servescope.contract.metrics import PHASES

_PHASED: Final[Matchers] = (("role", PHASES),)
_PHASES_UP: Final = Extreme("max", target_up(_PHASED), (*ANY_PHASE, "role"))
_LIMIT: Final = bound(KV_TRANSFER_TIME)
_SAME: Final = bound(SAME_TRAFFIC)
_MOVED: Final = FigureRef("kv_transfer_bytes_per_second")
_RATE: Final = FigureRef("request_rate")
_STUCK: Final = All((Compare(FigureRef("kv_transfers_pending"), ">", 0.0), Compare(_MOVED, "==", 0.0)))
_SLOW: Final = All((
    Compare(FigureRef("kv_transfer_p95"), ">", _LIMIT), Compare(_RATE, ">=", bound(COMPARED_TRAFFIC)),
))  # fmt: skip
_NONE: Final = All((
    Compare(OverTime("max", _MOVED, "10m"), "==", 0.0),
    Compare(OverTime("max", _MOVED, "6h"), ">", 0.0),
    # Requests are answered as before: what is no longer sent is computed again.
    Compare(_RATE, ">=", Scaled(an_hour_ago(_RATE), _SAME)),
    Compare(_RATE, ">=", bound(COMPARED_TRAFFIC)),
))  # fmt: skip

PHASE_ALERTS: Final = (
    Alert(
        "ServescopePhaseDown", "critical", "telemetry", "telemetry",
        Except(
            Except(
                Except(
                    Except(Compare(_PHASES_UP, "==", 0.0), starting(_PHASES_UP, "3h")),
                    # With both phases down another alert pages.
                    Compare(Extreme("max", target_up(ENGINES), ANY_PHASE), "==", 0.0),
                ),
                NONE_WANTED_LATELY,
            ),
            RETIRED,
        ),
        "No worker of one phase of a disaggregated deployment can be scraped.",
        f"The scrapes of all {{{{ $labels.role }}}} workers of {WHO} fail, while workers of the other phase answer.",
        Runbook(
            "Prefill and decode are served by workers of their own. The scrapes of every listed worker of one phase "
            "fail: without it no request can be served, however healthy the other phase is.",
            "Most likely every request fails, or hangs after its prompt is computed.",
            "Send a request yourself. Then check one worker of the phase: does it run, does its port answer, and what "
            "are the last lines of its log?",
            "Restart the workers of that phase, or roll back their last change; route the traffic to the other stack.",
            "A network policy or credentials that affect only the collector; a new phase that takes longer than "
            f"{in_words(START_GRACE)} to start. ServescopeTargetDown then names each worker.",
            FirstCheck(
                _PHASES_UP,
                "0 for one of the two roles.",
                "neither role is at 0.",
                target_up(_PHASED),
                "Each line is a worker. All of a role at 0 at the same minute: a change, or what they share.",
                lowest=True,
            ),
            (UNREACHABLE,),
            "Leave the other phase alone: its workers are healthy, and prefill workers hold computed prompts.",
            "The owner of the deployment, now, if no worker of the phase comes up again.",
            "One worker of the phase answers, and a request of yours is answered.",
        ),
        "health", "servescope_target_up", for_="5m", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeKvTransfersStuck", "critical", "engine", "serving",
        _STUCK,
        "No KV gets from prefill to decode workers.",
        f"The computed prompts of {NUMBER} requests of {WHO} wait for their transfer to decode workers, and nothing is "
        "transferred.",
        Runbook(
            "Prompts are computed and wait at prefill workers, and not one byte of KV has reached a decode worker "
            "within 5 minutes.",
            "Requests hang after their prompt is computed: users get at most a first word.",
            "Compare with the KV transferred: requests that wait at 0 bytes per second are stuck. Check the network "
            "between the phases (RDMA links: `ibstat`, `ucx_info`), and whether decode workers have free KV cache.",
            "Restart the decode workers whose links are broken, one after the other; route the traffic to the other "
            "stack.",
            "A single request with a transfer longer than 5 minutes.",
            FirstCheck(
                FigureRef("kv_transfers_pending"),
                "level or rising.",
                "falling, or nothing waits.",
                by_replica("kv_transfers_pending"),
                "One prefill worker alone: its link. All: the network, or decode workers that accept nothing.",
            ),
            (KV_TRANSFER,),
            "Do not restart all prefill workers: they hold the computed prompts.",
            "Whoever owns the network, now.",
            "KV is transferred, and the number that waits falls.",
        ),
        "phases", "kv_transfers_pending", for_="5m", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeKvTransfersDegraded", "warning", "engine", "serving",
        Any((Because("slow", _SLOW), Because("none", _NONE, "No KV transferred"))),
        "KV takes long from prefill to decode workers, or is computed twice.",
        f"The KV transfers of {WHO} " + by_cause({
            "slow": "have a 95th percentile of {{ $value | humanizeDuration }}.",
            "none": "have stopped, while requests are answered at about the rate of an hour ago.",
        }),
        Runbook(
            "`slow`: the 95th percentile of the time that a request's KV takes from prefill to decode is above "
            f"{_LIMIT:g} seconds. `none`: for 10 minutes no byte of KV was transferred, as was within 6 hours, and "
            f"there are at least {_SAME:%} as many requests as in the hour that ended 30 minutes ago.",
            "Users see a pause between the first word and the others. `none`: decode workers compute the prompts "
            "again, which costs the GPUs twice the work, and slows down the answers of others on them.",
            "`slow`: is the network shared with something new, such as a copy of weights? Did a worker fall back from "
            "RDMA to TCP? Workers log their transports at their start. Are prompts longer than before? `none`: "
            "compare the router's or proxy's version with the workers': does it still pass the parameters of the "
            "transfer, from the prefill worker's answer to the decode worker? Does the log of a decode worker name "
            "requests without them, or a connector that failed to start?",
            "`slow`: drain the worker with the slow link; restore the fast transport. `none`: roll back the last "
            "change of proxy, router or workers.",
            "A larger share of very long prompts; a router that sends short prompts to decode workers on purpose, "
            "while there are only such.",
            FirstCheck(
                FigureRef("kv_transfer_p95"),
                "up by a step, and level since; without a line nothing is transferred.",
                "up together with the input tokens per request: the prompts are longer.",
                by_replica("kv_transfer_p95"),
                "One slow replica points to its link, all of them to the network, the proxy or longer prompts.",
            ),
            (KV_TRANSFER,),
            "Do not add decode workers: they share the network, and would compute prompts twice as well.",
            "Whoever owns the network or the proxy, in the morning; now if transfers keep getting slower.",
            "Transfers take as long as before.",
        ),
        "phases", "kv_transfer_p95", for_="10m", keep_firing_for="10m",
    ),
)  # fmt: skip
