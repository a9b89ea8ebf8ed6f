"""The configuration of `servescope customers`: `customers.toml`, read whole and refused whole.

Every table's keys are listed once, with their defaults, in `CUSTOMERS_SETTINGS`; `docs/customers.md` is checked against
it.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast, get_args

from servescope.collector.targets.claims import CLAIM_KEYS, Claims
from servescope.collector.targets.deployments import Collected, read_collected
from servescope.contract.identity import GROUP_LABELS, ROLLOUT_PHASES, Deployment, Group, Identity, describe_group
from servescope.customers.points.hashing import ReplicaHash
from servescope.customers.points.naming import (
    KEY_LABEL,
    OTEL_LABELS,
    WINDOW_LABEL,
    exported_labels,
    known_labels,
    label_name,
    service_name,
)
from servescope.customers.points.prometheus_series import safe_name
from servescope.customers.policy.destinations import PULL_SETTINGS, PUSH_SETTINGS, read_pull, read_pushes
from servescope.customers.policy.policy import HashKey, Naming, Policy, Pull, Push, Quotas, Resolution
from servescope.customers.selection import select_figures, select_metrics
from servescope.customers.stored_names import StoredNames, translation_at
from servescope.errors import ConfigurationError, UsageError
from servescope.settings.access import AccessError
from servescope.settings.tables import REQUIRED, Setting, Table, located, read_document
from servescope.settings.values import format_duration, parse_instant

_logger = logging.getLogger(__name__)

CUSTOMERS_SETTINGS: Final[Mapping[str, tuple[Setting, ...]]] = MappingProxyType(
    {
        "": (Setting("collector", REQUIRED), Setting("customers", REQUIRED)),
        "customers": (
            Setting("name", REQUIRED),
            Setting("deployments", REQUIRED),
            Setting("metrics", "[]"),
            Setting("figures", "[]"),
            Setting("labels", "[]"),
            Setting("renames", "{}"),
            Setting("replicas", '"hashed"'),
            Setting("replica_key_file", ""),
            Setting("resolution", '"deployment"'),
            Setting("interval", '"1m"'),
            Setting("naming", '"documented"'),
            Setting("prefix", '""'),
            Setting("max_age", '"1d"'),
            Setting("quotas", "{}"),
            Setting("push", "[]"),
            Setting("pull", ""),
        ),
        "customers.deployments": (
            *(Setting(name, REQUIRED if name != "environment" else '""') for name in GROUP_LABELS),
            Setting("since", ""),
        ),
        "customers.quotas": (
            Setting("series", ""),
            Setting("samples_per_minute", ""),
            Setting("bytes_per_minute", ""),
        ),
        "customers.push": PUSH_SETTINGS,
        "customers.pull": PULL_SETTINGS,
    }
)

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_PREFIX: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,62}")
_PROMETHEUS_LABEL: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]{0,127}")
_OTLP_ATTRIBUTE: Final = re.compile(r"[a-zA-Z][\w.-]{0,127}", re.ASCII)
_TAKEN: Final = ("le", "quantile", "job", "instance")
# What a resource and a scope have in OTLP beside exported labels, as backends escape it.
_OF_OTLP: Final = re.compile(r"service_(name|instance_id|namespace)$|(otel_)?scope_")
_SHORTEST_INTERVAL_MS: Final = 10_000
_LONGEST_INTERVAL_MS: Final = 3_600_000
_LEAST_BYTES: Final = 1_000_000


def read_policies(path: Path, removed: Container[str] = ()) -> tuple[Policy, ...]:
    """The policies in a TOML file, without those of customers that were removed; paths are relative to the file.

    Raises ConfigurationError naming file, key, value and what was expected.
    """
    policies, problems = read_usable_policies(path, removed)
    for problem in problems.values():
        raise problem
    return policies


def read_usable_policies(
    path: Path, removed: Container[str] = ()
) -> tuple[tuple[Policy, ...], dict[str, ConfigurationError]]:
    """The policies that can be used, and what is wrong with the tables of other customers, by their names.

    So a customer whose token cannot be read does not keep others from being delivered to. Whose deployments are whose
    is read of every table all the same, also of customers that were `removed`, of which nothing else is read; raises
    ConfigurationError for that, and for what is wrong with the whole file.
    """
    directory = path.resolve().parent
    root = Table(read_document(path, "customers' configuration"), str(path), "")
    root.check_keys([setting.key for setting in CUSTOMERS_SETTINGS[""]])
    tables = root.tables("customers", CUSTOMERS_SETTINGS["customers"])
    if not tables:
        raise ConfigurationError(f"{path}: no customers; expected at least one [[customers]] table")
    placed: list[tuple[Table, Policy]] = []
    unusable: list[tuple[Table, Policy]] = []
    problems: dict[str, ConfigurationError] = {}
    for table in tables:
        reader = _Reader(table, directory)
        claim = reader.claim()
        if claim.name in removed:
            _logger.warning(
                "%s: customer %r was removed: its table is left out; delete it, or admit the customer again with "
                "`servescope customers remove %s --undo`", path, claim.name, claim.name,
            )  # fmt: skip
            unusable.append((table, claim))
            continue
        try:
            placed.append((table, reader.policy()))
        except ConfigurationError as error:
            problems[claim.name] = error
            unusable.append((table, claim))
    _check_apart([*placed, *unusable])
    _check_secrets_differ(placed)
    _check_collected(root, directory, placed, unusable)
    return tuple(policy for _, policy in placed), problems


def find_policy(policies: Sequence[Policy], name: str) -> Policy:
    """The policy of a customer; raises UsageError with those there are."""
    for policy in policies:
        if policy.name == name:
            return policy
    known = ", ".join(policy.name for policy in policies) or "none"
    raise UsageError(f"no customer {name!r}, known: {known}")


class _Reader:
    def __init__(self, table: Table, directory: Path) -> None:
        self._table, self._directory = table, directory

    def claim(self) -> Policy:
        """The name and the deployments of a customer, which receives nothing."""
        deployments, since_ms = self._deployments()
        return Policy(self._name(), deployments, since_ms=since_ms)

    def policy(self) -> Policy:
        table = self._table
        name = self._name()
        resolution = cast("Resolution", table.choice("resolution", get_args(Resolution), "deployment"))
        with located(f"{table.origin}: {table.key('metrics')}"):
            metrics = select_metrics(table.strings("metrics", []), resolution).chosen
        with located(f"{table.origin}: {table.key('figures')}"):
            figures = select_figures(table.strings("figures", []), metrics).chosen
        if not metrics and not figures:
            raise ConfigurationError(
                f"{table.origin}: {table.path}: customer {name!r} is to receive nothing; list metrics or figures"
            )
        naming = Naming(table.choice("naming", [each.value for each in Naming], Naming.DOCUMENTED.value))
        pushes, pull = self._destinations(name)
        deployments, since_ms = self._deployments()
        policy = Policy(
            name,
            deployments,
            metrics,
            figures,
            self._labels(resolution),
            MappingProxyType(table.string_map("renames")),
            replicas="plain" if table.choice("replicas", ("hashed", "plain"), "hashed") == "plain" else "hashed",
            key=self._key(name),
            resolution=resolution,
            interval_ms=self._interval(),
            naming=naming,
            prefix=self._prefix(naming),
            quotas=self._quotas(),
            push=pushes,
            pull=pull,
            most_age_ms=table.duration("max_age", 86_400_000),
            since_ms=since_ms,
        )
        self._check_replicas(policy)
        self._check_names(policy)
        self._check_distinguished(policy)
        self._check_services(policy)
        return policy

    def _name(self) -> str:
        name = self._table.string("name", None)
        if not _NAME.fullmatch(name):
            raise self._table.wrong("name", "small letters, digits, - and _, at most 63")
        return name

    def _deployments(self) -> tuple[frozenset[Deployment], Mapping[Group, int]]:
        """The customer's deployments, in whatever phase of a rollout they are, and since when they are, if it says."""
        table = self._table
        found: dict[Deployment, str] = {}
        since_ms: dict[Group, int] = {}
        tables = table.tables("deployments", CUSTOMERS_SETTINGS["customers.deployments"])
        if not tables:
            raise table.wrong("deployments", "at least one [[customers.deployments]] table")
        for each in tables:
            labels = {name: each.string(name, "" if name == "environment" else None) for name in GROUP_LABELS}
            with located(f"{each.origin}: {each.path}"):
                identity = Identity(**labels).deployment()
            if identity in found:
                raise ConfigurationError(f"{each.origin}: {each.path}: is the same deployment as {found[identity]}")
            found |= {Deployment(**labels, rollout_phase=phase): each.path for phase in ROLLOUT_PHASES}
            if "since" in each.values:
                since_ms[identity.group] = _read_since(each)
        return frozenset(found), MappingProxyType(since_ms)

    def _labels(self, resolution: Resolution) -> tuple[str, ...]:
        table = self._table
        labels = table.strings("labels", [])
        for label in labels:
            if label not in known_labels():
                raise table.wrong("labels", f"labels among {', '.join(known_labels())}; {label!r} is none")
        if resolution == "replica" and "replica" not in labels:
            raise table.wrong("labels", "'replica' among them, as resolution is \"replica\"")
        if resolution == "deployment" and (extra := [label for label in ("replica", "role") if label in labels]):
            raise table.wrong("labels", f'no {extra[0]!r}, as resolution is "deployment"')
        return tuple(dict.fromkeys(labels))

    def _key(self, name: str) -> HashKey | None:
        file = self._table.string("replica_key_file", "")
        if not file:
            return None
        path = str(self._directory / file)
        try:
            ReplicaHash(path, name)
        except AccessError as error:
            raise ConfigurationError(f"{self._table.origin}: {self._table.key('replica_key_file')}: {error}") from None
        return HashKey(path)

    def _interval(self) -> int:
        interval = self._table.duration("interval", 60_000)
        if not _SHORTEST_INTERVAL_MS <= interval <= _LONGEST_INTERVAL_MS:
            bounds = format_duration(_SHORTEST_INTERVAL_MS), format_duration(_LONGEST_INTERVAL_MS)
            raise self._table.wrong("interval", f"a duration from {bounds[0]} to {bounds[1]}")
        return interval

    def _prefix(self, naming: Naming) -> str:
        table = self._table
        prefix = table.string("prefix", "")
        if naming is Naming.PREFIX and not _PREFIX.fullmatch(prefix):
            raise table.wrong("prefix", 'what a metric\'s name can begin with, as naming is "prefix"')
        if naming is not Naming.PREFIX and prefix:
            raise table.wrong("prefix", f'none, as naming is "{naming.value}"')
        return prefix

    def _quotas(self) -> Quotas:
        table = self._table.table("quotas", CUSTOMERS_SETTINGS["customers.quotas"])

        def number(key: str) -> int:
            return table.whole_number(key, 1) if key in table.values else 0

        return Quotas(number("series"), number("samples_per_minute"), table.size("bytes_per_minute", _LEAST_BYTES) or 0)

    def _destinations(self, name: str) -> tuple[tuple[Push, ...], Pull | None]:
        table = self._table
        pushes = read_pushes(table.tables("push", PUSH_SETTINGS))
        pull = None
        if "pull" in table.values:
            pull = read_pull(table.table("pull", PULL_SETTINGS), self._directory)
        if not pushes and pull is None:
            raise ConfigurationError(
                f"{table.origin}: {table.path}: customer {name!r} has no destination; expected [[customers.push]] or "
                f"[customers.pull]"
            )
        return pushes, pull

    def _check_replicas(self, policy: Policy) -> None:
        table = self._table
        needs_key = "replica" in policy.labels and policy.replicas == "hashed"
        if needs_key and policy.key is None:
            raise ConfigurationError(
                f"{table.origin}: {table.path}: 'replica_key_file' is missing: replicas are exported hashed; "
                f"`openssl rand -hex 32` makes a key"
            )
        if policy.key is not None and not needs_key:
            raise table.wrong("replica_key_file", "none, as no replica is exported hashed")

    def _check_names(self, policy: Policy) -> None:
        """Names of labels are distinct, and what every destination of the policy can carry."""
        table = self._table
        renames = Table(policy.renames, table.origin, table.key("renames"))
        safe = policy.pull is not None or any(push.protocol == "remote-write" for push in policy.push)
        by_otlp = any(push.protocol != "remote-write" for push in policy.push)
        if safe and policy.naming is Naming.OTEL:
            raise table.wrong("naming", "another one: Prometheus' formats have no dots in names")
        exported = (*exported_labels(policy), *_added_labels(policy))
        for label, name in policy.renames.items():
            if label not in exported:
                raise ConfigurationError(
                    f"{table.origin}: {renames.key(label)}: is not exported; expected one of {', '.join(exported)}"
                )
            if name in _TAKEN or not (_PROMETHEUS_LABEL if safe else _OTLP_ATTRIBUTE).fullmatch(name):
                raise renames.wrong(label, "a name that Prometheus has for labels" if safe else "an attribute's name")
            if by_otlp and name != OTEL_LABELS.get(label) and _OF_OTLP.match(safe_name(name)):
                raise renames.wrong(label, "a name that OTLP and its backends have no other use for")
            if by_otlp and ("__" in safe_name(name) or name.startswith("_")):
                raise renames.wrong(label, "a letter first, and no two signs in a row: backends of OTLP change them")
        by_name: dict[str, str] = {}
        for label in exported:
            former = by_name.setdefault(safe_name(label_name(policy, label)), label)
            if former != label:
                raise ConfigurationError(
                    f"{table.origin}: {renames.path}: {former!r} and {label!r} are both called "
                    f"{label_name(policy, label)!r}"
                )

    def _check_distinguished(self, policy: Policy) -> None:
        """No two deployments have the same exported labels: their series would be mixed."""
        shown = [label for label in GROUP_LABELS if label in policy.labels]
        by_labels: dict[tuple[str, ...], Deployment] = {}
        for each in sorted(policy.deployments):
            former = by_labels.setdefault(tuple(getattr(each, label) for label in shown), each)
            differing = [label for label in GROUP_LABELS if getattr(former, label) != getattr(each, label)]
            if differing:
                raise self._table.wrong(
                    "labels",
                    f"{' or '.join(map(repr, differing))} among them: deployments {former.deployment_id!r} and "
                    f"{each.deployment_id!r} differ in nothing else, and would be mixed",
                )

    def _check_services(self, policy: Policy) -> None:
        """No two deployments are one service where series have nothing else of a resource: they would be mixed."""
        alike = Counter(
            service_name(policy, dict(each.labels())) for each in policy.deployments if not each.rollout_phase
        )
        (service, count), *_ = alike.most_common(1)
        mixing = [push.name for push in policy.push if StoredNames(policy, translation_at(push)).has_jobs]
        if mixing and count > 1:
            raise ConfigurationError(
                f"{self._table.origin}: {self._table.path}: destination {mixing[0]!r}: {count} deployments have the "
                f"service.name {service!r}, and would be mixed where series have nothing else of them; expected a "
                f"deployment_id for each, or a protocol or stores_names_as that keeps other labels"
            )


