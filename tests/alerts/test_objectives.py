"""Error budgets from the counters of engines: each with its own edges, with little traffic, and young."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from alerts.__main__ import GENERATED
from alerts.objectives import objective_group
from alerts.options import make_options
from alerts.rules import alert_groups
from servescope.alerting.alerts import ALERTS
from servescope.alerting.feeding import can_fire
from servescope.alerting.rules.promises import LATENCIES, edges_of, objectives_of
from servescope.contract.objectives import INSTEAD_OF, OBJECTIVES
from servescope.contract.samples import format_edge
from servescope.errors import ConfigurationError
from servescope.sources.map_files import load_sources
from tests.support.alert_stories import DEPLOYMENT, notation, series
from tests.support.promtool import Suite, check_firing, failures

HOURS = 2
Values = Sequence[float]
"""A counter by the minute."""


# --- Which edges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LATENCIES)
def test_every_source_is_held_to_its_next_edge(name: str) -> None:
    """The first edge of the objective that a source's histogram has is its smallest one from there upwards."""
    (wanted,) = OBJECTIVES[name].edges_seconds
    edges = objectives_of()[name].edges_seconds
    for source, releases in edges_of(name).items():
        for each in releases:
            taken = next((edge for edge in edges if edge in each), None)
            assert taken == next((edge for edge in each if edge >= wanted), None), source


def test_an_objective_in_place_of_another_finds_no_edge_where_the_other_is() -> None:
    """Between tokens only where no request's time per output token is known."""
    for name, other in INSTEAD_OF.items():
        both = [each for each in load_sources().values() if each.metrics[other].alternatives]
        assert both
        for source in both:
            shown = source.metrics[f"{name}_seconds"]
            assert not set(objectives_of()[name].edges_seconds) & {*shown.edges, *shown.edges_before}, source.name


def test_an_alert_on_a_latency_cannot_fire_where_none_of_its_edges_is_counted() -> None:
    """Of a histogram of other edges, and of one whose edges are not known."""
    between, first = ALERTS["ServescopeInterTokenLatencyBudgetBurns"], ALERTS["ServescopeTimeToFirstTokenBudgetBurns"]

    assert [can_fire(between, (name,)) for name in ("dynamo-frontend", "vllm", "nim")] == [True, False, False]
    assert [can_fire(first, (name,)) for name in ("dynamo-frontend", "vllm", "nim")] == [True, True, False]


