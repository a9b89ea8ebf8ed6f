"""What each real program is to the proof: how it is run, what is sent to it, and what must hold of its figures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from servescope.errors import ServescopeError
from tests.proofs.real.claims import Ledger, Range
from tests.proofs.real.client import Counts
from tests.proofs.real.engines import Engine
from tests.proofs.real.programs.workers import Workers


class UnavailableError(ServescopeError):
    """A program cannot be run on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Running:
    """A program that serves, and the emulated workers behind it, if it has any.

    `kill` ends one process behind it; of the requests that this took it has the counts. None where there is none.
    """

    engine: Engine
    workers: Workers | None = None
    kill: Callable[[], Counts] | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A program: `run` yields it ready, `claim` gives the range of each value after requests that ended so.

    `as_text`: it takes no prompts of token ids. `burst` requests are sent at once, some of which it refuses where it
    has a bound. `refresh_seconds` is how old its page may be. `page` is the name of its small page among those of the
    tests, None where it has none; names of families on that begin with one of `page_families`. `network` is one of its
    own, to run and to watch it in.
    """

    name: str
    run: Callable[[Path, Path], AbstractContextManager[Running]]
    claim: Callable[[Ledger, Counts], dict[str, Range]]
    as_text: bool = True
    burst: int = 30
    refresh_seconds: float = 0.0
    page: str | None = None
    page_families: tuple[str, ...] = ("",)
    network: Callable[[], AbstractContextManager[None]] | None = None
