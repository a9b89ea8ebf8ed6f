"""SGLang's page: two captured releases, and pages with the names and labels of 0.5.23."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from servescope.sources.identification import identify
from servescope.sources.parse import parse_exposition
from servescope.sources.translate import Translation
from tests.sources.support.translations import read_capture, show, total, translate_identified
from tests.support.inspecting import inspect_as_json, rows_by_name

SCHEDULER = 'engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
TOKENIZER = 'engine_type="unified",model_name="tiny"'
GAUGES = ("num_running_reqs", "num_queue_reqs", "num_grammar_queue_reqs", "token_usage", "decode_sum_seq_lens")
MODES = ("input", "device_hit", "host_hit", "storage_hit")
EFFECTIVE = "prefill_effective_tokens_total"


def line(name: str, value: float, labels: str = SCHEDULER) -> str:
    return f"sglang:{name}{{{labels}}} {value}\n"


IDLE = "".join(
    [*(line(name, 0) for name in GAUGES), *(line(EFFECTIVE, 0, f'{SCHEDULER},mode="{mode}"') for mode in MODES)]
)
"""A page of 0.5.23 before the first request."""


def ranked(text: str, **ranks: int) -> str:
    """The page of a scheduler as another rank writes it."""
    for rank, number in ranks.items():
        label = f'{rank}_rank="{number}"'
        text = re.sub(rf'{rank}_rank="\d+"', label, text) if rank != "dp" else text.replace("{", f"{{{label},")
    return text


def served(*, labels: str = TOKENIZER, is_streaming: str = "true", prompt: int = 100) -> str:
    """What the tokenizer has counted after a request of so many tokens and an answer of 11."""
    own = f'{labels},is_streaming="{is_streaming}"'
    return (
        line("prompt_tokens_total", prompt, own)
        + line("generation_tokens_total", 11, own)
        + line("num_requests_total", 1, own)
        + histogram("time_to_first_token_seconds", 0.5, own)
        + histogram("e2e_request_latency_seconds", 1.5, own)
        + histogram("request_time_per_output_token_seconds", 0.1, own)
    )


def measured(*, labels: str = TOKENIZER) -> str:
    """What it has counted without regard to streaming."""
    return (
        histogram("inter_token_latency_seconds", 1.0, labels, count=10)
        + histogram("prompt_tokens_histogram", 100, labels)
        + histogram("generation_tokens_histogram", 11, labels)
    )


def histogram(name: str, total: float, labels: str, count: int = 1) -> str:
    bucket = line(f"{name}_bucket", count, f'{labels},le="+Inf"')
    return line(f"{name}_sum", total, labels) + line(f"{name}_count", count, labels) + bucket


def translated(*texts: str) -> Translation:
    return translate_identified(parse_exposition("".join(texts)))


def values(found: Translation, *names: str) -> list[float]:
    return [total(found, name) for name in names]


def read_native(captures: Path, capture: str) -> dict[str, float]:
    """The values of a capture by name and, where it has one, `mode` or `le`; read without a parser or a map."""
    text = (captures / f"{capture}.txt").read_text()
    found = {}
    for name, labels, value in re.findall(r"^sglang:(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        own = re.search(r'(?:mode|le)="([^"]*)"', labels)
        found[f"{name} {own[1]}" if own else name] = float(value)
    return found


def plain(captures: Path, capture: str) -> str:
    """The page of a server that has had no cache hit and no error, and shows nothing per request."""
    page = (captures / f"{capture}.txt").read_text()
    left_out = re.compile(r"cached_tokens|num_aborted|http_responses|tokens_histogram|request_time_per")
    return "".join(each for each in page.splitlines(keepends=True) if not left_out.search(each))


COUNTED = {
    "input_tokens_total": "prompt_tokens_total",
    "output_tokens_total": "generation_tokens_total",
    "time_to_first_token_seconds_sum": "time_to_first_token_seconds_sum",
    "time_to_first_token_seconds_count": "time_to_first_token_seconds_count",
    "request_duration_seconds_sum": "e2e_request_latency_seconds_sum",
    "kv_cache_usage": "token_usage",
    "kv_cache_eligible_tokens_total": "prompt_tokens_total",
}


@pytest.mark.parametrize(
    ("capture", "gaps", "requests"),
    [
        ("sglang-0.5.7era-1", "inter_token_latency_seconds", "num_requests_total"),
        ("sglang-0.4.x-1", "time_per_output_token_seconds", "e2e_request_latency_seconds_count"),
    ],
)
def test_captures_have_the_values_of_their_lines(captures: Path, capture: str, gaps: str, requests: str) -> None:
    """Tokens, latencies and the cache are those of the page; the old name of the gaps is not taken for a mean."""
    native = read_native(captures, capture)
    found = translated(plain(captures, capture))

    for name, its in COUNTED.items():
        assert total(found, name) == native[its], name
    for part in ("sum", "count"):
        assert total(found, f"inter_token_latency_seconds_{part}") == native[f"{gaps}_{part}"]
    assert total(found, "decode_seconds_total") == native[f"{gaps}_sum"]
    bucket = "time_to_first_token_seconds_bucket"
    edges = [name.partition(" ")[2] for name in native if name.startswith(bucket)]
    assert len(edges) > 5
    assert [total(found, bucket, le=edge) for edge in edges] == [native[f"{bucket} {edge}"] for edge in edges]
    assert show(found, "requests_total") == {'requests_total{outcome="ok"}': native[requests]}
    assert found.coverage["time_per_output_token_seconds"].status == "impossible"
    queues = [value for name, value in native.items() if re.fullmatch(r"num_(\w+_)?queue_reqs", name)]
    assert total(found, "concurrent_requests") == native["num_running_reqs"] + sum(queues)


def test_a_loaded_server_has_what_waits_apart_from_what_runs(captures: Path) -> None:
    """In the older capture 162 run and 2826 wait; in the written page every queue has one."""
    found = translate_identified(read_capture(captures, "sglang-0.4.x-1"))
    expected = {"pages": [5, 7, 0.5], "captures": [2826, 2988, 0.28]}[captures.name]
    assert values(found, "queued_requests", "concurrent_requests", "kv_cache_usage") == expected


def test_a_page_without_cached_tokens_has_reused_none(captures: Path) -> None:
    """0.5.7 exposes them from the first hit on, so they are 0 before; a release that may lack them has no hit rate."""
    fresh = translated(plain(captures, "sglang-0.5.7era-1"))
    prompts = {"pages": 384, "captures": 33}[captures.name]
    assert values(fresh, "kv_cache_eligible_tokens_total", "kv_cache_reused_tokens_total") == [prompts, 0]
    old = translated(plain(captures, "sglang-0.4.x-1"))
    assert old.coverage["kv_cache_reused_tokens_total"].status == "impossible"
    assert show(old, "kv_cache_reused") == {}


def test_inspect_reads_a_capture(captures: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Source, versions and figures; a rate of speculation that is a gauge is none, and says so."""
    (tmp_path / "page.txt").write_text(plain(captures, "sglang-0.5.7era-1"))
    document = inspect_as_json(capsys, str(tmp_path / "page.txt"))
    rows = rows_by_name(document)

    assert (document["source"], document["versions"]) == ("sglang", "0.5.7 to about 0.5.9")
    assert rows["kv_cache_hit_rate"]["value"] == 0
    mean = {"pages": 320 / 40, "captures": 1.5573771}[captures.name]
    assert rows["time_to_first_token_mean"]["value"] == pytest.approx(mean)
    assert rows["request_error_share"]["reason"].startswith("no data: no such series of requests_total;")
    assert rows["speculation_rate"]["value"] is None
    assert "gauge" in rows["speculation_rate"]["reason"]
    assert "--collect-tokens-histogram" in rows["tps_per_request"]["reason"]


