"""The same samples in a Prometheus and in a VictoriaMetrics, what our rules record in each, and their differences.

Targets are scraped at seconds of their own, as scrapers do, so that no window begins and ends at a scrape of all.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray

from alerts.__main__ import GENERATED as RULES
from servescope.contract.identity import Identity
from servescope.contract.samples import Labels, format_series, make_labels
from servescope.emulator.faults import Faults, make_fault
from servescope.emulator.stack import V1, V2, V2_DISAGGREGATED, EmulatedStack
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.exposition.rendering import render
from tests.support import victoria_metrics
from tests.support.filled_prometheus import EVERY_RULE, RETENTION, SCRAPE_SECONDS, START_SECONDS, add_samples
from tests.support.prometheus import Prometheus, running
from tests.support.recording_rules import RECORDING_FILES
from tests.support.victoria_cluster import read_flags
from tests.support.victoria_metrics import VictoriaMetrics

SECONDS: Final = 2400
FIRST_SECONDS: Final = 600
"""From here on is compared: no window but the longest begins before the first scrape."""

STEP_MS: Final = 15_000
_NEW: Final = "chat-v2"
# (kind, intensity, deployment, from second, to second)
_FAULTS: Final = (
    ("counters-reset", 90.0, _NEW, 900, 1300),
    ("error-burst", 0.05, "chat-v1", 1000, 1600),
    ("draft-misaligned", 0.5, _NEW, 1200, 1900),
    ("traffic-surge", 2.0, "", 1700, 2000),
)
_SAMPLE = re.compile(rb"^([a-zA-Z_:][^ ]*(?:\{.*\})?) (\S+)$", re.MULTILINE)
# Of the shipped flags of a storage node, those that change what a query answers.
_QUERY_FLAGS: Final = ("-dedup.", "-search.maxQueryLen")


@dataclass(frozen=True, slots=True)
class Line:
    """One sample as a page had it, and when it was scraped."""

    series: bytes
    value: bytes
    time_ms: int

    def openmetrics(self) -> bytes:
        """For promtool."""
        return b"%s %s %.3f\n" % (self.series, self.value, self.time_ms / 1000)

    def victoria(self) -> bytes:
        """For VictoriaMetrics' import."""
        return b"%s %s %d\n" % (self.series, self.value, self.time_ms)


@dataclass(frozen=True, slots=True)
class Both:
    """Both servers with the same samples, and each with what the recording rules make of them in it."""

    prometheus: Prometheus
    victoria: VictoriaMetrics


@dataclass(slots=True)
class Difference:
    """What an expression is in both: values in one alone, and the differences of those in both.

    A difference is a share of the larger value, or of what the expression usually is where both are smaller.
    """

    name: str
    only_prometheus: int
    only_victoria: int
    shares: NDArray[np.float64]

    def within(self, share: float) -> float:
        """The difference that this share of the values in both does not exceed; 0 without any."""
        return float(np.quantile(self.shares, share, method="higher")) if len(self.shares) else 0.0


def make_stack() -> EmulatedStack:
    """A v1 with errors, a v2 that restarts and gets worse, one in phases, and more traffic for a while."""
    agents = replace(V2_DISAGGREGATED, identity=replace(V2.identity, deployment_id="agents-v2"))
    stack = EmulatedStack.of(
        [(V1, 0.5), (V2, 0.3), (agents, 0.2)], traffic=GeneratedTraffic(Mix(abort_share=0.03))
    )  # fmt: skip
    Faults(
        stack,
        [
            make_fault(kind, intensity, deployment=place, start_seconds=first, end_seconds=last)
            for kind, intensity, place, first, last in _FAULTS
        ],
    )
    return stack


def scrape(stack: EmulatedStack, seconds: int = SECONDS) -> Iterator[Line]:
    """Every sample, in the order of the scrapes."""
    for after in range(0, seconds, SCRAPE_SECONDS):
        for offset_ms in sorted({_offset_ms(target.identity) for target in stack.targets()}):
            stack.clock.run_until(after + offset_ms / 1000)
            time_ms = (START_SECONDS + after) * 1000 + offset_ms
            for target in stack.targets():
                if _offset_ms(target.identity) == offset_ms:
                    found = _SAMPLE.findall(render(target.instruments))
                    yield from (Line(series, value, time_ms) for series, value in found)


