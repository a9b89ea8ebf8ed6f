"""The table `[api]` of the configuration: bearer tokens, and the certificates of the listener."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from servescope.errors import ConfigurationError, ServescopeError
from servescope.settings.tables import Setting, Table
from servescope.web.certificates import Certificates
from servescope.web.tokens import Tokens

API_SETTINGS = tuple(
    Setting(key, "")
    for key in ("bearer_token_file", "bearer_token_env", "tls_cert_file", "tls_key_file", "tls_client_ca_file")
)
"""The keys of the table; none has a default."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Access to the API; without tokens for everybody, without certificates over plain HTTP."""

    bearer_token_file: Path | None = None
    bearer_token_env: str | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_client_ca_file: Path | None = None

    def tokens(self) -> Tokens:
        """The accepted tokens; raises ServescopeError when they cannot be read."""
        return Tokens(file=self.bearer_token_file, variable=self.bearer_token_env)

    def certificates(self) -> Certificates | None:
        """The certificates of the listener, None for plain HTTP; raises ServescopeError."""
        if self.tls_cert_file is None or self.tls_key_file is None:
            return None
        return Certificates(certificate=self.tls_cert_file, key=self.tls_key_file, client_ca=self.tls_client_ca_file)


def read_api(table: Table, directory: Path) -> ApiSettings:
    """The settings of a table; relative files are in the directory.

    Tokens and certificates are looked at, so that wrong ones are found here. Raises ConfigurationError.
    """

    def file(key: str) -> Path | None:
        name = table.string(key, "")
        return directory / name if name else None

    settings = ApiSettings(
        bearer_token_file=file("bearer_token_file"),
        bearer_token_env=table.string("bearer_token_env", "") or None,
        tls_cert_file=file("tls_cert_file"),
        tls_key_file=file("tls_key_file"),
        tls_client_ca_file=file("tls_client_ca_file"),
    )
    try:
        _check_together(settings)
        settings.tokens()
        settings.certificates()
    except ServescopeError as error:
        raise ConfigurationError(f"{table.origin}: {table.path}: {error}") from error
    return settings


def read_api_options(arguments: argparse.Namespace, name: str) -> ApiSettings:
    """The settings from the options `--NAME-…` of a command, of those that it has; raises ConfigurationError."""
    options = zip(("token_file", "token_env", "cert_file", "key_file", "client_ca_file"), API_SETTINGS, strict=True)
    given = {setting.key: getattr(arguments, f"{name}_{option}", None) for option, setting in options}
    values = {key: value for key, value in given.items() if value is not None}
    return read_api(Table(values, f"the options --{name}-…", name), Path())


def _check_together(settings: ApiSettings) -> None:
    if settings.bearer_token_file is not None and settings.bearer_token_env is not None:
        raise ServescopeError("bearer_token_env and bearer_token_file are both set, expected one of them")
    if (settings.tls_cert_file is None) != (settings.tls_key_file is None):
        raise ServescopeError("tls_cert_file and tls_key_file go together, expected both of them or none")
    if settings.tls_client_ca_file is not None and settings.tls_cert_file is None:
        raise ServescopeError("tls_client_ca_file is set without tls_cert_file and tls_key_file")