def test_an_idle_server_is_identified_with_zeros() -> None:
    """Before its first request, as the very series that it exposes later: no first count is lost."""
    assert identify(parse_exposition(IDLE)).versions == "newer than 0.5.12, read up to 0.5.23"
    answers = 'sglang:http_responses_total{endpoint="/health",method="GET",status_code="200"} 1\n'
    fresh = show(translated(IDLE, answers))
    used = show(translated(IDLE, answers, served(), served(is_streaming="false")))

    assert set(fresh.values()) == {0}
    assert {name for name in fresh if "bucket" not in name} <= set(used)
    assert {"preemptions_total", "kv_cache_reused_tokens_total", "time_per_output_token_seconds_count"} <= set(fresh)
    assert {name for name in used if "_total" in name} <= set(fresh)
    assert used['requests_total{outcome="ok"}'] == 2
    # Half a minute passes before the first gauges of a scheduler.
    assert identify(parse_exposition(line("max_total_num_tokens", 92962))).source is not None


def test_streamed_answers_and_others_are_one_series() -> None:
    """Of both the tokens, the requests and the latencies."""
    found = translated(IDLE, served(), served(is_streaming="false", prompt=50))

    assert show(found, "output_tokens_total") == {"output_tokens_total": 22}
    assert values(found, "input_tokens_total", "time_per_output_token_seconds_count") == [150, 2]
    assert values(found, "time_to_first_token_seconds_sum", "request_duration_seconds_count") == [1, 2]


