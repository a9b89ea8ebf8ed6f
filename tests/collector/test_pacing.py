"""The pace of scrapes: turns on a host that limits its readers, and how long one is left alone that refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from servescope.collector.scrapes.pacing import Pacer, believe_hold, format_instant, hold_ms
from servescope.collector.targets.deployments import ScrapeSettings
from servescope.collector.targets.target import Target
from servescope.contract.identity import Identity
from tests.conftest import PAGES
from tests.support.picker_page import collecting_picker


def target(
    replica: str, *, host: str = "export.example", limit: int | None = None, interval_ms: int = 15_000
) -> Target:
    scraping = ScrapeSettings(interval_ms, 5_000, max_scrapes_per_minute=limit)
    return Target(
        f"https://{host}/metrics?replica={replica}", Identity("m", "d", "s", replica=replica), None, scraping=scraping
    )


def test_targets_of_a_limited_host_take_turns() -> None:
    """Never more than the limit in any minute, whoever asks; other hosts are not held up."""
    limited = [target("a", limit=6), target("b", limit=6), target("c", limit=20)]
    free = target("x", host="other.example")
    pacer = Pacer()
    pacer.set_targets([*limited, free])
    host = pacer.host(limited[2])

    assert host is pacer.host(limited[0])
    assert pacer.host(free) is None
    assert host is not None
    assert [host.reserve(1_000_000 + 100 * number) for number in range(8)] == [
        1_000_000 + 10_000 * number for number in range(8)
    ]
    assert [pacer.interval_ms(each) for each in (*limited, free)] == [30_000, 30_000, 30_000, 15_000]


def test_a_host_that_is_held_gives_no_turn() -> None:
    """The next one is when it may be asked again, and the others follow evenly."""
    pacer = Pacer()
    pacer.set_targets([target("a", limit=6)])
    host = pacer.host(target("a"))
    assert host is not None
    host.reserve(0)
    host.hold(120_000)
    host.hold(60_000)

    assert [host.reserve(0), host.reserve(0), host.reserve(200_000)] == [120_000, 130_000, 200_000]


def test_turns_are_remembered_while_targets_come_and_go() -> None:
    """A new list of targets does not start a new minute."""
    pacer = Pacer()
    pacer.set_targets([target("a", limit=6)])
    former = pacer.host(target("a"))
    assert former is not None
    former.reserve(1_000_000)
    pacer.set_targets([target("a", limit=6), target("b", limit=6)])
    host = pacer.host(target("b"))

    assert host is not None
    assert host.reserve(1_000_001) == 1_010_000


def test_a_page_that_is_scraped_too_often_has_a_warning(tmp_path: Path) -> None:
    """Where its source is identified and not configured; at the shortest interval there is none."""
    text = (PAGES / "baseten-2026-1.txt").read_text(encoding="utf-8")
    configured = """
    [[deployments]]
    deployment_id = "{interval}"
    inference_stack = "v1"
    [[deployments.targets]]
    url = "http://export"
    role = "router"
    scrape_interval = "{interval}"
    """

    async def warnings() -> dict[str, list[str]]:
        configuration = "".join(configured.format(interval=interval) for interval in ("5s", "10s"))
        async with collecting_picker(tmp_path, configuration) as world:
            await world.scrape(text, seconds=15)
            return {each.deployment.deployment_id: each.status.warnings for each in world.collector.fleet.watched}

    hasty, slow = (warned for _, warned in sorted(asyncio.run(warnings()).items(), reverse=True))
    assert hasty[-1:] == [
        "scrape_interval: 5s is too short for Baseten export, at least 10s: it answers an organisation six times a "
        "minute, and refreshes its values every 30 seconds"
    ]
    assert slow == hasty[:-1]


def test_too_many_targets_for_a_limit_are_a_problem() -> None:
    """With fewer than two scrapes in a window no figure can be derived."""
    pacer = Pacer()
    pacer.set_targets([target(str(number), limit=6) for number in range(15)])
    fits = pacer.find_problems(300_000)
    pacer.set_targets([target(str(number), limit=6) for number in range(16)])

    assert fits == []
    assert pacer.find_problems(300_000) == [
        "host 'export.example:443': 16 targets share 6 scrapes a minute, one each 160 s; figures need two within "
        "the window (300 s)"
    ]


def test_a_limit_that_does_not_divide_a_minute_is_kept() -> None:
    """Seven a minute are never eight."""
    pacer = Pacer()
    pacer.set_targets([target("a", limit=7)])
    host = pacer.host(target("a"))

    assert host is not None
    turns = [host.reserve(0) for _ in range(100)]
    assert max(sum(start <= turn < start + 60_000 for turn in turns) for start in turns) == 7


@pytest.mark.parametrize(
    ("asked", "refusals", "milliseconds"),
    [
        (7.0, 1, 7_000), (0.0, 1, 1_000), (3600.0, 9, 3_600_000),
        (None, 1, 30_000), (None, 3, 120_000), (None, 99, 600_000),
    ],
)  # fmt: skip
def test_who_refuses_is_left_alone(asked: float | None, refusals: int, milliseconds: int) -> None:
    """As long as it asks for; twice as long each time when it does not say; never for ever, never not at all."""
    assert hold_ms(asked, refusals) == milliseconds


def test_instants_are_shown_in_utc() -> None:
    """As the error of a target shows them."""
    assert format_instant(1_800_000_000_000) == "2027-01-15 08:00:00 UTC"


def test_a_clock_that_was_ahead_holds_nobody() -> None:
    """What was held, or given a turn, in a time that is not yet there again is free."""
    each = target("a", limit=6)
    pacer = Pacer()
    pacer.set_targets([each])
    host = pacer.host(each)
    assert host is not None
    day = 86_400_000

    assert host.reserve(10 * day) == 10 * day
    host.hold(10 * day + 600_000)
    assert host.reserve(10 * day) == 10 * day + 600_000
    assert host.reserve(day) == day
    assert host.reserve(day) == day + 10_000
    assert [believe_hold(day + 600_000, day), believe_hold(10 * day, day)] == [day + 600_000, 0]
