from __future__ import annotations

import contextlib
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from servescope.collector.parse import Exposition, ParseError, parse_exposition
from servescope.samples import Labels, Sample, format_edge, format_series, make_labels


def parse_as_prometheus_client(text: str, types: dict[str, str]) -> Counter[tuple[str, Labels, float]]:
    """What prometheus_client reads, with the names as exposed and with canonical edges."""
    samples: Counter[tuple[str, Labels, float]] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # It appends _total to every counter; the name that was declared is the one exposed.
            name = sample.name
            if family.type == "counter" and family.name in types:
                name = name.removesuffix("_total")
            labels = dict(sample.labels)
            if "le" in labels:
                labels["le"] = format_edge(float(labels["le"]))
            if math.isfinite(sample.value):
                samples[name, make_labels(labels), float(sample.value)] += 1
    return samples


def read_captures(reference: Path) -> list[Path]:
    return sorted((reference / "captures").glob("*.txt"))


@pytest.mark.reference
def test_equals_prometheus_client_on_every_capture(reference: Path) -> None:
    """Every captured Prometheus text reads as prometheus_client reads it: names, labels, values, how often."""
    compared = 0
    for path in read_captures(reference):
        if "json" in path.name:
            continue
        text = path.read_text()
        exposition = parse_exposition(text)
        expected = parse_as_prometheus_client(text, exposition.types)
        assert Counter(map(tuple, exposition.samples)) == expected, path.name
        compared += 1
    assert compared >= 10


@pytest.mark.reference
def test_refuses_json_by_name(reference: Path) -> None:
    """TensorRT-LLM's JSON statistics are called JSON, with the line, and with where its Prometheus text is."""
    with pytest.raises(ParseError, match=r"line 2: the body is JSON.*/prometheus/metrics") as error:
        parse_exposition((reference / "captures" / "trtllm-metrics-json-1.txt").read_bytes())
    assert (error.value.line, error.value.text) == (2, "[")


@pytest.mark.parametrize("body", ["[]", '{"a": 1}', '{\n "gpuMemUsage": 7\n}', '[{"iter": 1}]'])
def test_json_in_any_layout_is_called_json(body: str) -> None:
    """JSON is recognised on one line or on many."""
    with pytest.raises(ParseError, match="is JSON"):
        parse_exposition(body)


def test_html_is_called_html() -> None:
    """A login page says what it is."""
    with pytest.raises(ParseError, match="is HTML"):
        parse_exposition("<!DOCTYPE html>\n<html>")


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


def test_reads_openmetrics() -> None:
    """Exemplars, units, decimal timestamps, `_created` and `# EOF` are read as what they are."""
    exposition = parse_exposition(
        "# TYPE x counter\n# UNIT x seconds\n# HELP x of a \\\\ b\\nc\n"
        'x_total{a="1"} 5.0 1700000000.25 # {trace_id="b}c"} 0.5 1700000000.1\nx_created{a="1"} 1.7e+09\n'
        'h_bucket{le="1"} 2 # {} 0.7\n# EOF\n'
    )
    assert [format_series(sample.name, sample.labels) for sample in exposition.samples] == [
        'x_total{a="1"}',
        'x_created{a="1"}',
        'h_bucket{le="1.0"}',
    ]
    assert exposition.types == {"x": "counter"}
    assert exposition.helps == {"x": "of a \\ b\nc"}


def test_edges_have_one_text() -> None:
    """However an engine writes an edge, it is the same series afterwards; what is no number stays."""
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
        ('x{a="1",a="2"} 2', "label 'a' stands twice"),
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


@pytest.mark.parametrize(("body", "cause"), [(b"x 1\n\xff", "not UTF-8"), (b"\x1f\x8b\x00", "compressed or binary")])
def test_refuses_what_is_not_text(body: bytes, cause: str) -> None:
    """A compressed or foreign body is called that, with the line."""
    with pytest.raises(ParseError, match=cause) as error:
        parse_exposition(body)
    assert error.value.line == body.count(b"\n") + 1


def test_finds_a_name_in_either_spelling() -> None:
    """A colon that a pipeline turned into an underscore is the same name; both at once count once."""
    exposition = parse_exposition("vllm_x 1\nvllm:x 1\nvllm:h_count 2\n")
    assert exposition.has("vllm:x")
    assert exposition.has("vllm:h")
    assert not exposition.has("vllm:y")
    assert [sample.name for sample in exposition.by_name["vllm_x"]] == ["vllm_x"]


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
    """Whatever the names, label values and numbers, a written sample is read as it was."""
    samples = [Sample(name, make_labels(labels), value) for name, labels, value in series]
    text = "".join(f"{format_series(name, labels)} {value!r}\n" for name, labels, value in samples)
    assert parse_exposition(text.encode()).samples == samples


@given(st.text())
def test_never_fails_otherwise(text: str) -> None:
    """Any text is an exposition or a ParseError."""
    with contextlib.suppress(ParseError):
        assert isinstance(parse_exposition(text), Exposition)
