"""Whose a target is: what lists and rules may say of it, and what they may not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from servescope.collector.targets.claims import Claims
from servescope.collector.targets.deployments import DeploymentSettings
from servescope.collector.targets.target import Target
from servescope.collector.targets.target_groups import DiscoveryError
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment, Group, Identity

_MOST_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class Rights:
    """Which targets may be of which deployment: those with fixed labels, and the allow-lists of addresses."""

    fixed: frozenset[Group]
    claims: Claims

    @classmethod
    def of(cls, deployments: Sequence[DeploymentSettings]) -> Rights:
        """Those of a configuration."""
        return cls(
            frozenset(each.deployment.group for each in deployments if each.fixed_labels),
            Claims((each.deployment, each.claim) for each in deployments),
        )

    def check(self, targets: Iterable[Target], deployment: Deployment) -> None:
        """Raise DiscoveryError for a target, listed for a deployment, that is another's by its labels or address."""
        for target in targets:
            found = target.identity.deployment()
            refused = self._refuse_labels(found, deployment) or self.claims.refuse_address(found.group, target.host)
            if refused:
                raise DiscoveryError(f"target {_shown(target.url)!r}: {refused}")

    def refuse(self, listed: Target, identity: Identity) -> str | None:
        """What is wrong with an identity that a page gives to a listed target, None where nothing is."""
        found = identity.deployment()
        return self._refuse_labels(found, listed.identity.deployment()) or self.claims.refuse_address(
            found.group, listed.host
        )

    def _refuse_labels(self, found: Deployment, deployment: Deployment) -> str | None:
        """What is wrong with labels that move a target from, or into, a deployment with fixed labels."""
        if found == deployment:
            return None
        if deployment.group in self.fixed:
            changed = [name for name in DEPLOYMENT_LABELS if getattr(found, name) != getattr(deployment, name)]
            return (
                f"label {changed[0]!r} is {_shown(getattr(found, changed[0]))!r}, and the deployment has fixed_labels"
            )
        if found.group in self.fixed:
            return f"its labels are those of deployment {_shown(found.deployment_id)!r}, which has fixed_labels"
        return None


def _shown(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
