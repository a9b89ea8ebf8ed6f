"""A text that a target showed before is read by comparison: to the same result as line by line."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servescope.collector.parse import (
    Lexicon,
    Page,
    PageLimits,
    ParseError,
    learn_page,
    parse_exposition,
)
from servescope.collector.reader import Reader, ReadError
from servescope.collector.targets import Target
from servescope.identity import Identity
from servescope.samples import Series
from servescope.sources import load_sources
from servescope.translate import translate

IDENTITY = Identity("llama", "chat", "v1", replica="r0")
TARGET = Target("http://a/metrics", IDENTITY)
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
    """A page and what becomes of it: mostly other values, now and then lines that come, go or change places.

    With each come the limits it is read under.
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
    """What reading comes to, comparable bit by bit."""
    try:
        reading = read()
    except (ParseError, ReadError) as error:
        return type(error), getattr(error, "outcome", None), str(error)
    if isinstance(reading, tuple) and isinstance(reading[0], Page):
        return reading[0].series, reading[1].tobytes()
    return reading.snapshot.series, reading.snapshot.values.tobytes(), reading.native_samples, dict(reading.dropped)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies())
def test_a_page_that_is_known_reads_as_one_that_is_not(texts: list[tuple[bytes, PageLimits]]) -> None:
    """Whatever follows a page: None, so that it is learnt, or the values that reading line by line gives."""
    lexicon = Lexicon(20)
    pages: list[tuple[Page, PageLimits]] = []
    for body, limits in texts:
        expected = outcome(lambda body=body, limits=limits: learn_page(body, Lexicon(), limits))
        assert outcome(lambda body=body, limits=limits: learn_page(body, lexicon, limits)) == expected
        for page, learnt_under in pages:
            values = page.read(body, limits) if limits == learnt_under else None
            assert values is None or (page.series, values.tobytes()) == expected
        if isinstance(expected[0], tuple):
            page = learn_page(body, lexicon, limits)[0]
            pages.append((page, limits))
            assert page.read(body, limits) is not None or b"\r" in body


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies())
def test_a_reader_that_knows_its_target_reads_as_one_that_does_not(texts: list[tuple[bytes, PageLimits]]) -> None:
    """Snapshots, counts, errors and what is told of the target are those of a reader that looks at all lines anew."""
    reader, forgetful = Reader(TARGET), Reader(TARGET)
    former: tuple[Series, ...] = ()
    for body, limits in texts:
        # What it knows of the target is which metrics there were, not how its text looks.
        forgetful._page, forgetful._layouts, forgetful._plan, forgetful._way = None, {}, None, None
        forgetful._lexicon.forget()
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
    """The snapshot against the exposition, translated in one go and added up one by one."""
    assert reader.source is not None
    exposition = parse_exposition(body)
    plain = translate(exposition, load_sources()[reader.source], IDENTITY)
    values = {(name, labels): value for name, labels, value in plain.samples if np.isfinite(value)}
    assert dict(zip(found[0], np.frombuffer(found[1]).tolist(), strict=True)) == values
    assert found[2] == len(exposition.samples) + exposition.dropped
