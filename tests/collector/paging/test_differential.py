"""The collector's alerts have the states that a real Prometheus gives them on the same samples."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from alerts.objectives import objective_group
from alerts.recording import render_recording_rules
from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.evaluation import (
    Active,
    Instant,
    advance,
    duration_ms,
    is_evaluated_by_collector,
    values_of,
)
from servescope.alerting.rules.promql import condition_promql
from servescope.alerting.rules.records import BadRatio, terms
from servescope.contract.expressions import Vector
from servescope.contract.metrics import METRICS
from servescope.contract.objectives import LONGEST_READ
from servescope.contract.samples import Labels, Sample, format_series
from servescope.emulator.deployment.stack import V1, V2
from servescope.emulator.faults.faults import parse_fault
from servescope.emulator.workload.mixes import Mix
from servescope.settings.values import format_duration
from servescope.store.embedded import Store
from servescope.store.exporting.openmetrics import write_openmetrics
from servescope.store.exporting.selection import Selection
from tests.support.documents import read_yaml
from tests.support.observed_stack import START_SECONDS, ObservedStack, observed
from tests.support.past import make_blocks
from tests.support.prometheus import Prometheus, Range, running

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("quiet")]

STEP_SECONDS = 15
STEPS = 160
# Steady, and enough for every alert that asks for traffic.
TRAFFIC = Mix(requests_per_second=2.0, burst_factor=1.0, day_amplitude=0.0)
FAULTS = {
    # From which evaluation to which.
    "draft-misaligned": (15, 85), "router-losing-events": (10, 70), "replica-crash-loop": (40, 100),
    "error-burst:0.5": (100, 130), "counters-reset:120": (20, 140), "autoscaler-pinned": (30, 90),
    "truncated-exposition:0.5": (105, 120), "latency-regression:3": (95, 150),
}  # fmt: skip
# An instant vector holds what was there at the very instant: what a scrape no longer showed is gone, though blocks that
# promtool makes have no stale markers.
_LOOKBACK = "--query.lookback-delta=4s"
SAME = 1e-9
# Shares over longer windows are of all that was counted, not extrapolated to the window's ends.
NEARLY_SAME, SUMMED_NEARLY_SAME = 0.02, 0.03
# In Prometheus, windows of more than an hour count what happened within the last five minutes in part.
_SUMMED_LATER = 300 // STEP_SECONDS + 1

AlertStates = Mapping[tuple[str, Labels], str]


@dataclass
class Played:
    """A collector's alert states, own series and budgets at each evaluation, and its window."""

    window: str
    instants: list[int] = field(default_factory=list)
    states: list[AlertStates] = field(default_factory=list)
    own: list[Mapping[str, Vector]] = field(default_factory=list)
    counted: list[Sequence[Sample]] = field(default_factory=list)
    shares: list[Mapping[BadRatio, Vector]] = field(default_factory=list)


def test_alerts_have_the_same_state_at_every_evaluation(prometheus: Path, promtool: Path, tmp_path: Path) -> None:
    """Faults come and go: the same alerts are pending, firing, kept firing and resolved at the same evaluations."""
    with observed(tmp_path, TRAFFIC, V1, V2) as stack:
        played = _play(stack)
    scraped = _scraped(tmp_path, played)
    recorded: list[str] = []
    for number, rules in enumerate(_stages(played)):
        with _holding([*scraped, *recorded], tmp_path / f"stage-{number}", prometheus, promtool) as server:
            recorded += _record(server, played, rules)
    with _holding([*scraped, *recorded], tmp_path / "recorded", prometheus, promtool) as server:
        _compare(server, played)
        _compare_shares(server, played)


def _play(stack: ObservedStack) -> Played:
    played = Played(format_duration(stack.collector.fleet.settings.window_ms))
    alerts = stack.collector.alerts
    requirements = alerts.view.requirements
    on: dict[str, int] = {}
    for step in range(STEPS):
        for fault, (start, end) in FAULTS.items():
            if step == start:
                on[fault] = stack.faults.switch_on(parse_fault(fault)).number
            if step == end:
                stack.faults.switch_off(on[fault])
        stack.run(STEP_SECONDS)
        evaluation = stack.collector.evaluating.evaluate(stack.collector.clock.now_ms)
        played.counted.append([sample for each in evaluation.deployments.values() for sample in each.counted])
        played.instants.append(stack.collector.clock.now_ms)
        played.states.append({
            (each.alert, each.labels): each.state for each in alerts.states.instances() if each.resolved_ms is None
        })  # fmt: skip
        played.own.append(stack.collector.own.read({*requirements.own, *requirements.counters}))
        at = Instant(alerts.view)
        played.shares.append(
            {
                term: values_of(term, at)
                for term in (*requirements.budgets, *requirements.badness)
                if isinstance(term, BadRatio)
            }
        )
    return played


def _scraped(folder: Path, played: Played) -> list[str]:
    """The samples that the collector scraped, and its own series at evaluations, as lines of OpenMetrics."""
    text = folder / "scraped.txt"
    with Store(folder / "servescope.db", read_only=True) as store:
        selection = Selection(
            tuple(store.deployments()), tuple(METRICS), played.instants[0] - 60_000, played.instants[-1]
        )
        write_openmetrics(store, selection, text)
    lines = [line for line in text.read_text().splitlines(keepends=True) if not line.startswith(("servescope_", "#"))]
    for at_ms, own, counted in zip(played.instants, played.own, played.counted, strict=True):
        lines += (_line(*sample, at_ms) for sample in counted)
        for name, vector in own.items():
            lines += (_line(name, labels, value, at_ms) for labels, value in vector.items())
    return lines


