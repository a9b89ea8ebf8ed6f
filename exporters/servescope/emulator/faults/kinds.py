"""The kinds of faults: what each does at which intensity, where it can be, and what it makes true."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

from servescope.contract.bands import EFFICIENCY_BAND, SKEW_BAND, SPECULATION_BAND
from servescope.contract.identity import Role
from servescope.emulator.effects import (
    DeploymentEffects,
    EngineEffects,
    ExpositionEffects,
    RouterEffects,
    TrafficEffects,
)
from servescope.emulator.faults.composition import Effects
from servescope.emulator.faults.truths import DUPLICATES, TARGETS_UP, Truth
from servescope.emulator.router.configuration import KvRouterParameters
from servescope.errors import UsageError, suggest

Scope = Literal["stack", "deployment", "replica"]

_ANYWHERE: Final[tuple[Scope, ...]] = ("stack", "deployment", "replica")
_DEPLOYMENTS: Final[tuple[Scope, ...]] = ("stack", "deployment")
_STACK: Final[tuple[Scope, ...]] = ("stack",)
DRAFT: Final = "speculation"
KV_ROUTER: Final = "KV-aware router"
SCALES_BY_TOKENS: Final = "token-based autoscaler"
KV_TRANSFER: Final = "KV transfer between prefill and decode workers"
_UNREACHED: Final = Effects(deployment=DeploymentEffects(unreachable=True))
_WEIGHT: Final = KvRouterParameters().router_overlap_score_weight
# Edges of the catalog's bands, which alerts and panels have too.
_TUNE_FROM: Final = SPECULATION_BAND.steps[0].start
_CHURN_FROM: Final = SKEW_BAND.steps[-1].start
_EFFICIENT_FROM: Final = EFFICIENCY_BAND.steps[0].start


@dataclass(frozen=True, slots=True)
class Intensity:
    """How bad a fault of a kind can be: a number within both ends, of which `meaning` says what it is."""

    meaning: str
    default: float
    lowest: float
    highest: float
    whole: bool = False

    def check(self, kind: str, value: object) -> float:
        """The value as a number; raises UsageError when it is none or out of range."""
        # Comparing refuses what is not finite, too, and takes integers that no float can hold.
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not self.lowest <= value <= self.highest or (self.whole and value != int(value)):  # type: ignore[operator, call-overload] # a number
            expected = "a whole number" if self.whole else "a number"
            raise UsageError(
                f"intensity of {kind!r} is {value!r}, expected {expected} from {self.lowest:g} to {self.highest:g}: "
                f"{self.meaning}"
            )
        return float(value)  # type: ignore[arg-type] # a number


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault.

    `summary` says what is wrong. `effects` and `truths` are functions of the intensity, which is 1 for a kind that has
    none. `part` is what a deployment must have for the fault to be in it, "" when all have it. Only the expositions of
    targets with the `role` are wrong, where one is given. In a scope of several replicas a fault with `one_replica` is
    in the oldest active one of each deployment.
    `needs` are the circumstances in which its truths show, "" when the demo's traffic is enough, and
    `shows_after_seconds` how long the emulated stack and a window of one minute take to show them.
    """

    name: str
    summary: str
    intensity: Intensity | None
    effects: Callable[[float], Effects]
    truths: Callable[[float], tuple[Truth, ...]]
    scopes: tuple[Scope, ...] = _ANYWHERE
    one_replica: bool = False
    part: str = ""
    role: Role | Literal[""] = ""
    needs: str = ""
    shows_after_seconds: float = 90.0

    def choose_intensity(self, wanted: object) -> float:
        """The intensity wanted, the default for None; raises UsageError when the kind does not take it."""
        if self.intensity is None:
            if wanted is not None:
                raise UsageError(f"fault {self.name!r} has no intensity, got {wanted!r}")
            return 1.0
        return self.intensity.default if wanted is None else self.intensity.check(self.name, wanted)


def find_kind(name: str) -> FaultKind:
    """The kind of this name; raises UsageError that names the nearest, and all."""
    kind = KINDS.get(name)
    if kind is None:
        near = suggest(name, KINDS)
        raise UsageError(f"unknown fault {name!r}, {near}{' ' if near else ''}supported: {', '.join(KINDS)}")
    return kind


