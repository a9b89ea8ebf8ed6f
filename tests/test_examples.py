"""The examples run, and their pages say what they did."""

from __future__ import annotations

import subprocess
import sys

import pytest

from examples import autoscaler, engine, router
from servescope.sources.identification import identify
from servescope.sources.parse import Exposition, parse_exposition
from tests.conftest import ROOT


def values(page: Exposition, name: str) -> dict[str, float]:
    """The samples of a name by the value of their label of their own, or by ""."""
    known = {"model_name", "deployment_id", "inference_stack", "replica", "role"}
    return {
        next((value for label, value in sample.labels if label not in known), ""): sample.value
        for sample in page.samples
        if sample.name == name
    }


def value(page: Exposition, name: str) -> float:
    (only,) = values(page, name).values()
    return only


def test_the_engine_serves_all_its_requests() -> None:
    """Every request that arrived has ended well; tokens, rates and speculation fit together."""
    page = parse_exposition(engine.run(60, step_seconds=0.0005))

    assert values(page, "requests_total") == {"ok": 60, "client_abort": 0, "client_error": 0, "rejected": 0, "error": 0}
    assert value(page, "requests_started_total") == 60
    assert value(page, "concurrent_requests") == value(page, "queued_requests") == 0
    assert value(page, "time_to_first_token_seconds_count") == 60
    assert value(page, "output_tokens_total") == value(page, "output_tokens_per_request_sum")
    by_position = values(page, "spec_decode_num_accepted_tokens_per_pos_total")
    assert sorted(by_position.values(), reverse=True) == [by_position[str(position)] for position in range(4)]
    assert 0.4 < value(page, "speculation_rate") < 0.8
    assert sum(values(page, "servescope_instrument_errors_total").values()) == 0


def test_the_router_predicts_about_what_is_reused() -> None:
    """Its index loses events now and then, which is seen as gaps; the ratios are those of a healthy router."""
    page = parse_exposition(router.run(600))

    assert values(page, "router_index_state") == {"exact": 0, "degraded": 1, "recovering": 0}
    assert value(page, "router_index_event_gaps_total") > 0
    assert value(page, "router_unreported_decisions_total") == 0
    assert 0.3 < value(page, "kv_cache_hit_rate") < 0.95
    assert -0.15 < value(page, "kv_cache_hit_rate_skew") < 0.30
    assert value(page, "kv_cache_best_prefix_hit_rate") >= value(page, "kv_cache_hit_rate") * 0.9
    assert sum(values(page, "servescope_instrument_errors_total").values()) == 0


def test_the_autoscaler_follows_its_load() -> None:
    """Each stage of its decision is shown, in its order, and the replicas are what it ordered."""
    page = parse_exposition(autoscaler.run(100))

    raw, policy = value(page, "autoscaler_desired_scale"), value(page, "autoscaler_policy_desired_scale")
    rounded = value(page, "autoscaler_rounded_desired_scale")
    assert 1 <= policy <= rounded <= 8
    assert policy >= min(raw, 8)
    replicas = values(page, "replica_count_by_status")
    assert replicas["active"] + replicas["starting"] == rounded
    assert sum(values(page, "servescope_instrument_errors_total").values()) == 0


@pytest.mark.parametrize("example", [engine, router, autoscaler])
def test_the_collector_knows_their_pages(example: object) -> None:
    """What an example exposes is identified as our own instruments'."""
    source = identify(parse_exposition(example.run(20))).source  # type: ignore[attr-defined]

    assert source is not None
    assert source.name == "servescope"


@pytest.mark.parametrize("name", ["router", "autoscaler"])
def test_examples_run_as_programs(name: str) -> None:
    """`python -m examples.<name>` prints the page."""
    words = [sys.executable, "-m", f"examples.{name}", "20"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    assert "# TYPE" in done.stdout
