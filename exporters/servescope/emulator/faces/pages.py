"""What a scraper is shown of a stack's processes; in the contract's own names unless said otherwise."""

from __future__ import annotations

from typing import Protocol

from servescope.emulator.deployment.deployment import EmulatedTarget
from servescope.exposition.rendering import render


class Pages(Protocol):
    """How targets are exposed to scrapers."""

    def lists(self, target: EmulatedTarget) -> bool:
        """Whether a target is listed for scrapers; it is served in any case."""

    def render(self, target: EmulatedTarget) -> bytes:
        """The target's page; called in the thread of the stack."""


class OwnPages:
    """All targets, in the contract's own names."""

    def lists(self, _: EmulatedTarget) -> bool:
        """All are listed."""
        return True

    def render(self, target: EmulatedTarget) -> bytes:
        """The instruments' page."""
        return render(target.instruments)
