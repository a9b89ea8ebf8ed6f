"""The targets to scrape: those of the configuration, and those that `file_sd` files and `http_sd` URLs list now.

A list that cannot be used keeps what it listed before, and `Discovery.problems` says so.
"""

from __future__ import annotations

import hashlib
import logging
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import glob
from heapq import nsmallest
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

from servescope.collector.config import Configuration
from servescope.collector.targets import deployments
from servescope.collector.targets.relabel import Rule, relabel
from servescope.collector.targets.rights import Rights
from servescope.collector.targets.target import Target
from servescope.collector.targets.target_groups import DiscoveryError, read_answer, read_file
from servescope.contract.identity import IDENTITY_LABELS, Deployment, Identity
from servescope.errors import ConfigurationError, ServescopeError
from servescope.settings.signature import sign_file
from servescope.settings.values import format_duration, parse_duration
from servescope.sources.parts import PagePart, overlap

_logger = logging.getLogger(__name__)

_PARAMETER = "__param_"
_IN_A_PATH = "/?%&=+$,:;@!'()*[]"  # what is not encoded: a path may be encoded already, and may have parameters
_MOST_URL_CHARACTERS = 8_192
_MOST_SHOWN = 600  # characters of a problem
_MOST_PAIRS = 3
_MOST_LABELS = 10


class ListKey(NamedTuple):
    """One list of targets: whose it is, how it is read, its file or URL. Equal keys bring equal targets."""

    deployment: Deployment
    settings: deployments.ListSettings
    place: str


class Listing(NamedTuple):
    """What a list named when it was last usable; `signature` is that of the file or answer it was read from.

    `pairs` are addresses with their labels before relabelling, `dropped` counts those that relabelling left out.
    """

    signature: object = None
    pairs: tuple[tuple[str, Mapping[str, str]], ...] = ()
    targets: tuple[Target, ...] = ()
    dropped: int = 0
    problem: str | None = None


class FileLists(NamedTuple):
    """What the file_sd files of each deployment list, and what is wrong with their patterns."""

    listings: Sequence[Mapping[ListKey, Listing]]
    problems: Sequence[str]


@dataclass(frozen=True, slots=True)
class ListStatus:
    """The state of one list: how many targets it has, how many relabelling dropped, what is wrong with it."""

    kind: str
    place: str
    deployment_id: str
    targets: int
    dropped: int
    problem: str | None


