"""The client of Prometheus' HTTP API: its requests, and its error for every answer that is not Prometheus'."""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import threading
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from pathlib import Path

import pytest

from servescope.collector.importing import command as importing
from servescope.collector.importing.tables import IMPORT_SETTINGS
from servescope.errors import UsageError
from servescope.settings.access import Access
from servescope.store.exporting import command as exporting
from servescope.store.prometheus.client import (
    AccessRefusedError,
    LateError,
    NotPrometheusError,
    PartialError,
    Prometheus,
    PrometheusError,
    TooMuchError,
    check_base_url,
)
from servescope.store.prometheus.history import SCRAPE_COLLECTOR
from servescope.store.prometheus.options import connect
from servescope.store.prometheus.scrapes import read_all_samples
from servescope.store.prometheus.selectors import format_time, selector
from tests.conftest import ROOT
from tests.support.answering import Answer, Handler, answering
from tests.support.authorities import Authority
from tests.support.echoes import echoes, shows
from tests.support.prometheus import free_port
from tests.support.waiting import deadline_seconds

DRIP_SECONDS = 0.05


def ask(answer: Answer, *, seconds: float = 10.0) -> PrometheusError:
    """What a query raises."""
    with answering(answer) as url:
        client = Prometheus(url, timeout_seconds=seconds, max_bytes=10_000)
        with pytest.raises(PrometheusError) as raised:
            client.query("x", at_ms=0)
        assert url in str(raised.value)
        return raised.value


