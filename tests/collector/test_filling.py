"""Windows that are not whole: known from the scrapes that there are, and never from when the collector started."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path

import pytest

from servescope.collector.evaluation import Evaluation
from servescope.contract.expressions import Level
from servescope.contract.figures import FIGURES
from servescope.contract.filling import describe_filling, is_over_window
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.store.embedded import Store
from tests.support.served_collector import START, engine, labels, scene
from tests.support.stepped_collector import CHAT, World, write_targets


async def test_the_api_says_how_much_of_the_window_there_is(tmp_path: Path) -> None:
    """Of constant traffic the figure is a fifth after a minute, as Prometheus' rule records it, and marked as that."""
    latest, shown = [], []
    async with scene(tmp_path) as stage:
        for step in range(24):
            stage.pages.texts["v1-0"] = engine(1_000 + step * 15)
            await stage.step()
            await stage.written()
            latest.append((await stage.get_json("/api/v1/deployments"))["deployments"][0])
            shown.append((await stage.series()).get((FILLED_SERIES, labels("v1", window="5m"))))
        (table,) = (await stage.get_json("/api/v1/figures?deployment_id=v1&name=request_rate"))["deployments"]
        catalog = {each["name"]: each for each in (await stage.get_json("/api/v1/catalog"))["figures"]}
    minute, filling = latest[4], [each["filling"] for each in latest]

    assert minute["time_ms"] == START * 1000 + 75_000
    assert minute["filling"] == {"filled": pytest.approx(0.2), "text": "filling, 1 of 5 min"}
    # An increase of 60 within a minute, extrapolated by half an interval at its start, over five.
    assert minute["figures"]["request_rate"] == pytest.approx(67.5 / 300)
    assert [each and each["text"] for each in filling[15:]] == [
        "filling, 3 of 5 min", *["filling, 4 of 5 min"] * 3, *[None] * 5
    ]  # fmt: skip
    assert latest[19]["figures"]["request_rate"] == pytest.approx(1.0)
    assert table["filled"] == pytest.approx([step * 0.05 for step in range(19)] + [1.0] * 5)
    assert shown == table["filled"]
    assert set(table["figures"]) == {"request_rate"}
    assert all(set(each["figures"]) <= _keys(each["figures"]) for each in latest)
    assert {name for name, each in catalog.items() if not each["over_window"]} == {
        name for name, figure in FIGURES.items() if isinstance(figure.expression, Level)
    }


def _keys(figures: Iterable[str]) -> set[str]:
    return {key for key in figures if key.partition("{")[0] in FIGURES}


def _filled(world: World) -> float | None:
    evaluation = world.collector.evaluating.last
    assert isinstance(evaluation, Evaluation)
    return evaluation.deployments[CHAT].filled


async def test_a_restart_with_history_is_not_filling(tmp_path: Path) -> None:
    """The window of a collector that opens a store with scrapes is whole at once; after an hour without it is not."""
    world = World(tmp_path, "a")
    async with aclosing(world):
        for count in range(30):
            await world.step(count * 15)
        assert _filled(world) == 1.0
    world.open()
    async with aclosing(world):
        await world.step(30 * 15)
        assert _filled(world) == 1.0
    world.open()
    async with aclosing(world):
        await world.step(100 * 15, seconds=3_600)
        for count in range(4):
            await world.step((101 + count) * 15)
        assert _filled(world) == pytest.approx(0.2)
        latest_ms = world.collector.clock.now_ms
    with Store(tmp_path / "servescope.db", read_only=True) as store:
        table = store.read_figures(CHAT, 0, START * 2_000)
        assert store.latest_figures()[CHAT] == (latest_ms, store.latest_figures()[CHAT][1])
    assert table.values[FILLED_SERIES][-1] == pytest.approx(0.2)
    # Nothing marks what is whole.
    assert all(value != value for value in table.values[FILLED_SERIES][20:31])


async def test_a_gap_shows_once_what_was_before_it_has_left_the_window(tmp_path: Path) -> None:
    """A counter that goes on across a gap is counted over it while the window has a sample of before."""
    world = World(tmp_path, "a")
    rates, filled = [], []
    async with aclosing(world):
        for count in range(24):
            await world.step(count * 15)
        await world.step((24 + 11) * 15, seconds=180)
        for count in range(36, 60):
            rates.append((await world.step(count * 15))["request_rate"])
            filled.append(_filled(world))
    short = [number for number, each in enumerate(filled) if each is not None and each < 1.0]

    assert short == list(range(short[0], short[-1] + 1))
    assert filled[short[0]] == pytest.approx(0.45)
    assert all(rates[number] == pytest.approx(1.0, rel=0.02) for number in range(len(rates)) if number not in short)
    assert all(rates[number] < 0.98 for number in short)


async def test_a_new_target_does_not_mark_its_deployment(tmp_path: Path) -> None:
    """What the others reported is over the whole window."""
    world = World(tmp_path, "a")
    world.answers = {"a": 0, "b": 0}
    async with aclosing(world):
        for count in range(30):
            await world.step(count * 15)
        write_targets(tmp_path, "a", "b")
        await world.step(30 * 15)
        await world.step(31 * 15)
        assert len(world.collector.fleet.watched) == 2
        assert _filled(world) == 1.0


async def test_without_a_scrape_there_is_no_window(tmp_path: Path) -> None:
    """A deployment whose targets never answered is not filling; it has no figures over a window at all."""
    world = World(tmp_path, "a")
    world.answers = {"a": None}
    async with aclosing(world):
        await world.step()
        assert _filled(world) is None


@pytest.mark.parametrize(
    ("filled", "window_ms", "text"),
    [
        (0.2, 300_000, "filling, 1 of 5 min"),
        (0.95, 300_000, "filling, 4 of 5 min"),
        (1 / 30, 1_800_000, "filling, 1 of 30 min"),
        (0.0, 300_000, "filling, 0 of 5 min"),
        (0.5, 90_000, "filling, 45 of 90 s"),
    ],
)
def test_filling_is_said_in_whole_minutes(filled: float, window_ms: int, text: str) -> None:
    """Of windows of whole minutes, from two on; of others in seconds."""
    assert describe_filling(filled, window_ms) == text


def test_every_figure_is_over_a_window_or_of_the_last_scrape() -> None:
    """A ratio of rates is over a window, a gauge is not."""
    assert is_over_window(FIGURES["kv_cache_hit_rate_skew"].expression)
    assert is_over_window(FIGURES["time_to_first_token_p95"].expression)
    assert not is_over_window(FIGURES["kv_cache_usage"].expression)
