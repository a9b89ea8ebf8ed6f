"""How many cases a test draws: a few in `make test`, all of them in `make proofs`."""

from __future__ import annotations

import pytest
from hypothesis import settings

EVERY = "every"
"""The profile of hypothesis that `make proofs` selects."""
FEW = "few"
_FEWEST = 5
_EXAMPLES = 100  # hypothesis' own number where a test gives none


def register_profiles() -> None:
    """Register both profiles and load the one of few examples; a busy machine fails no test in either.

    The few are the same in each run, so that a change is judged by itself; those of `make proofs` are new ones.
    """
    settings.register_profile(EVERY, deadline=None, max_examples=_EXAMPLES)
    settings.register_profile(FEW, deadline=None, max_examples=_EXAMPLES // 10, derandomize=True)
    settings.load_profile(FEW)


def examples(every: int, few: int | None = None) -> int:
    """Examples of a test of hypothesis: `every` in `make proofs`; otherwise `few`, or a tenth and at least five."""
    if settings.default is not None and settings.default.max_examples == _EXAMPLES:
        return every
    return few if few is not None else max(min(every, _FEWEST), every // 10)


def trials(name: str, few: int, every: int) -> pytest.MarkDecorator:
    """Run a test with `few` as this argument in `make test`, and with `every` in `make proofs`."""
    return pytest.mark.parametrize(name, [few, pytest.param(every, marks=pytest.mark.proof)])
