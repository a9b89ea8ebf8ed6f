"""The emulator as a process that a collector scrapes."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from aiohttp import web

from servescope.cli import main
from servescope.emulator.deployment.stack import V2, EmulatedStack
from servescope.emulator.server import server
from servescope.emulator.server.server import RunningEmulator
from servescope.errors import ServescopeError
from servescope.migration.scaling import TokenScaling
from tests.support.waiting import deadline_seconds, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningEmulator]:
    """An emulator at normal speed."""
    emulator = server.start(tmp_path, warm_up_seconds=20.0)
    yield emulator
    emulator.close()


def get(url: str) -> str:
    """The body of a page."""
    with urlopen(url, timeout=deadline_seconds()) as answer:
        return str(answer.read().decode())


def listed(path: Path) -> dict[str, dict[str, str]]:
    """The labels in a list of targets, by replica, each with the URL it leads to."""
    entries = json.loads(path.read_text())
    return {
        entry["labels"]["replica"]: {
            **entry["labels"],
            "url": f"http://{entry['targets'][0]}{entry['labels']['__metrics_path__']}",
        }
        for entry in entries
    }


def test_lists_have_the_advertised_name(tmp_path: Path) -> None:
    """Where others reach the machine by a name, the lists of targets and the address have it."""
    with closing(server.start(tmp_path, address="127.0.0.1", advertised="stacks", warm_up_seconds=1.0)) as emulator:
        entries = [entry for path in emulator.file_sd_paths for entry in json.loads(path.read_text())]

    port = emulator.url.removeprefix("http://stacks:")
    assert {address for entry in entries for address in entry["targets"]} == {f"stacks:{port}"}


def test_every_address_is_advertised_as_loopback(tmp_path: Path) -> None:
    """Listening on every address, which is no address to call, it prints 127.0.0.1, and answers there."""
    with closing(server.start(tmp_path, address="0.0.0.0", warm_up_seconds=1.0)) as emulator:
        assert emulator.url.startswith("http://127.0.0.1:")
        assert get(emulator.url)


def test_every_listed_target_answers(running: RunningEmulator) -> None:
    """Each target in the lists serves the series of its own replica and role, and the front page names it."""
    front = get(running.url)
    for path in running.file_sd_paths:
        targets = listed(path)
        assert {labels["role"] for labels in targets.values()} == {"aggregated", "router", "autoscaler"}
        for replica, labels in targets.items():
            assert labels["url"] in front.splitlines()
            body = get(labels["url"])
            assert f'replica="{replica}",role="{labels["role"]}"' in body
            assert f'deployment_id="{path.stem}"' in body


def test_time_passes(running: RunningEmulator) -> None:
    """Counters go up while nobody does anything."""
    url = listed(running.file_sd_paths[1])["engine-0"]["url"]

    def output_tokens() -> float:
        (line,) = [line for line in get(url).splitlines() if line.startswith("output_tokens_total{")]
        return float(line.rsplit(" ", 1)[1])

    before = output_tokens()
    wait_for(lambda: output_tokens() > before, "more output tokens")


def test_replica_that_is_gone_is_gone(tmp_path: Path) -> None:
    """A replica that was drained leaves the list and answers 410; a path that never was answers 404."""
    scaling = TokenScaling(
        min_replica=1, initial_replicas=3, max_replica=3,
        autoscaling_window=10, scale_down_delay=10, scale_down_half_life_seconds=5,
    )  # fmt: skip
    with closing(
        server.start(
            tmp_path,
            speed_up=30.0,
            warm_up_seconds=5.0,
            stack=EmulatedStack(share_v2=0.0, v2=replace(V2, scaling=scaling)),
        )
    ) as running:
        before = listed(tmp_path / "targets" / "chat-v2.json")
        assert "engine-2" in before
        wait_for(lambda: "engine-2" not in listed(tmp_path / "targets" / "chat-v2.json"), "the end of engine-2")
        with pytest.raises(HTTPError) as gone:
            get(before["engine-2"]["url"])
        with pytest.raises(HTTPError) as unknown:
            get(f"{running.url}/chat-v2/engine-77/metrics")
        assert (gone.value.code, unknown.value.code) == (410, 404)
        gone.value.close()
        unknown.value.close()


def test_configuration_names_both_deployments(running: RunningEmulator) -> None:
    """The configuration a collector gets has both deployments, each with the list of its targets."""
    configuration = tomllib.loads(running.config_path.read_text())
    deployments = {deployment["deployment_id"]: deployment for deployment in configuration["deployments"]}
    assert set(deployments) == {"chat-v1", "chat-v2"}
    for name, deployment in deployments.items():
        assert deployment["inference_stack"] == name.removeprefix("chat-")
        (discovery,) = deployment["file_sd"]
        assert [running.config_path.parent / file for file in discovery["files"]] == [
            path for path in running.file_sd_paths if path.stem == name
        ]


def test_failed_emulation_does_not_look_alive(tmp_path: Path) -> None:
    """When the emulation breaks, scrapes fail instead of showing the last figures for ever."""
    stack = EmulatedStack()
    stack.clock.schedule(1.0, lambda: 1 / 0)
    with closing(server.start(tmp_path, warm_up_seconds=0.0, speed_up=100.0, stack=stack)) as running:
        with pytest.raises(Exception, match="ZeroDivisionError"):
            running.wait(deadline_seconds())
        with pytest.raises(HTTPError) as answer:
            get(listed(running.file_sd_paths[0])["engine-0"]["url"])
        assert answer.value.code == 500
        answer.value.close()


def test_lost_directory_ends_the_emulation(tmp_path: Path) -> None:
    """When the lists of targets can no longer be written, the emulation ends and names the file."""
    scaling = TokenScaling(min_replica=1, initial_replicas=3, max_replica=3, autoscaling_window=5, scale_down_delay=5)
    stack = EmulatedStack(share_v2=0.0, v2=replace(V2, scaling=scaling))
    with closing(server.start(tmp_path, warm_up_seconds=0.0, speed_up=100.0, stack=stack)) as running:
        shutil.rmtree(tmp_path / "targets")
        with pytest.raises(ServescopeError, match=r"cannot write '.*chat-v1\.json'"):
            running.wait(deadline_seconds())


@dataclass(frozen=True)
class Ended:
    """How the command ended."""

    returncode: int
    stdout: str
    stderr: str


Emulate = Callable[..., Ended]


@pytest.fixture
def emulate(capsys: pytest.CaptureFixture[str]) -> Emulate:
    """The command, in this process."""

    def run(*words: str) -> Ended:
        try:
            code = main(["emulate", *words])
        except SystemExit as ended:  # of argparse
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return Ended(code, printed.out, printed.err)

    return run


def test_command_says_where_things_are(emulate: Emulate, tmp_path: Path) -> None:
    """The command prints its address, the lists of targets and how to collect them, and ends after its seconds."""
    done = emulate("--directory", str(tmp_path), "--seconds", "0.1", "--speed-up", "5")
    assert done.returncode == 0, done.stderr
    assert "http://127.0.0.1:" in done.stdout
    assert str(tmp_path / "targets" / "chat-v2.json") in done.stdout
    assert f"servescope collect --config {tmp_path / 'servescope.toml'}" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--speed-up", "0"], "speed-up is 0.0"),
        (["--speed-up", "1e-300"], "speed-up is 1e-300, expected a number from 0.001 to 1e+06"),
        (["--speed-up", "1e308"], "speed-up is 1e+308"),
        (["--requests-per-second", "1e12"], "requests_per_second is 1000000000000.0, expected above 0, at most 10000"),
        (["--preset", ""], "unknown preset ''"),
        (["--advertise", "a b"], "advertised host is 'a b', expected a name or an address"),
        (["--advertise", "http://emulator"], "advertised host is 'http://emulator'"),
        (["--share-v2", "2"], "share of v2 is 2.0"),
        (["--seconds", "-1"], "--seconds is -1.0"),
        (["--seconds", "nan"], "--seconds is nan"),
        (["--seconds", "1e300"], "--seconds is 1e+300"),
        (["--stack", "v2", "--share-v2", "0.5"], "--share-v2 goes with --stack both, not with --stack v2"),
        (["--stack", "v3"], "invalid choice: 'v3'"),
        (["--api-key", ""], "the API key has 0 characters, expected 1 to 1024"),
        (["--kv-events", "5557"], "--kv-events is '5557', expected tcp://HOST:PORT"),
        (["--kv-events-replay", "tcp://127.0.0.1:1"], "--kv-events-replay and --kv-events-topic go with --kv-events"),
        (["--port", "99999"], "port 99999 is not within 0 … 65535"),
    ],
)
def test_command_refuses_impossible_arguments(emulate: Emulate, tmp_path: Path, words: list[str], message: str) -> None:
    """Wrong arguments end with code 2 and the value that is wrong, without a traceback."""
    done = emulate("--directory", str(tmp_path), *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_command_refuses_a_directory_it_cannot_make(emulate: Emulate, tmp_path: Path) -> None:
    """A file in the place of the directory ends with code 2 and its name."""
    (tmp_path / "taken").write_text("")
    done = emulate("--directory", str(tmp_path / "taken"))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "taken" in done.stderr


def test_command_refuses_a_port_in_use(emulate: Emulate, tmp_path: Path) -> None:
    """A port somebody else listens on ends with code 1 and its number."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = emulate("--directory", str(tmp_path), "--listen", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert str(port) in done.stderr