def describe_kind(kind: FaultKind) -> dict[str, object]:
    """A kind of fault for machines and for the pages that list it, with its truths at the default intensity."""
    intensity = kind.intensity
    return {
        "name": kind.name,
        "group": next(group for group, kinds in GROUPS.items() if kind in kinds),
        "summary": kind.summary,
        "scopes": list(kind.scopes),
        "one_replica": kind.one_replica,
        "part": kind.part or None,
        "needs": kind.needs or None,
        "intensity": None if intensity is None else asdict(intensity),
        "truths": [truth.as_json() for truth in kind.truths(kind.choose_intensity(None))],
    }


def _share(meaning: str, default: float, lowest: float = 0.01, highest: float = 1.0) -> Intensity:
    return Intensity(meaning, default, lowest, highest)


def _from(intensity: float, least: float, *truths: Truth) -> tuple[Truth, ...]:
    """The truths, where the intensity is at least that."""
    return truths if intensity >= least else ()


def _unmoved(figure: str) -> Truth:
    return Truth(figure, above_times=0.6, below_times=1.6, unmoved=True)


_FEW_ERRORS: Final = Truth("request_error_share", below=0.05, unmoved=True)

_SPECULATION: Final = (
    FaultKind(
        "draft-misaligned",
        "The draft no longer fits the model, as after a change of weights on one side only: every draft position is "
        "accepted less often.",
        _share("share by which the chance of every draft position falls", 0.7),
        lambda share: Effects(engine=EngineEffects(acceptance_factors=(1 - share,))),
        # Every position is reached through the first, so the rate falls at least by its share.
        lambda share: (
            Truth("speculation_rate", below_times=1.05 * (1 - share) + 0.01),
            *_from(share, 0.6, Truth("speculation_rate", below=_TUNE_FROM)),
        ),
        part=DRAFT,
    ),
    FaultKind(
        "draft-late-positions",
        "The first draft position is accepted as often as before, later ones less: drafts are too long for the head.",
        _share("share by which the chance of every draft position after the first falls", 0.8),
        lambda share: Effects(engine=EngineEffects(acceptance_factors=(1.0, 1 - share))),
        # What the first position brings stays, whatever becomes of the others.
        lambda share: (Truth("speculation_rate", above_times=0.2, below_times=1 - 0.4 * share),),
        part=DRAFT,
    ),
)  # fmt: skip

