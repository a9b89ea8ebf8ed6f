"""The emulator's switches over HTTP and on the command line: what they do, what they refuse, and to whom."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("aiohttp", reason="the emulator's server needs the extra 'emulator'")

from servescope.cli import main
from servescope.emulator.deployment.stack import EmulatedStack
from servescope.emulator.faults.faults import Faults
from servescope.emulator.faults.kinds import KINDS
from servescope.emulator.server import server
from servescope.emulator.server.control import MOST_BODY_BYTES, Control
from servescope.emulator.server.control_client import ControlClient, ControlError
from servescope.emulator.server.server import RunningEmulator
from servescope.errors import UsageError
from tests.support.waiting import deadline_seconds, wait_for

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-the-test"


def start(folder: Path, *, token: str | None = None) -> RunningEmulator:
    stack = EmulatedStack()
    control = Control(Faults(stack), token=token)
    return server.start(folder, warm_up_seconds=20.0, stack=stack, add_routes=[control.add_routes])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEmulator]:
    """An emulator whose switches this machine may use."""
    emulator = start(tmp_path_factory.mktemp("control"))
    yield emulator
    emulator.close()


@pytest.fixture
def client(running: RunningEmulator) -> Iterator[ControlClient]:
    """Its switches; what a test switched on is off after it."""
    client = ControlClient(running.url)
    yield client
    client.switch_all_off()


def ask(
    url: str, method: str, path: str, body: bytes | object = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Status and JSON of any request, however wrong."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=deadline_seconds())
    try:
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, sent, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def test_fault_is_switched_on_listed_and_off(client: ControlClient) -> None:
    """A fault is on from the answer on, listed with its number, its truths and since when, and gone when off."""
    assert client.read()["active"] == []
    switched = client.switch_on("draft-misaligned", 0.5, deployment="chat-v2")
    assert switched["kind"] == "draft-misaligned"
    assert {"figure": "speculation_rate", "below_times": pytest.approx(0.535)} in switched["truths"]
    (listed,) = client.read()["active"]
    assert (listed["id"], listed["intensity"], listed["deployment"]) == (switched["id"], 0.5, "chat-v2")
    assert listed["on_for_seconds"] >= 0
    assert client.switch_off(switched["id"])["kind"] == "draft-misaligned"
    assert client.read()["active"] == []


def test_list_tells_every_kind_and_place(client: ControlClient) -> None:
    """The list has all kinds with their ranges, and the deployments with what can be named in them."""
    state = client.read()
    assert [kind["name"] for kind in state["kinds"]] == list(KINDS)
    assert {"engine-0", "router-0", "autoscaler-0"} <= set(state["deployments"]["chat-v2"]["targets"])
    assert state["deployments"]["chat-v1"]["parts"] == ["speculation"]
    assert state["deployments"]["chat-v2"]["parts"] == ["KV-aware router", "speculation", "token-based autoscaler"]


def test_fault_for_some_seconds_goes_by_itself(client: ControlClient) -> None:
    """A fault with a duration is on, and ends by itself."""
    client.switch_on("error-burst", seconds=0.3)
    assert client.read()["active"]
    wait_for(lambda: not client.read()["active"], "the end of the fault")


def test_traffic_is_split_anew(client: ControlClient) -> None:
    """The share of a deployment is set, and the others get the rest."""
    assert client.read_traffic_split() == {"chat-v1": 0.5, "chat-v2": 0.5}
    assert client.set_share("chat-v2", 0.9) == {"chat-v1": pytest.approx(0.1), "chat-v2": 0.9}
    client.set_share("chat-v2", 0.5)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"kind": "draft-misalined"}, "unknown fault 'draft-misalined', did you mean 'draft-misaligned'?"),
        ({"kind": "draft-misaligned", "intensity": 2}, "intensity of 'draft-misaligned' is 2, expected a number from"),
        ({"kind": "draft-misaligned", "intensity": "NaN"}, "is 'NaN', expected a number"),
        (b'{"kind": "draft-misaligned", "intensity": NaN}', "is nan, expected a number"),
        ({"kind": "error-burst", "deployment": "chat-v3"}, "unknown deployment 'chat-v3', known: chat-v1, chat-v2"),
        ({"kind": "error-burst", "replica": "engine-0"}, "names replica 'engine-0' and no deployment"),
        ({"kind": "error-burst", "seconds": 0}, "seconds is 0, expected a number above 0"),
        ({"kind": "error-burst", "seconds": True}, "seconds is True"),
        ({"kind": 5}, "kind is 5, expected a string"),
        ({}, "kind is None, expected a string"),
        ({"kind": "error-burst", "intensty": 1}, "unknown key 'intensty', known: kind, intensity, deployment"),
        ([], "the body is a list, expected an object with: kind"),
        (b"not json", "the body is not JSON"),
        (b"[" * 50_000, "the body is not JSON"),
        (b"\xff\xfe", "the body is not JSON"),
        (None, "the body is not JSON"),
    ],
)
def test_wrong_faults_are_refused(client: ControlClient, body: object, message: str) -> None:
    """Each wrong body is answered with 400 and what would have been right, and switches nothing on."""
    status, answer = ask(client.url, "POST", "/faults", body)
    assert status == 400
    assert message in answer["error"]
    assert client.read()["active"] == []


def test_body_that_is_too_long_is_not_read(client: ControlClient) -> None:
    """A body beyond the bound is answered with 413."""
    status, _ = ask(client.url, "POST", "/faults", b" " * (MOST_BODY_BYTES + 1))
    assert status == 413


@pytest.mark.parametrize("number", ["7", "x", "-1", "9" * 30, "%F0%9D%9F%99"])
def test_unknown_numbers_are_not_found(client: ControlClient, number: str) -> None:
    """What is no fault that is on is answered with 404."""
    status, answer = ask(client.url, "DELETE", f"/faults/{number}")
    assert status == 404
    assert "error" in answer


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"deployment": "chat-v3", "share": 0.5}, "unknown deployment 'chat-v3'"),
        ({"deployment": "chat-v2", "share": 1.5}, "share is 1.5, expected a number from 0 to 1"),
        ({"deployment": "chat-v2", "share": "half"}, "share is 'half'"),
        ({"deployment": "chat-v2"}, "share is None"),
        ({"share": 0.5}, "deployment is None"),
    ],
)
def test_wrong_shares_are_refused(client: ControlClient, body: object, message: str) -> None:
    """A share that is none is answered with 400, and the split stays."""
    before = client.read_traffic_split()
    status, answer = ask(client.url, "PUT", "/traffic", body)
    assert status == 400
    assert message in answer["error"]
    assert client.read_traffic_split() == before


def test_page_of_a_web_site_may_not_switch(client: ControlClient) -> None:
    """A browser that another site's page has ask is refused; reading is harmless."""
    origin = {"Origin": "http://elsewhere.example"}
    for method, path in (("POST", "/faults"), ("DELETE", "/faults"), ("DELETE", "/faults/1"), ("PUT", "/traffic")):
        status, answer = ask(client.url, method, path, {"kind": "error-burst"}, origin)
        assert status == 403
        assert "Origin" in answer["error"]
    assert ask(client.url, "GET", "/faults", headers=origin)[0] == 200