class Discovery:
    """The targets of a configuration. Not thread safe.

    With a `former` discovery the lists that both have go on from what they named there. Raises ConfigurationError when
    targets that are written in the configuration are doubled. `rights` is whose targets are which.
    """

    def __init__(self, configuration: Configuration, former: Discovery | None = None) -> None:
        self._settings = configuration.deployments
        self._window_ms = configuration.collector.window_ms
        self.rights = Rights.of(configuration.deployments)
        self._static = _read_static(configuration)
        self._listings: dict[ListKey, Listing] = dict(former._listings) if former else {}
        if former is not None and former.rights != self.rights:
            self._listings = {key: self._made_anew(key, listing) for key, listing in self._listings.items()}
        self.targets: tuple[Target, ...] = ()
        self.problems: tuple[str, ...] = former.problems if former else ()
        self._gathered: tuple[Sequence[str], list[Listing]] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read the files that changed and apply them."""
        self.apply(self.read_files())

    def read_files(self) -> FileLists:
        """What the files list now; changes nothing, so it may run in another thread."""
        listings: list[dict[ListKey, Listing]] = []
        problems = []
        for settings in self._settings:
            listings.append({})
            for files in settings.file_sd:
                paths = _matching(files.files)
                if not paths:
                    problems.append(f"file_sd of deployment {_name(settings)}: no file matches {_listed(files.files)}")
                for path in paths:
                    key = _key(settings, files, path)
                    listings[-1][key] = self._read_file(key, self._former(key))
        return FileLists(listings, problems)

    def apply(self, files: FileLists) -> None:
        """Let `targets` and `problems` be those of these files, and of the answers taken since.

        `targets` is the same tuple for as long as nothing changed.
        """
        listings: dict[ListKey, Listing] = {}
        for settings, listed in zip(self._settings, files.listings, strict=True):
            listings |= listed
            for remote in settings.http_sd:
                key = _key(settings, remote, remote.url)
                listings[key] = self._former(key) or Listing()
        self._listings = listings
        self._gather(files.problems)

    def http_lists(self) -> list[ListKey]:
        """The lists that have to be asked for; their settings are HttpDiscoverySettings."""
        return [key for key in self._listings if isinstance(key.settings, deployments.HttpDiscoverySettings)]

    def read_answer(self, key: ListKey, body: bytes) -> Listing:
        """What an http_sd's answer lists; changes nothing, so it may run in another thread."""
        former = self._listings.get(key, Listing())
        signature = hashlib.blake2b(body, digest_size=16).digest()
        if former.signature == signature and former.problem is None:
            return former
        try:
            return self._make_listing(key, signature, read_answer(body, {"__meta_url": key.place}))
        except DiscoveryError as error:
            return _unusable(former, None, _http_problem(key, str(error)))

    def note_failure(self, key: ListKey, cause: str) -> None:
        """An http_sd did not answer: its former targets stay."""
        former = self._listings.get(key, Listing())
        self.commit(key, _unusable(former, former.signature, _http_problem(key, cause)))

    def commit(self, key: ListKey, listing: Listing) -> None:
        """Use what a list names from the next `apply` on, which forgets lists that are no longer configured."""
        self._listings[key] = listing

    def lists(self) -> list[ListStatus]:
        """The state of every list, the configuration's own targets first."""
        return [
            *(
                ListStatus("targets", "", settings.deployment.deployment_id, len(kept), dropped, None)
                for settings, kept, dropped in self._static
                if settings.targets
            ),
            *(
                ListStatus(
                    "http_sd" if isinstance(key.settings, deployments.HttpDiscoverySettings) else "file_sd",
                    key.place,
                    key.deployment.deployment_id,
                    len(listing.targets),
                    listing.dropped,
                    listing.problem,
                )
                for key, listing in self._listings.items()
            ),
        ]

    def _former(self, key: ListKey) -> Listing | None:
        """What the list named last, made into targets anew where another configuration said how."""
        known = self._listings.get(key)
        if known is not None:
            return known
        for other, listing in tuple(self._listings.items()):
            if (other.deployment, other.place) == (key.deployment, key.place):
                try:
                    # Without its signature, so that a file is read anew.
                    return self._make_listing(key, None, listing.pairs)
                except DiscoveryError:
                    return None
        return None

    def _made_anew(self, key: ListKey, listing: Listing) -> Listing:
        """What the list named last, unless that is another's by now; its file is read anew."""
        try:
            return self._make_listing(key, None, listing.pairs)
        except DiscoveryError as error:
            return Listing(problem=f"{key.place}: {error}; it lists no target yet")

    def _read_file(self, key: ListKey, former: Listing | None) -> Listing:
        path, signature = Path(key.place), None
        try:
            signature = sign_file(path)
            if former is not None and former.signature == signature:
                return former
            pairs = read_file(path, {"__meta_filepath": key.place})
            listing = self._make_listing(key, signature, pairs)
        except OSError as error:
            # It may be readable at the next look without being written to, after a chmod or a mount.
            return _unusable(former or Listing(), None, f"{path}: {error}")
        except DiscoveryError as error:
            return _unusable(former or Listing(), signature, f"{path}: {error}")
        _log_ignored_labels(key, pairs)
        return listing

    def _make_listing(self, key: ListKey, signature: object, pairs: Sequence[tuple[str, Mapping[str, str]]]) -> Listing:
        made = [
            make_target(address, labels, key.deployment, key.settings, window_ms=self._window_ms)
            for address, labels in pairs
        ]
        kept = tuple(target for target in made if target is not None)
        self.rights.check(kept, key.deployment)
        return Listing(signature, tuple(pairs), kept, len(made) - len(kept), None)

    def _gather(self, problems: Sequence[str]) -> None:
        if self._has_gathered(problems):
            return
        self._gathered = problems, list(self._listings.values())
        static = [kept for _, kept, _ in self._static]
        listed = [listing.targets for listing in self._listings.values()]
        self.targets, doubled = keep_distinct([*static, *listed])
        wrong = [listing.problem for listing in self._listings.values() if listing.problem]
        self._report((*problems, *wrong, *(_doubled_problem(pairs) for pairs in doubled if pairs)))

    def _has_gathered(self, problems: Sequence[str]) -> bool:
        """Whether nothing changed since the last time, as nearly always: listings are kept while they stay the same."""
        if self._gathered is None:
            return False
        former, listings = self._gathered
        now = self._listings.values()
        return former == problems and len(listings) == len(now) and all(map(operator.is_, listings, now))

    def _report(self, problems: tuple[str, ...]) -> None:
        known = set(self.problems)
        for problem in problems:
            if problem not in known:
                _logger.warning("%s", problem)
        self.problems = problems


