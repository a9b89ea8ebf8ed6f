"""Incidents of others, from public reports: those that harm are reported in time, and ordinary ones are not."""

from __future__ import annotations

import re

import pytest

from tests.alerts.support.incidents import Incidents, Stretches, of_replica
from tests.alerts.support.ordinary import Life, Process
from tests.support.alert_stories import DEPLOYMENT, ROUTER, series

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("scrape_seconds", [60])]

_HOURS = 3 * 60
_AUTOSCALER = {**DEPLOYMENT, "replica": "autoscaler", "role": "autoscaler"}
_DIFFERS, _LENGTH = "ServescopeReplicaDiffers", "ServescopeAnswerLengthChanged"
Served = tuple[int, float, float, float]
"""Minutes, and of a replica in each of them: the requests that end a second, those in flight, the tokens of each."""


def _replica(name: str, *stretches: Served, seconds: float = 4.0) -> dict[str, Stretches]:
    """What a replica of a `Life` shows instead."""
    ended = [(minutes, rate) for minutes, rate, _, _ in stretches]
    tokens = [(minutes, rate * length) for minutes, rate, _, length in stretches]
    return {
        of_replica("requests_total", name, outcome="ok"): ended,
        of_replica("request_duration_seconds_count", name): ended,
        of_replica("request_duration_seconds_sum", name): [(minutes, rate * seconds) for minutes, rate in ended],
        of_replica("output_tokens_per_request_count", name): ended,
        of_replica("output_tokens_per_request_sum", name): tokens,
        of_replica("output_tokens_total", name): tokens,
        of_replica("concurrent_requests", name): [(minutes, flight) for minutes, _, flight, _ in stretches],
    }


def _well(replicas: int, minutes: int) -> dict[str, Stretches]:
    """Replicas with two requests a second each, of which eight are in flight, and 200 tokens for an answer."""
    processes = [Process(f"r{number}", 0, 0, minutes) for number in range(replicas)]
    return Life(minutes, processes, lambda _: 2.0 * replicas, lambda _: replicas).series()


_WELL: Served = (_HOURS, 2.0, 8.0, 200.0)

# --- Harm -------------------------------------------------------------------------------------------------------------


def test_requests_of_clients_that_left_go_on(incidents: Incidents) -> None:
    """Fewer and fewer end on one of eight replicas, which goes on with all it ever got: a ticket that names it.

    https://github.com/sgl-project/sglang/issues/36876
    """
    kept = [(5, 2.0 - 0.18 * step, 8.0 + 6 * step, 200.0) for step in range(1, 11)]
    given = {**_well(8, _HOURS + 90), **_replica("r0", _WELL, *kept, (40, 0.2, 68.0, 200.0))}
    minutes = {_HOURS - 1: False, _HOURS + 10: False, _HOURS + 45: True, _HOURS + 85: True}

    assert incidents.firing(given, {_DIFFERS: minutes}) == {}


def test_a_router_loses_half_of_its_workers(incidents: Incidents) -> None:
    """Four of eight get nothing after a restart, and the others serve it all, still in time: a ticket on each.

    https://github.com/sgl-project/sglang/pull/40032
    """
    given = _well(8, _HOURS + 60)
    for number in range(8):
        served = (60, 4.0, 20.0, 200.0) if number < 4 else (60, 0.0, 0.0, 200.0)
        given |= _replica(f"r{number}", _WELL, served)
    minutes = {_HOURS - 1: False, _HOURS + 30: True, _HOURS + 55: True}

    assert incidents.firing(given, {_DIFFERS: minutes}, count=4) == {}


def _long(share_cut: float, *after: Served) -> dict[str, Stretches]:
    """A replica whose answers end at a limit from three hours on, in this share."""
    cut = [(_HOURS, 0.1), *((minutes, rate * share_cut) for minutes, rate, _, _ in after)]
    return {**_replica("r0", _WELL, *after), of_replica("answers_truncated_total"): cut}


def test_answers_that_do_not_end_are_a_page(incidents: Incidents) -> None:
    """A release drops the token that ends an answer, and all run into their limit: a page within a quarter of an hour.

    https://github.com/vllm-project/vllm/issues/45591
    """
    given = _long(1.0, (5, 0.2, 40.0, 200.0), (55, 2.0, 80.0, 2000.0))
    minutes = {_HOURS - 1: False, _HOURS + 15: True, _HOURS + 55: True}

    assert incidents.firing(given, {_LENGTH: minutes}) == {}


