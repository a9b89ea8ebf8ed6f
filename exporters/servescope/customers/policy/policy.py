"""What a customer may receive, and where it is sent: the configuration of one `[[customers]]`, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import ClassVar, Final, Literal

from servescope.contract.identity import Deployment, Group
from servescope.settings.access import Access
from servescope.settings.concealing import secrets_of_query

Resolution = Literal["replica", "deployment"]
Temporality = Literal["cumulative", "delta"]
Protocol = Literal["otlp-http", "otlp-grpc", "remote-write"]
OtlpBackend = Literal["prometheus", "mimir", "victoriametrics", "victoriametrics-prometheus", "other"]
"""What makes names of its own of what OTLP sends: see `stored_names`; "other" answers no PromQL."""
Backfill = int
"""How many milliseconds of the past a new destination receives first; 0 begins now."""


class Naming(Enum):
    """How exported metrics are named."""

    DOCUMENTED = "documented"
    """As the contract's documentation: `time_to_first_token_seconds`."""
    OTEL = "otel"
    """As the instruments push by OTLP: `servescope.time_to_first_token`."""
    PREFIX = "prefix"
    """As documented, with the customer's prefix before it."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """The most that a customer receives; 0 is no limit. What is beyond is withheld, and counted."""

    series: int = 0
    samples_per_minute: int = 0
    bytes_per_minute: int = 0


@dataclass(frozen=True, slots=True)
class HashKey:
    """The key that replica names are hashed with: the file it is read from, the key in use on its first line.

    Keys that were in use before may follow there, so that the series they named can be ended.
    """

    path: str


@dataclass(frozen=True, slots=True)
class Push:
    """One destination: `url` is the whole of it, `most_bytes` the largest request before compression."""

    protocol: Protocol
    url: str
    access: Access = field(repr=False)
    temporality: Temporality = "cumulative"
    gzip: bool = True
    most_bytes: int = 3_000_000
    timeout_seconds: float = 10.0
    backfill_ms: Backfill = 0
    name: str = "push"
    """Its name within the customer."""
    stores_names_as: OtlpBackend = "prometheus"
    """Whose names metrics have there; of OTLP alone, as remote write has the names that are stored."""

    @property
    def place(self) -> str:
        """The URL without its query, which may have a secret."""
        return self.url.partition("?")[0]

    def conceal(self, text: str) -> str:
        """What the receiver said without the secrets that it was sent, those in the query included."""
        return self.access.conceal(text, *secrets_of_query(self.url))


@dataclass(frozen=True, slots=True)
class Pull:
    """A page that the customer scrapes: the file of its token, and how many requests a minute it may send."""

    token_file: str
    requests_per_minute: int = 6
    name: ClassVar[str] = "pull"
    """Its name within the customer, which no push has."""


LEFT_OUT: Final = "none"
"""The destination in the series of a customer that is not delivered to at all, as its table cannot be used."""


@dataclass(frozen=True, slots=True)
class Policy:
    """All of one customer.

    `metrics` are names of the contract and `figures` keys of the catalog, both resolved and sorted. `labels` are those
    that are exported, by their name in the contract, and `renames` what they are called there. `replicas` is how
    the label `replica` is exported where it is one of them: hashed, with `key`, or plainly.
    """

    name: str
    deployments: frozenset[Deployment]
    metrics: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    replicas: Literal["hashed", "plain"] = "hashed"
    key: HashKey | None = None
    resolution: Resolution = "deployment"
    interval_ms: int = 60_000
    naming: Naming = Naming.DOCUMENTED
    prefix: str = ""
    quotas: Quotas = Quotas()
    push: tuple[Push, ...] = ()
    pull: Pull | None = None
    most_age_ms: int = 86_400_000
    """What a destination did not accept for so long is given up, and reported as a gap."""
    since_ms: Mapping[Group, int] = field(default_factory=lambda: MappingProxyType({}))
    """From when deployments are the customer's, where the configuration says that."""
