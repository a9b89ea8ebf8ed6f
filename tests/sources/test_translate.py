from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, OUTCOMES, PROCESS_RATIOS
from servescope.exposition.rendering import render
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.router import RouterInstruments
from servescope.sources.map_files import load_sources, read_source
from servescope.sources.maps import Source
from servescope.sources.parse import parse_exposition
from servescope.sources.translate import MOST_FIRST_USES, translate
from tests.sources.support.translations import IDENTITY, read_capture, show, total, translate_identified
from tests.support.captures import OF_EACH_ERA

VLLM = """
vllm:num_requests_running{engine="0",model_name="tiny"} 2
vllm:num_requests_waiting{engine="0",model_name="tiny"} 3
vllm:generation_tokens_total{engine="0",model_name="tiny"} 10
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 40
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 20
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 100
vllm:inter_token_latency_seconds_sum{engine="0",model_name="tiny"} 1
vllm:inter_token_latency_seconds_count{engine="0",model_name="tiny"} 4
"""

FRONTEND = """
dynamo_frontend_disconnected_clients 0
dynamo_frontend_event_loop_stall_total 0
dynamo_frontend_model_context_length{model="tiny"} 4096
dynamo_component_router_kv_hit_rate_sum{router_id="1"} 0
dynamo_component_router_kv_hit_rate_count{router_id="1"} 0
"""


def map_of(metric: str, body: str) -> Source:
    """A source whose only mapped metric is one, by the TOML given."""
    missing = "".join(
        f'[default.{component}]\nstatus = "elsewhere"\nreason = "there"\n'
        for component in ("engine", "router", "autoscaler", "process")
    )
    head = 'title = "X"\ncovers = "X"\nevidence = "run"\nlayer = "engine"\n[identify]\nall = ["x"]\n'
    return read_source("x.toml", f"{head}{missing}[metrics.{metric}]\n{body}\n")


def test_vllm_0_32_counts_what_its_client_saw(captures: Path) -> None:
    """Of the capture six requests, 312 tokens in and 384 out, every draft token accepted, nothing cached: a real 0."""
    found = translate_identified(read_capture(captures, "vllm-0.32.0-1"))
    tokens, requests, truncated, drafted, reused, gaps, speed = {
        "pages": (384, 40, 0, 384, 384, 40, (40_000 - 40) / 400),
        "captures": (312, 6, 6, 288, 0, 96, 879.7),
    }[captures.name]
    assert total(found, "input_tokens_total") == tokens
    assert total(found, "output_tokens_total") == 384
    assert total(found, "requests_total", outcome="ok") == requests
    assert total(found, "answers_truncated_total") == truncated
    assert total(found, "spec_decode_num_draft_tokens_total") == drafted
    assert total(found, "spec_decode_num_accepted_tokens_total") == drafted
    assert total(found, "kv_cache_reused_tokens_total") == reused
    assert total(found, "kv_cache_eligible_tokens_total") == tokens
    assert total(found, "inter_token_latency_seconds_count") == gaps
    sums = total(found, "output_tokens_per_request_sum") - total(found, "output_tokens_per_request_count")
    assert sums / total(found, "decode_seconds_total") == pytest.approx(speed, abs=0.05)


def test_vllm_0_13_has_its_local_cache_only(captures: Path) -> None:
    """Without cached prompt tokens the pair is hits and queries, both 0 in the capture; said to be approximate."""
    page = (captures / "vllm-0.13era-1.txt").read_text()
    # As of a server that does not speculate, behind another one, which is the one that refuses.
    left_out = re.compile("spec_decode|admission_rejections|http_requests")
    page = "".join(line for line in page.splitlines(keepends=True) if not left_out.search(line))
    found = translate_identified(parse_exposition(page))
    tokens, generated, eligible, requests = {"pages": (384, 384, 384, 40), "captures": (66, 600, 0, 2)}[captures.name]
    assert total(found, "input_tokens_total") == tokens
    assert total(found, "output_tokens_total") == generated
    assert total(found, "kv_cache_eligible_tokens_total") == eligible
    assert found.coverage["kv_cache_eligible_tokens_total"].native == "vllm:prefix_cache_queries_total"
    assert found.coverage["kv_cache_reused_tokens_total"].status == "approximate"
    assert set(show(found, "requests_total").values()) == {0, requests}
    assert not [key for key in show(found, "requests_total") if "rejected" in key or "client_error" in key]
    assert found.coverage["spec_decode_num_draft_tokens_total"].status == "impossible"
    assert "speculation is off" in (found.coverage["spec_decode_num_draft_tokens_total"].reason or "")


