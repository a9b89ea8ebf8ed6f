"""How a server is accessed: headers, tokens and passwords, TLS, and the proxy before it.

`Access` holds where each secret is found. Secret values never enter a log, an error, the API or a `repr`.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import BadStatusLine
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.parse import unquote
from urllib.request import getproxies_environment

from servescope.errors import ConfigurationError, ServescopeError
from servescope.settings.concealing import MOST_CHARACTERS, conceal
from servescope.settings.tables import Setting, Table
from servescope.settings.values import check_authority, check_header_name

ACCESS_SETTINGS = (
    Setting("bearer_token_file", ""),
    Setting("bearer_token_env", ""),
    Setting("basic_auth_username", ""),
    Setting("basic_auth_password_file", ""),
    Setting("basic_auth_password_env", ""),
    Setting("headers", "{}"),
    Setting("headers_from_env", "{}"),
    Setting("headers_from_file", "{}"),
    Setting("tls_ca_file", ""),
    Setting("tls_cert_file", ""),
    Setting("tls_key_file", ""),
    Setting("tls_server_name", ""),
    Setting("tls_insecure_skip_verify", "false"),
    Setting("proxy_url", ""),
    Setting("proxy_username", ""),
    Setting("proxy_password_file", ""),
    Setting("proxy_password_env", ""),
    Setting("proxy_from_environment", "false"),
    Setting("no_proxy", "[]"),
)
"""The keys of a table that configure the access to a server; the same wherever a server is configured."""

NO_CREDENTIALS: Final = frozenset((
    "accept", "accept-encoding", "accept-language", "cache-control", "content-language", "content-type", "user-agent",
    "x-scope-orgid", "x-tenant", "x-tenant-id", "tenant-id", "thanos-tenant", "accountid", "projectid",
    "x-honeycomb-dataset", "x-prometheus-remote-write-version",
))  # fmt: skip
"""Headers that are known to hold no credentials, in small letters; every other one counts as a credential."""

_LONGEST_TRACEBACK: Final = 100_000
_MOST_ACCESSES: Final = 10_000
_MOST_SENT: Final = 64
_SENT: Final[dict[Access, tuple[str, ...]]] = {}
"""What was sent last with each access, the latest last."""


class AccessError(ServescopeError):
    """A secret cannot be read; the text names its file or variable, never its value."""


@dataclass(frozen=True, slots=True)
class Tls:
    """How a server's certificate is verified, and which one is presented to it; files as in `Access`."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False


