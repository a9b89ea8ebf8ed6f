"""A text like the one before is read by comparing, with the same result as line by line."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servescope.contract.identity import Identity
from servescope.contract.samples import Series
from servescope.sources.cache import SeriesCache
from servescope.sources.layers import Supply
from servescope.sources.map_files import load_sources
from servescope.sources.page import LearnedPage, PageLimits
from servescope.sources.parse import ParseError, learn_page, parse_exposition
from servescope.sources.reader import Reader, ReadError
from servescope.sources.translate import translate
from tests.support.captures import read_captures
from tests.support.drawing import examples

IDENTITY = Identity("llama", "chat", "v1", replica="r0")
LIMITS = PageLimits(max_series=60, max_labels=6, max_label_bytes=120, max_line_bytes=300)
TIGHT = PageLimits(max_series=14, max_labels=2, max_label_bytes=26, max_line_bytes=90)

LABELS = '{engine="0",model_name="l"}'
VLLM = [
    "# HELP vllm:num_requests_running Number of requests.",
    "# TYPE vllm:num_requests_running gauge",
    f"vllm:num_requests_running{LABELS} 3.0",
    f"vllm:num_requests_waiting{LABELS} 1.0",
    f"vllm:kv_cache_usage_perc{LABELS} 0.5",
    f"vllm:generation_tokens_total{LABELS} 90.0",
    f"vllm:prompt_tokens_total{LABELS} 70.0",
    f"vllm:prefix_cache_queries_total{LABELS} 40.0",
    f"vllm:prefix_cache_hits_total{LABELS} 4.0",
    'vllm:request_success_total{engine="0",finished_reason="stop",model_name="l"} 4.0',
    'vllm:request_success_total{engine="0",finished_reason="length",model_name="l"} 1.0',
    "# TYPE vllm:inter_token_latency_seconds histogram",
    'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.1",model_name="l"} 60.0',
    'vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="l"} 80.0',
    f"vllm:inter_token_latency_seconds_sum{LABELS} 1.5",
    f"vllm:inter_token_latency_seconds_count{LABELS} 80.0",
    "",
]
DYNAMO = [
    "dynamo_frontend_disconnected_clients 0",
    'dynamo_frontend_output_sequence_tokens_sum{model="m"} 8',
    'dynamo_frontend_output_sequence_tokens_count{model="m"} 2',
    'dynamo_frontend_output_tokens_total{model="m"} 8',
    'dynamo_frontend_queued_requests{model="m"} 3',
    "",
]

VALUES = st.one_of(
    st.floats().map(repr),
    st.integers(-5, 2**70).map(str),
    st.sampled_from(
        [
            "0", "-0", "+1", "1e999", "-1e999", "1.7e308", "NaN", "nan", "+Inf", "-Inf", "infinity", "INF", ".5", "5.",
            "1_000", "0x10", "1e", "", " ", "--1", "١", "1\x0b", "1\r2", "\r1", "1 2 3", "{}", "1" * 400,
        ]
    ),
)  # fmt: skip
TAILS = st.sampled_from(
    [
        "", " 1700000000000", " 1.5e9", "\t-12", ' 1 # {a="b c"} 2', " # {} 1", ' # {t="}\\"\\n# x"} 0.5 17.5', "\r",
        "  ", " # {", " later", " 1 2", "\r\r", " \r 1", " # {a} 1", "é",
    ]
)  # fmt: skip
LINES = st.sampled_from(
    [
        "", "# EOF", "# EOF", "# EOF", "inf 5", "NaN 5", "5", "inf", "1 2", "# HELP x y", "garbage{", "<html>", "{",
        " # TYPE vllm:num_requests_running gauge", "x 1", "x\t1", "  x 1  ", "x{} 5", "x {} 5", "x 5 # {} 1 2",
        'vllm:num_requests_waiting{engine="1",model_name="l"} 7', "vllm_generation_tokens_total 5",
        'x{a="\\"\\n é"} 2', 'x{a="1",b="2",} 3', 'x{a="1",b="2",c="3",d="4",e="5",f="6",g="7"} 1',
        f'x{{a="{"y" * 121}"}} 1', "# " + "z" * 400, "y" * 301 + " 1", "\ufeffx 1", "x 1\x00",
        'x_bucket{le="1"} 1', 'x_bucket{le="1.0"} 1',
    ]
)  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> list[tuple[bytes, PageLimits]]:
    """A page and its successors: mostly other values, sometimes lines that appear, disappear or change places.

    Each has the limits it is read under.
    """
    lines = list(draw(st.sampled_from([VLLM, DYNAMO])))
    seen = ["\n".join(lines)]
    for _ in range(draw(st.integers(1, 6))):
        for _ in range(draw(st.integers(0, 3))):
            place = draw(st.integers(0, len(lines) - 1)) if lines else 0
            kind = draw(
                st.sampled_from(
                    ["value"] * 6
                    + ["tail", "tail", "replace", "replace", "insert", "delete", "repeat", "swap", "cut", "restore"]
                )
            )
            if kind == "restore":
                lines = draw(st.sampled_from(seen)).split("\n")
            elif kind == "insert" or not lines:
                lines.insert(place, draw(LINES))
            elif kind == "replace":
                lines[place] = draw(LINES)
            elif kind == "value":
                lines[place] = f"{lines[place].rpartition(' ')[0]} {draw(VALUES)}"
            elif kind == "tail":
                lines[place] += draw(TAILS)
            elif kind == "delete":
                del lines[place]
            elif kind == "repeat":
                lines.insert(draw(st.integers(0, len(lines))), lines[place])
            elif kind == "swap":
                lines[place - 1], lines[place] = lines[place], lines[place - 1]
            else:
                lines[place] = lines[place][: draw(st.integers(0, 80))]
        seen.append(draw(st.sampled_from(["\n", "\n", "\n", "\r\n"])).join(lines))
    return [(text.encode(), draw(st.sampled_from([LIMITS] * 5 + [TIGHT]))) for text in seen]


def outcome(read: Any) -> Any:
    """The result of reading, comparable bit by bit."""
    try:
        reading = read()
    except (ParseError, ReadError) as error:
        return type(error), getattr(error, "outcome", None), str(error)
    if isinstance(reading, tuple) and isinstance(reading[0], LearnedPage):
        return reading[0].series, reading[1].tobytes()
    return reading.snapshot.series, reading.snapshot.values.tobytes(), reading.native_samples, dict(reading.dropped)


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies())
def test_a_known_page_reads_the_values_that_parsing_gives(texts: list[tuple[bytes, PageLimits]]) -> None:
    """The next body has the values that parsing gives, or None, so that it is parsed."""
    cache = SeriesCache(9000)
    pages: list[tuple[LearnedPage, PageLimits]] = []
    for body, limits in texts:
        expected = outcome(lambda body=body, limits=limits: learn_page(body, SeriesCache(), limits))
        assert outcome(lambda body=body, limits=limits: learn_page(body, cache, limits)) == expected
        for page, learnt_under in pages:
            values = page.read(body, limits) if limits == learnt_under else None
            assert values is None or (page.series, values.tobytes()) == expected
        if isinstance(expected[0], tuple):
            page = learn_page(body, cache, limits)[0]
            pages.append((page, limits))
            assert page.read(body, limits) is not None or b"\r" in body


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies())
def test_a_reader_with_cached_plans_reads_as_one_without(texts: list[tuple[bytes, PageLimits]]) -> None:
    """Snapshots, counts, errors, coverage and warnings are those of a reader that parses every text."""
    reader, forgetful = Reader(IDENTITY), Reader(IDENTITY)
    former: tuple[Series, ...] = ()
    for body, limits in texts:
        # It remembers which metrics there were, not the layout of the text.
        forgetful._page, forgetful._plans, forgetful._plan, forgetful._stored = None, {}, None, None
        forgetful._cache = SeriesCache()
        expected = outcome(lambda body=body, limits=limits: forgetful.read(body, limits))
        found = outcome(lambda body=body, limits=limits: reader.read(body, limits))

        assert found == expected
        assert (reader.source, reader.versions, reader.missing) == (
            forgetful.source, forgetful.versions, forgetful.missing,
        )  # fmt: skip
        assert (reader.coverage, reader.warnings) == (forgetful.coverage, forgetful.warnings)
        if isinstance(found[0], tuple):
            assert found[0] is former or found[0] != former
            former = found[0]
            _check_by_hand(reader, body, found)


def _check_by_hand(reader: Reader, body: bytes, found: Any) -> None:
    """The snapshot equals the exposition translated without a plan."""
    assert reader.source is not None
    exposition = parse_exposition(body)
    plain = translate(exposition, load_sources()[reader.source], IDENTITY)
    values = {(name, labels): value for name, labels, value in plain.samples if np.isfinite(value)}
    assert dict(zip(found[0], np.frombuffer(found[1]).tolist(), strict=True)) == values
    assert found[2] == len(exposition.samples) + exposition.dropped


def series_of(reader: Reader, lines: Iterable[str]) -> tuple[Series, ...]:
    return reader.read("\n".join(lines).encode()).snapshot.series


def changed(name: str, value: str) -> list[str]:
    """vLLM's page with another value on the lines that begin so."""
    return [f"{line.rpartition(' ')[0]} {value}" if line.startswith(name) else line for line in VLLM]


