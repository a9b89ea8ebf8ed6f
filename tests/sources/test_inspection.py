from __future__ import annotations

import re
from pathlib import Path

import pytest

from servescope.cli import main
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import METRICS
from tests.conftest import PAGES
from tests.support.captures import OF_EACH_ERA
from tests.support.inspecting import FIRST, inspect_as_json, rows_by_name, write_expositions


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two expositions of one vLLM as files; its process was restarted in between as far as preemptions go."""
    return write_expositions(tmp_path)


# Worked out by hand, of the pages in the tree and of the reference captures.
VALUES: dict[str, dict[str, dict[str, float | None]]] = {
    "pages": {
        "vllm-0.32.0-1": {
            "input_tokens_total": 384,
            "input_tokens_per_request": 1000,
            "speculation_rate": 1.0,
            "tps_per_request": (40_000 - 40) / 400,
            "kv_cache_hit_rate": 1.0,
            "requests_total": 40 + 40 + 384,
            'requests_total{outcome="ok"}': 40,
            "kv_transfer_mean": 0.2,
            "kv_transfer_bytes_total": 40 * 10,
        },
        "vllm-0.13era-1": {"kv_cache_hit_rate": 1.0, 'requests_total{outcome="client_error"}': 40},
        "vllm-0.10era-1": {"kv_cache_hit_rate": 1.0, "inter_token_latency_seconds": 0.5},
        "vllm-0.8era-1": {"kv_cache_hit_rate": 1.0, "kv_cache_usage": 0.5, "inter_token_latency_seconds": 0.5},
        # Running, waiting and swapped out.
        "vllm-0.5.0-1": {"concurrent_requests": 3, "kv_cache_hit_rate": None, "inter_token_latency_seconds": 0.5},
        "dynamo-frontend-1.6.1-1": {
            "input_tokens_total": 144_000,
            "output_tokens_total": 72_000,
            "requests_total": 40,
            "kv_cache_hit_rate": 400 / 400,
            "kv_cache_hit_rate_skew": (384 - 400) / 400,
            "kv_cache_best_prefix_hit_rate": 384 / 400,
            "kv_cache_hit_rate_efficiency": 400 / 384,
            "kv_cache_predicted_tokens_total": 384,
            'replica_count_by_status{status="active"}': 1,
        },
        # As its client counted, and what was computed for those that left: 619 tokens of prompts, 473 of answers.
        "llamacpp-2026-1": {
            "input_tokens_total": 12_347 + 619,
            "output_tokens_total": 609 + 473,
            "kv_cache_hit_rate": 6957 / (12_347 + 619),
            "speculation_rate": 360 / 2700,
            "spec_decode_num_drafts_total": 690,
            'spec_decode_num_accepted_tokens_per_pos_total{position="3"}': 79,
            "concurrent_requests": 0,
            "requests_total": None,
            "kv_cache_usage": None,
        },
        # A router does not see that a stream is aborted, as two were, and who leaves before an answer has no outcome.
        "sglang-router-0.3.2-1": {
            "requests_started_total": 27,
            'requests_total{outcome="ok"}': 20 + 2,
            'requests_total{outcome="client_error"}': 4,
            "client_abort_share": None,
            "time_to_first_token_seconds": None,
            'replica_count_by_status{status="active"}': 3,
        },
        # Nor does this one count what it refuses itself: two of the four bodies.
        "vllm-router-0.1.17-1": {
            'requests_total{outcome="ok"}': 20 + 2,
            'requests_total{outcome="client_error"}': 2,
            "request_rejected_share": None,
            'router_fallbacks_total{reason="missing_tokens"}': 1,
            'replica_count_by_status{status="active"}': 3,
        },
        # An aborted chat and an answer that nobody waited for are among those that were answered, a completion is not.
        "litellm-1.106.2-1": {
            'requests_total{outcome="ok"}': 20 + 2,
            'requests_total{outcome="client_error"}': 4,
            "request_error_share": 0.0,
            "input_tokens_total": 4127 + 994,
            "output_tokens_total": 613 + 512,
            "kv_cache_hit_rate": 2112 / (4127 + 994),
            "concurrent_requests": None,
        },
        # All observations are of one size, in the middle of their bucket.
        "vllm-on-ray-0.32.0-1": {
            "input_tokens_total": 384,
            'requests_total{outcome="ok"}': 40,
            "kv_cache_hit_rate": 1.0,
            "time_to_first_token_p50": 0.75 + 0.25 * 0.5,
            "time_to_first_token_mean": None,
            "input_tokens_per_request": None,
            "decode_seconds_total": None,
            "tps_per_request": None,
            "replica_start_time_seconds": None,
        },
        # Two actors recorded 5 and 2 requests of 0.3 s, and one error; of two gauges one was set of late.
        "vllm-on-ray-2.60.0-1": {
            "input_tokens_total": 7 * 9,
            "output_tokens_total": 7 * 3,
            'requests_total{outcome="ok"}': 7,
            'requests_total{outcome="error"}': 1,
            'requests_total{outcome="client_abort"}': 0,
            "request_error_share": 1 / 8,
            "kv_cache_hit_rate": 0.0,
            "time_to_first_token_p50": 0.25 + (0.5 - 0.25) * 0.5,
            "time_to_first_token_mean": None,
            "replica_start_time_seconds": None,
        },
        "sglang-on-ray-0.5.23-1": {
            "output_tokens_total": 384,
            'requests_total{outcome="ok"}': 40,
            "request_duration_p95": 10 + (20 - 10) * 0.95,
            "request_duration_mean": None,
            "decode_seconds_total": None,
        },
        # Of its histogram of times per token each is of a step, whatever its name says.
        "nim-1-1": {
            "input_tokens_total": 384,
            "output_tokens_total": 384,
            'requests_total{outcome="ok"}': 40,
            "request_error_share": 0.0,
            "concurrent_requests": 2,
            "time_per_output_token_seconds": None,
            "inter_token_latency_seconds": 0.2,
            "decode_seconds_total": 8,
            "kv_cache_usage": 0.5,
            "kv_cache_hit_rate": None,
        },
        # It times a request's inference as a whole, which is no time from token to token.
        "tgi-3.3.7-1": {
            "input_tokens_total": 40_000,
            "output_tokens_total": 40_000,
            'requests_total{outcome="ok"}': 40,
            'requests_total{outcome="client_error"}': 40,
            "request_error_share": 0.0,
            "request_duration_seconds": 0.14778918800354002,
            "concurrent_requests": 2,
            "spec_decode_num_accepted_tokens_total": 400,
            "speculation_rate": None,
            "tps_per_request": None,
            "requests_started_total": None,
        },
        "triton-trtllm-1.0.0-1": {
            "input_tokens_total": 40_000,
            'requests_total{outcome="ok"}': 40,
            'requests_total{outcome="rejected"}': 40,
            "concurrent_requests": 1 + 1,
            "queued_requests": 1 + 1,
            "time_to_first_token_mean": 2.0,
            "request_duration_mean": None,
        },
        # Two of the three that left had an answer that began; a sum of bucket middles is no sum.
        "dcgm-exporter-4.8-1": {
            "gpu_usage": (0.9 + 0.4) / 2,
            "gpu_memory_usage": 72_000 * 2**20,
            'gpu_errors_total{cause="memory",gpu="0"}': 2,
            'gpu_errors_total{cause="memory",gpu="1"}': 0,
            'gpu_errors_total{cause="link",gpu="0"}': 3,
            "gpu_last_error": 79,
            "cpu_usage": None,
        },
        # Of the containers, without the pods that have them and the pause containers.
        "cadvisor-1.34-1": {"memory_usage": 40e9 + 2e9 + 30e9, "cpu_usage": None, "gpu_usage": None},
        # Of every workload on it: the container that waits after a crash is of a pod that is not available. Of the
        # scales that two namespaces were asked for, the larger one.
        "kube-state-metrics-2-1": {
            'replica_count_by_status{status="active"}': 3 + 5 + 1 + 2,
            'replica_count_by_status{status="starting"}': 1,
            'replica_count_by_status{status="failed"}': 1,
            "autoscaler_rounded_desired_scale": 4 + 5 + 2,
            "autoscaler_policy_desired_scale": 4,
            "autoscaler_min_replicas": 2,
            "autoscaler_max_replicas": 8,
            "autoscaler_desired_scale": None,
            "replica_start_time_seconds": None,
        },
        # Of two deployments: answers of any kind, durations of those that are ok and not asynchronous.
        "baseten-2026-1": {
            'requests_total{outcome="ok"}': 40 + 5 + 10,
            'requests_total{outcome="rejected"}': 3,
            'requests_total{outcome="client_error"}': 2,
            'requests_total{outcome="error"}': 1 + 1,
            "client_abort_share": 0.0,
            "request_duration_seconds": (80 + 5) / 50,
            "time_to_first_token_seconds": (8 + 0.5) / 50,
            "concurrent_requests": 4 + 1,
            "input_tokens_total": 2000,
            "output_tokens_per_request": 80,
            "speculation_rate": 300 / 400,
            "kv_cache_hit_rate": None,
            "memory_usage": 12e9,
            "gpu_usage": (0.9 + 0.5 + 0.1) / 3,
            "gpu_memory_usage": 170_000 * 2**20,
            "cpu_usage": None,
            'replica_count_by_status{status="active"}': 2 + 1,
            'replica_count_by_status{status="starting"}': 1,
            "autoscaler_in_flight_tokens": 1500,
            "autoscaler_avg_in_flight_tokens": 1200,
        },
        "ray-serve-2.60.0-1": {
            'requests_total{outcome="ok"}': 20 + 2,
            'requests_total{outcome="client_abort"}': 1,
            'requests_total{outcome="client_error"}': 3,
            'requests_total{outcome="error"}': 1,
            "request_rejected_share": 0.0,
            "request_duration_seconds": None,
            "request_duration_mean": None,
            "concurrent_requests": 0,
            "input_tokens_total": None,
            'replica_count_by_status{status="active"}': 2,
            "autoscaler_rounded_desired_scale": 2,
        },
        # Both names of each series are exposed, and one is read.
        "llmd-epp-0.10.0-1-goldens": {
            'requests_total{outcome="ok"}': 40,
            "input_tokens_total": 81_920,
            "kv_cache_hit_rate": 400 / 81_920,
            "time_to_first_token_seconds": 3.0,
            'replica_count_by_status{status="active"}': 1,
            "kv_cache_usage": None,
            "tps_per_request": None,
        },
        "gaie-epp-legacy-1-goldens": {
            'requests_total{outcome="ok"}': 6,
            'requests_total{outcome="rejected"}': 1,
            "requests_started_total": 9,
            "request_duration_seconds": 4 / 6,
            "output_tokens_total": 140,
            "time_to_first_token_seconds": None,
            "kv_cache_hit_rate": None,
            'replica_count_by_status{status="active"}': 3,
            "concurrent_requests": 2,
        },
        # Its failures are not counted, which is not zero.
        "trtllm-1.2rc-1": {
            "requests_total": 40,
            "answers_truncated_total": 30,
            "time_to_first_token_seconds": 0.4,
            "request_error_share": None,
            "kv_cache_hit_rate": None,
        },
    },
    "captures": {
        "vllm-0.32.0-1": {
            "input_tokens_total": 312,
            "output_tokens_total": 384,
            "input_tokens_per_request": 52,
            "output_tokens_per_request": 64,
            "speculation_rate": 1.0,
            "tps_per_request": 879.7,
            "kv_cache_hit_rate": 0.0,
            "requests_total": 6,
            'requests_total{outcome="ok"}': 6,
        },
        # Of the first token of seven nothing is observed.
        "vllm-0.5.0-1": {
            "input_tokens_total": 5,
            "output_tokens_total": 7,
            'requests_total{outcome="ok"}': 1,
            "answers_truncated_total": 1,
            "time_to_first_token_seconds": 0.31326723098754883,
            "inter_token_latency_seconds": 0.19016313552856445 / 6,
            "tps_per_request": 6 / 0.19016313552856445,
            "kv_cache_hit_rate": None,
        },
        "vllm-0.13era-1": {
            "input_tokens_total": 66,
            "output_tokens_total": 600,
            "kv_cache_hit_rate": None,
            "speculation_rate": None,
            "requests_total": 2,
        },
        "dynamo-frontend-1.6.1-1": {
            "input_tokens_total": 163155,
            "output_tokens_total": 8666,
            "requests_total": 300,
            "kv_cache_hit_rate": 0.6309,
            "kv_cache_hit_rate_skew": -0.0140,
            "kv_cache_best_prefix_hit_rate": 0.6506,
            "kv_cache_hit_rate_efficiency": 0.9697,
            "kv_cache_predicted_tokens_total": 0.6168 * 163155,
            # In milliseconds on the page.
            "router_decision_seconds": 0.03888 / 300,
            "router_queue_wait_seconds": 0.03362 / 300,
            'replica_count_by_status{status="active"}': 4,
        },
        "llamacpp-2026-1": {
            "input_tokens_total": 77_454 + 129_725,
            "output_tokens_total": 1426,
            "kv_cache_hit_rate": 129_725 / (77_454 + 129_725),
            "speculation_rate": None,
            "concurrent_requests": 3,
        },
        "triton-trtllm-1.0.0-1": {
            "concurrent_requests": 0,
            "queued_requests": 1,
            "kv_cache_usage": 0.4875,
            "requests_total": 0,
            "input_tokens_total": None,
        },
        # The expected texts of its project's own tests, with both names of each series.
        "llmd-epp-0.10.0-1-goldens": {
            'requests_total{outcome="ok"}': 4,
            'requests_total{outcome="rejected"}': 1,
            'requests_total{outcome="error"}': 3,
            "input_tokens_total": 100,
            "output_tokens_total": 1000,
            "request_duration_seconds": (1.61 + 0.06 + 0.12) / 4,
            "kv_cache_hit_rate": None,
        },
        "gaie-epp-legacy-1-goldens": {
            "requests_total": 8,
            "requests_started_total": 7,
            "output_tokens_total": 1000,
            "concurrent_requests": 2,
            "time_to_first_token_seconds": None,
        },
        "trtllm-1.2rc-1": {
            "requests_total": 2,
            "answers_truncated_total": 2,
            "time_to_first_token_seconds": 0.067953 / 2,
            "request_error_share": None,
        },
    },
}


@pytest.mark.parametrize("capture", VALUES["captures"])
def test_values_of_the_captures(captures: Path, capsys: pytest.CaptureFixture[str], capture: str) -> None:
    """Every value that was worked out by hand from a page is found; no data is no value, and zero is zero."""
    check_values(captures, capsys, capture)


@pytest.mark.parametrize("capture", sorted(VALUES["pages"].keys() - VALUES["captures"].keys()))
def test_values_of_captures_of_our_own(capsys: pytest.CaptureFixture[str], capture: str) -> None:
    """What our runs of a program captured, which the reference does not have."""
    check_values(PAGES, capsys, capture)


def check_values(captures: Path, capsys: pytest.CaptureFixture[str], capture: str) -> None:
    rows = rows_by_name(inspect_as_json(capsys, str(captures / f"{capture}.txt")))
    for name, value in VALUES[captures.name][capture].items():
        found = rows[name]["value"]
        assert found == (value if value is None else pytest.approx(value, rel=1e-4, abs=5e-5)), name


def test_tries_without_a_worker_are_no_clients_mistakes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """vLLM's router counts each of them beside its clients' mistakes; the requests are errors, once each."""
    (tmp_path / "page.txt").write_text(
        'vllm_router_active_workers 0\nvllm_router_worker_health{worker="a"} 0\n'
        'vllm_router_request_errors_total{error_type="non_retryable_error"} 3\n'
        'vllm_router_request_errors_total{error_type="no_available_workers"} 8\n'
        "vllm_router_retries_exhausted_total 4\n"
    )
    rows = rows_by_name(inspect_as_json(capsys, str(tmp_path / "page.txt")))
    counted = {
        outcome: rows[f'requests_total{{outcome="{outcome}"}}']["value"] for outcome in ("client_error", "error")
    }
    assert counted == {"client_error": 3, "error": 4}


@pytest.mark.parametrize("capture", OF_EACH_ERA)
def test_everything_has_a_value_or_a_reason(captures: Path, capsys: pytest.CaptureFixture[str], capture: str) -> None:
    """Every metric of the contract and every derived figure is listed once, with a value or a reason."""
    document = inspect_as_json(capsys, str(captures / f"{capture}.txt"))
    names = [row["name"] for row in document["metrics"]]
    assert set(METRICS) | set(FIGURES) <= set(names)
    assert len(names) == len(set(names))
    for row in document["metrics"]:
        assert {"name", "status", "value", "unit", "native", "reason"} <= set(row)
        assert row["status"] in ("present", "derived", "approximate", "elsewhere", "impossible")
        assert row["value"] is not None or row["reason"], row
        assert row["value"] is None or row["status"] not in ("elsewhere", "impossible"), row
    assert document["since"] == "process start"


def test_one_exposition_knows_totals_and_no_rates(capsys: pytest.CaptureFixture[str], files: tuple[str, str]) -> None:
    """Counters and ratios are since the process started; rates need a second exposition."""
    document = inspect_as_json(capsys, files[0])
    rows = rows_by_name(document)
    assert (document["source"], document["versions"]) == ("vllm", "about 0.13")
    assert (rows["output_tokens_total"]["value"], rows["output_tokens_total"]["measure"]) == (100, "total")
    assert rows["request_rate"]["value"] is None
    assert "--seconds" in rows["request_rate"]["reason"]
    assert rows["kv_cache_hit_rate"]["value"] is None
    assert "nothing to divide by, kv_cache_eligible_tokens_total is 0" in rows["kv_cache_hit_rate"]["reason"]


def test_two_expositions_know_increases(capsys: pytest.CaptureFixture[str], files: tuple[str, str]) -> None:
    """Increases and ratios are between the two, gauges the later ones; after a restart counters count from 0."""
    document = inspect_as_json(capsys, *files)
    rows = rows_by_name(document)
    assert document["since"] == "earlier exposition"
    assert (rows["output_tokens_total"]["value"], rows["output_tokens_total"]["measure"]) == (300, "increase")
    assert rows["kv_cache_hit_rate"]["value"] == 0.75
    assert rows["concurrent_requests"]["value"] == 7
    assert rows["request_error_share"]["value"] == 0.5
    assert rows['requests_total{outcome="error"}']["value"] == 2
    assert rows["preemptions_total"]["value"] == 2
    assert rows["request_rate"]["value"] is None
    assert any("1 counters were reset" in note for note in document["notes"])


@pytest.mark.parametrize(
    ("started", "cause"),
    [
        ((100, 200), "the process was restarted;"),
        ((100, 100), "the process was restarted, or the later exposition was named first;"),
        ((200, 100), "the process was restarted, or the later exposition was named first;"),
    ],
)
def test_counters_that_fell_may_be_the_wrong_order(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str], started: tuple[int, int], cause: str
) -> None:
    """Only a process that began later is known to have been restarted."""
    for name, seconds in zip(files, started, strict=True):
        with Path(name).open("a") as file:
            file.write(f"process_start_time_seconds {seconds}\n")
    document = inspect_as_json(capsys, *files)

    assert any(f"1 counters were reset in between: {cause}" in note for note in document["notes"])


def test_what_overflows_has_no_value(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A sum beyond the largest number is absent; JSON has no word for it."""
    huge = "".join(f'vllm:generation_tokens_total{{engine="{engine}"}} 1.7e308\n' for engine in "12")
    (tmp_path / "huge.txt").write_text(FIRST + huge)
    document = inspect_as_json(capsys, str(tmp_path / "huge.txt"))

    assert rows_by_name(document)["output_tokens_total"]["value"] is None


