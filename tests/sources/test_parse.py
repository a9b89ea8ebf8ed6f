from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as NativeSample

from servescope.contract.samples import Labels, Sample, Series, format_edge, format_series, make_labels
from servescope.sources.cache import SeriesCache
from servescope.sources.page import PageLimits
from servescope.sources.parse import Exposition, LimitError, ParseError, expose, learn_page, parse_exposition
from tests.support.captures import read_captures


def parse_as_prometheus_client(text: str) -> Counter[tuple[str, Labels, float]]:
    """What prometheus_client reads, with the names as exposed and with canonical edges."""
    samples: Counter[tuple[str, Labels, float]] = Counter()
    counters = re.findall(r"^# TYPE (\S+) counter", text, re.MULTILINE)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name, labels, value = canonical(sample)
            # It appends _total to every counter; the name that was declared is the one exposed.
            if family.type == "counter" and family.name in counters:
                name = name.removesuffix("_total")
            if math.isfinite(value):
                samples[name, labels, value] += 1
    return samples


def canonical(sample: NativeSample) -> tuple[str, Labels, float]:
    """A sample of prometheus_client, with canonical edges."""
    labels = dict(sample.labels)
    if "le" in labels:
        labels["le"] = format_edge(float(labels["le"]))
    return sample.name, make_labels(labels), float(sample.value)


def as_openmetrics(family: Metric) -> str:
    """The family in OpenMetrics: with time stamps, exemplars, escapes and `_created` samples."""
    lines = [f"# TYPE {family.name} {family.type}"]
    created = False
    for sample in family.samples:
        if sample.value != sample.value:
            continue
        labels = {**sample.labels, "note": 'a"b\\c\nd} # {'}
        if "le" in labels:
            labels["le"] = format_edge(float(labels["le"]))
        text = format_series(sample.name, tuple(labels.items()))
        if family.type == "gauge":
            lines.append(f"{text} {sample.value} 1700000000.25")
        elif family.type == "counter" or "le" in labels:
            lines.append(f'{text} {sample.value!r} # {{trace_id="0af7651916cd43dd"}} 0.25 1700000000.125')
        else:
            lines.append(f"{text} {sample.value!r}")
        if family.type == "counter" and not created:
            lines.append(f"{format_series(f'{family.name}_created', tuple(labels.items()))} 1.7e+09")
            created = True
    return "\n".join(lines) + "\n"


def read_as_prometheus_client(text: str) -> Counter[tuple[str, Labels, float]] | None:
    """What prometheus_client's parser of OpenMetrics reads; None when it refuses the text."""
    try:
        families = list(read_openmetrics(f"{text}# EOF\n"))  # type: ignore[no-untyped-call]
    except ValueError:
        return None
    return Counter(canonical(sample) for family in families for sample in family.samples)


def read_twice(text: str) -> list[Exposition]:
    """The samples of a text, parsed line by line and read as a page of known layout."""
    page, learnt = learn_page(text.encode(), SeriesCache())
    known = page.read(text.encode())
    assert known is not None
    assert known.tobytes() == learnt.tobytes()
    return [parse_exposition(text), expose(page.series, known)]


@pytest.mark.slow
def test_equals_prometheus_client_on_every_capture(captures: Path) -> None:
    """Every captured Prometheus text reads as prometheus_client reads it: names, labels, values, how often."""
    compared = 0
    for path in read_captures(captures):
        text = path.read_text()
        expected = parse_as_prometheus_client(text)
        for exposition in read_twice(text):
            assert Counter(map(tuple, exposition.samples)) == expected, path.name
        compared += 1
    assert compared >= 14


@pytest.mark.slow
def test_equals_prometheus_client_on_every_capture_as_openmetrics(captures: Path) -> None:
    """The same in OpenMetrics, with time stamps, exemplars, escapes and `_created`, as its own parser reads it."""
    compared = 0
    for path in read_captures(captures):
        families = [as_openmetrics(family) for family in text_string_to_metric_families(path.read_text())]
        # Its parser refuses buckets without a histogram, which some real engines show.
        read = {text: samples for text in families if (samples := read_as_prometheus_client(text)) is not None}
        for exposition in read_twice("".join(read) + "# EOF\n"):
            assert Counter(map(tuple, exposition.samples)) == sum(read.values(), Counter()), path.name
        compared += sum(map(Counter.total, read.values()))
    assert compared > 1000


