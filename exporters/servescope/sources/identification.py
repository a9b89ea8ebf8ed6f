"""Which source an exposition is, by the names in it; of one that no map reads, what it is nearest to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from servescope.sources.map_files import load_sources, load_unmapped
from servescope.sources.maps import Source
from servescope.sources.parse import Exposition, canonical_name, sample_names

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


@dataclass(frozen=True, slots=True)
class _Index:
    """The names that the maps know, in the canonical spelling of samples, so that a page is looked up once for all.

    `signs` are the maps that a sample of the name may be a sign of, `own` the names of maps that it is a sample of, of
    which each map has `own_counts`; `endings` are the maps that have a name which, without its prefix, is this.
    """

    maps: Mapping[str, Source]
    signs: Mapping[str, list[str]]
    own: Mapping[str, list[tuple[str, str]]]
    own_counts: Mapping[str, int]
    endings: Mapping[str, list[str]]


_INDEXES: Final[dict[int, _Index]] = {}
"""The index of the maps that are loaded, by the identity of these."""


def _index() -> _Index:
    maps = load_sources()
    index = _INDEXES.get(id(maps))
    if index is None:
        _INDEXES.clear()
        index = _INDEXES[id(maps)] = _make_index(maps)
    return index


def _make_index(maps: Mapping[str, Source]) -> _Index:
    signs: dict[str, list[str]] = {}
    own: dict[str, list[tuple[str, str]]] = {}
    endings: dict[str, list[str]] = {}
    counts = {}
    for source in maps.values():
        for native in {*source.signs.all, *source.signs.any}:
            for name in sample_names(native):
                signs.setdefault(name, []).append(source.name)
        names = _own_names(source)
        counts[source.name] = len(names)
        for native in names:
            for name in sample_names(native):
                own.setdefault(name, []).append((source.name, native))
        for ending in set(map(canonical_name, _endings(source))):
            endings.setdefault(ending, []).append(source.name)
    return _Index(maps, signs, own, counts, endings)


def identify(exposition: Exposition) -> Identification:
    """Which source an exposition is, by the names in it; of several, that of which most names are exposed."""
    index = _index()
    possible = {source for name in exposition.places for source in index.signs.get(name, ())}
    found = [
        source
        for name, source in index.maps.items()
        if name in possible and source.signs.explain_mismatch(exposition) is None
    ]
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
        advice = "check that the URL is that of the metrics; an engine that counts nothing may describe families alone"
        return Identification(None, "", None, "there are no samples", advice)
    source, shown = _most_read(exposition)
    if source is not None:
        known = f", of whose names {shown} are exposed" if shown else ""
        mismatch = source.signs.explain_mismatch(exposition)
        reason = f"the map {source.name!r} reads {source.covers}{known}, but {mismatch}"
        advice = f"if it is {source.title}, use its map with source = {source.name!r} or --source; else {_WRITE_A_MAP}"
        if any(map(exposition.has, source.signs.none)):
            advice = f"it borrows names of {source.title}: scrape what is behind it; or {_WRITE_A_MAP}"
        return Identification(None, source.implied_versions(exposition), source.title, reason, advice)
    known = f"source maps: {', '.join(load_sources())}"
    unmapped = load_unmapped()
    begun = tuple(map(canonical_name, unmapped))
    if any(name.startswith(begun) for name in names):
        prefix, title = next(
            each for each in unmapped.items() if any(name.startswith(canonical_name(each[0])) for name in names)
        )
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
    index = _index()
    shown = {own for name in exposition.places for own in index.own.get(name, ())}
    counts = Counter(source for source, _ in shown)
    best, count = None, 0
    for source in index.maps.values():
        if counts[source.name] > count:
            best, count = source, counts[source.name]
    if best is not None:
        return best, f"{count} of {index.own_counts[best.name]}"
    for source in index.maps.values():
        prefixes = tuple(map(canonical_name, source.prefixes))
        if any(name.startswith(prefixes) for name in exposition.places):
            return source, ""
    return None, ""


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
    index = _index()
    alike: dict[str, set[str]] = {}
    for name in names:
        ending = name
        while ending := ending.partition("_")[2]:
            for of in index.endings.get(ending, ()):
                alike.setdefault(of, set()).add(name)
    best: tuple[Source | None, list[str]] = None, []
    for source in index.maps.values():
        if len(alike.get(source.name, ())) >= max(_LEAST_ALIKE, len(best[1]) + 1):
            best = source, sorted(alike[source.name])
    return best


def _endings(source: Source) -> Iterator[str]:
    for name in _own_names(source):
        prefix = max((each for each in source.prefixes if name.startswith(each)), key=len)
        yield name.removeprefix(prefix)