def test_dynamo_frontend_supplies_the_four_cache_counters(captures: Path) -> None:
    """Hit rate, skew, best and efficiency follow from the router's counters and the frontend's cached tokens."""
    found = translate_identified(read_capture(captures, "dynamo-frontend-1.6.1-1"))
    tokens, generated, requests, hits, predicted_hits, best_hits, gaps = {
        "pages": (144_000, 72_000, 40, 400 / 400, 384 / 400, 384 / 400, 40),
        "captures": (163_155, 8666, 300, 0.6309, 0.6168, 0.6506, 8666 - 300),
    }[captures.name]
    eligible, predicted, reused, best = (
        total(found, f"kv_cache_{which}_tokens_total") for which in ("eligible", "predicted", "reused", "best")
    )
    assert total(found, "input_tokens_total") == tokens
    assert total(found, "output_tokens_total") == generated
    assert total(found, "requests_total") == total(found, "requests_started_total") == requests
    assert reused / eligible == pytest.approx(hits, abs=5e-5)
    assert predicted / eligible == pytest.approx(predicted_hits, abs=5e-5)
    assert best / eligible == pytest.approx(best_hits, abs=5e-5)
    assert total(found, "inter_token_latency_seconds_count") == gaps


def test_dynamo_mocker_adds_only_what_the_frontend_cannot_know(captures: Path) -> None:
    """A mock worker repeats the frontend's latencies; taking both would count every request twice."""
    found = translate_identified(read_capture(captures, "dynamo-mocker-1.6.1-1"))
    assert (
        set(show(found))
        == {
            "pages": {"kv_cache_usage", "preemptions_total"},
            "captures": {'kv_cache_usage{engine="0"}', "preemptions_total"},
        }[captures.name]
    )
    assert found.coverage["kv_cache_usage"].native == "vllm:kv_cache_usage_perc"
    assert found.coverage["time_to_first_token_seconds"].status == "elsewhere"
    assert found.coverage["spec_decode_num_draft_tokens_total"].status == "impossible"


@pytest.mark.parametrize("capture", OF_EACH_ERA)
def test_what_is_supplied_has_samples_and_what_is_not_has_none(captures: Path, capture: str) -> None:
    """Coverage and samples never contradict one another, no series is given twice, all bear the identity."""
    found = translate_identified(read_capture(captures, capture))
    assert set(found.coverage) == set(METRICS)
    names = {sample.name for sample in found.samples}
    for name, each in found.coverage.items():
        given = name in names or f"{name}_count" in names
        assert given == (each.native is not None or "first use" in (each.reason or "")), name
        assert each.status == "present" or each.reason, name
    assert len({(sample.name, sample.labels) for sample in found.samples}) == len(found.samples)
    assert all(set(IDENTITY.labels()) <= set(sample.labels) for sample in found.samples)
    assert not names & set(PROCESS_RATIOS)


def test_histograms_keep_their_own_edges(captures: Path) -> None:
    """Buckets are as the engine exposes them, the useless one at 0 included."""
    found = translate_identified(read_capture(captures, "dynamo-frontend-1.6.1-1"))
    edges = [dict(sample.labels)["le"] for sample in found.samples if sample.name == "request_duration_seconds_bucket"]
    assert edges == ["0.0", "2.0", "4.0", "8.0", "16.0", "32.0", "64.0", "130.0", "260.0", "510.0", "+Inf"]


def test_native_labels_stay_and_conflicts_are_kept_aside() -> None:
    """Data-parallel ranks stay apart; a model name other than the operator's becomes exported_model_name."""
    text = VLLM + 'vllm:generation_tokens_total{engine="1",model_name="other"} 5\n'
    shown = show(translate_identified(parse_exposition(text)), "output_tokens_total")
    assert shown == {
        'output_tokens_total{engine="0"}': 10,
        'output_tokens_total{engine="1",exported_model_name="other"}': 5,
    }


def test_a_target_cannot_fill_an_identity_label_left_empty() -> None:
    """A native environment would split the deployment, so it is kept as `exported_environment`."""
    text = VLLM.replace('model_name="tiny"', 'model_name="tiny",environment="prod"')
    shown = show(translate_identified(parse_exposition(text)), "queued_requests")
    assert list(shown) == ['queued_requests{engine="0",exported_environment="prod"}']