def _read_since(table: Table) -> int:
    since = table.values["since"]
    try:
        return parse_instant(since if isinstance(since, str) else "")
    except ValueError:
        raise table.wrong("since", "a time in quotes like '2026-11-20T14:00:00Z'") from None


def _added_labels(policy: Policy) -> tuple[str, ...]:
    """The labels that are exported beside those of the policy."""
    hashed = "replica" in exported_labels(policy) and policy.replicas == "hashed"
    return (*([KEY_LABEL] if hashed else []), *([WINDOW_LABEL] if policy.figures else []))


_Placed = Sequence[tuple[Table, Policy]]


def _check_apart(placed: _Placed) -> None:
    """Names and deployments of customers differ."""
    for (_, first), (table, second) in combinations(placed, 2):
        if first.name == second.name:
            raise table.wrong("name", "another name than that of the other customers")
        if shared := first.deployments & second.deployments:
            raise ConfigurationError(
                f"{table.origin}: {table.key('deployments')}: {describe_group(min(shared).group)} is a deployment of "
                f"customer {first.name!r} as well; each deployment has one customer"
            )


def _check_secrets_differ(placed: _Placed) -> None:
    """No two customers have one key or one token: each could guess names of the other, or read its page."""
    for (_, first), (table, second) in combinations(placed, 2):
        if first.key is not None and second.key is not None and _shares_line(first.key.path, second.key.path):
            raise ConfigurationError(
                f"{table.origin}: {table.key('replica_key_file')}: has a key of customer {first.name!r}; "
                f"each customer needs its own"
            )
        if first.pull and second.pull and _shares_line(first.pull.token_file, second.pull.token_file):
            raise ConfigurationError(
                f"{table.origin}: {table.key('pull.token_file')}: has a token of customer {first.name!r}; "
                f"each customer needs its own"
            )