def test_speed_is_of_tokens_after_the_first() -> None:
    """Ten of them in a second."""
    found = translated(IDLE, served(), measured())
    first, tokens, seconds = values(
        found, "output_tokens_per_request_count", "output_tokens_per_request_sum", "decode_seconds_total"
    )
    assert (tokens - first) / seconds == 10


def test_an_answer_of_the_server_is_an_outcome_by_its_code() -> None:
    """Of completions alone; a refusal is 429 or 503, an unknown failure an error."""
    codes = {"200": 64, "400": 1, "422": 2, "429": 4, "503": 8, "500": 16, "599": 32}
    answers = "".join(
        f'sglang:http_responses_total{{endpoint="{endpoint}",method="POST",status_code="{code}"}} {count}\n'
        for endpoint in ("/v1/chat/completions", "/generate", "/metrics")
        for code, count in codes.items()
    )
    shown = show(
        translated(IDLE, served(), line("num_aborted_requests_total", 5, TOKENIZER), answers), "requests_total"
    )

    assert shown == {
        'requests_total{outcome="ok"}': 1,
        'requests_total{outcome="client_abort"}': 5,
        'requests_total{outcome="client_error"}': 2 * 3,
        'requests_total{outcome="rejected"}': 2 * 12,
        'requests_total{outcome="error"}': 2 * 48,
    }


def test_sources_of_cached_tokens_are_added_up() -> None:
    """Each token has one source; where the schedulers count hits themselves, these are used alone."""
    sources = "".join(
        line("cached_tokens_total", count, f'{TOKENIZER},cache_source="{source}"')
        for source, count in (("device", 30), ("host", 4), ("storage", 2), ("total", 1))
    )
    older = IDLE.partition(f"sglang:{EFFECTIVE}")[0]
    hits = "".join(
        line(EFFECTIVE, count, f'{SCHEDULER},mode="{mode}"') for mode, count in zip(MODES, (60, 30, 8, 2), strict=True)
    )
    pair = ("kv_cache_eligible_tokens_total", "kv_cache_reused_tokens_total")

    assert values(translated(older, served(), sources), *pair) == [100, 37]
    assert show(translated(older, served(), sources), "kv_cache_reused") == {"kv_cache_reused_tokens_total": 37}
    assert values(translated(older, hits, served(), sources), *pair) == [100, 40]
    assert show(translated(older, hits, served(), sources), "kv_cache_reused") == {"kv_cache_reused_tokens_total": 40}


