"""Why a value is 0 or absent, as `servescope inspect` prints it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.inspecting import inspect_as_json, rows_by_name

# An idle vLLM of 2026; what is asked of it is added.
IDLE = """
vllm:num_requests_running{engine="0"} 0
vllm:num_requests_waiting{engine="0"} 0
vllm:kv_cache_usage_perc{engine="0"} 0
vllm:prefix_cache_queries_total{engine="0"} 0
vllm:prefix_cache_hits_total{engine="0"} 0
vllm:inter_token_latency_seconds_count{engine="0"} 0
vllm:prompt_tokens_total{engine="0"} 0
vllm:prompt_tokens_cached_total{engine="0"} 0
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 0
vllm:generation_tokens_total{engine="0"} 0
vllm:num_preemptions_total{engine="0"} 0
vllm:request_success_total{engine="0",finished_reason="stop"} 0
"""
SERVED = IDLE.replace('prompt_tokens_total{engine="0"} 0', 'prompt_tokens_total{engine="0"} 312').replace(
    'generation_tokens_total{engine="0"} 0', 'generation_tokens_total{engine="0"} 384'
)
SETUP = 'vllm:cache_config_info{{block_size="{block}",enable_prefix_caching="{switch}",engine="{engine}"}} 1\n'
BLOCK = SETUP.format(block=128, switch="True", engine=0)
WHERE = 'vllm:cache_config_info has block_size="128"'


def prompts(*counts: int) -> str:
    """A histogram of prompts with these counts up to 100, up to 200, and in total."""
    name = "vllm:request_prompt_tokens"
    edges = zip(("100", "200", "+Inf"), counts, strict=True)
    return "".join(f'{name}_bucket{{le="{edge}"}} {count}\n' for edge, count in edges) + (
        f"{name}_sum 312\n{name}_count {counts[-1]}\n"
    )


@pytest.fixture
def rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """What `servescope inspect` prints of pages, by name."""

    def read(*pages: str) -> dict[str, dict[str, Any]]:
        names = []
        for number, page in enumerate(pages):
            (tmp_path / f"{number}.txt").write_text(page)
            names.append(str(tmp_path / f"{number}.txt"))
        return rows_by_name(inspect_as_json(capsys, *names))

    return read


def test_nothing_is_reused_of_prompts_shorter_than_a_block(rows: Any) -> None:
    """Where the page shows both, in the metric and in the figure; the value stays 0."""
    found = rows(SERVED + BLOCK + prompts(6, 6, 6))

    for name in ("kv_cache_hit_rate", "kv_cache_reused_tokens_total"):
        assert found[name]["value"] == 0
        assert found[name]["reason"] == (
            "no request that ended since its process started had a prompt of more than 100 tokens, "
            f"and a block of the cache has 128: {WHERE}"
        )


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (BLOCK + prompts(5, 6, 6), f"; a block of the cache has 128: {WHERE}"),
        (BLOCK + prompts(5, 5, 6), f"; a block of the cache has 128: {WHERE}"),
        (BLOCK, f"; a block of the cache has 128: {WHERE}"),
        (prompts(6, 6, 6), ""),
        # Two engines that are set up in two ways.
        (BLOCK + SETUP.format(block=16, switch="True", engine=1) + prompts(6, 6, 6), ""),
        (SETUP.format(block="None", switch="True", engine=0) + prompts(6, 6, 6), ""),
    ],
)
def test_no_cause_is_claimed_that_the_page_does_not_show(rows: Any, page: str, reason: str) -> None:
    """A longer prompt, a page without lengths or without a block: nothing was reused, and that is all."""
    found = rows(SERVED + page)["kv_cache_hit_rate"]

    assert found["reason"] == f"no token of a prompt was reused since its process started{reason}"


@pytest.mark.parametrize("reused", [0, 64])
def test_a_cache_that_is_off_is_named(rows: Any, reused: int) -> None:
    """Once it served something; not where it reused something all the same."""
    switched = SETUP.format(block=16, switch="False", engine=0)
    page = SERVED.replace(
        'prompt_tokens_cached_total{engine="0"} 0', f'prompt_tokens_cached_total{{engine="0"}} {reused}'
    )
    found = rows(page + switched + prompts(6, 6, 6))["kv_cache_hit_rate"]

    is_off = 'the prefix cache is off: vllm:cache_config_info has enable_prefix_caching="False"'
    assert found["reason"] == (None if reused else is_off)


def test_a_release_that_looks_nothing_up_while_its_cache_is_off_says_so(rows: Any) -> None:
    """Its hit rate has nothing to be divided by, which is no hit rate of 0."""
    page = re.sub(r"vllm:prompt_tokens_(cached|by_source)_total.*\n", "", SERVED)
    found = rows(page + SETUP.format(block=16, switch="False", engine=0))["kv_cache_hit_rate"]

    assert found["value"] is None
    assert "nothing to divide by, kv_cache_eligible_tokens_total is 0" in found["reason"]
    assert "the prefix cache is off: vllm:cache_config_info has" in found["reason"]


def test_before_the_first_request_that_is_the_reason(rows: Any) -> None:
    """Of counters, of what is divided by them, and of means; how the cache is set up explains nothing then."""
    found = rows(IDLE + SETUP.format(block=128, switch="False", engine=0))
    idle = "no request has ended and no token was counted since its process started"

    for name in ("requests_total", "preemptions_total", "kv_cache_reused_tokens_total"):
        assert (found[name]["value"], found[name]["reason"].partition(";")[0]) == (0, idle), name
    for name in ("kv_cache_hit_rate", "request_error_share", "inter_token_latency_p95"):
        assert found[name]["value"] is None
        assert idle in found[name]["reason"], name
    # A gauge is 0 now, and not since a start.
    assert idle not in str(found["queued_requests"]["reason"])


def test_a_counter_that_never_moved_is_named(rows: Any) -> None:
    """Beside others that did; one that moved has no such reason."""
    found = rows(SERVED)

    assert found["preemptions_total"]["reason"] == "none since its process started"
    assert "since its process started" not in str(found["output_tokens_total"]["reason"])


@pytest.mark.parametrize(
    ("drafted", "value", "reason"),
    [(0, None, "no token was drafted since its process started"), (40, 0, "no drafted token was accepted since its")],
)
def test_speculation_without_drafts_is_not_one_of_which_none_is_accepted(
    rows: Any, drafted: int, value: float | None, reason: str
) -> None:
    """The first has no rate, the second a rate of 0."""
    page = (
        f"vllm:spec_decode_num_drafts_total {drafted}\nvllm:spec_decode_num_draft_tokens_total {drafted}\n"
        "vllm:spec_decode_num_accepted_tokens_total 0\n"
    )
    found = rows(SERVED + page)["speculation_rate"]

    assert found["value"] == value
    assert reason in found["reason"]


def test_between_two_pages_the_time_is_that_between_them(rows: Any) -> None:
    """A counter that moved earlier did not move between them."""
    page = SERVED.replace('num_preemptions_total{engine="0"} 0', 'num_preemptions_total{engine="0"} 7')
    found = rows(page, page.replace("384", "400"))

    assert found["preemptions_total"]["reason"] == "none between the two expositions"


@pytest.mark.reference
@pytest.mark.parametrize(
    ("capture", "value", "reason"),
    [
        ("vllm-0.32.0-1", 0.0, f"had a prompt of more than 100 tokens, and a block of the cache has 128: {WHERE}"),
        ("vllm-0.13era-1", None, "the prefix cache is off: vllm:cache_config_info has enable_prefix_caching"),
        ("sglang-0.5.7era-1", 0.0, "no token of a prompt was reused since its process started"),
    ],
)
def test_zeros_of_real_engines(
    reference: Path, capsys: pytest.CaptureFixture[str], capture: str, value: float | None, reason: str
) -> None:
    """Short prompts, a cache that is off, and one of which the page shows no more."""
    found = rows_by_name(inspect_as_json(capsys, str(reference / "captures" / f"{capture}.txt")))["kv_cache_hit_rate"]

    assert found["value"] == value
    assert reason in found["reason"]
