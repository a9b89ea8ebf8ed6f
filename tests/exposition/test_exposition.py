"""The page, its server and the prometheus_client collector have the same values."""

from __future__ import annotations

import errno
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from unittest.mock import Mock
from urllib.request import urlopen

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from servescope.contract.identity import Identity
from servescope.contract.samples import Labels
from servescope.errors import ServescopeError, UsageError
from servescope.exposition import serving
from servescope.exposition.registry import PrometheusCollector
from servescope.exposition.rendering import CONTENT_TYPE, render
from servescope.exposition.serving import MetricsServer, serve
from servescope.exposition.web import make_asgi_app, make_wsgi_app
from servescope.instruments.autoscaler import AutoscalerInstruments
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.instrument import Instruments
from servescope.instruments.router import RouterInstruments
from servescope.instruments.testing import FakeClock
from tests.support.drawing import examples
from tests.support.hostile_values import UNHURRIED
from tests.support.waiting import deadline_seconds, wait_for

Values = dict[tuple[str, Labels], float]


def identity(replica: str, role: str = "aggregated", model_name: str = "llama-70b") -> Identity:
    return Identity(model_name, "chat-v2", "v2", replica=replica, role=role)


@pytest.fixture
def instruments() -> tuple[Instruments, ...]:
    """One of each, and a second engine, with something recorded in all."""
    clock = FakeClock()
    engines = tuple(EngineInstruments(identity(f"engine-{number}"), clock=clock) for number in range(2))
    router = RouterInstruments(identity("router-0", "router"), clock=clock)
    autoscaler = AutoscalerInstruments(identity("", "autoscaler"))
    for number, engine in enumerate(engines):
        request = engine.start_request(100)
        clock.advance(0.1)
        request.first_token()
        clock.advance(1.7)
        request.finish("ok", output_tokens=30 + number)
        engine.record_speculation(8, (3, 1))
        engine.set_kv_cache_usage(1 / 3)
    router.route(
        eligible_tokens=9, predicted_tokens=6, best_tokens=7, candidates=3, fallback_reason='no "index"\n\\'
    ).report(5)
    autoscaler.set_replicas({"active": 2})
    return *engines, router, autoscaler


def sampled(*instruments: Instruments) -> Values:
    return {(sample.name, sample.labels): sample.value for one in instruments for sample in one.samples()}


def parsed(page: bytes) -> Values:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_the_page_has_the_values_of_the_samples(instruments: tuple[Instruments, ...]) -> None:
    """Parsed by prometheus_client, it has the same series with the same values, and no others."""
    assert parsed(render(*instruments)) == sampled(*instruments)


@pytest.mark.slow
@settings(UNHURRIED, max_examples=examples(40))
@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1, max_size=12),
    st.floats(0, 1e8),
    st.integers(0, 2**32 - 1),
    st.floats(0, 1),
)
def test_any_label_and_value_survives_the_page(
    name: str, reason: str, seconds: float, tokens: int, share: float
) -> None:
    """Quotes, percent signs and line ends in labels, tiny and huge values."""
    engine = EngineInstruments(identity("%s %d", model_name=name))
    engine.record_request(
        outcome="ok", input_tokens=tokens, output_tokens=2, time_to_first_token=0.0, duration=seconds,
        decode_seconds=seconds,
    )  # fmt: skip
    engine.set_kv_cache_usage(share)
    router = RouterInstruments(identity("%s %d", "router"))
    router.route(eligible_tokens=1, predicted_tokens=1, best_tokens=1, candidates=1, fallback_reason=reason)
    assert parsed(render(engine, router)) == sampled(engine, router)


def test_each_family_follows_its_help_and_type(instruments: tuple[Instruments, ...]) -> None:
    """Two engines' series of one metric follow one HELP and one TYPE."""
    lines = render(*instruments).decode().splitlines()
    heads = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    assert "# TYPE requests_total counter" in lines
    assert "# TYPE tps_per_request histogram" in lines
    assert "# HELP requests_started_total Requests that arrived." in lines
    current = ""
    for line in lines:
        if line.startswith("# TYPE"):
            current = line.split()[2]
        elif not line.startswith("#"):
            assert line.partition("{")[0].removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") == current


def test_a_metric_that_is_absent_has_no_head(instruments: tuple[Instruments, ...]) -> None:
    """No HELP without a series."""
    assert b"queued_requests" not in render(*instruments)


