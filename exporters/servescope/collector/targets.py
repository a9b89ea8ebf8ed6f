"""The targets to scrape: those of the configuration, and those that Prometheus `file_sd` files list now.

A file that cannot be used keeps what it listed before, and `Discovery.problems` says so.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import NamedTuple

from servescope.collector.access import Access
from servescope.collector.config import (
    Configuration,
    DeploymentSettings,
    FileDiscoverySettings,
    check_url,
    host_and_port,
)
from servescope.errors import ConfigurationError, ServescopeError
from servescope.identity import IDENTITY_LABELS, Identity

_logger = logging.getLogger(__name__)


class DiscoveryError(ServescopeError):
    """A file_sd file cannot be used."""


@dataclass(frozen=True, slots=True)
class Target:
    """One `/metrics` to scrape and whose it is; `source` is None when it shall be identified."""

    url: str
    identity: Identity
    source: str | None = None
    access: Access = field(default_factory=Access)

    @property
    def target_id(self) -> str:
        """The name under which the store knows the target, the same after a restart; one per identity."""
        identity = self.identity
        digest = hashlib.blake2b(repr(identity.labels()).encode(), digest_size=4).hexdigest()
        return f"{identity.deployment_id}/{identity.role}/{identity.replica}#{digest}"


class _Listing(NamedTuple):
    """What a file_sd file listed when it was last usable; `signature` tells whether it changed since it was read."""

    signature: tuple[int, ...]
    targets: tuple[Target, ...]
    problem: str | None


class Discovery:
    """The targets of a configuration. Not thread safe."""

    def __init__(self, configuration: Configuration) -> None:
        self._settings = configuration.deployments
        self._static = [target for settings in self._settings for target in static_targets(settings)]
        self._listings: dict[tuple[int, int, str], _Listing] = {}
        self.targets: tuple[Target, ...] = ()
        self.problems: tuple[str, ...] = ()
        _, problems = keep_distinct(self._static)
        if problems:
            raise ConfigurationError(f"{configuration.origin}: {problems[0]}")
        self.refresh()

    def refresh(self) -> None:
        """Read the files that changed; `targets` and `problems` then hold as of now."""
        listings: dict[tuple[int, int, str], _Listing] = {}
        problems = []
        for number, settings in enumerate(self._settings):
            for order, files in enumerate(settings.file_sd):
                paths = _matching(files.files)
                if not paths:
                    problems.append(f"file_sd of deployment {_name(settings)}: no file matches {_listed(files.files)}")
                for path in paths:
                    key = (number, order, path)
                    listings[key] = _read_listing(Path(path), settings, files, self._listings.get(key))
        problems += [listing.problem for listing in listings.values() if listing.problem]
        listed = [target for listing in listings.values() for target in listing.targets]
        self._listings = listings
        self.targets, doubled = keep_distinct([*self._static, *listed])
        self._report((*problems, *(f"{problem}; the second is left out" for problem in doubled)))

    def _report(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self.problems:
                _logger.warning("%s", problem)
        self.problems = problems


def static_targets(settings: DeploymentSettings) -> list[Target]:
    """The targets written in one deployment's table."""
    labels = {name: value for name, value in settings.deployment.labels() if value}
    return [
        Target(
            target.url,
            Identity(**labels, replica=target.replica or host_and_port(target.url), role=target.role),
            target.source,
            target.access,
        )
        for target in settings.targets
    ]


def keep_distinct(targets: Iterable[Target]) -> tuple[tuple[Target, ...], list[str]]:
    """The targets that differ in identity, and in URL within a deployment, first come first kept; and what is doubled.

    Two targets of one identity would mix their series; one URL twice in a deployment would count double.
    """
    by_identity: dict[Identity, Target] = {}
    urls: set[tuple[object, str]] = set()
    problems = []
    for target in targets:
        place = (target.identity.deployment(), target.url)
        former = by_identity.get(target.identity)
        if former is not None and former.url != target.url:
            problems.append(
                f"targets {former.url!r} and {target.url!r} have the same identity "
                f"({_told(target.identity)}); give them different replicas"
            )
        elif former is not None or place in urls:
            problems.append(f"target {target.url!r} is listed twice in deployment {target.identity.deployment_id!r}")
        else:
            by_identity[target.identity] = target
            urls.add(place)
    return tuple(by_identity.values()), problems