def test_what_is_beside_the_terms_is_of_each_that_has_none_of_its_own() -> None:
    """Of the second term, which has a `select`, the other series is read; the label is dropped from both."""
    source = map_of(
        "queued_requests",
        """[[metrics.queued_requests.take]]
        from = [{ native = "a" }, { native = "b", select = { of = "2" } }]
        select = { of = "1" }
        drop = ["of"]""",
    )
    text = 'a{of="1"} 1\na{of="2"} 2\nb{of="1"} 4\nb{of="2"} 8\n'
    assert show(translate(parse_exposition(text), source, IDENTITY)) == {"queued_requests": 9}


def test_a_repeated_series_counts_by_its_first_value() -> None:
    """Neither by both, nor by the last."""
    text = VLLM + 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 5\n'
    assert show(translate_identified(parse_exposition(text)), "output") == {'output_tokens_total{engine="0"}': 10}


def test_requests_in_flight_are_running_and_waiting() -> None:
    """A sum of two natives is per rank."""
    found = translate_identified(parse_exposition(VLLM))
    assert show(found, "concurrent_requests") == {'concurrent_requests{engine="0"}': 5}
    assert found.coverage["concurrent_requests"].native == "vllm:num_requests_running + vllm:num_requests_waiting"


def test_a_pair_of_counters_is_taken_together() -> None:
    """Eligible and reused tokens change their natives at the same release, never one without the other."""
    old = translate_identified(parse_exposition(VLLM))
    assert (total(old, "kv_cache_eligible_tokens_total"), total(old, "kv_cache_reused_tokens_total")) == (40, 20)
    labels = 'engine="0",model_name="tiny"'
    text = f'{VLLM}vllm:prompt_tokens_by_source_total{{{labels},source="local_compute"}} 75\n'
    fresh = translate_identified(parse_exposition(text))
    assert (total(fresh, "kv_cache_eligible_tokens_total"), total(fresh, "kv_cache_reused_tokens_total")) == (100, 0)
    text += f"vllm:prompt_tokens_cached_total{{{labels}}} 25\n"
    new = translate_identified(parse_exposition(text))
    assert (total(new, "kv_cache_eligible_tokens_total"), total(new, "kv_cache_reused_tokens_total")) == (100, 25)
    assert new.coverage["kv_cache_reused_tokens_total"].status == "present"


@pytest.mark.parametrize(("models", "start_at_zero"), [(MOST_FIRST_USES, True), (MOST_FIRST_USES + 1, False)])
def test_of_a_page_of_very_many_models_only_what_it_shows_is_read(models: int, start_at_zero: bool) -> None:
    """Each would have a hundred series that are 0: a page with a bug in a label would be a flood of them."""
    running = "".join(f'vllm:num_requests_running{{model_name="m{model}"}} 1\n' for model in range(models))
    text = f"{running}vllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
    counts = Counter(sample.name for sample in translate_identified(parse_exposition(text)).samples)
    assert counts["concurrent_requests"] > models
    assert (counts["requests_total"] >= models) is start_at_zero
    assert (counts.total() > 50 * models) is start_at_zero


def test_every_way_to_finish_is_an_outcome() -> None:
    """stop, length and repetition are ok; an unknown reason is an error, so that no failure is hidden."""
    reasons = ("stop", "length", "repetition", "abort", "error", "meltdown")
    text = VLLM + "".join(
        f'vllm:request_success_total{{engine="0",finished_reason="{reason}"}} {2**power}\n'
        for power, reason in enumerate(reasons)
    )
    text += 'vllm:admission_rejections_total{reason="a"} 100\nvllm:admission_rejections_total{reason="b"} 1\n'
    found = translate_identified(parse_exposition(text))
    assert total(found, "requests_total", outcome="ok") == 1 + 2 + 4
    assert total(found, "requests_total", outcome="client_abort") == 8
    assert total(found, "requests_total", outcome="error") == 16 + 32
    assert total(found, "requests_total", outcome="rejected") == 101
    assert 'requests_total{engine="0",finished_reason="stop",outcome="ok"}' in show(found)


