"""Targets that several scrapers, clusters and tenants have in one Prometheus: each process is read once."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from servescope.contract.figures import FIGURES
from servescope.contract.identity import Deployment, Identity
from servescope.increments.blocks import BLOCK_MS
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.history import PrometheusHistory
from tests.support.fake_targets import FakeTarget, Incident
from tests.support.past import INTERVAL_MS, Scraped, a_day_ago, remembering, write_blocks

pytestmark = pytest.mark.slow

PAIRED = Identity("llama", "paired", "v2", "production", replica="r0")
"""Translated, and scraped by both of a pair of Prometheus servers; what rules record of it has no instance."""
SPREAD = Identity("llama", "spread", "v2", "production", replica="r0")
"""One in each of two clusters, by the same name and address."""
TEAMS = Identity("llama", "teams", "v2", "production", replica="r0")
"""One in each of two tenants, with a label that nothing is known of, in which the recorded figures differ as well."""
MOVED = Identity("llama", "moved", "v2", "production", replica="r0")
"""One that was in a cluster, and is in another one since."""
MISTAKEN = Deployment("llama", "mistaken", "v2", "production")
"""One whose only engine has a role that is none."""
STARTING = Identity("llama", "starting", "v2", "production", replica="new")
"""One that has not answered since it was listed; of its deployment, `old` did before, and `dead` never in hours."""
STARTS_SECONDS = 1_200
MINUTES = 35
FAILED_SECONDS = 705
_IDENTITY = re.compile(r'(?:model_name|deployment_id|inference_stack|environment|replica|role)="[^"]*",?')


@dataclass(frozen=True)
class Past:
    """What the Prometheus holds, from when to when, and the tokens of each process at each scrape."""

    history: PrometheusHistory
    start_ms: int
    end_ms: int
    tokens: dict[str, list[float]]

    def gains(self, process: str) -> list[float]:
        """The gains of a process in its blocks but the first."""
        counts, per_block = self.tokens[process], BLOCK_MS // INTERVAL_MS
        return [counts[last] - counts[last - per_block] for last in range(2 * per_block, len(counts), per_block)]


@pytest.fixture(scope="module")
def past(prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    start_ms = a_day_ago() // BLOCK_MS * BLOCK_MS
    end_ms = start_ms + MINUTES * 60_000
    tokens: dict[str, list[float]] = {}
    scrapes = [*_paired(start_ms, end_ms, tokens), *_spread(start_ms, end_ms, tokens)]
    scrapes += _teams(start_ms, end_ms, tokens)
    scrapes += _moved(start_ms, end_ms)
    scrapes += _starting(start_ms, end_ms)
    scrapes += [
        Scraped(time_ms, {**dict(MISTAKEN.labels()), "role": "worker", "job": "engines"}, "output_tokens_total 1\n")
        for time_ms in range(start_ms, end_ms, INTERVAL_MS)
    ]
    folder = tmp_path_factory.mktemp("places")
    write_blocks(scrapes, promtool, folder)
    with remembering(prometheus, folder) as running:
        client = Prometheus(f"http://127.0.0.1:{running.port}")
        yield Past(PrometheusHistory(client, clock=lambda: end_ms / 1000), start_ms, end_ms, tokens)


def _paired(start_ms: int, end_ms: int, tokens: dict[str, list[float]]) -> Iterator[Scraped]:
    fake = FakeTarget("r0", PAIRED, 1)
    attached = {**dict(PAIRED.labels()), "job": "servescope-targets", "instance": "10.0.0.1:8000", "cluster": "a"}
    for time_ms in range(start_ms, end_ms, INTERVAL_MS):
        page = _IDENTITY.sub("", fake.exposition((time_ms - start_ms) / 1000))
        tokens.setdefault("r0", []).append(_tokens(page))
        failed = time_ms - start_ms == FAILED_SECONDS * 1000
        text = "servescope_probe_success 0\n" if failed else f"servescope_probe_success 1\n{page}"
        for number, server in enumerate(("a", "b")):
            # Each of the pair at instants of its own.
            yield Scraped(time_ms + 4_000 * number, {**attached, "prometheus_replica": server}, text)
        recorded = {key: value for key, value in attached.items() if key not in ("job", "instance")}
        yield Scraped(time_ms + 7_000, recorded, f"servescope_target_up {0 if failed else 1}\n")


def _spread(start_ms: int, end_ms: int, tokens: dict[str, list[float]]) -> Iterator[Scraped]:
    for seed, cluster in enumerate(("a", "b")):
        fake = FakeTarget(cluster, SPREAD, 7 + seed, (Incident(1_000, restart=True),) if cluster == "b" else ())
        attached = {
            **dict(SPREAD.labels()), "job": "engines", "instance": "engine-0:8000", "cluster": cluster,
            "__tenant_id__": cluster,
        }  # fmt: skip
        for time_ms in range(start_ms, end_ms, INTERVAL_MS):
            page = _IDENTITY.sub("", fake.exposition((time_ms - start_ms) / 1000))
            tokens.setdefault(f"r0@{cluster}@{cluster}", []).append(_tokens(page))
            yield Scraped(time_ms, attached, page)


def _teams(start_ms: int, end_ms: int, tokens: dict[str, list[float]]) -> Iterator[Scraped]:
    for seed, team in enumerate(("a", "b")):
        fake = FakeTarget(team, TEAMS, 17 + seed)
        attached = {**dict(TEAMS.labels()), "job": "engines", "instance": f"{team}:8000", "team": team}
        for time_ms in range(start_ms, end_ms, INTERVAL_MS):
            page = _IDENTITY.sub("", fake.exposition((time_ms - start_ms) / 1000))
            tokens.setdefault(team, []).append(_tokens(page))
            yield Scraped(time_ms, attached, page)
            recorded = f"{FIGURES['output_tokens_per_second'].record()} 1\n"
            yield Scraped(time_ms, {**dict(TEAMS.deployment().labels()), "team": team}, recorded)


def _moved(start_ms: int, end_ms: int) -> Iterator[Scraped]:
    fake, middle_ms = FakeTarget("moved", MOVED, 23), (start_ms + end_ms) // 2
    for time_ms in range(start_ms, end_ms, INTERVAL_MS):
        cluster = "a" if time_ms < middle_ms else "b"
        attached = {**dict(MOVED.labels()), "job": "engines", "instance": "moved:8000", "cluster": cluster}
        yield Scraped(time_ms, attached, _IDENTITY.sub("", fake.exposition((time_ms - start_ms) / 1000)))


def _starting(start_ms: int, end_ms: int) -> Iterator[Scraped]:
    starts_ms = start_ms + STARTS_SECONDS * 1000
    for name, first_ms, up_until_ms in (
        ("new", starts_ms, 0),
        ("old", start_ms, starts_ms),
        ("dead", end_ms - 7_200_000, 0),
    ):
        attached = {**dict(STARTING.labels()), "replica": name}
        for time_ms in range(first_ms, end_ms, INTERVAL_MS):
            yield Scraped(time_ms, attached, f"servescope_target_up {int(time_ms < up_until_ms)}\n")


def _tokens(page: str) -> float:
    found = re.search(r"^output_tokens_total\S* (\S+)", page, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_a_process_that_a_pair_scraped_counts_once(past: Past) -> None:
    """Its scrapes are those of one of them; when its probe failed is that of the translator's page."""
    (found,) = past.history.read_increments(PAIRED.deployment(), ["output_tokens_total"], past.start_ms, past.end_ms)
    assert found.identity == PAIRED
    assert [series.name for series in found.series if series.name == "output_tokens_total"] == ["output_tokens_total"]
    (row,) = [row for row, series in enumerate(found.series) if series.name == "output_tokens_total"]
    assert found.gains[row, 1:-1].tolist() == pytest.approx(past.gains("r0")[: len(found.blocks) - 2])
    assert found.tallies.failed.tolist() == [0, 0, 1, 0, 0, 0]