def read_target_groups(text: str, path: Path) -> list[tuple[str, dict[str, str]]]:
    """The (address, labels) pairs of a file_sd file in Prometheus' format; raises DiscoveryError.

    https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config
    """
    groups = _parse_document(text, path)
    if not isinstance(groups, list):
        raise DiscoveryError(f"expected a list of target groups, got {_type_name(groups)}")
    pairs = []
    for index, group in enumerate(groups):
        if not isinstance(group, Mapping):
            raise DiscoveryError(f"group {index}: expected a mapping, got {_type_name(group)}")
        unknown = sorted(set(group) - {"targets", "labels"}, key=str)
        if unknown:
            raise DiscoveryError(f"group {index}: unknown key {unknown[0]!r}; known: targets, labels")
        labels = group.get("labels") or {}
        addresses = group.get("targets") or []
        if not isinstance(labels, Mapping) or not all(isinstance(each, str) for each in (*labels, *labels.values())):
            raise DiscoveryError(f"group {index}: labels {labels!r}, expected a mapping of strings")
        if not isinstance(addresses, list) or not all(isinstance(each, str) for each in addresses):
            raise DiscoveryError(f"group {index}: targets {addresses!r}, expected a list of host:port")
        pairs += [(address, dict(labels)) for address in addresses]
    return pairs


def make_target(
    address: str, labels: Mapping[str, str], settings: DeploymentSettings, files: FileDiscoverySettings
) -> Target:
    """The target of one address; its labels win over the configuration's. Raises DiscoveryError.

    Identity labels count, `__scheme__` and `__metrics_path__` make the URL; other labels are not part of the contract
    and are left out.
    """
    scheme, path = labels.get("__scheme__", "http"), labels.get("__metrics_path__", "/metrics")
    if scheme not in ("http", "https"):
        raise DiscoveryError(f"target {address!r}: __scheme__ {scheme!r}, expected http or https")
    if "/" in address:
        raise DiscoveryError(f"target {address!r} is not host:port; a path goes into the label __metrics_path__")
    try:
        url = check_url(f"{scheme}://{address}/{path.removeprefix('/')}")
        identity = {"role": files.role, **dict(settings.deployment.labels())}
        identity |= {name: value for name, value in labels.items() if name in IDENTITY_LABELS}
        identity.setdefault("replica", host_and_port(url))
        return Target(url, Identity(**identity), files.source, files.access)
    except (ValueError, ServescopeError) as error:
        shown = "" if "@" in address else f" {address!r}"
        raise DiscoveryError(f"target{shown}: {error}") from None


def _matching(patterns: Iterable[str]) -> list[str]:
    # The patterns are absolute, which Path.glob does not take.
    return sorted({path for pattern in patterns for path in glob(pattern, recursive=True)})  # noqa: PTH207


def _read_listing(
    path: Path, settings: DeploymentSettings, files: FileDiscoverySettings, former: _Listing | None
) -> _Listing:
    signature: tuple[int, ...] = ()
    try:
        status = path.stat()
        signature = (status.st_mtime_ns, status.st_size, status.st_ino)
        if former is not None and former.signature == signature:
            return former
        pairs = read_target_groups(path.read_text(encoding="utf-8"), path)
        targets = tuple(make_target(address, labels, settings, files) for address, labels in pairs)
    except (OSError, UnicodeDecodeError, DiscoveryError) as error:
        kept = former.targets if former is not None else ()
        return _Listing(signature, kept, f"{path}: {error}; {_kept(len(kept))}")
    _tell_ignored_labels(path, pairs)
    return _Listing(signature, targets, None)


def _kept(count: int) -> str:
    return f"its former {count} targets are kept" if count else "it lists no target yet"


def _tell_ignored_labels(path: Path, pairs: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    ignored = {name for _, labels in pairs for name in labels if not name.startswith("__")} - set(IDENTITY_LABELS)
    if ignored:
        _logger.info("%s: labels %s are not identity labels and are left out", path, _listed(sorted(ignored)))


def _parse_document(text: str, path: Path) -> object:
    try:
        return _parse_json(text) if path.suffix == ".json" else _parse_yaml(text)
    except RecursionError:
        raise DiscoveryError("nested too deeply for a list of target groups") from None


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DiscoveryError(f"line {error.lineno}: not JSON: {error.msg}") from error
    except ValueError as error:  # a number with thousands of digits
        raise DiscoveryError(f"not JSON: {error}") from error


def _parse_yaml(text: str) -> object:
    try:
        import yaml
    except ImportError:
        raise DiscoveryError("YAML needs PyYAML: pip install 'servescope[generate]', or write JSON") from None
    try:
        return yaml.safe_load(text)
    except ValueError as error:  # a date such as 2024-13-01, which PyYAML leaves to Python
        raise DiscoveryError(f"not YAML: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise DiscoveryError(f"{line}not YAML: {getattr(error, 'problem', None) or error}") from error


def _name(settings: DeploymentSettings) -> str:
    return repr(settings.deployment.deployment_id)


def _listed(values: Iterable[str]) -> str:
    return ", ".join(repr(value) for value in values)


def _told(identity: Identity) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in identity.labels())


def _type_name(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