_ROUTING: Final = (
    FaultKind(
        "router-deaf",
        "The workers' cache events do not reach the router, which does not notice: its index holds what was cached "
        "when they stopped.",
        _share("share of the events that never arrive; at 1 there is no gap to detect", 1.0),
        lambda share: Effects(router=RouterEffects(event_loss_share=share, recovers=False)),
        lambda share: (
            *_from(
                share,
                0.9,
                Truth("kv_cache_hit_rate_skew", below=-0.10),
                Truth("kv_cache_best_prefix_hit_rate", below_times=0.8),
            ),
            *((Truth("router_event_gap_rate", above=0.2 * share),) if share < 1 else ()),
        ),
        scopes=_DEPLOYMENTS,
        part=KV_ROUTER,
        shows_after_seconds=240.0,
    ),
    FaultKind(
        "router-losing-events",
        "Some of the workers' cache events get lost; the router sees the gaps and asks the workers again.",
        _share("share of the events that never arrive", 0.2, highest=0.95),
        lambda share: Effects(router=RouterEffects(event_loss_share=share)),
        lambda share: (Truth("router_event_gap_rate", above=0.2 * share),),
        scopes=_DEPLOYMENTS,
        part=KV_ROUTER,
    ),
    FaultKind(
        "cache-churn",
        "Cached blocks are lost between the router's prediction and the service, and workers publish no event of it: a "
        "router that follows them, here or outside, sends requests to workers whose cache no longer has their prefix.",
        _share("share of the idle cached blocks that is lost each second", 0.1),
        lambda share: Effects(engine=EngineEffects(churn_share=share, removals_lost=True)),
        lambda share: (
            *(
                _from(
                    share,
                    0.05,
                    Truth("kv_cache_hit_rate_skew", above=_CHURN_FROM),
                    Truth("kv_cache_hit_rate", below_times=0.6),
                )
                or (Truth("kv_cache_hit_rate_skew", above=0.05), Truth("kv_cache_hit_rate", below_times=0.9))
            ),
            Truth("kv_cache_hit_rate_efficiency", below=_EFFICIENT_FROM),
        ),
        scopes=_DEPLOYMENTS,
        part=KV_ROUTER,
    ),
    FaultKind(
        "router-balances",
        "The router trades cache hits for an even load: its overlap weight is lower than configured, its temperature "
        "higher.",
        _share("share of the documented overlap weight that is gone; the temperature becomes this number", 1.0),
        lambda share: Effects(
            router=RouterEffects(overlap_score_weight=_WEIGHT * (1 - share), temperature=share)
        ),
        lambda share: _from(share, 0.8, Truth("kv_cache_hit_rate_efficiency", below=_EFFICIENT_FROM)),
        scopes=_DEPLOYMENTS,
        part=KV_ROUTER,
    ),
    FaultKind(
        "router-hot-spot",
        "The router sends requests to one replica of several, the one it has known for longest, whatever its load.",
        _share("share of the requests that go there; the others go where they would have gone", 1.0, lowest=0.1),
        lambda share: Effects(router=RouterEffects(hot_share=share)),
        lambda share: (
            *_from(share, 0.5, Truth("time_to_first_token_mean", above_times=1.5)),
            *_from(share, 0.9, Truth("request_rejected_share", above=0.1)),
        ),
        scopes=_DEPLOYMENTS,
        needs="traffic that is too much for one replica",
        shows_after_seconds=120.0,
    ),
    FaultKind(
        "router-down",
        "The router no longer answers, neither clients nor scrapes; the engines behind it are healthy and idle.",
        None,
        lambda _: replace(_UNREACHED, exposition=ExpositionEffects(unreachable=True)),
        lambda _: (Truth("request_rate", below_times=0.2), Truth(TARGETS_UP, above=0.01, below=0.99)),
        scopes=_DEPLOYMENTS,
        role="router",
    ),
)  # fmt: skip

_SCALING: Final = (
    FaultKind(
        "autoscaler-pinned",
        "The autoscaler may not go above a bound that is too low for the load.",
        Intensity("replicas (or replication units) it may have at most", 1, 1, 1000, whole=True),
        lambda bound: Effects(deployment=DeploymentEffects(max_replica=int(bound))),
        lambda bound: (
            Truth("autoscaler_desired_scale", above=bound, unmoved=True),
            Truth("autoscaler_rounded_desired_scale", below=bound + 0.5),
            Truth("replica_count_by_status", {"status": "active"}, below=bound + 0.5),
        ),
        scopes=_DEPLOYMENTS,
        needs="load that wants more than the bound",
        shows_after_seconds=180.0,
    ),
    FaultKind(
        "autoscaler-frozen",
        "The autoscaler answers scrapes but reads no load: its figures do not change, and it orders nothing new.",
        None,
        lambda _: Effects(deployment=DeploymentEffects(autoscaler_frozen=True)),
        lambda _: (_unmoved("autoscaler_avg_in_flight_tokens"),),
        scopes=_DEPLOYMENTS,
        part=SCALES_BY_TOKENS,
        needs="load that changes",
        shows_after_seconds=180.0,
    ),
    FaultKind(
        "orchestrator-stuck",
        "The autoscaler's orders are not carried out: no replica is started and none is stopped.",
        None,
        lambda _: Effects(deployment=DeploymentEffects(scaling_ignored=True)),
        lambda _: (
            Truth("replica_count_by_status", {"status": "active"}, above_times=0.95, below_times=1.05, unmoved=True),
        ),
        scopes=_DEPLOYMENTS,
        needs="load or a bound that asks for another number of replicas",
        shows_after_seconds=180.0,
    ),
    FaultKind(
        "cold-start-slow",
        "New replicas take much longer to start, as from a slow registry or volume.",
        Intensity("times as long as usual", 10, 1.5, 1000),
        lambda factor: Effects(deployment=DeploymentEffects(cold_start_factor=factor)),
        lambda factor: (Truth("replica_count_by_status", {"status": "starting"}, above=0.5),),
        scopes=_DEPLOYMENTS,
        needs="load that brings new replicas",
        # Later than the same load would start replicas as usual.
        shows_after_seconds=300.0,
    ),
    FaultKind(
        "replica-crash-loop",
        "Some replicas fail soon after they became active, are started again, and fail again.",
        Intensity("replicas that crash", 1, 1, 1000, whole=True),
        lambda count: Effects(
            deployment=DeploymentEffects(crashing_replicas=int(count), crash_after_seconds=5.0)
        ),
        # The errors themselves die with the process that counted them.
        lambda _: (
            Truth("replica_count_by_status", {"status": "active"}, below_times=0.95),
            Truth("replica_count_by_status", {"status": "failed"}, above=0.05),
        ),
        scopes=_DEPLOYMENTS,
        shows_after_seconds=120.0,
    ),
    FaultKind(
        "restarts",
        "The process of each replica restarts some times a day, the replicas in turn and spread over the day: its "
        "counters begin at zero, its cache is empty, its requests in flight fail uncounted.",
        Intensity("restarts of each replica in 24 hours", 6, 1, 1440),
        lambda count: Effects(restart_each_seconds=86_400 / count),
        lambda _: (_unmoved("request_rate"), Truth(TARGETS_UP, above=0.99, unmoved=True)),
    ),
)  # fmt: skip

