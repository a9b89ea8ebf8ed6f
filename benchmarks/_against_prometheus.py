"""The collector beside a real Prometheus: the same scrapes, the same translation, the same rules, at the same time.

Both scrape one simulated fleet of vLLM engines. Prometheus translates with `metric_relabel_configs`, which it applies
to a series once and not at every scrape, keeps what belongs to the contract and evaluates the generated recording
rules. Interval, evaluation and window have the proportions of 15 s, 15 s and 5 min, five times as fast.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from alerts.recording import render_recording_rules
from benchmarks import _fleet
from benchmarks._pages import SAMPLES
from benchmarks._processes import Measured, collecting
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS
from tests import tools
from tests.support import prometheus

_TARGETS = 200
_INTERVAL, _WINDOW = "3s", "1m"
_WARM_UP_SECONDS = 66.0
_SECONDS = 90.0

_RENAMED = {
    "vllm:prompt_tokens_total": "input_tokens_total",
    "vllm:generation_tokens_total": "output_tokens_total",
    "vllm:request_prompt_tokens": "input_tokens_per_request",
    "vllm:request_generation_tokens": "output_tokens_per_request",
    "vllm:num_requests_running": "concurrent_requests",
    "vllm:num_requests_waiting": "queued_requests",
    "vllm:spec_decode_num_draft_tokens_total": "spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total": "spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": "spec_decode_num_accepted_tokens_per_pos_total",
    "vllm:request_success_total": "requests_total",
    "vllm:time_to_first_token_seconds": "time_to_first_token_seconds",
    "vllm:request_time_per_output_token_seconds": "time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds": "request_duration_seconds",
    "vllm:inter_token_latency_seconds": "inter_token_latency_seconds",
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
    "vllm:num_preemptions_total": "preemptions_total",
    "vllm:request_decode_time_seconds_sum": "decode_seconds_total",
    "vllm:prefix_cache_queries_total": "kv_cache_eligible_tokens_total",
    "vllm:prompt_tokens_cached_total": "kv_cache_reused_tokens_total",
}
"""What the collector's source map says, as far as renaming can say it: one native series is one contract series."""

_OUTCOMES = {"stop|length|repetition": "ok", "abort": "client_abort", "error": "error"}


def run() -> None:
    """Print the CPU of each for a sample scraped, translated, derived and stored, or that there is no Prometheus."""
    binary = tools.prometheus_binary()
    if binary is None:
        print("prometheus is not there: not compared; `python -m tests.tools` prepares it")
        return
    with tempfile.TemporaryDirectory(prefix="servescope-against-") as name:
        _compare(Path(name), binary)


def _compare(folder: Path, binary: Path) -> None:
    settings = {"scrape_interval": _INTERVAL, "evaluation_interval": _INTERVAL, "window": _WINDOW}
    rules = folder / "figures.rules.yml"
    rules.write_text(render_recording_rules(_WINDOW, _INTERVAL), encoding="utf-8")
    with _fleet.serving(_TARGETS, folder / "targets") as fleet:
        configuration, port = _fleet.write_configuration(fleet, folder, settings)
        theirs = _prometheus_configuration(fleet, rules)
        with (
            prometheus.running(binary, folder / "prometheus", theirs) as server,
            collecting(configuration, port) as collector,
        ):
            peer = Measured(0, f"http://127.0.0.1:{server.port}")
            time.sleep(_WARM_UP_SECONDS)
            _measure(fleet, collector, peer)
            _check_figures(collector, server)


def _prometheus_configuration(fleet: _fleet.Fleet, rules: Path) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": _INTERVAL, "scrape_timeout": _INTERVAL, "evaluation_interval": _INTERVAL},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": f"chat-{number}",
                "file_sd_configs": [{"files": [str(path)]}],
                "relabel_configs": [
                    {"target_label": "deployment_id", "replacement": f"chat-{number}"},
                    {"target_label": "inference_stack", "replacement": "vllm"},
                    {"target_label": "role", "replacement": "aggregated"},
                ],
                "metric_relabel_configs": list(_translation()),
            }
            for number, path in enumerate(fleet.lists)
        ],
    }