def test_a_query_is_a_form_below_the_prefix() -> None:
    """Also below a path, as for Mimir and Thanos; times are exact, headers and compression are sent."""
    seen: list[Handler] = []

    def answer(request: Handler) -> None:
        seen.append(request)
        request.vector("2.5")

    with answering(answer) as url:
        client = Prometheus(f"{url}/prometheus/", Access(headers=(("X-Scope-OrgID", "chat"),)))
        (point,) = client.query('x{a="b"}', at_ms=1_700_000_000_123)
    assert (point.labels, point.value) == ((("__name__", "x"), ("n", "0")), 2.5)
    assert (seen[0].command, seen[0].path) == ("POST", "/prometheus/api/v1/query")
    assert seen[0].parameters == {"query": ['x{a="b"}'], "time": ["2023-11-14T22:13:20.123Z"]}
    assert seen[0].headers["X-Scope-OrgID"] == "chat"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"username": "u"}, "--username and --password-file go together"),
        ({"password_file": "p"}, "--username and --password-file go together"),
        ({"username": "u", "password_file": "p", "bearer_token_file": "t"},
         "--username and --bearer-token-file are both given, expected one of them"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_named(options: dict[str, str], message: str) -> None:
    """The error speaks of the options that were typed, not of a configuration's keys."""
    with pytest.raises(UsageError, match=message):
        connect("http://127.0.0.1:1", options)


def test_basic_and_bearer_are_read_anew_for_every_request(tmp_path: Path) -> None:
    """Secrets may rotate; both kinds come from files."""
    seen: list[str] = []

    def answer(request: Handler) -> None:
        seen.append(request.headers["Authorization"])
        request.vector()

    secret = tmp_path / "secret"
    secret.write_text("one\n", encoding="utf-8")
    with answering(answer) as url:
        basic = connect(url, {"username": "u", "password_file": str(secret)})
        bearer = connect(url, {"bearer_token_file": str(secret)})
        basic.query("x", at_ms=0)
        secret.write_text("two\n", encoding="utf-8")
        basic.query("x", at_ms=0)
        bearer.query("x", at_ms=0)
    assert seen == ["Basic dTpvbmU=", "Basic dTp0d28=", "Bearer two"]


def test_credentials_that_come_back_are_not_shown(tmp_path: Path) -> None:
    """A proxy that refuses a token may quote it; the error shows the rest."""
    secret = tmp_path / "token"
    secret.write_text("t0ps3cret\n", encoding="utf-8")
    with answering(lambda request: request.reply(403, f"unknown: {request.headers['Authorization']}")) as url:
        client = connect(url, {"bearer_token_file": str(secret)})
        with pytest.raises(PrometheusError, match=r"HTTP status 403 to query: unknown: .*\[secret\]") as raised:
            client.query("x", at_ms=0)

    assert "t0ps3cret" not in str(raised.value)


@pytest.mark.slow
def test_no_answer_that_sends_credentials_back_shows_them(tmp_path: Path) -> None:
    """However they are written, in an error, in a page, in an answer that is none, and in a warning."""
    secret = tmp_path / "password"
    secret.write_text("hunter2/of-Acme+~\n", encoding="utf-8")
    sent = f"Basic {base64.b64encode(b'joe:hunter2/of-Acme+~').decode()}"
    empty = {"resultType": "vector", "result": []}
    wordings: tuple[Callable[[str], object], ...] = (
        lambda said: {"status": "error", "errorType": "x", "error": f"{'x' * 200} {said}"},
        lambda said: said,
        lambda said: {"status": "success", "data": {"resultType": said, "result": []}},
        lambda said: {"status": "success", "data": {"resultType": "vector", "result": [{"metric": said}]}},
        lambda said: {"status": "success", "data": empty, "warnings": [f"no store for {said}"]},
    )
    answers = [""]
    with answering(lambda request: request.reply(200, answers[0])) as url:
        client = connect(url, {"username": "joe", "password_file": str(secret)})
        for said in islice(echoes(sent), 0, None, 4):
            for wording in wordings:
                answers[0] = json.dumps(wording(said))
                client.warnings.clear()
                try:
                    client.query("x", at_ms=0)
                    shown = "".join(client.warnings)
                except PrometheusError as error:
                    shown = str(error)
                assert shown
                assert not shows(shown, sent), (said, shown)


@pytest.mark.parametrize("location", ["http://[", "http://other.example/", "file:///etc/passwd", "//[::1", ""])
def test_a_redirect_is_not_followed(location: str) -> None:
    """Wherever it leads to, also where that is no URL."""
    with (
        answering(lambda request: request.reply(302, "", Location=location)) as url,
        pytest.raises(PrometheusError, match="no Prometheus answers there: /api/v1/query gave HTTP status 302"),
    ):
        Prometheus(url).query("x", at_ms=0)


def test_get_is_used_where_post_is_not_allowed() -> None:
    """Some proxies allow GET alone; the client finds out once."""
    methods: list[str] = []

    def answer(request: Handler) -> None:
        methods.append(request.command)
        if request.command == "POST":
            request.reply(405, "method not allowed")
        else:
            request.vector("1")

    with answering(answer) as url:
        client = Prometheus(url)
        assert len(client.query("x", at_ms=0)) == len(client.query("x", at_ms=0)) == 1
    assert methods == ["POST", "GET", "GET"]


def test_numbers_that_are_none_are_absent() -> None:
    """NaN and infinity are no values."""
    with answering(lambda request: request.vector("NaN", "+Inf", "-Inf", "3")) as url:
        assert [point.value for point in Prometheus(url).query("x", at_ms=0)] == [3.0]


def test_prometheus_own_error_is_shown() -> None:
    """Status and error text are in the error."""
    refusal = json.dumps({"status": "error", "errorType": "bad_data", "error": 'parse error: unexpected "}"'})
    error = ask(lambda request: request.reply(400, refusal))
    assert error.status == 400
    assert 'bad_data: parse error: unexpected "}"' in str(error)


def _error(text: str) -> str:
    return json.dumps({"status": "error", "errorType": "execution", "error": text})


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (422, "query processing would load too many samples into memory"),
        (503, "query timed out in expression"),
        (422,
         "the query exceeded the maximum number of chunks (limit: 2000000 chunks) (err-mimir-max-chunks-per-query)"),
        (422,
         "the number of matching timeseries exceeds 300000; either narrow down the search or increase -search.max*"),
        (422, "cannot select more than -search.maxSamplesPerQuery=1000000000 samples"),
    ],
)  # fmt: skip
def test_too_much_is_an_error_of_its_own(status: int, reason: str) -> None:
    """So that a caller may ask for less."""
    assert isinstance(ask(lambda request: request.reply(status, _error(reason))), TooMuchError)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (lambda r: r.reply(500, "upstream is away"), PrometheusError, ("500", "upstream is away")),
        (lambda r: r.reply(502, b""), PrometheusError, ("502", "without a word")),
        (lambda r: r.reply(401, "no org id"), AccessRefusedError, ("401", "no org id", "X-Scope-OrgID=TENANT")),
        (lambda r: r.reply(403, _error("tenant a|b")), AccessRefusedError, ("403", "tenant a|b", "--bearer-token")),
        (lambda r: r.reply(429, _error("too many outstanding requests")), PrometheusError, ("429", "outstanding")),
        (lambda r: r.reply(200, "<html><body>Grafana</body></html>"), NotPrometheusError, ("no Prometheus", "Grafana")),
        (lambda r: r.reply(404, "404 page not found"), NotPrometheusError, ("no Prometheus", "path prefix")),
        (lambda r: r.reply(302, b"", Location="http://127.0.0.1:1/login"), NotPrometheusError, ("302",)),
        (lambda r: r.reply(200, '{"ok": true}'), PrometheusError, ("no whole JSON",)),
        (lambda r: r.reply(200, '{"status": "success", "data": {"resul'), PrometheusError, ("no whole JSON",)),
        (lambda r: r.reply(200, '{"status": "success", "data": 7}'), NotPrometheusError, ("no Prometheus",)),
        (lambda r: r.reply(200, "[" * 100_000), TooMuchError, ("more than 10000 bytes",)),
        (lambda r: r.reply(200, "[" * 9_000), NotPrometheusError, ("no Prometheus",)),
        (lambda r: r.reply(200, '{"status":"success","data":{"resultType":"vector","result":[{"metric":{}}]}}'),
         PrometheusError, ("an element that is none",)),
        (lambda r: r.reply(200, '{"status":"success","data":{"resultType":"matrix","result":[]}}'), PrometheusError,
         ("expected a 'vector'",)),
        (lambda r: r.reply(200, b"\x1f\x8b no gzip", Content_Encoding="gzip"), PrometheusError, ("gzip",)),
        (lambda r: r.reply(200, gzip.compress(b" " * 50_000_000), Content_Encoding="gzip"), TooMuchError,
         ("more than 10000 bytes",)),
        (lambda r: r.reply(200, gzip.compress(b"{}" * 900)[:-9], Content_Encoding="gzip"), PrometheusError,
         ("no whole gzip",)),
    ],
)  # fmt: skip
def test_every_other_answer_has_its_error(answer: Answer, kind: type[PrometheusError], words: tuple[str, ...]) -> None:
    """It names the URL, the status and the answer; nothing is larger than allowed."""
    error = ask(answer)
    assert type(error) is kind, error
    for word in words:
        assert word in str(error)
    assert len(str(error)) < 900


