"""How each alert is triggered in the running stack: by which fault, where, and with which other alerts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from alerts.alertmanager import MIGRATION_WINDOW
from servescope.alerting.alerts import ALERTS
from servescope.emulator.faults.faults import Fault, parse_fault
from tests.proofs.live import harm, judges
from tests.proofs.live.deployments import find_emulator
from tests.proofs.live.stack import LiveStack

Undo = Callable[[], None]
Make = Callable[[LiveStack], Undo]


@dataclass(frozen=True, slots=True)
class Place:
    """An alert and its deployment, "" without one."""

    alert: str
    deployment: str


@dataclass(frozen=True, slots=True)
class Episode:
    """One fault and its alerts.

    `how` describes the fault for the table. `alerts` are those it proves. `muted` are those that must fire
    in Prometheus meanwhile and reach nobody, by what holds them back: an alert, as Alertmanager names it, or the
    migration window. Each is written `ALERT`, of the episode's `deployment`, or `ALERT@DEPLOYMENT`. Times are of the
    emulated stack: how long at most until an alert fires beyond its `for`, and until it is resolved beyond its
    `keep_firing_for`. What is done `everywhere` may notify of any deployment.
    """

    lane: str
    deployment: str
    how: str
    make: Make
    alerts: tuple[str, ...]
    muted: Mapping[str, str] = field(default_factory=dict)
    fires_within: str = "45m"
    resolves_within: str = "45m"
    everywhere: bool = False

    def place(self, written: str) -> Place:
        """An alert as it is written here."""
        alert, at, deployment = written.partition("@")
        return Place(alert, deployment if at else self.deployment)

    def places(self) -> list[Place]:
        """The alerts it proves."""
        return [self.place(written) for written in self.alerts]


def faults(*texts: str, then: str = "") -> tuple[str, Make]:
    """What is said of these faults of the emulator, and how they are switched on until they are undone."""
    parsed = [parse_fault(text) for text in texts]
    words = ", ".join(f"`{text.partition('@')[0]}`" for text in texts)

    def make(stack: LiveStack) -> Undo:
        numbers = [(_emulator(fault), _switch_on(stack, fault)) for fault in parsed]

        def undo() -> None:
            for emulator, number in numbers:
                stack.emulators[emulator].switch_off(number)

        return undo

    return words + then, make


def burst(text: str, duration: str) -> tuple[str, Make]:
    """The same of one fault that is over after a while; undoing is to wait for that."""
    fault = parse_fault(text)

    def make(stack: LiveStack) -> Undo:
        _switch_on(stack, fault, seconds=stack.seconds(duration) * stack.times)
        return lambda: None

    return f"`{text.partition('@')[0]}` for {duration}", make


def _emulator(fault: Fault) -> str:
    return find_emulator(fault.deployment)


def _switch_on(stack: LiveStack, fault: Fault, *, seconds: float | None = None) -> int:
    asked = None if fault.kind.intensity is None else fault.intensity
    on = stack.emulators[_emulator(fault)].switch_on(
        fault.kind.name, asked, deployment=fault.deployment, replica=fault.replica, seconds=seconds
    )
    number: int = on["id"]
    return number


def _of_faults(
    deployment: str,
    texts: str | tuple[str, ...],
    *alerts: str,
    muted: Mapping[str, str] | None = None,
    fires_within: str = "45m",
    resolves_within: str = "45m",
    lane: str = "",
) -> Episode:
    """An episode of faults in one deployment, unless they name another place, in a lane, else that of its name."""
    listed = (texts,) if isinstance(texts, str) else texts
    how, make = faults(*(text if "@" in text else f"{text}@{deployment}" for text in listed))
    return Episode(lane or deployment, deployment, how, make, alerts, muted or {}, fires_within, resolves_within)


_CACHE: Final = (
    _of_faults("draft", "draft-misaligned:0.7", "ServescopeSpeculationBelowBreakEven"),
    _of_faults("router", "router-losing-events:0.2", "ServescopeCacheEventsMissed"),
    # One that hears nothing at all does not know that it misses something.
    _of_faults("router", "router-deaf:0.5", "ServescopeCacheEventsMissed"),
    _of_faults("churn", "cache-churn", "ServescopeCacheChurn", "ServescopeCacheHitRateDropped"),
    _of_faults("balance", "router-balances", "ServescopeRoutingInefficient"),
    _of_faults("shrink", "autoscaler-pinned:1", "ServescopeCacheHitRateDropped", resolves_within="75m"),
)

_SCALE: Final = (
    _of_faults("pinned", "autoscaler-pinned:1", "ServescopeAutoscalerPinned"),
    _of_faults(
        "slow-start", ("replica-crash-loop:1", "cold-start-slow:1000"),
        "ServescopeReplicasBelowDesired", "ServescopeColdStartSlow",
    ),
    # The same alert of two deployments: inhibited where no replica is active, and sent where one is.
    _of_faults(
        "down", ("replica-crash-loop:1000", "replica-crash-loop:1@failing"),
        "ServescopeNoActiveReplica", "ServescopeReplicasFailed@failing",
        muted=dict.fromkeys(
            ("ServescopeReplicasFailed", "ServescopeReplicasBelowDesired"), "ServescopeNoActiveReplica"
        ),
    ),
    _of_faults("frozen", "engine-frozen", "ServescopeUpButNotServing"),
    _of_faults("frozen-scaler", "autoscaler-frozen", "ServescopeAutoscalerInactive"),
    _of_faults("silent-scaler", "target-unreachable@silent-scaler/autoscaler-0", "ServescopeAutoscalerInactive"),
)  # fmt: skip

_USERS: Final = (
    _of_faults(
        "queue", "throughput-regression:0.97", "ServescopeTimeToFirstTokenBudgetBurnsFast",
        muted={"ServescopeQueueGrowing": "ServescopeTimeToFirstTokenBudgetBurnsFast"}, fires_within="75m",
        resolves_within="8h",
    ),
    _of_faults(
        "backlog", ("throughput-regression:0.97", "latency-regression:20"), "ServescopeQueueGrowing",
    ),
    _of_faults(
        "errors", "error-burst:0.2", "ServescopeRequestsBudgetBurnsFast",
        muted={"ServescopeRequestsBudgetBurns": "ServescopeRequestsBudgetBurnsFast"}, resolves_within="8h",
    ),
    _of_faults("hung-up", "client-aborts:0.7", "ServescopeClientAbortsHigh"),
    _of_faults("hanging", "requests-hang:0.15", "ServescopeRequestsHang", fires_within="75m"),
    _of_faults("brief", "answers-short:0.1", "ServescopeAnswerLengthChanged"),
    _of_faults("invalid", "client-errors:0.3", "ServescopeClientErrorsHigh"),
    _of_faults("slow-gpu", "bad-replica:4", "ServescopeReplicaDiffers", fires_within="75m"),
    _of_faults("preferred", "router-hot-spot", "ServescopeReplicaDiffers"),
    _of_faults(
        "overrun", "router-hot-spot", "ServescopeRouterHotSpot",
        muted={"ServescopeReplicaDiffers": "ServescopeRouterHotSpot"},
    ),
    Episode(
        "leaking", "leaking", "half of the requests of one replica stay in flight until it is restarted",
        lambda stack: harm.lose_requests(stack, "leaking", "engine-0"), ("ServescopeReplicaDiffers",),
    ),
    _of_faults(
        "restarting", "restarts:144@restarting/engine-0", "ServescopeReplicaDiffers", fires_within="75m",
        resolves_within="3h",
    ),
    Episode(
        "few-errors", "few-errors", *burst("error-burst:0.035@few-errors", "5m"),
        ("ServescopeRequestsBudgetBurns",), resolves_within="8h",
    ),
    _of_faults(
        "late", "latency-regression:8", "ServescopeTimeToFirstTokenBudgetBurnsFast",
        "ServescopeTimePerOutputTokenBudgetBurnsFast", resolves_within="8h",
    ),
    Episode(
        "gaps", "gaps", "the tokens of a Dynamo frontend come late", lambda stack: harm.delay_tokens(stack, "gaps"),
        ("ServescopeInterTokenLatencyBudgetBurnsFast",), resolves_within="8h",
    ),
    Episode(
        "brief-gaps", "brief-gaps", "the tokens of a Dynamo frontend come late for 3m",
        lambda stack: harm.delay_tokens(stack, "brief-gaps", "3m"), ("ServescopeInterTokenLatencyBudgetBurns",),
        resolves_within="8h",
    ),
    Episode(
        "briefly-late", "briefly-late", *burst("latency-regression:20@briefly-late", "3m"),
        ("ServescopeTimeToFirstTokenBudgetBurns", "ServescopeTimePerOutputTokenBudgetBurns"), resolves_within="8h",
    ),
    # Before the others, whose budgets burn on for hours.
    Episode(
        "pair-v2", "pair-v2", "the traffic is moved to v2 against the configured split",
        lambda stack: harm.move_traffic(stack, "pair-v2", 0.6), ("ServescopeTrafficSplitNotAsConfigured@",),
    ),
    _of_faults(
        "pair-v2", "latency-regression:2.6", "ServescopeNewStackWorse",
    ),
    _of_faults(
        "pair-v2", "error-burst:0.2", "ServescopeRequestsBudgetBurnsFast",
        muted={"ServescopeNewStackWorse": "ServescopeRequestsBudgetBurnsFast"}, resolves_within="8h",
    ),
    # A ticket waits for the end of a migration that was planned, and a page does not.
    _of_faults(
        "promoting", ("replica-crash-loop:1", "error-burst:0.3"), "ServescopeRequestsBudgetBurnsFast",
        muted={"ServescopeReplicasFailed": MIGRATION_WINDOW}, resolves_within="8h",
    ),
)  # fmt: skip

_TRAFFIC: Final = (
    # Where a model as a whole gets no requests no deployment is named, so that one has to follow the other.
    _of_faults("cut-off", "traffic-stopped", "ServescopeTrafficStopped@", lane="traffic"),
    _of_faults(
        "routerless", "router-down", "ServescopeRouterDown", lane="traffic",
        muted={"ServescopeTargetDown": "ServescopeRouterDown", "ServescopeTrafficStopped@": "ServescopeRouterDown"},
    ),
)  # fmt: skip

_MEMORY: Final = (
    _of_faults("gpu", "gpu-lost", "ServescopeUpButNotServing", "ServescopeGpuGone"),
    _of_faults("phased", "kv-transfer-slow:300", "ServescopeKvTransfersDegraded"),
    _of_faults("phased", "kv-transfer-skipped", "ServescopeKvTransfersDegraded"),
    _of_faults("phased", "target-unreachable@phased/decode-0", "ServescopePhaseDown"),
    _of_faults("stuck-kv", "kv-transfer-stuck", "ServescopeKvTransfersStuck"),
    Episode(
        "crowded", "crowded", "`traffic-surge:8` of long answers, where the cache has room for few requests",
        lambda stack: harm.surge(stack, "traffic-surge:8", "crowded"), ("ServescopeKvCacheFull",),
    ),
    Episode(
        "filled", "filled", "`traffic-surge:14` of long prompts with short answers",
        lambda stack: harm.surge(stack, "traffic-surge:14", "filled"), ("ServescopeKvCacheFull",),
        resolves_within="4h",
    ),
)  # fmt: skip

_TELEMETRY: Final = (
    _of_faults("targets", "target-unreachable@targets/engine-0", "ServescopeTargetDown"),
    _of_faults("targets", "truncated-exposition@targets/engine-0", "ServescopeTargetDown"),
    _of_faults("targets", "metric-renamed@targets/engine-0", "ServescopeMetricsMissing"),
    Episode(
        "targets", "targets", "`metric-renamed`, then `target-unreachable`, in one replica",
        lambda stack: harm.rename_then_cut_off(stack, "targets", "engine-0"),
        ("ServescopeTargetDown",), muted={"ServescopeMetricsMissing": "ServescopeTargetDown"},
    ),
    # Scraped once a minute, its targets are not found down at once: tickets may leave before the page that mutes them.
    _of_faults("dark", "target-unreachable", "ServescopeDeploymentDown"),
    Episode(
        "gone", "gone", "a list of targets is no JSON any more", lambda stack: harm.break_list(stack, "gone"),
        ("ServescopeDiscoveryFails@",),
    ),
    Episode(
        "unlisted", "unlisted", "all replicas are removed from their list",
        lambda stack: harm.stop_listing(stack, "unlisted", "engine-0", "engine-1"), ("ServescopeDeploymentGone",),
    ),
)  # fmt: skip

_SELF: Final = (
    Episode("store", "", "another program holds the store's write lock", harm.lock_store, ("ServescopeStoreBehind",)),
    Episode(
        "exporter", "", "a target exposes new series with every scrape", harm.overflow, ("ServescopeSamplesDropped",)
    ),
    Episode(
        "configuration", "", "a wrong value in the collector's configuration, then SIGHUP", harm.break_configuration,
        ("ServescopeConfigurationRefused",),
    ),
    Episode(
        "configuration", "seldom", "`max_scrapes_per_minute = 1` for eight targets of one address",
        lambda stack: harm.slow_down_scrapes(stack, "seldom"), ("ServescopeTelemetryStale",), fires_within="4h",
    ),
    Episode(
        "prometheus", "", "a key that does not exist in Prometheus' configuration, then SIGHUP", harm.break_prometheus,
        ("ServescopeAlertingConfigurationRefused",),
    ),
    Episode(
        "prometheus", "", "a rule with many-to-many matching is added to its own groups", harm.add_failing_rule,
        ("ServescopeRuleEvaluationFails",),
    ),
    Episode(
        "alertmanager", "", "a receiver that does not exist in Alertmanager's configuration, then SIGHUP",
        harm.break_alertmanager, ("ServescopeAlertingConfigurationRefused",),
    ),
    Episode(
        "prometheus", "", "a second Alertmanager that does not run is added to Prometheus' configuration",
        harm.add_dead_alertmanager, ("ServescopeNotificationsFail",),
    ),
    Episode(
        "alertmanager", "", "the receiver of the watchdog answers 403",
        lambda stack: harm.shut_receiver(stack, "watchdog"), ("ServescopeNotificationsFail",),
    ),
)  # fmt: skip

# Blocks of a judge, and how old a judgement may be, are of the wall clock.
_JUDGED: Final = (
    Episode(
        "judge", judges.NEW, "no request reaches v2 of a cutover that is judged", judges.idle_judge,
        # Up to ten minutes until the first block of five is complete.
        ("ServescopeCutoverNoData",), fires_within="5h", resolves_within="2h",
    ),
    Episode(
        "judge", judges.NEW, "v2 of a cutover that is judged cannot be scraped", judges.blind_judge,
        ("ServescopeDeploymentDown",), muted={"ServescopeCutoverNoData": "ServescopeDeploymentDown"},
        fires_within="2h", resolves_within="5h",
    ),
    Episode(
        "judge", judges.NEW, "`error-burst:0.4` in v2 of a cutover that is judged", judges.harm_cutover,
        ("ServescopeCutoverDegraded",), fires_within="5h", resolves_within="2h",
    ),
    Episode(
        "judge", judges.NEW, "the judge of a cutover is killed", judges.kill_judge, ("ServescopeJudgeGone",),
    ),
    Episode(
        "judge", judges.NEW, "another program holds the journal of a cutover", judges.lock_journal,
        ("ServescopeJudgeGone",), fires_within="9h",
    ),
)  # fmt: skip

# Lags and failures of the export are of the wall clock. The two that end its process follow the slowest of the others.
_CUSTOMERS: Final = (
    Episode(
        "refused-customer", "", "a customer's backend answers 503",
        lambda stack: harm.refuse_export(stack, "refused"), ("ServescopeCustomerExportFails",), fires_within="5h",
    ),
    Episode(
        "withheld-customer", "", "a customer's policy lists a metric that no target has, then SIGHUP",
        lambda stack: harm.withhold_export(stack, "withheld"), ("ServescopeCustomerGetsNothing",),
    ),
    Episode(
        "customers", "", "a customer's backend accepts each request after 100 s",
        lambda stack: harm.slow_down_export(stack, "slow"), ("ServescopeCustomerExportFails",), fires_within="7h",
    ),
    Episode(
        "customers", "", "a customer's backend answers 400; then the export is restarted",
        lambda stack: harm.reject_export(stack, "rejected"), ("ServescopeCustomerExportGap",),
    ),
    Episode(
        "customers", "", "the export to customers is killed", harm.kill_export, ("ServescopeCustomersExportGone",),
    ),
)  # fmt: skip

EPISODES: Final = (*_CACHE, *_SCALE, *_USERS, *_TRAFFIC, *_MEMORY, *_TELEMETRY, *_SELF, *_JUDGED, *_CUSTOMERS)
"""What is done, in the order of each lane."""

OF_ALL: Final = tuple(
    Episode(lane, "", how, make, alerts, muted=muted, everywhere=True)
    for lane, how, make, alerts, muted in (
        (
            "collector", "the collector is stopped for 0.7 s of every 1.4 s", harm.starve_collector,
            ("ServescopeEventLoopLags",), {},
        ),
        (
            "collector", "the collector is killed", harm.kill_collector, ("ServescopeFleetUnseen",),
            dict.fromkeys(("ServescopeCollectorGone", "ServescopeCollectorDown"), "ServescopeFleetUnseen"),
        ),
        (
            "alerts", "Prometheus is stopped for 3m of every 6m", harm.pause_prometheus,
            ("ServescopeRuleEvaluationFails",), {},
        ),
        (
            "lists", "all lists of targets are emptied", harm.empty_lists, ("ServescopeMostDeploymentsGone",), {},
        ),
        (
            "lists", "`target-unreachable` in all deployments", harm.cut_off_all, ("ServescopeMostDeploymentsDown",),
            {"ServescopeDeploymentDown@targets": "ServescopeMostDeploymentsDown"},
        ),
    )
)  # fmt: skip
"""Faults that affect all deployments, after all others."""

LISTED_BY_HAND: Final = ("gone", "unlisted")
"""Deployments whose list of targets nobody writes but an episode."""

NOT_SHOWN: Final[Mapping[str, str]] = {
    "ServescopeInternalErrors": "it fires on bugs in the collector, which no fault from outside triggers: invalid "
    "responses, lists, files, disks and clocks are reported otherwise",
    "ServescopeTrafficGone": "it compares with the day before, and a run is shorter than a day; "
    "ServescopeTrafficStopped is the same without it",
    "ServescopeClockOff": "all programs of a run have the clock of one machine",
    "ServescopeRequestsNotExposed": "the emulator's fault renames a latency, and no requests",
    **dict.fromkeys(
        (
            "ServescopeAgentDown", "ServescopeTranslatorDown", "ServescopeProbesFail", "ServescopeProbesRefused",
        ),
        "a collector scrapes this stack, without translators or agents",
    ),
}  # fmt: skip
"""Alerts without an episode, with the reason."""


def without_episode() -> list[str]:
    """The alerts that no episode causes or mutes, that do not always fire, and of which no reason is given."""
    every = (*EPISODES, *OF_ALL)
    caused = {place.alert for each in every for place in each.places()}
    muted = {each.place(written).alert for each in every for written in each.muted}
    return [
        name
        for name, alert in ALERTS.items()
        if name not in caused | muted | NOT_SHOWN.keys() and alert.severity != "none"
    ]
