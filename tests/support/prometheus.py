"""A real Prometheus on loopback for the length of a `with` block, and its query API."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import yaml
from cramjam import snappy

from servescope.contract.samples import Labels, make_labels
from servescope.customers.transports.remote_write_messages import WriteRequest
from servescope.store.prometheus.selectors import format_time
from tests.support.programs import program
from tests.support.waiting import deadline_seconds, wait_for

_QUERY_SECONDS = 60.0
OWN_ADDRESS = "prometheus.itself"


@dataclass(frozen=True, slots=True)
class Point:
    """One element of an instant query's answer."""

    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Range:
    """One series of samples: times in milliseconds, ascending, without stale markers."""

    labels: Labels
    times: list[int]
    values: list[float]


class Prometheus:
    """The query API of a Prometheus; labels come with `__name__` among them, where there is one."""

    def __init__(self, port: int) -> None:
        self.port = port

    def query(self, expression: str, *, at_ms: int) -> list[Point]:
        """The elements of an instant vector."""
        answer = self._get("/api/v1/query", query=expression, time=format_time(at_ms))
        return [Point(make_labels(element["metric"]), float(element["value"][1])) for element in answer["result"]]

    def read_samples(self, selector: str, *, end_ms: int, range_ms: int) -> list[Range]:
        """The samples as they are stored, of the `range_ms` up to and with `end_ms`."""
        answer = self._get("/api/v1/query", query=f"{selector}[{range_ms}ms]", time=format_time(end_ms))
        return [_range(element) for element in answer["result"]]

    def query_range(self, expression: str, *, start_ms: int, end_ms: int, step_ms: int) -> list[Range]:
        """The expression evaluated at every step."""
        answer = self._get(
            "/api/v1/query_range",
            query=expression,
            start=format_time(start_ms),
            end=format_time(end_ms),
            step=str(step_ms / 1000),
        )
        return [_range(element) for element in answer["result"]]

    def write(self, samples: Iterable[tuple[str, Mapping[str, str], float, int]]) -> None:
        """Send samples by remote write: their names, labels, values and times in milliseconds."""
        message = WriteRequest()
        for name, labels, value, at_ms in samples:
            series = message.timeseries.add()
            for label, text in ("__name__", name), *sorted(labels.items()):
                series.labels.add(name=label, value=text)
            series.samples.add(value=value, timestamp=at_ms)
        body = bytes(snappy.compress_raw(message.SerializeToString()))
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
        asked = Request(f"http://127.0.0.1:{self.port}/api/v1/write", body, headers)
        with urlopen(asked, timeout=deadline_seconds()) as answer:
            assert answer.status in (200, 204)

    def answer(self, path: str, **parameters: str) -> dict[str, Any]:
        """All it says to a GET, warnings included; `status` says whether it is an error."""
        answer: dict[str, Any] = json.loads(self._request("GET", f"{path}?{urlencode(parameters)}")[1])
        return answer

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health and last error."""
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def targets(self, count: int) -> dict[str, dict[str, Any]]:
        """The one target of each job as it is shown, once there are so many jobs; a dropped one has no `labels`."""
        return {each["discoveredLabels"]["job"]: each for each in self.all_targets(count)}

    def all_targets(self, count: int) -> list[dict[str, Any]]:
        """Every target as it is shown, once there are so many, those that relabelling dropped last."""

        def listed() -> list[dict[str, Any]] | None:
            answer = self._get("/api/v1/targets")
            found = [*answer["activeTargets"], *answer["droppedTargets"]]
            return found if len(found) >= count else None

        return wait_for(listed, f"{count} targets")

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        try:
            return self._request("GET", "/-/ready")[0] == http.client.OK
        except OSError:
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        status, body = self._request("POST" if parameters else "GET", path, urlencode(parameters))
        answer = json.loads(body)
        assert status == http.client.OK, f"Prometheus answered {status} to {parameters}: {answer.get('error')}"
        return answer["data"]

    def _request(self, method: str, path: str, body: str = "") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=deadline_seconds(_QUERY_SECONDS))
        try:
            connection.request(method, path, body, {"Content-Type": "application/x-www-form-urlencoded"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@contextmanager
def running(binary: Path, folder: Path, config: dict[str, Any], *, options: Sequence[str] = ()) -> Iterator[Prometheus]:
    """A Prometheus with this configuration on a free loopback port, ready when the block begins and ended after it.

    `OWN_ADDRESS` in the configuration is the address it gets. Its data stay in `folder / "data"`: another `running`
    over the same folder goes on with them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    text = yaml.safe_dump(config).replace(OWN_ADDRESS, f"127.0.0.1:{port}")
    (folder / "prometheus.yml").write_text(text, encoding="utf-8")
    command = [
        str(binary),
        # Relative, so that groups of rules, which Prometheus names after their files, do not name a temporary folder.
        "--config.file=prometheus.yml",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
        *options,
    ]
    log = folder / "prometheus.log"
    with program(command, log) as process:
        prometheus = Prometheus(port)
        wait_for(prometheus.is_ready, "Prometheus", process=process, log=log)
        yield prometheus


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on right now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _range(element: Any) -> Range:
    points = element["values"]
    return Range(
        make_labels(element["metric"]),
        [round(float(moment) * 1000) for moment, _ in points],
        [float(value) for _, value in points],
    )