def test_vllm_api_server_counts_what_never_reaches_the_engine() -> None:
    """Its 4xx answers to completions are the client's errors: not its 5xx, nor the errors of other pages."""
    server = VLLM + 'vllm:request_success_total{engine="0",finished_reason="stop"} 1\n'
    server += "http_request_duration_highr_seconds_count 0\n"
    fresh = show(translate_identified(parse_exposition(server)), "requests_total")
    used = show(
        translate_identified(
            parse_exposition(
                server + 'http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 3\n'
                'http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"} 4\n'
                'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 10\n'
                'http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 20\n'
                'http_requests_total{handler="none",method="GET",status="4xx"} 40\n'
            )
        ),
        "requests_total",
    )
    assert set(used) == set(fresh)
    assert fresh['requests_total{outcome="client_error"}'] == fresh['requests_total{outcome="rejected"}'] == 0
    assert used['requests_total{outcome="client_error"}'] == 7
    assert sum(used.values()) == 1 + 7


def test_an_engine_behind_another_server_refuses_nothing_itself() -> None:
    """Without vLLM's API server nothing reports refusals, so they are absent, not 0."""
    found = translate_identified(
        parse_exposition(VLLM + 'vllm:request_success_total{engine="0",finished_reason="stop"} 1\n')
    )
    shown = show(found, "requests_total")
    assert shown['requests_total{engine="0",finished_reason="stop",outcome="ok"}'] == sum(shown.values()) == 1
    assert not [each for each in shown if "rejected" in each or "client_error" in each]


def test_a_cache_in_the_engine_changes_nothing_of_it() -> None:
    """What LMCache counts on vLLM's page is of tiers whose hits vLLM counts itself."""
    cache = (
        'lmcache:num_hit_tokens_total{model_name="tiny",worker_id="0"} 5\n'
        'lmcache:time_to_retrieve_sum{model_name="tiny",worker_id="0"} 1\n'
        'lmcache:time_to_retrieve_count{model_name="tiny",worker_id="0"} 1\n'
        'vllm:lmcache_mp_lookup_duration_seconds_sum{engine="0",model_name="tiny"} 1\n'
        'vllm:lmcache_mp_lookup_duration_seconds_count{engine="0",model_name="tiny"} 1\n'
    )
    with_cache = translate_identified(parse_exposition(VLLM + cache))
    assert with_cache == translate_identified(parse_exposition(VLLM))


def test_an_api_server_in_rust_starts_at_zero() -> None:
    """Its page has gauges alone at first; what appears with the first request is 0 before, as the same series."""
    gauges = (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{model_name="tiny",engine="0"} 0\n'
        'vllm:num_requests_waiting{model_name="tiny",engine="0"} 0\n'
        'vllm:kv_cache_usage_perc{model_name="tiny",engine="0"} 0.0\n'
        "http_request_duration_highr_seconds_count 0\nhttp_request_duration_highr_seconds_sum 0.0\n"
    )
    labels = 'model_name="tiny",engine="0"'
    counted = (
        f'vllm:request_success_total{{{labels},finished_reason="error"}} 1\n'
        'http_requests_total{method="POST",status="4xx",handler="/v1/completions"} 1\n'
        f"vllm:prompt_tokens_total{{{labels}}} 9\n"
        f'vllm:prompt_tokens_by_source_total{{{labels},source="local_compute"}} 9\n'
        f"vllm:time_to_first_token_seconds_sum{{{labels}}} 0.5\n"
        f"vllm:time_to_first_token_seconds_count{{{labels}}} 1\n"
        f'vllm:time_to_first_token_seconds_bucket{{{labels},le="0.5"}} 1\n'
        f'vllm:time_to_first_token_seconds_bucket{{{labels},le="+Inf"}} 1\n'
    )
    fresh = translate_identified(parse_exposition(f"{gauges}# EOF\n"))
    first = translate_identified(parse_exposition(f"{gauges}{counted}# EOF\n"))
    for name, outcome, count in (
        ("requests_total", {"outcome": "error"}, 1),
        ("requests_total", {"outcome": "client_error"}, 1),
        ("input_tokens_total", {}, 9),
        ("time_to_first_token_seconds_count", {}, 1),
    ):
        assert (total(fresh, name, **outcome), total(first, name, **outcome)) == (0, count)
    assert set(show(first, "requests_total")) == set(show(fresh, "requests_total"))
    assert total(first, "kv_cache_reused_tokens_total") == 0


