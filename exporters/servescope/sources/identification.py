"""Which source an exposition is, by the names in it."""

from __future__ import annotations

from dataclasses import dataclass

from servescope.sources.map_files import load_sources, load_unmapped
from servescope.sources.maps import Source
from servescope.sources.parse import Exposition, canonical_name


@dataclass(frozen=True, slots=True)
class Identification:
    """What an exposition is: its source, or None with the nearest guess and the reason why it is not that."""

    source: Source | None
    versions: str
    nearest: str | None
    reason: str


def identify(exposition: Exposition) -> Identification:
    """Which source an exposition is, by the names in it."""
    for source in load_sources().values():
        if source.signs.explain_mismatch(exposition) is None:
            return Identification(source, source.implied_versions(exposition), source.title, "its names are the map's")
    return _guess(exposition)


def _guess(exposition: Exposition) -> Identification:
    names = exposition.by_name
    if not names:
        return Identification(None, "", None, "there are no samples")
    known = f"source maps: {', '.join(load_sources())}"
    for source in load_sources().values():
        if any(name.startswith(canonical_name(prefix)) for prefix in source.prefixes for name in names):
            versions = source.implied_versions(exposition)
            mismatch = source.signs.explain_mismatch(exposition)
            reason = f"the map {source.name!r} reads {source.covers}, but {mismatch}"
            return Identification(None, versions, source.title, reason)
    for prefix, title in load_unmapped().items():
        if any(name.startswith(canonical_name(prefix)) for name in names):
            reason = f"the names beginning with {prefix!r} are those of {title}, which has no source map ({known})"
            return Identification(None, "", title, reason)
    return Identification(None, "", None, f"no name in it is known ({known})")
