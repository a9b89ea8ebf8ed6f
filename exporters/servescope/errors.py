"""What servescope raises.

ServescopeError
├── ExpressionError        a derived figure's expression is not well formed
└── UsageError             the caller's arguments are wrong (the command line ends with code 2)
    ├── TraceError         a recorded trace cannot be replayed; the message names file, line and what was expected
    ├── IdentityError      an identity label is missing or has a value that is not allowed
    └── ConfigurationError a configuration file is wrong; the message names file, key, value and what was expected
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class ServescopeError(Exception):
    """Base of every error that servescope raises on purpose; its text is written for users."""


class ExpressionError(ServescopeError):
    """The expression of a derived figure is not well formed."""


class UsageError(ServescopeError):
    """The arguments of a command are wrong."""


class IdentityError(UsageError):
    """An identity label is missing or has a value that is not allowed."""


class ConfigurationError(UsageError):
    """A configuration file is wrong."""


class TraceError(UsageError):
    """A recorded trace cannot be replayed; `line` is the number of the wrong line, from 1, None where there is none."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def require_extra(extra: str, *modules: str) -> None:
    """Raise UsageError unless the modules of an extra are installed."""
    if any(find_spec(module) is None for module in modules):
        raise UsageError(f"extra {extra!r} is not installed: {how_to_install(extra)}")


def how_to_install(extra: str) -> str:
    """The command that installs an extra; servescope is on no index, so it is installed from a path."""
    return f"pip install '.[{extra}]' in a checkout, or 'PATH.whl[{extra}]' with the path of the wheel"


def suggest(word: str, known: Iterable[str]) -> str:
    """`did you mean …?` with the known word that is nearest to a wrong one; empty where none is near."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""
