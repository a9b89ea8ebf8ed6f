"""A router of SGLang's family, with a short queue, in front of emulated workers and of a real vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.proofs.real.claims import Ledger, Range
from tests.proofs.real.client import Counts
from tests.proofs.real.engines import START_SECONDS, Engine, Target
from tests.proofs.real.environments import Recipe, ensure_environment
from tests.proofs.real.processes import pick_ports, read, running, wait_until
from tests.proofs.real.programs.program import Program, Running
from tests.proofs.real.programs.workers import Behind, Workers, run_emulated_workers, run_vllm_worker


@dataclass(frozen=True, slots=True)
class Router:
    """A router: the words that start it, its options before workers, and its gauge of those that are healthy."""

    recipe: Recipe
    program: Sequence[str]
    options: Callable[[Workers], Sequence[str]]
    healthy: str
    claim: Callable[[Ledger, Counts], dict[str, Range]]

    @property
    def version(self) -> str:
        """The version of its package."""
        return self.recipe.pins[self.recipe.name]

    def programs(self) -> tuple[Program, Program]:
        """It in front of emulated workers, of which the tests have a page, and of a real vLLM."""
        emulated, real = self.recipe.name, f"{self.recipe.name}-vllm"
        page = f"{emulated}-{self.version}-1"
        return (
            Program(emulated, partial(_run, self, run_emulated_workers, emulated), self.claim, page=page),
            Program(real, partial(_run, self, run_vllm_worker, real), self.claim),
        )


@contextmanager
def _run(router: Router, behind: Behind, name: str, environments: Path, logs: Path) -> Iterator[Running]:
    """The router, ready."""
    binaries = ensure_environment(environments, router.recipe) / "bin"
    port, metrics = pick_ports(2)
    with behind(environments, logs) as workers:
        command = [
            str(binaries / router.program[0]), *router.program[1:], *router.options(workers),
            "--host", "127.0.0.1", "--port", str(port),
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics), "--worker-urls", *workers.urls,
            "--max-concurrent-requests", "16", "--queue-size", "4", "--queue-timeout-secs", "2",
            "--health-check-interval-secs", "1", "--health-failure-threshold", "2", "--retry-max-retries", "2",
            # What clients do wrong opens it too, and then nothing is answered any more.
            "--disable-circuit-breaker",
        ]  # fmt: skip
        base, page = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics"

        def is_ready() -> bool:
            healthy = (read(page) or b"").count(f"\n{router.healthy}{{".encode())
            return read(f"{base}/health") is not None and healthy == len(workers.urls)

        with running(name, command, logs) as started:
            seconds = wait_until(is_ready, name, seconds=START_SECONDS, processes=[started])
            target = Target(page, "router", "router-0")
            engine = Engine(name, router.version, base, (target,), seconds, (router.recipe.name,))
            yield Running(engine, workers, workers.kill_first)