_SERVING: Final = (
    FaultKind(
        "engine-frozen",
        "A replica accepts requests and answers health checks and scrapes, but computes nothing: up, not serving.",
        None,
        lambda _: Effects(engine=EngineEffects(frozen=True)),
        lambda _: (Truth("concurrent_requests", above_times=1.3), Truth(TARGETS_UP, above=0.99, unmoved=True)),
        one_replica=True,
        needs="traffic that leaves the deployment room",
        shows_after_seconds=180.0,
    ),
    FaultKind(
        "gpu-lost",
        "A replica's GPU has fallen off the bus: nothing can read it, and the engine waits for it for ever.",
        None,
        lambda _: Effects(engine=EngineEffects(frozen=True, gpu_lost=True)),
        lambda _: (Truth("concurrent_requests", above_times=1.3), Truth(TARGETS_UP, above=0.99, unmoved=True)),
        one_replica=True,
        needs="traffic that leaves the deployment room",
        shows_after_seconds=180.0,
    ),
    FaultKind(
        "latency-regression",
        "Every step takes longer, as after an upgrade with slower kernels.",
        Intensity("share by which prefill and decode take longer", 0.5, 0.01, 20.0),
        lambda share: Effects(engine=EngineEffects(prefill_factor=1 + share, decode_factor=1 + share)),
        lambda share: (
            # Not the quantiles: within one bucket of the histogram they would hardly move.
            Truth("time_per_output_token_mean", above_times=1 + 0.6 * share),
            # That of the first token is as much the queue's, which varies as much as a small regression.
            *((Truth("time_to_first_token_mean", above_times=1 + 0.9 * share),) if share >= 0.5 else ()),
            Truth("tps_per_request", below_times=1 / (1 + 0.6 * share)),
        ),
    ),
    FaultKind(
        "throughput-regression",
        "An engine serves fewer requests at a time than before, as with less memory for its cache: tokens take as long "
        "as before, and requests queue.",
        _share("share by which the largest batch shrinks", 0.6, highest=0.99),
        lambda share: Effects(engine=EngineEffects(batch_factor=1 - share)),
        lambda _: (Truth("queued_requests", above=1.0, above_times=2.0),),
        needs="load that fills what is left of the batches",
        shows_after_seconds=120.0,
    ),
    FaultKind(
        "error-burst",
        "Requests fail while they are served.",
        _share("share of the requests that fail", 0.2, lowest=0.0005),
        lambda share: Effects(engine=EngineEffects(error_share=share)),
        # A minute holds too few requests to show less.
        lambda share: _from(share, 0.02, Truth("request_error_share", above=0.5 * share)),
    ),
    FaultKind(
        "requests-hang",
        "Some requests are accepted and never answered, as when a transfer of KV is never finished; their clients hang "
        "up when the fault is over.",
        _share("share of the requests that hang", 0.2),
        lambda share: Effects(engine=EngineEffects(hang_share=share)),
        lambda share: _from(
            share, 0.1, Truth("concurrent_requests", above_times=1.3), Truth("request_unended_share", above=0.3 * share)
        ),
        shows_after_seconds=180.0,
    ),
    FaultKind(
        "requests-lost",
        "Some requests start and never end: their client leaves in the middle of the answer, the engine frees what "
        "they held, and nothing counts the end. They stay in flight until the process restarts.",
        _share("share of the requests whose end is not counted", 0.03),
        lambda share: Effects(engine=EngineEffects(lost_share=share)),
        lambda share: (
            Truth("concurrent_requests", above_times=1.5),
            *_from(share, 0.2, Truth("request_unended_share", above=0.3 * share)),
        ),
        shows_after_seconds=600.0,
    ),
    FaultKind(
        "client-errors",
        "Requests are refused as their client's mistake when they arrive, as after a change of the longest context.",
        _share("share of the requests that are refused", 0.18),
        lambda share: Effects(engine=EngineEffects(client_error_share=share)),
        lambda share: (
            _unmoved("request_rate"),
            _FEW_ERRORS,
            *_from(share, 0.5, Truth("output_tokens_per_second", below_times=1 - 0.4 * share)),
        ),
    ),
    FaultKind(
        "client-cuts",
        "Streams are cut in the middle of the answer on the side of the stack, and counted as aborted by clients.",
        _share("share of the requests that are cut", 0.1),
        lambda share: Effects(engine=EngineEffects(cut_share=share)),
        lambda share: (
            # A minute holds too few requests to show less.
            *_from(share, 0.1, Truth("client_abort_share", above=0.4 * share)),
            _FEW_ERRORS,
        ),
    ),
    FaultKind(
        "answers-short",
        "All answers end early, and well: the model stops sooner than before.",
        _share("share of its tokens that is left of each answer", 0.5, highest=0.95),
        lambda share: Effects(engine=EngineEffects(answer_factor=share)),
        lambda share: (
            *((Truth("output_tokens_per_request", below_times=(1 + share) / 2),) if share <= 0.75 else ()),
            _FEW_ERRORS,
        ),
    ),
    FaultKind(
        "answers-truncated",
        "Some answers end at a limit of their length, which is at a random token of theirs, and count as ok.",
        _share("share of the answers that end there", 0.1),
        lambda share: Effects(engine=EngineEffects(truncated_share=share)),
        lambda share: (
            # A minute holds too few requests to show less.
            *_from(share, 0.1, Truth("answer_truncated_share", above=0.4 * share)),
            *_from(share, 0.5, Truth("output_tokens_per_request", below_times=1 - 0.2 * share)),
            _FEW_ERRORS,
        ),
    ),
    FaultKind(
        "tail-slow",
        "Few requests take five times as long for the first token and for each after it; the others are as fast as "
        "before.",
        _share("share of the requests that are slow", 0.01, lowest=0.001, highest=0.5),
        lambda share: Effects(engine=EngineEffects(slow_share=share)),
        lambda share: (
            *_from(share, 0.1, Truth("time_per_output_token_p95", above_times=1.5)),
            *((Truth("time_per_output_token_p50", below_times=1.4, unmoved=True),) if share <= 0.2 else ()),
        ),
    ),
    FaultKind(
        "gpu-waste",
        "A replica takes more GPUs than before for the same service: each is as busy and as full as the one was.",
        Intensity("times as many GPUs of each replica", 2, 2, 64, whole=True),
        lambda factor: Effects(engine=EngineEffects(gpu_factor=int(factor))),
        lambda factor: (Truth("gpu_memory_usage", above_times=1 + 0.7 * (factor - 1)),),
    ),
    FaultKind(
        "kv-creep",
        "Blocks of the KV cache leak, until it is full of them: what remains gets smaller hour by hour, and a restart "
        "brings all of it back.",
        _share("share of the whole cache that leaks each hour", 0.05, highest=100.0),
        lambda share: Effects(engine=EngineEffects(leak_per_hour=share)),
        lambda share: (
            *_from(share, 1.0, Truth("kv_cache_usage", above=min(0.25 * share, 0.8))),
            *((_unmoved("request_rate"),) if share < 1 else ()),
        ),
        shows_after_seconds=1200.0,
    ),
    FaultKind(
        "bad-replica",
        "One replica of several is much slower than the others, as on a throttled GPU.",
        Intensity("times as long as the others it takes for a step", 4, 1.1, 100),
        lambda factor: Effects(engine=EngineEffects(prefill_factor=factor, decode_factor=factor)),
        lambda factor: (
            # Not the p95: a router that balances load sends the slowest replica less than one request in twenty.
            Truth("time_per_output_token_mean", above_times=1 + 0.25 * min(factor - 1, 1)),
            Truth("time_per_output_token_p50", below_times=1.4, unmoved=True),
        ),
        one_replica=True,
    ),
    FaultKind(
        "tenant-slow",
        "The requests of one tenant, 3 % of all, wait before they are queued, as by a quota that was set too low: its "
        "first tokens take about three times as long, and no figure of all requests together shows it.",
        Intensity("seconds that each of its requests waits", 0.6, 0.1, 600),
        lambda seconds: Effects(engine=EngineEffects(tenant_wait_seconds=seconds)),
        lambda _: (_unmoved("request_rate"), Truth("time_to_first_token_p50", below_times=1.4, unmoved=True)),
        needs="traffic of several tenants",
    ),
    FaultKind(
        "kv-transfer-slow",
        "The transfer of KV from prefill to decode workers takes longer, as over a network that lost its fast path.",
        Intensity("times as long as usual", 20, 1.1, 10_000),
        lambda factor: Effects(deployment=DeploymentEffects(transfer_factor=factor)),
        lambda factor: (
            Truth("kv_transfer_mean", above_times=1 + 0.7 * (factor - 1)),
            # Decoding begins later, so the tokens of a request come further apart; the first one does not.
            *((Truth("time_per_output_token_mean", above_times=1.1),) if factor >= 10 else ()),
        ),
        scopes=_DEPLOYMENTS,
        part=KV_TRANSFER,
    ),
    FaultKind(
        "kv-transfer-stuck",
        "No KV gets from prefill to decode workers any more, as over a link that is down: requests hang after their "
        "prompt is computed.",
        None,
        lambda _: Effects(deployment=DeploymentEffects(transfer_factor=1e9)),
        lambda _: (
            Truth("kv_transfers_pending", above=5.0),
            Truth("kv_transfer_bytes_per_second", below_times=0.2),
        ),
        scopes=_DEPLOYMENTS,
        part=KV_TRANSFER,
        shows_after_seconds=120.0,
    ),
    FaultKind(
        "kv-transfer-skipped",
        "No KV is sent any more, as when a proxy no longer passes what a transfer needs: decode workers compute the "
        "prompts again, and requests are answered.",
        None,
        lambda _: Effects(deployment=DeploymentEffects(transfers_skipped=True)),
        lambda _: (Truth("kv_transfer_bytes_per_second", below_times=0.05), _unmoved("request_rate"), _FEW_ERRORS),
        scopes=_DEPLOYMENTS,
        part=KV_TRANSFER,
    ),
)