@dataclass(frozen=True, slots=True)
class Pems:
    """The contents of the files of `Tls`, None where there is none."""

    ca: bytes | None = field(default=None, repr=False)
    cert: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Proxy:
    """The proxy before a server, if any, and the hosts that are reached without it."""

    url: str | None = None
    username: str | None = None
    password_file: str | None = None
    password_env: str | None = None
    from_environment: bool = False
    no_proxy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """What is sent to a server for authentication, and where it is read from.

    Pairs are a header's name and its value, environment variable or file; relative files are relative to `directory`,
    that of the configuration.
    """

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    headers_from_env: tuple[tuple[str, str], ...] = ()
    headers_from_file: tuple[tuple[str, str], ...] = ()
    bearer_token_env: str | None = None
    bearer_token_file: str | None = None
    basic_auth_username: str | None = None
    basic_auth_password_file: str | None = None
    basic_auth_password_env: str | None = None
    tls: Tls = field(default_factory=Tls)
    proxy: Proxy = field(default_factory=Proxy)
    directory: str = "."

    def request_headers(self) -> dict[str, str]:
        """The headers of a request, read from files and environment now; raises AccessError."""
        headers = {name: _checked(value, f"header {name!r}") for name, value in self.headers}
        for name, variable in self.headers_from_env:
            headers[name] = _read_variable(variable)
        for name, path in self.headers_from_file:
            headers[name] = self._read_file(path)
        if self.bearer_token_env is not None or self.bearer_token_file is not None:
            headers["Authorization"] = f"Bearer {self._secret(self.bearer_token_file, self.bearer_token_env)}"
        if self.basic_auth_username is not None:
            headers["Authorization"] = self._basic(
                self.basic_auth_username, self.basic_auth_password_file, self.basic_auth_password_env
            )
        self._remember(headers.values())
        return headers

    def proxy_authorization(self) -> str | None:
        """The value of `Proxy-Authorization`, None without a user name; raises AccessError."""
        proxy = self.proxy
        if proxy.username is None:
            return None
        authorization = self._basic(proxy.username, proxy.password_file, proxy.password_env)
        self._remember([authorization])
        return authorization

    def make_ssl_context(self) -> ssl.SSLContext:
        """A context with the certificates as they are now; raises AccessError."""
        tls = self.tls
        try:
            context = ssl.create_default_context(cafile=self._path(tls.ca_file) if tls.ca_file else None)
        except (OSError, ValueError) as error:
            raise AccessError(f"tls_ca_file {tls.ca_file!r} cannot be used: {_reason(error)}") from None
        if tls.insecure_skip_verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if tls.cert_file:
            try:
                key = self._path(tls.key_file) if tls.key_file else None
                context.load_cert_chain(self._path(tls.cert_file), key, password=_refuse_encrypted)
            except (OSError, ValueError) as error:
                files = f"tls_cert_file {tls.cert_file!r} with tls_key_file {tls.key_file!r}"
                raise AccessError(f"{files} cannot be used: {_reason(error)}") from None
        return context

    def read_certificates(self) -> Pems:
        """The certificates and the key as they are now, for clients that take no SSL context; raises AccessError."""
        tls = self.tls
        return Pems(*(self._read_pem(path) if path else None for path in (tls.ca_file, tls.cert_file, tls.key_file)))

    def header_names(self) -> frozenset[str]:
        """The names of the headers that a request has, in small letters."""
        names = {name.lower() for name, _ in (*self.headers, *self.headers_from_env, *self.headers_from_file)}
        return frozenset(names | {"authorization"} if self._authorizes else names)

    def credentials(self) -> list[str]:
        """The names of the headers that are secrets; one that is written out counts unless it is known to be none."""
        written = [name for name, _ in self.headers if name.lower() not in NO_CREDENTIALS]
        read = [name for name, _ in (*self.headers_from_env, *self.headers_from_file)]
        return [*(["Authorization"] if self._authorizes else []), *read, *written]

    @property
    def _authorizes(self) -> bool:
        return (self.bearer_token_env or self.bearer_token_file or self.basic_auth_username) is not None

    def find_problem(self) -> str | None:
        """Why no request can be made with these settings now, or None."""
        try:
            self._check_combinations()
            self.request_headers()
            self.proxy_authorization()
            if self.tls != Tls():
                self.make_ssl_context()
        except AccessError as error:
            return str(error)
        return None

    def conceal(self, text: str, *more: str, most: int = MOST_CHARACTERS) -> str:
        """A text in which a server may have sent back what it was sent, or `more`, without that; see `conceal`.

        What was sent is known from when it was read last, and some times before: it may be exchanged at any moment.
        """
        if self not in _SENT:
            with suppress(AccessError):
                self.request_headers()
            with suppress(AccessError):
                self.proxy_authorization()
        return conceal(text, (*_SENT.get(self, ()), *more, *_environment_credentials()), most=most)

    def conceal_fault(self, *more: str) -> str:
        """The traceback of the exception that is being handled, which may quote what a server sent."""
        return self.conceal(traceback.format_exc(), *more, most=_LONGEST_TRACEBACK)

    def secret_files(self) -> list[str]:
        """The files that headers are read from."""
        named = (self.bearer_token_file, self.basic_auth_password_file, self.proxy.password_file)
        return [self._path(path) for path in (*named, *(path for _, path in self.headers_from_file)) if path]

    def certificate_files(self) -> list[str]:
        """The files that TLS needs."""
        return [self._path(path) for path in (self.tls.ca_file, self.tls.cert_file, self.tls.key_file) if path]

    def secret_variables(self) -> list[str]:
        """The environment variables that headers are read from."""
        named = (self.bearer_token_env, self.basic_auth_password_env, self.proxy.password_env)
        return [variable for variable in (*named, *(name for _, name in self.headers_from_env)) if variable]

    def _remember(self, sent: Iterable[str]) -> None:
        """Keep what is about to be sent, the latest last."""
        latest = tuple(sent)
        if len(_SENT) >= _MOST_ACCESSES:
            _SENT.clear()
        former = tuple(value for value in _SENT.get(self, ()) if value not in latest)
        _SENT[self] = (*former, *latest)[-_MOST_SENT:]

    def _check_combinations(self) -> None:
        for kind, file, variable in (
            ("bearer_token", self.bearer_token_file, self.bearer_token_env),
            ("basic_auth_password", self.basic_auth_password_file, self.basic_auth_password_env),
            ("proxy_password", self.proxy.password_file, self.proxy.password_env),
        ):
            if file is not None and variable is not None:
                raise AccessError(f"{kind}_env and {kind}_file are both set, expected one of them")
        _check_user("basic_auth", self.basic_auth_username, self.basic_auth_password_file, self.basic_auth_password_env)
        _check_user("proxy", self.proxy.username, self.proxy.password_file, self.proxy.password_env)
        self._check_headers_differ()
        if self.tls.key_file and not self.tls.cert_file:
            raise AccessError("tls_key_file is set without tls_cert_file")
        if self.proxy.url and self.proxy.from_environment:
            raise AccessError("proxy_url and proxy_from_environment are both set, expected one of them")
        if not self.proxy.url and (self.proxy.username or self.proxy.no_proxy):
            raise AccessError("proxy_username and no_proxy need proxy_url; the environment has its own")

    def _check_headers_differ(self) -> None:
        pairs = (*self.headers, *self.headers_from_env, *self.headers_from_file)
        names = [name.lower() for name, _ in pairs]
        names += ["authorization"] * (self.bearer_token_env is not None or self.bearer_token_file is not None)
        names += ["authorization"] * (self.basic_auth_username is not None)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise AccessError(f"header {twice[0]!r} is set twice")

    def _basic(self, username: str, file: str | None, variable: str | None) -> str:
        return make_basic(f"{username}:{self._secret(file, variable)}")

    def _secret(self, file: str | None, variable: str | None) -> str:
        if file is not None:
            return self._read_file(file)
        return _read_variable(variable) if variable is not None else ""

    def _path(self, path: str) -> str:
        return str(Path(self.directory) / path)

    def _read_pem(self, path: str) -> bytes:
        try:
            return Path(self._path(path)).read_bytes()
        except OSError as error:
            raise AccessError(f"certificate file {path!r} cannot be read: {error.strerror}") from None

    def _read_file(self, path: str) -> str:
        try:
            text = Path(self._path(path)).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise AccessError(f"secret file {path!r} cannot be read: {reason}") from None
        return _checked(text, f"secret file {path!r}")