@pytest.mark.parametrize(
    "text",
    [
        'x_total{a="q\\"b\\\\s\\n"} 5.0 1700000000.25 # {trace_id="b}c"} 0.5 17.1\nx_created{a="1"} 1.7e+09\n# EOF\n',
        'h_bucket{le="1"} 2 # {} 0.7\nh_bucket{le="+Inf"} 3 17 # {a="b c",d="\\"} # {"} 1e3\nh_sum 1 \nh_count\t3\n',
        "x 1 1700000000000\ny -2e-3 -12\nz +Inf 5\nNaN 1\n",
        "x 1\r\ny 2 17\r\n# HELP x of x\r\n",
        "  x   1  \n\tx{}\t2\n x { } 3\n\n",
    ],
)
def test_a_known_page_has_the_same_liberties(text: str) -> None:
    """Time stamps, exemplars, escapes, spaces and line ends are read as they are parsed the first time."""
    first, again = read_twice(text)
    assert (again.samples, again.dropped) == (first.samples, first.dropped)
    assert first.samples


@pytest.mark.parametrize(
    "line",
    [
        "y 2", 'x{a="2"} 2', "x{} 2", "x", "x ", "x 1_0", "x 1 2 3", "x ١", "x 1\x0b", "x 1\r2", "x  2", "xx 2", "# x",
        "inf 2",
    ],
)  # fmt: skip
def test_any_other_line_is_of_another_page(line: str) -> None:
    """A line with another head, or with more than a number, is parsed."""
    page, _ = learn_page(b"# HELP x x\nx 1\n", SeriesCache())
    assert page.read(b"# HELP x x\nx 2.5\n") == [2.5]
    assert page.read(f"# HELP x x\n{line}\n".encode()) is None
    assert page.read(b"# HELP x y\nx 1\n") is None
    assert page.read(b"# HELP x x\nx 1\nx 1\n") is None
    assert page.read(b"") is None


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("x 2 17", 2.0), ('x 2 # {a="b"} 1', 2.0), ("x NaN 17", math.nan), ("x 1_0 17", None), ("x 1\x0b 17", None),
        ("x 2 17 18", None), ("x 2 # {", None), ("x  17", 17.0), ('y{a="} "} 2 17', 2.0), ("x é 17", None),
    ],
)  # fmt: skip
def test_a_line_that_begins_as_known_is_read_as_any_other(line: str, value: float | None) -> None:
    """What follows a known head is valid there, or the line is refused as it would be without the cache."""
    cache = SeriesCache()
    learn_page(b'x 1\ny{a="} "} 1\n', cache)
    read: list[object] = []
    for known in (SeriesCache(), cache):
        try:
            page, values = learn_page(line.encode(), known)
            read.append((page.series, values.tobytes()))
            assert value is not None
            assert np.array_equal(values, [value], equal_nan=True)
        except ParseError as error:
            read.append(str(error))
            assert value is None
    assert read[0] == read[1]


LIMITED = PageLimits(max_series=3, max_labels=2, max_label_bytes=30, max_line_bytes=60)


@pytest.mark.parametrize(
    ("text", "outcome", "line", "cause"),
    [
        ("x 1\n" * 4, "too_many_series", 4, "more samples than the limit of 3 (max_series)"),
        ("\n" * 100, "too_many_series", 24, "100 lines, above the 24 that 3 samples may have"),
        ('x 1\nx{a="1",b="2",c="3"} 1', "too_many_labels", 2, "3 labels, above the limit of 2 (max_labels)"),
        (f'x{{a="{"é" * 16}"}} 1', "label_too_long", 1, "label 'a': a value of 32 bytes, above the limit of 30"),
        (f'x{{{"a" * 31}="1"}} 1', "label_too_long", 1, ": a name of 31 bytes, above the limit of 30"),
        (f"# HELP x {'y' * 60}\n", "line_too_long", 1, "a line of 69 bytes, above the limit of 60 (max_line_bytes)"),
        (f"x {'1' * 60}\n", "line_too_long", 1, "a line of 62 bytes, above the limit of 60 (max_line_bytes)"),
    ],
)
def test_what_is_beyond_a_limit_is_refused_by_its_name(text: str, outcome: str, line: int, cause: str) -> None:
    """With line, limit and setting; also when another target exposed the same under wider limits."""
    cache = SeriesCache()
    learn_page(text.encode(), cache)
    for known in (SeriesCache(), cache):
        with pytest.raises(LimitError, match=re.escape(cause)) as error:
            learn_page(text.encode(), known, LIMITED)
        assert (error.value.outcome, error.value.line) == (outcome, line)


