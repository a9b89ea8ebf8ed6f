"""Two expositions of one vLLM, and `servescope inspect` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servescope.cli import main

FIRST = """
vllm:num_requests_running{engine="0"} 1
vllm:num_requests_waiting{engine="0"} 0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:prefix_cache_queries_total{engine="0"} 0
vllm:prefix_cache_hits_total{engine="0"} 0
vllm:inter_token_latency_seconds_count{engine="0"} 0
vllm:generation_tokens_total{engine="0"} 100
vllm:num_preemptions_total{engine="0"} 50
vllm:request_success_total{engine="0",finished_reason="stop"} 10
"""
LATER = """
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_waiting{engine="0"} 4
vllm:kv_cache_usage_perc{engine="0"} 0.75
vllm:prefix_cache_queries_total{engine="0"} 8
vllm:prefix_cache_hits_total{engine="0"} 6
vllm:inter_token_latency_seconds_count{engine="0"} 0
vllm:generation_tokens_total{engine="0"} 400
vllm:num_preemptions_total{engine="0"} 2
vllm:request_success_total{engine="0",finished_reason="stop"} 12
vllm:request_success_total{engine="0",finished_reason="error"} 2
"""


def inspect_as_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["inspect", *arguments, "--format", "json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def rows_by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in document["metrics"]}


def write_expositions(folder: Path) -> tuple[str, str]:
    """The two expositions as files."""
    (folder / "first.txt").write_text(FIRST)
    (folder / "later.txt").write_text(LATER)
    return str(folder / "first.txt"), str(folder / "later.txt")
