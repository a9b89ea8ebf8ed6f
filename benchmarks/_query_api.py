"""The query API of a Prometheus that holds a fleet which `servescope translate` probes: made up, and quick to answer.

It finds the names, the deployment and the replicas in an expression and returns their series, all with the same values.
It evaluates nothing: what it takes to ask, to read the answers, and to compute from them does not depend on that.
"""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from urllib.parse import parse_qs, urlsplit

from benchmarks._fleet_history import Fleet
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.metrics import REPLICA_START_TIME
from servescope.store.prometheus.figure_queries import FIGURE_LABEL, TIME

SCRAPE_SECONDS = 15
_PER_BLOCK = 300 // SCRAPE_SECONDS
BORN = 1_700_000_000
"""When every process began, in seconds."""
_UNNAMED = ("up", "servescope_probe_success", "servescope_target_up", "servescope_target_info")
_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class Answers:
    """What there is to answer of a fleet of so many replicas."""

    def __init__(self, replicas: int) -> None:
        self._series: dict[str, list[tuple[dict[str, str], int]]] = {}
        processes: dict[str, tuple[dict[str, str], int]] = {}
        for each in Fleet(replicas).series:
            labels = dict(each.labels)
            self._series.setdefault(each.name, []).append((labels, each.count))
            if "role" in labels:
                identity = {name: labels[name] for name in (*DEPLOYMENT_LABELS, "role")}
                processes[f"{labels['deployment_id']} {labels['role']}"] = identity, each.count
        for name in _UNNAMED:
            self._series[name] = list(processes.values())

    def select(self, expression: str) -> Iterator[str]:
        """The labels of the series that an expression reads, each as JSON."""
        plain = expression.replace("\\", "")
        deployment = re.search(r'deployment_id="([^"]+)"', plain)
        chosen = re.search(r'replica=~?"([^"]*)"', plain)
        instances = re.search(r'instance=~"([^"]*)"', plain)
        wanted = set(chosen[1].split("|")) if chosen else None
        if wanted is None and instances:
            wanted = {each.removesuffix(":8000") for each in instances[1].split("|")}
        grouped = re.search(r"(?:group|count_values) by \(([^)]*)\)", plain)
        # Of each series as many as there are scrapes in a block.
        counted = {"samples": str(_PER_BLOCK)} if "count_values" in plain else {}
        kept = re.split(r",\s*", grouped[1]) if grouped else ()
        seen = set[str]()
        for name in dict.fromkeys(_WORD.findall(plain)):
            for labels, count in self._series.get(name, ()):
                if deployment and labels["deployment_id"] != deployment[1]:
                    continue
                shown = (
                    {key: value for key, value in labels.items() if key in kept} | counted
                    if grouped
                    else {"__name__": name, **labels}
                )
                key = json.dumps(shown)
                if key not in seen:
                    yield from _named(shown, count, wanted)
                seen |= {key} if grouped else set()

    def figures(self, expression: str) -> Iterator[str]:
        """The labels of the figures that an expression reads."""
        for name in (*dict.fromkeys(_WORD.findall(expression.replace("\\", ""))), TIME):
            for labels, _ in self._series.get("up" if name == TIME else name, ()):
                if (":" in name or name == TIME) and labels.get("role", "aggregated") in ("aggregated", "prefill"):
                    identity = {key: value for key, value in labels.items() if key != "role"}
                    yield json.dumps({**identity, FIGURE_LABEL: name})


