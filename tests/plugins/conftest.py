"""How the tests of plugins read a page."""

from __future__ import annotations

from servescope.contract.samples import make_labels
from servescope.sources.parse import parse_exposition


def read_sample(page: str, name: str, **labels: str) -> float | None:
    """The value of the one sample with that name and these labels; None when there is none."""
    wanted = set(make_labels(labels))
    found = [each for each in parse_exposition(page).samples if each.name == name and wanted <= set(each.labels)]
    assert len(found) <= 1, found
    return found[0].value if found else None
