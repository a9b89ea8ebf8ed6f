"""What instruments push by OTLP is in a VictoriaMetrics as it is on their page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import parser

from servescope.contract.identity import IDENTITY_LABELS, Identity
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.exposition.otlp import push
from servescope.exposition.otlp_names import name_of
from servescope.exposition.rendering import render
from servescope.instruments.engine import EngineInstruments
from tests.support.victoria_metrics import running

pytestmark = pytest.mark.slow

NEVER = 3600.0
FAMILIES = {name_of(metric): name for name, metric in METRICS.items()}


def named(name: str, labels: dict[str, str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A series without its identity, `le` as a number."""
    return name, tuple(
        sorted((label, str(float(value)) if label == "le" else value) for label, value in labels.items())
    )


def test_victoria_metrics_has_what_is_on_the_page(victoria_metrics: Path, tmp_path: Path) -> None:
    """Counters, gauges and every bucket of every histogram, under OpenTelemetry's names."""
    engine = EngineInstruments(Identity("llama", "chat", "v2", "prod", replica="engine-0"))
    for number in range(20):
        engine.record_request(
            outcome="ok", input_tokens=100 + number, output_tokens=10 + number, duration=2.0 + number,
            time_to_first_token=number / 10, decode_seconds=1.0 + number / 2,
        )  # fmt: skip
    on_page = {}
    for family in parser.text_string_to_metric_families(render(engine).decode()):
        for sample in family.samples:
            own = {label: value for label, value in sample.labels.items() if label not in IDENTITY_LABELS}
            on_page[named(sample.name, own)] = sample.value
    stored = {}
    with running(victoria_metrics, tmp_path) as server:
        pusher = push(engine, endpoint=server.otlp_url, interval_seconds=NEVER)
        pusher.flush()
        pusher.close()
        for found in server.read_samples('{__name__!=""}'):
            labels = dict(found.labels)
            otlp, suffix = re.fullmatch(r"(.*?)(_bucket|_sum|_count)?", labels.pop("__name__")).groups("")  # type: ignore[union-attr]
            own = {label: value for label, value in labels.items() if "." not in label}
            if otlp in FAMILIES:
                stored[named(FAMILIES[otlp] + suffix, own)] = found.values[-1]
    contract = {series: value for series, value in on_page.items() if SAMPLE_FAMILIES.get(series[0]) in METRICS}
    assert len(contract) > 100
    assert stored == pytest.approx(contract, rel=1e-11)