def make_basic(pair: str) -> str:
    """The value of a header for basic authentication with `user:password`."""
    # Bytes of the environment that are no UTF-8 are sent as they are.
    return f"Basic {base64.b64encode(pair.encode('utf-8', 'surrogateescape')).decode()}"


def _environment_credentials() -> Iterator[str]:
    """What is sent to the proxies that the environment names, whichever of them is used."""
    for url in getproxies_environment().values():
        pair, at, _ = url.rpartition("@")
        if at:
            yield make_basic(unquote(pair.rpartition("//")[2]))


def read_access(table: Table) -> Access:
    """The access keys of a table; raises ConfigurationError when no request could be made with them now."""
    for kind in ("headers", "headers_from_env", "headers_from_file"):
        for name in table.string_map(kind):
            if not check_header_name(name):
                raise ConfigurationError(f"{table.origin}: {table.key(kind)}: {name!r} is not a header name")
    access = Access(
        headers=tuple(table.string_map("headers").items()),
        headers_from_env=tuple(table.string_map("headers_from_env").items()),
        headers_from_file=tuple(table.string_map("headers_from_file").items()),
        bearer_token_env=_optional(table, "bearer_token_env"),
        bearer_token_file=_optional(table, "bearer_token_file"),
        basic_auth_username=_optional(table, "basic_auth_username"),
        basic_auth_password_file=_optional(table, "basic_auth_password_file"),
        basic_auth_password_env=_optional(table, "basic_auth_password_env"),
        tls=Tls(
            ca_file=_optional(table, "tls_ca_file"),
            cert_file=_optional(table, "tls_cert_file"),
            key_file=_optional(table, "tls_key_file"),
            server_name=_optional(table, "tls_server_name"),
            insecure_skip_verify=table.boolean("tls_insecure_skip_verify", default=False),
        ),
        proxy=Proxy(
            url=_read_proxy_url(table),
            username=_optional(table, "proxy_username"),
            password_file=_optional(table, "proxy_password_file"),
            password_env=_optional(table, "proxy_password_env"),
            from_environment=table.boolean("proxy_from_environment", default=False),
            no_proxy=tuple(table.strings("no_proxy", [])),
        ),
        directory=str(Path(table.origin).resolve().parent),
    )
    problem = access.find_problem()
    if problem:
        raise ConfigurationError(f"{table.origin}: {table.path}: {problem}")
    return access


