from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from servescope import errors
from servescope.cli import main
from servescope.collector import inspecting
from tests.support.answering import Answer, Handler, answering
from tests.support.inspecting import FIRST, LATER, inspect_as_json, rows_by_name, write_expositions

BETWEEN_BYTES_SECONDS = 0.05


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """Start an HTTP server with an answer; gives its URL."""
    with ExitStack() as servers:
        yield lambda answer: servers.enter_context(answering(answer))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two expositions of one vLLM as files."""
    return write_expositions(tmp_path)


def answer_text(*texts: str) -> Answer:
    """Answer the texts in turn, the last one for ever."""
    left = list(texts)

    def answer(handler: Handler) -> None:
        text = left.pop(0) if len(left) > 1 else left[0]
        handler.reply(200 if handler.path == "/metrics" else 404, text)

    return answer


def test_a_url_is_read(capsys: pytest.CaptureFixture[str], serve: Callable[[Answer], str]) -> None:
    """A URL without a path means its /metrics."""
    url = serve(answer_text(FIRST))
    assert rows_by_name(inspect_as_json(capsys, url))["output_tokens_total"]["value"] == 100
    assert rows_by_name(inspect_as_json(capsys, f"{url}/metrics"))["output_tokens_total"]["value"] == 100


def test_a_url_with_seconds_is_read_twice(capsys: pytest.CaptureFixture[str], serve: Callable[[Answer], str]) -> None:
    """The URL is read again after the seconds, and rates are over them."""
    rows = rows_by_name(inspect_as_json(capsys, serve(answer_text(FIRST, LATER)), "--seconds", "0.25"))
    assert rows["output_tokens_per_second"]["value"] == 300 / 0.25


def test_credentials_that_a_proxy_sends_back_are_not_shown(
    capsys: pytest.CaptureFixture[str], serve: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the environment, in its refusal and in what is no exposition."""
    said = ["joe:0f-the%2Fenvironment", "JOE:0F-THE/ENVIRONMENT", "am9lOjBmLXRoZS9lbnZpcm9ubWVudA=="]

    def answer(handler: Handler) -> None:
        handler.send_response(*((403, said[0]) if len(said) > 1 else (200, "ok")))
        handler.end_headers()
        handler.wfile.write(f"no {said.pop(0)}\n".encode())

    proxy = serve(answer)
    monkeypatch.setenv("http_proxy", proxy.replace("//", "//joe:0f-the%2Fenvironment@"))
    for shown in ("HTTP status 403 [secret]", "HTTP status 403 [secret]", "in 'no [secret]'"):
        assert main(["inspect", "http://engine.example:8000/metrics"]) == 1
        assert shown in capsys.readouterr().err.replace(": 'no", " in 'no")


def redirect(handler: Handler) -> None:
    handler.reply(302, "", Location="file:///etc/hosts")


def endless(beginning: bytes, again: bytes) -> Answer:
    def answer(handler: Handler) -> None:
        handler.wfile.write(beginning)
        while True:
            handler.wfile.write(again)

    return answer


@pytest.mark.parametrize(
    ("answer", "path", "message"),
    [
        pytest.param(answer_text(FIRST), "/nowhere", "/nowhere: HTTP status 404", id="status"),
        pytest.param(redirect, "", "redirects to another origin, 'file:///etc/hosts'", id="redirect to a file"),
        pytest.param(
            endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x 1\n" * 10_000), "",
            "/metrics: the answer exceeds 1000 bytes (max_body_bytes)", id="body without end",
        ),
        pytest.param(
            endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000), "", "interim responses (1xx) before an answer",
            id="interim responses without end",
        ),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused(
    capsys: pytest.CaptureFixture[str], serve: Callable[[Answer], str], answer: Answer, path: str, message: str
) -> None:
    """By the URL and the cause; a server cannot make the command read files, nor read without end."""
    url = f"{serve(answer)}{path}"
    assert main(["inspect", url, "--max-body-bytes", "1000"]) == 1
    error = capsys.readouterr().err
    assert url in error
    assert message in error


@pytest.mark.parametrize(
    ("beginning", "again"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nX: ", b"x", id="head"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", b"#", id="body"),
    ],
)
def test_an_answer_that_arrives_byte_by_byte_fails_after_the_timeout(
    capsys: pytest.CaptureFixture[str],
    serve: Callable[[Answer], str],
    monkeypatch: pytest.MonkeyPatch,
    beginning: bytes,
    again: bytes,
) -> None:
    """Its head as well as its body."""
    monkeypatch.setattr(inspecting, "TIMEOUT_SECONDS", 0.3)
    ended = threading.Event()

    def answer(handler: Handler) -> None:
        with suppress(OSError):
            handler.wfile.write(beginning)
            while not ended.wait(BETWEEN_BYTES_SECONDS):
                handler.wfile.write(again)

    assert main(["inspect", serve(answer)]) == 1
    ended.set()
    assert "no complete answer within 0.3 s" in capsys.readouterr().err