def test_what_is_at_the_limits_is_read() -> None:
    """A value equal to the limit is allowed; after a known head as well."""
    text = f'x{{a="{"y" * 30}",b="2"}} 1\nx 1\nz {"1" * 58}\n'.encode()
    page, values = learn_page(text, SeriesCache(), LIMITED)
    again = page.read(text, LIMITED)
    assert again is not None
    assert (again.tobytes(), len(values)) == (values.tobytes(), 3)
    assert page.read(text[:-1] + b"1\n", LIMITED) is None


def test_the_cache_is_bounded() -> None:
    """A target with new label values at every scrape takes no more than its share."""
    cache = SeriesCache(most_bytes=5000)
    for number in range(100):
        page, _ = learn_page(f'# HELP x {number}\nx{{a="{number}"}} 1\ny 2\n'.encode(), cache)
    assert page.series == (Series("x", (("a", "99"),)), Series("y", ()))
    assert 1 <= sum(cache.get(f'x{{a="{number}"}} '.encode()) is not None for number in range(100)) <= 10


def test_series_that_stand_there_again_are_named() -> None:
    """Once for each time; edges of the same number are the same."""
    exposition = parse_exposition('x{a="1"} 1\nx 1\nx{a="1",} 2\ny{le="1"} 1\ny{le="1.0"} 1\nx{a="1"} 1\n')
    assert exposition.repeated == ['x{a="1"}', 'y{le="1.0"}', 'x{a="1"}']


def test_refuses_json_by_name(captures: Path) -> None:
    """TensorRT-LLM's statistics are called that, with the line, what reading them does, and where its text is."""
    message = (
        r"line 2: the body is JSON, .*: statistics of .* each read empties them .*/prometheus/metrics, which up to 1.2"
    )
    with pytest.raises(ParseError, match=message) as error:
        parse_exposition((captures / "trtllm-metrics-json-1.txt").read_bytes())
    assert (error.value.line, error.value.text) == (2, "[")


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("[]", "the body is JSON, not Prometheus text: an empty list, as TensorRT-LLM answers on /metrics when"),
        ('{"status": "ok"}', "the body is JSON, not Prometheus text$"),
        ('[{"iter": 1}]', "the body is JSON, not Prometheus text$"),
    ],
)
def test_other_json_is_called_json_alone(body: str, cause: str) -> None:
    """An empty list is what is left of the statistics; of other JSON no engine is named."""
    with pytest.raises(ParseError) as error:
        parse_exposition(body)
    assert re.match(cause, error.value.cause)


def test_reads_labels_with_their_escapes() -> None:
    """Quotes, backslashes, newlines, braces, commas and hashes in a value are the value's."""
    exposition = parse_exposition('x{b="a\\"b\\\\c\\nd",a="{,}= # 1"} 2')
    assert exposition.samples == [Sample("x", (("a", "{,}= # 1"), ("b", 'a"b\\c\nd')), 2.0)]


def test_reads_a_line_in_all_its_liberties() -> None:
    """Spaces, tabs, a comma at the end, a timestamp, Windows line ends and no end of line are allowed."""
    exposition = parse_exposition('  x { a = "1" , b="2", }\t3 1700000000000\r\ny 1e3 -12\nz{} +4')
    assert exposition.samples == [
        Sample("x", (("a", "1"), ("b", "2")), 3.0),
        Sample("y", (), 1000.0),
        Sample("z", (), 4.0),
    ]


def test_edges_have_one_text() -> None:
    """However an engine writes an edge, the series is the same; what is no number is kept."""
    edges = [
        parse_exposition(f'x_bucket{{le="{edge}"}} 1').samples[0].labels[0][1]
        for edge in ("1", "1.0", "1e0", "+Inf", "Inf", "2560", "0.005", "5e-3", "low")
    ]
    assert edges == ["1.0", "1.0", "1.0", "+Inf", "+Inf", "2560.0", "0.005", "0.005", "low"]


def test_labels_without_a_value_are_no_labels() -> None:
    """An empty label value is the same series as no label."""
    assert parse_exposition('x{a="",b="1"} 1').samples == parse_exposition('x{b="1"} 1').samples


