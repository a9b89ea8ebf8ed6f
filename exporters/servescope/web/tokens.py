"""Bearer tokens (RFC 6750), from a file with one per line, so that they can rotate, or from the environment.

No token enters a log, an error, or a `repr`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from pathlib import Path

from servescope.errors import ServescopeError
from servescope.web.rereading import Reread

_MOST_BYTES = 65_536
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class TokenError(ServescopeError):
    """The tokens cannot be read; the text names the file or variable, never a value."""


class Tokens:
    """The accepted tokens; the file is read again when it changes. Raises TokenError when it cannot be.

    A file that becomes unusable leaves the tokens it held before in force. Not thread safe.
    """

    def __init__(self, *, file: Path | None = None, variable: str | None = None) -> None:
        self._file = Reread([file], lambda: _read_file(file)) if file is not None else None
        self._fixed = _read_variable(variable) if variable is not None else ()

    @property
    def required(self) -> bool:
        """Whether a client needs one."""
        return self._file is not None or bool(self._fixed)

    def admit(self, authorization: str | None) -> bool:
        """Whether an Authorization header carries one of the tokens; takes the same time for every wrong one."""
        if not self.required:
            return True
        scheme, _, token = (authorization or "").partition(" ")
        offered = _digest(token.strip())
        known = self._file.now() if self._file is not None else self._fixed
        # A list, so that every token is compared: the time must not show which of them was close.
        matching = [hmac.compare_digest(offered, each) for each in known]
        return scheme.lower() == "bearer" and any(matching)


def _read_file(path: Path) -> tuple[bytes, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1).decode("ascii")
    except OSError as error:
        raise TokenError(f"bearer_token_file {str(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TokenError(f"bearer_token_file {str(path)!r} is not ASCII text") from None
    if len(text) > _MOST_BYTES:
        raise TokenError(f"bearer_token_file {str(path)!r} is larger than {_MOST_BYTES} bytes")
    tokens = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not tokens:
        raise TokenError(f"bearer_token_file {str(path)!r} is empty, expected a token a line")
    return tuple(_checked(token, f"bearer_token_file {str(path)!r} line {number}") for number, token in tokens)


def _read_variable(variable: str) -> tuple[bytes, ...]:
    value = os.environ.get(variable)
    if value is None:
        raise TokenError(f"bearer_token_env: environment variable {variable!r} is not set")
    return (_checked(value.strip(), f"bearer_token_env: environment variable {variable!r}"),)


def _checked(token: str, where: str) -> bytes:
    if not _TOKEN.fullmatch(token):
        raise TokenError(f"{where} is no bearer token, expected letters, digits and -._~+/ with = at the end")
    return _digest(token)


def _digest(token: str) -> bytes:
    # Of one length, whatever the token's: comparing then takes the same time for all.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
