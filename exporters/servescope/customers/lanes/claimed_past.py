"""What customers receive of a Prometheus: what may claim their deployments, and what else does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from servescope.collector.targets.claims import Claims, read_scraped_at
from servescope.contract.identity import Deployment, Group, describe_group
from servescope.contract.samples import Labels, format_series, make_labels
from servescope.customers.config import read_claims
from servescope.customers.policy.policy import Policy
from servescope.settings.clock import ProgramClock, program_clock
from servescope.store.history import History
from servescope.store.prometheus.admitted import FIGURES_MS, AdmittedHistory
from servescope.store.prometheus.history import PrometheusHistory

_logger = logging.getLogger(__name__)

_MOST_STRANGERS: Final = 1_000
_MOST_SHOWN: Final = 600
_NOT_CLAIMED: Final = "it is not in [deployments.claims] of the deployment that it claims"
_MIXED: Final = (
    f"within the last {FIGURES_MS // 60_000} minutes they may have a part of what is not in [deployments.claims]"
)


class Stranger(NamedTuple):
    """A place that claims a deployment and may not: how many of its series, and whether figures, are withheld.

    `seen_ms` is when it was read last.
    """

    series: int
    figures: bool
    seen_ms: int


class Claimants:
    """Which places may claim the deployments of customers, and those that do and may not. Safe from several threads."""

    def __init__(self, clock: ProgramClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._claims = Claims()
        self._customers: Mapping[Group, str] = MappingProxyType({})
        self._strangers: dict[tuple[Deployment, Labels], Stranger] = {}

    def apply(self, claims: Claims, policies: Iterable[Policy]) -> None:
        """Admit by these from now on."""
        self._customers = MappingProxyType(
            {each.group: policy.name for policy in policies for each in policy.deployments}
        )
        self._claims = claims

    def admits(self, deployment: Deployment, place: Labels) -> bool:
        """Whether series that were scraped at a place may be of a deployment."""
        return self._claims.admits_series(deployment.group, read_scraped_at(dict(place)))

    def admits_far(self, deployment: Deployment, far: Labels) -> bool:
        """Whether anything in a cluster and a namespace may claim a deployment."""
        labels = dict(far)
        return self._claims.admits_place(deployment.group, labels.get("namespace", ""), labels.get("cluster", ""))

    def withhold(self, deployment: Deployment, place: Labels, series: int) -> None:
        """Book what is left out of a place; the first time it is logged."""
        key, now_ms = (deployment, place), self._clock.now_ms()
        with self._lock:
            former = self._strangers.get(key)
            if former is None or now_ms - former.seen_ms >= FIGURES_MS:
                former, self._strangers = None, self._recent()
                if len(self._strangers) >= _MOST_STRANGERS:
                    return
            known = former or Stranger(0, figures=False, seen_ms=now_ms)
            self._strangers[key] = Stranger(max(series, known.series), known.figures or not series, now_ms)
            number = len(self._strangers)
        if former is None:
            _logger.warning(
                "customer %s: what %s exposes as %s is withheld: %s%s",
                self._customers.get(deployment.group, "unknown"), _shown("", place), describe_group(deployment.group),
                _NOT_CLAIMED,
                "; further ones are withheld without being named" if number == _MOST_STRANGERS else "",
            )  # fmt: skip

    def _recent(self) -> dict[tuple[Deployment, Labels], Stranger]:
        """Those of which something may still be in figures."""
        now_ms = self._clock.now_ms()
        return {key: each for key, each in list(self._strangers.items()) if now_ms - each.seen_ms < FIGURES_MS}

    def count_withheld(self, customer: str) -> int:
        """How many series of other places claim a deployment of a customer; one at least of each place."""
        return sum(
            max(each.series, 1)
            for (deployment, _), each in self._recent().items()
            if self._customers.get(deployment.group) == customer
        )

    def explain(self, policy: Policy) -> list[tuple[str, str]]:
        """What is withheld of a customer's deployments because of what claims them, and why."""
        found: dict[tuple[str, str], None] = {}
        for (deployment, place), each in sorted(self._recent().items()):
            if deployment in policy.deployments:
                target = _shown("target", make_labels((*deployment.labels(), *place)))
                found[f"{target} ({each.series} series)" if each.series else target, _NOT_CLAIMED] = None
                if each.figures and policy.figures:
                    found[format_series("figures", deployment.labels()), _MIXED] = None
        return list(found)


def _shown(name: str, labels: Labels) -> str:
    """The labels as text, which whoever wrote them may have made long."""
    text = format_series(name, labels) or "{}"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


class ClaimedPast(AdmittedHistory):
    """A Prometheus as the export reads it."""

    def __init__(self, history: PrometheusHistory, claimants: Claimants) -> None:
        super().__init__(history.prometheus, claimants, clock=history.clock)
        self.claimants = claimants


def claim_past(history: History, config: Path, policies: Sequence[Policy]) -> History:
    """What the export to customers reads of a history: of a Prometheus, what may claim their deployments.

    A store has what its collector admitted. Raises ConfigurationError for a deployment without an allow-list.
    """
    if not isinstance(history, PrometheusHistory):
        return history
    claimed = ClaimedPast(history, Claimants(program_clock()))
    apply_claims(claimed, config, policies)
    return claimed


def apply_claims(history: History, config: Path, policies: Sequence[Policy]) -> None:
    """Read the allow-lists again; raises ConfigurationError, and the former ones stay."""
    if isinstance(history, ClaimedPast):
        history.claimants.apply(read_claims(config, policies), policies)
        history.forget()
