"""Why a value is 0, or has nothing to be computed from, as far as the page of one target shows it.

What a page shows is what its engine counted, and for some engines a fact or two of how it is set up. Nothing else is
claimed: where the page does not show the cause, the explanation says only since when nothing was counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.contract.expressions import Difference, Expression, FractionAbove, Quantile, Ratio, leaves
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import Sample, Series, Snapshot
from servescope.sources.maps import SUPPLIED, Fact, Setup
from servescope.sources.parse import Exposition, canonical_name

SINCE_START: Final = "since its process started"

# Where one of these is above 0 the process served something.
_SERVED: Final = ("requests_total", "requests_started_total", "input_tokens_total", "output_tokens_total")
_DRAFTED: Final = "spec_decode_num_draft_tokens_total"
_REUSED: Final = "kv_cache_reused_tokens_total"
_OF_THE_CACHE: Final = ("kv_cache_eligible_tokens_total", _REUSED)
_PROMPTS: Final = "input_tokens_per_request"

Coverages = Mapping[str, Mapping[str, str | None]]
"""Of every metric of the contract its status, native series and reason, and why it is 0 where it is."""


class ShownFact(NamedTuple):
    """A fact that a page shows: its value, where it is, and whether it is that a feature is off."""

    value: str
    where: str
    is_off: bool = False


Facts = Mapping[Fact, ShownFact]


# --- How an engine is set up ------------------------------------------------------------------------------------------


class FactPlace(NamedTuple):
    """The native samples that show a fact, and what each says; None where it is the sample's value."""

    rule: Setup
    places: tuple[int, ...]
    texts: tuple[str | None, ...]


def find_facts(exposition: Exposition, rules: Iterable[Setup]) -> tuple[FactPlace, ...]:
    """Where an exposition shows facts, by the first rule of each whose series is exposed."""
    found: dict[Fact, FactPlace] = {}
    for rule in rules:
        places = tuple(exposition.places.get(canonical_name(rule.native), ()))
        texts = tuple(_label_of(exposition.samples[place], rule.label) for place in places)
        if places and rule.fact not in found:
            found[rule.fact] = FactPlace(rule, places, texts)
    return tuple(found.values())


def _label_of(sample: Sample, label: str | None) -> str | None:
    return None if label is None else dict(sample.labels).get(label, "")


def read_facts(found: Iterable[FactPlace], native: NDArray[np.float64]) -> Facts:
    """The facts among the (n,) values of an exposition; one of which its series differ is not known."""
    facts: dict[Fact, ShownFact] = {}
    for rule, places, texts in found:
        values = {f"{native[place]:g}" if text is None else text for place, text in zip(places, texts, strict=True)}
        value = values.pop()
        if not values and value not in ("", "None"):
            where = f"{rule.native} is {value}" if rule.label is None else f'{rule.native} has {rule.label}="{value}"'
            facts[rule.fact] = ShownFact(value, where, value in rule.off)
    return facts


# --- What it counted --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PageCounts:
    """The counters and histograms of a page that counted nothing, and those that did; `longest_prompt` is the edge that
    no prompt of a request that ended is beyond, None where the page does not show one."""

    zeros: frozenset[str]
    others: frozenset[str]
    longest_prompt: float | None = None


class Counting:
    """Adds up what the counters and histograms of one page counted; made once for its series."""

    def __init__(self, series: Sequence[Series]) -> None:
        metrics: dict[str, int] = {}
        edges: dict[float, int] = {}
        counted, of, prompts, under = [], [], [], []
        for place, (name, labels) in enumerate(series):
            if name == f"{_PROMPTS}_bucket":
                prompts.append(place)
                under.append(edges.setdefault(float(dict(labels).get("le", "inf")), len(edges)))
            elif (metric := _counted(name)) is not None:
                counted.append(place)
                of.append(metrics.setdefault(metric, len(metrics)))
        self._names, self._edges = tuple(metrics), tuple(edges)
        self._counted, self._of = np.array(counted, dtype=np.intp), np.array(of, dtype=np.intp)
        self._is_zero, self._counts = b"", PageCounts(frozenset(), frozenset())
        self._prompts, self._under = np.array(prompts, dtype=np.intp), np.array(under, dtype=np.intp)

    def read(self, values: NDArray[np.float64]) -> PageCounts:
        """What (m,) values of the series say; the same object while that is the same."""
        is_zero = np.bincount(self._of, values[self._counted], minlength=len(self._names)) == 0
        if is_zero.tobytes() != self._is_zero:
            zeros = frozenset(compress(self._names, is_zero.tolist()))
            self._is_zero, self._counts = is_zero.tobytes(), PageCounts(zeros, frozenset(self._names) - zeros)
        if _REUSED in self._counts.zeros and self._edges:
            return replace(self._counts, longest_prompt=self._longest(values))
        return self._counts

    def _longest(self, values: NDArray[np.float64]) -> float | None:
        under = np.bincount(self._under, values[self._prompts], minlength=len(self._edges)).tolist()
        every = max(under)
        whole = [edge for edge, count in zip(self._edges, under, strict=True) if count == every and edge < np.inf]
        return min(whole) if every and whole else None