_TRAFFIC: Final = (
    FaultKind(
        "client-aborts",
        "Clients hang up before they are answered.",
        _share("share of the requests that clients give up", 0.3),
        lambda share: Effects(traffic=TrafficEffects(abort_share=share)),
        lambda share: (Truth("client_abort_share", above=0.4 * share),),
        scopes=_DEPLOYMENTS,
    ),
    FaultKind(
        "prompt-mix-shift",
        "The traffic changes to prompts that share nothing with each other, at the same rate.",
        None,
        lambda _: Effects(traffic=TrafficEffects(preset="unique")),
        lambda _: (Truth("kv_cache_hit_rate", below_times=0.5),),
        scopes=_DEPLOYMENTS,
    ),
    FaultKind(
        "traffic-surge",
        "Many more clients than usual.",
        Intensity("times as many arrivals as usual", 3, 1.1, 100),
        lambda factor: Effects(traffic=TrafficEffects(rate_factor=factor)),
        lambda factor: (Truth("request_rate", above_times=1 + 0.4 * (factor - 1)),) if factor >= 1.5 else (),
        scopes=_STACK,
        shows_after_seconds=120.0,
    ),
    FaultKind(
        "traffic-stopped",
        "Requests no longer reach a deployment, as when the gateway in front of it fails; all of its parts are "
        "healthy and idle.",
        None,
        lambda _: _UNREACHED,
        lambda _: (Truth("request_rate", below_times=0.2), Truth(TARGETS_UP, above=0.99, unmoved=True)),
        scopes=_DEPLOYMENTS,
    ),
)

