"""The alerts on disaggregated serving: a phase without workers, and KV that does not get from one to the other."""

from __future__ import annotations

from typing import Final

from servescope.alerting.choices import bound
from servescope.alerting.listing import ANY_PHASE, ENGINES, NONE_WANTED_LATELY, RETIRED, target_up
from servescope.alerting.records import NUMBER, WHO, Alert, All, Compare, Except, Extreme, Runbook, Shown
from servescope.contract.bounds import COMPARED_TRAFFIC, KV_TRANSFER_TIME
from servescope.contract.expressions import Matchers
from servescope.contract.metrics import PHASES

_PHASED: Final[Matchers] = (("role", PHASES),)
_LIMIT: Final = bound(KV_TRANSFER_TIME)
_STUCK: Final = All((
    Compare(Shown("kv_transfers_pending"), ">", 0.0), Compare(Shown("kv_transfer_bytes_per_second"), "==", 0.0)
))  # fmt: skip

PHASE_ALERTS: Final = (
    Alert(
        "ServescopePhaseDown", "critical", "telemetry", "telemetry",
        Except(
            Except(
                Except(
                    Compare(Extreme("max", target_up(_PHASED), (*ANY_PHASE, "role")), "==", 0.0),
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
            "Send a request yourself. Open this panel by deployment; 0 for all workers of a role is bad. Then check "
            "one worker: is it running, and does its port answer? vLLM logs the KV connector's errors, SGLang its "
            "bootstrap server's, Dynamo workers lost leases of etcd or NATS; TensorRT-LLM context and generation "
            "servers log both sides of a transfer.",
            "Restart the workers of that phase, or roll back their last change; route the traffic to the other stack. "
            "Leave the other phase alone. It is over when one worker of the phase answers.",
            "A network policy or credentials that affect only the collector; a phase that takes longer than 5 minutes "
            "to start.",
        ),
        "health", "servescope_target_up", wait="5m", keep="5m",
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
            "Requests hang after their prompt is computed: users get at most a first token.",
            "Open this panel first, then the KV transferred: with 0 bytes per second and requests that wait it is bad; "
            "without requests that wait it is idle. Check the network between the phases (NIXL, UCX, RDMA links: "
            "`ibstat`, `ucx_info`), and whether decode workers have free KV cache. vLLM logs timeouts of its KV "
            "connector, SGLang `KVTransferError`, TensorRT-LLM errors of its cache transceiver, Dynamo those of NIXL.",
            "Restart the decode workers whose links are broken, one after the other; route the traffic to the other "
            "stack. Do not restart all prefill workers: they hold the computed prompts. Call whoever owns the "
            "network. It is over when KV is transferred and the number that waits falls.",
            "A single request with a transfer longer than 5 minutes.",
        ),
        "phases", "kv_transfers_pending", wait="5m", keep="5m",
    ),
    Alert(
        "ServescopeKvTransfersSlow", "warning", "engine", "serving",
        All((
            Compare(Shown("kv_transfer_p95"), ">", _LIMIT),
            Compare(Shown("request_rate"), ">=", bound(COMPARED_TRAFFIC)),
        )),
        "KV takes long from prefill to decode workers.",
        f"The KV transfers of {WHO} have a 95th percentile of {{{{ $value | humanizeDuration }}}}.",
        Runbook(
            f"The 95th percentile of the time that a request's KV takes from prefill to decode is above {_LIMIT:g} "
            "seconds.",
            "Users see a pause between the first token and the others.",
            "Open this panel first, then KV transfer by replica: one slow replica points to its link, all to the "
            "network or to longer prompts. UCX or NIXL that fell back to TCP log their transports at the start of the "
            "worker (vLLM, SGLang, TensorRT-LLM and Dynamo alike).",
            "Drain the worker with the slow link; restore the fast transport. Do not add decode workers: they share "
            "the network. It is over when transfers take as long as before.",
            "A larger share of very long prompts.",
        ),
        "phases", "kv_transfer_p95", wait="10m", keep="10m",
    ),
)  # fmt: skip
