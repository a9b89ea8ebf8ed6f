"""Which metrics and figures of the catalog a policy names: each by its name, or a group of them."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from servescope.contract.figures import FIGURES, GROUPS
from servescope.contract.metrics import METRICS, PROCESS_RATIOS
from servescope.customers.points.projection import MERGED_GAUGES
from servescope.customers.policy.policy import Resolution
from servescope.errors import UsageError, suggest

ALL: Final = "all"


def _slug(group: str) -> str:
    return group.lower().replace(" ", "-")


METRIC_GROUPS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        ALL: tuple(METRICS),
        **{
            component: tuple(name for name, metric in METRICS.items() if metric.component == component)
            for component in dict.fromkeys(metric.component for metric in METRICS.values())
        },
    }
)
"""Groups of metrics: what measures them."""

FIGURE_GROUPS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        ALL: tuple(FIGURES),
        **{_slug(group): tuple(name for name, each in FIGURES.items() if each.group == group) for group in GROUPS},
    }
)
"""Groups of derived figures: the headings that they have everywhere."""


class Selected(NamedTuple):
    """What is exported, sorted, and why what a group has besides is not, by name."""

    chosen: tuple[str, ...]
    left_out: Mapping[str, str]


def select_metrics(names: Sequence[str], resolution: Resolution) -> Selected:
    """The metrics of these names and groups; raises UsageError for a name that cannot be exported."""

    def refuse(name: str) -> str | None:
        if name in PROCESS_RATIOS:
            return f"is a ratio of one process, which is not collected; list it under figures, as {name!r}"
        if resolution == "deployment" and METRICS[name].kind == "gauge" and name not in MERGED_GAUGES:
            return f"is a ratio, of which there is no sum over replicas; {_figure_instead(name)}"
        return None

    return _select(names, METRICS, METRIC_GROUPS, refuse, "metric")


def select_figures(names: Sequence[str], metrics: Sequence[str]) -> Selected:
    """The figures of these names and groups; `metrics` are exported as well. Raises UsageError."""

    def refuse(name: str) -> str | None:
        figure = FIGURES[name]
        if (figure.exposed or name) in metrics:
            return "has the name of a metric that is exported as well, and would only repeat it"
        return None

    return _select(names, FIGURES, FIGURE_GROUPS, refuse, "figure")


def _select(
    names: Sequence[str],
    known: Container[str],
    groups: Mapping[str, tuple[str, ...]],
    refuse: Callable[[str], str | None],
    what: str,
) -> Selected:
    chosen: set[str] = set()
    left_out: dict[str, str] = {}
    for name in names:
        if name in groups:
            reasons = {each: refuse(each) for each in groups[name]}
            chosen |= {each for each, reason in reasons.items() if reason is None}
            left_out |= {each: reason for each, reason in reasons.items() if reason is not None}
        elif name not in known:
            raise UsageError(_unknown(name, what, groups))
        elif (reason := refuse(name)) is not None:
            raise UsageError(f"{what} {name!r} {reason}")
        else:
            chosen.add(name)
    return Selected(tuple(sorted(chosen)), left_out)


def _unknown(name: str, what: str, groups: Mapping[str, tuple[str, ...]]) -> str:
    catalog, others, elsewhere = (METRICS, FIGURES, "figures") if what == "metric" else (FIGURES, METRICS, "metrics")
    if name in others:
        return f"{name!r} is no {what}; list it under {elsewhere}"
    near = suggest(name, (*catalog, *groups))
    hint = near or f"expected a name of docs/metrics.md, or a group: {', '.join(groups)}"
    return f"unknown {what} {name!r}; {hint}"


def _figure_instead(name: str) -> str:
    return f"list {name!r} under figures" if name in FIGURES else 'export replicas instead: resolution = "replica"'