def _named(labels: Mapping[str, str], count: int, wanted: set[str] | None) -> Iterator[str]:
    if "role" not in labels:
        yield json.dumps(labels)
        return
    head = f"{labels['deployment_id']}-{labels['role']}"
    text = json.dumps({**labels, "job": "servescope-targets"})[:-1]
    for number in range(count):
        replica = f"{head}-{number}"
        if wanted is None or replica in wanted:
            yield f'{text}, "replica": "{replica}", "instance": "{replica}:8000"}}'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    answers: Answers
    counted: list[int]

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        self._answer(split.path, parse_qs(split.query))

    def do_POST(self) -> None:
        self._answer(self.path, parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()))

    def _answer(self, path: str, asked: Mapping[str, list[str]]) -> None:
        given = {name: values[0] for name, values in asked.items()}
        kind = path.rsplit("/", 1)[-1]
        self.send_response(200)
        self.end_headers()
        if kind == "counted":
            self.wfile.write(json.dumps(self.counted).encode())
            self.counted[:] = [0, 0, 0]
            return
        try:
            size = sum(map(self._write, self._bodies(kind, given, asked)))
        except (BrokenPipeError, ConnectionResetError):
            return  # the client has had enough
        self.counted[:] = [self.counted[0] + 1, self.counted[1] + size, max(self.counted[2], size)]

    def _write(self, text: str) -> int:
        body = text.encode()
        self.wfile.write(body)
        return len(body)

    def _bodies(self, kind: str, given: Mapping[str, str], asked: Mapping[str, list[str]]) -> Iterator[str]:
        if kind in ("series", "values"):
            found: Iterator[str] = (labels for selector in asked["match[]"] for labels in self.answers.select(selector))
            if kind == "values":
                label = urlsplit(self.path).path.split("/")[-2]
                unnamed = 'replica=~""' in asked["match[]"][0]
                names = sorted({json.loads(each).get(label, "") for each in found} - {""}) if not unnamed else []
                yield json.dumps({"status": "success", "data": names})
                return
            yield from _list('{"status":"success","data":[', found, "]}")
            return
        expression = given["query"]
        is_figures = FIGURE_LABEL in expression
        found = self.answers.figures(expression) if is_figures else self.answers.select(expression)
        if "resets(" in expression or "!= ignoring" in expression or "ALERTS" in expression:
            found = iter(())
        range_ms = re.search(r"\[(\d+)ms\]$", expression)
        if kind == "query_range":
            constant = BORN if REPLICA_START_TIME in expression else None
            values = _steps(_seconds(given["start"]), _seconds(given["end"]), float(given["step"]), constant)
        elif range_ms:
            end = _seconds(given["time"])
            values = _samples(end - int(range_ms[1]) / 1000, end)
        else:
            text = f'"value":[{_seconds(given["time"])},"{_seconds(given["time"])}"]}}'
            yield from _list(_HEAD % "vector", (f'{{"metric":{each},{text}' for each in found), "]}}")
            return
        yield from _list(_HEAD % "matrix", (f'{{"metric":{each},"values":{values}}}' for each in found), "]}}")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        pass


_HEAD = '{"status":"success","data":{"resultType":"%s","result":['


def _list(head: str, elements: Iterator[str], tail: str) -> Iterator[str]:
    yield head
    part: list[str] = []
    comma = ""
    for each in elements:
        part.append(each)
        if len(part) == 500:
            yield comma + ",".join(part)
            comma, part = ",", []
    yield (comma + ",".join(part) if part else "") + tail


@cache
def _steps(start: float, end: float, step: float, constant: float | None) -> str:
    times = [start + number * step for number in range(round((end - start) / step) + 1)]
    return json.dumps([[at, str(round(at) if constant is None else constant)] for at in times])


@cache
def _samples(start: float, end: float) -> str:
    first = -(-start // SCRAPE_SECONDS) * SCRAPE_SECONDS
    return json.dumps([[at, str(at)] for at in range(round(first), round(end) + 1, SCRAPE_SECONDS)])


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _serve(replicas: int, parent: Connection) -> None:
    handler = type("Handler", (_Handler,), {"answers": Answers(replicas), "counted": [0, 0, 0]})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    parent.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def serving(replicas: int) -> Iterator[str]:
    """The base URL of the API, in a process of its own; `/counted` gives the answers since the last time, their bytes,
    and those of the largest.
    """
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(replicas, theirs), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()
        process.join()
