"""The examples run, and their pages say what they did."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from examples import autoscaler, engine, router, uvicorn_workers
from servescope.sources.identification import identify
from servescope.sources.parse import Exposition, parse_exposition
from tests.conftest import ROOT
from tests.support.waiting import deadline_seconds, wait_for


def values(page: Exposition, name: str) -> dict[str, float]:
    """The samples of a name by the value of their label of their own, or by ""."""
    known = {"model_name", "deployment_id", "inference_stack", "replica", "role"}
    return {
        next((value for label, value in sample.labels if label not in known), ""): sample.value
        for sample in page.samples
        if sample.name == name
    }


def value(page: Exposition, name: str) -> float:
    (only,) = values(page, name).values()
    return only


def test_the_engine_serves_all_its_requests() -> None:
    """Every request that arrived has ended well; tokens, rates and speculation fit together."""
    page = parse_exposition(engine.run(60, step_seconds=0.0005))

    assert values(page, "requests_total") == {"ok": 60, "client_abort": 0, "client_error": 0, "rejected": 0, "error": 0}
    assert value(page, "requests_started_total") == 60
    assert value(page, "concurrent_requests") == value(page, "queued_requests") == 0
    assert value(page, "time_to_first_token_seconds_count") == 60
    assert value(page, "output_tokens_total") == value(page, "output_tokens_per_request_sum")
    by_position = values(page, "spec_decode_num_accepted_tokens_per_pos_total")
    assert sorted(by_position.values(), reverse=True) == [by_position[str(position)] for position in range(4)]
    assert 0.4 < value(page, "speculation_rate") < 0.8
    assert sum(values(page, "servescope_instrument_errors_total").values()) == 0


def test_the_router_predicts_about_what_is_reused() -> None:
    """Its index loses events now and then, which is seen as gaps; the ratios are those of a healthy router."""
    page = parse_exposition(router.run(600))

    assert values(page, "router_index_state") == {"exact": 0, "degraded": 1, "recovering": 0}
    assert value(page, "router_index_event_gaps_total") > 0
    assert value(page, "router_unreported_decisions_total") == 0
    assert 0.3 < value(page, "kv_cache_hit_rate") < 0.95
    assert -0.15 < value(page, "kv_cache_hit_rate_skew") < 0.30
    assert value(page, "kv_cache_best_prefix_hit_rate") >= value(page, "kv_cache_hit_rate") * 0.9
    assert sum(values(page, "servescope_instrument_errors_total").values()) == 0


def test_the_autoscaler_follows_its_load() -> None:
    """Each stage of its decision is shown, in its order, and the replicas are what it ordered."""
    page = parse_exposition(autoscaler.run(100))

    raw, policy = value(page, "autoscaler_desired_scale"), value(page, "autoscaler_policy_desired_scale")
    rounded = value(page, "autoscaler_rounded_desired_scale")
    assert 1 <= policy <= rounded <= 8
    assert policy >= min(raw, 8)
    replicas = values(page, "replica_count_by_status")
    assert replicas["active"] + replicas["starting"] == rounded
    assert sum(values(page, "servescope_instrument_errors_total").values()) == 0


@pytest.mark.parametrize("example", [engine, router, autoscaler])
def test_the_collector_knows_their_pages(example: object) -> None:
    """What an example exposes is identified as our own instruments'."""
    source = identify(parse_exposition(example.run(20))).source  # type: ignore[attr-defined]

    assert source is not None
    assert source.name == "servescope"


@pytest.mark.parametrize("name", ["router", "autoscaler"])
def test_examples_run_as_programs(name: str) -> None:
    """`python -m examples.<name>` prints the page."""
    words = [sys.executable, "-m", f"examples.{name}", "20"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=deadline_seconds(), check=False, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    assert "# TYPE" in done.stdout


def test_an_example_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without uvicorn its example ends with the command that installs it, and not with a traceback."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    with pytest.raises(SystemExit, match="needs uvicorn: pip install uvicorn"):
        uvicorn_workers.main()


class UvicornServer:
    """The example under `uvicorn --workers 2` on a free port of 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "uvicorn.log"
        command = [
            sys.executable, "-m", "uvicorn", "--factory", "examples.uvicorn_workers:make_app", "--workers", "2",
            "--host", "127.0.0.1", "--port", "0",
        ]  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
        self.url = ""
        self.answered = 0
        self._most = 0.0

    def __enter__(self) -> UvicornServer:
        try:
            found = wait_for(
                lambda: re.search(r"running on (http://127\.0\.0\.1:\d+)", self._log.read_text()),
                "uvicorn's address", process=self._process, log=self._log,
            )  # fmt: skip
        except BaseException:
            self.__exit__()
            raise
        self.url = found[1]
        return self

    def __exit__(self, *_: object) -> None:
        workers = self._children()
        self._process.terminate()
        try:
            self._process.wait(deadline_seconds())
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(deadline_seconds())
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)

    def complete(self) -> int:
        """Have a request of three tokens served; the id of the worker that served it."""
        with urlopen(f"{self.url}/complete?prompt=three+words+long", timeout=deadline_seconds()) as answer:
            worker = int(answer.read())
        self.answered += 1
        return worker

    def scrape(self) -> Exposition:
        with urlopen(f"{self.url}/metrics", timeout=deadline_seconds()) as answer:
            return parse_exposition(answer.read())

    def workers_but(self, *others: int) -> set[int]:
        """The workers that serve requests, once there are two that are not `others`."""
        seen: set[int] = set()

        def two() -> bool:
            seen.add(self.complete())
            return len(seen - set(others)) == 2

        wait_for(two, "two workers that serve requests", ignoring=(OSError,), process=self._process, log=self._log)
        return seen

    def page_with(self, **expected: float) -> Exposition:
        """The first page on which these series have these values; no page shows fewer requests than one before."""

        def matching() -> Exposition | None:
            page = self.scrape()
            arrived = value(page, "requests_started_total")
            assert arrived >= self._most, "a sum fell"
            self._most = arrived
            return page if all(value(page, name) == count for name, count in expected.items()) else None

        return wait_for(matching, f"a page with {expected}", ignoring=(HTTPError,), process=self._process)

    def _children(self) -> list[int]:
        with contextlib.suppress(OSError):
            pid = self._process.pid
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="process groups need Linux's abstract sockets")
def test_uvicorn_workers_are_one_page(tmp_path: Path) -> None:
    """Whichever worker responds, the page has the sums over all; after one is killed and replaced they never fall."""
    with UvicornServer(tmp_path) as server:
        workers = server.workers_but()
        for _ in range(4):
            page = server.page_with(servescope_group_processes=2, requests_started_total=server.answered)
            assert values(page, "requests_total")["ok"] == server.answered
            assert value(page, "output_tokens_total") == 3 * server.answered
        killed = workers.pop()
        os.kill(killed, signal.SIGKILL)
        server.page_with(servescope_group_processes_ended_total=1)
        assert killed not in server.workers_but(killed)
        page = server.page_with(servescope_group_processes=2, requests_started_total=server.answered)
        assert values(page, "requests_total")["ok"] == server.answered
        assert value(page, "output_tokens_total") == 3 * server.answered
        assert value(page, "concurrent_requests") == 0