def _translation() -> Iterator[dict[str, Any]]:
    kept = "|".join(re.escape(native) for native in _RENAMED)
    yield {"source_labels": ["__name__"], "regex": f"({kept})(_bucket|_sum|_count)?", "action": "keep"}
    for native, name in _RENAMED.items():
        regex = f"{re.escape(native)}(_bucket|_sum|_count)?"
        yield {"source_labels": ["__name__"], "regex": regex, "target_label": "__name__", "replacement": f"{name}$1"}
    for reasons, outcome in _OUTCOMES.items():
        yield {
            "source_labels": ["finished_reason"],
            "regex": reasons,
            "target_label": "outcome",
            "replacement": outcome,
        }


def _measure(fleet: _fleet.Fleet, collector: Measured, peer: Measured) -> None:
    began = time.time()
    before = collector.cpu_seconds(), peer.series()
    time.sleep(_SECONDS)
    ended = time.time()
    after = collector.cpu_seconds(), peer.series()
    ours = after[0] - before[0]
    theirs = after[1]["process_cpu_seconds_total"] - before[1]["process_cpu_seconds_total"]
    pages = {agent: sum(began <= at < ended for at in fleet.scrapes(agent)) for agent in ("servescope", "prometheus")}
    per_sample = {
        "servescope": ours / pages["servescope"] / SAMPLES,
        "prometheus": theirs / pages["prometheus"] / SAMPLES,
    }
    print(
        f"scrape, translate, derive and store: {_TARGETS} vLLM engines of {SAMPLES} samples every {_INTERVAL}, figures"
    )
    print(
        f"over {_WINDOW} every {_INTERVAL}, both at the same time, for {_SECONDS:.0f} s after {_WARM_UP_SECONDS:.0f} s"
    )
    for agent, seconds in per_sample.items():
        print(f"  {agent:<12} {seconds * 1e6:6.2f} µs of CPU a sample, {pages[agent]} pages")
    print(f"  servescope / prometheus {per_sample['servescope'] / per_sample['prometheus']:.2f}  (below 1)")
    appended = (
        after[1]["prometheus_tsdb_head_samples_appended_total"]
        - before[1]["prometheus_tsdb_head_samples_appended_total"]
    )
    kept = collector.stored_samples() / fleet.targets
    print(
        f"  stored of a page, about: {kept:.0f} and {appended / pages['prometheus']:.0f} samples (theirs with results)"
    )
    memory = collector.resident_bytes() / 1e6, after[1]["process_resident_memory_bytes"] / 1e6
    print(f"  resident memory: {memory[0]:.0f} and {memory[1]:.0f} MB")


def _check_figures(collector: Measured, server: prometheus.Prometheus) -> None:
    """Print how far the figures of both lie apart; they scraped at different moments, so they are never the same."""
    differences = []
    for shown in json.loads(collector.read("/api/v1/deployments"))["deployments"]:
        theirs = _recorded(server, shown["deployment"]["deployment_id"], shown["time_ms"])
        for key, value in shown["figures"].items():
            if key in theirs and value and theirs[key]:
                differences.append(abs(value - theirs[key]) / max(abs(value), abs(theirs[key])))
    if not differences:
        print("  no figure is in both: the comparison is void")
        return
    print(f"  figures in both: {len(differences)}, apart by {statistics.median(differences):.1%} in the median")


def _recorded(server: prometheus.Prometheus, deployment: str, at_ms: int) -> Mapping[str, float]:
    """The figures without further labels that Prometheus recorded for a deployment, by our names."""
    names = {figure.record(_WINDOW): name for name, figure in FIGURES.items() if not figure.by}
    points = server.query(f'{{__name__=~"deployment:.*",deployment_id="{deployment}"}}', at_ms=at_ms)
    return {
        names[record]: point.value
        for point in points
        if (record := dict(point.labels)["__name__"]) in names
        and {name for name, _ in point.labels} <= {"__name__", *DEPLOYMENT_LABELS}
    }