def test_the_simulator_of_llm_d_names_why_a_request_ended_otherwise() -> None:
    """Its requests are ok, and not errors for want of vLLM's label; a reason that is not known is an error too."""
    page = VLLM + 'vllm:max_num_generation_tokens_count{model_name="tiny"} 10\n'
    page += "".join(
        f'vllm:request_success_total{{finish_reason="{reason}",model_name="tiny"}} {count}\n'
        for reason, count in (("stop", 2), ("tool_calls", 3), ("length", 1), ("new", 4))
    )
    found = translate_identified(
        parse_exposition(f'{page}vllm:max_num_generation_tokens_count{{model_name="tiny"}} 10\n')
    )
    assert (total(found, "requests_total", outcome="ok"), total(found, "requests_total", outcome="error")) == (6, 4)
    assert total(found, "answers_truncated_total") == 1


def test_a_success_without_a_reason_is_none_of_the_errors() -> None:
    """A pipeline that removes the label leaves the count of successes; a reason that is not known is an error."""
    page = VLLM + 'vllm:request_success_total{engine="0",model_name="tiny"} 7\n'
    found = translate_identified(parse_exposition(page))
    assert (total(found, "requests_total", outcome="ok"), total(found, "requests_total", outcome="error")) == (7, 0)
    found = translate_identified(
        parse_exposition(page.replace('name="tiny"} 7', 'name="tiny",finished_reason="new"} 7'))
    )
    assert (total(found, "requests_total", outcome="ok"), total(found, "requests_total", outcome="error")) == (0, 7)


def test_cadvisor_by_itself_knows_containers_by_name() -> None:
    """Each is a series; the root of all, and a machine's services, only contain others or are none."""
    page = (
        'container_memory_working_set_bytes{id="/"} 900\n'
        'container_memory_working_set_bytes{id="/system.slice/cron.service"} 30\n'
        'container_memory_working_set_bytes{id="/docker/a1",image="vllm",name="engine"} 500\n'
        'container_memory_working_set_bytes{id="/docker/b2",image="nginx",name="gateway"} 20\n'
    )
    found = translate_identified(parse_exposition(page))
    assert show(found, "memory_usage") == {
        'memory_usage{name="engine"}': 500,
        'memory_usage{name="gateway"}': 20,
    }
    assert found.coverage["memory_usage"].native == "container_memory_working_set_bytes"


def test_a_container_with_nested_groups_is_counted_once() -> None:
    """cAdvisor names the container at each group inside its own; the outermost has what it uses."""
    series = 'container_memory_working_set_bytes{{container="{}",id="{}",namespace="llm",pod="v-0"}} {}'
    page = "\n".join(
        series.format(*each)
        for each in (("engine", "/pods/a1/sub/pods/a1", 300), ("engine", "/pods/a1", 500), ("proxy", "/pods/b2", 20))
    )
    found = translate_identified(parse_exposition(f"{page}\n"))
    assert sorted(show(found, "memory_usage").values()) == [20, 500]


def test_requests_of_litellm_without_their_status_are_no_errors() -> None:
    """Its labels are configured; the failures, which are among the requests, are then those of their own counter."""
    page = (
        'litellm_proxy_total_requests_metric_total{requested_model="tiny"} 9\n'
        'litellm_proxy_failed_requests_metric_total{requested_model="tiny"} 2\n'
    )
    found = translate_identified(parse_exposition(page))
    assert (total(found, "requests_total", outcome="ok"), total(found, "requests_total", outcome="error")) == (9, 2)
    page = page.replace("} 9", ',status_code="200"} 9').replace("} 2", ',exception_status="500"} 2')
    shown = show(translate_identified(parse_exposition(page)), "requests_total")
    assert shown == {'requests_total{outcome="ok"}': 9}


@pytest.mark.parametrize(
    ("status", "error_type", "outcome"),
    [
        ("success", "", "ok"),
        ("error", "cancelled", "client_abort"),
        ("error", "validation", "client_error"),
        ("error", "not_found", "client_error"),
        ("error", "overload", "rejected"),
        ("error", "unavailable", "rejected"),
        ("error", "response_timeout", "error"),
        ("error", "internal", "error"),
        ("error", "not_implemented", "error"),
        ("error", "", "error"),
    ],
)
def test_every_dynamo_error_type_is_an_outcome(status: str, error_type: str, outcome: str) -> None:
    """Dynamo's status and error type become one outcome; a release without error types has errors only."""
    labels = f'endpoint="e",error_type="{error_type}",model="tiny",request_type="unary",status="{status}"'
    found = translate_identified(parse_exposition(f"{FRONTEND}dynamo_frontend_requests_total{{{labels}}} 7\n"))
    shown = show(found, "requests_total")
    assert shown.pop(f'requests_total{{model="tiny",outcome="{outcome}"}}') == 7
    assert set(shown.values()) == {0}


