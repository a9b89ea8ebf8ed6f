"""How a target lets the collector in: request headers and tokens, read anew for every scrape so that they may rotate.

Secret values never enter a log, an error, the API or a `repr`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from servescope.errors import ServescopeError


class AccessError(ServescopeError):
    """A header or token cannot be had; the text names where it was looked for, never its value."""


@dataclass(frozen=True, slots=True)
class Access:
    """The headers one target's requests carry, and where their values come from.

    Pairs are of header name and value, environment variable or file; relative files stand beside the configuration,
    in `directory`.
    """

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    headers_from_env: tuple[tuple[str, str], ...] = ()
    headers_from_file: tuple[tuple[str, str], ...] = ()
    bearer_token_env: str | None = None
    bearer_token_file: str | None = None
    directory: str = field(default=".", compare=False)

    def request_headers(self) -> dict[str, str]:
        """The headers of one request, files and environment read now; raises AccessError."""
        headers = {name: _checked(value, f"header {name!r}") for name, value in self.headers}
        for name, variable in self.headers_from_env:
            headers[name] = _read_variable(variable)
        for name, path in self.headers_from_file:
            headers[name] = self._read_file(path)
        if self.bearer_token_env is not None:
            headers["Authorization"] = f"Bearer {_read_variable(self.bearer_token_env)}"
        if self.bearer_token_file is not None:
            headers["Authorization"] = f"Bearer {self._read_file(self.bearer_token_file)}"
        return headers

    def find_problem(self) -> str | None:
        """Why requests could not be made as things stand, or None; for a configuration being read."""
        if self.bearer_token_env is not None and self.bearer_token_file is not None:
            return "bearer_token_env and bearer_token_file are both set, expected one of them"
        names = [name.lower() for pairs in self._named_headers() for name, _ in pairs]
        if self.bearer_token_env is not None or self.bearer_token_file is not None:
            names.append("authorization")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            return f"header {twice[0]!r} is set twice"
        try:
            self.request_headers()
        except AccessError as error:
            return str(error)
        return None

    def _named_headers(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        return self.headers, self.headers_from_env, self.headers_from_file

    def _read_file(self, path: str) -> str:
        try:
            text = (Path(self.directory) / path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise AccessError(f"secret file {path!r} cannot be read: {reason}") from None
        return _checked(text, f"secret file {path!r}")


def check_header_name(name: str) -> bool:
    """Whether a header may be called so (RFC 9110, section 5.6.2)."""
    return re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) is not None


def _read_variable(variable: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise AccessError(f"environment variable {variable!r} is not set")
    return _checked(value, f"environment variable {variable!r}")


def _checked(value: str, where: str) -> str:
    stripped = value.strip()
    if not stripped:
        raise AccessError(f"{where} is empty")
    if not stripped.isprintable() or not stripped.isascii():
        raise AccessError(f"{where} holds characters that no header may carry")
    return stripped