@pytest.mark.parametrize("value", ["NaN", "nan", "+Inf", "-Inf", "Inf"])
def test_drops_and_counts_what_is_not_finite(value: str) -> None:
    """NaN and infinities never become samples, and are counted."""
    exposition = parse_exposition(f"x {value}\ny 1\n")
    assert [sample.name for sample in exposition.samples] == ["y"]
    assert exposition.dropped == 1


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ('x{a="1" 2', "labels are not closed"),
        ('x{a="1', "labels are not closed"),
        ("x{a=1} 2", "expected label="),
        ('x{a="1"b="2"} 2', "expected label="),
        ('x{a="1",a="2"} 2', "label 'a' is given twice"),
        ("x", "no value"),
        ('x{a="1"}', "no value"),
        ("x one", "'one' is not a number"),
        ("x 1_000", "'1_000' is not a number"),
        ("x ١", "is not a number"),
        ("x 1 later", "expected a timestamp"),
        ("x 1 2 3", "expected a timestamp"),
        ("1x 1", "expected a metric name"),
        ("x12", "no value"),
        ("# EOF\nx 1", "text after '# EOF'"),
    ],
)
def test_names_line_text_and_cause(line: str, cause: str) -> None:
    """A line that is no sample is refused with its number, its text and why."""
    with pytest.raises(ParseError) as error:
        parse_exposition(f"# a comment\n\nok 1\n{line}\n")
    assert error.value.line == 4 + line.count("\n")
    assert error.value.text == line.rpartition("\n")[2].strip()
    assert cause in error.value.cause
    assert str(error.value).startswith(f"line {error.value.line}: ")


def test_cuts_the_text_of_a_long_line() -> None:
    """A megabyte on one line does not become a megabyte of error."""
    with pytest.raises(ParseError) as error:
        parse_exposition('x{a="' + "y" * 2**20)
    assert len(str(error.value)) < 200


BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"x 1\n\xff", "not UTF-8"), ('x{a="é"} 1'.encode("latin-1"), "not UTF-8"),
        (b"\x1f\x8b\x00", "compressed or binary"), ("x 1".encode("utf-16-le"), "compressed or binary"),
        ("x 1".encode("utf-16"), "UTF-16, expected UTF-8"),
        (b"[]", "is JSON"), (b'{"a": 1}', "is JSON"), (b'{\n "gpuMemUsage": 7\n}', "is JSON"),
        (b'[{"iter": 1}]', "is JSON"), (b'["a", ' + b"[" * 9_999, "is JSON"),
        (b"<!DOCTYPE html>\n<html>", "is HTML"), (BOM + b"<!DOCTYPE html>\n<html>", "is HTML"),
        *((BOM + line + b"\n", "a byte order mark precedes the text") for line in (b"x 1", b"# HELP x y", b"x")),
    ],
)  # fmt: skip
def test_a_body_that_is_no_text_of_samples_is_called_what_it_is(body: bytes, cause: str) -> None:
    """JSON in any layout, a login page, a compressed or foreign body; with the line."""
    with pytest.raises(ParseError, match=cause) as error:
        parse_exposition(body)
    assert error.value.line == (2 if body.startswith(b"x 1\n") else 1)


def test_finds_a_name_in_either_spelling() -> None:
    """A colon that a pipeline turned into an underscore is the same name; both at once count once."""
    exposition = parse_exposition("vllm_x 1\nvllm:x 1\nvllm:h_count 2\n")
    assert exposition.has("vllm:x")
    assert exposition.has("vllm:h")
    assert not exposition.has("vllm:y")
    assert [sample.name for sample in exposition.by_name["vllm_x"]] == ["vllm_x"]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True),
            st.dictionaries(
                st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(lambda name: name != "le"),
                st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1),
            ),
            st.floats(allow_nan=False, allow_infinity=False),
        )
    )
)
def test_reads_back_what_was_written(series: list[tuple[str, dict[str, str], float]]) -> None:
    """Whatever its name, label values and number, a written sample is read back equal."""
    samples = [Sample(name, make_labels(labels), value) for name, labels, value in series]
    text = "".join(f"{format_series(name, labels)} {value!r}\n" for name, labels, value in samples)
    assert parse_exposition(text.encode()).samples == samples


@given(st.text())
def test_never_fails_otherwise(text: str) -> None:
    """Any text is an exposition or a ParseError."""
    with contextlib.suppress(ParseError):
        assert isinstance(parse_exposition(text), Exposition)
