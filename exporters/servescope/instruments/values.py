"""The values that callers pass: how they are checked, and why one is refused."""

from __future__ import annotations

import math
import operator

from servescope.contract.identity import explain_label_value
from servescope.errors import UsageError

REFUSALS = (
    "wrong_type",
    "out_of_range",
    "unknown_value",
    "inconsistent",
    "finished_twice",
    "after_finish",
    "first_token_twice",
    "first_token_missing",
    "inherited",
    "dropped",
    "internal",
)
"""Why a call or a value was refused; the values of the label `kind`."""

MAX_TOKENS = 2**32 - 1
"""Most tokens in one call; more is refused as out of range."""

MAX_SECONDS = 1e9
"""Longest time in one call: 30 years. A wall-clock time passed as a duration is longer."""


class Refused(Exception):  # noqa: N818 - it never leaves an instrument
    """A value that an instrument refuses; `kind` is one of `REFUSALS`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def inherited(call: str) -> Refused:
    """The refusal of a call on what was begun before this process was forked."""
    return Refused("inherited", f"{call}() was called in a forked process, on what its parent had begun")


def whole(name: str, value: object, most: int = MAX_TOKENS) -> int:
    """The value as a whole number from 0 to `most`; `5.0` and numpy's integers are accepted. Raises Refused."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # it raises for what is not an index
    except TypeError:
        number = _whole_float(name, value)
    if not 0 <= number <= most:
        raise Refused("out_of_range", f"{name} is {shown(value)}, expected 0 to {most}")
    return number


def finite(name: str, value: object, most: float = MAX_SECONDS) -> float:
    """The value as a float from 0 to `most`. Raises Refused."""
    if isinstance(value, str | bytes):
        raise Refused("wrong_type", f"{name} is {shown(value)}, expected a number")
    try:
        number = float(value)  # type: ignore[arg-type]  # it raises for what is not a number
    except (TypeError, ValueError) as error:
        raise Refused("wrong_type", f"{name} is {shown(value)}, expected a number") from error
    if not 0 <= number <= most:
        raise Refused("out_of_range", f"{name} is {shown(value)}, expected 0 to {most:g}")
    return number


def member(name: str, value: object, values: tuple[str, ...]) -> str:
    """The value, which is one of `values`. Raises Refused."""
    if not isinstance(value, str) or value not in values:
        raise Refused("unknown_value", f"unknown {name} {shown(value)}, supported: {', '.join(values)}")
    return value


def label_value(name: str, value: object) -> str:
    """The value as that of a label, which is not empty. Raises Refused."""
    wrong = explain_label_value(value) if value != "" else ", expected text that is not empty"
    if wrong or not isinstance(value, str):
        kind = "out_of_range" if isinstance(value, str) else "wrong_type"
        raise Refused(kind, f"{name} is {shown(value)}{wrong}")
    return value


def shown(value: object) -> str:
    """The value as text for a log: at most 80 characters, whatever it is."""
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:77]}..."


def require_positive(name: str, value: object) -> float:
    """The value as a float above 0. Raises UsageError; for constructors."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UsageError(f"{name} is {value!r}, expected seconds above 0")
    return float(value)


def require_whole(name: str, value: object, least: int, most: int) -> int:
    """The value as a whole number within the bounds. Raises UsageError; for constructors."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"{name} is {value!r}, expected a whole number from {least} to {most}")
    return value


def _whole_float(name: str, value: object) -> int:
    number = finite(name, value, float(MAX_TOKENS))
    if not number.is_integer():
        raise Refused("wrong_type", f"{name} is {shown(value)}, expected a whole number")
    return int(number)
