"""The secrets and certificates of an `Access` in use: read again when they change, so that they may rotate."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Sequence

from servescope.settings.access import Access
from servescope.settings.proxies import bypasses_proxy, environment_proxy
from servescope.settings.signature import Signature, sign_file

# A file written this long ago cannot have been written again since without another time stamp.
_SETTLED_SECONDS = 2.0


class Keyring:
    """The headers of an `Access`, read again only when one of its files or variables changed."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._headers: dict[str, str] = {}
        self._proxy_authorization: str | None = None
        self._files, self._variables = access.secret_files(), access.secret_variables()
        self._headers_as_of: object = None

    def headers(self) -> dict[str, str]:
        """The headers of a request; the same object until a secret changes. Raises AccessError."""
        self._refresh()
        return self._headers

    def proxy(self, scheme: str, host: str, port: int) -> tuple[str, str | None] | None:
        """The proxy's URL and `Proxy-Authorization` for a host, None for a direct connection; raises AccessError."""
        proxy = self._access.proxy
        if proxy.url is not None:
            if bypasses_proxy(proxy.no_proxy, host, port):
                return None
            self._refresh()
            return proxy.url, self._proxy_authorization
        return environment_proxy(scheme, host, port) if proxy.from_environment else None

    def _refresh(self) -> None:
        files = _sign(self._files)
        as_of = (files, [os.environ.get(variable) for variable in self._variables])
        if files is None or as_of != self._headers_as_of:
            self._headers = self._access.request_headers()
            self._proxy_authorization = self._access.proxy_authorization()
            self._headers_as_of = as_of


class ClientCertificates:
    """The TLS context of an `Access`, made again only when one of its files changed."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._files = access.certificate_files()
        self._ssl: ssl.SSLContext | None = None
        self._as_of: object = None

    def ssl_context(self) -> ssl.SSLContext:
        """The context to connect with; another one, so other connections, when a certificate changed."""
        as_of = _sign(self._files)
        if self._ssl is None or as_of is None or as_of != self._as_of:
            self._ssl, self._as_of = self._access.make_ssl_context(), as_of
        return self._ssl


def _sign(paths: Sequence[str]) -> list[Signature] | None:
    """The files' signatures; None when one is missing, or so new that it may change without another signature."""
    settled_ns = int((time.time() - _SETTLED_SECONDS) * 1e9)
    try:
        signatures = [sign_file(path) for path in paths]
    except OSError:
        return None
    return None if any(each.written_ns > settled_ns for each in signatures) else signatures
