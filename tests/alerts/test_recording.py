"""The recording rules: every one has the value that is counted by hand, over a restart, when idle, and without data."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, assert_never

import pytest

from alerts.__main__ import FILES, GENERATED
from servescope.alerting.rules.promises import objectives_of
from servescope.contract.expressions import (
    Difference,
    Expression,
    FractionAbove,
    Increase,
    Level,
    Matchers,
    Quantile,
    Rate,
    Ratio,
    leaves,
    matches,
)
from servescope.contract.figures import FIGURES, RECORDED_HISTOGRAMS, record_buckets
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.metrics import METRICS
from servescope.contract.objectives import BASE_WINDOW, BURN_WINDOWS, LONGEST_READ, record_ended
from servescope.contract.samples import format_edge
from servescope.contract.types import Metric
from tests.support.alert_stories import DEPLOYMENT, series
from tests.support.documents import read_yaml
from tests.support.promtool import Suite, failures
from tests.support.recording_rules import RECORDING_FILES, RULES, Rule, is_of_catalog

REPLICAS = ("r0", "r1")
SCRAPE_SECONDS = 15
_LONGEST_GROUP_SECONDS = 300

Key = tuple[tuple[str, str], ...]


def _recorded() -> list[dict[str, Any]]:
    documents = [read_yaml((GENERATED / name).read_text(encoding="utf-8")) for name in RECORDING_FILES]
    rules = (rule for document in documents for group in document["groups"] for rule in group["rules"])
    return [rule for rule in rules if is_of_catalog(rule)]


def test_every_recording_rule_has_its_stories() -> None:
    """None is written that is not tried below, and none is tried that is not written."""
    assert [rule["record"] for rule in _recorded()] == list(RULES)


# --- By hand ----------------------------------------------------------------------------------------------------------


class Counted:
    """What two replicas count and show, and what an expression over it is, without a window, a scrape or a reset.

    Every native series grows by the same each second, or stays at one value; no two of them alike.
    """

    def __init__(self, *, idle: bool = False) -> None:
        self.idle = idle
        self.values: dict[tuple[str, Key], float] = {}
        read = {name for rule in RULES.values() for name in leaves(rule.expression)}
        for name in sorted({re.sub(r"_(bucket|sum|count)$", "", name) for name in read}):
            self._tell(METRICS[name])

    def _tell(self, metric: Metric) -> None:
        choices = [metric.label_values.get(label, ("0", "1")) for label in metric.labels]
        for number, (replica, values) in enumerate(product(REPLICAS, product(*choices))):
            labels = (("replica", replica), *zip(metric.labels, values, strict=True))
            value = 0.0 if self.idle else 3.0 + number + len(metric.name) % 5
            if metric.kind == "histogram":
                # An objective may be at an edge of other engines.
                promised = objectives_of().get(metric.name.removesuffix("_seconds"))
                edges = {*(metric.edges or ()), *(promised.edges_seconds if promised else ())}
                self._tell_histogram(metric.name, tuple(sorted(edges)), labels, value)
            else:
                self.values[metric.name, labels] = value

    def _tell_histogram(self, name: str, edges: tuple[float, ...], labels: Key, value: float) -> None:
        # A third is in the lowest bucket, half up to the middle one, all but a tenth up to the last.
        for number, edge in enumerate(edges):
            share = 1 / 3 if number < len(edges) // 2 else 0.5 if number < len(edges) - 1 else 0.9
            self.values[f"{name}_bucket", (*labels, ("le", format_edge(edge)))] = value * share
        self.values[f"{name}_bucket", (*labels, ("le", "+Inf"))] = value
        self.values[f"{name}_count", labels] = value
        self.values[f"{name}_sum", labels] = value * 7.0

    def expected(self, expression: Expression, window: int, by: tuple[str, ...]) -> dict[Key, float]:
        """By group, what is recorded; a group is not there where the figure is absent."""
        match expression:
            case Rate(name, where):
                return {group: sum(found) for group, found in self._grouped(name, where, by).items()}
            case Increase(name, where):
                seconds = window * 60
                return {group: sum(found) * seconds for group, found in self._grouped(name, where, by).items()}
            case Level(name, over, where):
                groups = self._grouped(name, where, by)
                return {
                    group: max(each) if over == "max" else fmean(each) if over == "avg" else sum(each)
                    for group, each in groups.items()
                }
            case Ratio(above, under):
                tops, bottoms = self.expected(above, window, by), self.expected(under, window, by)
                return {group: top / bottoms[group] for group, top in tops.items() if bottoms.get(group, 0.0) > 0}
            case Difference(left, right):
                less = self.expected(right, window, by)
                return {group: value - less[group] for group, value in self.expected(left, window, by).items()}
            case FractionAbove(edge, name, _):
                below = sum(self._grouped(f"{name}_bucket", (("le", (format_edge(edge),)),), by).get((), [0.0]))
                total = sum(self._grouped(f"{name}_count", (), by).get((), [0.0]))
                return {(): 1 - below / total} if total > 0 else {}
            case Quantile(quantile, name):
                found = self._quantile(quantile, name)
                return {} if found is None else {(): found}
            case _:
                assert_never(expression)

    def _grouped(self, name: str, where: Matchers, by: tuple[str, ...]) -> dict[Key, list[float]]:
        found: dict[Key, list[float]] = {}
        for (own, labels), value in self.values.items():
            if own == name and matches(dict(labels), where):
                found.setdefault(tuple(pair for pair in labels if pair[0] in by), []).append(value)
        return found

    def _quantile(self, quantile: float, name: str) -> float | None:
        counts: dict[float, float] = {}
        for (own, labels), value in self.values.items():
            if own == f"{name}_bucket":
                edge = float(dict(labels)["le"])
                counts[edge] = counts.get(edge, 0.0) + value
        edges = sorted(counts)
        rank = quantile * counts[math.inf]
        if counts[math.inf] <= 0:
            return None
        place = next(number for number, edge in enumerate(edges) if counts[edge] >= rank - 1e-9)
        if edges[place] == math.inf:
            return edges[place - 1]
        start, before = (edges[place - 1], counts[edges[place - 1]]) if place else (0.0, 0.0)
        return start + (edges[place] - start) * (rank - before) / (counts[edges[place]] - before)

    def given(self, length: int, *, restart: int | None = None) -> Iterator[dict[str, str]]:
        """The series as promtool takes them, minute by minute; the second replica's restart at a minute."""
        return self._given(length, restart=restart, collector={})

    def given_by_two(self, length: int, *, restart: int) -> Iterator[dict[str, str]]:
        """The same from two collectors, of which the second begins anew at a minute and misses the two after it."""
        yield from self._given(length, restart=None, collector={"instance": "a:9400", "job": "servescope", "pod": "a"})
        second = {"instance": "b:9400", "job": "second", "pod": "b"}
        for (name, labels), value in self.values.items():
            key = series(name, {**DEPLOYMENT, **dict(labels), **second})
            if METRICS.get(name, METRICS["requests_total"]).kind == "gauge":
                yield {"series": key, "values": f"{value!r}x{restart} _x2 {value!r}x{length - restart - 3}"}
                continue
            step = value * 60
            again = f"{4 * step!r}+{step!r}x{length - restart - 3}"
            yield {"series": key, "values": f"{1000 * step!r}+{step!r}x{restart - 1} {step!r} _x2 {again}"}

    def _given(self, length: int, *, restart: int | None, collector: Mapping[str, str]) -> Iterator[dict[str, str]]:
        for (name, labels), value in self.values.items():
            family = re.sub(r"_(bucket|sum|count)$", "", name)
            metric = METRICS[name] if name in METRICS else METRICS[family]
            key = series(name, {**DEPLOYMENT, **dict(labels), **collector})
            if metric.kind == "gauge":
                yield {"series": key, "values": f"{value!r}x{length}"}
                continue
            step = value * 60
            start = 1000 * step
            if restart is None or ("replica", REPLICAS[1]) not in labels:
                yield {"series": key, "values": f"{start!r}+{step!r}x{length}"}
            else:
                again = f"{step!r}+{step!r}x{length - restart}"
                yield {"series": key, "values": f"{start!r}+{step!r}x{restart - 1} {again}"}