BUSY = (
    line("num_running_reqs", 8)
    + line("num_queue_reqs", 4)
    + line("num_grammar_queue_reqs", 2)
    + line("token_usage", 0.5)
    + line("decode_sum_seq_lens", 900)
    + line("num_retracted_requests_total", 3)
    + "".join(line(EFFECTIVE, 25, f'{SCHEDULER},mode="{mode}"') for mode in MODES)
)
BY_RANK = (
    "concurrent_requests", "queued_requests", "preemptions_total", "kv_cache_eligible_tokens_total",
    "kv_cache_reused_tokens_total",
)  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "engines"),
    [
        ([{"tp": 0}], 1),
        ([{"tp": rank} for rank in range(16)], 1),
        ([{"tp": 10}, {"tp": 9}], 1),
        ([{"pp": stage} for stage in range(4)], 1),
        ([{"tp": rank, "moe_ep": rank, "pp": stage} for rank in range(2) for stage in range(2)], 1),
        ([{"dp": rank} for rank in range(2)], 2),
        ([{"dp": rank // 2, "tp": rank, "moe_ep": rank} for rank in range(4)], 2),
    ],
    ids=["one", "tensor", "two digits", "pipeline", "tensor, expert and pipeline", "data", "data attention"],
)
def test_ranks_that_repeat_one_another_count_once(ranks: Iterable[dict[str, int]], engines: int) -> None:
    """Each data-parallel rank is an engine of its own; those within it report the same."""
    found = translated(*(ranked(BUSY, **each) for each in ranks))

    assert values(found, *BY_RANK) == [engines * value for value in (14, 6, 3, 100, 75)]
    assert list(show(found, "kv_cache_usage").values()) == [0.5] * engines
    assert show(found, "preemptions_total") == {"preemptions_total": 3 * engines}


def test_of_ranks_the_lowest_is_read() -> None:
    """By number, whatever their order on the page: 9 before 10."""
    found = translated(
        *(ranked(line("num_running_reqs", rank) + line("num_queue_reqs", 0), tp=rank) for rank in (10, 9, 11))
    )
    assert values(found, "concurrent_requests") == [9]


def test_the_total_of_priorities_is_read_alone() -> None:
    """With priority scheduling a gauge of priority "" is the sum of those of the others; counters are added."""
    by_priority = "".join(
        line(name, value, f'{SCHEDULER},priority="{priority}"')
        for priority in ("", "1", "2")
        for name, value in {"num_running_reqs": 8, "num_queue_reqs": 6, "token_usage": 0.5}.items()
    )
    requests = "".join(served(labels=f'{TOKENIZER},priority="{priority}"') for priority in ("1", "2"))
    found = translated(by_priority, requests)

    assert values(found, "concurrent_requests", "queued_requests", "kv_cache_usage") == [14, 6, 0.5]
    assert show(found, "input_tokens_total") == {"input_tokens_total": 200}


QUEUES = {
    "num_prefill_bootstrap_queue_reqs": 1,
    "num_prefill_inflight_queue_reqs": 2,
    "num_decode_prealloc_queue_reqs": 4,
    "num_decode_transfer_queue_reqs": 8,
    "num_decode_host_receive_queue_reqs": 16,
}


def test_queues_of_disaggregation_are_queues() -> None:
    """All but that of KV on its way, and none twice: those received by the host are among those transferred."""
    found = translated(BUSY, *(line(name, count) for name, count in QUEUES.items()))
    older = translated(BUSY, line("num_prefill_prealloc_queue_reqs", 1))

    assert values(found, "queued_requests", "concurrent_requests", "kv_transfers_pending") == [6 + 13, 14 + 15, 2]
    assert values(older, "queued_requests") == [7]


def test_a_disaggregated_request_is_counted_by_one_of_its_workers() -> None:
    """Requests, tokens and latencies by the one that decodes, cached tokens by the one that prefills."""
    prefill, decode = (
        translated(
            BUSY.replace("unified", role),
            served(labels=TOKENIZER.replace("unified", role)),
            line("num_aborted_requests_total", 1, TOKENIZER.replace("unified", role)),
        )
        for role in ("prefill", "decode")
    )
    once = (
        "requests_total", "input_tokens_total", "output_tokens_total", "request_duration_seconds_count",
        "time_to_first_token_seconds_count", "time_per_output_token_seconds_count",
    )  # fmt: skip

    assert [sum(show(prefill, name).values()) for name in once] == [0] * len(once)
    assert values(decode, *once) == [2, 100, 11, 1, 1, 1]
    assert values(prefill, *BY_RANK[3:]) == [100, 75]
    assert values(decode, *BY_RANK[3:]) == [0, 0]


def test_speculation_counts_drafts_and_has_no_rate() -> None:
    """The gauge of the last interval feeds nothing, whatever it is."""
    found = translated(IDLE, served(), line("spec_accept_rate", 0.9), line("spec_verify_calls_total", 7, TOKENIZER))

    assert values(found, "spec_decode_num_drafts_total") == [7]
    assert "spec_decode_num_accepted_tokens_total" not in {sample.name for sample in found.samples}
    assert translated(IDLE).coverage["spec_decode_num_drafts_total"].status == "impossible"