def test_the_series_stay_the_same_object_while_they_are_the_same() -> None:
    """Values, comments and native series that feed nothing may change; so may which values overflow, and back."""
    reader = Reader(IDENTITY)
    first = series_of(reader, VLLM)
    for lines in (
        VLLM, changed("vllm:prompt", "71"), ["# HELP x y", *VLLM], ["x 1", *VLLM], ["x NaN", *VLLM], ["x 1", *VLLM],
    ):  # fmt: skip
        assert series_of(reader, lines) is first
    without = series_of(reader, changed("vllm:num_requests", "1.7e308"))
    again = series_of(reader, ["x 1", *changed("vllm:num_requests", "1.6e308")])
    assert {series.name for series in set(first) - set(without)} == {"concurrent_requests"}
    assert again is without
    assert series_of(reader, ["x 2", *VLLM]) == first


def test_series_in_another_order_are_the_same_series() -> None:
    """The snapshot of a page that is written from an unordered map keeps the first order."""
    reader = Reader(IDENTITY)
    first = series_of(reader, VLLM)
    shuffled = VLLM[:-1]
    for seed in range(5):
        random.Random(seed).shuffle(shuffled)
        body = "\n".join([*shuffled, ""]).encode()
        found, wanted = reader.read(body).snapshot, Reader(IDENTITY).read(body).snapshot
        assert found.series is first
        assert sorted(found.samples()) == sorted(wanted.samples())


