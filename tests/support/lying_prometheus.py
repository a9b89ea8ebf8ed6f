"""A server that passes on what a Prometheus answers, and damages what some of the answers say of one deployment."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.support.answering import Handler, answering

Lie = Callable[[Mapping[str, Any], random.Random], Mapping[str, Any] | None]
"""What becomes of one series of an answer; None of one that is left out."""

_PART: Final = 0.1
"""Of the answers that are damaged."""


def _samples(change: Callable[[str], str]) -> Lie:
    def lie(series: Mapping[str, Any], drawn: random.Random) -> Mapping[str, Any]:
        del drawn
        return {**series, "values": [[time, change(value)] for time, value in series["values"]]}

    return lie


def _some_samples(series: Mapping[str, Any], drawn: random.Random) -> Mapping[str, Any] | None:
    left = [each for each in series["values"] if drawn.random() < 0.5]
    return {**series, "values": left} if left else None


LIES: Final[Mapping[str, Lie]] = {
    "negated": _samples(lambda value: f"-{value}".replace("--", "")),
    "zero": _samples(lambda _: "0"),
    "halved": _samples(lambda value: str(0.5 * float(value))),
    "emptied": lambda *_: None,
    "without some samples": _some_samples,
    "without some series": lambda series, drawn: series if drawn.random() < 0.5 else None,
}


@contextmanager
def lying(url: str, deployment_id: str, lie: Lie, seed: int) -> Iterator[str]:
    """The base URL of the server; the seed decides which queries have damaged answers, whenever they are asked."""

    def answer(handler: Handler) -> None:
        asked = urlencode(handler.parameters, doseq=True)
        with urlopen(f"{url}{handler.path.partition('?')[0]}?{asked}") as response:  # on loopback
            body = response.read()
        drawn = random.Random(zlib.crc32(f"{seed} {handler.parameters.get('query')}".encode()))
        damaged = handler.path.partition("?")[0].endswith(("/query", "/query_range")) and drawn.random() < _PART
        handler.reply(200, _damage(body, deployment_id, lie, drawn) if damaged else body)

    with answering(answer) as base:
        yield base


def _damage(body: bytes, deployment_id: str, lie: Lie, drawn: random.Random) -> str:
    document = json.loads(body)
    result = [
        changed
        for series in document["data"]["result"]
        if (changed := lie(series, drawn) if _is_of(series, deployment_id) else series) is not None
    ]
    return json.dumps({**document, "data": {**document["data"], "result": result}})


def _is_of(series: Any, deployment_id: str) -> bool:
    """Whether it is a series of the deployment with samples."""
    return isinstance(series, dict) and series["metric"].get("deployment_id") == deployment_id and "values" in series