@pytest.mark.slow
def test_a_slow_answer_ends_in_time() -> None:
    """Whether it never begins or drips: so long and no longer."""
    ended = threading.Event()

    def hang(_: Handler) -> None:
        ended.wait(deadline_seconds())

    def drip(request: Handler) -> None:
        request.send_response(200)
        request.end_headers()
        while not ended.wait(DRIP_SECONDS):
            request.wfile.write(b" ")

    try:
        for answer in (hang, drip):
            assert isinstance(ask(answer, seconds=0.4), TooMuchError)
    finally:
        ended.set()


def test_nobody_there_is_said() -> None:
    """A refused connection and a name that is none are errors with their cause."""
    with pytest.raises(PrometheusError, match="cannot be reached: Connection refused"):
        Prometheus(f"http://127.0.0.1:{free_port()}").query("x", at_ms=0)
    with pytest.raises(PrometheusError, match="cannot be reached"):
        Prometheus("http://no-such-host.invalid").query("x", at_ms=0)


def test_an_untrusted_certificate_is_said(tmp_path: Path) -> None:
    """TLS is checked by the system's trust, or by the certificates given alone."""
    with pytest.raises(UsageError, match="tls_ca_file"):
        connect("https://127.0.0.1", {"ca_file": str(tmp_path / "none.pem")})

    authority = Authority(tmp_path)
    with answering(lambda request: request.vector("1"), authority.server("127.0.0.1")) as url:
        url = url.replace("http:", "https:")
        with pytest.raises(PrometheusError, match="certificate"):
            Prometheus(url).query("x", at_ms=0)
        assert len(connect(url, {"ca_file": str(authority.path)}).query("x", at_ms=0)) == 1


