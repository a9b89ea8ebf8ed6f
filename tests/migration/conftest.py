"""An emulated v1 that was recorded, for everything that is computed of the traffic it served."""

from __future__ import annotations

import pytest

from servescope.emulator.workload.mixes import Mix
from tests.support.served_traffic import EmulatedPast, kept_past

SERVED_MIX = Mix(requests_per_second=1.5)


@pytest.fixture(scope="session")
def served_past() -> EmulatedPast:
    """Seventy minutes of an emulated v1, to be read only."""
    return kept_past("served-past", minutes=70, mix=SERVED_MIX)