@pytest.mark.proof
@pytest.mark.parametrize(
    ("share_cut", "rate", "length"), [(0.05, 2.0, 2000.0), (1.0, 0.4, 2000.0), (1.0, 2.0, 250.0), (0.3, 3.0, 700.0)]
)
def test_long_texts_are_no_page(incidents: Incidents, share_cut: float, rate: float, length: float) -> None:
    """They end by themselves, are few, or are hardly longer; a batch of them beside the chats is a part."""
    given = _long(share_cut, (90, rate, 30.0, length))

    assert incidents.firing(given, {_LENGTH: dict.fromkeys(range(_HOURS, _HOURS + 88), False)}) == {}


@pytest.mark.proof
def test_all_replicas_get_slower_over_six_hours(incidents: Incidents) -> None:
    """Four times as slow in the end, and until then better than the objective for most: a ticket in the sixth hour.

    https://github.com/vllm-project/vllm/issues/44175
    """
    late = [(_HOURS, 0.0), *((30, max(0.0, step / 4 - 1) * 0.08) for step in range(1, 13)), (60, 0.16)]
    name = "time_per_output_token_seconds"
    given = {
        of_replica("requests_total", outcome="ok"): [(_HOURS + 420, 8.0)],
        of_replica(f"{name}_bucket", le="0.1"): [(minutes, 8.0 * (1 - share)) for minutes, share in late],
        of_replica(f"{name}_bucket", le="+Inf"): [(_HOURS + 420, 8.0)],
        of_replica(f"{name}_count"): [(_HOURS + 420, 8.0)],
    }
    minutes = {_HOURS + 120: False, _HOURS + 360: True}

    assert incidents.firing(given, {"ServescopeTimePerOutputTokenBudgetBurns": minutes}) == {}


@pytest.mark.proof
def test_an_autoscaler_without_its_metric(incidents: Incidents) -> None:
    """It keeps four replicas while three times the load queues: a ticket on the queue within half an hour.

    https://github.com/kedacore/keda/issues/3851
    """
    given = _well(4, _HOURS + 90)
    for number in range(4):
        queue = [(10, 6.0 * step) for step in range(1, 10)]
        given |= _replica(f"r{number}", _WELL, *((minutes, 3.0, 24 + queued, 200.0) for minutes, queued in queue))
        given[of_replica("queued_requests", f"r{number}")] = [(_HOURS, 0.0), *queue]
    for name in ("autoscaler_desired_scale", "autoscaler_in_flight_tokens"):
        given[series(name, _AUTOSCALER)] = [*given[series(name, _AUTOSCALER)][:_HOURS], (90, None)]
    minutes = {_HOURS - 1: False, _HOURS + 30: True, _HOURS + 85: True}

    assert incidents.firing(given, {"ServescopeQueueGrowing": minutes}) == {}


@pytest.mark.proof
def test_one_of_forty_is_restarted_for_ever(incidents: Incidents) -> None:
    """It runs out of memory after eight minutes, and loads weights for twelve: a ticket that names it.

    https://github.com/vllm-project/vllm/issues/44175
    """
    minutes = _HOURS + 120
    others = [Process(f"r{number}", 0, 0, minutes) for number in range(1, 40)]
    loop = [Process("r0", at, at + 12, at + 20) for at in range(_HOURS, minutes, 20)]
    life = Life(minutes, [*others, Process("r0", 0, 0, _HOURS), *loop], lambda _: 80.0, lambda _: 40)

    (found,) = incidents.fired(life.series(), minutes).values()
    assert re.findall(r'alertname="(\w+)"', found) == [_DIFFERS]


@pytest.mark.proof
def test_decode_workers_compute_what_they_are_not_sent(incidents: Incidents) -> None:
    """A proxy no longer passes the parameters of transfers, and prompts are computed twice: a ticket.

    https://github.com/vllm-project/vllm/pull/42703
    """
    minutes = _HOURS + 90
    given: dict[str, Stretches] = {}
    for number in range(6):
        role, name = ("prefill", f"p{number}") if number < 2 else ("decode", f"d{number}")
        computed: Stretches = [(minutes, 4000.0)] if number < 2 else [(_HOURS, 0.0), (90, 2000.0)]
        given |= {
            of_replica("servescope_target_up", name, role=role): [(minutes, 1.0)],
            of_replica("servescope_target_scrape_age_seconds", name, role=role): [(minutes, 15.0)],
            of_replica("requests_total", name, role=role, outcome="ok"): [(minutes, 5.0 if number < 2 else 2.5)],
            of_replica("input_tokens_total", name, role=role): computed,
            of_replica("output_tokens_total", name, role=role): [(minutes, 500.0)],
            of_replica("concurrent_requests", name, role=role): [(_HOURS, 8.0), (90, 14.0)],
        }
        if role == "prefill":
            given[of_replica("kv_transfer_bytes_total", name, role=role)] = [(_HOURS, 5e8), (90, 0.0)]
            given[of_replica("kv_transfers_pending", name, role=role)] = [(_HOURS, 1.0), (90, 0.0)]

    assert incidents.fired(given, minutes) != {}


