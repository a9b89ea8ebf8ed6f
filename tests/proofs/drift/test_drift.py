"""Rules, dashboards, runbooks and the page of metrics agree with the catalog, without anything more or less."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from dashboards.panels.queries import ALERTS as FIRING
from dashboards.panels.queries import ALERTS_SINCE
from servescope.alerting.alerts import ALERTS
from servescope.contract.bounds import BOUNDS
from servescope.contract.expressions import leaves
from servescope.contract.figures import FIGURES, RECORDED_HISTOGRAMS, record_buckets
from servescope.contract.metrics import METRICS, PROCESS_RATIOS, SAMPLE_FAMILIES
from servescope.contract.own_metrics import own_family
from tests.conftest import ROOT
from tests.proofs.drift.catalog import numbers_of_the_catalog, objective_records, read_catalog, required_numbers
from tests.proofs.drift.facts import BOARDS, PAGE, RULES, Facts, differences, read_files, shown_series

# Edges of bands that no alert compares with, and why.
NOT_ALERTED = {
    ("kv_cache_hit_rate_skew", -0.05): "a little behind the caches: seen on the panel, and nobody needs to act",
    ("kv_cache_hit_rate_skew", 0.15): "some churn: seen on the panel, and nobody needs to act",
}

_IN_SCOPE = "percentiles are shown over everything in scope, from the recorded buckets"
_NO_MEAN = "a mean hides the slow ones; it is there for the console and for the cutover's statistics"
# Figures that no panel reads from their recording rule, and why.
NOT_SHOWN = {
    **dict.fromkeys(
        ("time_to_first_token_p50", "time_to_first_token_p99", "time_per_output_token_p50", "request_duration_p50",
         "request_duration_p95"),
        _IN_SCOPE,
    ),
    **dict.fromkeys(
        ("time_to_first_token_mean", "time_per_output_token_mean", "request_duration_mean", "kv_transfer_mean",
         "kv_transfer_wait_mean"),
        _NO_MEAN,
    ),
    "request_unended_share": "for the alert on requests that hang, which leads to what is in flight",
    "spec_decode_draft_tokens_per_second": "for the speculation rate, which is judged from enough drafted tokens on",
    "replica_start_time_seconds": "for the alert on replicas that do not become active",
    "inter_token_latency_p95": "observed once a step by some engines and once a token by others: in the console only",
}  # fmt: skip

# Metrics that neither a figure nor a panel reads, and why.
NOT_READ = {
    **dict.fromkeys(PROCESS_RATIOS, "one process's own view; the figure of the same name is derived from counters"),
    "tps_per_request": "a histogram of requests; the figure is weighted by tokens, which its sums are not",
    "router_candidates": "for a look by hand at how many workers a router may choose from",
    "router_decision_busy_seconds_total": "for a look by hand at how busy a router is; its decisions are timed as well",
}  # fmt: skip

MUTATIONS = [
    (PAGE, "| from 0.80 |", "| from 0.85 |"),
    (PAGE, "| `queued_requests` | gauge | requests |", "| `queued_requests` | gauge | tokens |"),
    (PAGE, "histogram_quantile(0.95, ", "histogram_quantile(0.96, "),
    (PAGE, "0.06 · 0.08 · 0.1 ·", "0.06 · 0.09 · 0.1 ·"),
    (f"{RULES}/recording.rules.yml", "histogram_quantile(0.95, ", "histogram_quantile(0.9, "),
    (f"{RULES}/recording.rules.yml", 'outcome="error"', 'outcome="rejected"'),
    (f"{RULES}/histograms.rules.yml", "[5m]", "[6m]"),
    (f"{RULES}/objectives.rules.yml", 'le="2.5"', 'le="5.0"'),
    (f"{RULES}/alerting.rules.yml", "skew:ratio_rate5m > 0.3)", "skew:ratio_rate5m > 0.31)"),
    (f"{RULES}/alerting.rules.yml", "skew:ratio_rate5m > 0.3)", "skew:ratio_rate5m >= 0.3)"),
    (f"{RULES}/alerting.rules.yml", "    for: 30m", "    for: 20m"),
    (f"{RULES}/alerting.rules.yml", "Above +30 %", "Above +35 %"),
    (f"{RULES}/runbooks/ServescopeSpeculationBelowBreakEven.md", "than 40 %", "than 45 %"),
    (f"{RULES}/runbooks/ServescopeCacheChurn.md", "> 0.3)", "> 0.35)"),
    (f"{BOARDS}/speculation.json", '"value": 0.4', '"value": 0.45'),
    (f"{BOARDS}/cache.json", '"unit": "percentunit"', '"unit": "percent"'),
]


@pytest.fixture(scope="module")
def committed() -> Facts:
    """The facts of the committed files."""
    return read_files(ROOT)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The generated files, to be changed."""
    for folder in (RULES, BOARDS):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / PAGE).parent.mkdir()
    shutil.copy(ROOT / PAGE, tmp_path / PAGE)
    return tmp_path


