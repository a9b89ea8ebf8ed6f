"""Which source an exposition is, by the names in it; of one that no map reads, what it is nearest to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from servescope.sources.map_files import load_sources, load_unmapped
from servescope.sources.maps import Source
from servescope.sources.parse import Exposition, canonical_name

_WRITE_A_MAP: Final = "update servescope, or write a source map (docs/sources.md)"
# Fewer names that end alike are common to programs of all kinds.
_LEAST_ALIKE: Final = 3
_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Identification:
    """What an exposition is: its source, or None with the nearest guess, the reason why it is not that, and what to do.

    `advice` is "" where the source is known. `others` are the sources that the names are of too: of several, that is
    used of which most names are exposed.
    """

    source: Source | None
    versions: str
    nearest: str | None
    reason: str
    advice: str = ""
    others: tuple[Source, ...] = ()

    def explain_others(self) -> str:
        """That a text is of several sources, and how to read the others; "" where it is of one or of none."""
        if self.source is None or not self.others:
            return ""
        listed = " and ".join(f"{each.name!r} ({each.title})" for each in self.others)
        own, other = self.source.name, self.others[0].name
        return (
            f"its names are also those of {listed}, of which no more are exposed, so it is read as {own!r} alone; "
            f"to read the other too, list the address in a deployment of its own with source = {other!r}"
        )

    def explain(self) -> str:
        """Why the source is unknown, what is nearest, and what to do, as one text."""
        near = f"; the nearest is {self.nearest!r}" if self.nearest else ""
        return f"{self.reason}{near}; {self.advice}"


def identify(exposition: Exposition) -> Identification:
    """Which source an exposition is, by the names in it; of several, that of which most names are exposed."""
    found = [source for source in load_sources().values() if source.signs.explain_mismatch(exposition) is None]
    if not found:
        return _guess(exposition)
    if len(found) > 1:
        found = [source for source in found if not any(source.name in each.signs.over for each in found)]
        found.sort(key=lambda source: -sum(map(exposition.has, _names(source))))
    source, *others = found
    versions, reason = source.implied_versions(exposition), "its names are the map's"
    return Identification(source, versions, source.title, reason, others=tuple(others))


def _guess(exposition: Exposition) -> Identification:
    names = exposition.by_name
    if not names:
        return Identification(None, "", None, "there are no samples", "check that the URL is that of the metrics")
    source, shown = _most_read(exposition)
    if source is not None:
        known = f", of whose names {shown} are exposed" if shown else ""
        mismatch = source.signs.explain_mismatch(exposition)
        reason = f"the map {source.name!r} reads {source.covers}{known}, but {mismatch}"
        advice = f"if it is {source.title}, use its map with source = {source.name!r} or --source; else {_WRITE_A_MAP}"
        return Identification(None, source.implied_versions(exposition), source.title, reason, advice)
    known = f"source maps: {', '.join(load_sources())}"
    for prefix, title in load_unmapped().items():
        if any(name.startswith(canonical_name(prefix)) for name in names):
            reason = f"the names beginning with {prefix!r} are those of {title}, which has no source map ({known})"
            return Identification(None, "", title, reason, f"{_WRITE_A_MAP}, or take the target out of the list")
    source, alike = _most_alike(names)
    if source is not None:
        listed = ", ".join(repr(name) for name in alike[:_MOST_NAMED])
        reason = f"{len(alike)} of its names end as those of {source.title} do, such as {listed}, and begin otherwise"
        advice = f"if it is a {source.title} whose names are rewritten, scrape the engine itself; else {_WRITE_A_MAP}"
        return Identification(None, "", source.title, reason, advice)
    advice = f"check that the URL is that of the engine's own metrics; if it is, {_WRITE_A_MAP}"
    return Identification(None, "", None, f"no name in it is known ({known})", advice)


def _most_read(exposition: Exposition) -> tuple[Source | None, str]:
    """The source with the most of its own names in the exposition, and how many of how many; None without any.

    A source that has a name with one of its prefixes, but none that it reads, is the last choice.
    """
    best: tuple[int, Source | None, str] = (0, None, "")
    for source in load_sources().values():
        own = _own_names(source)
        count = sum(exposition.has(name) for name in own)
        if count > best[0]:
            best = count, source, f"{count} of {len(own)}"
    if best[1] is None:
        for source in load_sources().values():
            if any(
                name.startswith(canonical_name(prefix)) for prefix in source.prefixes for name in exposition.by_name
            ):
                return source, ""
    return best[1], best[2]


def _own_names(source: Source) -> frozenset[str]:
    """The names that a source reads or is identified by, and that begin as no other program's do."""
    names = _names(source)
    return frozenset(name for name in names if any(name.startswith(prefix) for prefix in source.prefixes))


def _names(source: Source) -> frozenset[str]:
    """The names that a source reads or is identified by."""
    natives = {
        term.native
        for metric_map in source.metrics.values()
        for alternative in metric_map.alternatives
        for term in alternative.terms
    }
    return frozenset(natives | {*source.signs.all, *source.signs.any})


def _most_alike(names: Mapping[str, object]) -> tuple[Source | None, list[str]]:
    """The source with the most of whose names, without its prefix, those of a text end, and the names; None without."""
    best: tuple[Source | None, list[str]] = None, []
    for source in load_sources().values():
        endings = tuple(f"_{canonical_name(ending)}" for ending in _endings(source))
        alike = sorted(name for name in names if endings and name.endswith(endings))
        if len(alike) >= max(_LEAST_ALIKE, len(best[1]) + 1):
            best = source, alike
    return best


def _endings(source: Source) -> Iterator[str]:
    for name in _own_names(source):
        prefix = max((each for each in source.prefixes if name.startswith(each)), key=len)
        yield name.removeprefix(prefix)
