"""`servescope customers run` as a process: a store that a collector fills, a backend, kills between them."""

from __future__ import annotations

import asyncio
import json
import re
import resource
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from prometheus_client import generate_latest

from servescope.customers.lanes.cursors import CursorFile
from servescope.customers.lanes.program import CustomersProgram
from servescope.settings.clock import ProgramClock
from servescope.store.embedded import Store
from tests.customers.support.customer_export import TOKEN, Exported, exporting
from tests.support.answering import Handler, answering
from tests.support.waiting import deadline_seconds, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def exported(tmp_path: Path) -> Iterator[Exported]:
    """An export whose engine has three tokens a second."""
    with exporting(tmp_path) as exported:
        yield exported


def test_kills_lose_nothing_and_repeat_only_what_was_in_flight(exported: Exported) -> None:
    """Every interval is there, whenever the process was killed, and what was counted while it was away."""
    kills = 3
    for _ in range(kills):
        with exported.running():
            exported.wait_for_points(3)
    with exported.running():
        exported.wait_for_points(6)
    points = exported.points()

    spans = sorted(points)
    assert all(end == start for (_, end, _), (start, _, _) in pairwise(spans)), spans
    assert all(value == 3 * (end - start) for start, end, value in spans), spans
    assert sum(count - 1 for count in points.values()) <= kills + 1


def test_a_full_disk_has_nothing_sent_that_could_not_be_acknowledged(exported: Exported) -> None:
    """Neither again and again while it is full, nor by a process that starts then; afterwards everything is there."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    (exported.folder / "customers.cursors.db").touch()  # as a full disk leaves it
    with exported.running() as process:
        exported.wait_for_points(3)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        exported.wait_for_intervals(2)
        received = len(exported.receiver.requests)
        exported.wait_for_intervals(6)
        assert len(exported.receiver.requests) == received
        with urlopen(f"http://{exported.address}/metrics", timeout=deadline_seconds(30)) as page:
            errors = 'servescope_customer_internal_errors_total{customer="acme",destination="push"} 0.0'
            assert errors not in page.read().decode()
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
        exported.wait_for_points(10)
    points = exported.points()
    assert set(points.values()) == {1}
    spans = sorted(points)
    assert all(end == start for (_, end, _), (start, _, _) in pairwise(spans)), spans
    assert all(value == 3 * (end - start) for start, end, value in spans), spans


def test_what_a_prometheus_lacks_or_has_of_several_is_named(
    exported: Exported, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, at the start of the export and of `check`: rules, with what is missing without them; tenants."""
    labels = {"deployment_id": "chat", "model_name": "llama", "inference_stack": "v2", "environment": "prod"}

    def answer(request: Handler) -> None:
        """A Prometheus with a target that no rule says anything of."""
        query = request.parameters.get("query", [""])[0]
        lists_it = request.path.endswith("/series") and "output_tokens_total" in request.parameters["match[]"][0]
        kind = "matrix" if "query_range" in request.path or query.endswith("]") else "vector"
        metrics: list[dict[str, str]] = [{}] if query.startswith("group(servescope_probe_success") else []
        if query in ("servescope_target_up", "timestamp(servescope_target_up)"):
            target = {**labels, "replica": "r0", "role": "aggregated"}
            metrics = [{**target, "__tenant_id__": tenant} for tenant in ("acme", "globex")]
        scraped = [{"metric": metric, "value": [1.5, "1"]} for metric in metrics]
        found: object = {"resultType": kind, "result": scraped}
        listed = [{"__name__": "output_tokens_total", **labels}] if lists_it else []
        data = found if "query" in request.path else listed
        request.reply(200, json.dumps({"status": "success", "data": data}))

    with answering(answer) as url:
        with exported.running("--prometheus", url):
            pass
        log = (exported.folder / "run.log").read_text(encoding="utf-8")
        exported.run("check", "--prometheus", url)
    for said in (log, caplog.text):
        for file, effect in (
            ("recording.rules.yml", "figures are computed from the samples at each request"),
            ("alerting.rules.yml", "no alert is evaluated"),
            ("without-collector.rules.yml", "replicas are not counted"),
        ):
            assert said.count(f"the Prometheus at {url} does not evaluate {file}: {effect}") == 1, said
        assert said.count("deployment chat has targets in __tenant_id__=acme and in __tenant_id__=globex, all of") == 1


def test_a_customer_is_served_shown_and_removed(exported: Exported) -> None:
    """Its page needs its token; what was delivered is stated; after the removal nothing of it is left or sent."""
    with exported.running() as process:
        exported.wait_for_points(3)
        page = f"http://{exported.pull_address}/customers/acme/metrics"
        request = Request(page, headers={"Authorization": f"Bearer {TOKEN}"})
        wait_for(lambda: answers_with(request), "the customer's page", process=process, log=exported.folder / "run.log")
        with urlopen(request, timeout=deadline_seconds()) as answer:
            text = answer.read().decode()
        assert re.search(r'^output_tokens_total\{deployment_id="chat",.*\} \d', text, re.MULTILINE), text
        assert "engine-0" not in text
        with urlopen(f"http://{exported.address}/metrics", timeout=deadline_seconds()) as answer:
            own = answer.read().decode()
        assert re.search(r'servescope_customer_lag_seconds\{customer="acme",destination="push"\} \d', own), own
        assert 'servescope_customer_exported_series{customer="acme",destination="push"} 1.0' in own

        assert re.search(r"(?m)^acme  push  until \S+, \d+ s behind$", exported.run("status"))
        assert "nothing is missing" in exported.run("statement", "acme", "--from", "1h")
        removal = exported.run("remove", "acme")
        assert "0 left" in removal
        assert not (exported.folder / "acme.key").exists()
        received = len(exported.receiver.requests)
        assert not answers_with(request)
        exported.wait_for_intervals(5)
    log = exported.folder / "run.log"
    with exported.running():  # with the table of the customer, whose key is gone
        exported.wait_for_intervals(2)
        assert "nothing delivered" not in exported.run("status")
    assert len(exported.receiver.requests) == received
    assert "customer 'acme' was removed: its table is left out" in log.read_text(encoding="utf-8")
    assert TOKEN not in log.read_text(encoding="utf-8")
    assert "kkkk" not in log.read_text(encoding="utf-8")


def test_a_customer_that_is_left_out_falls_behind_until_it_is_delivered_to(tmp_path: Path) -> None:
    """So the alert on lagging customers says so; a configuration that is applied again ends that."""
    asyncio.run(_leave_out(tmp_path))


async def _leave_out(folder: Path) -> None:
    clock = ProgramClock()
    with Store(folder / "past.db") as history, CursorFile(folder / "cursors.db", deliver=True) as cursors:
        program = CustomersProgram(history, cursors, clock)
        await program.apply((), ("acme",))
        lag = 'servescope_customer_lag_seconds{customer="acme",destination="none"}'
        assert lag in generate_latest(program.telemetry).decode()
        await program.apply(())
        assert lag not in generate_latest(program.telemetry).decode()
        await program.close()


def answers_with(request: Request) -> bool:
    """Whether a request is answered with 200."""
    try:
        with urlopen(request, timeout=deadline_seconds()) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
