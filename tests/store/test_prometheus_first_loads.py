"""How much a first load asks of a Prometheus, and that what it reads at once is what it would read one by one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._scraped_fleet import FORMS, SCRAPE_MS, write_fleet
from servescope.contract.identity import Deployment
from servescope.contract.metrics import METRICS
from servescope.contract.samples import make_labels
from servescope.increments.blocks import BLOCK_MS
from servescope.store.prometheus.client import Prometheus, PrometheusError
from servescope.store.prometheus.history import PrometheusHistory
from servescope.store.prometheus.steps import AT_ONCE, at_once
from tests.support.answering import Handler, answering
from tests.support.prometheus import running
from tests.support.waiting import deadline_seconds

CHAT = Deployment("llama-3.3-70b", "chat-v1", "v1", "production", "stable")
JUDGED = ("requests_total", "output_tokens_total", "time_to_first_token_seconds", "request_duration_seconds",
          "queued_requests", "kv_cache_usage", "concurrent_requests")  # fmt: skip
END_MS = 1_800_000_000_000
MINUTES = 25


class Counting(Prometheus):
    """The API, which counts what it is asked."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[str] = []

    def _request(self, path: str, parameters: Sequence[tuple[str, str]], method: str) -> tuple[int, bytes]:
        self.asked.append(path)
        return super()._request(path, parameters, method)


@contextmanager
def _fleet(binary: Path, folder: Path, form: str, replicas: int) -> Iterator[tuple[PrometheusHistory, Counting]]:
    """The past of a fleet that began 25 minutes ago, and what reading it asks."""
    options = ("--web.enable-remote-write-receiver", "--storage.tsdb.retention.time=100y")
    with running(binary, folder, {}, options=options) as server:
        write_fleet(FORMS[form], replicas, server.port, start_ms=END_MS - MINUTES * 60_000, end_ms=END_MS)
        counting = Counting(f"http://127.0.0.1:{server.port}")
        yield PrometheusHistory(counting, clock=lambda: END_MS / 1000 + 40), counting


@pytest.mark.slow
def test_a_judge_asks_as_often_however_many_targets_begin(prometheus: Path, tmp_path: Path) -> None:
    """Whose first block has to be read scrape by scrape: of all of them at once, and of many names with one query."""
    asked = []
    for replicas in (8, 24):
        with _fleet(prometheus, tmp_path / str(replicas), "translated", replicas) as (history, counting):
            found = history.read_increments(CHAT, JUDGED, END_MS - MINUTES * 60_000 - BLOCK_MS, END_MS)
            assert len(found) == replicas // 4 + 2
            assert all(np.isfinite(each.gains[:, 1:]).any() for each in found if each.identity.role == "aggregated")
            asked.append(len(counting.asked))
    assert asked[0] == asked[1] < 30


