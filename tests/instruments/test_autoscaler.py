"""The autoscaler's instruments: evaluations as a whole, replicas by status."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.contract.identity import Identity
from servescope.contract.metrics import REPLICA_START_TIME, REPLICA_STATUSES
from servescope.instruments.autoscaler import AutoscalerInstruments
from servescope.instruments.testing import value
from tests.instruments.conftest import assert_values
from tests.support.drawing import examples
from tests.support.hostile_values import HOSTILE, UNHURRIED

IDENTITY = Identity("llama-70b", "chat-v2", "v2", role="autoscaler")
EVALUATION: dict[str, Any] = {
    "in_flight_tokens": 81_000, "avg_in_flight_tokens": 90_000.5, "avg_num_requests": 12.5, "avg_num_workers": 2.0,
    "desired_scale": 1.8, "policy_desired_scale": 2.0, "rounded_desired_scale": 2,
}  # fmt: skip


@pytest.fixture
def autoscaler() -> AutoscalerInstruments:
    return AutoscalerInstruments(IDENTITY)


def test_nothing_is_there_before_the_first_evaluation(autoscaler: AutoscalerInstruments) -> None:
    """An autoscaler that has not looked yet does not claim 0."""
    assert {sample.name for sample in autoscaler.samples()} == {
        "servescope_instrument_errors_total", REPLICA_START_TIME,
    }  # fmt: skip


def test_an_evaluation_is_shown_under_the_documented_names(autoscaler: AutoscalerInstruments) -> None:
    """The seven gauges hold what was evaluated last; an idle deployment shows 0, never nothing."""
    for evaluation in (dict.fromkeys(EVALUATION, 0), EVALUATION):
        autoscaler.evaluated(**evaluation)
        assert_values(autoscaler, **{f"autoscaler_{name}": figure for name, figure in evaluation.items()})


def test_the_bounds_are_shown_as_they_are_set(autoscaler: AutoscalerInstruments) -> None:
    """None before; a bound that is no number of replicas leaves those of before."""
    assert not [each for each in autoscaler.samples() if each.name.endswith("_replicas")]
    autoscaler.set_bounds(min_replicas=1, max_replicas=8)
    autoscaler.set_bounds(min_replicas=-1, max_replicas=4)
    assert (value(autoscaler, "autoscaler_min_replicas"), value(autoscaler, "autoscaler_max_replicas")) == (1, 8)


def test_replicas_are_shown_by_status_with_zeros_for_the_rest(autoscaler: AutoscalerInstruments) -> None:
    """A status that is left out has none."""
    autoscaler.set_replicas({"active": 3, "starting": 1})
    counts = [value(autoscaler, "replica_count_by_status", status=status) for status in REPLICA_STATUSES]
    assert counts == [1, 3, 0, 0, 0]


@pytest.mark.parametrize("wrong", [math.nan, -1, math.inf, "2", None])
def test_an_evaluation_with_a_wrong_figure_is_refused_as_a_whole(autoscaler: AutoscalerInstruments, wrong: Any) -> None:
    """Two evaluations are never mixed: the last good one stays."""
    autoscaler.evaluated(**EVALUATION)
    autoscaler.evaluated(**(dict.fromkeys(EVALUATION, 1) | {"desired_scale": wrong}))
    assert value(autoscaler, "autoscaler_in_flight_tokens") == 81_000
    errors = sum(sample.value for sample in autoscaler.samples() if sample.name == "servescope_instrument_errors_total")
    assert errors == 1


def test_an_unknown_status_is_refused_with_those_there_are(
    autoscaler: AutoscalerInstruments, caplog: pytest.LogCaptureFixture
) -> None:
    """The counts before it stay."""
    autoscaler.set_replicas({"active": 1})
    autoscaler.set_replicas({"running": 2})
    assert value(autoscaler, "replica_count_by_status", status="active") == 1
    assert "unknown replica status 'running', supported: starting, active" in caplog.text


@settings(UNHURRIED, max_examples=examples(30))
@given(st.tuples(*[HOSTILE] * 7), HOSTILE, st.dictionaries(st.text(max_size=3), HOSTILE, max_size=2))
def test_no_value_raises(figures: tuple[Any, ...], replicas: Any, counts: dict[str, Any]) -> None:
    """Whatever is passed: no exception, and finite figures."""
    autoscaler = AutoscalerInstruments(IDENTITY)
    autoscaler.evaluated(**dict(zip(EVALUATION, figures, strict=True)))
    autoscaler.set_replicas(replicas)
    autoscaler.set_replicas(counts)
    assert all(math.isfinite(sample.value) for sample in autoscaler.samples())


def test_phases_are_shown_each_with_its_tokens_and_its_need(autoscaler: AutoscalerInstruments) -> None:
    """Both gauges by phase; one that is not disaggregated shows neither."""
    assert value(autoscaler, "autoscaler_phase_desired_scale", phase="decode") is None
    autoscaler.set_phases(
        in_flight_tokens={"prefill": 9000, "decode": 40_000}, desired_scale={"prefill": 0.5, "decode": 1.5}
    )
    assert value(autoscaler, "autoscaler_phase_in_flight_tokens", phase="prefill") == 9000
    assert value(autoscaler, "autoscaler_phase_in_flight_tokens", phase="decode") == 40_000
    assert value(autoscaler, "autoscaler_phase_desired_scale", phase="prefill") == 0.5
    assert value(autoscaler, "autoscaler_phase_desired_scale", phase="decode") == 1.5


def test_unknown_phases_are_refused_as_a_whole(autoscaler: AutoscalerInstruments) -> None:
    """A phase that does not exist changes nothing and is counted."""
    tokens = {"prefill": 1.0, "decode": 2.0}
    autoscaler.set_phases(in_flight_tokens=tokens, desired_scale={"prefil": 1.0, "decode": 1.0})
    assert value(autoscaler, "autoscaler_phase_in_flight_tokens", phase="decode") is None
    assert value(autoscaler, "servescope_instrument_errors_total", kind="unknown_value") == 1
