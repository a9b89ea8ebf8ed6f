"""What clocks, restarts and gaps do to the figures on `/metrics`: nothing absurd, and nothing to other targets."""

from __future__ import annotations

import re
from contextlib import aclosing
from pathlib import Path
from typing import NoReturn

import pytest

from servescope.collector.exposition import Page, PageRenderer, Scraped
from servescope.collector.scrapes.recent_scrapes import RecentScrapes
from servescope.collector.scrapes.scrape import Scrape
from tests.support.stepped_collector import World
from tests.support.waiting import wait_for

TOKENS = "output_tokens_per_second"
EVERY = 15.0
STEADY = 10.0


class Faulty(World):
    """A collector with targets that write their pages themselves, read through its `/metrics`."""

    def __init__(self, folder: Path, *names: str, settings: str = "") -> None:
        super().__init__(folder, *names, settings=settings)
        self.pages = dict.fromkeys(names, counting)

    async def scrape(self, seconds: float = EVERY) -> list[Scrape]:
        """Advance the time, and scrape every target."""
        self.seconds += seconds
        await self.collector.discovering.discover()
        return [await self.collector.scraping.scrape(watched) for watched in self.collector.fleet.watched]

    async def count(self, scrapes: int, *, per_second: float = STEADY, names: str = "", every: float = EVERY) -> None:
        """Let the targets count on over so many scrapes."""
        for _ in range(scrapes):
            for name in names or self.answers:
                former = self.answers[name]
                self.answers[name] = None if former is None else former + per_second * every
            await self.scrape(every)

    def shown(self, *, later: float = 0.0) -> dict[str, float]:
        """The figures on `/metrics`, by their names, some seconds after the last scrape."""
        self.seconds += later
        evaluation = self.collector.evaluating.evaluate(self.collector.clock.now_ms)
        figures = [sample for each in evaluation.deployments.values() for sample in (*each.counted, *each.exposed)]
        scraped = [
            Scraped(each.target.target_id, *each.recent.latest())
            for each in self.collector.fleet.watched
            if self.collector.fleet.health(each) == "up"
        ]
        text = PageRenderer().render(Page(scraped, figures, [], self.collector.telemetry)).decode()
        lines = re.findall(r'^(\w+)\{[^}]*window="5m"[^}]*\} (\S+)$', text, re.MULTILINE)
        counted = re.findall(r'^(replica_count_by_status)\{[^}]*status="(\w+)"[^}]*\} (\S+)$', text, re.MULTILINE)
        gauges = re.findall(r'^(queued_requests)\{[^}]*replica="(\w+)"[^}]*\} (\S+)$', text, re.MULTILINE)
        shown = {name: float(value) for name, value in lines}
        return shown | {f"{name} {which}": float(value) for name, which, value in (*counted, *gauges)}

    def errors(self) -> list[str | None]:
        """What is wrong with each target."""
        return [
            watched.status.error or next(iter(watched.status.warnings), None)
            for watched in self.collector.fleet.watched
        ]


def counting(count: float) -> str:
    """A page on which everything has counted to `count`; a tenth of the requests failed, half took over a second."""
    return page(
        f'requests_total{{outcome="ok"}} {0.9 * count}',
        f'requests_total{{outcome="error"}} {0.1 * count}',
        f"output_tokens_total{{}} {count}",
        QUEUED,
        f'time_to_first_token_seconds_bucket{{le="1.0"}} {0.5 * count}',
        f'time_to_first_token_seconds_bucket{{le="2.5"}} {count}',
        f'time_to_first_token_seconds_bucket{{le="+Inf"}} {count}',
        f"time_to_first_token_seconds_sum{{}} {count}",
        f"time_to_first_token_seconds_count{{}} {count}",
    )


QUEUED = "queued_requests{} 2"


def page(*lines: str) -> str:
    """A page of the contract, recognised by an identity label."""
    return "".join(line.replace("{", '{deployment_id="x",') + "\n" for line in lines).replace(",}", "}")


