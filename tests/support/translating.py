"""A translator behind its real listener, with targets of the test's own beside it, all on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from servescope.collector.scrapes.fetch import HttpFetch
from servescope.contract.samples import Labels, make_labels
from servescope.translate.allowed import AllowedResolver
from servescope.translate.config import read_probe_configuration
from servescope.translate.prober import Prober
from servescope.translate.serve import make_translate_application
from servescope.translate.telemetry import ProbeTelemetry
from servescope.web.connections import open_session
from servescope.web.listening import Listener
from tests.support.loopback import Handler, serving
from tests.support.waiting import deadline_seconds


class Answered(NamedTuple):
    """What a translator answered."""

    status: int
    text: str
    headers: Mapping[str, str]

    def samples(self) -> dict[tuple[str, Labels], float]:
        """The samples of a page in the text format, by their series."""
        return {
            (sample.name, make_labels(sample.labels)): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def value(self, name: str) -> float | None:
        """The value of the one series of a name, None where there is none."""
        found = [value for (shown, _), value in self.samples().items() if shown == name]
        assert len(found) < 2, found
        return found[0] if found else None

    def failure(self) -> str:
        """The reason why a probe failed, "" for one that succeeded."""
        return next((dict(labels)["reason"] for name, labels in self.samples() if name.endswith("_failed")), "")


class Translating:
    """A running translator; `target` is the `host:port` of the targets beside it."""

    def __init__(
        self,
        url: str,
        target: str,
        prober: Prober,
        application: web.Application,
        listener: Listener,
        session: aiohttp.ClientSession,
    ) -> None:
        self.url, self.target, self.prober, self.listener = url, target, prober, listener
        self.application = application
        self._session = session

    async def get(self, path: str, headers: Mapping[str, str] | None = None, **query: str) -> Answered:
        async with (
            asyncio.timeout(deadline_seconds()),
            self._session.get(f"{self.url}{path}", params=query, headers=headers) as response,
        ):
            return Answered(response.status, await response.text(), response.headers)

    async def probe(self, headers: Mapping[str, str] | None = None, **query: str) -> Answered:
        """What a probe of the targets beside it answers, or of the `target` given."""
        return await self.get("/probe", headers, **{"target": self.target, **query})


@asynccontextmanager
async def translating(
    folder: Path, routes: Mapping[str, Handler], configuration: str = '[translate]\ntargets = ["TARGET"]\n'
) -> AsyncIterator[Translating]:
    """A translator by a configuration, in which TARGET is the address of what serves these routes."""
    async with serving(routes) as base:
        target = base.removeprefix("http://")
        path = folder / "translate.toml"
        path.write_text(configuration.replace("TARGET", target), encoding="utf-8")
        settings = read_probe_configuration(path)
        resolver = AllowedResolver(settings.networks, settings.claims)
        async with open_session(resolver) as session, aiohttp.ClientSession() as client:
            prober = Prober(settings, HttpFetch(session, redirects=0), resolver, ProbeTelemetry())
            application = make_translate_application(prober)
            listener = Listener(application, certificates=settings.api.certificates())
            await listener.start("127.0.0.1", 0)
            try:
                port = listener.addresses[0][1]
                yield Translating(f"http://127.0.0.1:{port}", target, prober, application, listener, client)
            finally:
                await listener.close()


def answers(text: str | bytes, **options: Any) -> Handler:
    """A target that always answers this."""
    body = text.encode() if isinstance(text, str) else text

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, **options)

    return answer
