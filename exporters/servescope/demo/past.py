"""The demo's past: two days of an emulated stack, made in seconds of the few minutes that were emulated.

What every target did between two scrapes of these minutes is a moment. A block of the past is made of moments drawn
from all replicas of its deployment, as many as the load had at that time: so its histograms, sums and counters fit
together, and what the emulator does next is the same in kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.evaluation import is_evaluated_by_collector
from servescope.collector.paging.budgets import Budgets
from servescope.collector.paging.requirements import objectives_of, requirements_of
from servescope.contract.identity import Deployment, Identity
from servescope.contract.judged import PROMPT_SIZES
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import Series, Snapshot, Window
from servescope.demo.figures import derive_blocks
from servescope.increments.blocks import BLOCK_MS, JUDGED_GAUGES, Tallies, TargetIncrements
from servescope.store.embedded import Store

Floats = NDArray[np.float64]

_REQUESTS: Final = "requests_total"
_STARTED: Final = "requests_started_total"
_FIRST_TOKEN: Final = "time_to_first_token_seconds"  # noqa: S105 - a metric
_OF_LOAD: Final = frozenset({
    "concurrent_requests", "queued_requests", "kv_cache_usage", "gpu_usage", "autoscaler_in_flight_tokens",
    "autoscaler_avg_in_flight_tokens", "autoscaler_avg_num_requests", "autoscaler_desired_scale",
})  # fmt: skip
"""The gauges that grow with the load; the others are of the replicas, whatever they serve."""


@dataclass(frozen=True, slots=True, eq=False)
class PastLoad:
    """The load of a deployment over n blocks, as times that of the minutes that were emulated: (n,) each.

    `of_all` is that of the deployment and 0 before there was one, `of_each` that of one replica. `error_share` of its
    requests failed; these are too few to be seen in some minutes. `started_ms` is when its processes began.
    """

    of_all: Floats
    of_each: Floats
    error_share: float
    started_ms: int


def write_past(
    store: Store,
    emulated: Mapping[Identity, Window],
    loads: Mapping[str, PastLoad],
    blocks: NDArray[np.int64],
    *,
    seed: int,
) -> None:
    """Write increments, figures and what error budgets count for n blocks, given by their starts in milliseconds, (n,).

    `emulated` are the scrapes of every target, whose status the store has; `loads` are by deployment.
    """
    chance = np.random.default_rng(seed)
    prompts = _Prompts.of(emulated)
    pasts = [
        _DeploymentPast.draw(deployment, emulated, loads[deployment.deployment_id], blocks, prompts, chance)
        for deployment in dict.fromkeys(identity.deployment() for identity in emulated)
    ]
    with store.transaction():
        for past in pasts:
            past.write(store)
        _write_budgets(store, pasts, blocks)


def _write_budgets(store: Store, pasts: Sequence[_DeploymentPast], blocks: NDArray[np.int64]) -> None:
    """Write what the error budgets counted at the end of each block, as a collector that ran all the time would."""
    requirements = requirements_of(filter(is_evaluated_by_collector, ALERTS.values()), BLOCK_MS)
    budgets = Budgets(objectives_of(requirements), max(requirements.budgets.values()))
    for past in pasts:
        past.count(budgets, None)
    for column, block in enumerate(blocks.tolist()):
        for past in pasts:
            if column >= past.first:
                past.count(budgets, column - past.first)
        if sums := budgets.keep(block + BLOCK_MS):
            store.append_sums(block + BLOCK_MS, sums)


# --- One deployment ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _DeploymentPast:
    """What a deployment's targets did in the blocks in which it was there: `first` is the number of the first."""

    deployment: Deployment
    first: int
    blocks: NDArray[np.int64]
    drawn: Sequence[tuple[_Moments, _Drawn, Identity]]
    started_ms: int
    counters: tuple[Series, ...]
    gains: Floats

    @classmethod
    def draw(
        cls,
        deployment: Deployment,
        emulated: Mapping[Identity, Window],
        load: PastLoad,
        blocks: NDArray[np.int64],
        prompts: _Prompts,
        chance: np.random.Generator,
    ) -> _DeploymentPast:
        """The past of one deployment, target by target, and what all of them gained together."""
        first = int(np.argmax(load.of_all > 0))
        own = {identity: window for identity, window in emulated.items() if identity.deployment() == deployment}
        drawn: list[tuple[_Moments, _Drawn, Identity]] = []
        for role in dict.fromkeys(identity.role for identity in own):
            alike = {identity: window for identity, window in own.items() if identity.role == role}
            moments = _Moments.of(alike)
            scale = load.of_all if role in ("router", "autoscaler") else load.of_each
            for identity in alike:
                each = moments.draw(scale[first:], chance)
                _redraw_errors(moments.counters, each.gains, load.error_share, chance)
                _join_moments(moments.counters, each.gains)
                prompts.redraw(moments.counters, each.gains, chance)
                drawn.append((moments, each, identity))
        counters = tuple(dict.fromkeys(each for moments, _, _ in drawn for each in moments.counters))
        rows = {each: row for row, each in enumerate(counters)}
        gains = np.zeros((len(counters), len(blocks) - first))
        for moments, each, _ in drawn:
            gains[[rows[series] for series in moments.counters]] += each.gains
        return cls(deployment, first, blocks[first:], drawn, load.started_ms, counters, gains)

    def write(self, store: Store) -> None:
        for moments, drawn, identity in self.drawn:
            store.append_increments(moments.increments(drawn, identity, self.blocks, self.started_ms))
        gauges = [each for moments, _, _ in self.drawn for each in moments.gauges]
        levels = np.concatenate([drawn.levels for _, drawn, _ in self.drawn])
        figures = dict(derive_blocks(self.counters, self.gains, gauges, levels))
        for column, block in enumerate(self.blocks.tolist()):
            known = {key: float(values[column]) for key, values in figures.items() if values[column] == values[column]}
            store.append_figures(self.deployment, block + BLOCK_MS, known)

    def count(self, budgets: Budgets, column: int | None) -> None:
        """Have error budgets count all up to the end of a block, or the zero before the first."""
        grown = np.zeros(len(self.counters)) if column is None else self.gains[:, : column + 1].sum(axis=1)
        budgets.count(f"past of {self.deployment.deployment_id}", self.deployment, Snapshot(self.counters, grown))


