"""Which targets may claim a deployment: the allow-lists in `[[deployments]]`, one for all who read labels of targets.

The labels of a target are written by whoever writes its list, its pod or its page. An allow-list has what these cannot
choose. The collector compares the addresses of listed targets with it, a translator those that it is asked for, and the
export to customers where a Prometheus scraped what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from servescope.contract.identity import Deployment, Group, describe_group
from servescope.errors import ConfigurationError
from servescope.settings.addresses import Address, TargetPattern, read_address, read_patterns
from servescope.settings.tables import Setting, Table

CLAIM_SETTINGS: Final = tuple(
    Setting(name, "[]") for name in ("targets", "collectors", "jobs", "namespaces", "clusters")
)


CLAIM_KEYS: Final = ", ".join(setting.key for setting in CLAIM_SETTINGS[:-1]) + f" or {CLAIM_SETTINGS[-1].key}"


class ScrapedAt(NamedTuple):
    """Where a target is scraped: its address, None where that is no HOST:PORT, and what the scraper says of it.

    An empty text is a label that is absent.
    """

    address: Address | None
    job: str = ""
    namespace: str = ""
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """What may claim one deployment; what is empty is not restricted, but one of them is not.

    `targets` are scraped themselves, or through a translator; `collectors` are trusted to say whose their series are.
    """

    targets: tuple[TargetPattern, ...] = ()
    collectors: tuple[TargetPattern, ...] = ()
    jobs: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()
    clusters: frozenset[str] = frozenset()

    def names(self, address: Address) -> bool:
        """Whether a target's address is among those listed."""
        return any(pattern.matches(address) for pattern in self.targets)

    def owns(self, scraped: ScrapedAt) -> bool:
        """Whether a target that is scraped so is one of those listed, whatever the job; elsewhere it is another one."""
        return (
            scraped.address is not None
            and self.names(scraped.address)
            and (not self.namespaces or scraped.namespace in ("", *self.namespaces))
            and (not self.clusters or scraped.cluster in ("", *self.clusters))
        )

    def admits_target(self, scraped: ScrapedAt) -> bool:
        """Whether a target that is scraped so may claim the deployment."""
        return self._admits(scraped, self.targets)

    def admits_series(self, scraped: ScrapedAt) -> bool:
        """Whether series that were scraped so may be of the deployment: those of a target, or on a collector's page."""
        return self._admits(scraped, (*self.targets, *self.collectors))

    def _admits(self, scraped: ScrapedAt, patterns: Sequence[TargetPattern]) -> bool:
        if self.targets or self.collectors:
            address = scraped.address
            if address is None or not any(pattern.matches(address) for pattern in patterns):
                return False
        return all(
            not allowed or value in allowed
            for allowed, value in (
                (self.jobs, scraped.job),
                (self.namespaces, scraped.namespace),
                (self.clusters, scraped.cluster),
            )
        )

    def overlaps(self, other: Claim) -> bool:
        """Whether something may claim both deployments; a collector that both trust tells them apart."""
        for mine, theirs in (
            (self.jobs, other.jobs), (self.namespaces, other.namespaces), (self.clusters, other.clusters),
        ):  # fmt: skip
            if mine and theirs and not mine & theirs:
                return False
        restricted = [bool(each.targets or each.collectors) for each in (self, other)]
        if not all(restricted):
            # The one without addresses allows each that the other one has.
            return True
        return (
            self.shares_targets(other)
            or _overlap(self.targets, other.collectors)
            or _overlap(self.collectors, other.targets)
        )

    def shares_targets(self, other: Claim) -> bool:
        """Whether both list an address of a target."""
        return _overlap(self.targets, other.targets)


def _overlap(some: Iterable[TargetPattern], others: Sequence[TargetPattern]) -> bool:
    return any(one.overlaps(other) for one in some for other in others)


def read_claim(table: Table) -> Claim | None:
    """The allow-list in a table of a deployment, None where it has none; raises ConfigurationError."""
    if "claims" not in table.values:
        return None
    claims = table.table("claims", CLAIM_SETTINGS)
    if not any(claims.values.values()):
        raise ConfigurationError(f"{claims.origin}: {claims.path}: lists nothing; expected {CLAIM_KEYS}")
    return Claim(
        read_patterns(claims, "targets", []),
        read_patterns(claims, "collectors", []),
        *(frozenset(claims.strings(key, [])) for key in ("jobs", "namespaces", "clusters")),
    )


