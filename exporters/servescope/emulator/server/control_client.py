"""A running emulator's switches, asked over HTTP; for the command line and the console's page of faults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from servescope.errors import ServescopeError, UsageError
from servescope.settings.access import describe_failure
from servescope.settings.concealing import conceal

EMULATOR_VARIABLE: Final = "SERVESCOPE_EMULATOR"
"""The environment variable with the URL of the emulator whose faults the console's pages switch."""
TOKEN_VARIABLE: Final = "SERVESCOPE_EMULATOR_TOKEN"  # noqa: S105 - a name, not a token
"""The environment variable that holds the emulator's bearer token."""

_TIMEOUT_SECONDS = 10.0
_MOST_BYTES = 4_000_000


class ControlError(ServescopeError):
    """The emulator cannot be asked, or did not do it; the text says why."""


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Go nowhere else: a token must not follow."""


class ControlClient:
    """The switches of the emulator at `url`; raises UsageError when that is none.

    Every method raises ControlError when the emulator cannot be reached or refuses.
    """

    def __init__(self, url: str, *, token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            # What looks like it has a user in it may hold a password.
            shown = "the value given" if "@" in url else repr(url)
            raise UsageError(f"emulator {shown} is no address, expected one like 'http://127.0.0.1:9000'")
        self.url = url.rstrip("/")
        self._token = token
        # No proxy of the environment: the emulator is on this machine or near it.
        self._opener = build_opener(ProxyHandler({}), _NoRedirects())

    def read(self) -> dict[str, Any]:
        """What is on, what will be, the deployments with their replicas, and every kind."""
        return self._ask("GET", "/faults")

    def switch_on(
        self,
        kind: str,
        intensity: float | None = None,
        *,
        deployment: str = "",
        replica: str = "",
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Switch a fault on, until it is switched off or for so many seconds; what is on now."""
        asked = {"kind": kind, "intensity": intensity, "deployment": deployment, "replica": replica, "seconds": seconds}
        return self._ask("POST", "/faults", {key: value for key, value in asked.items() if value not in (None, "")})

    def switch_off(self, number: int) -> dict[str, Any]:
        """Switch the fault of this number off; what it was."""
        return self._ask("DELETE", f"/faults/{number}")

    def switch_all_off(self) -> list[dict[str, Any]]:
        """Switch every fault off; what they were."""
        ended: list[dict[str, Any]] = self._ask("DELETE", "/faults")["ended"]
        return ended

    def read_traffic_split(self) -> dict[str, float]:
        """The share of the traffic that each deployment gets."""
        split: dict[str, float] = self._ask("GET", "/traffic")["traffic_split"]
        return split

    def set_share(self, deployment: str, share: float, *, follow_seconds: float | None = None) -> dict[str, float]:
        """Give a deployment this share of what begins from now on; the whole traffic split after it.

        Conversations under way follow within so many emulated seconds; with None they stay where they began.
        """
        asked: dict[str, object] = {"deployment": deployment, "share": share}
        if follow_seconds is not None:
            asked["follow_seconds"] = follow_seconds
        answer = self._ask("PUT", "/traffic", asked)
        split: dict[str, float] = answer["traffic_split"]
        return split

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, headers, method=method)  # noqa: S310 - http or https, as checked
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
                return self._read(answer.read(_MOST_BYTES + 1))
        except HTTPError as error:
            with error:
                raise ControlError(f"{self.url}: {conceal(_explain(error), [self._token or ''])}") from None
        except OSError as error:
            raise ControlError(f"cannot ask the emulator at {self.url}: {describe_failure(error)}") from error

    def _read(self, body: bytes) -> dict[str, Any]:
        try:
            value = json.loads(body) if len(body) <= _MOST_BYTES else None
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ControlError(f"{self.url} did not answer like an emulator")
        return value


def _explain(error: HTTPError) -> str:
    """What the emulator said was wrong, else HTTP's words."""
    try:
        answer = json.loads(error.read(_MOST_BYTES))
    except (ValueError, OSError, RecursionError):
        answer = None
    said = answer.get("error") if isinstance(answer, dict) else None
    return str(said) if said else f"HTTP {error.code} {error.reason}"