@pytest.mark.proof
@pytest.mark.parametrize(("rate", "waiting"), [(0.25, 14.0), (0.1, 6.0)])
def test_one_endless_request_and_nobody_is_answered(incidents: Incidents, rate: float, waiting: float) -> None:
    """It is computed at 5 tokens a second, and the others wait until their clients leave: a page within 20 minutes.

    https://github.com/intel/llm-scaler/issues/391
    """
    served = ((_HOURS, rate, 24 * rate, 600.0), (75, 0.0, 1 + waiting, 0.0))
    given = {
        **_well(1, _HOURS + 75),
        **_replica("r0", *served, seconds=24.0),
        of_replica("output_tokens_total"): [(_HOURS, 600 * rate), (75, 5.4)],
    }
    minutes = {_HOURS - 1: False, _HOURS + 20: True, _HOURS + 70: True}

    assert incidents.firing(given, {"ServescopeUpButNotServing": minutes}) == {}


@pytest.mark.proof
def test_one_of_eight_answers_exclamation_marks(incidents: Incidents) -> None:
    """Its logits are no numbers, so that each answer goes on to the client's limit: a ticket that names it.

    https://github.com/HabanaAI/vllm-fork/issues/738
    """
    minutes = _HOURS + 120
    given = {**_well(8, minutes), **_replica("r0", _WELL, (120, 2.0, 20.5, 512.0))}
    for number in range(8):
        given[of_replica("answers_truncated_total", f"r{number}")] = [(_HOURS, 0.06), (120, 0.06 if number else 2.0)]

    (found,) = incidents.fired(given, minutes).values()
    assert re.findall(r'alertname="(\w+)"', found) == [_DIFFERS]


@pytest.mark.proof
# It needs the buckets of lengths as a figure of the contract, whose edges differ between engines.
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="no alert compares how many answers are empty")
def test_a_third_of_all_answers_is_empty(incidents: Incidents) -> None:
    """Since a release they end with their first token, ok and without any error: a ticket within an hour.

    https://github.com/vllm-project/vllm/issues/29939
    """
    given = _well(4, _HOURS + 120)
    for number in range(4):
        name, length = f"r{number}", 200 * 0.65 + 0.35
        given |= _replica(name, _WELL, (120, 2.0, 5.4, length))
        for edge, before, after in (("2.0", 0.01, 0.35), ("+Inf", 1.0, 1.0)):
            key = of_replica("output_tokens_per_request_bucket", name, le=edge)
            given[key] = [(_HOURS, 2 * before), (120, 2 * after)]

    assert incidents.fired(given, _HOURS + 120) != {}


@pytest.mark.proof
# By the requests that arrive, a third of the usual ones is a holiday as well.
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="alerts on traffic know only that there is none")
def test_a_proxy_in_front_lets_a_third_through(incidents: Incidents) -> None:
    """For three hours users get errors of the edge, and the servers have less to do: a ticket within 20 minutes.

    https://blog.cloudflare.com/18-november-2025-outage/
    """
    begins, minutes = 26 * 60, 29 * 60
    processes = [Process(f"r{number}", 0, 0, minutes) for number in range(4)]
    life = Life(minutes, processes, lambda at: 9.0 if at < begins else 2.7, lambda _: 4)

    assert incidents.fired(life.series(), minutes) != {}


def _starts(on: int, off: int, begins: int, minutes: int) -> tuple[dict[str, Stretches], list[tuple[int, float]]]:
    """Pods that start for some minutes each and are ended, with a pause between them; and how many start."""
    given: dict[str, Stretches] = {}
    starting = [(begins, 0.0)]
    for number, at in enumerate(range(begins, minutes - on - off, on + off)):
        for name, value in (("servescope_target_up", 0.0), ("servescope_target_scrape_age_seconds", 15.0)):
            given[of_replica(name, f"p{number}")] = [(at, None), (on, value), (minutes - at - on, None)]
        starting += [(on, 1.0), (off, 0.0)]
    return given, [*starting, (minutes - sum(length for length, _ in starting), 0.0)]


