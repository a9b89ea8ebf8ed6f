"""What a source map knows of the families of a page: it reads one, ignores it for a reason, or does not know it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from servescope.sources.map_files import load_common
from servescope.sources.maps import Source
from servescope.sources.parse import Exposition, canonical_name


@dataclass(frozen=True, slots=True)
class Families:
    """The families of a page that its map does not read: why it ignores them, by name, and those it does not know."""

    ignored: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def sort_families(exposition: Exposition, source: Source) -> Families:
    """The families of an exposition that the source's map does not read, in their order."""
    read = {_base(name) for name in source.read_names()}
    left = [name for name in exposition.families if _base(name) not in read]
    reasons = {name: _reason(name, source) for name in left}
    return Families(
        {name: reason for name, reason in reasons.items() if reason is not None},
        tuple(name for name, reason in reasons.items() if reason is None),
    )


def _base(name: str) -> str:
    """The name of a family, of which a map, or a page that was cut, may have one part alone."""
    return re.sub("_(bucket|sum|count)$", "", canonical_name(name))


def _reason(family: str, source: Source) -> str | None:
    """Why the map ignores a family, None where it does not; the map's own reason is preferred to the common one.

    Of a histogram without types a page may have one part alone, as after a search for some of its lines.
    """
    groups = (*source.ignored, *load_common())
    return next((group.reason for group in groups if group.has(family) or group.has(_base(family))), None)
