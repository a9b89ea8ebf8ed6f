"""The tables of all faults in `docs/faults.md`, from the registry."""

from __future__ import annotations

from collections.abc import Iterator

from docs.markdown import table
from servescope.emulator.faults.kinds import GROUPS, FaultKind


def render_faults() -> Iterator[str]:
    """A table for each group of kinds, line by line."""
    for group, kinds in GROUPS.items():
        yield from (f"### Faults: {group.lower()}", "")
        titles = ("Fault", "What is wrong", "Intensity", "Where", "What it makes true", "Shows after")
        yield from table(titles, map(_row, kinds))


def _row(kind: FaultKind) -> Iterator[str]:
    yield f"`{kind.name}`"
    yield kind.summary
    intensity = kind.intensity
    if intensity is None:
        yield "–"
    else:
        yield f"{intensity.default:g} ({intensity.lowest:g} … {intensity.highest:g}): {intensity.meaning}"
    where: list[str] = [*kind.scopes]
    where += ["in the oldest active replica unless one is named"] if kind.one_replica else []
    where += [f"needs: {kind.part}"] if kind.part else []
    yield ", ".join(where)
    truths = "<br>".join(f"`{truth.describe()}`" for truth in kind.truths(kind.choose_intensity(None)))
    yield truths + (f"<br>with {kind.needs}" if kind.needs else "")
    yield f"{kind.shows_after_seconds:g} s"