def _checks(rule: Rule, expected: Mapping[Key, float], ats: Sequence[int]) -> list[dict[str, Any]]:
    samples = [
        {
            "labels": "{" + ", ".join(f'{key}="{text}"' for key, text in {**DEPLOYMENT, **dict(group)}.items()) + "}",
            "value": round(value * _DIGITS),
        }
        for group, value in expected.items()
    ]
    # Floats differ in their last digits from one version to the other, whole numbers do not.
    return [{"expr": f"round({rule.name} * {_DIGITS})", "eval_time": f"{at}m", "exp_samples": samples} for at in ats]


_DIGITS = 100_000
_RAW = [rule for rule in RULES.values() if rule.window <= 60]
_SUMMED = [rule for rule in RULES.values() if 60 < rule.window <= 360]
# The rules are evaluated no oftener than they are looked at: as soon as an hour is full, and twice after.
_EVERY_MINUTES = 33
_LOOKS = (66, 99, 132)
_SUMMED_LOOK, _SUMMED_RESTART = 370, 300
_EVALUATED_EVERY_MINUTE = ("objectives.rules.yml",)


def test_a_long_window_is_as_a_short_one_but_for_its_length() -> None:
    """So that what is tried below over six hours at most holds for days."""
    expressions = {rule["record"]: rule["expr"] for rule in _recorded()}
    for name, rule in RULES.items():
        if rule.window > 360:
            base, operation, window = re.split(r"(rate|increase)(?=\d+[hd]$)", name)
            assert expressions[name].replace(f"[{window}]", "[6h]") == expressions[f"{base}{operation}6h"]