def test_a_histogram_that_ends_below_a_latency_is_held_to_it_at_a_chosen_edge_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A source of its own, beside others; the error says which edges there are."""
    vllm = load_sources()["vllm"]
    latency = replace(vllm.metrics["time_to_first_token_seconds"], edges=(0.5, 1.0), edges_before=())
    short = replace(vllm, name="short", metrics={**vllm.metrics, "time_to_first_token_seconds": latency})
    for module in ("chosen", "feeding", "rules.promises"):
        monkeypatch.setattr(f"servescope.alerting.{module}.load_sources", lambda: {**load_sources(), "short": short})

    def held(objective: dict[str, float] | None, *sources: str) -> tuple[float, ...]:
        objectives = {"time_to_first_token": objective} if objective else {}
        chosen = make_options({"alerts": {"sources": [*sources], "objectives": objectives}}, origin="o.toml")
        promised = chosen.choices.objectives.get("time_to_first_token")
        return promised.edges_seconds if promised else ()

    assert held(None, "short") == ()
    assert held(None, "short", "vllm") == (2.5,)
    assert held({"seconds": 1.0}, "short") == (1.0,)
    with pytest.raises(ConfigurationError, match=r"expected `seconds`, as no edge is 2\.5 or above: short has 0\.5, 1"):
        held({"goal": 0.95}, "short")


def test_an_objective_says_what_engines_without_its_edge_are_held_to() -> None:
    """In what a notification says, too."""
    objective = objectives_of()["time_to_first_token"]
    promise, (first, *others) = objective.promise, objective.edges_seconds

    listed = " or ".join(f"{edge:g} s" for edge in others)
    assert promise.endswith(f"within {first:g} s ({listed} where the engine does not count that edge)")
    assert promise in ALERTS["ServescopeTimeToFirstTokenBudgetBurnsFast"].description
    assert objectives_of(("dynamo-frontend",))["time_to_first_token"].promise.endswith("within 4.7 s")
    assert objectives_of(("sglang",))["time_to_first_token"].promise.endswith(
        "(4 s where the engine does not count that edge)"
    )
    assert objectives_of(("vllm",))["time_to_first_token"].promise.endswith("within 2.5 s")


# --- From the counters of an engine -----------------------------------------------------------------------------------


def _rising(per_minute: float) -> Values:
    return [1000 + per_minute * minute for minute in range(HOURS * 60)]


def _ended(ok: Values, error: Values | None = None, start: int = 0) -> dict[str, Values]:
    error = [7.0] * len(ok) if error is None else error
    return {'requests_total{outcome="ok"}': ok[start:], 'requests_total{outcome="error"}': error[start:]}


def _latencies(source: str, name: str, bad_share: float, slowest: float) -> dict[str, Values]:
    """The histogram of an engine whose observations are either at once, or just within the edge `slowest`."""
    (edges, *_) = (
        edges_of(name)[source]
        if source in edges_of(name)
        else (load_sources()[source].metrics[f"{name}_seconds"].edges,)
    )
    quick = _rising(60 * (1 - bad_share))
    every = _rising(60)
    buckets = {
        f'{name}_seconds_bucket{{le="{format_edge(edge)}"}}': every if edge >= slowest else quick for edge in edges
    }
    return {**buckets, f'{name}_seconds_bucket{{le="+Inf"}}': every, f"{name}_seconds_count": every}


def _of_deployment(name: str, counters: Mapping[str, Values], *, missing: int = 0) -> list[dict[str, str]]:
    """The counters of a deployment's replica, first seen after so many minutes."""
    found = []
    for key, values in counters.items():
        metric, _, own = key.partition("{")
        text = series(metric, {**DEPLOYMENT, "deployment_id": name, "replica": "r0"})
        if own:
            text = f"{text[:-1]}, {own}"
        found.append({"series": text, "values": notation([*[None] * missing, *values])})
    return found


def _firing(alert: str, deployment: str, *, at: int, fires: bool) -> dict[str, Any]:
    return check_firing(alert, at, fires, f'deployment_id="{deployment}"')


def _unexpected(
    promtool: Path, folder: Path, given: Iterable[dict[str, str]], checks: list[dict[str, Any]], *names: str
) -> Any:
    test = {"name": "objectives", "interval": "1m", "input_series": list(given), "promql_expr_test": checks}
    suite = Suite([test], alert_groups([ALERTS[name] for name in names]), [GENERATED / "objectives.rules.yml"])
    return failures(promtool, folder, {"objectives": suite})


@pytest.mark.slow
def test_latencies_page_on_every_engine(each_promtool: Path, tmp_path: Path) -> None:
    """In one fleet, each by its own edge: what is slower pages, what is as promised does not."""
    first, between = "ServescopeTimeToFirstTokenBudgetBurnsFast", "ServescopeInterTokenLatencyBudgetBurnsFast"
    per_token = "ServescopeTimePerOutputTokenBudgetBurnsFast"
    engines = {
        # The engine, and for each alert the bad share beyond which edge, and whether that is too slow.
        "dynamo-late": ("dynamo-frontend", {first: (10.0, True), between: (0.21, True)}),
        "dynamo-well": ("dynamo-frontend", {first: (4.7, False), between: (0.12, False)}),
        "sglang-late": ("sglang", {first: (6.0, True), between: (0.6, False), per_token: (0.2, True)}),
        "sglang-well": ("sglang", {first: (4.0, False), between: (0.1, False), per_token: (0.1, False)}),
        "vllm-late": ("vllm", {first: (5.0, True), between: (0.75, False), per_token: (0.15, True)}),
        "vllm-well": ("vllm", {first: (2.5, False), between: (0.1, False), per_token: (0.1, False)}),
    }
    names = {first: "time_to_first_token", between: "inter_token_latency", per_token: "time_per_output_token"}
    given: list[dict[str, str]] = []
    checks = []
    for deployment, (engine, latencies) in engines.items():
        given += _of_deployment(deployment, _ended(_rising(60)))
        for alert, (edge, fires) in latencies.items():
            given += _of_deployment(deployment, _latencies(engine, names[alert], 0.2, edge))
            checks.append(_firing(alert, deployment, at=HOURS * 60 - 1, fires=fires))

    assert _unexpected(each_promtool, tmp_path, given, checks, *names) == {}


