"""Both variants of the latency panels on a real Prometheus, and traces behind what they show."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.panels.queries import HISTOGRAMS
from servescope.contract.expressions import native_rate_promql
from servescope.contract.identity import Identity
from servescope.exposition.rendering import render_openmetrics
from servescope.instruments.engine import EngineInstruments
from tests.conftest import ROOT
from tests.support.answering import Handler, answering
from tests.support.boards import NAMES, panels, read_board, substitute
from tests.support.prometheus import Prometheus, running
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

TRACE = "0af7651916cd43dd8448eb211c80319c"
_SCRAPES = 8
# Answers of some lengths, quick and slow: first token, whole duration, output tokens.
_REQUESTS = ((0.03, 0.4, 12), (0.2, 1.4, 30), (0.7, 3.0, 60), (2.2, 9.0, 90), (0.05, 0.9, 25))


def _serve_more(instruments: EngineInstruments, request: Handler) -> None:
    """Answer a scrape with some more requests than the last, in OpenMetrics, which alone has exemplars."""
    for first, duration, tokens in _REQUESTS:
        instruments.record_request(
            outcome="ok", input_tokens=100, output_tokens=tokens, time_to_first_token=first, duration=duration,
            decode_seconds=duration - first, trace_id=TRACE,
        )  # fmt: skip
    text = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    request.reply(200, render_openmetrics(instruments), Content_Type=text)


@contextmanager
def _scraping(binary: Path, folder: Path, options: tuple[str, ...], **settings: object) -> Iterator[Prometheus]:
    """A Prometheus that has scraped an engine several times."""
    with answering(partial(_serve_more, EngineInstruments(Identity("m", "d", "v2", replica="r0")))) as url:
        targets = [{"targets": [url.removeprefix("http://")]}]
        job = {"job_name": "engine", "honor_labels": True, "static_configs": targets, **settings}
        with running(
            binary, folder, {"global": {"scrape_interval": "250ms"}, "scrape_configs": [job]}, options=options
        ) as server:
            _wait_until_scraped(server)
            yield server


def _wait_until_scraped(server: Prometheus) -> None:
    def is_scraped() -> bool:
        found = server.answer("/api/v1/query", query="min(count_over_time(up[1m]))")["data"]["result"]
        return bool(found) and float(found[0]["value"][1]) >= _SCRAPES

    wait_for(is_scraped, f"{_SCRAPES} scrapes")


def latency_panels() -> Iterator[tuple[str, Any]]:
    """The panels with a classic and a native variant, each with its dashboard."""
    for name in NAMES:
        for panel in panels(read_board(name)):
            if any(f"${HISTOGRAMS}" in target["expr"] for target in panel["targets"]):
                yield name, panel


def variants(panel: Any) -> tuple[list[Any], list[Any]]:
    """The classic and the native targets of a panel, without the limits that it draws in either case."""
    found = [target for target in panel["targets"] if f"${HISTOGRAMS}" in target["expr"]]
    return found[::2], found[1::2]


def test_every_latency_panel_has_both_variants() -> None:
    """In pairs of the same name, of which the variable lets one through; classic is chosen at first."""
    found = list(latency_panels())

    assert {name for name, _ in found} >= {"requests", "cutover", "cache", "phases"}
    for _, panel in found:
        classic, native = variants(panel)
        assert [target["legendFormat"] for target in classic] == [target["legendFormat"] for target in native]
        assert all(f"${HISTOGRAMS} * Inf" in target["expr"] for target in classic)
        assert all(f"${HISTOGRAMS} * -" in target["expr"] for target in native)
    for name in {name for name, _ in found}:
        (switch,) = [each for each in read_board(name)["templating"]["list"] if each["name"] == HISTOGRAMS]
        assert [(each["text"], each["value"], each["selected"]) for each in switch["options"]] == [
            ("classic", "1", True), ("native", "-1", False),
        ]  # fmt: skip


def test_the_variants_agree(prometheus_3: Path, tmp_path: Path) -> None:
    """Of the same observations in the same buckets they show the same, and each only where it is chosen."""
    options = ("--enable-feature=native-histograms",)
    settings = {"convert_classic_histograms_to_nhcb": True, "always_scrape_classic_histograms": True}
    compared = 0
    with _scraping(prometheus_3, tmp_path, options, **settings) as server:
        now = f"{time.time():.3f}"
        for _, panel in latency_panels():
            if panel["type"] == "heatmap":
                continue
            for classic, native in zip(*variants(panel), strict=True):
                # Without recording rules: buckets as they are scraped.
                raw = _raw(classic["expr"], native["expr"])
                shown = {
                    chosen: [_ask(server, substitute(text, **{HISTOGRAMS: chosen, "__rate_interval": "5s"}), now)
                             for text in (raw, native["expr"])]
                    for chosen in ("1", "-1")
                }  # fmt: skip
                assert shown["1"][1] == shown["-1"][0] == [], panel["title"]
                assert len(shown["1"][0]) == len(shown["-1"][1]), panel["title"]
                for one, other in zip(shown["1"][0], shown["-1"][1], strict=True):
                    assert other == pytest.approx(one, rel=1e-6), panel["title"]
                    compared += 1

    assert compared >= 10


def test_a_pair_of_collectors_counts_once_in_the_native_variant(promtool_3: Path, tmp_path: Path) -> None:
    """Of two collectors that watch the same two replicas, also while one of them misses a replica."""
    rising = "{{schema:0 sum:1 count:3 buckets:[1 2]}}+{{schema:0 sum:1 count:3 buckets:[1 2]}}x20"
    collectors = {"a": ("r0", "r1"), "b": ("r0",)}
    given = [
        {"series": f'h{{deployment_id="d",replica="{replica}",instance="{instance}",job="j"}}', "values": rising}
        for instance, replicas in collectors.items()
        for replica in replicas
    ]
    rate = native_rate_promql("h", window="5m", by="deployment_id")
    check = {
        "expr": f"histogram_count({rate}) * 60", "eval_time": "15m",
        "exp_samples": [{"labels": '{deployment_id="d"}', "value": 6}],
    }  # fmt: skip
    test = {"interval": "1m", "input_series": given, "promql_expr_test": [check]}
    path = tmp_path / "pair.test.yml"
    path.write_text(yaml.safe_dump({"tests": [test]}), encoding="utf-8")

    done = subprocess.run([promtool_3, "test", "rules", path], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def _raw(classic: str, native: str) -> str:
    """The classic query over scraped buckets: the native one's own selector, with buckets by their edge."""
    if "_bucket{" in classic:
        return classic
    # One collector watches the engine.
    once = r" and topk without \([^)]*\) \(1, histogram_count\(rate\([^)]*\)\)\)"
    text = re.sub(once, "", native).replace("* -Inf", "* Inf")
    head, _, rest = text.partition("sum by (")
    labels, _, rest = rest.partition(")")
    name, _, rest = rest.removeprefix(" (rate(").partition("{")
    return f"{head}sum by ({', '.join(filter(None, (labels, 'le')))}) (rate({name}_bucket{{{rest}"


