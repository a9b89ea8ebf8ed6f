"""After the move: what to watch, and which alerts and bands there are for a deployment as it was and is configured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from servescope.alerting.alerts import ALERTS
from servescope.alerting.feeding import can_hold, metrics_of
from servescope.alerting.rules.records import Alert, Extreme, SelfMetric, terms
from servescope.contract.expressions import leaves
from servescope.contract.figures import FIGURES
from servescope.contract.judged import IN_FLIGHT_TOKENS_PER_WORKER
from servescope.contract.metrics import METRICS, PHASES, SAMPLE_FAMILIES
from servescope.contract.types import Band
from servescope.migration.translation.translation import FieldChange

_INDEXED: Final = ("kv_cache_predicted_", "kv_cache_best_", "router_event", "router_index")
_PHASED: Final = ("kv_transfer", "autoscaler_phase_")
_DRAFTED: Final = ("spec_decode_",)
_TOKENS: Final = ("autoscaler_in_flight_tokens", "autoscaler_avg_in_flight_tokens")


@dataclass(frozen=True, slots=True)
class WatchedFigure:
    """A figure of the catalog to watch after the move, and why for this configuration."""

    figure: str
    why: str


@dataclass(frozen=True, slots=True)
class ConfiguredAlert:
    """An alert, and whether it can fire before and after: what it reads is there, and its reason where it is not."""

    name: str
    before: bool
    after: bool
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Checklist:
    """What to look after when traffic has moved: figures with their reasons, alerts, and the bands of v2 alone."""

    watch: tuple[WatchedFigure, ...]
    alerts: tuple[ConfiguredAlert, ...]
    bands: tuple[tuple[str, str], ...]
    absent_bands: tuple[str, ...]

    def alerts_of(self, *, before: bool, after: bool) -> tuple[str, ...]:
        """The names of the alerts that can fire so."""
        return tuple(each.name for each in self.alerts if (each.before, each.after) == (before, after))

    def lines(self) -> Iterator[str]:
        """Each thing to do or to know in a line."""
        for why in dict.fromkeys(each.why for each in self.watch):
            yield f"Watch {', '.join(each.figure for each in self.watch if each.why == why)}: {why}"
        yield from (f"Band of {figure}: {text}" for figure, text in self.bands)
        if self.absent_bands:
            yield f"No band of {', '.join(self.absent_bands)}: this v2 does not have it"
        fresh, gone = self.alerts_of(before=False, after=True), self.alerts_of(before=True, after=False)
        if fresh:
            yield f"Alerts that v1 did not have: {', '.join(fresh)}"
        if gone:
            yield f"Alerts that end with v1: {', '.join(gone)}"
        never = [each for each in self.alerts if not each.before and not each.after]
        for why in dict.fromkeys(each.why_not for each in never):
            yield f"Alerts that cannot fire, {why}: {', '.join(each.name for each in never if each.why_not == why)}"
        kept = len(self.alerts_of(before=True, after=True))
        yield f"{kept} alerts are the same before and after"


def make_checklist(changes: Sequence[FieldChange], llm_config: Mapping[str, Any]) -> Checklist:
    """The checklist for a deployment that these fields changed of, and that has this `llm_config` on v2."""
    removed = {each.before: each.value for each in changes if each.before and not each.after}
    drafted = removed.get("build.speculator") is not None
    drafts = "speculative_config" in llm_config
    phased = bool(llm_config.get("is_disaggregated"))
    has = _has(drafts=drafts, phased=phased)
    names = [name for name, figure in FIGURES.items() if figure.band]
    alive = [name for name in names if _reads(name) <= has]
    return Checklist(
        tuple(_watch(removed, drafts=drafts, drafted=drafted, phased=phased)),
        _configure_alerts(drafted=drafted, drafts=drafts, phased=phased),
        tuple((name, _describe_band(FIGURES[name].band)) for name in alive),
        tuple(name for name in names if name not in alive),
    )


def write_checklist(title: str, checklist: Checklist) -> str:
    """The checklist as Markdown, with a box for each line."""
    return "\n".join([f"# After the move: {title}", "", *(f"- [ ] {line}" for line in checklist.lines())]) + "\n"


@cache
def _had(*, drafted: bool) -> frozenset[str]:
    """The metrics that v1 has: its router has no index, it scales on requests, and has no phases."""
    return _without((*_INDEXED, *_PHASED, *_TOKENS, *(() if drafted else _DRAFTED)))


@cache
def _has(*, drafts: bool, phased: bool) -> frozenset[str]:
    return _without((*(() if drafts else _DRAFTED), *(() if phased else _PHASED)))


def _without(prefixes: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name for name in metrics_of(()) if not name.startswith(prefixes))


def _reads(figure: str) -> set[str]:
    return {SAMPLE_FAMILIES.get(name, name) for name in leaves(FIGURES[figure].expression)} & METRICS.keys()


# --- Alerts and bands -------------------------------------------------------------------------------------------------


@cache
def _configure_alerts(*, drafted: bool, drafts: bool, phased: bool) -> tuple[ConfiguredAlert, ...]:
    had, has = _had(drafted=drafted), _has(drafts=drafts, phased=phased)
    return tuple(_configure(alert, had, has, phased=phased) for alert in ALERTS.values())


def _configure(alert: Alert, had: frozenset[str], has: frozenset[str], *, phased: bool) -> ConfiguredAlert:
    of_phases = _is_about_phases(alert)
    before = can_hold(alert.condition, had) and not of_phases
    after = can_hold(alert.condition, has) and (phased or not of_phases)
    why = ""
    if not after:
        is_drafted = not can_hold(alert.condition, _without(_DRAFTED))
        why = "as v2 does not speculate" if is_drafted else "as prefill and decode are served together"
    return ConfiguredAlert(alert.name, before, after, why)


def _is_about_phases(alert: Alert) -> bool:
    """Whether the first thing that an alert looks at are targets of prefill or decode workers only."""
    first = next(terms(alert.condition), None)
    while isinstance(first, Extreme):
        first = first.of
    return isinstance(first, SelfMetric) and any(
        label == "role" and {*values} <= {*PHASES} for label, values in first.where
    )


def _describe_band(band: Band | None) -> str:
    """Where a figure is good, and what the catalog has to say beyond."""
    steps = band.steps if band is not None else ()
    starts = [step.start for step in steps if step.rating.status == "good"]
    ends = [step.start for step in steps if step.rating.status != "good" and starts and step.start > starts[0]]
    good = f"good from {starts[0]:g}" if starts else "without a good range"
    return good + (f" to {ends[0]:g}" if ends else "")


# --- What to watch ----------------------------------------------------------------------------------------------------


def _watch(removed: Mapping[str, Any], *, drafts: bool, drafted: bool, phased: bool) -> Iterator[WatchedFigure]:
    for field, figures, why in _BY_FIELD:
        if removed.get(field) is not None:
            yield from (WatchedFigure(figure, why.format(removed[field])) for figure in figures)
    if "runtime.kv_cache_free_gpu_mem_fraction" not in removed:
        yield from _figures(("kv_cache_usage", "preemptions_rate"), "v2 sizes its KV cache itself")
    if drafts:
        yield from _figures(("speculation_rate", "spec_decode_accepted_tokens_per_second"), "v2 speculates as decided")
    elif drafted:
        yield from _figures(("tps_per_request", "time_per_output_token_p95"), "v1 speculated by lookahead, v2 does not")
    yield from _figures(("tps_per_request", "concurrent_requests"), "they should stay as they were on v1, or improve")
    yield from _figures(
        (
            "kv_cache_hit_rate",
            "kv_cache_best_prefix_hit_rate",
            "kv_cache_hit_rate_skew",
            "kv_cache_hit_rate_efficiency",
        ),
        "v2 routes by what is cached; watch the change of the hit rate, not its level",
    )
    low, high = IN_FLIGHT_TOKENS_PER_WORKER
    yield from _figures(
        ("autoscaler_in_flight_tokens", "autoscaler_avg_in_flight_tokens"),
        f"v2 scales on them; tune target_in_flight_tokens from what is observed, {low:g} to {high:g} to begin with",
    )
    yield from _figures(
        ("autoscaler_desired_scale", "replica_count_by_status"),
        "v2 may be pinned at max_replica, or lose caches on scaling down",
    )
    if phased:
        yield from _figures(
            ("kv_transfer_p95", "kv_transfers_pending", "autoscaler_phase_in_flight_tokens"),
            "prefill and decode have workers of their own",
        )


def _figures(names: Iterable[str], why: str) -> Iterator[WatchedFigure]:
    return (WatchedFigure(name, why) for name in names)


_BY_FIELD: Final = (
    ("runtime.kv_cache_free_gpu_mem_fraction", ("kv_cache_usage", "preemptions_rate"),
     "v1 took {} of the free GPU memory for its KV cache, and v2 sizes it itself"),
    ("runtime.kv_cache_host_memory_bytes", ("time_to_first_token_p95",),
     "blocks that were offloaded to {} bytes of host memory are computed again"),
    ("runtime.batch_scheduler_policy", ("queued_requests",), "v1 scheduled by {}, and v2 has no choice of it"),
    ("runtime.total_token_limit", ("queued_requests",), "v1 scheduled at most {} tokens at once"),
    ("runtime.request_default_max_tokens", ("output_tokens_per_request", "request_duration_p95"),
     "v1 ended answers at {} tokens where clients set no max_tokens"),
    ("runtime.webserver_default_route", ("request_rate",), "requests without a path no longer reach {}"),
    ("build.moe_expert_parallel_option", ("output_tokens_per_second", "gpu_usage"),
     "v1 had moe_expert_parallel_option {}, and v2 has no setting of expert parallelism"),
)  # fmt: skip