def _read_proxy_url(table: Table) -> str | None:
    url = _optional(table, "proxy_url")
    if url is None:
        return None
    match = re.fullmatch(r"https?://([^/?#\s]+)/?", url)
    if "@" in url:
        # The value is not in the error: it holds a password.
        raise ConfigurationError(
            f"{table.origin}: {table.key('proxy_url')}: the value carries credentials; use proxy_username with "
            f"proxy_password_file or proxy_password_env"
        )
    try:
        check_authority(match[1] if match else "")
    except ValueError:
        raise table.wrong("proxy_url", "a URL such as 'http://proxy.example:3128'") from None
    return url.rstrip("/")


def _check_user(kind: str, username: str | None, file: str | None, variable: str | None) -> None:
    if username is None and (file is not None or variable is not None):
        raise AccessError(f"{kind}_password is set without {kind}_username")
    if username is not None:
        if file is None and variable is None:
            raise AccessError(
                f"{kind}_username is set without a password; expected {kind}_password_file or {kind}_password_env"
            )
        if ":" in username or not username.isprintable():
            raise AccessError(f"{kind}_username holds a colon or characters that no user name may have")


def _optional(table: Table, key: str) -> str | None:
    return table.string(key, "") or None


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


def _refuse_encrypted() -> str:
    # Without an answer OpenSSL would ask the terminal for the key's password.
    raise ValueError("the key is encrypted; expected one without a password")


SPEAKS_TLS: Final = "where the server speaks TLS, use https://"
"""What to try where a request in plain HTTP is refused or cut off."""
_PLAIN_HTTP: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")


def describe_tls(error: ssl.SSLError) -> str:
    """Why TLS failed: a certificate that is not trusted, or a server that answers in plain HTTP."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    reason = error.reason or str(error)
    cause = f"TLS failed: {reason.replace('_', ' ').lower()}"
    return f"{cause}; the server speaks plain HTTP: use http://" if reason in _PLAIN_HTTP else cause


def describe_failure(error: BaseException, url: str = "") -> str:
    """The cause of a request of `urllib` that failed; of one to an `http:` `url` that was cut off, what to try."""
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLError):
        return describe_tls(reason)
    cause = str(getattr(reason, "strerror", None) or reason or type(reason).__name__)
    is_cut_off = isinstance(reason, ConnectionResetError | BadStatusLine)
    return f"{cause}; {SPEAKS_TLS}" if is_cut_off and url.lower().startswith("http:") else cause


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "no certificate or key in PEM form, or one that does not belong to the other"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