class Claims:
    """The allow-lists of all deployments; of one that is in two phases of a rollout, those of both."""

    def __init__(self, claims: Iterable[tuple[Deployment, Claim | None]] = ()) -> None:
        self._by_group: dict[Group, list[Claim]] = {}
        for deployment, claim in claims:
            if claim is not None:
                self._by_group.setdefault(deployment.group, []).append(claim)

    def __bool__(self) -> bool:
        """Whether any deployment has an allow-list."""
        return bool(self._by_group)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Claims) and self._by_group == other._by_group

    __hash__ = None  # type: ignore[assignment]  # as of anything that is compared by what it contains

    def of(self, group: Group) -> Sequence[Claim]:
        """The allow-lists of a deployment."""
        return self._by_group.get(group, ())

    def admits_series(self, group: Group, scraped: ScrapedAt) -> bool:
        """Whether series that were scraped so may be of a deployment; False for one without an allow-list."""
        return any(claim.admits_series(scraped) for claim in self.of(group))

    def admits_place(self, group: Group, namespace: str, cluster: str) -> bool:
        """Whether anything in a namespace of a cluster may claim a deployment."""
        return any(
            (not claim.namespaces or namespace in claim.namespaces)
            and (not claim.clusters or cluster in claim.clusters)
            for claim in self.of(group)
        )

    def refuse_target(self, group: Group | None, scraped: ScrapedAt) -> str | None:
        """Why a target may not be asked for as one of a deployment, or as one of none; None when it may."""
        own = self.of(group) if group is not None else ()
        if any(claim.admits_target(scraped) for claim in own):
            return None
        if own and group is not None:
            return f"may not claim the deployment {describe_group(group)}: {_describe(scraped)} is not among its claims"
        owners = [owner for owner, claims in self._by_group.items() if any(claim.owns(scraped) for claim in claims)]
        claimed = "no deployment" if group is None else f"the deployment {describe_group(group)}"
        return f"claims {claimed}, and is among the claims of {describe_group(owners[0])}" if owners else None

    def refuse_address(self, group: Group, host: str) -> str | None:
        """Why a collector may not scrape the target at `HOST:PORT` for a deployment; None when it may."""
        if not self:
            return None
        try:
            address = read_address(host)
        except ValueError:
            return f"{host!r} cannot be compared with the claims of deployments, expected HOST:PORT"
        own = [claim for claim in self.of(group) if claim.targets]
        if any(claim.names(address) for claim in own):
            return None
        if own:
            return f"its address is not among claims.targets of {describe_group(group)}"
        owners = self.owners(address)
        return f"its address is among claims.targets of {describe_group(min(owners))}" if owners else None

    def refuse_lead(self, host: str, port: int, found: str) -> str | None:
        """Why a name may not lead to an address: only deployments that list it do not list the name as well."""
        others = self.owners(_address(found, port)) - self.owners(_address(host, port))
        return f"which is among claims.targets of {describe_group(min(others))}" if others else None

    def owners(self, address: Address | None) -> frozenset[Group]:
        """The deployments that list an address of a target."""
        if address is None:
            return frozenset()
        return frozenset(
            group for group, claims in self._by_group.items() if any(claim.names(address) for claim in claims)
        )


def _address(host: str, port: int) -> Address | None:
    try:
        return read_address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except ValueError:
        return None


def read_scraped_at(labels: Mapping[str, str]) -> ScrapedAt:
    """Where a series was scraped, by the labels that its scraper added."""
    try:
        address = read_address(labels.get("instance", ""))
    except ValueError:
        address = None
    return ScrapedAt(address, *(labels.get(name, "") for name in ("job", "namespace", "cluster")))


def _describe(scraped: ScrapedAt) -> str:
    others = [(name, getattr(scraped, name)) for name in ("job", "namespace", "cluster")]
    return ", ".join([str(scraped.address), *(f"{name}={value!r}" for name, value in others if value)])
