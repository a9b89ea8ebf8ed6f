"""What the tests of the instruments share: a clock to advance, and how they read what is exposed."""

from __future__ import annotations

from typing import Any

import pytest

from servescope.instruments.testing import FakeClock, Readable, value
from servescope.instruments.values import REFUSALS


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def assert_values(instruments: Readable, **expected: Any) -> None:
    """Each name has one sample of this value, or none where None is expected."""
    assert {name: value(instruments, name) for name in expected} == expected


def refused(instruments: Readable) -> dict[str, float]:
    """How many refusals there are, by kind; kinds without any are left out."""
    counts = {kind: value(instruments, "servescope_instrument_errors_total", kind=kind) or 0 for kind in REFUSALS}
    return {kind: count for kind, count in counts.items() if count}
