"""PromQL for the figures of deployments: as collectors expose them, as rules record them, or computed from samples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from servescope.contract.expressions import Level, leaves, promql
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment
from servescope.contract.metrics import SAMPLE_FAMILIES
from servescope.contract.samples import escape_label_value
from servescope.contract.types import DEFAULT_WINDOW, Figure
from servescope.store.prometheus.selectors import selector
from servescope.store.prometheus.targets import CONTRACT_NAMES, TARGET_UP

FIGURE_LABEL: Final = "servescope_figure"
"""The label of each element that names its figure, or `TIME`."""
TIME: Final = "time"
"""In place of a figure: the time of the samples that figures are from, in seconds."""
_EXTRA = tuple(sorted({label for figure in FIGURES.values() for label in figure.by}))


def figures_query(kind: str, figures: Sequence[Figure], where: str) -> str:
    """One query for all figures, each element labelled with its figure, and for the time of their samples.

    `kind` is that of a FigureSource, `where` the matchers of a deployment, "" for all.
    """
    if kind == "exposed":
        return " or ".join(_exposed_queries(figures, where))
    if kind == "recorded":
        names = [figure.record() for figure in figures]
        recorded = selector(names=names, extra=f"{{{where}}}")
        return f"{_named_by_itself(recorded)} or {_named(TIME, _newest(names, where))}"
    computed = [_named(figure.name, f"({compute_query(figure, where)})") for figure in figures]
    names = sorted({name for figure in figures for name in _read_names(figure) if not name.endswith("_bucket")})
    return " or ".join([*computed, _named(TIME, _newest(names, where or 'deployment_id!=""'))])


def _exposed_queries(figures: Sequence[Figure], where: str) -> Iterable[str]:
    exposed = [figure.exposed for figure in figures if figure.exposed is not None]
    # A figure that is a gauge of the contract is not exposed a second time: it is aggregated from the gauges.
    for over in ("sum", "avg", "max"):
        names = [
            figure.expression.name
            for figure in figures
            if figure.exposed is None and isinstance(figure.expression, Level) and figure.expression.over == over
        ]
        if names:
            by = ", ".join(("__name__", *DEPLOYMENT_LABELS, *_EXTRA, "job", "instance"))
            gauges = selector(names=names, extra=f'{{{where}{"," if where else ""}deployment_id!=""}}')
            yield _named_by_itself(f"{over} by ({by}) ({gauges})")
    figures_exposed = selector(names=exposed, extra=f'{{{where}{"," if where else ""}window!=""}}')
    if exposed:
        yield _named_by_itself(figures_exposed)
    yield _named(TIME, _newest([TARGET_UP], where, ("job", "instance")))


def _named_by_itself(query: str) -> str:
    # `or` distinguishes elements by their labels without their names.
    return f'label_replace({query}, "{FIGURE_LABEL}", "$1", "__name__", "(.+)")'


def _named(name: str, query: str) -> str:
    return f'label_replace({query}, "{FIGURE_LABEL}", "{name}", "", "")'


def _newest(names: Sequence[str], where: str, by: Sequence[str] = ()) -> str:
    """The time of the newest sample, of the first name that a deployment has."""
    group = ", ".join((*DEPLOYMENT_LABELS, *by))
    # Each name by itself: `timestamp` removes the names, without which series would be the same.
    return "(" + " or ".join(f"max(timestamp({name}{{{where}}})) by ({group})" for name in names) + ")"


def compute_query(figure: Figure, where: str) -> str:
    """The figure's PromQL over the series that `where` matches."""
    text = promql(figure.expression, window=DEFAULT_WINDOW, by=(*DEPLOYMENT_LABELS, *figure.by))
    wanted = where or 'deployment_id!=""'
    for name in sorted(_read_names(figure), key=len, reverse=True):
        text = _restrict(text, name, wanted)
    return text


def _restrict(text: str, name: str, matchers: str) -> str:
    """The PromQL with more matchers on every selector of a series name."""

    def selected(match: re.Match[str]) -> str:
        return f"{name}{{{matchers}{',' if match[1] else '}'}"

    return re.sub(rf"(?<![\w:]){name}(?![\w:])(\{{)?", selected, text)


def _read_names(figure: Figure) -> set[str]:
    """The names of the series that a figure is computed from."""
    names = set()
    for name in leaves(figure.expression):
        parts = [part for part in CONTRACT_NAMES if SAMPLE_FAMILIES[part] == name]
        names |= {name} if name in CONTRACT_NAMES and len(parts) == 1 else set(parts) or {name}
    return names


def matchers(deployment: Deployment) -> str:
    """The matchers of a deployment's series."""
    return ",".join(f'{name}="{escape_label_value(getattr(deployment, name))}"' for name in DEPLOYMENT_LABELS)