@pytest.mark.parametrize("way", [render, serve, PrometheusCollector, make_asgi_app, make_wsgi_app])
def test_two_instruments_of_one_identity_are_refused(way: Callable[..., object]) -> None:
    """They would have the same series."""
    twins = [EngineInstruments(identity("engine-0")) for _ in range(2)]
    for wrong, message in (
        (twins, r"two instruments have one identity, Identity.*engine-0"), ([], "no instruments given"),
        (["engine"], "'engine' are no instruments"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            way(*wrong)


@pytest.fixture
def server(instruments: tuple[Instruments, ...]) -> Iterator[MetricsServer]:
    with serve(*instruments) as running:
        yield running


def test_the_server_gives_the_page_on_loopback(server: MetricsServer, instruments: tuple[Instruments, ...]) -> None:
    """Content type and body are those of the page, query or not."""
    assert server.url.startswith("http://127.0.0.1:")
    for url in (server.url, f"{server.url}?from=test"):
        with urlopen(url, timeout=deadline_seconds()) as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            assert answer.read() == render(*instruments)


@pytest.mark.slow
def test_clients_that_never_ask_do_not_pile_up(server: MetricsServer) -> None:
    """Beyond a handful of idle connections, new ones are closed; the server stays bounded, and closes at once."""
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=deadline_seconds()) for _ in range(8)]
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=deadline_seconds())
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            _ask(connection)
        connection.close()
        server.close()
    finally:
        for client in idle:
            client.close()


def _ask(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/metrics")
    connection.getresponse()


def test_a_closed_server_releases_its_port(instruments: tuple[Instruments, ...]) -> None:
    """Closing twice does nothing; the port can be bound again."""
    server = serve(*instruments)
    server.close()
    server.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "servescope-metrics"]
    with serve(*instruments, port=server.port) as again, urlopen(again.url, timeout=deadline_seconds()) as answer:
        assert answer.status == 200


def test_a_port_that_is_in_use_or_invalid_is_refused(
    instruments: tuple[Instruments, ...], server: MetricsServer
) -> None:
    """The error has address, port and cause; for an invalid port, what was expected."""
    with pytest.raises(ServescopeError, match=rf"cannot serve metrics at '127\.0\.0\.1' port {server.port}: .*in use"):
        serve(instruments[2], port=server.port)
    with pytest.raises(ServescopeError, match=r"cannot serve metrics at 'no such host\.invalid' port 0"):
        serve(instruments[2], address="no such host.invalid")
    for port in (-1, 65536, "9100", True):
        with pytest.raises(UsageError, match=f"port is {port!r}, expected a whole number from 0 to 65535"):
            serve(instruments[2], port=port)  # type: ignore[arg-type]


def test_the_server_asks_no_name_server(instruments: tuple[Instruments, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not answer would hold up the start of an engine for ten seconds."""
    monkeypatch.setattr("socket.getfqdn", lambda _: pytest.fail("the host's name was looked up"))
    serve(*instruments, address="0.0.0.0").close()


def test_a_server_without_a_free_descriptor_does_not_spin(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that cannot be accepted stays ready to be: each failure is waited for."""
    failing = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    with monkeypatch.context() as full:
        full.setattr(socket.socket, "accept", failing)
        waited = Mock()
        full.setattr(serving, "time", waited)
        with socket.create_connection(("127.0.0.1", server.port)):
            wait_for(lambda: failing.call_count >= 5, "five failures")
        assert waited.sleep.call_count >= 4
    with urlopen(server.url, timeout=deadline_seconds()) as answer:
        assert answer.status == 200


def test_the_server_speaks_ipv6(instruments: tuple[Instruments, ...]) -> None:
    """The URL has the address in brackets."""
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        server = serve(*instruments, address="::1")
    except ServescopeError as error:
        pytest.skip(f"::1 cannot be bound here: {error}")
    with server, urlopen(server.url, timeout=deadline_seconds()) as answer:
        assert server.url.startswith("http://[::1]:")
        assert answer.status == 200


def test_a_registry_can_give_openmetrics(instruments: tuple[Instruments, ...]) -> None:
    """The families are well formed enough for OpenMetrics' strict parser."""
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(*instruments))
    page = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
    families = list(parse_openmetrics(page.decode()))  # type: ignore[no-untyped-call]
    values = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
    assert values == sampled(*instruments)
    assert {family.name: family.type for family in families}["requests"] == "counter"


def test_a_clash_with_a_metric_of_ones_own_is_found_at_registration(instruments: tuple[Instruments, ...]) -> None:
    """Also for a metric that is absent so far."""
    registry = CollectorRegistry()
    Counter("preemptions", "My own.", registry=registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(PrometheusCollector(*instruments))
