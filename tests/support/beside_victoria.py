"""The same samples in a Prometheus and in a VictoriaMetrics, what our rules record in each, and their differences."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import numpy as np
from cramjam import snappy
from numpy.typing import NDArray

from alerts.rules import render_bundle
from servescope.contract.samples import Labels, make_labels
from servescope.customers.points.prometheus_series import STALE
from servescope.customers.transports.remote_write_messages import WriteRequest
from servescope.emulator.deployment.stack import V1, V2, V2_DISAGGREGATED, EmulatedStack
from servescope.emulator.faults.faults import Faults, make_fault
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.exposition.rendering import render
from servescope.generating.rules import Format
from servescope.sources.parse import parse_exposition
from tests.support import victoria_metrics
from tests.support.documents import read_yaml
from tests.support.filled_prometheus import RETENTION, SCRAPE_SECONDS, START_SECONDS
from tests.support.prometheus import Prometheus, running
from tests.support.victoria_cluster import read_flags
from tests.support.victoria_metrics import VictoriaMetrics
from tests.support.waiting import deadline_seconds

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
_SERIES_A_REQUEST: Final = 1000
# Of the shipped flags of a storage node, those that change what a query answers.
_QUERY_FLAGS: Final = ("-dedup.", "-search.maxQueryLen")


Samples = dict[Labels, list[tuple[int, float]]]
"""By series, `__name__` among its labels: its samples in the order of their times."""


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


def scrape(stack: EmulatedStack, seconds: int = SECONDS) -> Samples:
    """Every sample, and a stale marker wherever a scrape no longer has a series or a target is there no longer."""
    samples: Samples = {}
    shown: dict[str, list[Labels]] = {}
    for after in range(0, seconds, SCRAPE_SECONDS):
        offsets = {target.identity.target_id: _offset_ms(target.identity.target_id) for target in stack.targets()}
        for name in [*offsets, *(name for name in shown if name not in offsets)]:
            offsets.setdefault(name, _offset_ms(name))
        for name, offset_ms in sorted(offsets.items(), key=itemgetter(1)):
            stack.clock.run_until(after + offset_ms / 1000)
            page = next((each for each in stack.targets() if each.identity.target_id == name), None)
            found = [] if page is None else parse_exposition(render(page.instruments).decode()).samples
            values = {make_labels({"__name__": sample, **dict(labels)}): value for sample, labels, value in found}
            values |= {series: STALE for series in shown.get(name, ()) if series not in values}
            for series, value in values.items():
                samples.setdefault(series, []).append(((START_SECONDS + after) * 1000 + offset_ms, value))
            shown[name] = [series for series, value in values.items() if not math.isnan(value)]
    return samples


def _offset_ms(target_id: str) -> int:
    digest = hashlib.md5(target_id.encode(), usedforsecurity=False).digest()
    return 1 + int.from_bytes(digest[:4], "big") % (SCRAPE_SECONDS * 1000 - 1)


@contextmanager
def both_servers(prometheus: Path, victoria: Path, folder: Path) -> Iterator[Both]:
    """Both, filled and at rest, for the length of the block."""
    flags = [flag for flag in read_flags("storage") if flag.startswith(_QUERY_FLAGS)]
    # Without the cache, a range of queries is not moved to multiples of its step.
    flags.append("-search.disableCache")
    options = (*RETENTION, "--web.enable-remote-write-receiver")
    samples = scrape(make_stack())
    with (
        running(prometheus, folder / "prometheus", {}, options=options) as reference,
        victoria_metrics.running(victoria, folder / "victoria", options=flags) as beside,
    ):
        url = f"http://127.0.0.1:{reference.port}/api/v1/write"
        for server, write_url in ((reference, url), (beside.reader, beside.remote_write_url)):
            _write(write_url, samples)
            beside.flush()
            for rule in recording_rules("prometheus" if server is reference else "victoriametrics"):
                _write(write_url, _recorded(server, rule))
                beside.flush()
        yield Both(reference, beside)


def _write(url: str, samples: Samples) -> None:
    every = list(samples.items())
    for first in range(0, len(every), _SERIES_A_REQUEST):
        request = WriteRequest()
        for labels, values in every[first : first + _SERIES_A_REQUEST]:
            series = request.timeseries.add()
            for name, value in labels:
                series.labels.add(name=name, value=value)
            for time_ms, number in values:
                series.samples.add(value=number, timestamp=time_ms)
        headers = {
            "Content-Encoding": "snappy", "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }  # fmt: skip
        body = bytes(snappy.compress_raw(request.SerializeToString()))
        with urlopen(Request(url, body, headers), timeout=deadline_seconds()):
            pass


def recording_rules(form: Format) -> Iterator[Mapping[str, Any]]:
    """Every recording rule for this engine; those that read what others record come after them."""
    for group in read_yaml(render_bundle(form))["groups"]:
        yield from (rule for rule in group["rules"] if "record" in rule)


def _recorded(server: Prometheus, rule: Mapping[str, Any]) -> Samples:
    """What a rule makes of what a server has, at every evaluation."""
    start_ms = START_SECONDS * 1000
    end_ms = start_ms + SECONDS * 1000
    return {
        make_labels({**_unnamed(each.labels), **rule.get("labels", {}), "__name__": rule["record"]}): list(
            zip(each.times, each.values, strict=True)
        )
        for each in server.query_range(rule["expr"], start_ms=start_ms, end_ms=end_ms, step_ms=STEP_MS)
    }


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