@pytest.mark.slow
@pytest.mark.parametrize("restart", [None, 97, 99])
def test_every_rule_records_what_is_counted_by_hand(both_promtools: Path, tmp_path: Path, restart: int | None) -> None:
    """While all goes on evenly, and over the restart of one of two replicas: within every window, and just now."""
    counted = Counted()
    checks = _checks_of(counted, _RAW)
    given = list(counted.given(_LOOKS[-1], restart=restart))

    assert _failures(both_promtools, tmp_path, given, checks, minutes=_EVERY_MINUTES) == {}


@pytest.mark.slow
@pytest.mark.parametrize("restart", [pytest.param(None, marks=pytest.mark.proof), _SUMMED_RESTART])
def test_windows_of_objectives_sum_what_is_recorded_by_the_minute(
    both_promtools: Path, tmp_path: Path, is_left_open: bool, restart: int | None
) -> None:
    """The shares are those of the whole window, and so many requests ended, also over a restart."""
    counted = Counted()
    checks = _checks_of(counted, _SUMMED, (_SUMMED_LOOK,), is_closed=not is_left_open)
    names = {_family(name) for rule in _SUMMED for name in leaves(rule.expression)}
    given = [each for each in counted.given(_SUMMED_LOOK, restart=restart) if _family(each["series"]) in names]

    assert _failures(
        both_promtools, tmp_path, given, checks, minutes=1, files=_EVALUATED_EVERY_MINUTE
    ) == {}  # fmt: skip


def _family(key: str) -> str:
    name = key.partition("{")[0]
    return name if name in METRICS else re.sub(r"_(bucket|sum|count)$", "", name)


def _checks_of(
    counted: Counted, rules: Iterable[Rule], ats: Sequence[int] = _LOOKS, *, is_closed: bool = False
) -> list[dict[str, Any]]:
    checks = []
    for rule in rules:
        expected = counted.expected(rule.expression, rule.window, rule.by)
        assert expected, rule.name
        if is_closed and isinstance(rule.expression, Increase):
            # A closed window has the evaluations at both its ends.
            expected = {group: value * (rule.window + 1) / rule.window for group, value in expected.items()}
        checks += _checks(rule, expected, ats)
    return checks


@pytest.mark.slow
def test_two_collectors_record_what_one_does(both_promtools: Path, tmp_path: Path) -> None:
    """Every series is there once from each; that one of them begins anew and has a gap does not show."""
    counted = Counted()
    given = counted.given_by_two(_LOOKS[-1], restart=97)

    assert _failures(both_promtools, tmp_path, given, _checks_of(counted, _RAW), minutes=_EVERY_MINUTES) == {}


@pytest.mark.slow
def test_every_rule_of_an_idle_deployment_is_0_or_absent(both_promtools: Path, tmp_path: Path) -> None:
    """As the catalog has it for each figure, and never NaN."""
    counted = Counted(idle=True)
    idle = {figure.record(): figure.idle for figure in FIGURES.values()}
    idle |= dict.fromkeys(map(record_buckets, RECORDED_HISTOGRAMS), "zero")
    idle |= dict.fromkeys((record_ended(row.long) for row in BURN_WINDOWS), "zero")
    idle |= {each.record_all(BASE_WINDOW): "zero" for each in objectives_of().values()}
    # Of nothing there is no bad share, by which it is counted.
    uncounted = {each.record_bad(BASE_WINDOW) for each in objectives_of().values()}
    checks = []
    for rule in RULES.values():
        expected = {} if rule.name in uncounted else counted.expected(rule.expression, rule.window, rule.by)
        assert set(expected.values()) == ({0.0} if idle.get(rule.name, "absent") == "zero" else set()), rule.name
        checks += _checks(rule, expected, (8, 12))

    assert _failures(both_promtools, tmp_path, counted.given(12), checks, minutes=4) == {}