def test_other_machines_may_only_look(client: ControlClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token a client of another machine changes nothing, and may still read."""
    monkeypatch.setattr("servescope.emulator.server.control.is_loopback", lambda address: False)
    for method, path in (("POST", "/faults"), ("DELETE", "/faults"), ("DELETE", "/faults/1"), ("PUT", "/traffic")):
        status, answer = ask(client.url, method, path, {"kind": "error-burst"})
        assert status == 403
        assert "only this machine" in answer["error"]
    assert client.read()["active"] == []
    monkeypatch.undo()


def test_token_is_needed_where_there_is_one(tmp_path: Path) -> None:
    """With a token, changes need it, on this machine too; a wrong one is as good as none."""
    with closing(start(tmp_path, token=TOKEN)) as running:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": TOKEN},
            {"Authorization": "Bearer \xe9"},
        ):
            status, answer = ask(running.url, "POST", "/faults", {"kind": "error-burst"}, headers)
            assert status == 401
            assert TOKEN not in answer["error"]
        with pytest.raises(ControlError, match="a bearer token is needed"):
            ControlClient(running.url).switch_on("error-burst")
        assert ControlClient(running.url, token=TOKEN).switch_on("error-burst")["id"] == 1


def read(url: str) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=deadline_seconds())
    try:
        connection.request("GET", urlsplit(url).path)
        return connection.getresponse().read()
    finally:
        connection.close()


def test_unreachable_target_hangs_up(client: ControlClient) -> None:
    """The connection of one target ends without an answer; another target answers."""
    client.switch_on("target-unreachable", deployment="chat-v2", replica="engine-0")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        read(f"{client.url}/chat-v2/engine-0/metrics")
    assert b"requests_total" in read(f"{client.url}/chat-v2/engine-1/metrics")


def test_truncated_page_is_noticed(client: ControlClient) -> None:
    """The whole length is promised and a part of it comes, so that a client can notice."""
    whole = read(f"{client.url}/chat-v2/engine-0/metrics")
    client.switch_on("truncated-exposition", 0.5, deployment="chat-v2")
    with pytest.raises(http.client.IncompleteRead) as noticed:
        read(f"{client.url}/chat-v2/engine-0/metrics")
    assert len(noticed.value.partial) == pytest.approx(len(whole) / 2, rel=0.1)


def test_slow_page_keeps_nobody_else_waiting(client: ControlClient) -> None:
    """A target that answers late does so alone; the late answer is whole."""
    client.switch_on("slow-exposition", 1.0, deployment="chat-v2", replica="engine-0")
    with socket.create_connection(("127.0.0.1", urlsplit(client.url).port or 0), timeout=deadline_seconds()) as slow:
        slow.sendall(b"GET /chat-v2/engine-0/metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"requests_total" in read(f"{client.url}/chat-v2/engine-1/metrics")
        slow.setblocking(False)
        with pytest.raises(BlockingIOError):
            slow.recv(1)
        slow.settimeout(10)
        assert slow.recv(12) == b"HTTP/1.1 200"


def test_renamed_metric_is_served(client: ControlClient) -> None:
    """The page bears the other name while it is on."""
    client.switch_on("metric-renamed", deployment="chat-v2")
    page = read(f"{client.url}/chat-v2/engine-0/metrics")
    assert b"\nttft_seconds_count{" in page
    assert b"time_to_first_token_seconds" not in page
    assert b"\ntime_to_first_token_seconds_count{" in read(f"{client.url}/chat-v1/engine-0/metrics")


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["faults", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_command_switches_and_lists(client: ControlClient, capsys: pytest.CaptureFixture[str]) -> None:
    """`servescope faults on | list | off` does what it says, and prints the truths of what is on."""
    url = ["--url", client.url]
    code, out, _ = command(capsys, "on", "draft-misaligned:0.9@chat-v2", "engine-frozen@chat-v2/engine-1", *url)
    assert code == 0
    assert "draft-misaligned:0.9@chat-v2, on for" in out
    assert "truth: speculation_rate below 0.4" in out
    _, out, _ = command(capsys, *url)
    assert out.count("on for") == 2
    number = next(each["id"] for each in client.read()["active"] if each["kind"] == "engine-frozen")
    _, out, _ = command(capsys, "off", str(number), *url)
    assert out == "off: engine-frozen@chat-v2/engine-1\n"
    _, out, _ = command(capsys, "off", "all", *url)
    assert out == "off: draft-misaligned:0.9@chat-v2\n"
    _, out, _ = command(capsys, "list", *url)
    assert "no fault is on" in out


def test_command_tells_machines(client: ControlClient, capsys: pytest.CaptureFixture[str]) -> None:
    """With --format json both the list and the kinds are JSON."""
    client.switch_on("clock-skew")
    _, out, _ = command(capsys, "list", "--format", "json", "--url", client.url)
    assert json.loads(out)["active"][0]["kind"] == "clock-skew"
    _, out, _ = command(capsys, "kinds", "--format", "json")
    assert [kind["name"] for kind in json.loads(out)] == list(KINDS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["on", "--url", "URL"], "which fault?"),
        (["off", "--url", "URL"], "which fault?"),
        (["off", "x", "--url", "URL"], "'x' is not the number of a fault"),
        (["on", "draft-misalined", "--url", "URL"], "did you mean 'draft-misaligned'?"),
        (["on", "error-burst", "--url", "ftp://x"], "emulator 'ftp://x' is no address"),
        (["list", "x", "--url", "URL"], "'x' is one word too many"),
        (["list", "--seconds", "5", "--url", "URL"], "--seconds goes with `faults on`"),
        (["list", "--url", ""], "no emulator URL is given, expected --url URL"),
    ],
)
def test_command_refuses(
    client: ControlClient, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """Wrong words end with code 2 and what would be right, and switch nothing."""
    code, _, err = command(capsys, *(client.url if word == "URL" else word for word in words))
    assert code == 2
    assert message in err
    assert client.read()["active"] == []


def test_command_tells_what_the_emulator_refused(client: ControlClient, capsys: pytest.CaptureFixture[str]) -> None:
    """What only the emulator can know to be wrong ends with code 1 and its words; a fault before it stays on."""
    code, _, err = command(capsys, "on", "router-deaf@chat-v1", "--url", client.url)
    assert (code, "there is no KV-aware router in deployment 'chat-v1'" in err) == (1, True)


def test_client_says_who_did_not_answer() -> None:
    """Nobody there, and somebody else there, are errors that name the address."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(ControlError, match=f"cannot ask the emulator at http://127.0.0.1:{port}: .*refused"):
        ControlClient(f"http://127.0.0.1:{port}").read()
    for wrong in ("127.0.0.1:80", "http://", "http://user:secret@host/", "file:///etc/passwd"):
        with pytest.raises(UsageError, match="is no address"):
            ControlClient(wrong)


def test_emulator_starts_with_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`servescope emulate --fault` says where faults are switched, and takes any number of them."""
    words = ["--fault", "draft-misaligned:0.9@chat-v2", "--fault", "clock-skew", "--seconds", "0.2"]
    assert main(["emulate", "--directory", str(tmp_path), *words]) == 0
    assert "switch faults: servescope faults --url http://127.0.0.1:" in capsys.readouterr().out


def test_emulator_refuses_impossible_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fault that cannot be ends with code 2 before anything is served."""
    words = ["--fault", "error-burst@chat-v2/engine-9", "--seconds", "0.2"]
    assert main(["emulate", "--directory", str(tmp_path), *words]) == 2
    assert "unknown replica 'engine-9' in 'chat-v2'" in capsys.readouterr().err


def test_wrong_bytes_are_the_clients_mistake(running: RunningEmulator, caplog: pytest.LogCaptureFixture) -> None:
    """What is no HTTP, or not encoded as it says, is a 400, and leaves no traceback in our log."""
    status, answer = ask(running.url, "POST", "/faults", b"no gzip", {"Content-Encoding": "gzip"})
    assert (status, answer["error"]) == (400, "the body did not come whole, or is not encoded as it says")
    address = urlsplit(running.url)
    for sent in (b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", b"nonsense\r\n\r\n"):
        with socket.create_connection((address.hostname, address.port), timeout=deadline_seconds()) as connection:
            connection.sendall(sent)
            assert connection.recv(12).endswith(b" 400")
    assert caplog.records == []


def test_intensity_no_float_can_hold_is_refused(running: RunningEmulator) -> None:
    """However large a number is, it is refused as one out of range."""
    status, answer = ask(running.url, "POST", "/faults", b'{"kind": "error-burst", "intensity": 1' + b"0" * 400 + b"}")
    assert status == 400
    assert "expected a number from 0.0005 to 1" in answer["error"]