def test_a_process_of_two_clusters_is_two(past: Past) -> None:
    """Neither is left out: both were scraped at the same time, by one name, and are named after their places."""
    found = past.history.read_increments(SPREAD.deployment(), ["output_tokens_total"], past.start_ms, past.end_ms)
    assert [each.identity.replica for each in found] == ["r0@a@a", "r0@b@b"]
    (row,) = [row for row, series in enumerate(found[0].series) if series.name == "output_tokens_total"]
    assert found[0].gains[row, 1:-1].tolist() == pytest.approx(past.gains("r0@a@a")[: len(found[0].blocks) - 2])


def test_targets_now_are_where_they_are_scraped_now(past: Past) -> None:
    """Two of one name are two, each named after its place; one that moved is one."""
    healthy = {
        (status.identity.deployment_id, status.identity.replica): status.healthy for status in past.history.targets()
    }
    expected = {("paired", "r0"), ("spread", "r0@a@a"), ("spread", "r0@b@b"), ("moved", "r0")}
    assert {each for each in healthy if each[0] in ("paired", "spread", "moved")} == expected
    assert all(healthy[each] for each in expected)
    assert set(past.history.spread()) == {SPREAD.deployment()}


def test_a_target_that_has_not_answered_yet_is_starting(past: Past) -> None:
    """Since it was listed, to the minute; one that answered within the hour before fails, as does one of long ago."""
    starting = {
        status.identity.replica: status.starting_since_ms
        for status in past.history.targets()
        if status.identity.deployment_id == "starting"
    }
    assert starting.keys() == {"new", "old", "dead"}
    assert (starting["old"], starting["dead"]) == (None, None)
    assert starting["new"] is not None
    assert 0 <= starting["new"] - past.start_ms - STARTS_SECONDS * 1000 <= 60_000