class Unreadable(RecentScrapes):
    """Recent scrapes that cannot be read."""

    def stretch(self, _: object) -> NoReturn:
        """Fail."""
        raise RuntimeError("a mistake")


async def test_a_restart_between_scrapes_is_no_drop(tmp_path: Path) -> None:
    """After a restart below the former value counting continues; only increases that no scrape saw are lost."""
    async with aclosing(Faulty(tmp_path, "a", "b")) as world:
        await world.count(21)
        world.answers["a"] = 0.0
        await world.count(10)
        figures = world.shown()
        # Before it restarted, a had counted for a scrape's time that nobody saw.
        assert 2 * STEADY * 0.94 < figures[TOKENS] <= 2 * STEADY
        assert figures["request_error_share"] == pytest.approx(0.1)
        assert figures["time_to_first_token_seconds_p50"] == pytest.approx(1.0)


async def test_restarts_at_every_scrape_give_no_absurd_rate(tmp_path: Path) -> None:
    """A crash loop shows the little that is counted between two crashes, never less than nothing."""
    async with aclosing(Faulty(tmp_path, "a", "b")) as world:
        for step in range(25):
            world.answers = {"a": 5.0 + step % 2, "b": 5.0 + (step + 1) % 2}
            await world.scrape()
        figures = world.shown()
        assert 0 < figures[TOKENS] <= 2 * 6.0 / EVERY
        assert all(value >= 0 for value in figures.values())


async def test_a_torn_histogram_keeps_its_quantiles_within_its_edges(tmp_path: Path) -> None:
    """Where only some buckets began again the others continue, and a quantile stays a duration of the histogram."""
    async with aclosing(Faulty(tmp_path, "a", "b")) as world:
        await world.count(15)

        def torn(count: float) -> str:
            return counting(count).replace(
                page(f'time_to_first_token_seconds_bucket{{le="2.5"}} {count}'),
                page(f'time_to_first_token_seconds_bucket{{le="2.5"}} {count - 2000}'),
            )

        world.pages = dict.fromkeys("ab", torn)
        await world.count(6)
        figures = world.shown()
        for which in ("p50", "p95", "p99"):
            assert 0 <= figures[f"time_to_first_token_seconds_{which}"] <= 2.5
        assert figures[TOKENS] == pytest.approx(2 * STEADY)


async def test_missing_scrapes_cost_no_increase(tmp_path: Path) -> None:
    """What was counted while a target could not be scraped is there once it answers again, at its true rate."""
    async with aclosing(Faulty(tmp_path, "a", "b")) as world:
        await world.count(10)
        former = world.answers["a"]
        world.answers["a"] = None
        await world.count(5, names="b")
        failing = world.shown()
        assert former is not None
        world.answers["a"] = former + 5 * STEADY * EVERY
        await world.count(6)
        assert failing["replica_count_by_status unhealthy"] == 1
        assert "queued_requests a" not in failing
        assert failing["queued_requests b"] == 2
        assert world.shown()[TOKENS] == pytest.approx(2 * STEADY)


async def test_a_series_that_vanishes_is_no_gauge_any_more_and_still_counts(tmp_path: Path) -> None:
    """A page without a gauge ends it at once, as a stale marker would; the counter beside it continues."""
    async with aclosing(Faulty(tmp_path, "a", "b")) as world:
        await world.count(21)
        world.pages["a"] = lambda count: counting(count).replace(page(QUEUED), "")
        await world.count(1)
        evaluation = world.collector.evaluating.evaluate(world.collector.clock.now_ms)
        (derivation,) = evaluation.deployments.values()
        assert derivation.figures["queued_requests"] == 2
        assert "queued_requests a" not in world.shown()
        assert world.shown()[TOKENS] == pytest.approx(2 * STEADY)


