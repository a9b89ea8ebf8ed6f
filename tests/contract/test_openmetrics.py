"""OpenMetrics 1.0: heads, units, exemplars and the end, as prometheus_client's strict parser and the standard say."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS
from servescope.contract.openmetrics import head, with_exemplars
from servescope.contract.samples import Labels
from servescope.contract.types import Metric
from servescope.exposition.registry import PrometheusCollector
from servescope.exposition.rendering import render, render_openmetrics
from servescope.exposition.serving import serve
from servescope.instruments.engine import EngineInstruments
from tests.support.prometheus import Point, Prometheus, running
from tests.support.waiting import wait_for


@dataclass(frozen=True)
class Given:
    """An exemplar as the ledger keeps it."""

    trace_id: str
    value: float
    time: float


@pytest.fixture
def engine() -> EngineInstruments:
    engine = EngineInstruments(Identity("llama-70b", "chat-v2", "v2", replica='engine "0"\\'))
    engine.record_request(
        outcome="ok", input_tokens=100, output_tokens=11, time_to_first_token=0.5, duration=2.5, decode_seconds=2.0
    )
    return engine


def test_the_samples_lines_are_those_of_the_text_format(engine: EngineInstruments) -> None:
    """Only the heads and the end differ."""
    lines = [line for line in render_openmetrics(engine).splitlines() if not line.startswith(b"#")]
    assert lines == [line for line in render(engine).splitlines() if not line.startswith(b"#")]


def test_the_page_ends_with_its_end_once(engine: EngineInstruments) -> None:
    """`# EOF`, and nothing behind it."""
    page = render_openmetrics(engine)
    assert page.endswith(b"\n# EOF\n")
    assert page.count(b"# EOF") == 1


def test_a_counters_family_has_no_total() -> None:
    """Its samples have it."""
    assert head(METRICS["requests_total"]).splitlines()[1] == b"# TYPE requests counter"


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("decode_seconds_total", "seconds"),
        ("time_to_first_token_seconds", "seconds"),
        ("input_tokens_total", "tokens"),
        ("queued_requests", "requests"),
        ("requests_total", None),
        ("kv_cache_usage", None),
        ("tps_per_request", None),
    ],
)
def test_a_unit_is_exposed_where_the_name_ends_with_it(name: str, unit: str | None) -> None:
    """As the standard demands; elsewhere there is none."""
    lines = head(METRICS[name]).decode().splitlines()
    family = name.removesuffix("_total")
    assert lines[2:] == ([f"# UNIT {family} {unit}"] if unit else [])


def test_the_collector_exposes_the_same_units(engine: EngineInstruments) -> None:
    """prometheus_client's OpenMetrics of our collector has the units of our page."""
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(engine))
    pages = render_openmetrics(engine), generate_latest(registry)  # type: ignore[no-untyped-call]
    ours, theirs = ({line for line in page.splitlines() if line.startswith(b"# UNIT")} for page in pages)
    assert ours == theirs != set()


def test_help_is_escaped() -> None:
    """Backslash, line end and, other than in the text format, quotes."""
    metric = Metric("x", "gauge", "tokens", "engine", 'a\\b\n"c"')
    assert head(metric).splitlines()[0] == rb"# HELP x a\\b\n\"c\""


def test_exemplars_follow_their_buckets(engine: EngineInstruments) -> None:
    """Read back by prometheus_client, from the page and through its own registry; text has none."""
    engine.record_request(
        outcome="ok", input_tokens=100, output_tokens=11, time_to_first_token=0.5, duration=2.5, decode_seconds=2.0,
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    )  # fmt: skip
    page = render_openmetrics(engine)
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(engine))
    for text in (page, generate_latest(registry)):  # type: ignore[no-untyped-call]
        found = [
            sample
            for family in text_string_to_metric_families(text.decode())  # type: ignore[no-untyped-call]
            for sample in family.samples
            if sample.exemplar
        ]
        assert {(one.name, one.labels["le"], one.exemplar.value) for one in found} == {
            ("tps_per_request_bucket", "5.0", 5.0),
            ("input_tokens_per_request_bucket", "100.0", 100.0),
            ("output_tokens_per_request_bucket", "20.0", 11.0),
            ("time_to_first_token_seconds_bucket", "0.5", 0.5),
            ("time_per_output_token_seconds_bucket", "0.2", 0.2),
            ("request_duration_seconds_bucket", "2.5", 2.5),
        }
        assert {one.exemplar.labels["trace_id"] for one in found} == {"4bf92f3577b34da6a3ce929d0e0e4736"}
        assert all(float(one.exemplar.timestamp) == pytest.approx(time.time(), abs=60) for one in found)
    assert b"4bf92f" not in render(engine)


