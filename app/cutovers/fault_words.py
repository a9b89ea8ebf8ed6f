"""What a person calls a fault, in which unit it is dosed, and which alerts to expect of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class FaultWords:
    """A kind of fault: its readable name, and the alerts that it causes in the end where it is bad enough."""

    title: str
    alerts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dose:
    """The unit of an intensity: what is shown is the intensity × `factor`, with `sign` behind it."""

    sign: str
    factor: float = 1.0

    def describe(self, intensity: float) -> str:
        """An intensity as a person says it: `70 %`, `4 ×`."""
        return f"{intensity * self.factor:g} {self.sign}"


WORDS: Final[Mapping[str, FaultWords]] = {
    "draft-misaligned": FaultWords("Draft no longer fits the model", ("ServescopeSpeculationBelowBreakEven",)),
    "draft-late-positions": FaultWords("Late draft positions are refused"),
    "router-deaf": FaultWords(
        "Router hears no cache events", ("ServescopeCacheEventsMissed",)
    ),
    "router-losing-events": FaultWords("Router loses cache events", ("ServescopeCacheEventsMissed",)),
    "cache-churn": FaultWords("Cache churns", ("ServescopeCacheChurn", "ServescopeCacheHitRateDropped")),
    "router-balances": FaultWords("Router trades hits for balance", ("ServescopeRoutingInefficient",)),
    "router-hot-spot": FaultWords("Router prefers one replica", ("ServescopeRouterHotSpot",)),
    "router-down": FaultWords("Router is down", ("ServescopeRouterDown",)),
    "autoscaler-pinned": FaultWords("Autoscaler is pinned to a bound", ("ServescopeAutoscalerPinned",)),
    "autoscaler-frozen": FaultWords("Autoscaler reads no load", ("ServescopeAutoscalerInactive",)),
    "orchestrator-stuck": FaultWords("Orders of replicas are not carried out"),
    "cold-start-slow": FaultWords("Replicas start slowly", ("ServescopeColdStartSlow",)),
    "replica-crash-loop": FaultWords("Replicas crash again and again", ("ServescopeReplicasFailed",)),
    "restarts": FaultWords("Replicas restart several times a day"),
    "engine-frozen": FaultWords("Engine is up and not serving", ("ServescopeUpButNotServing",)),
    "gpu-lost": FaultWords("GPU is lost", ("ServescopeGpuGone", "ServescopeUpButNotServing")),
    "latency-regression": FaultWords(
        "Every step takes longer",
        ("ServescopeTimeToFirstTokenBudgetBurnsFast", "ServescopeTimePerOutputTokenBudgetBurnsFast"),
    ),
    "throughput-regression": FaultWords(
        "Fewer requests at a time", ("ServescopeQueueGrowing", "ServescopeTimeToFirstTokenBudgetBurnsFast")
    ),
    "error-burst": FaultWords("Requests fail", ("ServescopeRequestsBudgetBurnsFast",)),
    "requests-hang": FaultWords("Requests hang", ("ServescopeRequestsHang",)),
    "requests-lost": FaultWords("Requests leak", ("ServescopeRequestsHang",)),
    "client-errors": FaultWords("Requests are refused as mistakes", ("ServescopeClientErrorsHigh",)),
    "client-cuts": FaultWords("Streams are cut", ("ServescopeClientAbortsHigh",)),
    "answers-short": FaultWords("All answers end early", ("ServescopeAnswerLengthChanged",)),
    "answers-truncated": FaultWords("Some answers end early"),
    "tail-slow": FaultWords("Few requests are slow"),
    "gpu-waste": FaultWords("More GPUs for the same service"),
    "kv-creep": FaultWords("KV cache leaks", ("ServescopeKvCacheFull",)),
    "bad-replica": FaultWords("One slow replica", ("ServescopeReplicaDiffers",)),
    "tenant-slow": FaultWords("One slow tenant"),
    "kv-transfer-slow": FaultWords("KV transfers take longer", ("ServescopeKvTransfersDegraded",)),
    "kv-transfer-stuck": FaultWords("KV transfers never end", ("ServescopeKvTransfersStuck",)),
    "kv-transfer-skipped": FaultWords("No KV is sent", ("ServescopeKvTransfersDegraded",)),
    "client-aborts": FaultWords("Clients hang up", ("ServescopeClientAbortsHigh",)),
    "prompt-mix-shift": FaultWords("Prompts share nothing"),
    "traffic-surge": FaultWords("Many more clients", ("ServescopeKvCacheFull",)),
    "traffic-stopped": FaultWords("Requests no longer arrive", ("ServescopeTrafficStopped",)),
    "target-unreachable": FaultWords(
        "Scrapes are refused", ("ServescopeTargetDown", "ServescopeDeploymentDown")
    ),
    "slow-exposition": FaultWords("Scrapes are answered late", ("ServescopeTargetDown",)),
    "truncated-exposition": FaultWords("Scrapes end in the middle", ("ServescopeTargetDown",)),
    "counters-reset": FaultWords("Processes restart in turn"),
    "metric-renamed": FaultWords("A metric is renamed", ("ServescopeMetricsMissing",)),
    "clock-skew": FaultWords("Timestamps of a wrong clock"),
    "scrape-duplicates": FaultWords("Series are exposed twice"),
}  # fmt: skip
"""Every kind of fault."""

_DOSES: Final[Mapping[str, Dose]] = {
    "share": Dose("%", 100.0), "times": Dose("×"), "seconds": Dose("s"), "replicas": Dose("replicas"),
    "restarts": Dose("a day"),
}  # fmt: skip


def title_of(kind: str) -> str:
    """What a person calls a kind of fault."""
    return WORDS[kind].title


def dose_of(meaning: str) -> Dose:
    """The unit of an intensity, by the first word of what it means."""
    return _DOSES[meaning.split()[0]]
