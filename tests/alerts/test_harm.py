"""Harm that no finished request shows: each incident is reported in time, and ordinary life beside it is not."""

from __future__ import annotations

import pytest

from tests.alerts.support.incidents import Incidents, Stretches, of_replica

pytestmark = pytest.mark.slow

_AGE, _UP = "servescope_target_scrape_age_seconds", "servescope_target_up"
_HOURS = 3 * 60
_DAY = 26 * 60


def _requests(*stretches: tuple[int, float | None], model: str = "m") -> dict[str, Stretches]:
    """A replica of a model that is listed and up, with so many requests a second; of none it is not known."""
    flight = [(minutes, value if value is None else 2.0 * (value > 0)) for minutes, value in stretches]
    known = [(minutes, None if value is None else 1.0) for minutes, value in stretches]
    return {
        of_replica("requests_total", outcome="ok", model_name=model): stretches,
        of_replica("concurrent_requests", model_name=model): flight,
        of_replica(_UP, model_name=model): known,
        of_replica(_AGE, model_name=model): known,
    }


# --- Traffic that is gone ---------------------------------------------------------------------------------------------

_GONE, _STOPPED = "ServescopeTrafficGone", "ServescopeTrafficStopped"


def test_a_model_that_is_swapped_is_not_gone(incidents: Incidents) -> None:
    """Drained for six minutes, then another model under the same deployment_id: neither page nor ticket."""
    given = {**_requests((_HOURS, 5.0), (6, 0.0), (194, None)), **_requests((_HOURS + 6, None), (194, 5.0), model="n")}
    quiet = dict.fromkeys(range(_HOURS, _HOURS + 190, 2), False)

    assert incidents.firing(given, {_GONE: quiet, _STOPPED: quiet}) == {}


@pytest.mark.proof
def test_a_model_that_left_the_lists_is_not_missed_for_a_day(incidents: Incidents) -> None:
    """A ticket while it is listed without requests; it ends when the model is removed."""
    given = _requests((_HOURS, 5.0), (60, 0.0), (60, None))
    minutes = {_HOURS - 1: False, _HOURS + 15: True, _HOURS + 55: True, _HOURS + 75: False}

    assert incidents.firing(given, {_STOPPED: minutes}) == {}


@pytest.mark.proof
def test_traffic_that_ends_every_evening_is_no_page(incidents: Incidents) -> None:
    """An office tool from 8 to 18 o'clock: a ticket on its first evening, and nothing from then on."""
    given = _requests(*((600, 5.0), (840, 0.0)) * 3)
    evenings = [600, 600 + 1440, 600 + 2880]
    quiet = dict.fromkeys((minute for evening in evenings for minute in range(evening, evening + 120, 5)), False)
    first = {evenings[0] + 30: True, **dict.fromkeys(range(evenings[1], evenings[1] + 120, 5), False)}

    assert incidents.firing(given, {_GONE: quiet, _STOPPED: first}) == {}


@pytest.mark.proof
def test_a_gateway_that_dies_is_a_page_where_a_day_is_known(incidents: Incidents) -> None:
    """After a day of traffic it ends: a page within a quarter of an hour."""
    given = _requests((_DAY, 5.0), (120, 0.0))
    minutes = {_DAY: False, _DAY + 15: True, _DAY + 110: True}

    assert incidents.firing(given, {_GONE: minutes}) == {}


def test_a_ticket_outlasts_the_page_on_the_same_harm(incidents: Incidents) -> None:
    """45 minutes in which every request fails: the slow burn fires beside the page, and goes on when that is over."""
    given = {
        **_requests((_HOURS, 5.0), (45, 0.0), (90, 5.0)),
        of_replica("requests_total", outcome="error"): [(_HOURS, 0.0), (45, 5.0), (90, 0.0)],
    }
    ends = _HOURS + 45
    page = {_HOURS + 15: True, ends: True, ends + 80: False}
    ticket = {_HOURS - 1: False, ends: True, ends + 80: True}

    asked = {"ServescopeRequestsBudgetBurnsFast": page, "ServescopeRequestsBudgetBurns": ticket}
    assert incidents.firing(given, asked) == {}