def test_a_fresh_frontend_stands_at_zero() -> None:
    """What appears at its first use is given as 0 before, as the very series it becomes, so no first count is lost."""
    fresh = show(translate_identified(parse_exposition(FRONTEND)))
    used = show(
        translate_identified(
            parse_exposition(
                FRONTEND + 'dynamo_frontend_requests_total{endpoint="completions",model="tiny",status="success"} 3\n'
                'dynamo_frontend_requests_total{endpoint="chat",model="tiny",status="success"} 4\n'
                'dynamo_frontend_output_tokens_total{model="tiny"} 9\n'
                'dynamo_component_router_input_sequence_tokens_sum{model="tiny",phase="aggregated",worker_id="f"} 8\n'
                'dynamo_component_router_input_sequence_tokens_sum{model="tiny",phase="decode",worker_id="f"} 8\n'
            )
        )
    )
    assert set(used) == set(fresh)
    assert set(fresh.values()) == {0}
    assert used['requests_total{model="tiny",outcome="ok"}'] == 7
    assert used['kv_cache_eligible_tokens_total{model="tiny"}'] == 8
    assert {f'requests_total{{model="tiny",outcome="{outcome}"}}' for outcome in OUTCOMES} <= set(fresh)


def test_tokens_without_text_are_output_too() -> None:
    """The frontend's live counter misses them in streams; what it observes at the end of a request does not."""
    text = 'dynamo_frontend_output_tokens_total{model="tiny"} 53\n'
    text += 'dynamo_frontend_output_sequence_tokens_sum{model="tiny"} 1800\n'
    found = translate_identified(parse_exposition(FRONTEND + text))
    assert total(found, "output_tokens_total") == 1800
    # It is no counter to fall back on before the first request has ended: the native would change in mid-flight.
    found = translate_identified(parse_exposition(FRONTEND + text.partition("\n")[0] + "\n"))
    assert total(found, "output_tokens_total") == 0


def test_a_histogram_is_all_zeros_or_all_its_own() -> None:
    """Zero buckets give way to native ones, whose edges may be others."""
    name = "dynamo_frontend_request_duration_seconds"
    text = f'{name}_bucket{{model="tiny",le="7"}} 1\n{name}_bucket{{model="tiny",le="+Inf"}} 1\n'
    text += f'{name}_sum{{model="tiny"}} 3\n{name}_count{{model="tiny"}} 1\n'
    shown = show(translate_identified(parse_exposition(FRONTEND + text)), "request_duration_seconds")
    assert shown == {
        'request_duration_seconds_bucket{le="7.0",model="tiny"}': 1,
        'request_duration_seconds_bucket{le="+Inf",model="tiny"}': 1,
        'request_duration_seconds_sum{model="tiny"}': 3,
        'request_duration_seconds_count{model="tiny"}': 1,
    }


def test_an_older_frontend_is_not_given_zeros() -> None:
    """A release that lacks a family for good has no data there, which is not 0."""
    text = FRONTEND.replace("dynamo_frontend_event_loop_stall_total 0\n", "")
    found = translate_identified(parse_exposition(text))
    assert show(found) == {}
    assert found.coverage["kv_cache_reused_tokens_total"].status == "impossible"
    assert "not exposed: 'dynamo_frontend_cached_tokens_sum'" in (
        found.coverage["kv_cache_reused_tokens_total"].reason or ""
    )


def test_what_is_missing_is_not_what_is_exposed() -> None:
    """Prompt tokens are there, and are used beside a counter that is not: that one is named."""
    page = "vllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\nvllm:prompt_tokens_total 9\n"
    found = translate_identified(parse_exposition(page))
    reason = found.coverage["kv_cache_eligible_tokens_total"].reason or ""
    assert "'vllm:prompt_tokens_by_source_total'" in reason
    assert "'vllm:prompt_tokens_total'" not in reason


