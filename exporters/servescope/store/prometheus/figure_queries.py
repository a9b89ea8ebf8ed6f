"""PromQL for the figures of deployments: as collectors expose them, as rules record them, or computed from samples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from servescope.contract.expressions import COLLECTOR_LABELS, Level, leaves, promql
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment
from servescope.contract.metrics import SAMPLE_FAMILIES
from servescope.contract.samples import escape_label_value
from servescope.contract.types import DEFAULT_WINDOW, Figure
from servescope.store.prometheus.places import PAGE_LABELS, PAIR_LABELS
from servescope.store.prometheus.selectors import selector
from servescope.store.prometheus.targets import CONTRACT_NAMES, TARGET_UP

FIGURE_LABEL: Final = "servescope_figure"
"""The label of each element that names its figure, or `TIME`."""
TIME: Final = "time"
"""In place of a figure: the time of the samples that figures are from, in seconds."""
_EXTRA = tuple(sorted({label for figure in FIGURES.values() for label in figure.by}))


_MOST_TEXT: Final = 15_500
"""The length of a query, as a VictoriaMetrics takes none above 16 KiB."""
_PAIRS: Final = ", ".join(PAIR_LABELS)


def figures_queries(kind: str, figures: Sequence[Figure], where: str) -> list[str]:
    """Queries for all figures, each element labelled with its figure, and for the time of their samples.

    `kind` is that of a FigureSource, `where` the matchers of a deployment, "" for all.
    """
    if kind == "exposed":
        return [" or ".join(_exposed_queries(figures, where))]
    texts: dict[Figure, tuple[int, Sequence[str]]]
    if kind == "recorded":
        texts = {figure: (len(figure.record()), (figure.record(),)) for figure in figures}
    else:
        texts = {figure: (len(_computed(figure, where)), tuple(sorted(read_names(figure)))) for figure in figures}
    return [_joined(kind, part, where) for part in _in_parts(texts, len(_newest([""], where)), 500 + len(where))]


def _in_parts(texts: Mapping[Figure, tuple[int, Sequence[str]]], per_name: int, around: int) -> Iterator[list[Figure]]:
    """The figures in parts whose queries are short enough, by the length of each one's, and the names it reads."""
    part: list[Figure] = []
    length, seen = around, set[str]()
    for figure, (own, names) in texts.items():
        more = own + sum(len(name) + per_name for name in names if name not in seen)
        if part and length + more > _MOST_TEXT:
            yield part
            part, length, seen = [], around, set()
            more = own + sum(len(name) + per_name for name in names)
        part.append(figure)
        length += more
        seen |= set(names)
    if part:
        yield part


def _joined(kind: str, figures: Sequence[Figure], where: str) -> str:
    if kind == "recorded":
        names = [figure.record() for figure in figures]
        recorded = selector(names=names, extra=f"{{{where}}}")
        return f"{_named_by_itself(recorded)} or {_named(TIME, _newest(names, where))}"
    names = sorted({name for figure in figures for name in read_names(figure) if not name.endswith("_bucket")})
    newest = _named(TIME, _newest(names, where or 'deployment_id!=""'))
    return " or ".join([*(_computed(figure, where) for figure in figures), newest])


def _computed(figure: Figure, where: str) -> str:
    return _named(figure.name, f"({compute_query(figure, where)})")


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
            by = ", ".join((FIGURE_LABEL, *DEPLOYMENT_LABELS, *_EXTRA, *PAGE_LABELS))
            gauges = selector(names=names, extra=f'{{{where}{"," if where else ""}deployment_id!=""}}')
            # What a pair of Prometheus servers scraped counts once.
            yield f"{over} by ({by}) (max without ({_PAIRS}) ({_named_by_itself(gauges)}))"
    figures_exposed = selector(names=exposed, extra=f'{{{where}{"," if where else ""}window!=""}}')
    if exposed:
        yield _named_by_itself(figures_exposed)
    yield _named(TIME, _newest([TARGET_UP], where, PAGE_LABELS))


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
    scrapers = (*COLLECTOR_LABELS, *PAIR_LABELS)
    text = promql(figure.expression, window=DEFAULT_WINDOW, by=(*DEPLOYMENT_LABELS, *figure.by), collectors=scrapers)
    wanted = where or 'deployment_id!=""'
    for name in sorted(read_names(figure), key=len, reverse=True):
        text = _restrict(text, name, wanted)
    return text


def _restrict(text: str, name: str, matchers: str) -> str:
    """The PromQL with more matchers on every selector of a series name."""

    def selected(match: re.Match[str]) -> str:
        return f"{name}{{{matchers}{',' if match[1] else '}'}"

    return re.sub(rf"(?<![\w:]){name}(?![\w:])(\{{)?", selected, text)


def read_names(figure: Figure) -> set[str]:
    """The names of the series that a figure is computed from."""
    names = set()
    for name in leaves(figure.expression):
        parts = [part for part in CONTRACT_NAMES if SAMPLE_FAMILIES[part] == name]
        names |= {name} if name in CONTRACT_NAMES and len(parts) == 1 else set(parts) or {name}
    return names


def matchers(deployment: Deployment) -> str:
    """The matchers of a deployment's series."""
    return ",".join(f'{name}="{escape_label_value(getattr(deployment, name))}"' for name in DEPLOYMENT_LABELS)
