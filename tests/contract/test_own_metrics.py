"""The records of series about the monitoring itself: the collector exposes exactly these, with their texts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from servescope.contract.figures import FIGURES
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.metrics import METRICS
from servescope.contract.own_metrics import FOREIGN_SERIES, OWN_METRICS, UNSCRAPED, OwnMetric, own_family
from tests.support.exposed_metrics import fetch, scrape_everything
from tests.support.served_collector import scene

OURS = {name: metric for name, metric in OWN_METRICS.items() if metric.program == "collector"}
# Prometheus' own word about a target of its.
NOT_ON_THE_PAGE = {"up"}


@pytest.fixture
def page(tmp_path: Path) -> dict[str, Any]:
    """The families of a collector's page that are neither the contract's nor a figure's, by their name on the page."""

    async def read() -> bytes:
        async with scene(tmp_path) as stage:
            await scrape_everything(stage)
            await stage.written()
            await fetch(stage)
            return (await fetch(stage))[0]

    exposed = {figure.exposed for figure in FIGURES.values()}
    families = {}
    for family in text_string_to_metric_families(asyncio.run(read()).decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name not in METRICS and name not in exposed:
            families[name] = family
    return families


def test_the_collector_exposes_its_records_and_nothing_else(page: dict[str, Any]) -> None:
    """The record of each series that is missing here has a condition for that."""
    missing = OURS.keys() - page.keys() - NOT_ON_THE_PAGE

    assert page.keys() <= OURS.keys()
    assert {name for name in missing if OURS[name].absent == UNSCRAPED} == set()


def test_an_exposed_metric_agrees_with_its_record(page: dict[str, Any]) -> None:
    """Type, help and labels."""
    for name, family in page.items():
        record = OURS[name]
        assert family.type == record.kind, name
        # Prometheus' client has its own words for its process.
        assert family.documentation == record.help or name.startswith("process_"), name
        for sample in family.samples:
            labels = set(sample.labels) - {"le"}
            # Of a target's identity, and of what it was identified as, what is empty is left out.
            assert labels <= set(record.labels), name
            assert set(record.labels) - labels <= {*IDENTITY_LABELS, "source", "version", "layer", "translator"}, name


@pytest.mark.parametrize("metric", OWN_METRICS.values(), ids=OWN_METRICS)
def test_a_record_is_well_formed(metric: OwnMetric) -> None:
    """Counters, and nothing else, end in `_total`; times are seconds; the text is a sentence."""
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert metric.unit == "seconds" or "_seconds" not in metric.name or metric.name == "process_cpu_seconds_total"
    assert metric.help.endswith(".")
    assert not metric.absent.endswith(".")


def test_what_alerts_read_of_others_is_recorded() -> None:
    """Prometheus' and Alertmanager's own series, those that alerts name."""
    assert OWN_METRICS.keys() >= FOREIGN_SERIES


def test_a_sample_finds_its_metric() -> None:
    """A histogram's by its suffix, and no counter's by one it does not have."""
    histogram = OWN_METRICS["servescope_scrape_duration_seconds"]

    assert own_family("servescope_scrape_duration_seconds_bucket") == histogram
    assert own_family("servescope_series_count") is None
    assert own_family("requests_total") is None