def _ask(server: Prometheus, expression: str, moment: str) -> list[float]:
    answer = server.answer("/api/v1/query", query=expression, time=moment)
    assert answer["status"] == "success", f"{expression}: {answer}"
    assert not answer.get("warnings"), answer
    assert not answer.get("infos"), answer
    return [
        float(each["value"][1])
        for each in sorted(answer["data"]["result"], key=lambda each: sorted(each["metric"].items()))
    ]


@pytest.mark.parametrize("name", ["prometheus", pytest.param("prometheus_3", marks=pytest.mark.proof)])
def test_a_latency_panel_leads_to_a_trace(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    """Asked for the panel's own query, Prometheus gives the trace ids that our instruments were given."""
    binary: Path = request.getfixturevalue(name)
    (panel,) = [
        panel for panel in panels(read_board("requests")) if panel["title"] == "Time to first token by replica, p95"
    ]
    (target,) = [each for each in panel["targets"] if each.get("exemplar") and "_bucket" in each["expr"]]

    with _scraping(binary, tmp_path, ("--enable-feature=exemplar-storage",)) as server:
        answer = server.answer(
            "/api/v1/query_exemplars", query=substitute(target["expr"], __rate_interval="5s"),
            start=str(time.time() - 60), end=str(time.time() + 1),
        )  # fmt: skip

    assert answer["status"] == "success", answer
    traces = {each["labels"]["trace_id"] for series in answer["data"] for each in series["exemplars"]}
    assert traces == {TRACE}


def test_the_data_source_opens_the_trace() -> None:
    """The label that our instruments give exemplars is the one that the provisioned data source follows."""
    grafana = ROOT / "deploy" / "grafana"
    sources, without = (
        {source["uid"]: source for source in yaml.safe_load(path.read_text(encoding="utf-8"))["datasources"]}
        for path in (
            grafana / "traces" / "datasources.yml",
            grafana / "provisioning" / "datasources" / "prometheus.yml",
        )
    )

    (destination,) = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert destination["name"] == "trace_id"
    assert sources[destination["datasourceUid"]]["type"] == "tempo"
    # But for traces it is the one of Compose.
    del sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert sources["prometheus"] == without["prometheus"]
