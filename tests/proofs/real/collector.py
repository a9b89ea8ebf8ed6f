"""The real `servescope collect` over the engines, read as a user reads it: `/metrics`, the JSON API and the store."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode

from prometheus_client.parser import text_string_to_metric_families

from servescope.contract.samples import format_series, make_labels
from servescope.store.embedded import Store
from tests.proofs.real.engines import MODEL_NAME, Engine
from tests.proofs.real.processes import ProcessError, pick_ports, read, running, wait_until

SCRAPE_SECONDS = 1
WINDOW = "5m"
"""Longer than the measured traffic, so that a figure's window holds all of it."""

# Labels that distinguish the contract series of one target.
_SHOWN_LABELS = ("outcome", "status", "position", "window")


@dataclass(frozen=True, slots=True)
class Collector:
    """A running collector and its store."""

    url: str
    store: Path

    def totals(self) -> dict[str, dict[str, float]]:
        """By deployment: every contract and derived series on `/metrics`, summed over its targets and their labels.

        The key is the name with the contract's own labels, such as `requests_total{outcome="ok"}`; histograms by
        `_sum` and `_count`. Raises when a value is not finite.
        """
        sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for family in text_string_to_metric_families(self._read("/metrics").decode()):
            for sample in family.samples:
                if not math.isfinite(sample.value):
                    raise ProcessError(f"{sample.name}{sample.labels} is {sample.value} on the collector's /metrics")
                deployment = sample.labels.get("deployment_id")
                if deployment is None or sample.name.endswith("_bucket"):
                    continue
                shown = {label: sample.labels[label] for label in _SHOWN_LABELS if label in sample.labels}
                sums[deployment][format_series(sample.name, make_labels(shown))] += sample.value
        return {deployment: dict(series) for deployment, series in sums.items()}

    def targets(self) -> list[dict[str, Any]]:
        """Health and coverage of each target, from the API."""
        targets: list[dict[str, Any]] = self._json("/api/v1/targets")["targets"]
        return targets

    def figures(self, deployment_id: str) -> dict[str, list[float | None]]:
        """Every figure of a deployment over time, from the API; None where it was absent."""
        query = urlencode({"deployment_id": deployment_id, "max_points": 10_000})
        (deployment,) = self._json(f"/api/v1/figures?{query}")["deployments"]
        figures: dict[str, list[float | None]] = deployment["figures"]
        return figures

    def latest(self, deployment_id: str) -> dict[str, float]:
        """The latest figures of a deployment, from the API."""
        for shown in self._json("/api/v1/deployments")["deployments"]:
            if shown["deployment"]["deployment_id"] == deployment_id:
                figures: dict[str, float] = shown["figures"]
                return figures
        raise ProcessError(f"deployment {deployment_id!r} is not on the collector's API")

    def stored_increases(self, deployment_id: str, names: Sequence[str]) -> dict[str, float]:
        """How far each counter rose from the first to the last scrape in the store, summed over series."""
        with Store(self.store, read_only=True) as store:
            (deployment,) = [each for each in store.deployments() if each.deployment_id == deployment_id]
            windows = store.read_samples(deployment, names, 0, int(time.time() * 1000) + 1000)
        increases: dict[str, float] = defaultdict(float)
        for window in windows:
            for series, values in zip(window.series, window.values, strict=True):
                seen = values[~_absent(values)]
                if series.name in names and len(seen):
                    outcome = {label: value for label, value in series.labels if label in _SHOWN_LABELS}
                    increases[format_series(series.name, make_labels(outcome))] += float(seen[-1] - seen[0])
        return dict(increases)

    def wait_for_scrapes(self, seconds: float = 30.0) -> None:
        """Return when every target was scraped with success after now, and figures derived from that."""
        start_ms = time.time() * 1000

        def scraped() -> bool:
            targets = self.targets()
            return bool(targets) and all((each["last_success_ms"] or 0) > start_ms for each in targets)

        wait_until(scraped, "a scrape of every target", seconds=seconds)
        time.sleep(2 * SCRAPE_SECONDS)

    def _json(self, path: str) -> Any:
        return json.loads(self._read(path), parse_constant=_refuse_constant)

    def _read(self, path: str) -> bytes:
        body = read(self.url + path)
        if body is None:
            raise ProcessError(f"{self.url}{path} does not answer 200")
        return body


def _absent(values: Any) -> Any:
    import numpy

    return numpy.isnan(values)


def _refuse_constant(name: str) -> NoReturn:
    raise ProcessError(f"the collector's API holds {name}")


@contextmanager
def run_collector(engines: Sequence[Engine], folder: Path) -> Iterator[Collector]:
    """`servescope collect` over the engines' targets, ready."""
    (port,) = pick_ports(1)
    store = folder / "servescope.db"
    configuration = folder / "servescope.toml"
    configuration.write_text(_configuration(engines, port, store), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("servescope")), "collect", "--config", str(configuration)]
    collector = Collector(f"http://127.0.0.1:{port}", store)
    with running("collector", command, folder) as started:
        wait_until(lambda: read(f"{collector.url}/-/ready") is not None, "collector", seconds=60, processes=[started])
        collector.wait_for_scrapes()
        yield collector


def _configuration(engines: Sequence[Engine], port: int, store: Path) -> str:
    head = _table(
        "[collector]",
        {
            "listen": f"127.0.0.1:{port}",
            "store": str(store),
            "scrape_interval": f"{SCRAPE_SECONDS}s",
            "scrape_timeout": f"{SCRAPE_SECONDS}s",
            "evaluation_interval": f"{SCRAPE_SECONDS}s",
            "window": WINDOW,
        },
    )
    return head + "".join(map(_deployment, engines))


def _deployment(engine: Engine) -> str:
    labels = {"deployment_id": engine.name, "model_name": MODEL_NAME, "inference_stack": engine.stack}
    targets = (
        _table("[[deployments.targets]]", {"url": target.url, "role": target.role, "replica": target.replica})
        for target in engine.targets
    )
    return _table("[[deployments]]", labels) + "".join(targets)


def _table(head: str, content: Mapping[str, str]) -> str:
    return "\n".join([head, *(f"{key} = {json.dumps(value)}" for key, value in content.items())]) + "\n\n"