@pytest.mark.slow
def test_without_series_nothing_is_recorded(promtool: Path, tmp_path: Path) -> None:
    """No rule makes something of nothing."""
    checks = [{"expr": rule.name, "eval_time": "8m", "exp_samples": []} for rule in RULES.values()]

    given = [{"series": "something_else", "values": "0+1x20"}]

    assert _failures(promtool, tmp_path, given, checks, minutes=4) == {}


def _failures(
    promtool: Path,
    folder: Path,
    given: Iterable[dict[str, str]],
    checks: list[dict[str, Any]],
    *,
    minutes: int,
    files: Sequence[str] = RECORDING_FILES,
) -> Mapping[str, str]:
    """What promtool finds wrong when the rules are evaluated every so many minutes."""
    test = {"name": "story", "interval": "1m", "input_series": list(given), "promql_expr_test": checks}
    rules = [GENERATED / name for name in files]
    return failures(promtool, folder, {"recorded": Suite([test], files=rules, interval=f"{minutes}m")})


# --- The rules as they are written ------------------------------------------------------------------------------------


def test_windows_hold_four_scrapes_and_groups_are_evaluated_often() -> None:
    """Every window of every rule at the default interval of a scrape, and every group at least each five minutes."""
    for name in FILES:
        for group in read_yaml((GENERATED / name).read_text(encoding="utf-8"))["groups"]:
            assert _seconds(group["interval"]) <= _LONGEST_GROUP_SECONDS
            for rule in group["rules"]:
                for window in re.findall(r"\[(\w+)\]", rule["expr"]):
                    assert _seconds(window) >= 4 * SCRAPE_SECONDS, rule


def test_no_rule_reads_scraped_series_over_more_than_an_hour() -> None:
    """Days of two hundred replicas would be tens of millions of samples every minute."""
    for name in FILES:
        for group in read_yaml((GENERATED / name).read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                ranges = re.findall(r"([a-zA-Z_:][\w:]*)(?:{[^}]*})?\[(\w+)\]", rule["expr"])
                of_metrics = {window for name, window in ranges if _family(name) in METRICS}
                assert all(_seconds(window) <= _seconds(LONGEST_READ) for window in of_metrics), rule


def test_names_say_level_metric_and_operation() -> None:
    """The level is what the result is grouped by; a rate is no total any more."""
    for rule in _recorded():
        level, metric, operation = rule["record"].split(":")
        groups = set(re.findall(r"by \(([^)]*?)(?:, le)?\)", rule["expr"]))
        own = [label for label in RULES[rule["record"]].by if label != "le"]
        windows = set(re.findall(r"(?:rate|increase)(\d+[mhd])$", operation))
        assert level == "deployment"
        # What is made of recorded series has their labels.
        assert groups == ({", ".join((*DEPLOYMENT_LABELS, *own))} if "deployment:" not in rule["expr"] else set())
        assert not metric.endswith("_total")
        assert re.fullmatch(r"sum|avg|max|(?:(?:\w+_)?rate|increase)\d+[mhd]", operation)
        assert set(re.findall(r"\[(\w+)\]", rule["expr"])) <= windows
        assert "deployment:" in rule["expr"] or set(re.findall(r"\[(\w+)\]", rule["expr"])) == windows


def test_a_rules_series_are_bounded_by_its_labels() -> None:
    """A deployment has one series of a rule, or one for each value of a label that has few."""
    bounded = {label for metric in METRICS.values() for label in metric.label_values} | {"position", "le"}

    assert {label for rule in RULES.values() for label in rule.by} <= bounded


def test_labels_that_alerts_add_are_nobody_elses() -> None:
    """Neither of the series they read, nor those that Prometheus' servers commonly add to all they send."""
    external = {"cluster", "region", "prometheus", "prometheus_replica", "tenant", "namespace", "instance", "job"}
    for group in read_yaml((GENERATED / "alerting.rules.yml").read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            assert not set(rule["labels"]) & {*external, *DEPLOYMENT_LABELS, "replica", "role"}


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[duration[-1]]