def _shares_line(first: str, second: str) -> bool:
    lines = [set(Path(path).read_text(encoding="utf-8").split()) for path in (first, second)]
    return bool(lines[0] & lines[1])


def _check_collected(root: Table, directory: Path, placed: _Placed, others: _Placed) -> None:
    """Every deployment is one that the collector has, and whose targets no list or rule of it can choose.

    Of `others`, customers that receive nothing, only what they may claim is compared.
    """
    path = directory / root.string("collector", None)
    by_group: dict[Group, list[Collected]] = {}
    for each in read_collected(path):
        by_group.setdefault(each.deployment.group, []).append(each)
    for table, policy in placed:
        for group in _groups(policy):
            problem = _find_problem(by_group.get(group, ()), path)
            if problem is not None:
                raise ConfigurationError(
                    f"{table.origin}: {table.key('deployments')}: {describe_group(group)}{problem}"
                )
    for (_, first), (table, second) in combinations([*placed, *others], 2):
        for one, other in product(_groups(first), _groups(second)):
            if _may_be_mistaken(by_group.get(one, ()), by_group.get(other, ())):
                raise ConfigurationError(
                    f"{table.origin}: {table.key('deployments')}: a target may claim both {describe_group(other)} and "
                    f"{describe_group(one)} of customer {first.name!r}; in {path}, no two [deployments.claims] of "
                    f"different customers may have a target in common"
                )