def test_observations_without_their_sum_are_observations(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A page that somebody thinned out has no mean of them, and quantiles all the same."""
    (tmp_path / "thin.txt").write_text(
        "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
        'vllm:time_to_first_token_seconds_bucket{le="0.1"} 4\nvllm:time_to_first_token_seconds_bucket{le="+Inf"} 4\n'
        "vllm:time_to_first_token_seconds_count 4\n"
    )
    rows = rows_by_name(inspect_as_json(capsys, str(tmp_path / "thin.txt")))

    assert rows["time_to_first_token_seconds"]["reason"] == "observations without their sum"
    assert rows["time_to_first_token_p50"]["value"] == pytest.approx(0.05)


def test_a_note_names_repeated_series(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """They count once, and a note names one."""
    (tmp_path / "twice.txt").write_text(FIRST + FIRST.splitlines()[-1] + "\n")
    document = inspect_as_json(capsys, str(tmp_path / "twice.txt"))

    assert any(note.startswith("1 samples repeat a series") for note in document["notes"])


@pytest.mark.parametrize(("first_tokens", "running", "is_noted"), [(178, 1, True), (1, 1, False), (0, 0, False)])
def test_a_note_says_that_requests_may_be_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, first_tokens: int, running: int, is_noted: bool
) -> None:
    """Lines that somebody chose have no counter of requests, which is not 0 where more began than are in flight."""
    (tmp_path / "part.txt").write_text(
        f"vllm:num_requests_running {running}\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
        f"vllm:time_to_first_token_seconds_count {first_tokens}\nvllm:time_to_first_token_seconds_sum 1\n"
    )
    notes = inspect_as_json(capsys, str(tmp_path / "part.txt"))["notes"]

    assert any("unknown in a part of a page: requests_total" in note for note in notes) is is_noted


def test_with_seconds_there_are_rates(capsys: pytest.CaptureFixture[str], files: tuple[str, str]) -> None:
    """The seconds between two files make rates of increases, and change no ratio."""
    rows = rows_by_name(inspect_as_json(capsys, *files, "--seconds", "10"))
    assert rows["output_tokens_per_second"]["value"] == 30
    assert rows["request_rate"]["value"] == pytest.approx(0.4)
    assert rows["request_error_share"]["value"] == 0.5


def test_a_fresh_server_has_counts_and_no_means(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Before its first request counters are 0, and means have no data, with that reason."""
    (tmp_path / "x.txt").write_text(
        "dynamo_frontend_disconnected_clients 0\ndynamo_frontend_event_loop_stall_total 0\n"
        'dynamo_frontend_model_context_length{model="tiny"} 4096\n'
    )
    rows = rows_by_name(inspect_as_json(capsys, str(tmp_path / "x.txt")))
    assert rows["output_tokens_total"]["value"] == 0
    assert rows["output_tokens_per_request"]["value"] is None
    assert rows["output_tokens_per_request"]["reason"].startswith("no data: nothing to divide by")
    assert rows["request_duration_seconds"]["reason"].startswith("no observation")


def test_the_evidence_of_a_map_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads figures of a program that nobody has run is warned."""
    path = str(PAGES / "trtllm-1.3-1.txt")
    assert main(["inspect", path]) == 0
    text = capsys.readouterr().out
    assert "Evidence of the map: read from its source, never run: its figures gate nothing in a cutover." in text
    assert inspect_as_json(capsys, path)["evidence"] == "read"


def test_an_approximate_part_makes_a_figure_approximate(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str]
) -> None:
    """A hit rate of the local cache alone is approximate."""
    row = rows_by_name(inspect_as_json(capsys, *files))["kv_cache_hit_rate"]
    assert row["status"] == "approximate"
    assert "local cache" in row["reason"]


@pytest.mark.parametrize(
    ("drafted", "verdict"),
    [("288.0", "too little evidence: 288 of 300 draft tokens"), ("300.0", "good: well aligned")],
)
def test_a_band_gives_its_verdict(
    capsys: pytest.CaptureFixture[str], captures: Path, tmp_path: Path, drafted: str, verdict: str
) -> None:
    """A figure with a band is judged by it, once there is the least evidence for that."""
    page = (captures / "vllm-0.32.0-1.txt").read_text()
    for name, count in (("accepted", "270.0"), ("draft", drafted)):
        page, found = re.subn(
            rf"^(vllm:spec_decode_num_{name}_tokens_total{{.*}}) .*$", rf"\1 {count}", page, flags=re.M
        )
        assert found == 1
    (tmp_path / "page.txt").write_text(page)
    rows = rows_by_name(inspect_as_json(capsys, str(tmp_path / "page.txt")))
    assert rows["speculation_rate"]["verdict"] == verdict


@pytest.mark.parametrize(
    ("capture", "guess"),
    [("dcgm-exporter-4.x-1", "DCGM exporter")],
)
def test_an_unknown_exposition_is_reported_as_unknown(
    captures: Path, capsys: pytest.CaptureFixture[str], capture: str, guess: str
) -> None:
    """An exposition without a map ends with code 1, and with the nearest guess in both forms."""
    path = str(captures / f"{capture}.txt")
    document = inspect_as_json(capsys, path, code=1)
    assert (document["source"], document["metrics"]) == (None, [])
    assert guess in document["nearest"]
    assert main(["inspect", path]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "answers, not understood; it looks like" in text
    assert guess in text


def test_a_source_that_is_named_is_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """--source reads even what is not recognised, with a note."""
    (tmp_path / "x.txt").write_text("vllm:generation_tokens_total 5\n")
    document = inspect_as_json(capsys, str(tmp_path / "x.txt"), "--source", "vllm")
    assert rows_by_name(document)["output_tokens_total"]["value"] == 5
    assert document["notes"][0] == "read as 'vllm' by --source; its names look like those of vLLM"


@pytest.mark.parametrize(
    ("shown", "unseen"),
    [
        (
            'vllm:request_success_total{finished_reason="stop"} 4',
            "input_tokens_total, output_tokens_total, time_to_first",
        ),
        ("vllm:generation_tokens_total 9", "requests_total, input_tokens_total, time_to_first"),
    ],
)
def test_what_every_answer_moves_is_missed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shown: str, unseen: str
) -> None:
    """A part of a page shows answers and lacks some of what they count, which is no 0; an idle engine lacks all."""
    path = tmp_path / "part.txt"
    path.write_text(f"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n{shown}\n")
    (note,) = inspect_as_json(capsys, str(path))["notes"]
    assert f"unknown in a part of a page: {unseen}" in note
    path.write_text("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n")
    assert inspect_as_json(capsys, str(path))["notes"] == []


def test_families_that_are_not_read_are_counted_or_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Those that the map ignores are listed with their reasons on demand; one that it does not know always is."""
    path = tmp_path / "newer.txt"
    path.write_text(f"{FIRST}python_info 1\nvllm:cache_config_info 1\nvllm:dreams_total 1\n")

    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "\n1 family that the map does not know: vllm:dreams_total\n" in text
    assert "\n2 families that the map ignores, listed with --all\n" in text
    assert "vllm:cache_config_info" not in text
    assert main(["inspect", str(path), "--all"]) == 0
    assert "  settings as labels\n    vllm:cache_config_info\n" in capsys.readouterr().out
    document = inspect_as_json(capsys, str(path))
    assert document["unknown"] == ["vllm:dreams_total"]
    assert {"name": "vllm:cache_config_info", "reason": "settings as labels"} in document["ignored"]


@pytest.mark.parametrize("width", [100, 140, 220])
def test_the_text_is_aligned(captures: Path, capsys: pytest.CaptureFixture[str], width: int) -> None:
    """Columns are aligned by section, and lines stay within the width but for long names."""
    path = str(captures / "dynamo-frontend-1.6.1-1.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        assert main(["inspect", path]) == 0
    text = capsys.readouterr().out
    assert "Dynamo frontend, 1.6 (source map 'dynamo-frontend')" in text
    assert "Evidence of the map: the program was run, and what it counted compared with" in text
    assert "since its process started" in text
    sections = re.split(r"^(ENGINE|ROUTER|AUTOSCALER|PROCESS)\n", text, flags=re.MULTILINE)[1:]
    assert sections[::2] == ["ENGINE", "ROUTER", "AUTOSCALER", "PROCESS"]
    for section in sections[1::2]:
        lines = section.rstrip("\n").split("\n")
        starts = {re.search(r"\b(present|derived|approximate|elsewhere|impossible)\b", line) for line in lines}
        columns = {match.start() for match in starts if match and match.start() < 90 and match.string[2] != " "}
        assert len(columns) == 1
    assert max(map(len, text.splitlines())) <= max(width, 150)
    assert re.search(r"kv_cache_hit_rate +[\d.]+  ratio  derived", text)


def test_parts_are_listed_under_their_metric(capsys: pytest.CaptureFixture[str], files: tuple[str, str]) -> None:
    """Values by a label of the contract are indented below the total."""
    assert main(["inspect", *files, "--seconds", "10"]) == 0
    text = capsys.readouterr().out
    assert re.search(
        r"requests_total +4 requests  increase .*\n(?: {60,}.*\n)*    \{outcome=\"ok\"\} +2 requests", text
    )
    assert "Two expositions 10 s apart" in text


def test_two_engines_are_not_compared(
    capsys: pytest.CaptureFixture[str], files: tuple[str, str], tmp_path: Path
) -> None:
    """Increases from one engine to another would mean nothing."""
    (tmp_path / "other.txt").write_text("trtllm_request_success_total 1\n")
    assert main(["inspect", files[0], str(tmp_path / "other.txt")]) == 1
    assert "the earlier exposition is vLLM, the later unknown (it looks like TensorRT-LLM)" in capsys.readouterr().err