@pytest.mark.slow
def test_a_few_failures_page_nobody_unless_they_are_all_there_is(promtool: Path, tmp_path: Path) -> None:
    """On a quiet night, and in a deployment that has only just begun to serve."""
    name, minutes = "ServescopeRequestsBudgetBurnsFast", range(HOURS * 60)
    few = {
        # Some 74 requests an hour, of which at last so many fail, one a minute.
        "two of many": ([100 + minute * 1.2 for minute in minutes], 2, 0, False),
        "nine of many": ([100 + minute * 1.2 for minute in minutes], 9, 0, False),
        "twelve of many": ([100 + minute * 1.2 for minute in minutes], 12, 0, True),
        "two of two": ([100.0 for _ in minutes], 2, 0, False),
        "four of four": ([100.0 for _ in minutes], 4, 0, True),
        # Sixty requests in the ten minutes that it has been there.
        "three of a young one": ([100 + minute * 6.0 for minute in minutes], 3, HOURS * 60 - 12, False),
    }
    given: list[dict[str, str]] = []
    checks = []
    for deployment, (ok, failed, missing, fires) in few.items():
        errors = [7.0 + max(0, minute - (HOURS * 60 - 6 - failed)) for minute in minutes]
        errors = [min(each, 7.0 + failed) for each in errors]
        given += _of_deployment(deployment, _ended(ok, errors, missing), missing=missing)
        checks += [
            _firing(name, deployment, at=at, fires=fires)
            for at in ((HOURS * 60 - 2,) if fires else range(HOURS * 60 - 15, HOURS * 60))
        ]

    assert _unexpected(promtool, tmp_path, given, checks, name) == {}


# --- Of some deployments ----------------------------------------------------------------------------------------------


CHOSEN = {
    "sources": ["vllm"],
    "objectives_of": [
        {"deployment_id": "chat", "time_to_first_token": {"goal": 0.95, "seconds": 0.5}, "requests": {"goal": 0.95}},
        {"environment": "e", "deployment_id": "firm", "requests": {"goal": 0.9999}},
        {"environment": "e", "requests": {"goal": 0.99}},
    ],
}  # fmt: skip


@pytest.mark.slow
def test_a_deployment_is_judged_by_the_first_table_with_its_labels(both_promtools: Path, tmp_path: Path) -> None:
    """By its goal, and by the latency that it is promised; another by what all others are, and the message says it."""
    options = make_options({"alerts": CHOSEN}, origin="options.toml")
    late, failing = (f"Servescope{name}BudgetBurnsFast" for name in ("TimeToFirstToken", "Requests"))
    alerts = options.alerts()
    groups = [objective_group(options), *alert_groups([alerts[late], alerts[failing]], options)]
    given: list[dict[str, str]] = []
    checks = []
    # All have first tokens between 0.5 and 2.5 s, and a share of the requests fails.
    for name, failed, fails in (
        ("chat", 0.2, False),
        ("code", 0.2, True),
        ("else", 0.01, False),
        ("firm", 0.01, True),
    ):
        given += _of_deployment(name, _ended(_rising(60 * (1 - failed)), _rising(60 * failed)))
        given += _of_deployment(name, _latencies("vllm", "time_to_first_token", 0.9, 2.5))
        checks.append(_firing(failing, name, at=HOURS * 60 - 1, fires=fails))
        checks.append(_firing(late, name, at=HOURS * 60 - 1, fires=name == "chat"))
    story = {"name": "objectives", "interval": "1m", "input_series": given, "promql_expr_test": checks}
    promised = (
        '{{ if and (eq $labels.deployment_id "chat") }}95 % of requests have their first token within 0.5 s{{ else }}'
    )

    assert failures(both_promtools, tmp_path, {"some": Suite([story], groups)}) == {}
    assert promised in alerts[late].description


def test_what_some_deployments_are_promised_adds_a_rule_to_each_objective() -> None:
    """However many they are."""

    def count(tables: list[dict[str, Any]]) -> int:
        options = make_options({"alerts": {"objectives_of": tables}}, origin="options.toml")
        return len(objective_group(options)["rules"])

    tables = [{"deployment_id": f"d{number}", "requests": {"goal": 0.95}} for number in range(50)]

    assert count(tables) == count(tables[:1]) == count([]) + 1
