"""Probes in progress: however many targets hang, those that answer find a slot, and one target holds a few at most."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.target import Target
from servescope.translate.allowed import AllowedResolver
from servescope.translate.config import read_probe_configuration
from servescope.translate.prober import Prober
from servescope.translate.slots import Slots
from servescope.translate.telemetry import ProbeTelemetry
from servescope.web.answers import BusyError
from servescope.web.connections import FetchError
from tests.support.translating import Answered

T = TypeVar("T")

PAGE = "".join(
    f'vllm:{name}{{engine="0",model_name="m"}} 1.0\n'
    for name in ("num_requests_running", "generation_tokens_total", "kv_cache_usage_perc", "prefix_cache_queries_total",
                 "inter_token_latency_seconds_count")
)  # fmt: skip
HUNG, HEALTHY = 300, 201


class Fleet:
    """A prober of targets on two networks: those of 10.0.0.0/16 answer, those of 10.1.0.0/16 do not while they hang."""

    def __init__(self, folder: Path, configuration: str = "") -> None:
        path = folder / "translate.toml"
        path.write_text(f'[translate]\ntargets = ["10.0.0.0/8:*"]\n{configuration}', encoding="utf-8")
        settings = read_probe_configuration(path)
        self.telemetry = ProbeTelemetry()
        resolver = AllowedResolver(settings.networks, settings.claims)
        self.prober = Prober(settings, self._fetch, resolver, self.telemetry)
        self.hanging, self.late = True, set[str]()
        self.failing_after: Callable[[], None] | None = None
        self.asked: Counter[str] = Counter()

    async def _fetch(self, target: Target, _: Limits, /) -> bytes:
        self.asked[target.host] += 1
        if target.host in self.late:
            raise FetchError("timeout", "no complete answer in time")
        if self.failing_after is not None:
            self.failing_after()
            raise FetchError("status", "HTTP status 504")
        if self.hanging and target.host.startswith("10.1."):
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return PAGE.encode()

    async def probe(self, target: str) -> str:
        """How a probe of a target ends: `ok`, its reason, or `refused`."""
        try:
            page = await self.prober.probe({"target": target}, None, openmetrics=False)
        except BusyError:
            return "refused"
        return Answered(200, page.decode(), {}).failure() or "ok"

    async def probe_all(self, targets: list[str]) -> Counter[str]:
        """How probes of these end, a hundred at a time."""
        ended: Counter[str] = Counter()
        for first in range(0, len(targets), 100):
            ended.update(await asyncio.gather(*map(self.probe, targets[first : first + 100])))
        return ended

    async def hang(self, targets: list[str]) -> list[asyncio.Task[str]]:
        """Probes of these that wait, or were refused."""
        probes = [asyncio.create_task(self.probe(target)) for target in targets]
        for _ in range(5):
            await asyncio.sleep(0)
        return probes


def healthy(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250}:8000"


def hung(number: int) -> str:
    return f"10.1.{number // 250}.{number % 250}:8000"


@pytest.mark.slow
async def test_targets_that_hang_cost_none_of_those_that_answered(tmp_path: Path) -> None:
    """300 of them with 128 slots; those whose probes ended for another one say so."""
    fleet = Fleet(tmp_path)
    answered = [await fleet.probe_all([healthy(number) for number in range(HEALTHY)])]
    probes = await fleet.hang([hung(number) for number in range(HUNG)])
    in_progress = fleet.telemetry.in_progress._value.get()
    answered += [await fleet.probe_all([healthy(number) for number in range(HEALTHY)]) for _ in range(2)]
    ended = Counter(probe.result() for probe in probes if probe.done())
    assert answered == [{"ok": HEALTHY}] * 3
    assert in_progress == 128
    assert ended["refused"] == HUNG - 128
    assert 0 < ended["busy"] <= 128
    assert ended.keys() == {"refused", "busy"}


async def test_one_target_that_hangs_holds_a_few_slots(tmp_path: Path) -> None:
    """However many scrapers ask it."""
    fleet = Fleet(tmp_path)
    probes = await fleet.hang([hung(1)] * 20)
    assert (Counter(probe.result() for probe in probes if probe.done()), fleet.telemetry.in_progress._value.get()) == (
        {"refused": 16},
        4,
    )
    assert fleet.asked == {hung(1): 4}


async def test_a_target_that_hung_last_time_ends_for_one_that_did_not(tmp_path: Path) -> None:
    """Whatever it did before; one that answers again is as good as any other."""
    fleet = Fleet(tmp_path, "max_probes = 2\n")
    fleet.late = {hung(1), hung(2)}
    ended = [await fleet.probe(hung(1)), await fleet.probe(hung(2))]
    fleet.late, fleet.hanging = set(), False
    ended.append(await fleet.probe(hung(2)))
    fleet.hanging = True
    first, second = await fleet.hang([hung(2), hung(1)])
    ended.append(await fleet.probe(healthy(1)))
    assert [*ended, await second, str(first.done())] == ["timeout", "timeout", "ok", "ok", "busy", "False"]


@pytest.mark.parametrize(("seconds", "ends"), [(0.1, "refused"), (3.0, "ok")])
async def test_a_target_that_failed_late_hung(tmp_path: Path, seconds: float, ends: str) -> None:
    """A gateway's 504, or a host that is gone, held a slot as well; one that refused at once did not."""
    fleet = Fleet(tmp_path, "max_probes = 1\n")
    clock = fleet.prober._slots._clock = Clock()
    ended = [await fleet.probe(healthy(1))]
    fleet.failing_after = lambda: clock.pass_by(seconds)
    ended.append(await fleet.probe(hung(1)))
    fleet.failing_after = None
    await fleet.hang([hung(1)])
    assert [*ended, await fleet.probe(healthy(1))] == ["ok", "status", ends]


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds


async def _waiting(slots: Slots, target: str, *, hung: bool | None = None) -> asyncio.Task[str]:
    """A probe of ten seconds that waits; `hung` is what its target did before, None for nothing."""
    if hung is not None:
        before = slots.take(target, 10.0)
        before.hung = hung
        slots.give_back(before)
    slot = slots.take(target, 10.0)

    async def wait() -> str:
        try:
            await slot.wait_for(asyncio.Event().wait())
        except FetchError as error:
            return f"{error.outcome}: {error}"
        finally:
            slots.give_back(slot)
        return "answered"

    task = asyncio.create_task(wait(), name=target)
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize(
    ("others", "newcomer", "seconds", "ends"),
    [
        # Whoever is less likely to answer, at once; of several the one that has waited longest.
        ([True, True, False], False, 0.0, 0),
        ([False, True, True], False, 0.0, 1),
        ([None, True, None], None, 0.0, 1),
        ([None, None, False], False, 0.0, 0),
        # Of those as likely, past half of their time.
        ([True, True, True], True, 4.9, None),
        ([True, True, True], True, 5.1, 0),
        ([False, False, False], False, 5.1, 0),
        # Never for one that is less likely.
        ([None, False, False], True, 9.0, None),
        ([False, False, False], None, 9.0, None),
    ],
)
async def test_a_probe_ends_for_a_target_that_is_more_likely_to_answer(
    others: list[bool | None], newcomer: bool | None, seconds: float, ends: int | None
) -> None:
    """True is a target that hung last time, None one that was never asked."""
    clock = Clock()
    slots = Slots(4, 1, clock)
    if newcomer is not None:
        known = slots.take("newcomer", 10.0)
        known.hung = newcomer
        slots.give_back(known)
    waiting = [await _waiting(slots, str(number), hung=kind) for number, kind in enumerate(others)]
    slots.most = 3
    clock.seconds = seconds
    if ends is None:
        with pytest.raises(BusyError, match=r"3 probes are in progress \(max_probes\)"):
            slots.take("newcomer", 10.0)
        return
    slots.take("newcomer", 10.0)
    said = await waiting[ends]
    assert said == f"busy: no answer within {seconds:.1f} s, and others wait for a slot"
    assert [task.done() for task in waiting] == [number == ends for number in range(3)]
    assert len(slots) == 3


def test_what_targets_did_is_remembered_of_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that were asked last: what is forgotten counts as never asked."""
    monkeypatch.setattr("servescope.translate.slots._MOST_TARGETS", 3)
    slots = Slots(4, 1)
    for target in "abcad":
        slots.give_back(slots.take(target, 1.0))

    assert [slots.take(target, 1.0).last_time.name for target in "abcd"] == [
        "ANSWERED", "UNASKED", "ANSWERED", "ANSWERED",
    ]  # fmt: skip