class _Static(NamedTuple):
    """The targets written in one deployment's table, and how many of them relabelling dropped."""

    settings: deployments.DeploymentSettings
    targets: tuple[Target, ...]
    dropped: int


def check_targets(configuration: Configuration) -> None:
    """Raise ConfigurationError unless the targets written in a configuration can be scraped side by side."""
    _read_static(configuration)


def _read_static(configuration: Configuration) -> list[_Static]:
    default, window_ms = configuration.collector.scraping(), configuration.collector.window_ms
    rights = Rights.of(configuration.deployments)
    read = []
    for settings in configuration.deployments:
        try:
            made = [_static_target(target, settings, default, window_ms) for target in settings.targets]
            rights.check([target for target in made if target is not None], settings.deployment)
        except DiscoveryError as error:
            raise ConfigurationError(f"{configuration.origin}: deployment {_name(settings)}: {error}") from error
        kept = tuple(target for target in made if target is not None)
        read.append(_Static(settings, kept, len(made) - len(kept)))
    _, doubled = keep_distinct(each.targets for each in read)
    for pair in chain.from_iterable(doubled):
        raise ConfigurationError(f"{configuration.origin}: {_doubled(*pair)}")
    return read


def _static_target(
    target: deployments.TargetSettings,
    settings: deployments.DeploymentSettings,
    default: deployments.ScrapeSettings,
    window_ms: int,
) -> Target | None:
    scraping = target.scraping or default
    if not settings.relabel:
        labels = {name: value for name, value in settings.deployment.labels() if value}
        identity = Identity(**labels, replica=target.replica or deployments.host_and_port(target.url), role=target.role)
        return Target(
            target.url, identity, target.source, target.access, scraping, target.segment_label, PagePart(target.select)
        )
    scheme, _, rest = target.url.partition("://")
    address, _, path = rest.partition("/")
    path, _, query = path.partition("?")
    listed = deployments.ListSettings(
        role=target.role,
        source=target.source,
        segment_label=target.segment_label,
        select=target.select,
        scheme=scheme,
        metrics_path=f"/{path}",
        params=_parameters(query),
        relabel=settings.relabel,
        access=target.access,
        scraping=scraping,
    )
    replica = {"replica": target.replica} if target.replica else {}
    return make_target(address, replica, settings.deployment, listed, window_ms=window_ms)


def _parameters(query: str) -> deployments.Parameters:
    values: dict[str, list[str]] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        values.setdefault(name, []).append(value)
    return tuple((name, tuple(each)) for name, each in values.items())


def keep_distinct(lists: Iterable[Sequence[Target]]) -> tuple[tuple[Target, ...], list[list[tuple[Target, Target]]]]:
    """The targets that differ in identity and in what they read, and per list the pairs that do not.

    The first of a pair is kept. Two targets of one identity would mix their series; one URL twice in a deployment would
    count double, and so would series of a page that two deployments select. Each target of such a page knows what the
    others select.
    """
    by_identity: dict[Identity, Target] = {}
    by_url: dict[str, list[Target]] = {}
    doubled: list[list[tuple[Target, Target]]] = []
    for targets in lists:
        doubled.append([])
        for target in targets:
            beside = by_url.setdefault(target.url, [])
            former = by_identity.get(target.identity)
            former = former or next((each for each in beside if _read_the_same(each, target)), None)
            if former is not None:
                doubled[-1].append((former, target))
            else:
                by_identity[target.identity] = target
                beside.append(target)
    return tuple(_with_others(target, by_url[target.url]) for target in by_identity.values()), doubled