def test_a_url_needs_the_collectors_extra(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file does not."""
    monkeypatch.setattr(errors, "find_spec", lambda name: None)

    assert main(["inspect", "http://127.0.0.1:1"]) == 2
    assert "extra 'collector' is not installed: pip install '.[collector]' in a checkout" in capsys.readouterr().err
    assert main(["inspect", files[0]]) == 0


@pytest.mark.parametrize(
    "argument",
    [
        "http://user:hunter2@127.0.0.1:1/metrics", "http://user:hun/ter2@127.0.0.1:1", "http://user:hunter2@[::1",
        "https://hunter2@127.0.0.1", "ftp://user:hunter2@127.0.0.1", "user:hunter2@127.0.0.1:1",
        "http:/user:hunter2@127.0.0.1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["first", "later"])
def test_a_password_in_a_url_is_not_printed(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str], argument: str, place: str
) -> None:
    """Nor sent: a URL that carries credentials is refused without being shown."""
    words = [argument] if place == "first" else [files[0], argument]
    assert main(["inspect", *words]) in (1, 2)
    printed = "".join(capsys.readouterr())
    assert printed.startswith("servescope: ")
    assert "hunter2" not in printed
    assert "user" not in printed


@pytest.mark.parametrize("words", [("a", "b", "http://user:hunter2@c"), ("a", "--limit", "http://user:hunter2@c")])
def test_a_password_out_of_place_is_not_printed(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    """Nor by the command line's parser, which prints arguments that it does not know."""
    with pytest.raises(SystemExit) as ended:
        main(["inspect", *words])
    printed = "".join(capsys.readouterr())
    assert ended.value.code == 2
    assert ("unknown option '--limit'" if "--limit" in words else "unrecognized arguments") in printed
    assert "hunter2" not in printed


@pytest.mark.parametrize(
    ("body", "options", "cause"),
    [
        ("x 1\n", ["--max-body-bytes", "3"], "the file exceeds 3 bytes (max_body_bytes)"),
        ("x 1\ny 1\n", ["--max-series", "1"], "line 2: more samples than the limit of 1 (max_series)"),
        ('x{a="1",b="2"} 1\n', ["--max-labels", "1"], "line 1: 2 labels, above the limit of 1 (max_labels)"),
        (f'x{{a="{"v" * 4097}"}} 1\n', [],
         "line 1: label 'a': a value of 4097 bytes, above the limit of 4096 (max_label_bytes)"),
        (f'x{{a="{"v" * 65_536}"}} 1\n', [],
         "line 1: a line of 65545 bytes, above the limit of 65536 (max_line_bytes)"),
    ],
)  # fmt: skip
def test_the_limits_of_a_scrape_apply(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, body: str, options: list[str], cause: str
) -> None:
    """What fails a scrape of the collector fails here, with the same cause; an option has another limit."""
    file = tmp_path / "x.txt"
    file.write_text(body)

    assert main(["inspect", str(file), *options]) == 2
    error = capsys.readouterr().err
    assert f"{file}: {cause}" in error
    assert len(error) < 400
    # An unknown source, and no limit.
    high = ["--max-body-bytes", "100000", "--max-line-bytes", "100000", "--max-label-bytes", "100000"]
    assert main(["inspect", str(file), *high]) == 1
    assert capsys.readouterr().err == ""


def test_a_limit_is_above_0(capsys: pytest.CaptureFixture[str], files: tuple[str, str]) -> None:
    """Anything else is wrong usage."""
    assert main(["inspect", files[0], "--max-body-bytes", "0"]) == 2
    assert "--max-body-bytes is 0, expected a whole number above 0" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("text", ["v" * 1_000_000, "\\n" * 500_000], ids=["plain", "escaped"])
def test_a_long_label_value_takes_memory_in_proportion(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    """A few times its size, where the limits allow it at all."""
    file = tmp_path / "x.txt"
    file.write_text(f'vllm:generation_tokens_total{{a="{text}"}} 1\n')
    high = ["--max-line-bytes", "2000000", "--max-label-bytes", "2000000"]
    tracemalloc.start()
    try:
        assert main(["inspect", str(file), "--source", "vllm", *high]) == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert "output_tokens_total" in capsys.readouterr().out
    assert peak < 30 * file.stat().st_size


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.txt"], 2, "cannot read 'nowhere.txt': no such file or directory"),
        (["."], 2, "cannot read '.': is a directory"),
        (["ftp://a/b"], 2, "unsupported scheme 'ftp' in 'ftp://a/b', supported: http, https"),
        (["http://"], 2, "'http://' is not a URL, expected one such as"),
        (["http://[::1"], 2, "'http://[::1' has no valid host and port"),
        (["http://127.0.0.1:99999"], 2, "'http://127.0.0.1:99999' has no valid host and port"),
        (["http://127.0.0.1:1/metrics"], 1, "http://127.0.0.1:1/metrics: cannot connect: Connection refused"),
        (["http://127.0.0.1:1", "later.txt"], 2, "a URL is read twice with --seconds SECONDS, without a later file"),
        (["{0}", "http://127.0.0.1:1"], 2, "the later exposition is 'http://127.0.0.1:1', expected a file"),
        (["{0}", "--seconds", "5"], 2, "expected a later file, or a URL"),
        (["{0}", "{1}", "--seconds", "0"], 2, "--seconds is 0.0, expected 0.001 to 1e+09"),
        (["{0}", "{1}", "--seconds", "nan"], 2, "--seconds is nan, expected 0.001 to 1e+09"),
        (["{0}", "{1}", "--seconds", "1e-320"], 2, "--seconds is 1e-320, expected 0.001 to 1e+09"),
        (["http://127.0.0.1:1", "--seconds", "1e300"], 2, "--seconds is 1e+300, expected 0.001 to 1e+09"),
        (["{0}", "--source", "vlm"], 2, "unknown source 'vlm', supported: baseten, cadvisor, dcgm, "),
    ],
)
def test_bad_arguments_name_the_value(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str], arguments: list[str], code: int, message: str
) -> None:
    """Wrong usage ends with 2 and failure with 1, each with the value and what was expected."""
    assert main(["inspect", *(argument.format(*files) for argument in arguments)]) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_malformed_body_names_file_line_and_cause(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The error has the place and the text of what cannot be parsed."""
    (tmp_path / "x.txt").write_text("a 1\nb one\n")
    assert main(["inspect", str(tmp_path / "x.txt")]) == 2
    assert f"{tmp_path}/x.txt: line 2: 'one' is not a number: 'b one'" in capsys.readouterr().err


def test_a_token_and_headers_are_sent_and_not_printed(
    capsys: pytest.CaptureFixture[str], serve: Callable[[Answer], str], tmp_path: Path
) -> None:
    """The page behind a gateway is read; what it sends back of a secret is concealed, in an error too."""
    token, key = "s3cr3t-of-the-file", "k3y-of-the-header"
    (tmp_path / "token").write_text(f"{token}\n")
    refused = [False]

    def answer(handler: Handler) -> None:
        sent = handler.headers.get("Authorization"), handler.headers.get("X-Api-Key"), handler.headers.get("X-Team")
        allowed = sent == (f"Bearer {token}", key, "a:b") and not refused[0]
        handler.reply(200 if allowed else 403, FIRST if allowed else f"refused {sent}")

    url = serve(answer)
    options = [
        "--bearer-token-file", str(tmp_path / "token"), "--header", f"X-Api-Key: {key}", "--header", "X-Team=a:b",
    ]  # fmt: skip
    assert rows_by_name(inspect_as_json(capsys, url, *options))["output_tokens_total"]["value"] == 100
    refused[0] = True
    assert main(["inspect", url, *options]) == 1
    shown = capsys.readouterr()
    assert "HTTP status 403" in shown.err
    assert token not in shown.out + shown.err
    assert key not in shown.out + shown.err


def test_a_token_is_read_from_a_variable_too(
    capsys: pytest.CaptureFixture[str], serve: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a target's access keys."""
    monkeypatch.setenv("METRICS_TOKEN", "0f-the-environment")

    def answer(handler: Handler) -> None:
        allowed = handler.headers.get("Authorization") == "Bearer 0f-the-environment"
        handler.reply(200 if allowed else 401, FIRST)

    rows = rows_by_name(inspect_as_json(capsys, serve(answer), "--bearer-token-env", "METRICS_TOKEN"))
    assert rows["output_tokens_total"]["value"] == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["http://h", "--bearer-token-file", "nowhere"], "secret file 'nowhere' cannot be read: No such file"),
        (["http://h", "--bearer-token-env", "NOWHERE_SET"], "environment variable 'NOWHERE_SET' is not set"),
        (["http://h", "--header", "hunter2"], "--header is not NAME=VALUE"),
        (["http://h", "--header", "hunter 2: x"], "--header is not NAME=VALUE"),
        (["http://h", "--header", "X-Key: hunter2", "--header", "x-key: y"], "header 'x-key' is set twice"),
        (["http://h", "--header", "X-Key:"], "header 'X-Key' is empty"),
        (["page.txt", "--header", "X-Key: hunter2"], "a token or a header is sent to a URL, and 'page.txt' is a file"),
    ],
)  # fmt: skip
def test_access_that_cannot_be_used_is_refused_without_its_value(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """Before anything is asked: the error names the option, the file or the variable."""
    assert main(["inspect", *options]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "hunter" not in shown
