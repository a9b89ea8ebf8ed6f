"""A public load generator on the emulator: `python -m tests.proofs.real.load`, or `--help`.

NVIDIA's aiperf, in an environment of its own, sends requests to `servescope emulate`; its counts are compared with the
emulator's `/metrics` and with the figures that `servescope collect` derives of them, in servescope's names and in
vLLM's. The cache events are read by vLLM's own classes meanwhile. Ends with 0 when every claim holds, 1 when one does
not or something cannot be had, 2 for wrong arguments. Everything stays on 127.0.0.1 and is ended by its process id.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.proofs.real.claims import Claim
from tests.proofs.real.collector import Collector
from tests.proofs.real.environments import VLLM, Recipe, ensure_environment, ensure_model, install_packages
from tests.proofs.real.processes import ProcessError, pick_ports, read, running, wait_until
from tests.proofs.real.report import MARKERS, Section, conclude, describe_run, print_claims
from tests.support.proofs import make_parser, parse, run_in_folder

AIPERF_VERSION = "0.13.0"
AIPERF = Recipe(
    "aiperf",
    {"aiperf": AIPERF_VERSION},
    ("aiperf",),
    lambda environment: install_packages(environment, f"aiperf=={AIPERF_VERSION}"),
)
MODEL_NAME = "llama-3.3-70b"
DEPLOYMENT = "chat-v2"
RUN_SECONDS = 300.0
START_SECONDS = 60.0
_PROMPT, _PREFIX, _ANSWER = 200, 600, 40
_CANCELLED_PERCENT, _CANCELLED_AFTER_SECONDS = 25, 0.4
# What the client sees beyond what the engine counts: two processes on a busy machine, and the network between them.
_WAY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Load:
    """What aiperf counted; tokens and seconds are sums over the answered requests."""

    answered: int
    cancelled: int
    prompt_tokens: float
    output_tokens: float
    cached_tokens: float
    first_token_seconds: float
    latency_seconds: float


@dataclass(frozen=True, slots=True)
class Emulator:
    """A running `servescope emulate`."""

    url: str
    directory: Path

    def totals(self) -> dict[str, float]:
        """Every series of the listed targets, summed over them; with the outcome or the reason in its name."""
        sums: dict[str, float] = defaultdict(float)
        targets = json.loads((self.directory / "targets" / f"{DEPLOYMENT}.json").read_text(encoding="utf-8"))
        for target in targets:
            body = read(f"http://{target['targets'][0]}{target['labels']['__metrics_path__']}")
            if body is None:
                raise ProcessError(f"{target} does not answer 200")
            for family in text_string_to_metric_families(body.decode()):
                for sample in family.samples:
                    kind = sample.labels.get("outcome") or sample.labels.get("finished_reason")
                    sums[f"{sample.name}/{kind}" if kind else sample.name] += sample.value
        return dict(sums)


def main(words: Sequence[str] | None = None) -> int:
    """Run the comparison as the arguments ask."""
    arguments = _parse(words)
    return run_in_folder("tests.proofs.real.load", lambda folder: _compare(arguments, folder), keep=arguments.keep)


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("tests.proofs.real.load", "aiperf on the emulator, its counts beside the contract's.")
    parser.add_argument("--requests", type=int, default=120, metavar="N", help="requests of each run (default: 120)")
    parser.add_argument("--concurrency", type=int, default=6, metavar="N", help="requests at once (default: 6)")
    return parse(parser, words, MARKERS, requests=20, concurrency=1)


def _compare(arguments: argparse.Namespace, folder: Path) -> int:
    start = time.monotonic()
    aiperf = ensure_environment(arguments.environments, AIPERF)
    vllm = ensure_environment(arguments.environments, VLLM)
    tokenizer = ensure_model(arguments.environments, vllm)
    sections = []
    for names in ("servescope", "vllm"):
        logs = folder / names
        logs.mkdir()
        with (
            _emulate(names, logs) as emulator,
            _collect(emulator, logs) as collector,
            _subscribe(vllm, emulator) as subscriber,
        ):
            patient = _load(aiperf, tokenizer, emulator, logs / "patient", arguments, cancelled=False)
            collector.wait_for_scrapes()
            sections.append(_claim_patient(names, patient, emulator, collector))
            impatient = _load(aiperf, tokenizer, emulator, logs / "impatient", arguments, cancelled=True)
            sections.append(_claim_impatient(names, patient, impatient, emulator))
            sections.append(_claim_events(names, subscriber, emulator))
    return _conclude(arguments, sections, time.monotonic() - start)


@contextmanager
def _emulate(names: str, logs: Path) -> Iterator[Emulator]:
    (port, events) = pick_ports(2)
    directory = logs / "emulated"
    command = [
        sys.executable, "-m", "servescope.cli", "emulate", "--stack", "v2", "--traffic", "none", "--metrics", names,
        "--directory", str(directory), "--listen", f"127.0.0.1:{port}", "--kv-events", f"tcp://127.0.0.1:{events}",
    ]  # fmt: skip
    emulator = Emulator(f"http://127.0.0.1:{port}", directory)
    with running("emulator", command, logs) as started:
        wait_until(
            lambda: read(f"{emulator.url}/health") is not None, "emulator", seconds=START_SECONDS, processes=[started]
        )
        yield emulator


@contextmanager
def _collect(emulator: Emulator, logs: Path) -> Iterator[Collector]:
    (port,) = pick_ports(1)
    collector = Collector(f"http://127.0.0.1:{port}", logs / "servescope.db")
    command = [
        sys.executable, "-m", "servescope.cli", "collect", "--config", str(emulator.directory / "servescope.toml"),
        "--store", str(collector.store), "--listen", f"127.0.0.1:{port}",
    ]  # fmt: skip
    with running("collector", command, logs) as started:
        wait_until(
            lambda: read(f"{collector.url}/-/ready") is not None,
            "collector",
            seconds=START_SECONDS,
            processes=[started],
        )
        collector.wait_for_scrapes()
        yield collector


@contextmanager
def _subscribe(vllm: Path, emulator: Emulator) -> Iterator[subprocess.Popen[str]]:
    listed = read(f"{emulator.url}/kv-events")
    if listed is None:
        raise ProcessError(f"{emulator.url}/kv-events does not answer 200")
    process = subprocess.Popen(
        [str(vllm / "bin" / "python"), str(Path(__file__).with_name("kv_subscriber.py")),
         *(engine["endpoint"] for engine in json.loads(listed))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        # vLLM may have something to say before.
        if not any(line.strip() == "ready" for line in iter(process.stdout.readline, "")):
            raise ProcessError("the subscriber with vLLM's classes did not start")
        yield process
    finally:
        process.kill()
        process.communicate()


def _load(
    aiperf: Path, tokenizer: Path, emulator: Emulator, out: Path, arguments: argparse.Namespace, *, cancelled: bool
) -> Load:
    command = [
        str(aiperf / "bin" / "aiperf"), "profile", "--model", MODEL_NAME, "--url", emulator.url,
        "--endpoint-type", "chat", "--streaming", "--tokenizer", str(tokenizer),
        "--concurrency", str(arguments.concurrency), "--request-count", str(arguments.requests),
        "--synthetic-input-tokens-mean", str(_PROMPT), "--output-tokens-mean", str(_ANSWER),
        "--num-prefix-prompts", "3", "--prefix-prompt-length", str(_PREFIX),
        "--use-server-token-count", "--random-seed", "1", "--ui", "none", "--artifact-dir", str(out),
        # An answer that ends by itself before its limit would be under another of vLLM's reasons.
        "--extra-inputs", "ignore_eos:true",
    ]  # fmt: skip
    if cancelled:
        command += ["--request-cancellation-rate", str(_CANCELLED_PERCENT)]
        command += ["--request-cancellation-delay", str(_CANCELLED_AFTER_SECONDS)]
    # Offline, aiperf takes the path of a tokenizer for the name of one on a hub.
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_OFFLINE")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False, env=environment)
    if done.returncode != 0:
        raise ProcessError(f"aiperf ended with {done.returncode}: {done.stdout[-800:]}")
    return read_load(out / "profile_export.jsonl")


def read_load(path: Path) -> Load:
    """What aiperf exported, a line per request; raises ProcessError when any of them failed."""
    sums: dict[str, float] = defaultdict(float)
    for line in path.read_text(encoding="utf-8").splitlines():
        record: dict[str, Any] = json.loads(line)
        if record.get("error") is not None or record["metadata"]["was_cancelled"]:
            sums["cancelled" if record["metadata"]["was_cancelled"] else "failed"] += 1
            continue
        sums["answered"] += 1
        for name, metric in record["metrics"].items():
            if isinstance(metric["value"], int | float):
                sums[name] += metric["value"]
    if sums["failed"]:
        raise ProcessError(f"{sums['failed']:g} of aiperf's requests failed")
    return Load(
        answered=round(sums["answered"]),
        cancelled=round(sums["cancelled"]),
        prompt_tokens=sums["usage_prompt_tokens"],
        output_tokens=sums["usage_completion_tokens"],
        cached_tokens=sums["usage_prompt_cache_read_tokens"],
        first_token_seconds=sums["time_to_first_token"] / 1000,
        latency_seconds=sums["request_latency"] / 1000,
    )


# The same quantities under either name.
_NATIVE = {
    "servescope": {
        "ok": "requests_total/ok",
        "client_abort": "requests_total/client_abort",
        "input": "input_tokens_total",
        "output": "output_tokens_total",
        "reused": "kv_cache_reused_tokens_total",
        "first_token": "time_to_first_token_seconds",
        "duration": "request_duration_seconds",
    },
    "vllm": {
        "ok": "vllm:request_success_total/length",
        "client_abort": "vllm:request_success_total/abort",
        "input": "vllm:prompt_tokens_total",
        "output": "vllm:generation_tokens_total",
        "reused": "vllm:prompt_tokens_cached_total",
        "first_token": "vllm:time_to_first_token_seconds",
        "duration": "vllm:e2e_request_latency_seconds",
    },
}


def _claim_patient(names: str, load: Load, emulator: Emulator, collector: Collector) -> Section:
    """Nobody left: all counts are exact, times are the client's less the way."""
    totals, own, native = emulator.totals(), collector.totals()[DEPLOYMENT], _NATIVE[names]
    figures = collector.latest(DEPLOYMENT)
    way = load.answered * _WAY_SECONDS
    later = "the client's clock runs on while the answer is on its way"
    claims = [
        _exact("page", native["ok"], totals.get(native["ok"]), load.answered),
        _exact("page", native["input"], totals.get(native["input"]), load.prompt_tokens),
        _exact("page", native["output"], totals.get(native["output"]), load.output_tokens),
        _exact("page", native["reused"], totals.get(native["reused"]), load.cached_tokens),
        Claim("page", f"{native['first_token']}_sum", totals.get(f"{native['first_token']}_sum"),
              load.first_token_seconds - way, load.first_token_seconds, later),
        Claim("page", f"{native['duration']}_sum", totals.get(f"{native['duration']}_sum"),
              load.latency_seconds - way, load.latency_seconds, later),
        _exact("collector", 'requests_total{outcome="ok"}', own.get('requests_total{outcome="ok"}'), load.answered),
        _exact("collector", "input_tokens_total", own.get("input_tokens_total"), load.prompt_tokens),
        _exact("collector", "output_tokens_total", own.get("output_tokens_total"), load.output_tokens),
        Claim("collector", "kv_cache_hit_rate", figures.get("kv_cache_hit_rate"),
              *_near(load.cached_tokens / load.prompt_tokens, _HIT_RATE_OFF[names]), _WHY_OFF[names]),
    ]  # fmt: skip
    return Section(f"aiperf against /metrics in {names}'s names, nobody leaving", claims)


