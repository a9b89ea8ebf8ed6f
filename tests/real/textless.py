"""Tokens that have no text, which part of Dynamo's frontend does not see: the contract must count them all the same."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.real.claims import Claim
from tests.real.client import send_all
from tests.real.coverage import inspect
from tests.real.engines import run_dynamo
from tests.real.traffic import make_streams

VOCABULARY = 1024
"""The mock workers draw token ids from 1000 to 2000, of which this leaves nearly all without text."""

STREAMS = 20


def claim_textless(folder: Path, logs: Path) -> list[Claim]:
    """Streams whose tokens have hardly any text, read with `servescope inspect`."""
    with run_dynamo(folder, logs, vocabulary=VOCABULARY, workers=1) as engine:
        counts = asyncio.run(send_all(engine.base_url, make_streams(3, STREAMS), concurrency=2))
        time.sleep(1.0)
        report = inspect(engine.targets[0])
    read = {entry["name"]: entry["value"] for entry in report["metrics"]}
    counted = {
        "requests_total": float(len(counts.of("ok"))),
        "input_tokens_total": float(sum(each.prompt_tokens for each in counts.of("ok"))),
        "output_tokens_total": float(sum(each.output_tokens for each in counts.of("ok"))),
        "kv_cache_reused_tokens_total": float(sum(each.cached_tokens for each in counts.of("ok"))),
    }
    chunks = sum(each.chunks for each in counts.of("ok"))
    why = f"{STREAMS} streams, read by the client in {chunks} chunks"
    return [Claim("dynamo", what, read[what], value, value, why) for what, value in counted.items()]