@pytest.mark.proof
@pytest.mark.parametrize(("on", "off"), [(3, 3), (8, 2)])
def test_starts_that_are_given_up(incidents: Incidents, on: int, off: int) -> None:
    """Scaled to zero again before the first replica is ready, for ever: a ticket within an hour.

    https://github.com/kserve/kserve/issues/1247
    """
    begins, minutes = 140, 260
    given, starting = _starts(on, off, begins, minutes)
    given[series("replica_count_by_status", {**_AUTOSCALER, "status": "active"})] = [(60, 1.0), (minutes - 60, 0.0)]
    given[series("replica_count_by_status", {**_AUTOSCALER, "status": "starting"})] = starting
    given[series("autoscaler_rounded_desired_scale", _AUTOSCALER)] = [(60, 1.0), (80, 0.0), *starting[1:]]

    (found,) = incidents.fired(given, minutes).values()
    assert re.findall(r'alertname="(\w+)"', found) == ["ServescopeColdStartSlow"]
    times = {begins - 1: False, begins + 60: True}
    assert incidents.firing(given, {"ServescopeColdStartSlow": times}) == {}


@pytest.mark.proof
# What a replica queues is compared with no other's: a queue of its own is a router's choice as well.
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="no alert compares the queues of replicas")
def test_a_cache_that_fills_up_on_one_of_four(incidents: Incidents) -> None:
    """Its KV cache is not freed, and the router keeps as many in flight there as elsewhere: a ticket within an hour.

    https://github.com/sgl-project/sglang/issues/6778
    """
    minutes = _HOURS + 120
    given = {**_well(4, minutes), **_replica("r0", _WELL, (120, 0.15, 8.0, 200.0), seconds=50.0)}
    for number in range(4):
        leaks = number == 0
        given[of_replica("kv_cache_usage", f"r{number}")] = [(_HOURS, 0.4), (120, 1.0 if leaks else 0.4)]
        given[of_replica("queued_requests", f"r{number}")] = [(_HOURS, 0.0), (120, 7.0 if leaks else 0.0)]

    assert incidents.fired(given, minutes) != {}


@pytest.mark.proof
# An engine counts none of them; a router's own metrics do.
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="alerts on traffic know only that there is none")
def test_one_of_four_refuses_at_once_and_attracts_all(incidents: Incidents) -> None:
    """Its workers are gone, its server answers 500, and it has the least load: a ticket within half an hour.

    https://github.com/vllm-project/vllm/issues/16259
    """
    minutes = _HOURS + 60
    given = _well(4, minutes)
    for number in range(4):
        given |= _replica(f"r{number}", _WELL, (60, 0.1, 0.4, 200.0) if number else (60, 0.0, 0.0, 200.0))

    assert incidents.fired(given, minutes) != {}


# --- Ordinary life ----------------------------------------------------------------------------------------------------


def _named(life: Life, deployment: str, begins: int, minutes: int) -> dict[str, Stretches]:
    """A life of a deployment of this name, which begins later and is deleted at its end."""
    return {
        key.replace('deployment_id="d"', f'deployment_id="{deployment}"'): [
            *([(begins, None)] if begins else []), *each, (minutes - begins - life.minutes, None),
        ]
        for key, each in life.series().items()
    }  # fmt: skip


@pytest.mark.proof
def test_a_blue_green_deployment(incidents: Incidents) -> None:
    """Green starts beside blue and gets all requests; an hour later blue is deleted.

    https://gigagpu.com/blue-green-deployment-llm-api/
    """
    minutes, moved = 400, 200
    blue = Life(moved + 60, [Process(f"b{n}", 0, 0, 260) for n in range(4)], lambda at: 8.0 * (at < moved), lambda _: 4)
    green = Life(
        minutes - 185, [Process(f"g{n}", 0, 12, minutes) for n in range(4)], lambda at: 8.0 * (at >= 15), lambda _: 4
    )
    given = {
        **_named(blue, "blue", 0, minutes),
        **_named(green, "green", 185, minutes),
        "servescope_build_info{}": [(minutes, 1.0)],
    }

    assert incidents.fired(given, minutes) == {}