def test_a_known_page_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other values need no parsing; other lines do, and other limits."""
    learnt = []

    def learn(body: bytes, cache: SeriesCache, limits: PageLimits | None = None) -> Any:
        learnt.append(body)
        return learn_page(body, cache, limits)

    monkeypatch.setattr("servescope.sources.reader.learn_page", learn)
    reader = Reader(IDENTITY)
    counts = []
    for lines, limits in (
        (VLLM, LIMITS), (changed("vllm:", "1e3"), LIMITS), (changed("vllm:", "NaN"), LIMITS), (VLLM, LIMITS),
        (["x 1", *VLLM], LIMITS), (["x 2", *VLLM], LIMITS), (["x 2", *VLLM], PageLimits()),
    ):  # fmt: skip
        outcome(lambda lines=lines, limits=limits: reader.read("\n".join(lines).encode(), limits))
        counts.append(len(learnt))
    assert counts == [1, 1, 1, 1, 2, 2, 3]


def test_targets_with_equal_pages_share_their_series() -> None:
    """A thousand replicas of an engine keep their native series once."""
    cache = SeriesCache()
    pages = [learn_page("\n".join(VLLM).encode(), cache)[0] for _ in range(2)]
    assert all(ours is theirs for ours, theirs in zip(pages[0].series, pages[1].series, strict=True))
    pairs = {pair for series in pages[0].series for pair in series.labels}
    assert len({id(pair) for series in pages[0].series for pair in series.labels}) == len(pairs)


def test_every_capture_reads_the_same_when_it_is_known(captures: Path) -> None:
    """Snapshots, counts and errors, of targets that share what they read with others."""
    cache, read = SeriesCache(), 0
    for body in [path.read_bytes() for path in read_captures(captures)]:
        expected = outcome(lambda body=body: Reader(IDENTITY).read(body))
        for reader in (Reader(IDENTITY, cache=cache), Reader(IDENTITY, cache=cache)):
            assert [outcome(lambda body=body, reader=reader: reader.read(body)) for _ in range(3)] == [expected] * 3
        read += expected[0] is not ReadError
    assert read >= 5


def test_a_metric_is_taken_from_the_outermost() -> None:
    """With its target; metrics that are not further out, or were not asked for, are not in the answer."""
    supply = Supply()
    supply.update("engine", {4: frozenset({"a", "b"})})
    supply.update("worker", {2: frozenset({"a"}), 3: frozenset({"b"})})
    supply.update("frontend", {0: frozenset({"a"})})
    both = frozenset({"a", "b"})
    assert [supply.further_out(depth, both) for depth in (0, 1, 3, 4)] == [
        {}, {"a": "frontend"}, {"a": "frontend"}, {"a": "frontend", "b": "worker"},
    ]  # fmt: skip
    assert supply.further_out(4, frozenset({"b"})) == {"b": "worker"}


def test_the_version_of_a_supply_changes_with_its_answers() -> None:
    """A further target of the same layer changes nothing; one that leaves, or moves further in, does."""
    supply = Supply()
    names = frozenset({"a"})
    versions = []

    def note(target_id: str, depth: int, metrics: frozenset[str] = names) -> None:
        supply.update(target_id, {depth: metrics})
        versions.append(supply.version)

    for place in range(3):
        note(f"engine-{place}", 4)
    note("frontend", 0)
    note("frontend", 0, names | {"b"})
    note("engine-1", 4, names)
    supply.retain({"engine-0", "engine-1", "frontend"})
    versions.append(supply.version)
    assert [later > earlier for earlier, later in pairwise(versions)] == [False, False, True, True, False, True]

    note("frontend", 5)
    assert supply.further_out(4, names) == {}
    assert supply.further_out(5, names) == {"a": "engine-0"}
    supply.retain({"frontend"})
    assert supply.further_out(5, names) == {}


def test_a_reader_leaves_out_what_is_supplied_from_further_out() -> None:
    """From the frontend's first scrape until it is no longer listed; the engine's coverage names the frontend."""
    supply = Supply()
    engine = Reader(IDENTITY, supply=supply)
    frontend = Reader(Identity("llama", "chat", "v1", replica="f"), supply=supply)
    own = {series.name for series in series_of(engine, VLLM)}
    dynamo = {series.name for series in series_of(frontend, DYNAMO)}
    left = {series.name for series in series_of(engine, VLLM)}
    assert "output_tokens_total" in own & dynamo
    assert "kv_cache_usage" in left
    assert not left & dynamo
    assert engine.coverage["output_tokens_total"]["status"] == "elsewhere"
    assert "taken from chat/aggregated/f#" in (engine.coverage["output_tokens_total"]["reason"] or "")

    supply.retain({IDENTITY.target_id})
    assert {series.name for series in series_of(engine, VLLM)} == own


def test_what_is_around_the_engines_is_used_last_and_is_no_replica() -> None:
    """A picker's count of replicas is used before a cluster's; a target with an engine's role says what is wrong."""
    cluster = ['kube_deployment_status_replicas_available{deployment="chat"} 3', ""]
    picker = ["llm_d_epp_info 1", "llm_d_epp_ready_endpoints 2", ""]
    supply = Supply()
    outside = Reader(Identity("llama", "chat", "v1", role="auxiliary"), supply=supply)
    engine = Reader(Identity("llama", "chat", "v1", replica="e"), supply=supply)
    front = Reader(Identity("llama", "chat", "v1", replica="f", role="router"), supply=supply)
    assert {series.name for series in series_of(outside, cluster)} == {"replica_count_by_status"}
    assert "replica_count_by_status" in {series.name for series in series_of(front, picker)}
    assert series_of(outside, cluster) == ()
    assert outside.warnings == ()
    series_of(engine, cluster)
    assert engine.warnings == (
        "'kube-state-metrics' is no replica, and its role is 'aggregated': give the target the role 'auxiliary', or "
        "'autoscaler' where it shows what scales the deployment",
    )


