"""The emulator's switches over HTTP: faults on and off, the traffic split, and `/metrics` as faults have it.

`GET /faults` lists what is on, what is scheduled, and every kind; `POST /faults` switches one on, `DELETE /faults/ID`
one off, `DELETE /faults` all. `GET /traffic` lists the share of each deployment, `PUT /traffic` sets one, which
conversations under way follow within `follow_seconds` where they are given; the others keep their proportions.

Changes are accepted from this machine, or with the token when one is configured, and never from a page of a web site.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from aiohttp import hdrs, web

from servescope.emulator.faults.exposition_faults import distort, keep_beginning
from servescope.emulator.faults.faults import ActiveFault, Fault, Faults, make_fault, parts_of
from servescope.emulator.faults.kinds import KINDS, describe_kind
from servescope.errors import UsageError
from servescope.settings.values import is_loopback

if TYPE_CHECKING:
    from servescope.emulator.deployment.deployment import EmulatedTarget
    from servescope.emulator.server.server import Expose, RunningEmulator

MOST_BODY_BYTES: Final = 65_536
_LONGEST_SECONDS: Final = 86_400.0 * 365
_FAULT_KEYS: Final = ("kind", "intensity", "deployment", "replica", "seconds")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Control:
    """The routes of an emulator's switches; `add_routes` is given to `server.start`.

    With a `token` every change must carry it, from wherever; without one only this machine may change something.
    """

    def __init__(self, faults: Faults, *, token: str | None = None) -> None:
        self._faults = faults
        self._token = token
        self._running: RunningEmulator

    def add_routes(self, application: web.Application, running: RunningEmulator) -> None:
        """Add the routes, and have faults change what this emulator exposes."""
        self._running = running
        router = application.router
        router.add_get("/faults", self._answer(self._list))
        router.add_post("/faults", self._answer(self._guarded(self._switch_on)))
        router.add_delete("/faults", self._answer(self._guarded(self._switch_all_off)))
        router.add_delete("/faults/{id}", self._answer(self._guarded(self._switch_off)))
        router.add_get("/traffic", self._answer(self._show_traffic))
        router.add_put("/traffic", self._answer(self._guarded(self._set_traffic)))
        running.expose = self._expose_by(running.expose)

    # --- faults -------------------------------------------------------------------------------------------------------

    async def _list(self, _: web.Request) -> web.Response:
        return _json(await self._running.call(self._describe_faults))

    def _describe_faults(self) -> dict[str, object]:
        now = self._now()
        return {
            "now_seconds": now,
            "active": [each.as_json(now) for each in self._faults.active.values()],
            "scheduled": [_describe_scheduled(fault) for fault in self._faults.scheduled],
            "deployments": {
                deployment.plan.identity.deployment_id: {
                    "targets": [target.identity.replica for target in deployment.targets()],
                    "parts": sorted(parts_of(deployment.plan)),
                }
                for deployment in self._running.stack.deployments
            },
            "kinds": [describe_kind(kind) for kind in KINDS.values()],
        }

    async def _switch_on(self, request: web.Request) -> web.Response:
        asked = await _read_object(request, _FAULT_KEYS)
        fault = make_fault(
            _word(asked, "kind"),
            asked.get("intensity"),
            deployment=_word(asked, "deployment", ""),
            replica=_word(asked, "replica", ""),
        )
        seconds = _seconds(asked, "seconds")

        def switch() -> dict[str, object]:
            active = self._faults.switch_on(fault, seconds=seconds)
            return active.as_json(self._now())

        return _json(await self._running.call(switch), status=201)

    async def _switch_off(self, request: web.Request) -> web.Response:
        word = request.match_info["id"]
        if not word.isascii() or not word.isdigit() or len(word) > 9:
            raise web.HTTPNotFound(text=f"no fault {word!r}, expected the number of one that is on")
        number = int(word)

        def switch() -> dict[str, object] | None:
            if number not in self._faults.active:
                return None
            return self._faults.switch_off(number).as_json(self._now())

        ended = await self._running.call(switch)
        if ended is None:
            raise web.HTTPNotFound(text=f"no fault {number} is on; GET /faults lists those that are")
        return _json(ended)

    async def _switch_all_off(self, _: web.Request) -> web.Response:
        def switch() -> list[dict[str, object]]:
            ended: list[ActiveFault] = self._faults.switch_all_off()
            return [each.as_json(self._now()) for each in ended]

        return _json({"ended": await self._running.call(switch)})

    # --- traffic ------------------------------------------------------------------------------------------------------

    async def _show_traffic(self, _: web.Request) -> web.Response:
        return _json(await self._running.call(self._describe_traffic_split))

    def _describe_traffic_split(self) -> dict[str, object]:
        return {"traffic_split": self._running.stack.traffic.split.shares}

    async def _set_traffic(self, request: web.Request) -> web.Response:
        asked = await _read_object(request, ("deployment", "share", "follow_seconds"))
        deployment, share = _word(asked, "deployment"), asked.get("share")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise UsageError(f"share is {share!r}, expected a number from 0 to 1")
        follow_seconds = _seconds(asked, "follow_seconds")

        def change() -> dict[str, object]:
            self._running.stack.traffic.split.set_share(deployment, share, follow_seconds)
            return self._describe_traffic_split()

        return _json(await self._running.call(change))

    # --- what is exposed ----------------------------------------------------------------------------------------------

    def _expose_by(self, expose: Expose) -> Expose:
        async def answer(request: web.Request, target: EmulatedTarget, page: bytes) -> web.StreamResponse:
            effects = await self._running.call(lambda: self._faults.exposition(target))
            if effects.delay_seconds > 0:
                await asyncio.sleep(effects.delay_seconds)
            if effects.unreachable:
                return _hang_up(request)
            shown = await expose(request, target, distort(page, effects, now_seconds=time.time()))
            if effects.kept_share >= 1 or not isinstance(shown, web.Response):
                return shown
            return await _send_beginning(request, shown, effects.kept_share)

        return answer

    # --- authorization and errors -------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._running.stack.clock.now

    def _guarded(self, handler: Handler) -> Handler:
        """Refuse a client that may not change anything before the body is read."""

        async def guard(request: web.Request) -> web.StreamResponse:
            if hdrs.ORIGIN in request.headers:
                raise web.HTTPForbidden(text="a page of a web site may not do this; send it without an Origin header")
            if self._token is not None:
                scheme, _, offered = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
                if scheme.lower() != "bearer" or not _is_same(offered.strip(), self._token):
                    raise web.HTTPUnauthorized(
                        text="a bearer token is needed: send 'Authorization: Bearer TOKEN'",
                        headers={hdrs.WWW_AUTHENTICATE: 'Bearer realm="servescope"'},
                    )
            elif not is_loopback(request.remote or ""):
                raise web.HTTPForbidden(text="only this machine may do this while no token is configured")
            return await handler(request)

        return guard

    def _answer(self, handler: Handler) -> Handler:
        """Errors as `{"error": …}`, which names the value and what would have been right."""

        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except UsageError as error:
                return _json({"error": str(error)}, status=400)
            except web.HTTPException as error:
                challenge = error.headers.get(hdrs.WWW_AUTHENTICATE)
                headers = {"WWW-Authenticate": challenge} if challenge else {}
                return _json({"error": (error.text or "").strip()}, status=error.status, headers=headers)

        return answer


def _is_same(offered: str, token: str) -> bool:
    # A header may hold any bytes, which arrive here as surrogates.
    return hmac.compare_digest(offered.encode("utf-8", "surrogateescape"), token.encode())


def _describe_scheduled(fault: Fault) -> dict[str, object]:
    return {**fault.as_json(), "start_seconds": fault.start_seconds, "end_seconds": fault.end_seconds}


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _send_beginning(request: web.Request, whole: web.Response, kept_share: float) -> web.StreamResponse:
    """Promise the whole text, send its beginning, and end the connection."""
    page = bytes(whole.body) if isinstance(whole.body, bytes | bytearray) else b""
    answer = web.StreamResponse(status=whole.status, headers=whole.headers)
    answer.content_length = len(page)
    answer.force_close()
    await answer.prepare(request)
    await answer.write(keep_beginning(page, kept_share))
    if request.transport is not None:
        request.transport.close()
    return answer


def _json(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response(value, status=status, headers={"Cache-Control": "no-store", **(headers or {})})


async def _read_object(request: web.Request, known: tuple[str, ...]) -> dict[str, Any]:
    """The body's JSON object with none but the known keys; raises UsageError."""
    body = bytearray()
    try:
        async for piece in request.content.iter_chunked(8192):
            body += piece
            if len(body) > MOST_BODY_BYTES:
                raise web.HTTPRequestEntityTooLarge(MOST_BODY_BYTES, len(body))
    except web.RequestPayloadError as error:
        raise UsageError("the body did not come whole, or is not encoded as it says") from error
    try:
        value = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"the body is a {type(value).__name__}, expected an object with: {', '.join(known)}")
    for key in value:
        if key not in known:
            raise UsageError(f"unknown key {key!r}, known: {', '.join(known)}")
    return value


def _word(asked: Mapping[str, object], key: str, default: str | None = None) -> str:
    value = asked.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not value:
        raise UsageError(f"{key} is {value!r}, expected a string")
    return value


def _seconds(asked: Mapping[str, object], key: str) -> float | None:
    """The seconds at a key, None where there are none."""
    value = asked.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LONGEST_SECONDS:
        raise UsageError(f"{key} is {value!r}, expected a number above 0, at most {_LONGEST_SECONDS:g}")
    return float(value)