def _redraw_errors(counters: Sequence[Series], gains: Floats, share: float, chance: np.random.Generator) -> None:
    """Have this share of the requests that ended `ok` or as an `error` fail, drawn anew."""
    outcomes = {dict(each.labels)["outcome"]: row for row, each in enumerate(counters) if each.name == _REQUESTS}
    if outcomes.keys() >= {"ok", "error"}:
        ended = gains[outcomes["ok"]] + gains[outcomes["error"]]
        gains[outcomes["error"]] = chance.binomial(ended.astype(np.int64), share)
        gains[outcomes["ok"]] = ended - gains[outcomes["error"]]


def _join_moments(counters: Sequence[Series], gains: Floats) -> None:
    """Have as many requests begin and have first tokens in each block as end: what moments of other times differ by
    would never end."""
    outcomes = {dict(each.labels)["outcome"]: row for row, each in enumerate(counters) if each.name == _REQUESTS}
    if not outcomes:
        return
    gains[[row for row, each in enumerate(counters) if each.name == _STARTED]] = gains[[*outcomes.values()]].sum(axis=0)
    own = [(row, each) for row, each in enumerate(counters) if each.name.startswith(f"{_FIRST_TOKEN}_")]
    rows = {dict(each.labels).get("le", each.name): row for row, each in own}
    edges = sorted((edge for edge in rows if not edge.startswith(_FIRST_TOKEN)), key=float)
    if not edges:
        return
    buckets = [rows[edge] for edge in edges]
    within = np.diff(gains[buckets], axis=0, prepend=0.0)
    fullest = within.argmax(axis=0)
    more = np.maximum(gains[outcomes["ok"]] - gains[rows[f"{_FIRST_TOKEN}_count"]], -within.max(axis=0))
    # Those that are added, or taken away, are of the fullest bucket and of the mean.
    means = gains[rows[f"{_FIRST_TOKEN}_sum"]] / np.maximum(1.0, gains[rows[f"{_FIRST_TOKEN}_count"]])
    gains[buckets] += more * (np.arange(len(edges))[:, None] >= fullest)
    gains[rows[f"{_FIRST_TOKEN}_count"]] += more
    gains[rows[f"{_FIRST_TOKEN}_sum"]] += more * means


@dataclass(frozen=True, slots=True, eq=False)
class _Prompts:
    """The sizes of the prompts of all deployments, which get the same; the few of some minutes would differ by chance.

    `edges` are those of the buckets, `shares` of the prompts are in each, and their `means` are in tokens.
    """

    edges: tuple[str, ...]
    shares: Floats
    means: Floats

    @classmethod
    def of(cls, emulated: Mapping[Identity, Window]) -> _Prompts:
        """Those that all targets counted."""
        counts: dict[str, float] = {}
        total = 0.0
        for window in emulated.values():
            for series, values in zip(window.series, window.values, strict=True):
                if series.name == f"{PROMPT_SIZES}_bucket":
                    edge = dict(series.labels)["le"]
                    counts[edge] = counts.get(edge, 0.0) + values[-1] - values[0]
                elif series.name == f"{PROMPT_SIZES}_sum":
                    total += values[-1] - values[0]
        edges = tuple(sorted(counts, key=float))
        within = np.diff([counts[edge] for edge in edges], prepend=0.0)
        uppers = np.array([float(edge) for edge in edges])
        middles = (np.concatenate(([0.0], uppers[:-1])) + np.where(np.isfinite(uppers), uppers, 0.0)) / 2
        return cls(edges, within / within.sum(), middles * total / (middles @ within))

    def redraw(self, counters: Sequence[Series], gains: Floats, chance: np.random.Generator) -> None:
        """Have the prompts of each block be of these sizes, drawn anew."""
        own = [(row, each) for row, each in enumerate(counters) if each.name.startswith(PROMPT_SIZES)]
        rows = {dict(each.labels).get("le", each.name): row for row, each in own}
        if rows:
            counts = gains[rows[f"{PROMPT_SIZES}_count"]].astype(np.int64)
            drawn = chance.multinomial(counts, self.shares)
            gains[[rows[edge] for edge in self.edges]] = drawn.cumsum(axis=1).T
            gains[rows[f"{PROMPT_SIZES}_sum"]] = np.round(drawn @ self.means)