def test_series_that_are_of_no_target_are_named(past: Past) -> None:
    """A judge that reads nothing of an engine states why."""
    assert past.history.read_increments(MISTAKEN, ["output_tokens_total"], past.start_ms, past.end_ms) == []
    assert any("unknown role 'worker', supported: aggregated" in remark for remark in past.history.remarks())


@pytest.mark.parametrize(("identity", "replicas"), [(PAIRED, ["r0"]), (SPREAD, ["r0@a@a", "r0@b@b"])])
def test_samples_are_read_of_the_same_processes(past: Past, identity: Identity, replicas: list[str]) -> None:
    """One window of each, which has the distance of its scrapes; failed ones are in it."""
    windows = past.history.read_samples(
        identity.deployment(), ["output_tokens_total"], past.start_ms + 630_000, past.start_ms + 750_000
    )
    assert [dict(window.series[0].labels)["replica"] for window in windows] == replicas
    for window in windows:
        (values,) = window.values
        assert len(values) >= 8
        assert sum(map(math.isnan, values)) == (identity is PAIRED)
    intervals = past.history.scrape_intervals()
    assert {interval for one, interval in intervals.items() if one.deployment_id == identity.deployment_id} == {
        INTERVAL_MS
    }


def _rate(past: Past, deployment: Deployment) -> float:
    _, figures = past.history.latest_figures()[deployment]
    return figures["output_tokens_per_second"]


def test_figures_count_a_pair_once_and_clusters_both(past: Past) -> None:
    """As the recording rules do: computed from the samples, where no rule recorded them."""
    seconds = 300
    ends = {name: counts[-1] - counts[-1 - seconds * 1000 // INTERVAL_MS] for name, counts in past.tokens.items()}
    assert _rate(past, PAIRED.deployment()) == pytest.approx(ends["r0"] / seconds, rel=0.1)
    both = (ends["r0@a@a"] + ends["r0@b@b"]) / seconds
    assert _rate(past, SPREAD.deployment()) == pytest.approx(both, rel=0.1)
    # A part that rules recorded is not shown as the whole, by whatever label they divide.
    assert _rate(past, TEAMS.deployment()) == pytest.approx((ends["a"] + ends["b"]) / seconds, rel=0.1)


def test_the_rules_that_are_not_evaluated_are_named(past: Past) -> None:
    """Those for figures and alerts; the one without a collector has recorded the health of targets."""
    assert set(past.history.missing_rules()) == {"recording.rules.yml", "alerting.rules.yml"}
    assert any("alerting.rules.yml" in remark for remark in past.history.remarks())
