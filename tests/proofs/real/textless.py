"""Tokens that have no text, which part of Dynamo's frontend does not see: the contract must count them all the same."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.proofs.real.claims import Claim
from tests.proofs.real.client import send_all
from tests.proofs.real.coverage import inspect
from tests.proofs.real.engines import run_dynamo
from tests.proofs.real.traffic import make_streams

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
    ok = counts.of("ok")
    prompted = float(sum(each.prompt_tokens for each in ok))
    counted = {
        "requests_total": float(len(ok)),
        "output_tokens_total": float(sum(each.output_tokens for each in ok)),
        "kv_cache_eligible_tokens_total": prompted,
        "kv_cache_reused_tokens_total": float(sum(each.cached_tokens for each in ok)),
    }
    why = f"{STREAMS} streams, which the client read in {sum(each.chunks for each in ok)} chunks"
    unseen = "a stream in which no token at all has text is not observed"
    return [
        *(Claim("dynamo", what, read[what], value, value, why) for what, value in counted.items()),
        Claim("dynamo", "input_tokens_total", read["input_tokens_total"], 0, prompted, unseen),
    ]
