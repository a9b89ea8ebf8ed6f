"""The health dashboard's queries, asked of a real Prometheus that scrapes a collector, itself and an Alertmanager."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alerts.__main__ import GENERATED as RULES
from dashboards.panels.queries import HEALTH_VARIABLES
from servescope.alerting.rules.links import HEALTH
from servescope.collector.telemetry import watch_event_loop
from servescope.contract.own_metrics import ALERTS_SENT, RULE_EVALUATIONS
from tests.support.alertmanager import NOTIFIES_NOBODY, running_alertmanager
from tests.support.boards import expressions, panels, read_board, variable_queries
from tests.support.exposed_metrics import scrape_everything
from tests.support.prometheus import OWN_ADDRESS, Prometheus, running
from tests.support.served_collector import scene
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

SECONDS = 4
_STEP_SECONDS = 0.5

# One collector, whose lists lose nothing, and which scrapes when the test says: it is never late. Alertmanager has no
# receiver to notify.
NEVER_HERE = {
    "Scrape lateness", "Notifications of the collector", "Notifications", "Notifications fail",
    "Translators", "Translator down", "Agent down", "Probes fail", "Probes refused",
    "Firing alerts on the monitoring", "Router down", "Phase down", "Samples dropped",
    "Dropped samples", "API requests refused",
}  # fmt: skip


@pytest.fixture(scope="module", params=["prometheus", pytest.param("prometheus_3", marks=pytest.mark.proof)])
def answers(
    request: pytest.FixtureRequest, alertmanager: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What Prometheus answered to each query, some seconds after it began to scrape the three."""
    binary: Path = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("health")

    async def ask() -> dict[str, Any]:
        async with scene(folder / "store") as stage:
            await scrape_everything(stage)
            lag = asyncio.create_task(watch_event_loop(stage.collector.telemetry))
            asked = asyncio.create_task(asyncio.to_thread(_ask, binary, alertmanager, folder, stage._url))
            while not asked.done():
                # So that there are scrapes, evaluations and transactions to report.
                await stage.step()
                await asyncio.wait([asked], timeout=_STEP_SECONDS)
            lag.cancel()
            return await asked

    (folder / "store").mkdir()
    return asyncio.run(ask())


def _ask(binary: Path, alertmanager: Path, folder: Path, collector: str) -> dict[str, Any]:
    with running_alertmanager(alertmanager, folder, NOTIFIES_NOBODY) as receiver:
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in _evaluated_each_second(folder)],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [receiver]}]}]},
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [target]}]}
                for job, target in (
                    ("servescope", collector.removeprefix("http://")),
                    ("prometheus", OWN_ADDRESS),
                    ("alertmanager", receiver),
                )
            ],
        }
        # An alert that stays is sent each second, not each minute.
        with running(binary, folder, config, options=["--rules.alert.resend-delay=1s"]) as server:
            _wait_until_filled(server)
            return _answers(server)


def _evaluated_each_second(folder: Path) -> Iterator[Path]:
    """The rules, so that shares of what was evaluated and sent are there within seconds."""
    for path in RULES.glob("*.rules.yml"):
        copy = folder / path.name
        copy.write_text(re.sub(r"(?m)^  interval: .*", "  interval: 1s", path.read_text("utf-8")), encoding="utf-8")
        yield copy


def _answers(server: Prometheus) -> dict[str, Any]:
    board, now = read_board(HEALTH), str(time.time())
    found = {
        expression: server.answer("/api/v1/query", query=substitute(expression), time=now)
        for _, expression in expressions(board)
    }
    for name, query in variable_queries(board):
        match, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        found[name] = server.answer(f"/api/v1/label/{label}/values", **{"match[]": match})
    return found


def substitute(expression: str) -> str:
    """The expression as Grafana sends it with everything chosen; the last hour is looked at second by second."""
    every = {variable.name: variable.every for variable in HEALTH_VARIABLES} | {"__rate_interval": "10s"}
    return re.sub(r"\$(\w+)", lambda found: every[found[1]], expression).replace("[1h:1m]", "[1h:1s]")


def _wait_until_filled(server: Prometheus) -> None:
    def is_filled() -> bool:
        least = [
            server.answer("/api/v1/query", query=f"min({count})")["data"]["result"]
            for count in (
                f"count_over_time(up[{SECONDS}s])", f"increase({RULE_EVALUATIONS}[1m])", f"increase({ALERTS_SENT}[1m])"
            )
        ]  # fmt: skip
        scraped, *counted = (float(found[0]["value"][1]) if found else 0.0 for found in least)
        return scraped > SECONDS and all(count > 0 for count in counted)

    wait_for(is_filled, f"scrapes of {SECONDS} s")


def test_every_panel_shows_the_running_programs(answers: dict[str, Any]) -> None:
    """No query fails, warns or is empty, but those of what a collector alone and in health does not have."""
    empty = set()
    for panel in panels(read_board(HEALTH)):
        for target in panel["targets"]:
            answer = answers[target["expr"]]
            assert answer["status"] == "success", f"{panel['title']}: {answer}"
            assert not answer.get("warnings"), panel["title"]
            assert not answer.get("infos"), panel["title"]
            found = answer["data"]["result"]
            empty |= set() if found else {panel["title"]}
            assert all(each["value"][1] not in ("NaN", "+Inf", "-Inf") for each in found), panel["title"]
    assert empty == NEVER_HERE


def test_what_is_shown_is_what_runs(answers: dict[str, Any]) -> None:
    """One collector, its targets up, no rule that fails, one Alertmanager that is known."""
    shown = {panel["title"]: answers[panel["targets"][0]["expr"]] for panel in panels(read_board(HEALTH))}

    def values(title: str) -> set[float]:
        return {float(each["value"][1]) for each in shown[title]["data"]["result"]}

    assert values("Collectors") == {1.0}
    assert values("Alertmanagers discovered") == {1.0}
    assert values("Prometheus configuration reload") == {1.0}
    assert values("Rule failures") == {0.0}
    assert max(values("Scrapes by outcome")) > 0
    assert values("Target down") == {0.0, 1.0}
    # Prometheus and Alertmanager report on their processes too.
    assert all(len(shown[title]["data"]["result"]) == 1 for title in ("Collector CPU", "Collector memory"))


def test_every_mark_is_executed(answers: dict[str, Any]) -> None:
    """Alerts that fire about the monitoring, and reloaded configurations: without an error or a warning."""
    for annotation in read_board(HEALTH)["annotations"]["list"]:
        if "target" in annotation:
            answer = answers[annotation["target"]["expr"]]
            assert answer["status"] == "success", answer
            assert not answer.get("warnings")


def test_every_variable_offers_values(answers: dict[str, Any]) -> None:
    """The addresses of the three programs, and the deployments that are watched."""
    for name in ("collector", "prometheus", "alertmanager"):
        assert len(answers[name]["data"]) == 1, answers[name]
    assert answers["deployment"]["data"] == ["v1", "v2"]