# --- Moments ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """What one target gained in n blocks, (m, n), the levels of its gauges, and the shares above theirs, (g, n)."""

    gains: Floats
    levels: Floats
    above: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Moments:
    """The u moments of targets that are alike: gains of their counters (m, u), levels of their gauges (g, u).

    Series have no labels of an identity. A block at the load that was emulated has `per_block` of them.
    """

    counters: tuple[Series, ...]
    gains: Floats
    gauges: tuple[Series, ...]
    levels: Floats
    per_block: float

    @classmethod
    def of(cls, windows: Mapping[Identity, Window]) -> _Moments:
        """Those of several targets together."""
        named = [(_without_identity(identity, window), window) for identity, window in windows.items()]
        series = dict.fromkeys(each for own, _ in named for each in own)
        counters = tuple(each for each in series if _kind(each) in ("counter", "histogram"))
        gauges = tuple(each for each in series if _kind(each) == "gauge")
        gains, levels = [], []
        for own, window in named:
            values = {each: window.values[row] for row, each in enumerate(own)}
            count = len(window.times) - 1
            grown = [np.nan_to_num(np.diff(values[each])) if each in values else np.zeros(count) for each in counters]
            shown = [values[each][1:] if each in values else np.full(count, np.nan) for each in gauges]
            gains.append(np.array(grown).reshape(len(counters), count))
            levels.append(np.array(shown).reshape(len(gauges), count))
        interval_ms = float(np.median(np.diff(named[0][1].times)))
        return cls(counters, np.hstack(gains), gauges, np.hstack(levels), BLOCK_MS / interval_ms)

    def draw(self, load: Floats, chance: np.random.Generator) -> _Drawn:
        """n blocks at the given loads, (n,)."""
        wanted = load * self.per_block
        counts = np.maximum(wanted.astype(np.int64) + (chance.random(len(load)) < wanted % 1), 1)
        begins = np.concatenate(([0], np.cumsum(counts)[:-1]))
        picked = chance.integers(self.gains.shape[1], size=int(counts.sum()))
        of_load = np.array([each.name in _OF_LOAD for each in self.gauges], dtype=bool)
        limits = np.array([JUDGED_GAUGES.get(each.name) or np.nan for each in self.gauges])
        is_zero = np.array([JUDGED_GAUGES.get(each.name) == 0.0 for each in self.gauges], dtype=bool)
        limits[is_zero] = 0.0
        levels = self.levels[:, picked] * np.repeat(load, counts)
        # What an autoscaler wants does not change from moment to moment.
        levels[~of_load] = _usual(self.levels[~of_load])[:, None]
        above = np.where(np.isnan(limits)[:, None], np.nan, levels > limits[:, None])
        return _Drawn(
            np.add.reduceat(self.gains[:, picked], begins, axis=1),
            np.add.reduceat(levels, begins, axis=1) / counts,
            np.add.reduceat(above, begins, axis=1) / counts,
        )

    def increments(
        self, drawn: _Drawn, identity: Identity, blocks: NDArray[np.int64], started_ms: int
    ) -> TargetIncrements:
        judged = [row for row, each in enumerate(self.gauges) if each.name in JUDGED_GAUGES]
        none = np.zeros(len(blocks), dtype=np.int64)
        return TargetIncrements(
            identity.target_id,
            identity,
            blocks,
            self.counters,
            drawn.gains,
            tuple(self.gauges[row] for row in judged),
            drawn.levels[judged],
            drawn.above[judged],
            np.full(len(blocks), float(started_ms)),
            Tallies(np.full(len(blocks), round(self.per_block)), none, none, none, none),
        )


def _usual(levels: Floats) -> Floats:
    """The usual level of each gauge (g, u), one that it had; NaN where it was not there."""
    shown = np.sort(levels, axis=1)
    known = np.isfinite(levels).sum(axis=1)
    usual: Floats = shown[np.arange(len(shown)), np.maximum(known - 1, 0) // 2]
    return usual


def _without_identity(identity: Identity, window: Window) -> list[Series]:
    own = frozenset(identity.labels())
    return [Series(name, tuple(pair for pair in labels if pair not in own)) for name, labels in window.series]


def _kind(series: Series) -> str:
    family = SAMPLE_FAMILIES.get(series.name)
    return METRICS[family].kind if family is not None else ""
