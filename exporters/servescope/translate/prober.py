"""One probe: check what is asked for, fetch the target, translate, render; a failure is a page too."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from servescope import __version__
from servescope.collector.api.parameters import quote_start
from servescope.collector.scrapes.scrape import Fetch
from servescope.collector.targets.claims import ScrapedAt
from servescope.collector.targets.deployments import with_parameters
from servescope.collector.targets.target import Target
from servescope.contract.identity import GROUP_LABELS, Group, Identity
from servescope.settings.addresses import Address, read_address
from servescope.sources.map_files import load_sources
from servescope.sources.parts import Selects, read_select
from servescope.sources.reader import ReadError
from servescope.translate.allowed import AllowedResolver
from servescope.translate.config import ProbeConfiguration, TargetRule
from servescope.translate.outer import Outer, names_in_front, read_outer
from servescope.translate.slots import Slot, Slots
from servescope.translate.telemetry import ProbeTelemetry
from servescope.translate.translation import Translator, Wanted, render_failure
from servescope.web.answers import BusyError, RequestError
from servescope.web.connections import FetchError

_logger = logging.getLogger(__name__)

PARAMETERS = ("target", "source", "behind", "native", "select", "translator")
CLAIMED = (*GROUP_LABELS, "job", "namespace", "cluster")
"""Parameters that say whose the target is by the labels that the scraper gives its series, and where it is scraped."""

# A text of so many bytes takes some 50 ms when its series are new, for which other probes need not wait.
_LARGE_BYTES = 262_144
_MOST_ADDRESSES = 50_000
_MOST_LOGGED = 1_000
# Where a fetch wants an identity; no series has it.
_NOBODY = Identity("probed", "probed", "probed")


class Probe(NamedTuple):
    """A probe that may be made: of which target and how, what is wanted of it, and in how many seconds."""

    target: Target
    wanted: Wanted
    seconds: float
    translator: str


class Prober:
    """Makes probes by a configuration, which may be replaced; between them only layouts and connections are kept."""

    def __init__(
        self, configuration: ProbeConfiguration, fetch: Fetch, resolver: AllowedResolver, telemetry: ProbeTelemetry
    ) -> None:
        self.telemetry = telemetry
        self._slots = Slots(configuration.max_probes, configuration.max_probes_per_target)
        self._fetch, self._resolver = fetch, resolver
        self.apply(configuration)

    def apply(self, configuration: ProbeConfiguration) -> None:
        """Use this configuration from the next probe on."""
        self.configuration = configuration
        self._slots.most, self._slots.most_of_target = configuration.max_probes, configuration.max_probes_per_target
        self._resolver.networks, self._resolver.claims = configuration.networks, configuration.claims
        self._translator = Translator(configuration.max_cached_series)
        # A configuration may list thousands of targets, which are the same ones scrape after scrape.
        self._refused: set[str] = set()
        self._rule_for = lru_cache(_MOST_ADDRESSES)(configuration.rule_for)

    async def probe(self, query: Mapping[str, str], scrape_timeout: str | None, *, openmetrics: bool) -> bytes:
        """The page of one probe; raises RequestError when it may not be made, BusyError when too many are.

        A parameter that is given twice is twice among the items of `query`.
        """
        started = time.perf_counter()
        try:
            probe = self._read(query, scrape_timeout)
        except _RefusedError as error:
            self.telemetry.refused.labels(error.reason).inc()
            self._log_claim(error)
            raise
        try:
            slot = self._slots.take(probe.target.host, probe.seconds)
        except BusyError:
            self.telemetry.refused.labels("busy").inc()
            raise
        self.telemetry.in_progress.set(len(self._slots))
        try:
            outcome, page = await self._make(probe, slot, started, openmetrics=openmetrics)
            slot.note(outcome)
        finally:
            self._slots.give_back(slot)
            self.telemetry.in_progress.set(len(self._slots))
        self.telemetry.count_probe(outcome, time.perf_counter() - started)
        return page

    async def _make(self, probe: Probe, slot: Slot, started: float, *, openmetrics: bool) -> tuple[str, bytes]:
        target, labels = probe.target, probe.wanted.labels
        try:
            if probe.translator not in ("", __version__):
                raise FetchError("translator", f"translator {probe.translator} is wanted, and this is {__version__}")
            limits = replace(self.configuration.limits, timeout_seconds=probe.seconds)
            body = await slot.wait_for(self._fetch(target, limits))
            if len(body) < _LARGE_BYTES:
                return "ok", self._translate(probe, body, started, openmetrics=openmetrics)
            return "ok", await asyncio.to_thread(self._translate, probe, body, started, openmetrics=openmetrics)
        except (ReadError, FetchError) as error:
            outcome, message = error.outcome, target.access.conceal(str(error))
        except Exception as error:
            # A mistake of ours on one target's text must not stop the others.
            fault = target.access.conceal_fault()
            _logger.error("%s: probe failed inside the translator\n%s", target.url, fault)  # noqa: TRY400  concealed
            cause = target.access.conceal(f"{type(error).__name__}: {error}")
            outcome, message = "internal", f"a fault in the translator: {cause}"
        duration = time.perf_counter() - started
        message = f"{target.url}: {message}"
        _logger.debug("%s: %s", outcome, message)
        return outcome, render_failure(outcome, message, labels, duration, openmetrics=openmetrics)

    def _translate(self, probe: Probe, body: bytes, started: float, *, openmetrics: bool) -> bytes:
        began = time.perf_counter()
        translated = self._translator.translate(probe.target.url, body, probe.wanted, self.configuration.limits)
        page = translated.render(time.perf_counter() - started, openmetrics=openmetrics)
        self.telemetry.translation_seconds.observe(time.perf_counter() - began)
        self.telemetry.count_samples(translated.native_samples, translated.dropped)
        self.telemetry.cached_series.set(self._translator.layouts.series)
        return page

    # --- What is asked for --------------------------------------------------------------------------------------------

    def _read(self, query: Mapping[str, str], scrape_timeout: str | None) -> Probe:
        twice = next((name for name, times in Counter(name for name, _ in query.items()).items() if times > 1), None)
        if twice is not None:
            raise _RefusedError("parameter", f"parameter {quote_start(twice)} is given twice")
        known = (*PARAMETERS, *CLAIMED)
        unknown = next((name for name in query if name not in known), None)
        if unknown is not None:
            raise _RefusedError("parameter", f"unknown parameter {quote_start(unknown)}, supported: {', '.join(known)}")
        address = _read_target(query.get("target", ""))
        rule = self._rule_for(address)
        if rule is None:
            raise _RefusedError("target", f"target {str(address)!r} is not allowed by the configuration", status=403)
        self._check_claim(address, {**dict(rule.labels), **{name: value for name, value in query.items() if value}})
        source = _read_source(query.get("source", "")) or rule.source
        behind = self._read_behind(query["behind"]) if "behind" in query else rule.behind
        native = query.get("native", "0")
        if native not in ("0", "1"):
            raise _RefusedError("parameter", f"native {quote_start(native)} is wrong, expected 0 or 1")
        return Probe(
            _make_target(address, rule),
            Wanted(source, behind, rule.labels, native == "1", _read_select(query.get("select", ""))),
            self._seconds(scrape_timeout),
            query.get("translator", ""),
        )

    def _log_claim(self, error: _RefusedError) -> None:
        """Log a target that may not claim its deployment, once: scrapers show the status of an answer alone."""
        if error.reason == "claim" and str(error) not in self._refused and len(self._refused) < _MOST_LOGGED:
            self._refused.add(str(error))
            _logger.warning("refused: %s", error)

    def _check_claim(self, address: Address, claimed: Mapping[str, str]) -> None:
        """Refuse a target that may not claim the deployment which the series of its page are given to."""
        group: Group = tuple(claimed.get(name, "") for name in GROUP_LABELS)
        scraped = ScrapedAt(address, *(claimed.get(name, "") for name in ("job", "namespace", "cluster")))
        refused = self.configuration.claims.refuse_target(group if any(group) else None, scraped)
        if refused is not None:
            raise _RefusedError("claim", f"target {str(address)!r} {refused}", status=403)

    def _read_behind(self, text: str) -> Outer:
        try:
            return read_outer(text, self.configuration.outers)
        except ValueError as error:
            known = ", ".join((*names_in_front(), *self.configuration.outers))
            raise _RefusedError("behind", f"unknown behind {quote_start(str(error))}, supported: {known}") from None

    def _seconds(self, scrape_timeout: str | None) -> float:
        """How long the target may take: what the scraper allows, less the offset; never more than configured."""
        most = self.configuration.limits.timeout_seconds
        if scrape_timeout is None:
            return most
        try:
            allowed = float(scrape_timeout)
        except ValueError:
            allowed = 0.0
        if not 0 < allowed < float("inf"):
            raise _RefusedError(
                "parameter", f"X-Prometheus-Scrape-Timeout-Seconds {quote_start(scrape_timeout)} is no number above 0"
            )
        # Of a timeout that is hardly longer than the offset, half is left.
        return min(most, max(allowed - self.configuration.timeout_offset_ms / 1000, allowed / 2))


class _RefusedError(RequestError):
    """A request for a probe that is not made; `reason` is one of `REFUSED`."""

    def __init__(self, reason: str, message: str, *, status: int = 400) -> None:
        super().__init__(message, status=status)
        self.reason = reason


def _read_target(text: str) -> Address:
    if not text:
        raise _RefusedError("target", "parameter 'target' is missing, expected target=HOST:PORT")
    try:
        return read_address(text)
    except ValueError:
        # What looks like a URL may hold a password.
        shown = "the target" if "@" in text else f"target {quote_start(text)}"
        raise _RefusedError("target", f"{shown} is wrong, expected HOST:PORT such as '10.0.0.7:8000'") from None


def _read_source(text: str) -> str | None:
    if text and text not in load_sources():
        raise _RefusedError(
            "source", f"unknown source {quote_start(text)}, supported: {', '.join(sorted(load_sources()))}"
        )
    return text or None


def _read_select(text: str) -> Selects:
    try:
        return read_select(text.split(",")) if text else ()
    except ValueError:
        raise _RefusedError(
            "parameter", f"select {quote_start(text)} is wrong, expected LABEL=VALUE such as model=v2"
        ) from None


def _make_target(address: Address, rule: TargetRule) -> Target:
    url = with_parameters(f"{rule.scheme}://{address}{rule.path}", rule.params)
    return Target(url, _NOBODY, rule.source, rule.access)
