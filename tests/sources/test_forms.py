"""Forms of source maps: engines whose series Ray's metrics agent publishes, with labels and sums of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from servescope.errors import ConfigurationError
from servescope.sources.identification import identify
from servescope.sources.map_files import load_sources, read_sources
from servescope.sources.parse import parse_exposition
from servescope.sources.reader import Reader
from tests.sources.support.translations import IDENTITY, show, total, translate_identified
from tests.support.inspecting import inspect_as_json, rows_by_name


def worker(name: str, *, errors: int = 0) -> str:
    """What the agent of a node shows of one engine that is idle now: no gauges, and no counter that stayed 0."""
    labels = (
        f'Component="core_worker",NodeAddress="10.0.0.1",ReplicaId="r{name}",SessionName="s",Version="2.60.0",'
        f'WorkerId="{name}",engine="0",model_name="tiny",otel_scope_name="ray",otel_scope_version=""'
    )
    failed = f'ray_vllm_request_success_total{{finished_reason="error",{labels}}} {errors}\n' if errors else ""
    return (
        f"ray_vllm_prompt_tokens_total{{{labels}}} 100.0\n"
        f'ray_vllm_prompt_tokens_by_source_total{{source="local_compute",{labels}}} 100.0\n'
        f'ray_vllm_request_success_total{{finished_reason="stop",{labels}}} 4.0\n'
        f'ray_vllm_time_to_first_token_seconds_bucket{{le="0.5",{labels}}} 4.0\n'
        f'ray_vllm_time_to_first_token_seconds_bucket{{le="+Inf",{labels}}} 4.0\n'
        f"ray_vllm_time_to_first_token_seconds_count{{{labels}}} 4.0\n"
        f"ray_vllm_time_to_first_token_seconds_sum{{{labels}}} 1.5\n"
        f"ray_vllm_request_decode_time_seconds_sum{{{labels}}} 9.0\n"
        f"{failed}"
    )


# The agent's own, which are of no engine.
AGENT = "process_start_time_seconds 1.7e9\nray_node_cpu_count 8\n"
BOTH = worker("a") + worker("b") + AGENT


def test_what_is_not_exposed_yet_is_zero_of_each_worker() -> None:
    """Ray records no increment of 0: the first error of a worker is counted in the series that was 0 before."""
    fresh, failed = (translate_identified(parse_exposition(text)) for text in (BOTH, worker("a", errors=1) + BOTH))
    series = 'requests_total{ReplicaId="ra",WorkerId="a",engine="0",finished_reason="error",outcome="error"}'
    assert show(fresh)[series] == 0
    assert show(failed)[series] == 1
    assert set(show(fresh)) == set(show(failed))
    assert total(fresh, "kv_cache_reused_tokens_total") == total(fresh, "preemptions_total") == 0
    assert total(fresh, "kv_cache_eligible_tokens_total") == 200


def test_workers_are_kept_apart_and_gauges_that_ray_drops_are_absent() -> None:
    """A worker's series end with it, so that a sum over workers would be no counter; an idle engine shows no gauge."""
    found = translate_identified(parse_exposition(BOTH))
    assert set(show(found, "input_tokens_total")) == {
        f'input_tokens_total{{ReplicaId="r{name}",WorkerId="{name}",engine="0"}}' for name in "ab"
    }
    assert show(found, "concurrent_requests") == {}


def test_a_gauge_that_ray_drops_is_not_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An engine that is idle has not lost its metrics: no warning of missing ones, and the reason in an inspection."""
    labels = 'ReplicaId="ra",WorkerId="a",engine="0",model_name="tiny"'
    gauges = f"ray_vllm_num_requests_running{{{labels}}} 1\nray_vllm_num_requests_waiting{{{labels}}} 0\n"
    reader = Reader(IDENTITY)
    reader.read((BOTH + gauges).encode())
    reader.read(BOTH.encode())
    assert (reader.missing, reader.warnings) == ({}, ())
    (tmp_path / "idle.txt").write_text(BOTH)
    row = rows_by_name(inspect_as_json(capsys, str(tmp_path / "idle.txt")))["concurrent_requests"]
    assert row["value"] is None
    assert "not exposed: Ray drops a gauge" in row["reason"]


def test_means_are_absent_and_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sums are of the middles of buckets; quantiles and counts are right and stay."""
    (tmp_path / "ray.txt").write_text(BOTH)
    rows = rows_by_name(inspect_as_json(capsys, str(tmp_path / "ray.txt")))
    for name in ("time_to_first_token_seconds", "time_to_first_token_mean", "decode_seconds_total", "tps_per_request"):
        assert rows[name]["value"] is None
        assert "middles of buckets" in rows[name]["reason"]
    assert rows["time_to_first_token_p50"]["value"] == 0.25
    found = translate_identified(parse_exposition(BOTH))
    assert total(found, "time_to_first_token_seconds_count") == 8
    assert show(found, "time_to_first_token_seconds_sum") == {}
    reader = Reader(IDENTITY)
    reader.read(BOTH.encode())
    assert "middles of buckets" in (reader.coverage["time_to_first_token_seconds"]["reason"] or "")


def test_only_names_of_the_engine_are_read() -> None:
    """What the agent exposes about itself is not taken for the engine's."""
    found = translate_identified(parse_exposition(BOTH + "http_requests_total 7\n"))
    assert found.coverage["replica_start_time_seconds"].status == "impossible"
    assert not [each for each in show(found, "requests_total") if "client_error" in each or "rejected" in each]


@pytest.mark.parametrize("spelled", ["ray_vllm_", "ray_vllm:"])
def test_both_spellings_are_the_same_form(spelled: str) -> None:
    """Older releases keep the engine's colon; other series of Ray are recognised and not read."""
    text = BOTH.replace("ray_vllm_", spelled)
    assert identify(parse_exposition(text)).source is load_sources()["vllm-on-ray"]
    assert identify(parse_exposition(AGENT)).nearest == "Ray"


def test_without_labels_of_the_first_use_nothing_is_zero() -> None:
    """SGLang's processes have ids of their own, so that the labels of what is not exposed are not known."""
    text = 'ray_sglang_prompt_tokens_total{WorkerId="a"} 9\nray_sglang_num_requests_total{WorkerId="a"} 1\n'
    found = translate_identified(parse_exposition(text))
    assert set(show(found)) == {
        'input_tokens_total{WorkerId="a"}',
        'kv_cache_eligible_tokens_total{WorkerId="a"}',
        'requests_total{WorkerId="a",outcome="ok"}',
    }


def test_a_form_must_say_how_it_is_identified() -> None:
    """A mistake in a form is refused with its place."""
    missing = (
        f'[default.{each}]\nstatus = "impossible"\nreason = "no"\n'
        for each in ("engine", "router", "autoscaler", "process")
    )
    head = (
        'title = "X"\ncovers = "X"\nevidence = "read"\nlayer = "engine"\nprefixes = ["x:"]\n[identify]\nall = ["x:a"]\n'
    )
    text = head + "".join(missing)
    form = '[[forms]]\nname = "x-on-y"\ntitle = "X on Y"\ncovers = "X"\nevidence = "read"\nprefix = "y_"\n'
    with pytest.raises(ConfigurationError, match=r"forms\[0\]: 'identify' is missing"):
        read_sources("x.toml", text + form)
    first, second = read_sources("x.toml", f'{text}{form}[forms.identify]\nall = ["x:a"]\n')
    assert (first.name, second.name, second.signs.all) == ("x", "x-on-y", ("y_x:a",))