def _read_the_same(one: Target, other: Target) -> bool:
    """Whether two targets of one URL read the same series, where that counts these twice."""
    if not one.part.select and not other.part.select:
        return one.identity.deployment() == other.identity.deployment()
    return overlap(one.part.select, other.part.select)


def _with_others(target: Target, beside: Sequence[Target]) -> Target:
    """The target with what the others of its page select."""
    if not target.part.select or len(beside) == 1:
        return target
    others = tuple(sorted(each.part.select for each in beside if each.identity != target.identity))
    return replace(target, part=replace(target.part, others=others))


def _doubled(first: Target, second: Target) -> str:
    """What is wrong with a pair of which only the first is kept."""
    if first.url == second.url and (first.part.select or second.part.select):
        selected = " and ".join(each.part.describe() or "the whole page" for each in (first, second))
        return (
            f"target {_quoted(first.url)}: deployments {_quoted(first.identity.deployment_id)} and "
            f"{_quoted(second.identity.deployment_id)} select the same series ({selected}); a series is of one "
            "deployment"
        )
    if first.url == second.url:
        return f"target {_quoted(first.url)} is listed twice in deployment {_quoted(first.identity.deployment_id)}"
    return (
        f"targets {_quoted(first.url)} and {_quoted(second.url)} have the same identity "
        f"({_shown(first.identity)}); give them different replicas"
    )


def _doubled_problem(pairs: Sequence[tuple[Target, Target]]) -> str:
    """One problem for all pairs of a list, however many there are: it is logged and served whole."""
    shown = [_shortened(_doubled(*pair)) for pair in pairs[:_MOST_PAIRS]]
    if len(pairs) > len(shown):
        shown.append(f"and {len(pairs) - len(shown)} more in the same list")
    return f"{'; '.join(shown)}; the second{'' if len(pairs) == 1 else ' of each'} is left out"


def make_target(
    address: str, labels: Mapping[str, str], deployment: Deployment, listed: deployments.ListSettings, *, window_ms: int
) -> Target | None:
    """The target of one address, None when relabelling drops it; its labels win over the configuration's.

    Identity labels count, those that begin with `__` say how it is scraped; other labels are not part of the contract
    and are left out. Raises DiscoveryError.
    """
    try:
        found = relabel({**_first_labels(deployment, listed), **labels, "__address__": address}, listed.relabel)
        if found is None:
            return None
        url = _url(found, listed.params)
        # What rules took away and no target can be without is the configuration's.
        without = dict.fromkeys(IDENTITY_LABELS, "") | _required_labels(deployment, listed)
        without["replica"] = deployments.host_and_port(url)
        identity = {name: found.get(name, value) for name, value in without.items()}
        scraping = _scraping(found, listed, window_ms)
        part = PagePart(listed.select)
        return Target(url, Identity(**identity), listed.source, listed.access, scraping, listed.segment_label, part)
    except (ValueError, ServescopeError) as error:
        shown = "" if "@" in address else f" {_quoted(address)}"
        raise DiscoveryError(f"target{shown}: {error}") from None


def _first_labels(deployment: Deployment, listed: deployments.ListSettings) -> dict[str, str]:
    """What a target's labels are before its list has its say."""
    return {
        "__scheme__": listed.scheme,
        "__metrics_path__": listed.metrics_path,
        "__scrape_interval__": format_duration(listed.scraping.interval_ms),
        "__scrape_timeout__": format_duration(listed.scraping.timeout_ms),
        **{f"{_PARAMETER}{name}": values[0] for name, values in listed.params if values},
        "role": listed.role,
        **dict(deployment.labels()),
    }


def _required_labels(deployment: Deployment, listed: deployments.ListSettings) -> dict[str, str]:
    return {
        "model_name": deployment.model_name,
        "deployment_id": deployment.deployment_id,
        "inference_stack": deployment.inference_stack,
        "role": listed.role,
    }