def _offset_ms(identity: Identity) -> int:
    digest = hashlib.md5(identity.target_id.encode(), usedforsecurity=False).digest()
    return 1 + int.from_bytes(digest[:4], "big") % (SCRAPE_SECONDS * 1000 - 1)


@contextmanager
def both_servers(prometheus: Path, promtool: Path, victoria: Path, folder: Path) -> Iterator[Both]:
    """Both, filled and at rest, for the length of the block."""
    lines = sorted(scrape(make_stack()), key=lambda line: line.time_ms)
    filled = folder / "prometheus"
    add_samples(promtool, filled, map(Line.openmetrics, lines))
    for _ in range(EVERY_RULE):
        with running(prometheus, filled, {}, options=RETENTION) as server:
            recorded = [line for rule in recording_rules() for line in _recorded(server, rule)]
        add_samples(promtool, filled, map(Line.openmetrics, sorted(recorded, key=lambda line: line.time_ms)))
    flags = [flag for flag in read_flags("storage") if flag.startswith(_QUERY_FLAGS)]
    # Without the cache, a range of queries is not moved to multiples of its step.
    flags.append("-search.disableCache")
    with (
        running(prometheus, filled, {}, options=RETENTION) as reference,
        victoria_metrics.running(victoria, folder / "victoria", options=flags) as beside,
    ):
        beside.add_samples(b"".join(map(Line.victoria, lines)))
        for rule in recording_rules():
            beside.add_samples(b"".join(map(Line.victoria, _recorded(beside.reader, rule))))
        yield Both(reference, beside)


def recording_rules() -> Iterator[Mapping[str, Any]]:
    """Every recording rule; those that read what others record come after them."""
    for name in RECORDING_FILES:
        for group in yaml.safe_load((RULES / name).read_text(encoding="utf-8"))["groups"]:
            yield from group["rules"]


def _recorded(server: Prometheus, rule: Mapping[str, Any]) -> Iterator[Line]:
    """What a rule makes of what a server has, at every evaluation."""
    start_ms = START_SECONDS * 1000
    end_ms = start_ms + SECONDS * 1000
    for each in server.query_range(rule["expr"], start_ms=start_ms, end_ms=end_ms, step_ms=STEP_MS):
        labels = {**_unnamed(each.labels), **rule.get("labels", {})}
        series = format_series(rule["record"], make_labels(labels)).encode()
        for at, value in zip(each.times, each.values, strict=True):
            yield Line(series, repr(value).encode(), at)


def _unnamed(labels: Labels) -> dict[str, str]:
    return {name: value for name, value in labels if name != "__name__"}


def values_of(server: Prometheus, expression: str, *, step_ms: int = STEP_MS) -> dict[tuple[Labels, int], float]:
    """What the expression is at every step of what is compared."""
    start_ms, end_ms = (START_SECONDS + FIRST_SECONDS) * 1000, (START_SECONDS + SECONDS) * 1000
    return {
        (make_labels(_unnamed(each.labels)), at): value
        for each in server.query_range(expression, start_ms=start_ms, end_ms=end_ms, step_ms=step_ms)
        for at, value in zip(each.times, each.values, strict=True)
        # What MetricsQL leaves out.
        if not math.isnan(value)
    }


def compare(both: Both, expressions: Iterable[tuple[str, str]], *, step_ms: int = STEP_MS) -> Iterator[Difference]:
    """Each expression, with its name, in both."""
    for name, expression in expressions:
        ask = partial(values_of, expression=expression, step_ms=step_ms)
        ours, theirs = ask(both.prometheus), ask(both.victoria.reader)
        shared = [key for key in ours if key in theirs]
        one, other = (np.array([values[key] for key in shared]) for values in (ours, theirs))
        yield Difference(name, len(ours) - len(shared), len(theirs) - len(shared), _shares(one, other))


def _shares(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    usual = np.median(np.abs(one)) if len(one) else 0.0
    larger = np.maximum(np.maximum(np.abs(one), np.abs(other)), usual)
    # Both may be the same infinity, or 0 where that is usual.
    return np.divide(np.abs(one - other), larger, out=np.zeros_like(one), where=one != other)


def merged(name: str, differences: Sequence[Difference]) -> Difference:
    """Several as one."""
    return Difference(
        name,
        sum(each.only_prometheus for each in differences),
        sum(each.only_victoria for each in differences),
        np.concatenate([each.shares for each in differences]),
    )
