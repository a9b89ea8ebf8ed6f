"""A source's label for tenants or priorities as the contract's segment: bounded, stable, and only where it can be."""

from __future__ import annotations

from collections.abc import Sequence

from servescope.contract.identity import Identity
from servescope.contract.metrics import MOST_SEGMENTS
from servescope.sources.inspection import inspect
from servescope.sources.parse import parse_exposition
from servescope.sources.reader import Reader

IDENTITY = Identity("m", "chat", "v1", replica="r0")


def page(tenants: Sequence[str], count: int = 2) -> bytes:
    """What an engine like vLLM shows of tenants that have had so many requests each."""
    lines = [
        'vllm:num_requests_running{engine="0"} 2', 'vllm:num_requests_waiting{engine="0"} 3',
        'vllm:kv_cache_usage_perc{engine="0"} 0.5', 'vllm:prompt_tokens_total{engine="0"} 100',
        'vllm:generation_tokens_total{engine="0",priority="p0"} 10',
    ]  # fmt: skip
    for tenant in tenants:
        labels = f'engine="0",priority="{tenant}"'
        lines += [
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {count}',
            f'vllm:time_to_first_token_seconds_bucket{{{labels},le="0.5"}} {count}',
            f'vllm:time_to_first_token_seconds_bucket{{{labels},le="+Inf"}} {count}',
            f"vllm:time_to_first_token_seconds_count{{{labels}}} {count}",
            f"vllm:time_to_first_token_seconds_sum{{{labels}}} {0.1 * count}",
        ]
    return "\n".join([*lines, ""]).encode()


def by_segment(reader: Reader, body: bytes, name: str) -> dict[str | None, float]:
    """The sums of a sample over the series of each segment, without those that are 0."""
    found: dict[str | None, float] = {}
    for sample in reader.read(body).snapshot.samples():
        if sample.name == name:
            segment = dict(sample.labels).get("segment")
            found[segment] = found.get(segment, 0.0) + sample.value
    return {segment: value for segment, value in found.items() if value}


def test_the_named_label_is_the_segment_of_metrics_that_can_have_one() -> None:
    """Other metrics keep the native label, and without a name so do all."""
    named, plain = Reader(IDENTITY, "vllm", segment_label="priority"), Reader(IDENTITY, "vllm")
    body = page(["gold", "free"])

    assert by_segment(named, body, "time_to_first_token_seconds_count") == {"gold": 2.0, "free": 2.0}
    assert by_segment(named, body, "requests_total") == {"gold": 2.0, "free": 2.0}
    assert by_segment(plain, body, "time_to_first_token_seconds_count") == {None: 4.0}
    (tokens,) = [each for each in named.read(body).snapshot.samples() if each.name == "output_tokens_total"]
    assert ("priority", "p0") in tokens.labels


def test_the_fifty_first_value_and_all_after_it_are_other() -> None:
    """Those that were there first keep their names, whatever order later pages have."""
    reader = Reader(IDENTITY, "vllm", segment_label="priority")
    tenants = [f"t{number}" for number in range(MOST_SEGMENTS)]
    by_segment(reader, page(tenants), "requests_total")
    found = by_segment(reader, page(["a", "b", *reversed(tenants)]), "requests_total")

    assert found == {"other": 4.0, **dict.fromkeys(tenants, 2.0)}


def test_a_label_named_segment_needs_no_configuration_and_gives_way_to_one() -> None:
    body = page(["gold"]).replace(b'priority="gold"', b'priority="gold",segment="eu"')

    assert by_segment(Reader(IDENTITY, "vllm"), body, "time_to_first_token_seconds_count") == {"eu": 2.0}
    named = Reader(IDENTITY, "vllm", segment_label="priority")
    assert by_segment(named, body, "time_to_first_token_seconds_count") == {"gold": 2.0}


def test_inspect_says_which_segments_it_finds() -> None:
    expositions = [parse_exposition(page(["gold", "free"]))]

    def notes(label: str) -> tuple[str, ...]:
        return inspect(expositions, subject="x", source_name="vllm", segment_label=label).notes

    assert "requests are kept apart by the label 'priority', in 2 segments: 'free', 'gold'" in notes("priority")
    assert "no series that can have segments has the label 'tenant'" in notes("tenant")
    assert not any("segments" in each for each in notes("segment"))