_EXPOSITION: Final = (
    FaultKind(
        "target-unreachable",
        "Connections to /metrics are closed without an answer; the process behind it goes on serving.",
        None,
        lambda _: Effects(exposition=ExpositionEffects(unreachable=True)),
        lambda _: (Truth(TARGETS_UP, below=0.01),),
        shows_after_seconds=15.0,
    ),
    FaultKind(
        "slow-exposition",
        "/metrics answers late.",
        Intensity("seconds of the wall clock that an answer waits", 10, 0.05, 300),
        lambda seconds: Effects(exposition=ExpositionEffects(delay_seconds=seconds)),
        lambda seconds: (Truth(TARGETS_UP, below=0.01),),
        needs="a scrape timeout shorter than the intensity",
        shows_after_seconds=30.0,
    ),
    FaultKind(
        "truncated-exposition",
        "The connection of /metrics ends in the middle of the text.",
        _share("share of the text that is missing", 0.5),
        lambda share: Effects(exposition=ExpositionEffects(kept_share=1 - share)),
        lambda _: (Truth(TARGETS_UP, below=0.01),),
        shows_after_seconds=15.0,
    ),
    FaultKind(
        "counters-reset",
        "Processes restart one after the other: counters begin at zero, caches are empty, requests in flight fail. A "
        "rate must neither fall below zero nor jump.",
        Intensity("seconds from one restart to the next", 20, 1, 3600),
        lambda seconds: Effects(restart_seconds=seconds),
        lambda seconds: (
            *((Truth("kv_cache_hit_rate", below_times=max(1 - 2 / seconds, 0.5)),) if seconds <= 60 else ()),
            _unmoved("request_rate"),
        ),
    ),
    FaultKind(
        "metric-renamed",
        "time_to_first_token_seconds is called ttft_seconds, as after an upgrade that broke a name.",
        None,
        lambda _: Effects(
            exposition=ExpositionEffects(renamed={"time_to_first_token_seconds": "ttft_seconds"})
        ),
        lambda _: (Truth("time_to_first_token_p50", absent=True), _unmoved("request_rate")),
    ),
    FaultKind(
        "clock-skew",
        "Samples carry timestamps of a clock that is wrong. A collector that uses its own clock is not affected; a "
        "Prometheus that honours timestamps is.",
        Intensity("seconds that clock is ahead; behind when negative", -300, -86_400, 86_400),
        lambda seconds: Effects(exposition=ExpositionEffects(clock_offset_seconds=seconds)),
        lambda _: (_unmoved("request_rate"), _unmoved("output_tokens_per_second")),
    ),
    FaultKind(
        "scrape-duplicates",
        "Every series is in the text twice.",
        None,
        lambda _: Effects(exposition=ExpositionEffects(duplicated=True)),
        lambda _: (Truth(DUPLICATES, above=0.5), _unmoved("request_rate")),
    ),
)  # fmt: skip

GROUPS: Final[Mapping[str, tuple[FaultKind, ...]]] = {
    "Speculation": _SPECULATION,
    "Router": _ROUTING,
    "Autoscaler and replicas": _SCALING,
    "Engines": _SERVING,
    "Traffic": _TRAFFIC,
    "Exposition": _EXPOSITION,
}
"""The kinds of faults by what they are in."""

KINDS: Final[Mapping[str, FaultKind]] = {kind.name: kind for kinds in GROUPS.values() for kind in kinds}
"""Every kind of fault by name."""
