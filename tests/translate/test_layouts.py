"""What is kept between probes: it shows in no answer, and it is bounded."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from servescope.collector.scrapes.scrape import Limits
from servescope.contract.identity import Identity
from servescope.contract.samples import Labels, Series, format_series
from servescope.errors import ServescopeError
from servescope.sources import series_plan
from servescope.sources.cache import SeriesCache
from servescope.sources.page import DEFAULT_LIMITS, LearnedPage
from servescope.sources.reader import Reader, ReadError, parse_page
from servescope.sources.series_plan import StoredSeries
from servescope.sources.translate import Plan
from servescope.translate.layouts import PageLayouts
from servescope.translate.outer import NOTHING, read_outer
from servescope.translate.translation import Translator, Wanted
from tests.proofs.engines.captures import grow
from tests.support.captures import read_captures

LIMITS = Limits(10.0, 16_000_000)


def answered(translator: Translator, target: str, body: bytes, wanted: Wanted, *, openmetrics: bool) -> bytes:
    """The page of a probe, or what failed."""
    try:
        return translator.translate(target, body, wanted, LIMITS).render(0.25, openmetrics=openmetrics)
    except ServescopeError as error:
        return str(error).encode()


@pytest.mark.slow
def test_an_answer_depends_on_its_text_alone(captures: Path) -> None:
    """Whoever was probed before, with whatever page; small caches, upgrades and broken pages change no answer."""
    chance = random.Random(17)
    names = ("vllm-0.32.0-1", "vllm-0.13era-1", "dynamo-frontend-1.6.1-1", "dynamo-mocker-1.6.1-1", "sglang-0.4.x-1",
             "trtllm-1.2rc-1")  # fmt: skip
    texts = [(captures / f"{name}.txt").read_text(encoding="utf-8") for name in names]
    used = Translator(most_cached_series=1500)
    for _ in range(60):
        body = grow(chance.choice(texts), chance.choice((0.0, 0.5, 1.0)))
        if chance.random() < 0.2:
            body = body.replace("} 0.0\n", "} NaN\n", 2)
        if chance.random() < 0.2:
            body = body[: chance.randrange(len(body))]
        behind = read_outer(chance.choice(("", "", "frontend", "frontend,router", "instruments")), {})
        labels = chance.choice(((), (("deployment_id", "chat"),)))
        wanted = Wanted(chance.choice((None, None, None, "vllm")), behind, labels, chance.random() < 0.3)
        openmetrics, target = chance.random() < 0.5, chance.choice("abc")
        fresh = answered(Translator(1_000_000), target, body.encode(), wanted, openmetrics=openmetrics)
        assert answered(used, target, body.encode(), wanted, openmetrics=openmetrics) == fresh


@pytest.mark.slow
def test_a_text_is_read_as_a_collector_reads_it_at_first(captures: Path) -> None:
    """The same series and values, the same samples dropped, or the same error; also of pages that are broken."""
    chance = random.Random(23)
    texts = [path.read_text(encoding="utf-8") for path in read_captures(captures)]
    for _ in range(50):
        lines = grow(chance.choice(texts), chance.random()).splitlines(keepends=True)
        for _ in range(chance.choice((0, 0, 1, 3))):
            place = chance.randrange(len(lines))
            lines[place] = chance.choice(("", lines[place] * 2, lines[place].replace("e", "{"), "x NaN\n", "y +Inf\n"))
        body, source = "".join(lines).encode(), chance.choice((None, None, "vllm", "dynamo-frontend"))
        identity = Identity("m", "d", "v", replica="r")
        wanted = Wanted(source, NOTHING, identity.labels())
        found, expected = Translator(1_000_000), Reader(identity, source)
        failed = failure(partial(expected.read, body))
        assert failure(partial(found.translate, "one", body, wanted, LIMITS)) == failed
        if failed is None:
            read, translated = expected.read(body), found.translate("one", body, wanted, LIMITS)
            assert translated.contract.series == read.snapshot.series
            assert translated.contract.values.tolist() == read.snapshot.values.tolist()
            assert (translated.native_samples, translated.dropped) == (read.native_samples, read.dropped)


def failure(read: Callable[[], object]) -> tuple[str, str] | None:
    """How and why a text could not be read."""
    try:
        read()
    except ReadError as error:
        return error.outcome, str(error)
    return None


def page(*names: str) -> LearnedPage:
    return parse_page("".join(f"{name} 1\n" for name in names).encode(), SeriesCache(), DEFAULT_LIMITS)[0]


def test_targets_with_the_same_lines_share_a_layout() -> None:
    """And what nobody has any more is dropped."""
    layouts = PageLayouts(1000)
    one = layouts.add("a", page("x", "y"))
    assert layouts.add("b", page("x", "y")) is one
    assert (len(layouts), layouts.series) == (1, 2)
    layouts.add("a", page("x", "y", "z"))
    assert layouts.get("b") is one
    assert (len(layouts), layouts.series) == (2, 5)
    layouts.add("b", page("x", "y", "z"))
    assert (len(layouts), layouts.series) == (1, 3)


def test_what_was_not_used_for_longest_is_dropped() -> None:
    """By how many series all layouts have; the last one is kept whatever it has."""
    layouts = PageLayouts(4)
    layouts.add("a", page("x", "y"))
    layouts.add("b", page("z", "w"))
    assert layouts.get("a") is not None
    layouts.add("c", page("u"))
    assert layouts.get("b") is None
    assert layouts.get("a") is not None
    layouts.add("d", page(*"abcdefg"))
    assert (len(layouts), layouts.series) == (1, 7)


def test_targets_of_one_layout_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that overflow leave out their own series, whichever are left out of another target's in between."""
    series = tuple(Series(f"tokens_{number}", ()) for number in range(4))
    places = np.arange(4)
    stored = StoredSeries(Plan(series, places, places, np.full(4, 2.0), {}), {}, ())
    others = iter([np.array([1e308, 1.0, 2.0, 1e308])])

    def interrupted(name: str, labels: Labels) -> str:
        for other in others:
            stored.snapshot(other, ())
        return format_series(name, labels)

    monkeypatch.setattr(series_plan, "format_series", interrupted)
    snapshot, overflown = stored.snapshot(np.array([1.0, 1e308, 2.0, 3.0]), ())
    assert overflown == ["tokens_1"]
    assert [each.name for each in snapshot.series] == ["tokens_0", "tokens_2", "tokens_3"]
    assert snapshot.values.tolist() == [2.0, 4.0, 6.0]