@pytest.mark.proof
def test_a_canary(incidents: Incidents) -> None:
    """A deployment of one replica gets 5 % of the requests for two hours, then none, and is deleted.

    https://gigagpu.com/ai-blue-green-deployment/
    """
    minutes = 400
    most = Life(minutes, [Process(f"r{n}", 0, 0, minutes) for n in range(8)], lambda _: 15.2, lambda _: 8)
    canary = Life(150, [Process("c0", 0, 12, 150)], lambda at: 0.8 * (15 <= at < 135), lambda _: 1)
    given = {
        **most.series(),
        **_named(canary, "canary", 185, minutes),
        "servescope_build_info{}": [(minutes, 1.0)],
    }

    assert incidents.fired(given, minutes) == {}


@pytest.mark.proof
def test_a_drain_moves_three_of_eight(incidents: Incidents) -> None:
    """Three replicas of one node are replaced at once on another, and load weights for twelve minutes.

    https://devopsbeast.com/blog/gpu-node-draining-inference
    """
    minutes, drained = 320, 200
    stay = [Process(f"r{number}", 0, 0, minutes) for number in range(5)]
    leave = [Process(f"r{number}", 0, 0, drained) for number in range(5, 8)]
    come = [Process(f"n{number}", drained + 1, drained + 13, minutes) for number in range(5, 8)]
    life = Life(minutes, [*stay, *leave, *come], lambda _: 16.0, lambda _: 8)

    assert incidents.fired(life.series(), minutes) == {}


@pytest.mark.proof
def test_a_start_from_zero(incidents: Incidents) -> None:
    """Scaled to zero for the night; the first requests wait at the router for twelve minutes.

    https://www.spheron.network/blog/keda-knative-gpu-autoscaling-kubernetes-llm-cold-start/
    """
    minutes, night, morning = 420, 100, 240
    evening = [Process(f"a{number}", 0, 0, night) for number in range(2)]
    day = [Process(f"b{number}", morning, morning + 12, minutes) for number in range(2)]

    def is_on(minute: int) -> bool:
        return minute < night or minute >= morning

    life = Life(minutes, [*evening, *day], lambda at: 4.0 * (at < 90 or at >= morning), lambda at: 2 * is_on(at))
    waiting = [(morning, 0.0), *((1, 20.0 * step) for step in range(12)), (3, 100.0), (minutes - morning - 15, 0.0)]
    given = {
        **life.series(),
        series("queued_requests", ROUTER): waiting,
        series("concurrent_requests", ROUTER): waiting,
    }

    assert incidents.fired(given, minutes) == {}


@pytest.mark.proof
def test_a_batch_of_every_night(incidents: Incidents) -> None:
    """From two to four o'clock a thousand offline requests queue, as on the nights before.

    https://gigagpu.com/ai-batch-inference-optimisation/
    """
    days, minutes = 3, 3 * 1440
    queue = [(120, 0.0), *((10, 500.0 - 40 * step) for step in range(12)), (1200, 0.0)] * days
    given: dict[str, Stretches] = {}
    for number in range(2):
        given |= {
            of_replica("queued_requests", f"r{number}"): queue,
            of_replica("concurrent_requests", f"r{number}"): [
                (at, each + (128.0 if each else 4.0)) for at, each in queue
            ],
            of_replica("requests_total", f"r{number}", outcome="ok"): [(minutes, 4.0)],
        }
    nights = dict.fromkeys(range(2 * 1440 + 120, 2 * 1440 + 240, 10), False)

    assert incidents.firing(given, {"ServescopeQueueGrowing": nights}) == {}


@pytest.mark.proof
def test_a_load_test_at_night(incidents: Incidents) -> None:
    """Random prompts and answers of a fixed length, three times the night's requests, which nobody is harmed by.

    https://docs.vllm.ai/en/latest/cli/bench/serve/
    """
    night, bench = _HOURS + 120, 40
    given = _well(4, night + bench + 60)
    for number in range(4):
        # Half a chat a second of 200 tokens, and one and a half answers of 1,024.
        name, served = f"r{number}", ((night, 0.5, 2.0, 200.0), (bench, 2.0, 32.0, 818.0), (60, 0.5, 2.0, 200.0))
        given |= _replica(name, *served)
        given[of_replica("request_duration_seconds_sum", name)] = [(night, 2.0), (bench, 32.0), (60, 2.0)]
        given[of_replica("answers_truncated_total", name)] = [(night, 0.01), (bench, 1.51), (60, 0.01)]

    assert incidents.fired(given, night + bench + 60) == {}