def _stages(played: Played) -> Iterator[list[dict[str, str]]]:
    """The recording rules, those that read what others record after these."""
    groups = read_yaml(render_recording_rules(played.window))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    rules += objective_group(interval=f"{STEP_SECONDS}s")["rules"]
    while rules:
        waiting = {rule["record"] for rule in rules}
        ready = [rule for rule in rules if not waiting & set(re.findall(r"deployment:\w+:\w+", rule["expr"]))]
        assert ready, waiting
        yield ready
        rules = [rule for rule in rules if rule not in ready]


def _record(server: Prometheus, played: Played, rules: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """What recording rules make of it at each evaluation, as Prometheus computes it."""
    for rule in rules:
        for found in _range(server, rule["expr"], played):
            labels = _without_name(found.labels)
            for at_ms, value in zip(found.times, found.values, strict=True):
                if math.isfinite(value):
                    yield _line(rule["record"], labels, value, at_ms)


@contextmanager
def _holding(lines: Sequence[str], folder: Path, prometheus: Path, promtool: Path) -> Iterator[Prometheus]:
    """A Prometheus that holds these samples."""
    folder.mkdir()
    text = folder / "samples.txt"
    text.write_text("".join([*lines, "# EOF\n"]))
    make_blocks(text, promtool, folder)
    with running(prometheus, folder, {}, options=["--storage.tsdb.retention.time=10y", _LOOKBACK]) as server:
        yield server


def _line(name: str, labels: Labels, value: float, at_ms: int) -> str:
    return f"{format_series(name, labels)} {value!r} {at_ms / 1000}\n"


def _range(server: Prometheus, expression: str, played: Played) -> list[Range]:
    """An expression at every evaluation."""
    return server.query_range(
        expression, start_ms=played.instants[0], end_ms=played.instants[-1], step_ms=STEP_SECONDS * 1000
    )


def _compare(server: Prometheus, played: Played) -> None:
    differ: list[str] = []
    compared = 0
    fired = set()
    for name, alert in ALERTS.items():
        if not is_evaluated_by_collector(alert):
            continue
        held: dict[int, Vector] = {at_ms: {} for at_ms in played.instants}
        for found in _range(server, condition_promql(alert.condition, played.window), played):
            labels = _without_name(found.labels)
            for at_ms, value in zip(found.times, found.values, strict=True):
                held[at_ms][labels] = value
        active: dict[Labels, Active] = {}
        theirs: list[Mapping[Labels, str]] = []
        for at_ms in played.instants:
            active = advance(alert, active, held[at_ms], at_ms)
            theirs.append({labels: "pending" if each.fired_ms is None else "firing" for labels, each in active.items()})
            fired |= {name for state in theirs[-1].values() if state == "firing"}
        around = _SUMMED_LATER if any(isinstance(term, BadRatio) for term in terms(alert.condition)) else 0
        for number, (at_ms, states) in enumerate(zip(played.instants, played.states, strict=True)):
            ours = {labels: state for (other, labels), state in states.items() if other == name}
            compared += len(theirs[number].keys() | ours.keys())
            if not _is_shown(ours, theirs, number, around):
                differ.append(f"{name} at {at_ms / 1000 - START_SECONDS:.0f} s: {ours}, in Prometheus {theirs[number]}")
    print(f"\n{compared} states compared at {len(played.instants)} evaluations; fired: {', '.join(sorted(fired))}")
    assert not differ, f"{len(differ)} differ:\n" + "\n".join(differ[:12])


def _is_shown(ours: Mapping[Labels, str], theirs: Sequence[Mapping[Labels, str]], number: int, around: int) -> bool:
    """Whether Prometheus has the same states at an evaluation, each at most so many evaluations earlier or later."""
    near = theirs[max(number - around, 0) : number + around + 1]
    return all(
        any(each.get(labels) == ours.get(labels) for each in near) for labels in ours.keys() | theirs[number].keys()
    )


def _compare_shares(server: Prometheus, played: Played) -> None:
    """The bad shares of objectives: over five minutes the same numbers, over longer windows nearly the same."""
    largest = {"over 5m": 0.0, "over an hour": 0.0, "over more": 0.0}
    highest = 0.0
    for term in played.shares[0]:
        theirs = {
            (_without_name(found.labels), at_ms): value
            for found in _range(server, term.objective.record(term.window), played)
            for at_ms, value in zip(found.times, found.values, strict=True)
        }
        ours = {
            (labels, at_ms): value
            for at_ms, shares in zip(played.instants, played.shares, strict=True)
            for labels, value in shares[term].items()
        }
        assert ours.keys() == theirs.keys(), f"{term.objective.name} over {term.window}"
        highest = max([highest, *theirs.values()])
        is_summed = duration_ms(term.window) > duration_ms(LONGEST_READ)
        for (labels, at_ms), value in theirs.items():
            # What is summed is smoothed: it is within the shares of the last five minutes.
            since_ms = at_ms - _SUMMED_LATER * STEP_SECONDS * 1000 if is_summed else at_ms
            near = [ours[labels, at] for at in played.instants if since_ms <= at <= at_ms and (labels, at) in ours]
            span = "over more" if is_summed else "over 5m" if term.window == "5m" else "over an hour"
            largest[span] = max(largest[span], min(near) - value, value - max(near))
    print(f"bad shares up to {highest:.2f}; they differ by {largest}")
    assert highest > 0.1
    assert largest["over 5m"] <= SAME
    assert largest["over an hour"] <= NEARLY_SAME
    assert largest["over more"] <= SUMMED_NEARLY_SAME


def _without_name(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != "__name__")