async def begins_anew(world: Faulty) -> None:
    """One scrape has no rate, the second one of less than all there is, and a window later it is whole."""
    assert TOKENS not in world.shown()
    await world.count(1)
    assert 0 < world.shown()[TOKENS] < 2 * STEADY
    await world.count(20)
    assert world.shown()[TOKENS] == pytest.approx(2 * STEADY)


async def test_a_gap_longer_than_the_window_begins_anew(tmp_path: Path) -> None:
    """After hours of silence the first scrape has no rate, not one over the hours; the second has."""
    async with aclosing(Faulty(tmp_path, "a", "b")) as world:
        await world.count(10)
        await world.scrape(seconds=7200.0)
        await begins_anew(world)


@pytest.mark.slow
@pytest.mark.parametrize("jump", [60.0, 240.0, 3600.0, 86_400.0])
async def test_a_clock_set_forward_makes_rates_smaller_for_a_window_at_most(tmp_path: Path, jump: float) -> None:
    """What was counted is spread over the time that seems to have gone by: never more than the true rate."""
    async with aclosing(Faulty(tmp_path, "a", "b")) as world:
        await world.count(21)
        world.seconds += jump
        seen = []
        for _ in range(25):
            await world.count(1)
            seen.append(world.shown().get(TOKENS))
        assert all(rate <= 2 * STEADY * 1.001 for rate in seen if rate is not None)
        assert seen[-1] == pytest.approx(2 * STEADY)


@pytest.mark.slow
@pytest.mark.parametrize("jump", [1.0, 25.0, 200.0])
async def test_a_clock_set_back_a_little_leaves_no_scrape_out(tmp_path: Path, jump: float) -> None:
    """The collector goes on with the present at once; the figures stay true, and afterwards nothing is missing."""
    async with aclosing(Faulty(tmp_path, "a", "b")) as world:
        await world.count(21)
        world.seconds -= jump
        seen = []
        for _ in range(40):
            for name, former in world.answers.items():
                world.answers[name] = (former or 0.0) + STEADY * EVERY
            assert [scrape.outcome for scrape in await world.scrape()] == ["ok", "ok"]
            assert world.errors() == [None, None]
            seen.append(world.shown().get(TOKENS))
        # What is counted in `jump` seconds more than the clock shows comes in one step of the window.
        most = 2 * STEADY * (1 + jump / (300 - 2 * EVERY))
        assert all(0 < rate <= most for rate in seen if rate is not None)
        assert seen[-1] == pytest.approx(2 * STEADY)


async def test_a_clock_set_back_by_hours_begins_anew(tmp_path: Path) -> None:
    """What is held lies in the future and is of no use; two scrapes later there are figures again."""
    async with aclosing(Faulty(tmp_path, "a", "b")) as world:
        await world.count(21)
        world.seconds -= 7200.0
        await world.count(1)
        await begins_anew(world)
        assert world.errors() == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("back_after", [60.0, 3000.0])
async def test_a_clock_that_was_ahead_for_a_while_costs_no_history(tmp_path: Path, back_after: float) -> None:
    """Retention follows a leap only an hour later, and continues as soon as the clock is right again."""
    async with aclosing(Faulty(tmp_path, "a", "b", settings='retention = "6h"')) as world:
        assert isinstance(world, Faulty)
        began = world.collector.clock.now_ms
        await world.count(5)
        world.shown()
        world.seconds += 30 * 86_400.0
        for _ in range(int(back_after / 60)):
            await world.scrape(60.0)
            world.shown()
        world.seconds -= 30 * 86_400.0
        await world.count(1)
        world.shown()
        assert stored(world, began) >= 5
        # Seven hours by little steps: it was no leap.
        for _ in range(49):
            world.seconds += 520.0
            world.shown()
        assert stored(world, began, gone=True) == 0