def _groups(policy: Policy) -> list[Group]:
    return sorted({each.group for each in policy.deployments})


def _find_problem(collected: Sequence[Collected], path: Path) -> str | None:
    """Why what is collected as one deployment could be another's."""
    if not collected:
        return f" is not under [[deployments]] of {path}"
    if not all(each.fixed_labels for each in collected):
        return (
            f": lists of targets and relabelling could change whose it is; set fixed_labels = true in its "
            f"[[deployments]] table of {path}"
        )
    if any(each.has_lists for each in collected) and not any(each.claim and each.claim.targets for each in collected):
        return (
            f": its lists of targets could name another's address; list the addresses that are its own, such as "
            f"targets = ['10.0.1.0/24:8000'], in [deployments.claims] of its table of {path}"
        )
    return None


def _may_be_mistaken(some: Sequence[Collected], others: Sequence[Collected]) -> bool:
    """Whether something may claim both deployments; a collector, that reads lists, compares addresses alone."""
    by_address = any(each.has_lists for each in (*some, *others))
    return any(
        one.claim.overlaps(other.claim) or (by_address and one.claim.shares_targets(other.claim))
        for one, other in product(some, others)
        if one.claim is not None and other.claim is not None
    )


def read_claims(path: Path, policies: Iterable[Policy]) -> Claims:
    """What may claim the deployments of policies, as a Prometheus that is read for them holds what claims to be theirs.

    Raises ConfigurationError where a deployment has no allow-list.
    """
    root = Table(read_document(path, "customers' configuration"), str(path), "")
    collector = path.resolve().parent / root.string("collector", None)
    claims = Claims((each.deployment, each.claim) for each in read_collected(collector))
    for policy in policies:
        for group in _groups(policy):
            if not claims.of(group):
                raise ConfigurationError(
                    f"{collector}: {describe_group(group)} of customer {policy.name!r} has no [deployments.claims]: in "
                    f"a Prometheus any target may have its labels; list which {CLAIM_KEYS} may claim it"
                )
    return claims