def test_every_target_keeps_its_own_start_time() -> None:
    """It is the process's own, whichever layer the others are taken from; without it, when its counters were made."""
    supply = Supply()
    frontend = Reader(Identity("llama", "chat", "v1", replica="f"), supply=supply)
    engine = Reader(IDENTITY, supply=supply)
    shown = "process_start_time_seconds 1.7e+09"
    for reader, lines in ((frontend, ["litellm_in_flight_requests 1"]), (engine, VLLM), (engine, VLLM)):
        assert _start_time(reader, [*lines, shown]) == 1.7e9
    assert _start_time(Reader(IDENTITY), [*VLLM, f"vllm:generation_tokens_created{LABELS} 1.8e+09"]) == 1.8e9
    assert _start_time(Reader(IDENTITY), VLLM) is None


def _start_time(reader: Reader, lines: Iterable[str]) -> float | None:
    snapshot = reader.read("\n".join([*lines, ""]).encode()).snapshot
    return next((each.value for each in snapshot.samples() if each.name == "replica_start_time_seconds"), None)


@pytest.mark.slow
def test_the_cache_drops_series_of_targets_that_left() -> None:
    """It keeps at most twice the memory of the series that are exposed now."""
    cache = SeriesCache()
    cache.resize(2000)
    tracemalloc.start()
    try:
        for number in range(40):
            body = "".join(f'requests_total{{replica="r{number}",series="{series}"}} 1\n' for series in range(1000))
            learn_page(body.encode(), cache)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 4_000_000
