"""What each real target covers: as its source map says, and as is seen on the collector's `/metrics`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from servescope.contract.metrics import METRICS, PROCESS_RATIOS
from tests.proofs.real.claims import Claim
from tests.proofs.real.engines import Target

SUPPLIED = ("present", "derived", "approximate")

EXPECTED: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "input_tokens_total": "present",
        "output_tokens_total": "present",
        "requests_total": "present",
        "concurrent_requests": "derived",
        "decode_seconds_total": "derived",
        "spec_decode_num_draft_tokens_total": "present",
        "kv_cache_reused_tokens_total": "present",
        "kv_cache_predicted_tokens_total": "impossible",
        "kv_cache_best_tokens_total": "impossible",
        "autoscaler_in_flight_tokens": "impossible",
    },
    "servescope": {
        "tps_per_request": "present",
        "input_tokens_total": "present",
        "requests_total": "present",
        "concurrent_requests": "present",
        "decode_seconds_total": "present",
        "spec_decode_num_draft_tokens_total": "present",
        "kv_cache_eligible_tokens_total": "present",
        "kv_cache_reused_tokens_total": "present",
        "kv_cache_predicted_tokens_total": "impossible",
        "requests_started_total": "impossible",
        "autoscaler_in_flight_tokens": "elsewhere",
    },
    "dynamo-frontend": {
        "input_tokens_total": "derived",
        "requests_total": "present",
        "requests_started_total": "present",
        "time_per_output_token_seconds": "impossible",
        "spec_decode_num_draft_tokens_total": "elsewhere",
        "kv_cache_usage": "elsewhere",
        "kv_cache_eligible_tokens_total": "present",
        "kv_cache_predicted_tokens_total": "present",
        "kv_cache_reused_tokens_total": "derived",
        "kv_cache_best_tokens_total": "present",
        "replica_count_by_status": "approximate",
    },
    "llamacpp": {
        "input_tokens_total": "derived",
        "output_tokens_total": "present",
        "requests_total": "impossible",
        "time_to_first_token_seconds": "impossible",
        "decode_seconds_total": "approximate",
        "kv_cache_reused_tokens_total": "present",
        "kv_cache_usage": "impossible",
        "spec_decode_num_draft_tokens_total": "present",
    },
    "sglang-router": {
        "requests_started_total": "present",
        "requests_total": "approximate",
        "request_duration_seconds": "elsewhere",
        "input_tokens_total": "elsewhere",
        "kv_cache_predicted_tokens_total": "impossible",
        "replica_count_by_status": "approximate",
    },
    "vllm-router": {
        "requests_started_total": "elsewhere",
        "requests_total": "approximate",
        "request_duration_seconds": "elsewhere",
        "input_tokens_total": "elsewhere",
        "kv_cache_predicted_tokens_total": "impossible",
        "replica_count_by_status": "approximate",
    },
    "ray-serve": {
        "requests_started_total": "elsewhere",
        "requests_total": "approximate",
        "request_duration_seconds": "present",
        "concurrent_requests": "derived",
        "queued_requests": "present",
        "input_tokens_total": "elsewhere",
        "replica_count_by_status": "approximate",
        "autoscaler_rounded_desired_scale": "present",
    },
    "litellm": {
        "requests_started_total": "elsewhere",
        "requests_total": "approximate",
        "request_duration_seconds": "present",
        "input_tokens_total": "approximate",
        "output_tokens_total": "approximate",
        "kv_cache_reused_tokens_total": "present",
        "concurrent_requests": "elsewhere",
    },
    "dynamo-mocker": {
        "input_tokens_total": "elsewhere",
        "requests_total": "elsewhere",
        "kv_cache_usage": "present",
        "preemptions_total": "present",
        "kv_cache_reused_tokens_total": "elsewhere",
        "spec_decode_num_draft_tokens_total": "impossible",
    },
}


def claim_coverage(engine: str, targets: Iterable[Mapping[str, Any]], totals: Mapping[str, float]) -> list[Claim]:
    """Statuses as expected; a metric that some target supplies is on `/metrics`, one that none supplies is not."""
    targets = list(targets)
    wrong = [
        f"{target['identity']['replica']}: {metric} is {target['coverage'][metric]['status']}, expected {status}"
        for target in targets
        for metric, status in EXPECTED[target["source"]].items()
        if target["coverage"][metric]["status"] != status
    ]
    shown = {name for key in totals for name in _metric_names(key)}
    supplied = {
        metric for target in targets for metric, entry in target["coverage"].items() if entry["status"] in SUPPLIED
    }
    # The collector counts its own targets where nothing reports replicas, and derives the ratios itself.
    mapped = {metric for target in targets for metric in target["coverage"]} - {
        "replica_count_by_status",
        *PROCESS_RATIOS,
    }
    # The headline rate has no series of its own: it is the figure tps_per_request_mean.
    missing = (supplied & mapped) - shown - {"tps_per_request"}
    surplus = (shown & mapped) - supplied
    failing = [target["error"] for target in targets if not target["healthy"]]
    return [
        _none(engine, "statuses that are not the source map's", wrong),
        _none(engine, "metrics supplied, but not on /metrics", sorted(missing)),
        _none(engine, "metrics on /metrics that no target supplies", sorted(surplus)),
        _none(engine, "targets that are not healthy", failing),
    ]


def _none(engine: str, what: str, found: list[str]) -> Claim:
    return Claim(engine, what, float(len(found)), 0, 0, "; ".join(found[:5]))


def _metric_names(key: str) -> Iterable[str]:
    """The metrics a series may be of: its own name, or the histogram's."""
    name = key.partition("{")[0]
    yield from (each for each in (name, name.removesuffix("_sum"), name.removesuffix("_count")) if each in METRICS)


def inspect(target: Target) -> dict[str, Any]:
    """What the real `servescope inspect` says of a target."""
    command = [str(Path(sys.executable).with_name("servescope")), "inspect", target.url, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def claim_inspection(engine: str, target: Target, targets: Iterable[Mapping[str, Any]]) -> list[Claim]:
    """`servescope inspect` and the collector say the same of a target."""
    report = inspect(target)
    (collected,) = [each for each in targets if each["url"] == target.url]
    statuses = {entry["name"]: entry["status"] for entry in report["metrics"] if entry["kind"] == "metric"}
    differing = [
        f"{metric}: inspect {statuses.get(metric)}, collector {entry['status']}"
        for metric, entry in collected["coverage"].items()
        if metric not in PROCESS_RATIOS and statuses.get(metric) != entry["status"]
    ]
    if report["source"] != collected["source"]:
        differing.append(f"source: inspect {report['source']}, collector {collected['source']}")
    return [_none(engine, f"differences between inspect and the collector on {target.replica}", differing)]
