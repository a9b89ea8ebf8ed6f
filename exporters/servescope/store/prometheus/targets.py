"""The targets whose past a Prometheus holds, found by their labels."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from servescope.contract.identity import IDENTITY_LABELS, Deployment, Identity
from servescope.contract.metrics import PROCESS_RATIOS, SAMPLE_FAMILIES
from servescope.contract.own_metrics import TARGET_UNDERSTOOD
from servescope.contract.samples import Labels, pick_labels
from servescope.errors import IdentityError
from servescope.store.prometheus.client import LateError, Prometheus, TooMuchError
from servescope.store.prometheus.places import PLACE_LABELS, place_of
from servescope.store.prometheus.selectors import selector
from servescope.store.prometheus.steps import read_series

Form = Literal["engine", "contract", "probed", "collected"]
"""A target's series are an engine's own, those of our instruments (`contract`), translated by `servescope translate`
(`probed`), or exposed by a collector.
"""

UP: Final = "up"
TARGET_UP: Final = "servescope_target_up"
TARGET_INFO: Final = "servescope_target_info"
PROBE_SUCCESS: Final = "servescope_probe_success"
HEALTH: Final[Mapping[Form, tuple[str, ...]]] = {
    "collected": (TARGET_UP, TARGET_UNDERSTOOD),
    "probed": (PROBE_SUCCESS,),
}
"""What says whether a target was scraped and read, where that is not its `up`: each of them that is there is 1."""
CONTRACT_NAMES: Final = tuple(name for name, family in SAMPLE_FAMILIES.items() if family not in PROCESS_RATIOS)
"""Every sample name of the contract but the ratios of single processes, which nothing is derived from."""
_IDENTIFYING = tuple(name for name in CONTRACT_NAMES if not name.endswith("_bucket"))
_APART = (*IDENTITY_LABELS, *PLACE_LABELS)


@dataclass(frozen=True, slots=True)
class ScrapedTarget:
    """One target as a Prometheus scraped it.

    `attached` are the labels Prometheus added to its series, which are those of its `up` where it has one (`has_up`).
    `source` is the source map to read an engine with, None to identify it.
    """

    identity: Identity
    attached: Labels
    form: Form
    has_up: bool
    source: str | None = None

    @property
    def process(self) -> Identity:
        """Which process it is: one with our instruments and no `replica` is named by the instance it was scraped at."""
        instance = dict(self.attached).get("instance", "")
        if self.identity.replica or self.form == "collected" or not instance:
            return self.identity
        return replace(self.identity, replica=instance)

    def select(self, names: Sequence[str]) -> str:
        """The selector of its series of these names."""
        return selector(self._matchers(), names=names)

    @property
    def up(self) -> str:
        """The selector of its `up`."""
        return selector([("__name__", UP), *self.attached])

    @property
    def health(self) -> str | None:
        """The selector of its health as a collector or a translator exposes it, where one does."""
        names = HEALTH.get(self.form)
        return None if names is None else selector(self._matchers(), names=names)

    def _matchers(self) -> list[tuple[str, str]]:
        if self.form == "engine":
            return list(self.attached)
        identity = {name: getattr(self.identity, name) for name in IDENTITY_LABELS}
        # Labels that are empty count as well: a series of another environment is another target's.
        return [*identity.items(), *((name, value) for name, value in self.attached if name not in identity)]


# --- Finding them -----------------------------------------------------------------------------------------------------


def find_engines(
    prometheus: Prometheus,
    match: str,
    deployment: Deployment,
    *,
    role: str,
    replica_label: str,
    source: str | None,
    start_ms: int,
    end_ms: int,
) -> list[ScrapedTarget]:
    """The engines a Prometheus scraped itself: every `up` that `match` selects is a target of the deployment.

    Without an `up` the series with an engine's names are distinguished by `job` and `instance`. The value of
    `replica_label` is the name of the replica.
    """
    ups = prometheus.series([selector([("__name__", UP)], extra=match)], start_ms=start_ms, end_ms=end_ms)
    attached = [_without_name(labels) for labels in ups]
    has_up = bool(attached)
    if not has_up:
        names = [name for name in native_names() if not name.endswith("_bucket")]
        found = prometheus.series([selector(names=names, extra=match)], start_ms=start_ms, end_ms=end_ms)
        attached = [pick_labels(labels, ("job", "instance", replica_label)) for labels in found]
    return [
        ScrapedTarget(_engine_identity(deployment, labels, role, replica_label), labels, "engine", has_up, source)
        for labels in sorted(set(attached))
    ]


def _engine_identity(deployment: Deployment, attached: Labels, role: str, replica_label: str) -> Identity:
    values = dict(attached)
    replica = values.get(replica_label) or values.get("instance", "")
    return Identity(**dict(deployment.labels()), replica=replica, role=role)


def find_contract_targets(
    prometheus: Prometheus, match: str = "", *, start_ms: int, end_ms: int
) -> tuple[list[ScrapedTarget], list[str]]:
    """The targets whose series of the contract a Prometheus holds, and the problems of series without an identity.

    They come from collectors' pages, from translators, or from our instruments scraped without a collector.
    """
    problems: dict[str, None] = {}

    def identified(found: Iterable[Labels]) -> dict[Place, None]:
        return dict.fromkeys(_identified(found, problems))

    exposed, probed = (
        identified(
            read_series(prometheus, [selector([("__name__", name)], extra=match)], start_ms=start_ms, end_ms=end_ms)
        )
        for name in (TARGET_UP, PROBE_SUCCESS)
    )
    bare = identified(_contract_series(prometheus, match, start_ms, end_ms))
    keys = exposed | probed | bare
    ups = _ups_by_place(prometheus, (place for _, place in keys), start_ms, end_ms)
    targets = {key: make_target(key, ups, exposed, probed) for key in sorted(keys)}
    scraped_itself = {target.identity for key, target in targets.items() if key in bare or key in probed}
    # What a rule recorded of a target that is scraped itself is no page of a collector, which has an `up`.
    found = [
        target
        for key, target in targets.items()
        if key in bare or key in probed or target.has_up or target.identity not in scraped_itself
    ]
    return found, list(problems)


def _contract_series(prometheus: Prometheus, match: str, start_ms: int, end_ms: int) -> Iterator[Labels]:
    """The series of the contract without buckets, in one query or, where they are too many, name by name."""
    # What a collector counts itself, marked as derived, is of no target.
    extra = f'{{{_inner(match)}deployment_id!="",derived=""}}'
    try:
        yield from prometheus.series(
            [selector(names=_IDENTIFYING, extra=extra)], start_ms=start_ms, end_ms=end_ms, by=_APART
        )
    except LateError:
        raise  # one that does not answer at all would be waited for once for each name
    except TooMuchError:
        for name in _IDENTIFYING:
            wanted = [selector(names=[name], extra=extra)]
            yield from read_series(prometheus, wanted, start_ms=start_ms, end_ms=end_ms, by=_APART)


def _inner(match: str) -> str:
    inner = match.strip().removeprefix("{").removesuffix("}").strip().rstrip(",")
    return f"{inner}," if inner else ""


Place = tuple[Identity, Labels]
"""A target, and where it was scraped."""


def _identified(found: Iterable[Labels], problems: dict[str, None]) -> Iterator[Place]:
    """The identities of series and where they were scraped."""
    for labels in found:
        values = dict(labels)
        try:
            identity = Identity(**{name: values.get(name, "") for name in IDENTITY_LABELS})
        except IdentityError as error:
            problems[f"series such as {values.get('__name__', '')!r}: {error}"] = None
            continue
        yield identity, place_of(labels)


def _ups_by_place(
    prometheus: Prometheus, places: Iterable[Labels], start_ms: int, end_ms: int
) -> dict[Labels, list[Labels]]:
    jobs = sorted({values["job"] for place in places if (values := dict(place)).keys() >= {"job", "instance"}})
    if not jobs:
        return {}
    wanted = [selector([("__name__", UP), ("job", job)]) for job in jobs]
    return by_place(read_series(prometheus, wanted, start_ms=start_ms, end_ms=end_ms))


def by_place(found: Iterable[Labels]) -> dict[Labels, list[Labels]]:
    """The labels of series, each once and without its name, by where it is from."""
    ups: dict[Labels, dict[Labels, None]] = {}
    for labels in found:
        ups.setdefault(place_of(labels), {})[_without_name(labels)] = None
    return {place: list(found) for place, found in ups.items()}


def make_target(
    key: Place, ups: Mapping[Labels, Sequence[Labels]], exposed: Container[Place], probed: Container[Place]
) -> ScrapedTarget:
    """The target with this identity and place, in the form in which its series come.

    `ups` are the labels of the `up` series by their place, `exposed` the targets on collectors' pages and `probed`
    those on translators', each with the place of that page. Without a fitting `up` the place itself is matched.
    """
    identity, place = key
    identified = set(identity.labels())
    fitting = [
        labels
        for labels in ups.get(place, ())
        if all(pair in identified for pair in labels if pair[0] in IDENTITY_LABELS)
    ]
    # The `up` of a page with many targets has no identity; a scraper that gives one scrapes that target itself.
    is_its_own = any("deployment_id" in dict(labels) for labels in fitting)
    form: Form = "probed" if key in probed else "collected" if key in exposed and not is_its_own else "contract"
    # Several differ in labels the series need not bear, so what they have in common is matched.
    common = tuple(pair for pair in fitting[0] if all(pair in labels for labels in fitting)) if fitting else place
    return ScrapedTarget(identity, common, form, has_up=bool(fitting))


@lru_cache(maxsize=1)
def native_names() -> tuple[str, ...]:
    """Every series name that some source map reads or recognises a source by, in both its spellings."""
    from servescope.sources.map_files import load_sources

    names = {name for each in load_sources().values() for name in (*each.read_names(), *each.signs.none)}
    parts = {f"{name}{part}" for name in names for part in ("", "_bucket", "_sum", "_count")}
    return tuple(sorted(parts | {name.replace(":", "_") for name in parts}))


def _without_name(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != "__name__")
