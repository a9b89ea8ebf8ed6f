"""The autoscalers."""

from __future__ import annotations

import pytest

from servescope.contract.identity import Identity
from servescope.emulator.deployment.autoscaler import Autoscaler, ConcurrencyAutoscaler, Load, TokenAutoscaler
from servescope.emulator.deployment.disaggregation import Disaggregation
from servescope.errors import UsageError
from servescope.instruments.autoscaler import AutoscalerInstruments
from servescope.instruments.testing import value
from servescope.migration.scaling import ConcurrencyScaling, TokenScaling

IDENTITY = Identity("m", "d", "v2", replica="autoscaler-0", role="autoscaler")


def token_autoscaler(**scaling: float) -> TokenAutoscaler:
    """An autoscaler for 1000 tokens in flight per replica, starting with 1 of at most 8."""
    parameters = {"target_in_flight_tokens": 1000, **scaling}
    return TokenAutoscaler(TokenScaling(**parameters), instruments=AutoscalerInstruments(IDENTITY))  # type: ignore[arg-type]


def concurrency_autoscaler(**scaling: float) -> ConcurrencyAutoscaler:
    """An autoscaler for 8 requests in flight per replica, 16 at 50 %."""
    parameters = {"concurrency_target": 16, "target_utilization_percentage": 50, **scaling}
    return ConcurrencyAutoscaler(ConcurrencyScaling(**parameters), instruments=AutoscalerInstruments(IDENTITY))  # type: ignore[arg-type]


def run(autoscaler: Autoscaler, start: int, seconds: int, *, tokens: int = 0, requests: int = 0) -> list[int]:
    """What it wants every 5 seconds under a constant load."""
    load = Load(tokens, requests, workers=1)
    return [autoscaler.evaluate(float(now), load) for now in range(start, start + seconds, 5)]


def gauges(autoscaler: Autoscaler) -> dict[str, float]:
    """The autoscaler's own gauges, as a reader sees them."""
    return {
        sample.name: sample.value
        for sample in autoscaler.instruments.samples()
        if sample.name.startswith("autoscaler_")
    }


def test_token_autoscaler_scales_up_with_the_average() -> None:
    """Under a steady load it wants the tokens in flight divided by the target, rounded up, within its bounds."""
    assert run(token_autoscaler(), 5, 300, tokens=2500)[-1] == 3
    assert run(token_autoscaler(), 5, 300, tokens=3000)[-1] == 3
    assert run(token_autoscaler(), 5, 300, tokens=50_000)[-1] == 8
    assert run(token_autoscaler(), 5, 300, tokens=0)[-1] == 1


def test_token_autoscaler_decides_on_the_window_not_the_moment() -> None:
    """A spike counts only by its share of the window."""
    autoscaler = token_autoscaler()
    run(autoscaler, 5, 295, tokens=1000)
    assert run(autoscaler, 300, 5, tokens=4000) == [2]
    assert gauges(autoscaler)["autoscaler_in_flight_tokens"] == 4000
    assert gauges(autoscaler)["autoscaler_avg_in_flight_tokens"] == pytest.approx(1050)