# --- Requests that are no longer exposed ------------------------------------------------------------------------------

_DARK = "ServescopeRequestsNotExposed"


def test_a_release_that_renames_requests_is_a_page(incidents: Incidents) -> None:
    """Three hours of traffic, then requests have another name: a page within a quarter of an hour."""
    given = {
        **_requests((_HOURS, 5.0), (60, 5.0)),
        of_replica("requests_total", outcome="ok"): [(_HOURS, 5.0), (60, None)],
    }
    minutes = {_HOURS - 1: False, _HOURS + 15: True, _HOURS + 55: True}

    assert incidents.firing(given, {_DARK: minutes}) == {}


def test_what_has_no_requests_is_not_dark(incidents: Incidents) -> None:
    """Restarted without traffic since, removed, or with another model after eight minutes: none is a page."""
    flight = of_replica("concurrent_requests")
    restarted = {
        **_requests((_HOURS, 5.0), (60, 5.0)),
        of_replica("requests_total", outcome="ok"): [(_HOURS, 5.0), (60, None)],
        flight: [(_HOURS, 2.0), (60, 0.0)],
    }
    removed = _requests((_HOURS, 5.0), (60, None))
    swapped = {**_requests((_HOURS, 5.0), (60, None)), **_requests((_HOURS + 8, None), (52, 5.0), model="n")}
    quiet = {_DARK: dict.fromkeys(range(_HOURS, _HOURS + 60), False)}

    for given in (restarted, removed, swapped):
        assert incidents.firing(given, quiet) == {}


# --- What requests are answered with ----------------------------------------------------------------------------------

_SHORT, _INVALID = "ServescopeAnswerLengthChanged", "ServescopeClientErrorsHigh"


def _answers(*stretches: tuple[int, float, float]) -> dict[str, Stretches]:
    """A replica with requests a second, and how many tokens each is answered with."""
    requests = [(minutes, rate) for minutes, rate, _ in stretches]
    tokens = [(minutes, rate * length) for minutes, rate, length in stretches]
    return {
        of_replica("requests_total", outcome="ok"): requests,
        of_replica("output_tokens_per_request_count"): requests,
        of_replica("output_tokens_per_request_sum"): tokens,
        of_replica("output_tokens_total"): tokens,
    }


@pytest.mark.parametrize("length", [pytest.param(0.0, marks=pytest.mark.proof), 30.0])
def test_answers_that_shrink_are_a_page(incidents: Incidents, length: float) -> None:
    """All answers become empty, or a tenth as long: a page within a quarter of an hour, until they are whole again."""
    given = _answers((_HOURS, 5.0, 300.0), (180, 5.0, length), (30, 5.0, 300.0))
    minutes = {_HOURS - 1: False, _HOURS + 15: True, _HOURS + 170: True, _HOURS + 205: False}

    assert incidents.firing(given, {_SHORT: minutes}) == {}