@pytest.mark.slow
@pytest.mark.parametrize(("form", "kind"), [("translated", "recorded"), ("collected", "exposed"), ("bare", "computed")])
def test_the_fleet_of_the_benchmark_is_what_it_is_taken_for(
    prometheus: Path, tmp_path: Path, form: str, kind: str
) -> None:
    """Its figures come from where they should, all targets are healthy, and its counters and histograms are whole."""
    with _fleet(prometheus, tmp_path, form, 8) as (history, counting):
        assert len(history.deployments()) == 4
        statuses = history.targets()
        assert len(statuses) == 16
        assert all(status.healthy for status in statuses)
        shown = history.latest_figures()
        assert len(shown) == 4
        missing = set(history.missing_rules())
        assert ("recording.rules.yml" in missing) is (kind == "computed")
        assert len(counting.asked) < 30
        found = history.read_increments(CHAT, tuple(METRICS), END_MS - MINUTES * 60_000, END_MS)
        assert {each.identity.role for each in found} == {"aggregated", "router", "autoscaler"}
        for tally in ("failed", "torn", "resets", "gaps"):
            assert not any(getattr(each.tallies, tally).any() for each in found), tally
        assert {int(count) for each in found for count in each.tallies.scrapes[1:]} == {BLOCK_MS // SCRAPE_MS}


def test_so_many_are_asked_at_once_and_given_in_their_order() -> None:
    """Each waits for as many others as are asked at the same time; there are never more."""
    together, lock = threading.Barrier(AT_ONCE), threading.Lock()
    running, most = 0, 0

    def ask(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(deadline_seconds())
        with lock:
            running -= 1
        return number

    assert list(at_once(ask, range(3 * AT_ONCE))) == list(range(3 * AT_ONCE))
    assert most == AT_ONCE


def test_no_more_are_asked_after_an_error() -> None:
    """It is that of the first that failed."""
    begun: list[int] = []

    def ask(number: int) -> int:
        begun.append(number)
        if number == 1:
            raise LookupError(str(number))
        return number

    with pytest.raises(LookupError, match="1"):
        list(at_once(ask, range(100)))
    assert len(begun) <= 1 + AT_ONCE


def test_all_that_are_asked_at_once_turn_to_get_where_post_is_not_allowed() -> None:
    """Although another of them noticed before."""
    together = threading.Barrier(AT_ONCE)

    def answer(request: Handler) -> None:
        if request.command == "POST":
            together.wait(deadline_seconds())
            request.reply(405, "method not allowed")
        else:
            request.vector("1")

    with answering(answer) as url:
        client = Prometheus(url)
        found = list(at_once(lambda number: client.query(f"x{number}", at_ms=0), range(AT_ONCE)))
    assert [len(points) for points in found] == [1] * AT_ONCE


_NAMES = st.sampled_from(["__name__", "le", "values", "replica"])
_TEXTS = st.sampled_from(["x", '"values":[[', '\\"values\\":[[1,"2"]]', "]]", "NaN", "[[", "ü\\", ""])
_NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=64)
_SAMPLES = st.lists(st.tuples(st.integers(0, 2**41).map(lambda ms: ms / 1000), _NUMBERS), max_size=4)


def _text(value: float) -> str:
    """A value as Prometheus writes it."""
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(repr(value), repr(value))


@pytest.mark.slow
@given(st.lists(st.tuples(st.dictionaries(_NAMES, _TEXTS), _SAMPLES), max_size=4), st.sampled_from([",:", ", : "]))
def test_samples_are_those_of_the_json(series: list[tuple[Mapping[str, str], Any]], separators: str) -> None:
    """Whatever the labels are, and however the server spaces its JSON: the finite ones, to the last bit."""
    comma, colon = separators[: len(separators) // 2], separators[len(separators) // 2 :]
    result = [
        {"metric": labels, "values": [[moment, _text(value)] for moment, value in samples]}
        for labels, samples in series
    ]
    answered = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    client = _Canned(json.dumps(answered, separators=(comma, colon), ensure_ascii=False).encode())
    tracks = client.query_range("x", start_ms=0, end_ms=0, step_ms=1)
    assert [track.labels for track in tracks] == [make_labels(labels) for labels, _ in series]
    for track, (_, samples) in zip(tracks, series, strict=True):
        finite = [(moment, value) for moment, value in samples if np.isfinite(value)]
        assert track.times.tolist() == [round(moment * 1000) for moment, _ in finite]
        assert track.values.tolist() == [value for _, value in finite]


class _Canned(Prometheus):
    """The API with one answer."""

    def __init__(self, body: bytes) -> None:
        super().__init__("http://127.0.0.1:1")
        self._body = body

    def _request(self, path: str, parameters: Sequence[tuple[str, str]], method: str) -> tuple[int, bytes]:
        return 200, self._body


@pytest.mark.parametrize(
    "values", ['[[1,"2",3],[4,"5",6]]', '[[1,"x"]]', '[[1,"2"],[3]]', '[[1,"2",3],["4"]]', "[[1]]", "7", "[1,2]"]
)
def test_samples_that_are_none_are_an_error(values: str) -> None:
    """Rather than numbers that are taken for others."""
    body = f'{{"status":"success","data":{{"resultType":"matrix","result":[{{"metric":{{}},"values":{values}}}]}}}}'
    with pytest.raises(PrometheusError, match="an element that is none"):
        _Canned(body.encode()).query_range("x", start_ms=0, end_ms=0, step_ms=1)


@pytest.mark.parametrize("first", [True, False])
def test_a_constant_beside_samples_is_no_json(first: bool) -> None:
    """Samples are never taken for those of another series, whatever else is in the answer."""
    result = '"data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"2"]]}]}'
    parts = ('"stats":NaN', result) if first else (result, '"stats":NaN')
    with pytest.raises(PrometheusError, match="no whole JSON"):
        _Canned(f'{{"status":"success",{",".join(parts)}}}'.encode()).query_range("x", start_ms=0, end_ms=0, step_ms=1)


def test_one_series_of_each_is_made_labels_of() -> None:
    """The first of those that have these labels alike; a label that is not there is empty."""
    listed = [{"a": "1", "n": "x"}, {"a": "1", "n": "y"}, {"n": "z"}, {"a": "", "n": "w"}]
    client = _Canned(json.dumps({"status": "success", "data": listed}).encode())
    found = client.series(["x"], start_ms=0, end_ms=0, by=["a"])
    assert found == [(("a", "1"), ("n", "x")), (("n", "z"),)]
    assert len(client.series(["x"], start_ms=0, end_ms=0)) == 4


@pytest.mark.parametrize(("name", "step"), [("requests_total", "60.000"), ("deployment:requests:rate5m", "15.000")])
def test_charts_of_computed_figures_are_no_finer_than_a_minute(name: str, step: str) -> None:
    """A Prometheus computes each point from the samples of five minutes; what rules recorded has their steps."""
    steps: list[str] = []

    def answer(request: Handler) -> None:
        steps.extend(request.parameters.get("step", []))
        listed = {"__name__": name, **dict(CHAT.labels())}
        is_asked = request.path.endswith("/series") and name in request.parameters["match[]"][0]
        kind = "matrix" if request.path.endswith("/query_range") else "vector"
        data: object = [listed] if is_asked else []
        request.reply(200, json.dumps({"status": "success", "data": data if "/series" in request.path else {
            "resultType": kind, "result": []}}))  # fmt: skip

    with answering(answer) as url:
        history = PrometheusHistory(Prometheus(url), clock=lambda: END_MS / 1000)
        history.read_figures(CHAT, END_MS - 3_600_000, END_MS, max_points=240)
    assert set(steps) == {step}