def _claim_impatient(names: str, patient: Load, impatient: Load, emulator: Emulator) -> Section:
    native = _NATIVE[names]
    wait_until(
        lambda: sum(emulator.totals().get(name, 0.0) for name in _RUNNING[names]) == 0, "the end of all", seconds=30
    )
    totals = emulator.totals()
    answered = patient.answered + impatient.answered
    claims = [
        _exact("page", native["ok"], totals.get(native["ok"]), answered),
        _exact("page", native["client_abort"], totals.get(native["client_abort"], 0.0), impatient.cancelled),
        Claim("aiperf", "requests it cancelled", impatient.cancelled, 1, float("inf")),
    ]
    return Section(f"aiperf against /metrics in {names}'s names, clients leaving", claims)


# The router's two counters are extrapolated to the window alike; those of several engines each by its own first sample.
_HIT_RATE_OFF = {"servescope": 1e-9, "vllm": 0.02}
_WHY_OFF = {"servescope": "", "vllm": "three engines, the increase of each extrapolated to the window"}

_RUNNING = {"servescope": ("concurrent_requests",), "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting")}


def _claim_events(names: str, subscriber: subprocess.Popen[str], emulator: Emulator) -> Section:
    """What vLLM's classes read is what was published, without a gap."""
    listed = json.loads(read(f"{emulator.url}/kv-events") or b"[]")
    out, _ = subscriber.communicate("", timeout=60)
    seen = json.loads(out.strip().splitlines()[-1])
    claims = []
    for engine, received in zip(listed, seen, strict=True):
        name = engine["replica"]
        claims.append(_exact(name, "batches read by vLLM's classes", received["batches"], engine["next_sequence"]))
        claims.append(_exact(name, "gaps in their numbers", received["gaps"], 0))
        claims.append(_exact(name, "rank", received["ranks"][0] if received["ranks"] else None, engine["rank"]))
    return Section(f"Cache events as vLLM reads them, beside {names}'s names", claims)


def _exact(where: str, what: str, value: float | None, expected: float) -> Claim:
    return Claim(where, what, value, expected, expected)


def _near(value: float, off: float) -> tuple[float, float]:
    return value - off, value + off


def _conclude(arguments: argparse.Namespace, sections: Sequence[Section], seconds: float) -> int:
    for section in sections:
        print_claims(section)
    load = f"aiperf {AIPERF_VERSION}, {arguments.requests} requests a run, {arguments.concurrency} at once"
    return conclude(arguments.report, {"Run": describe_run(seconds), "Load": load}, sections)


if __name__ == "__main__":
    sys.exit(main())