def test_token_autoscaler_waits_before_it_scales_down() -> None:
    """It keeps what it wanted until the delay is over, and then lets the count decay by its half-life."""
    autoscaler = token_autoscaler(autoscaling_window=5, scale_down_delay=300, scale_down_half_life_seconds=900)
    run(autoscaler, 5, 300, tokens=8000)
    wanted = run(autoscaler, 305, 3000, tokens=1000)
    assert set(wanted[: 295 // 5]) == {8}
    # Twice the half-life after the delay a quarter is left.
    assert wanted[(295 + 1800) // 5 + 1] == 2
    assert wanted == sorted(wanted, reverse=True)
    assert wanted[-1] == 1


def test_token_autoscaler_scales_up_again_at_once() -> None:
    """Load that comes back while the count decays is answered without delay."""
    autoscaler = token_autoscaler(autoscaling_window=5, scale_down_delay=5, scale_down_half_life_seconds=60)
    run(autoscaler, 5, 100, tokens=8000)
    assert run(autoscaler, 105, 200, tokens=0)[-1] < 4
    assert run(autoscaler, 305, 5, tokens=6000) == [6]


def test_token_autoscaler_shows_how_it_decided() -> None:
    """All gauges are there, each with its own stage of the decision, and the bounds; the raw one is not bounded."""
    autoscaler = token_autoscaler(max_replica=4)
    run(autoscaler, 5, 300, tokens=9500, requests=7)
    assert gauges(autoscaler) == {
        "autoscaler_in_flight_tokens": 9500,
        "autoscaler_avg_in_flight_tokens": 9500,
        "autoscaler_avg_num_requests": 7,
        "autoscaler_avg_num_workers": 1,
        "autoscaler_desired_scale": 9.5,
        "autoscaler_policy_desired_scale": 4,
        "autoscaler_rounded_desired_scale": 4,
        "autoscaler_min_replicas": 1,
        "autoscaler_max_replicas": 4,
    }


def test_idle_deployment_reports_zero() -> None:
    """Without traffic the averages are 0 and the lower bound is kept."""
    autoscaler = token_autoscaler(min_replica=2, initial_replicas=2)
    run(autoscaler, 5, 300)
    shown = gauges(autoscaler)
    assert shown["autoscaler_avg_in_flight_tokens"] == shown["autoscaler_desired_scale"] == 0
    assert shown["autoscaler_rounded_desired_scale"] == 2


def test_concurrency_autoscaler_keeps_the_target_at_its_utilisation() -> None:
    """It wants the average requests in flight divided by target x utilisation, rounded up, within its bounds."""
    assert run(concurrency_autoscaler(), 5, 60, requests=24)[-1] == 3
    assert run(concurrency_autoscaler(), 5, 60, requests=25)[-1] == 4
    assert run(concurrency_autoscaler(), 5, 60, requests=500)[-1] == 8
    assert run(concurrency_autoscaler(), 5, 60)[-1] == 1


def test_concurrency_autoscaler_scales_down_in_steps() -> None:
    """It keeps the most it wanted within the delay, then gives up half at most, and waits before it gives up more."""
    autoscaler = concurrency_autoscaler(autoscaling_window=5)
    run(autoscaler, 5, 60, requests=60)
    wanted = run(autoscaler, 65, 4000, requests=8)
    assert list(dict.fromkeys(wanted)) == [8, 4, 2, 1]
    lasted = [5 * wanted.count(replicas) for replicas in (8, 4, 2)]
    assert lasted[0] == pytest.approx(900, abs=10)
    assert lasted[1:] == [900, 900]


def test_concurrency_autoscaler_scales_up_again_at_once() -> None:
    """Load that comes back between two steps is answered without delay."""
    autoscaler = concurrency_autoscaler(autoscaling_window=5, scale_down_delay=60)
    run(autoscaler, 5, 60, requests=60)
    assert run(autoscaler, 65, 100, requests=8)[-1] == 4
    assert run(autoscaler, 165, 5, requests=60) == [8]


def test_without_a_delay_scaling_down_follows_the_window() -> None:
    """A delay of 0 is allowed: v2 then falls as its half-life lets it, v1 by half at each look."""
    v2 = token_autoscaler(autoscaling_window=5, scale_down_delay=0, scale_down_half_life_seconds=5)
    run(v2, 5, 50, tokens=8000)
    assert run(v2, 55, 15, tokens=0) == [4, 2, 1]
    v1 = concurrency_autoscaler(autoscaling_window=5, scale_down_delay=0)
    run(v1, 5, 50, requests=64)
    assert run(v1, 55, 15, requests=0) == [4, 2, 1]


def test_concurrency_autoscaler_shows_no_tokens() -> None:
    """It counts no tokens, so it shows none: absent, not 0."""
    autoscaler = concurrency_autoscaler()
    run(autoscaler, 5, 60, requests=24)
    assert gauges(autoscaler) == {}


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"min_replica": 0}, "min_replica 0"),
        ({"min_replica": 3, "initial_replicas": 2}, "initial_replicas 2"),
        ({"max_replica": 0}, "max_replica 0"),
        ({"target_in_flight_tokens": 0}, "target_in_flight_tokens is 0"),
        ({"scale_down_half_life_seconds": -1}, "scale_down_half_life_seconds is -1"),
        ({"scale_down_delay": -1}, "scale_down_delay is -1"),
        ({"prefill_target_in_flight_tokens": 0}, "prefill_target_in_flight_tokens is 0"),
    ],
)
def test_impossible_token_scaling_is_refused(scaling: dict[str, float], message: str) -> None:
    """Bounds out of order and times or targets that are not positive are refused by name."""
    with pytest.raises(UsageError, match=message):
        TokenScaling(**scaling)  # type: ignore[arg-type]


def test_impossible_concurrency_scaling_is_refused() -> None:
    """A target of no requests is refused by name."""
    with pytest.raises(UsageError, match="concurrency_target is 0"):
        ConcurrencyScaling(concurrency_target=0)


def phase_autoscaler(**scaling: float) -> TokenAutoscaler:
    """An autoscaler of units of 1 prefill and 2 decode workers, for 1000 tokens in flight per worker."""
    parameters = {"target_in_flight_tokens": 1000, **scaling}
    return TokenAutoscaler(
        TokenScaling(**parameters),  # type: ignore[arg-type]
        instruments=AutoscalerInstruments(IDENTITY),
        disaggregation=Disaggregation(1, 2),
    )


def test_larger_need_of_the_phases_counts() -> None:
    """Each phase needs its tokens over the target of its workers in one unit; the larger need is the desired scale."""
    autoscaler = phase_autoscaler()
    assert autoscaler.evaluate(5.0, Load(5000, 3, workers=3, decode_tokens=3000)) == 2
    assert gauges(autoscaler)["autoscaler_desired_scale"] == 2.0
    assert value(autoscaler.instruments, "autoscaler_phase_desired_scale", phase="prefill") == 2.0
    assert value(autoscaler.instruments, "autoscaler_phase_desired_scale", phase="decode") == 1.5
    assert value(autoscaler.instruments, "autoscaler_phase_in_flight_tokens", phase="prefill") == 2000
    assert value(autoscaler.instruments, "autoscaler_phase_in_flight_tokens", phase="decode") == 3000
    other = phase_autoscaler(prefill_target_in_flight_tokens=4000)
    other.evaluate(5.0, Load(5000, 3, workers=3, decode_tokens=3000))
    assert gauges(other)["autoscaler_desired_scale"] == 1.5


def test_idle_phases_report_zero() -> None:
    """Without traffic both phases show 0, and the lower bound is kept."""
    autoscaler = phase_autoscaler()
    assert autoscaler.evaluate(5.0, Load(0, 0, workers=3)) == 1
    for phase in ("prefill", "decode"):
        assert value(autoscaler.instruments, "autoscaler_phase_desired_scale", phase=phase) == 0