def stored(world: Faulty, since_ms: int, *, gone: bool = False) -> int:
    """How many scrapes of the target a are stored of the five minutes since an instant, once all is written.

    With `gone` it waits for retention, which deletes little by little behind what is written.
    """
    recorder = world.collector.recorder
    (target_id,) = [
        each.target.target_id for each in world.collector.fleet.watched if each.target.identity.replica == "a"
    ]

    def read() -> int:
        return len(world.collector.recorder.history.read_scrapes(target_id, since_ms, since_ms + 300_000))

    wait_for(lambda: not recorder.backlog(), "the store")
    if gone:
        wait_for(lambda: not read(), "retention")
    return read()


async def test_a_scrape_twice_in_one_millisecond_counts_once(tmp_path: Path) -> None:
    """The second has the time of the first: it is left out, as Prometheus leaves out a second sample of one time."""
    async with aclosing(Faulty(tmp_path, "a", "b")) as world:
        await world.count(21)
        true = world.shown()
        world.answers = {name: (count or 0.0) + 1e6 for name, count in world.answers.items()}
        outcomes = [scrape.outcome for scrape in await world.scrape(seconds=0.0)]
        assert outcomes == ["clock", "clock"]
        assert world.shown()[TOKENS] == true[TOKENS]


async def test_one_deployment_that_cannot_be_evaluated_does_not_blind_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its fault is logged and counted; another deployment has its figures in the same evaluation, and it the next."""
    world = Faulty(tmp_path, "a", "b")
    groups = (
        (tmp_path / "targets.json").read_text().replace('"replica": "b"', '"replica": "b", "deployment_id": "other"')
    )
    (tmp_path / "targets.json").write_text(groups)
    async with aclosing(world):
        assert isinstance(world, Faulty)
        await world.count(5)
        broken = next(each for each in world.collector.fleet.watched if each.deployment.deployment_id == "other")
        whole, broken.recent = broken.recent, Unreadable(300_000, 30_000)
        there = {
            name.deployment_id for name in world.collector.evaluating.evaluate(world.collector.clock.now_ms).deployments
        }
        broken.recent = whole
        again = world.collector.evaluating.evaluate(world.collector.clock.now_ms).deployments
        assert there == {"chat"}
        assert "other: no figures for this evaluation" in caplog.text
        assert "a mistake" in caplog.text
        assert {name.deployment_id for name, each in again.items() if TOKENS in each.figures} == {"chat", "other"}


async def test_a_flood_of_series_is_held_to_its_limit_and_named(tmp_path: Path) -> None:
    """Beyond `max_held_series` new series are left out and counted; known ones continue, and room returns."""
    world = Faulty(tmp_path, "a", "b", settings="max_held_series = 100")
    numbers = iter(range(10**6))

    def flooding(count: float) -> str:
        return counting(count) + page(*(f'requests_total{{outcome="x{next(numbers)}"}} 1' for _ in range(60)))

    def dropped() -> float:
        return sum(
            sample.value
            for family in world.collector.telemetry.collect()
            for sample in family.samples
            if sample.name == "servescope_dropped_samples_total" and sample.labels["reason"] == "series_limit"
        )

    async with aclosing(world) as _:
        await world.count(2)
        world.pages["a"] = flooding
        await world.count(21)
        error, other = world.errors()
        assert error is not None
        assert "60 new series are left out, as 100 are held already, which is max_held_series" in error
        assert other is None
        assert [watched.status.healthy for watched in world.collector.fleet.watched] == [True, True]
        assert world.shown()[TOKENS] == pytest.approx(2 * STEADY)
        booked = dropped()
        assert booked >= 20 * 50
        world.pages["a"] = counting
        await world.count(30)
        assert world.errors() == [None, None]
        assert dropped() == booked
        world.pages["a"] = lambda count: counting(count) + page('requests_total{outcome="rejected"} 1')
        await world.count(2)
        assert world.shown()["request_rejected_share"] == 0
        assert world.errors() == [None, None]
