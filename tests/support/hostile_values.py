"""Values that no caller should pass, for properties that hold whatever is passed."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from servescope.contract.metrics import OUTCOMES

# Other work on the machine must not make a test fail.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Hostile:
    """A value that raises whatever one does with it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __float__(self) -> float:
        raise RuntimeError("float")

    def __index__(self) -> int:
        raise RuntimeError("index")

    def __len__(self) -> int:
        raise RuntimeError("len")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")

    def __iter__(self) -> Any:
        raise RuntimeError("iter")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        raise RuntimeError("hash")

    def __repr__(self) -> str:
        raise RuntimeError("repr")


HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(0, 100),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.integers(-3, 3), max_size=6),
    st.tuples(st.integers(0, 3), st.floats(), st.text(max_size=1)),
    st.sampled_from(OUTCOMES),
    st.builds(Hostile),
    st.builds(object),
    st.builds(lambda: iter(int, 1)),  # never ends
    st.complex_numbers(),
)
