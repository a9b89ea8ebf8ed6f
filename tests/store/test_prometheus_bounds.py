"""How much is asked of a Prometheus at once, and what becomes of answers that lack a part."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from servescope.contract.figures import FIGURES
from servescope.contract.identity import Deployment
from servescope.store.prometheus.batches import MOST_AT_ONCE, AskedTargets, read_in_parts
from servescope.store.prometheus.client import LateError, PartialError, Prometheus, TooMuchError
from servescope.store.prometheus.figure_queries import figures_queries, matchers
from servescope.store.prometheus.history import PrometheusHistory
from servescope.store.prometheus.steps import read_series
from tests.support.answering import Handler, answering

if TYPE_CHECKING:
    from streamlit.testing.v1 import AppTest

VICTORIA_BYTES = 16_384
DEPLOYMENT = Deployment("m" * 100, "chat-v1", "vllm-0.32", "production", "promoting")


@pytest.mark.parametrize("where", ["", matchers(DEPLOYMENT)])
@pytest.mark.parametrize("kind", ["exposed", "recorded", "computed"])
def test_no_query_for_figures_is_too_long(kind: str, where: str) -> None:
    """A VictoriaMetrics refuses more than 16 KiB; every figure is in one of them."""
    queries = figures_queries(kind, tuple(FIGURES.values()), where)
    assert max(map(len, queries)) <= VICTORIA_BYTES
    names = {"exposed": "exposed", "recorded": "", "computed": "name"}[kind]
    for figure in FIGURES.values():
        wanted = figure.record() if kind == "recorded" else getattr(figure, names)
        assert wanted is None or sum(wanted in query for query in queries) >= 1


def test_targets_are_asked_for_in_smaller_parts_until_they_are_answered() -> None:
    """Each once, in their order; the parts stay small, and one that is too much alone is an error."""
    asked: list[int] = []

    def read(part: Sequence[str]) -> Sequence[str]:
        asked.append(len(part))
        if len(part) > 60:
            raise TooMuchError("http://x", "an answer of more than 32000000 bytes")
        return part

    names = [f"replica-{number}" for number in range(300)]
    assert [name for part in read_in_parts(names, len, read) for name in part] == names
    assert asked == [MOST_AT_ONCE, 100, *[50] * 6]
    with pytest.raises(TooMuchError):
        list(read_in_parts(["x" * 70], len, lambda part: read([*part] * 70)))


def test_one_that_does_not_answer_is_not_asked_in_parts() -> None:
    """Fewer would be waited for as long."""
    asked: list[int] = []

    def read(part: Sequence[str]) -> None:
        asked.append(len(part))
        raise LateError("http://x", "no answer to query within 60 s")

    with pytest.raises(LateError):
        list(read_in_parts(["a", "b"], len, read))
    assert asked == [2]


def test_the_names_of_targets_are_matched_as_they_are() -> None:
    """A replica's name is no pattern; one without a name is matched by what it lacks."""
    asked = AskedTargets(Deployment("llama", "chat", "v2"), ("", 'par"tial\\', "a.b"))
    assert asked.matchers().endswith('replica=~"|a\\\\.b|par\\"tial\\\\\\\\"')


def test_series_are_read_in_halves_of_the_time() -> None:
    """Where those of all are too many."""

    def answer(request: Handler) -> None:
        start, end = (request.parameters[name][0] for name in ("start", "end"))
        hours = int(end[11:13]) - int(start[11:13])
        found = {"status": "success", "data": [{"a": start}]}
        too_much = {"status": "error", "errorType": "execution", "error": "exceeded the limit of series"}
        request.reply(422 if hours > 2 else 200, json.dumps(too_much if hours > 2 else found))

    with answering(answer) as url:
        found = list(read_series(Prometheus(url), ["x"], start_ms=0, end_ms=8 * 3_600_000))
    assert [dict(labels)["a"][11:13] for labels in found] == ["00", "02", "04", "06"]


def _partial(request: Handler) -> None:
    labels = {"__name__": "servescope_target_up", **dict(DEPLOYMENT.labels())}
    listed = [labels] if request.path.endswith("/series") else []
    is_query = request.path.endswith("/query")
    data: object = (
        {"resultType": "vector" if is_query else "matrix", "result": []} if "query" in request.path else listed
    )
    request.reply(200, json.dumps({"status": "success", "data": data, "warnings": ["store-gateway-2: unavailable"]}))


def test_a_part_is_shown_as_one_and_never_judged() -> None:
    """Pages list what there is, and what was said of the rest; samples, and deployments to judge, are refused."""
    with answering(_partial) as url:
        history = PrometheusHistory(Prometheus(url))
        assert history.partial() == ()
        assert history.listed_deployments() == [DEPLOYMENT]
        assert history.partial() == ("store-gateway-2: unavailable",)
        questions: Sequence[Callable[[], object]] = (
            history.deployments,
            lambda: history.read_samples(DEPLOYMENT, ["requests_total"], 0, 60_000),
            lambda: history.read_increments(DEPLOYMENT, ["requests_total"], 0, 600_000),
            lambda: history.read_events(0, 60_000),
            PrometheusHistory(Prometheus(url).only_whole()).latest_figures,
        )
        for question in questions:
            with pytest.raises(PartialError, match="store-gateway-2"):
                question()


@pytest.mark.slow
def test_pages_warn_of_partial_answers_and_of_missing_rules(open_on_prometheus: Callable[..., AppTest]) -> None:
    """With the server's words, and the file to load."""
    with answering(_partial) as url:
        fleet, alerts = ([each.value for each in open_on_prometheus(name, url).warning] for name in ("fleet", "alerts"))

    assert "store-gateway-2: unavailable" in "\n".join(fleet)
    assert "alerts/generated/alerting.rules.yml" in "\n".join(alerts)