def test_a_trace_id_that_is_too_long_is_left_out() -> None:
    """The standard allows 128 characters with the label's name."""
    lines = b'x_bucket{le="+Inf"} 1\nx_count 1\nx_sum 1\n'
    assert with_exemplars(lines, [Given("a" * 121, 1.0, 1.0)]) == lines
    assert with_exemplars(lines, [Given("a" * 120, 1.0, 1.0)]) != lines


def test_a_trace_id_is_escaped() -> None:
    """As any label's value; OpenMetrics has the time of an exemplar in seconds."""
    lines = with_exemplars(b'x_bucket{le="+Inf"} 1\nx_count 1\nx_sum 1\n', [Given('a"\\\n', 1.0, 2.5)])
    assert lines.splitlines()[0] == rb'x_bucket{le="+Inf"} 1 # {trace_id="a\"\\\n"} 1.0 2.500'


def test_a_series_without_exemplars_is_as_it_was() -> None:
    """Not even copied."""
    lines = b'x_bucket{le="+Inf"} 1\n'
    assert with_exemplars(lines, [None]) is lines


@pytest.mark.slow
def test_prometheus_prefers_it_and_keeps_the_exemplars(prometheus: Path, tmp_path: Path) -> None:
    """A real Prometheus requests OpenMetrics, compressed, and stores every sample and the trace."""
    engine = EngineInstruments(Identity("llama-70b", "chat-v2", "v2", replica='engine "0"\\'))
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    engine.record_request(
        outcome="ok", input_tokens=100, output_tokens=11, time_to_first_token=0.5, duration=2.5, decode_seconds=2.0,
        trace_id=trace_id,
    )  # fmt: skip
    with serve(engine) as server:
        scrape = {
            "job_name": "engine",
            "scrape_interval": "1s",
            "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}],
        }
        options = ["--enable-feature=exemplar-storage"]
        with running(prometheus, tmp_path, {"scrape_configs": [scrape]}, options=options) as real:
            points = wait_for(lambda: _points(real), "samples of the engine in Prometheus")
            scraped = {_series(dict(point.labels)): point.value for point in points}
            ask = f"http://127.0.0.1:{real.port}/api/v1"
            with urlopen(f"{ask}/query_exemplars?query=request_duration_seconds_bucket&start=0&end=9e9") as answer:
                found = json.load(answer)["data"]
            with urlopen(f"{ask}/metadata?metric=decode_seconds") as answer:
                metadata = json.load(answer)["data"]
    assert scraped == {(sample.name, sample.labels): sample.value for sample in engine.samples()}
    assert [exemplar["labels"] for exemplar in found[0]["exemplars"]] == [{"trace_id": trace_id}]
    # Only OpenMetrics exposes a unit, and has a counter's family without its suffix.
    assert [(entry["type"], entry["unit"]) for entry in metadata["decode_seconds"]] == [("counter", "seconds")]


def _points(real: Prometheus) -> list[Point]:
    """The engine's series as Prometheus has them, up to now."""
    return real.query('{job="engine",deployment_id="chat-v2"}', at_ms=time.time_ns() // 1_000_000)


def _series(labels: dict[str, str]) -> tuple[str, Labels]:
    name = labels.pop("__name__")
    return name, tuple(sorted((label, value) for label, value in labels.items() if label not in ("job", "instance")))
