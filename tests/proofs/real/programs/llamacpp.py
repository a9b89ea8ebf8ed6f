"""llama.cpp's server on a tiny random Llama, without and with a draft model."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.proofs.real.claims import ABSENT, SEEN_SHARE, Ledger, Range, exactly
from tests.proofs.real.client import Counts
from tests.proofs.real.engines import MODEL_NAME, START_SECONDS, Engine, Target, serves
from tests.proofs.real.environments import ensure_gguf
from tests.proofs.real.processes import pick_ports, running, wait_until
from tests.proofs.real.programs.program import Program, Running, UnavailableError
from tests.tools import LLAMACPP, llamacpp_server, prepare

SLOTS = 4


@contextmanager
def run(environments: Path, logs: Path, *, drafts: bool = False) -> Iterator[Running]:
    """The server, ready; `drafts`: with the model itself as its draft model."""
    prepare(LLAMACPP)
    server = llamacpp_server()
    if server is None:
        raise UnavailableError("llama.cpp's server is not available")
    model = str(ensure_gguf(environments.resolve()))
    name = "llamacpp-draft" if drafts else "llamacpp"
    (port,) = pick_ports(1)
    command = [
        str(server), "-m", model, "--host", "127.0.0.1", "--port", str(port), "--metrics",
        "-np", str(SLOTS), "-c", str(SLOTS * 4096), "-t", "1", "--alias", MODEL_NAME,
    ]  # fmt: skip
    if drafts:
        command += ["-md", model, "--spec-type", "draft-simple", "--spec-draft-n-max", "4"]
    base = f"http://127.0.0.1:{port}"
    with running(name, command, logs) as started:
        seconds = wait_until(lambda: serves(base), name, seconds=START_SECONDS, processes=[started])
        target = Target(f"{base}/metrics", "aggregated", f"{name}-0")
        yield Running(Engine(name, _version(server), base, (target,), seconds, (name,)))


def _version(server: Path) -> str:
    said = subprocess.run([str(server), "--version"], capture_output=True, text=True, timeout=60, check=True)
    found = re.search(r"version: (\S+)", said.stdout + said.stderr)
    assert found, said
    return found[1]


@contextmanager
def run_with_drafts(environments: Path, logs: Path) -> Iterator[Running]:
    """The server with a draft model, ready."""
    with run(environments, logs, drafts=True) as started:
        yield started


def claim(ledger: Ledger, counts: Counts) -> dict[str, Range]:
    """Tokens are exact; requests, outcomes and times are in no series."""
    served = ledger.input + ledger.given_up(ledger.left_served), ledger.input + ledger.given_up()
    left_output = sum(each.chunks for each in ledger.left), sum(each.job.max_tokens for each in ledger.left)
    waited = ledger.durations((*ledger.ok, *ledger.left))
    return {
        "input_tokens_total": (*served, "computed + reused; who left while it waited may have had no slot"),
        "kv_cache_eligible_tokens_total": (*served, "as input tokens"),
        "kv_cache_reused_tokens_total": (
            ledger.cached, ledger.cached + ledger.given_up(), "cached tokens in the usage, plus those who left",
        ),
        "output_tokens_total": (
            ledger.output + left_output[0], ledger.output + left_output[1],
            "of clients that left: at least the chunks they read, at most what they asked for",
        ),
        "decode_seconds_total": (
            SEEN_SHARE * ledger.seen_decoding, waited, "with each first token's step, within what the client waited",
        ),
        "concurrent_requests": exactly(0, "all have ended"),
        "queued_requests": exactly(0, "all have ended"),
        'requests_total{outcome="ok"}': ABSENT,
        "time_to_first_token_seconds_count": ABSENT,
        "kv_cache_usage": ABSENT,
        **_drafts(ledger, sum(each.job.max_tokens for each in ledger.left)),
    }  # fmt: skip


def _drafts(ledger: Ledger, left_tokens: float) -> dict[str, Range]:
    """What the answers' own timings add up to; of clients that left the client knows no drafts."""
    drafted, accepted = (float(sum(getattr(each, which) for each in ledger.ok)) for which in ("drafted", "accepted"))
    why = "draft tokens in the answers' timings, plus those of clients that left"
    return {
        "spec_decode_num_draft_tokens_total": (drafted, drafted + 4 * left_tokens, why),
        "spec_decode_num_accepted_tokens_total": (accepted, accepted + left_tokens, why),
    }


PROGRAMS = (
    Program("llamacpp", run, claim, as_text=False, burst=12, page=None),
    Program("llamacpp-draft", run_with_drafts, claim, as_text=False, burst=12, page="llamacpp-2026-1"),
)