def test_command_refuses_a_directory_in_use(emulate: Emulate, tmp_path: Path, running: RunningEmulator) -> None:
    """A second emulator in one directory ends with code 2 and says what to do; the first one goes on."""
    done = emulate("--directory", str(tmp_path))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert f"an emulator already writes to '{tmp_path}'" in done.stderr
    assert "--directory" in done.stderr
    assert get(running.url)


def test_directory_is_free_again_after_the_end(tmp_path: Path) -> None:
    """An emulator that has ended, or could not begin, leaves its directory free."""
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(ServescopeError, match="cannot listen"):
        server.start(tmp_path, warm_up_seconds=1.0, port=other.getsockname()[1])
    for _ in range(2):
        server.start(tmp_path, warm_up_seconds=1.0).close()


def test_sigterm_ends_it(tmp_path: Path) -> None:
    """A terminated emulator ends with code 130 and prints no error."""
    process = subprocess.Popen(
        [sys.executable, "-m", "servescope.cli", "emulate", "--directory", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert "emulated" in process.stdout.readline()
    process.terminate()
    _, complaint = process.communicate(timeout=deadline_seconds())
    assert (process.returncode, complaint) == (130, "")


def test_others_may_add_routes(tmp_path: Path) -> None:
    """What is added answers beside the pages, and touches the stack only in the stack's own time."""

    def add(application: web.Application, emulator: RunningEmulator) -> None:
        async def now(_: web.Request) -> web.Response:
            return web.json_response(await emulator.call(emulator.stack.clock.read))

        application.router.add_get("/now", now)

    with closing(server.start(tmp_path, warm_up_seconds=7.0, add_routes=[add])) as emulator:
        assert float(get(f"{emulator.url}/now")) >= 7.0
        assert get(emulator.url)


def test_one_stack_without_traffic(tmp_path: Path) -> None:
    """`--stack v2 --traffic none` is v2 alone, which serves nothing until a client comes; in vLLM's names if asked."""
    process = subprocess.Popen(
        [sys.executable, "-m", "servescope.cli", "emulate", "--directory", str(tmp_path), "--stack", "v2",
         "--traffic", "none", "--metrics", "vllm", "--api-key", "k", "--kv-events", "tcp://127.0.0.1:0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split(" at ")[1].split(",")[0]
        assert process.stdout.readline() == f"servescope: OpenAI API: {url}/v1\n"
        targets = listed(tmp_path / "targets" / "chat-v2.json")
        assert {path.name for path in (tmp_path / "targets").iterdir()} == {"chat-v2.json"}
        assert {labels["role"] for labels in targets.values()} == {"aggregated"}
        page = get(targets["engine-0"]["url"])
        assert 'vllm:prompt_tokens_total{engine="0",model_name="llama-3.3-70b"} 0.0' in page
        assert len(json.loads(get(f"{url}/kv-events"))) == 3
        with pytest.raises(HTTPError) as locked:
            get(f"{url}/v1/models")
        assert locked.value.code == 401
        locked.value.close()
    finally:
        process.terminate()
        process.communicate(timeout=deadline_seconds())
    assert process.returncode == 130


def test_address_of_ipv6_is_bracketed(tmp_path: Path) -> None:
    """Its URL and the lists of targets can be asked as they are written."""
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with closing(
        server.start(tmp_path, address="::1", warm_up_seconds=1.0, stack=EmulatedStack(quiet=True))
    ) as running:
        assert running.url.startswith("http://[::1]:")
        assert urlopen(running.url, timeout=deadline_seconds()).status == 200


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True