def _counted(name: str) -> str | None:
    """The metric that a series counts for: a counter, or a histogram's observations."""
    metric = SAMPLE_FAMILIES.get(name)
    if metric is None or METRICS[metric].kind == "gauge":
        return None
    return metric if METRICS[metric].kind == "counter" or name == f"{metric}_count" else None


# --- Why --------------------------------------------------------------------------------------------------------------


def explain_zeros(counted: PageCounts, facts: Facts, since: str = SINCE_START) -> dict[str, str]:
    """Of every metric of which nothing was counted why that is, or since when; `since` is the time that is meant."""
    served = [name for name in _SERVED if name in counted.zeros or name in counted.others]
    if served and not any(name in counted.others for name in served):
        idle = f"no request has ended and no token was counted {since}"
        return dict.fromkeys(sorted(counted.zeros), idle)
    return {name: _explain(name, counted, facts, since) for name in sorted(counted.zeros)}


def _explain(name: str, counted: PageCounts, facts: Facts, since: str) -> str:
    switch = facts.get("prefix_cache")
    if name in _OF_THE_CACHE and switch is not None and switch.is_off:
        return f"the prefix cache is off: {switch.where}"
    if name == _REUSED and _OF_THE_CACHE[0] in counted.others:
        return _explain_no_reuse(counted.longest_prompt, facts.get("block_tokens"), since)
    if name.startswith("spec_decode_"):
        return (
            f"no drafted token was accepted {since}" if _DRAFTED in counted.others else f"no token was drafted {since}"
        )
    return f"no observation {since}" if METRICS[name].kind == "histogram" else f"none {since}"


def _explain_no_reuse(longest: float | None, block: ShownFact | None, since: str) -> str:
    if block is None:
        return f"no token of a prompt was reused {since}"
    if longest is not None and block.value.isdecimal() and longest <= int(block.value):
        return (
            f"no request that ended {since} had a prompt of more than {longest:g} tokens, and a block of the cache has "
            f"{block.value}: {block.where}"
        )
    return f"no token of a prompt was reused {since}; a block of the cache has {block.value}: {block.where}"


def explain_figure(expression: Expression, zeros: Mapping[str, str], *, absent: bool) -> str:
    """Why a figure is 0, or absent, by the metrics of which nothing was counted; "" where these are not the reason."""
    match expression:
        case Ratio(numerator, denominator):
            # A numerator of 0 makes a ratio of 0; only a denominator of 0 leaves none.
            return explain_figure(denominator if absent else numerator, zeros, absent=absent)
        case Difference(left, _):
            return explain_figure(left, zeros, absent=absent)
        case Quantile(_, histogram) | FractionAbove(_, histogram, _):
            return zeros.get(histogram, "")
        case _:
            names = (SAMPLE_FAMILIES.get(name, name) for name in leaves(expression))
            return next((zeros[name] for name in names if name in zeros), "")


class ZeroExplainer:
    """Adds to the coverage of one target why metrics are 0, scrape by scrape; the same object while nothing changes."""

    def __init__(self) -> None:
        self._series: tuple[Series, ...] | None = None
        self._counting = Counting(())
        self._known: tuple[Coverages, PageCounts, Facts] | None = None
        self._coverage: Coverages = {}

    def explain(self, coverage: Coverages, snapshot: Snapshot, facts: Facts) -> Coverages:
        """The coverage, with `zero` of each metric that it has a value of and that counted nothing."""
        if snapshot.series is not self._series:
            self._series, self._counting = snapshot.series, Counting(snapshot.series)
        counted = self._counting.read(snapshot.values)
        if self._known is not None and self._known[0] is coverage and self._known[1:] == (counted, facts):
            return self._coverage
        zeros = explain_zeros(counted, facts)
        marked = {
            name: {**entry, "zero": zeros[name]} if name in zeros and entry["status"] in SUPPLIED else entry
            for name, entry in coverage.items()
        }
        self._known, self._coverage = (coverage, counted, facts), marked
        return marked