@pytest.mark.parametrize("url", ["127.0.0.1:9090", "ftp://x", "http://", "http://x/?a=b", "http://x y", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    """With an example of one."""
    with pytest.raises(UsageError, match="is no URL of a Prometheus"):
        check_base_url(url)


def test_credentials_in_a_url_are_refused_and_not_shown() -> None:
    """They would be in every error."""
    with pytest.raises(UsageError) as raised:
        check_base_url("http://user:s3cret@x:9090")
    assert "s3cret" not in str(raised.value)


def test_a_base_url_may_be_pasted_with_its_api() -> None:
    """What people copy works."""
    assert check_base_url("https://x/prom/api/v1/") == check_base_url("https://x/prom/") == "https://x/prom"


def test_a_header_that_is_none_is_refused_without_its_value() -> None:
    """The value may be a secret."""
    with pytest.raises(UsageError) as raised:
        connect("http://x", {"header": ["X Scope=s3cret"]})
    assert "s3cret" not in str(raised.value)


def test_selectors_quote_what_they_are_given() -> None:
    """Names are patterns in them, values are texts."""
    assert selector([("a", 'b"\\')], names=["x:y", "z.1"], extra='{job="j"}') == (
        '{job="j",a="b\\"\\\\",__name__=~"x:y|z\\\\.1"}'
    )


def test_milliseconds_survive() -> None:
    """A float would lose some."""
    assert [format_time(1_700_000_000_000 + ms)[-5:] for ms in (1, 57, 999)] == [".001Z"[-5:], ".057Z", ".999Z"]


def test_too_many_samples_are_asked_for_in_halves() -> None:
    """Every half is smaller in time, until it is answered; the parts are one series again, each sample once."""
    spans: list[int] = []

    def answer(request: Handler) -> None:
        wanted = int(request.parameters["query"][0].split("[")[1].removesuffix("ms]")) - 1
        spans.append(wanted)
        if wanted > 200_000:
            body = {"status": "error", "errorType": "execution", "error": "would load too many samples"}
            request.reply(422, json.dumps(body))
            return
        last = round(datetime.fromisoformat(request.parameters["time"][0]).timestamp() * 1000)
        values = [[ms / 1000, "1"] for ms in range(last - wanted, last + 1) if ms % 1_000 == 0]
        result = [{"metric": {"__name__": "x"}, "values": values}]
        request.reply(200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))

    start_ms = 1_700_000_000_000
    with answering(answer) as url:
        (track,) = read_all_samples(Prometheus(url), "x", start_ms, start_ms + 600_000)
    assert track.times.tolist() == list(range(start_ms, start_ms + 600_001, 1_000))
    assert min(spans) >= 100_000


def test_what_is_always_too_much_ends() -> None:
    """Halving ends at a minute, with the server's words."""
    body = json.dumps({"status": "error", "errorType": "execution", "error": "too many samples"})
    asked: list[int] = []

    def answer(request: Handler) -> None:
        asked.append(1)
        request.reply(422, body)

    with answering(answer) as url, pytest.raises(TooMuchError, match="too many samples"):
        read_all_samples(Prometheus(url), "x", 0, 3_600_000)
    assert len(asked) < 10


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"warnings": ["remote_read: connection refused"]}, "remote_read: connection refused"),
        ({"warnings": ["No StoreAPIs matched for this query"]}, "No StoreAPIs matched for this query"),
        ({"isPartial": True}, "the answer is partial"),
    ],
)
def test_a_partial_answer_is_refused_where_only_whole_ones_are_wanted(said: dict[str, object], shown: str) -> None:
    """As Prometheus, Thanos and VictoriaMetrics mark it; other readers get it, and its warnings."""
    body = json.dumps({"status": "success", **said, "data": {"resultType": "vector", "result": []}})
    with answering(lambda request: request.reply(200, body)) as url:
        client = Prometheus(url)
        assert client.query("x", at_ms=0) == []
        with pytest.raises(PartialError, match=f"a partial answer to query: {shown}"):
            client.only_whole().query("x", at_ms=0)
    assert list(client.warnings) == [shown]


def test_remarks_on_an_expression_are_no_missing_data() -> None:
    """Prometheus 3 warns of expressions, too: such an answer is whole, and the remark is kept once."""
    body = json.dumps({
        "status": "success", "warnings": ["PromQL warning: mixed histograms"], "infos": ["PromQL info: no counter"],
        "data": {"resultType": "vector", "result": []},
    })  # fmt: skip
    with answering(lambda request: request.reply(200, body)) as url:
        client = Prometheus(url).only_whole()
        assert client.query("x", at_ms=0) == client.query("x", at_ms=1) == []
    assert list(client.warnings) == ["PromQL warning: mixed histograms"]


@pytest.mark.slow
def test_one_that_never_answers_is_asked_few_times() -> None:
    """Halves would not be answered any sooner, if nothing is."""
    ended = threading.Event()
    asked: list[int] = []

    def hang(_: Handler) -> None:
        asked.append(1)
        ended.wait(deadline_seconds())

    with answering(hang) as url:
        try:
            with pytest.raises(LateError, match=r"no answer to query within 0\.2 s"):
                read_all_samples(Prometheus(url, timeout_seconds=0.2), "x", 0, 86_400_000)
        finally:
            ended.set()
    assert len(asked) == 3


def test_the_documentation_names_every_option_and_key() -> None:
    """The options of `servescope import`, `export` and `console` are in docs/history.md, and what to scrape."""
    text = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
    for module in (importing, exporting):
        parser = argparse.ArgumentParser(add_help=False)
        module.configure(parser)
        for action in parser._actions:
            assert f"`{action.option_strings[0]}" in text or f"{action.option_strings[0]} " in text, action
    for setting in IMPORT_SETTINGS:
        assert f"`{setting.key}`" in text
    assert SCRAPE_COLLECTOR in text