@pytest.mark.slow
def test_the_catalog_is_rebuilt_from_the_files(committed: Facts) -> None:
    """Metrics, figures, bands, edges, rules, objectives, alerts, runbooks' numbers and panels: both agree."""
    assert len(committed) > 600
    assert differences(committed, read_catalog(committed)) == []
    for figure in FIGURES.values():
        shown = [about for _, about in committed if about.startswith("steps of") and about.endswith(figure.record())]
        assert shown or not figure.band, figure.name


@pytest.mark.slow
@pytest.mark.parametrize(("file", "said", "instead"), MUTATIONS, ids=[f"{file}, {new}" for file, _, new in MUTATIONS])
def test_one_number_that_drifts_is_reported(copied: Path, file: str, said: str, instead: str) -> None:
    """With its file."""
    text = (copied / file).read_text(encoding="utf-8")
    assert said in text
    (copied / file).write_text(text.replace(said, instead, 1), encoding="utf-8")
    files = read_files(copied)

    found = differences(files, read_catalog(files))

    assert found
    assert any(Path(file).name in each.partition(": ")[0] or Path(file).stem in each for each in found), found


def test_alerts_compare_with_the_catalogs_numbers_alone(committed: Facts) -> None:
    """Each is a step of a band, a bound, or a burnt budget; each of these is compared with, or has a reason."""
    compared = {
        value
        for (_, about), numbers in committed.items()
        if about.endswith(", compared") and isinstance(numbers, tuple)
        for _, value in numbers
        # What is not known has the value of minus infinity.
        if math.isfinite(value)
    }
    known = numbers_of_the_catalog()

    assert {value for value in compared if value not in known and -value not in known} == set()
    assert [name for name, bound in BOUNDS.items() if bound.value not in compared] == []
    for figure in FIGURES.values():
        for step in figure.band.steps if figure.band else ():
            assert (step.start in compared) != ((figure.name, step.start) in NOT_ALERTED), (figure.name, step.start)


@pytest.mark.parametrize("name", ALERTS)
def test_whoever_is_called_reads_the_threshold(committed: Facts, name: str) -> None:
    """The steps of the band that the alert is about are in the runbook's prose, and one is in the notification."""
    prose = committed[f"{name}.md", "numbers in prose"]
    description = committed["alerting.rules.yml", f"description of {name}, numbers"]

    assert isinstance(prose, frozenset)
    assert isinstance(description, frozenset)
    steps = required_numbers(ALERTS[name])
    assert steps <= prose
    assert not steps or steps & {text.lstrip("+-−") for text in description}


def test_dashboards_show_every_figure_and_nothing_that_is_unknown() -> None:
    """A figure that no panel reads has a reason; so has a metric that nothing reads."""
    shown = shown_series(ROOT)
    recorded = {figure.record(): figure for figure in FIGURES.values()}
    known = {
        *SAMPLE_FAMILIES,
        *recorded,
        *objective_records(),
        *map(record_buckets, RECORDED_HISTOGRAMS),
        FIRING,
        ALERTS_SINCE,
    }
    about_engines = {name for name in shown if own_family(name) is None}

    assert about_engines <= known
    assert {figure.name for record, figure in recorded.items() if record not in shown} <= NOT_SHOWN.keys()
    read = {SAMPLE_FAMILIES.get(name, name) for figure in FIGURES.values() for name in leaves(figure.expression)}
    read |= {SAMPLE_FAMILIES[name] for name in shown if name in SAMPLE_FAMILIES}
    assert METRICS.keys() - read <= NOT_READ.keys()