def _url(labels: Mapping[str, str], params: deployments.Parameters) -> str:
    address, scheme = labels.get("__address__", ""), labels.get("__scheme__", "http")
    if scheme not in ("http", "https"):
        raise ValueError(f"__scheme__ {scheme!r}, expected http or https")
    if not address:
        raise ValueError("has no __address__")
    if re.search("[/?#]", address):
        raise ValueError(f"{_quoted(address)} is not host:port; a path goes into the label __metrics_path__")
    path = quote(labels.get("__metrics_path__", "/metrics").removeprefix("/"), safe=_IN_A_PATH)
    chosen = dict(params)
    for name, value in labels.items():
        if name.startswith(_PARAMETER):
            parameter = name.removeprefix(_PARAMETER)
            # A label is the first value of a parameter; the others are the configuration's.
            chosen[parameter] = (value, *chosen.get(parameter, ())[1:])
    url = deployments.check_url(f"{scheme}://{address}", path=f"/{path}")
    url = deployments.with_parameters(url, tuple(chosen.items()))
    if len(url) > _MOST_URL_CHARACTERS:
        raise ValueError(f"has a URL of {len(url)} characters, expected at most {_MOST_URL_CHARACTERS}")
    return url


def _scraping(
    labels: Mapping[str, str], listed: deployments.ListSettings, window_ms: int
) -> deployments.ScrapeSettings:
    settings = listed.scraping
    interval = _duration(labels, "__scrape_interval__", settings.interval_ms)
    timeout = _duration(labels, "__scrape_timeout__", settings.timeout_ms)
    if timeout == settings.timeout_ms:
        # An interval below the timeout lowers it: what is not said cannot be wrong.
        timeout = min(timeout, interval)
    if timeout > interval:
        raise ValueError(f"__scrape_timeout__ is above __scrape_interval__ ({format_duration(interval)})")
    if 2 * interval > window_ms:
        raise ValueError(
            f"__scrape_interval__ {format_duration(interval)}, expected at most half of the window "
            f"({format_duration(window_ms)})"
        )
    if (interval, timeout) == (settings.interval_ms, settings.timeout_ms):
        return settings
    return replace(settings, interval_ms=interval, timeout_ms=timeout)


def _duration(labels: Mapping[str, str], name: str, default_ms: int) -> int:
    if name not in labels:
        return default_ms
    milliseconds = parse_duration(labels[name])
    if milliseconds == 0:
        raise ValueError(f"{name} is 0, expected a duration above 0")
    return milliseconds


def _key(settings: deployments.DeploymentSettings, listed: deployments.ListSettings, place: str) -> ListKey:
    rules: tuple[Rule, ...] = (*listed.relabel, *settings.relabel)
    return ListKey(settings.deployment, replace(listed, relabel=rules), place)


def _http_problem(key: ListKey, cause: str) -> str:
    if isinstance(key.settings, deployments.HttpDiscoverySettings):
        cause = key.settings.list_access.conceal(cause)
    return f"http_sd {key.place!r}: {cause}"


def _unusable(former: Listing, signature: object, problem: str) -> Listing:
    kept = len(former.targets)
    effect = f"its former {kept} targets are kept" if kept else "it lists no target yet"
    return former._replace(signature=signature, problem=f"{_shortened(problem)}; {effect}")


def _matching(patterns: Iterable[str]) -> list[str]:
    # The patterns are absolute, which Path.glob does not take.
    return sorted({path for pattern in patterns for path in glob(pattern, recursive=True)})  # noqa: PTH207


def _log_ignored_labels(key: ListKey, pairs: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    if key.settings.relabel:
        return
    ignored = {name for _, labels in pairs for name in labels if not name.startswith("__")} - set(IDENTITY_LABELS)
    if ignored:
        shown = ", ".join(map(_quoted, nsmallest(_MOST_LABELS, ignored)))
        more = f" and {len(ignored) - _MOST_LABELS} more" if len(ignored) > _MOST_LABELS else ""
        _logger.info("%s: labels %s%s are not identity labels and are left out", key.place, shown, more)


def _name(settings: deployments.DeploymentSettings) -> str:
    return repr(settings.deployment.deployment_id)


def _listed(values: Iterable[str]) -> str:
    return ", ".join(repr(value) for value in values)


def _shown(identity: Identity) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in identity.labels())


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:100]}…")


def _shortened(problem: str) -> str:
    return problem if len(problem) <= _MOST_SHOWN else f"{problem[:_MOST_SHOWN]}…"
