"""A deployment whose engines left the lists is missed for a day, also by a collector that was restarted meanwhile."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest

from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.target import Target
from tests.collector.support.paging import ALERTMANAGER, WEBHOOK, Scene

GONE = "ServescopeDeploymentGone"
MINUTE, HOUR = 60, 3600
ONLY_GONE = f'[alerting]\nonly = ["{GONE}", "ServescopeWatchdog"]\n{ALERTMANAGER}'


class Fleet(Scene):
    """A collector of two deployments whose engines are listed in a file each."""

    def configure(self, alerting: str) -> None:
        """Write the configuration, and list an engine of each deployment."""
        tables = [
            f'[[deployments]]\ndeployment_id = "{name}"\nmodel_name = "llama"\ninference_stack = "v1"\n'
            f'[[deployments.file_sd]]\nfiles = ["{name}.json"]\n'
            for name in ("chat", "search")
        ]
        text = "\n".join(['[collector]\nlisten = "127.0.0.1:0"', *tables, alerting])
        (self.folder / "servescope.toml").write_text(text)
        for name in ("chat", "search"):
            self.list_engine(name)

    def list_engine(self, name: str) -> None:
        (self.folder / f"{name}.json").write_text(f'[{{"targets": ["{name}:80"]}}]')

    def empty_list(self, name: str) -> None:
        (self.folder / f"{name}.json").write_text("[]")

    async def _fetch(self, target: Target, limits: Limits, /) -> bytes:
        return await super()._fetch(target, limits) + b'concurrent_requests{deployment_id="x"} 2\n'

    async def minutes(self, count: int) -> None:
        """Scrape and evaluate once a minute."""
        for _ in range(count):
            await self.step(MINUTE)

    def missed(self) -> dict[str, str]:
        """The state of the alert, by deployment."""
        shown = self.collector.alerts.shown
        return {dict(each.labels)["deployment_id"]: each.state for each in shown if each.name == GONE}


@pytest.mark.slow
@pytest.mark.parametrize("alerting", [ALERTMANAGER, ONLY_GONE], ids=["all alerts", "this alert alone"])
async def test_a_restart_does_not_forget_a_deployment_that_is_gone(tmp_path: Path, alerting: str) -> None:
    """It fires on with its start, half a day and three restarts later, and ends a day after the last engine."""
    async with aclosing(Fleet(tmp_path, alerting)) as scene:
        await scene.minutes(10)
        scene.empty_list("chat")
        await scene.minutes(10)
        assert scene.missed() == {"chat": "firing"}
        (*_, (_, _, first)) = scene.receivers.sent(GONE)
        for _ in range(3):
            await scene.restart(seconds=4 * HOUR)
            await scene.minutes(10)
            assert scene.missed() == {"chat": "firing"}
        assert {sent["startsAt"] for _, _, sent in scene.receivers.sent(GONE)} == {first["startsAt"]}
        await scene.step(10 * HOUR)
        await scene.minutes(10)
        assert scene.missed() == {"chat": "firing"}
        await scene.step(2 * HOUR)
        assert scene.missed() == {"chat": "resolved"}


async def test_what_left_the_lists_while_no_collector_ran_is_missed(tmp_path: Path) -> None:
    """The next collector knows from the store which deployments had engines; the others are not missed."""
    async with aclosing(Fleet(tmp_path, WEBHOOK)) as scene:
        await scene.minutes(10)
        await scene.aclose()
        scene.empty_list("search")
        scene.seconds += 6 * HOUR
        scene.open()
        await scene.minutes(10)
        assert scene.missed() == {"search": "firing"}
        assert [sent["labels"]["deployment_id"] for _, _, sent in scene.receivers.sent(GONE)] == ["search"]
        scene.list_engine("search")
        await scene.minutes(2)
        assert scene.missed() == {"search": "resolved"}


async def test_a_deployment_that_was_gone_for_a_day_is_not_missed_after_a_restart(tmp_path: Path) -> None:
    """Else each restart would report what was removed last month."""
    async with aclosing(Fleet(tmp_path, WEBHOOK)) as scene:
        await scene.minutes(10)
        scene.empty_list("chat")
        await scene.minutes(10)
        await scene.restart(seconds=25 * HOUR)
        await scene.minutes(20)
        assert scene.missed() == {}
        assert scene.receivers.sent(GONE)[-1][1] == "resolved"
