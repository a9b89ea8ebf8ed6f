"""PromQL for the figures of deployments: as collectors expose them, as rules record them, or computed from samples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from servescope.contract.expressions import COLLECTOR_LABELS, Level, leaves, promql
from servescope.contract.figures import FIGURES
from servescope.contract.filling import DEFAULT_WINDOW_MS
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment
from servescope.contract.metrics import SAMPLE_FAMILIES
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.contract.samples import escape_label_value
from servescope.contract.types import DEFAULT_WINDOW, Figure
from servescope.store.prometheus.places import PAGE_LABELS, PAIR_LABELS
from servescope.store.prometheus.selectors import MOST_TEXT, selector, split
from servescope.store.prometheus.targets import CONTRACT_NAMES, TARGET_UP

FIGURE_LABEL: Final = "servescope_figure"
"""The label of each element that names its figure, or `TIME`."""
TIME: Final = "time"
"""In place of a figure: the time of the samples that figures are from, in seconds."""
_STEP_SECONDS: Final = 15
# What nearly every deployment has: of an engine, or of a router alone; by rules alone, what is recorded from it.
_SCRAPED: Final = ("requests_total", "kv_cache_eligible_tokens_total")
_RECORDED: Final = FIGURES["request_rate"].record()
_EXTRA = tuple(sorted({label for figure in FIGURES.values() for label in figure.by}))


_PAIRS: Final = ", ".join(PAIR_LABELS)


def figures_queries(kind: str, figures: Sequence[Figure], where: str) -> list[str]:
    """Queries for all figures, each element labelled with its figure, and for the time of their samples.

    `kind` is that of a FigureSource, `where` the matchers of a deployment, "" for all.
    """
    if kind == "exposed":
        parts = [*_exposed_queries(figures, where), _filled_query(kind, where)]
        return [" or ".join(part) for part in split(parts, lambda text: len(text) + 4)]
    texts: dict[Figure, tuple[int, Sequence[str]]]
    if kind == "recorded":
        texts = {figure: (len(figure.record()), (figure.record(),)) for figure in figures}
    else:
        texts = {figure: (len(_computed(figure, where)), tuple(sorted(read_names(figure)))) for figure in figures}
    filled = _filled_query(kind, where)
    around = 500 + len(where) + len(filled)
    queries = [_joined(kind, part, where) for part in _in_parts(texts, len(_newest([""], where)), around)]
    return [*queries[:-1], " or ".join((*queries[-1:], filled))]


def _filled_query(kind: str, where: str) -> str:
    """How much of the window of a deployment's figures is there, while that is less than all of it."""
    if kind == "exposed":
        return _named(FILLED_SERIES, f'({FILLED_SERIES}{{{where}{"," if where else ""}window!=""}} < 1)')
    group, wanted = ", ".join(DEPLOYMENT_LABELS), where or 'deployment_id!=""'
    # A sample at most one step after the window's start is taken to reach it, as `rate` does at that interval.
    firsts = (
        f"min by ({group}) (min_over_time(timestamp({name}{{{wanted}}})[{DEFAULT_WINDOW}:{_STEP_SECONDS}s]))"
        for name in (*_SCRAPED, *((_RECORDED,) if kind == "recorded" else ()))
    )
    seconds = DEFAULT_WINDOW_MS / 1000
    filled = f"(time() - ({' or '.join(firsts)})) / {seconds:g} < {(seconds - _STEP_SECONDS) / seconds:g}"
    return _named(FILLED_SERIES, f"({filled})")


def _in_parts(texts: Mapping[Figure, tuple[int, Sequence[str]]], per_name: int, around: int) -> Iterator[list[Figure]]:
    """The figures in parts whose queries are short enough, by the length of each one's, and the names it reads."""
    part: list[Figure] = []
    length, seen = around, set[str]()
    for figure, (own, names) in texts.items():
        more = own + sum(len(name) + per_name for name in names if name not in seen)
        if part and length + more > MOST_TEXT:
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
    for figure in figures:
        if figure.exposed is None and isinstance(figure.expression, Level):
            name, over = figure.expression.name, figure.expression.over
            by = ", ".join((*DEPLOYMENT_LABELS, *_EXTRA, *PAGE_LABELS))
            gauges = f'{name}{{{where}{"," if where else ""}deployment_id!=""}}'
            # What a pair of Prometheus servers scraped counts once.
            yield _named(figure.name, f"{over} by ({by}) (max without ({_PAIRS}) ({gauges}))")
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