def test_without_a_kv_router_there_is_a_hit_rate_only() -> None:
    """Eligible tokens are then the requests' own, and nothing is predicted."""
    text = "\n".join(line for line in FRONTEND.splitlines() if "router" not in line)
    text += '\ndynamo_frontend_input_sequence_tokens_sum{model="tiny"} 50\n'
    text += 'dynamo_frontend_cached_tokens_sum{model="tiny"} 5\n'
    found = translate_identified(parse_exposition(text))
    assert total(found, "kv_cache_eligible_tokens_total") == 50
    assert total(found, "kv_cache_reused_tokens_total") == 5
    assert found.coverage["kv_cache_predicted_tokens_total"].status == "impossible"
    assert "kv_cache_predicted_tokens_total" not in {sample.name for sample in found.samples}


def test_alternatives_are_never_added() -> None:
    """Of a name and its alias, both exposed, one counts."""
    text = (
        FRONTEND
        + 'dynamo_frontend_inflight_requests{model="tiny"} 3\ndynamo_frontend_active_requests{model="tiny"} 3\n'
    )
    assert total(translate_identified(parse_exposition(text)), "concurrent_requests") == 3


def test_units_are_scaled_with_sums_and_edges() -> None:
    """A histogram in milliseconds becomes one in seconds; its counts stay."""
    source = map_of("request_duration_seconds", 'take = [{ native = "x", scale = 0.001 }]')
    text = 'x_bucket{le="500"} 1\nx_bucket{le="+Inf"} 2\nx_sum 3000\nx_count 2\n'
    assert show(translate(parse_exposition(text), source, IDENTITY)) == {
        'request_duration_seconds_bucket{le="0.5"}': 1,
        'request_duration_seconds_bucket{le="+Inf"}': 2,
        "request_duration_seconds_sum": 3,
        "request_duration_seconds_count": 2,
    }


def test_series_are_selected_and_left_out_by_labels() -> None:
    """`select` keeps, `except` leaves out; a label that is missing has an empty value."""
    source = map_of(
        "preemptions_total",
        'take = [{ native = "x", select = { a = ["1", ""] }, except = { b = "no" }, drop = ["a"] }]',
    )
    text = 'x{a="1"} 1\nx{a="2"} 2\nx 4\nx{a="1",b="no"} 8\nx{a="1",b="yes"} 16\n'
    assert show(translate(parse_exposition(text), source, IDENTITY)) == {
        "preemptions_total": 5,
        'preemptions_total{b="yes"}': 16,
    }


def test_our_own_engine_is_read_as_it_is() -> None:
    """What an instrument exposes arrives unchanged, but for the ratios of its own process."""
    engine = EngineInstruments(IDENTITY)
    request = engine.start_request(input_tokens=30)
    request.first_token()
    request.finish(output_tokens=5)
    engine.record_speculation(4, (1, 1))
    exposition = parse_exposition(render(engine))
    found = translate_identified(exposition)
    assert total(found, "input_tokens_total") == 30
    assert total(found, "requests_total", outcome="ok") == 1
    assert found.coverage["input_tokens_total"].native == "input_tokens_total"
    assert found.coverage["kv_cache_eligible_tokens_total"].status == "elsewhere"
    assert "speculation_rate" in {sample.name for sample in exposition.samples}
    assert "speculation_rate" not in {sample.name for sample in found.samples}
    assert not any(label.startswith("exported_") for sample in found.samples for label, _ in sample.labels)


def test_what_an_instrument_does_not_show_of_its_component_is_missing_for_good() -> None:
    """An engine without speculation has none: the status is impossible, not elsewhere."""
    found = translate_identified(parse_exposition(render(EngineInstruments(IDENTITY))))
    coverage = found.coverage["spec_decode_num_draft_tokens_total"]
    assert (coverage.status, coverage.reason) == ("impossible", "speculation is off")


def test_the_operators_identity_wins_over_the_instruments() -> None:
    """A native label `replica` of another value is kept as `exported_replica`."""
    router = RouterInstruments(Identity("tiny", "chat", "vllm-0.32", replica="own", role="router"))
    found = translate_identified(parse_exposition(render(router)), Identity("tiny", "chat", "v2", replica="a:1"))
    decisions = next(sample for sample in found.samples if sample.name.startswith("router_"))
    labels: Mapping[str, str] = dict(decisions.labels)
    assert labels["inference_stack"] == "v2"
    assert labels["exported_inference_stack"] == "vllm-0.32"
    assert labels["exported_replica"] == "own"
    assert found.coverage["output_tokens_total"].status == "elsewhere"


def test_maps_are_read_once() -> None:
    """Every reader gets the same maps."""
    assert load_sources() is load_sources()
