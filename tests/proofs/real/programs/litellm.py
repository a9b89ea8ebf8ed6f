"""LiteLLM's proxy in front of an emulated worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.proofs.real.claims import ABSENT, SEEN_SHARE, Ledger, Range, exactly
from tests.proofs.real.client import Counts
from tests.proofs.real.engines import MODEL_NAME, START_SECONDS, Engine, Target, serves
from tests.proofs.real.environments import LITELLM, LITELLM_VERSION, ensure_environment
from tests.proofs.real.processes import pick_ports, running, wait_until
from tests.proofs.real.programs.program import Program, Running
from tests.proofs.real.programs.workers import IDLE_SECONDS, Workers, run_workers
from tests.proofs.real.traffic import CHAT


@contextmanager
def run(environments: Path, logs: Path) -> Iterator[Running]:
    """The proxy, ready, with no key and no try but the first."""
    environment = ensure_environment(environments, LITELLM)
    (port,) = pick_ports(1)
    with run_workers(1, logs) as workers:
        configuration = logs / "litellm.yaml"
        # JSON is YAML.
        configuration.write_text(json.dumps(_configuration(workers)), encoding="utf-8")
        command = [
            str(environment / "bin" / "litellm"), "--config", str(configuration),
            "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False",
        ]  # fmt: skip
        settings = {
            "PATH": f"{environment / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HF_HUB_OFFLINE": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            # It is on loopback, and serves nobody else.
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        }
        base = f"http://127.0.0.1:{port}"
        with running("litellm", command, logs, environment=settings) as started:
            seconds = wait_until(lambda: serves(base), "litellm", seconds=START_SECONDS, processes=[started])
            target = Target(f"{base}/metrics/", "router", "litellm-0")
            engine = Engine("litellm", LITELLM_VERSION, base, (target,), seconds, ("litellm",))
            yield Running(engine, workers, workers.kill_first)


def _configuration(workers: Workers) -> dict[str, object]:
    model = {"model": f"openai/{MODEL_NAME}", "api_base": f"{workers.urls[0]}/v1", "api_key": "none"}
    return {
        "model_list": [{"model_name": MODEL_NAME, "litellm_params": model}],
        "litellm_settings": {
            "callbacks": ["prometheus"],
            "require_auth_for_metrics_endpoint": False,
            # Otherwise it asks a hub for a tokenizer before it answers.
            "disable_hf_tokenizer_download": True,
            "num_retries": 0,
            "drop_params": True,
        },
        # A worker that fails is asked again at once.
        "router_settings": {"disable_cooldowns": True, "num_retries": 0},
    }


def claim(ledger: Ledger, counts: Counts) -> dict[str, Range]:
    """What it counts is known, and is not always what its client saw."""
    waiting = ledger.left_waiting
    chats = [each for each in ledger.left_served if each.job.path == CHAT]
    counted = len(ledger.ok) + len(waiting) + len(chats)
    left_tokens = MOST_PROMPT_TOKENS * (len(waiting) + len(chats))
    ended = ledger.output + sum(each.job.max_tokens for each in waiting)
    return {
        'requests_total{outcome="ok"}': exactly(
            counted, "with chats whose client left, and answers that nobody waited for; streamed completions are not"
        ),
        'requests_total{outcome="client_error"}': exactly(len(ledger.refused), "answered 400"),
        'requests_total{outcome="error"}': exactly(
            len(ledger.errors) + len(counts.of("broken")), "answered 500, or a stream that broke"
        ),
        'requests_total{outcome="client_abort"}': ABSENT,
        "requests_started_total": ABSENT,
        "input_tokens_total": (ledger.input, ledger.input + left_tokens, "of those it counts as ok"),
        "output_tokens_total": (
            ended + sum(each.chunks for each in chats) - len(chats),
            ended + sum(each.job.max_tokens for each in chats), "of those it counts as ok",
        ),
        "kv_cache_eligible_tokens_total": (ledger.input, ledger.input + left_tokens, "as input tokens"),
        "kv_cache_reused_tokens_total": (ledger.cached, ledger.cached + left_tokens, "cached tokens in the usage"),
        "request_duration_seconds_count": exactly(counted, "one for each that is ok"),
        "request_duration_seconds_sum": (
            SEEN_SHARE * ledger.durations(ledger.ok),
            ledger.durations((*ledger.ok, *chats)) * 1.02 + len(waiting) * IDLE_SECONDS,
            "within what clients waited, and what went on after that",
        ),
        "concurrent_requests": ABSENT,
        "time_to_first_token_seconds_count": ABSENT,
    }  # fmt: skip


MOST_PROMPT_TOKENS = 700
"""Of a prompt that a client leaves: at most 300 words, of two tokens and a few."""

SHOWN = (
    "litellm_proxy_total", "litellm_request_total", "litellm_input", "litellm_output", "litellm_in_flight",
    "process_start",
)  # fmt: skip
PROGRAMS = (Program("litellm", run, claim, page=f"litellm-{LITELLM_VERSION}-1", page_families=SHOWN),)