def _bursts(busy: int, idle: int, minutes: int, length: float, probes: float = 0.0) -> list[tuple[int, float, float]]:
    """Users who all ask at once and pause together, and probes each answered with one token."""
    burst = (busy, 2.0 + probes, (2.0 * length + probes) / (2.0 + probes))
    return [burst, (idle, probes, 1.0)] * (minutes // (busy + idle))


@pytest.mark.parametrize(("busy", "idle"), [(3, 6), (2, 8), pytest.param(6, 9, marks=pytest.mark.proof)])
@pytest.mark.parametrize(
    "phase", [0, pytest.param(2, marks=pytest.mark.proof), pytest.param(5, marks=pytest.mark.proof)]
)
def test_answers_that_shrink_between_bursts_are_a_page(
    by_the_minute: Incidents, busy: int, idle: int, phase: int
) -> None:
    """Few users, who ask for some minutes and then pause: a page within a quarter of an hour as well."""
    before = [(phase, 0.2, 300.0)] if phase else []
    given = _answers(*before, *_bursts(busy, idle, _HOURS, 300.0), *_bursts(busy, idle, 90, 30.0))
    starts = _HOURS + phase
    minutes = {starts - 1: False, starts + 15: True, starts + 80: True}

    assert by_the_minute.firing(given, {_SHORT: minutes}) == {}


@pytest.mark.parametrize(("busy", "idle"), [(10, 10), pytest.param(2, 8, marks=pytest.mark.proof)])
def test_probes_between_bursts_are_no_page(by_the_minute: Incidents, busy: int, idle: int) -> None:
    """One token each, and between bursts all there is."""
    given = _answers(*_bursts(busy, idle, 2 * _HOURS, 300.0, probes=0.2))
    quiet = dict.fromkeys(range(_HOURS, 2 * _HOURS), False)

    assert by_the_minute.firing(given, {_SHORT: quiet}) == {}


@pytest.mark.parametrize(
    "day",
    [
        # The chats of the day end, and probes of one token stay.
        ((_HOURS, 5.0, 300.0), (120, 0.1, 1.0)),
        # A batch of classifications comes beside them.
        ((_HOURS, 5.0, 300.0), (120, 105.0, 15.0)),
        # A batch of long texts ends.
        ((_HOURS, 5.0, 1500.0), (120, 1.5, 200.0)),
        # Night falls within two hours.
        ((_HOURS, 5.0, 300.0), *((10, 5.0 - step * 0.4, 300.0 - step * 20) for step in range(12))),
    ],
)
def test_another_mix_of_requests_is_no_page(incidents: Incidents, day: tuple[tuple[int, float, float], ...]) -> None:
    """Ordinary days, whose answers are shorter at other requests."""
    quiet = dict.fromkeys(range(_HOURS, _HOURS + 120, 2), False)

    assert incidents.firing(_answers(*day), {_SHORT: quiet}) == {}


def test_one_tenants_invalid_requests_are_a_ticket(incidents: Incidents) -> None:
    """18 % of all requests answered 400 since a change of the limit: a ticket within half an hour; 5 % is none."""
    given = {
        of_replica("requests_total", outcome="ok"): [(_HOURS, 5.0), (60, 4.1)],
        of_replica("requests_total", outcome="client_error"): [(_HOURS, 0.05), (60, 0.9)],
    }
    minutes = {_HOURS - 1: False, _HOURS + 30: True, _HOURS + 55: True}
    few = {**given, of_replica("requests_total", outcome="client_error"): [(_HOURS, 0.05), (60, 0.25)]}
    quiet = dict.fromkeys(range(_HOURS, _HOURS + 60), False)

    assert incidents.firing(given, {_INVALID: minutes}) == {}
    assert incidents.firing(few, {_INVALID: quiet}) == {}


# --- One replica of several -------------------------------------------------------------------------------------------

_HOT, _SLOW = "ServescopeRouterHotSpot", "ServescopeReplicaDiffers"
EACH_SIZE = pytest.mark.parametrize(
    ("replicas", "scrape_seconds"),
    [
        (2, 30),
        *(
            pytest.param(*each, marks=pytest.mark.proof)
            for each in ((20, 60), (20, 30), (20, 15), (200, 15), (1000, 60))
        ),
    ],
)  # fmt: skip
"""Replicas of a deployment, and the interval of scrapes; promtool loads 10,000 samples for a rule at most."""


def _balanced(each: dict[int, tuple[tuple[int, float, float], ...]]) -> dict[str, Stretches]:
    """Replicas by their number, with requests that end a second, and those in flight."""
    given: dict[str, Stretches] = {}
    for number, stretches in each.items():
        name = f"r{number}"
        given[of_replica("requests_total", name, outcome="ok")] = [(minutes, rate) for minutes, rate, _ in stretches]
        given[of_replica("concurrent_requests", name)] = [(minutes, flight) for minutes, _, flight in stretches]
    return given


@EACH_SIZE
def test_a_router_with_a_hot_spot_is_a_page(incidents: Incidents, replicas: int) -> None:
    """Everything goes to one replica, of which half as many requests end: a page within a quarter of an hour."""
    well, hot = (_HOURS, 2.0, 10.0), (180, replicas * 1.0, replicas * 40.0)
    given = _balanced({0: (well, hot), **dict.fromkeys(range(1, replicas), (well, (180, 0.0, 0.0)))})
    minutes = {_HOURS - 1: False, _HOURS + 15: True, _HOURS + 175: True}

    assert incidents.firing(given, {_HOT: minutes}) == {}


@pytest.mark.parametrize(
    "each",
    [
        # A surge on one replica: others start beside it and get their part after eight minutes.
        {
            0: ((_HOURS, 4.0, 10.0), (8, 4.0, 80.0), (52, 4.0, 10.0)),
            1: ((_HOURS, 0.0, 0.0), (8, 0.0, 0.0), (52, 4.0, 10.0)),
        },
        # One replica, which prompts of another length slow down.
        {0: ((_HOURS, 4.0, 20.0), (60, 1.0, 90.0))},
        # All of several are slower.
        dict.fromkeys(range(4), ((_HOURS, 4.0, 20.0), (60, 1.0, 90.0))),
        # An idle deployment, one of whose replicas gets the only request.
        {0: ((_HOURS, 0.05, 1.0), (60, 0.01, 2.0)), 1: ((_HOURS, 0.05, 1.0), (60, 0.0, 0.0))},
        # A rolling upgrade: one after the other has no requests for five minutes.
        {
            number: ((_HOURS, 4.0, 20.0), (5 * number, 4.0, 23.0), (5, 0.0, 0.0), (55 - 5 * number, 4.0, 22.0))
            for number in range(1, 9)
        },
    ],
)  # fmt: skip
def test_ordinary_balance_is_no_page(
    incidents: Incidents, each: dict[int, tuple[tuple[int, float, float], ...]]
) -> None:
    """A surge while replicas start, slow requests, an idle deployment and a rolling upgrade."""
    quiet = dict.fromkeys(range(_HOURS, _HOURS + 60), False)

    assert incidents.firing(_balanced(each), {_HOT: quiet}) == {}


def _paced(times: dict[int, tuple[tuple[int, float], ...]], requests: float = 0.5) -> dict[str, Stretches]:
    """Replicas by their number, with the seconds that a token takes on each."""
    given: dict[str, Stretches] = {}
    for number, stretches in times.items():
        name = "time_per_output_token_seconds"
        given[of_replica(f"{name}_sum", f"r{number}")] = [(minutes, each * requests) for minutes, each in stretches]
        given[of_replica(f"{name}_count", f"r{number}")] = [(minutes, requests) for minutes, _ in stretches]
    return given


@pytest.mark.parametrize("replicas", [8, pytest.param(200, marks=pytest.mark.proof)])
def test_one_slow_gpu_is_a_ticket_that_names_it(incidents: Incidents, replicas: int) -> None:
    """One of several becomes two and a half times as slow: a ticket within an hour; none if all are as slow."""
    slow, well = ((_HOURS, 0.02), (70, 0.05)), ((_HOURS, 0.02), (70, 0.022))
    given = _paced({0: slow, **dict.fromkeys(range(1, replicas), well)})
    minutes = {_HOURS - 1: False, _HOURS + 60: True}
    quiet = dict.fromkeys(range(_HOURS, _HOURS + 70, 2), False)

    assert incidents.firing(given, {_SLOW: minutes}) == {}
    alike = _paced(dict.fromkeys(range(3), slow))
    assert incidents.firing(alike, {_SLOW: quiet}) == {}
    few = {**_paced(dict.fromkeys(range(1, 3), well)), **_paced({0: slow}, requests=0.01)}
    assert incidents.firing(few, {_SLOW: quiet}) == {}
