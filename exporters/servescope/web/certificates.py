"""The collector's own certificate, and the authority that clients' certificates come from: read again on rotation."""

from __future__ import annotations

import ssl
from pathlib import Path

from servescope.errors import ServescopeError
from servescope.web.rereading import Reread


class CertificateError(ServescopeError):
    """The certificates cannot be used; the text names the files."""


class Certificates:
    """TLS 1.2 and newer with a certificate and its key; with `client_ca` only for clients with a certificate of it.

    Files are read again when they change; while they do not fit together, as in the middle of a rotation, the former
    ones stay in force. Raises CertificateError when they cannot be used at first. Not thread safe.
    """

    def __init__(self, *, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        files = [certificate, key, *([client_ca] if client_ca is not None else [])]
        self._contexts = Reread(files, lambda: _make_context(certificate, key, client_ca))

    def context(self) -> ssl.SSLContext:
        """What the next connection is secured with."""
        return self._contexts.now()


def _make_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for path in (certificate, key):
        _require_readable(path)
    try:
        # Asked for a password, OpenSSL would stop and read one from the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise CertificateError(
            f"tls_cert_file {str(certificate)!r} and tls_key_file {str(key)!r} cannot be used together: {_cause(error)}"
        ) from error
    if client_ca is not None:
        _require_readable(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ValueError) as error:
            raise CertificateError(f"tls_client_ca_file {str(client_ca)!r} cannot be used: {_cause(error)}") from error
    return context


def _require_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise CertificateError(f"TLS file {str(path)!r} cannot be read: {error.strerror}") from error


def _cause(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error) or type(error).__name__
