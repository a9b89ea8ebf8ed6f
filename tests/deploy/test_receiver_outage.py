"""What agents send late, as they do when the receiver was away: it is stored, as docs/scale.md says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml
from cramjam import snappy

from servescope.customers.remote_write_messages import WriteRequest
from tests.conftest import ROOT
from tests.support.prometheus import Prometheus, running
from tests.support.waiting import deadline_seconds

RECEIVER = ROOT / "deploy" / "prometheus" / "receiver.yml"
HOURS_KEPT = 4
"""For so long an agent keeps what it could not send (`--storage.agent.retention.max-time`)."""
_HOUR_MS = 3_600_000


@pytest.mark.slow
@pytest.mark.parametrize("program", ["prometheus", "prometheus_3"])
def test_receiver_stores_what_agents_kept_for_it(program: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Behind newer samples, such as its own, or those of an agent that caught up first."""
    document: dict[str, Any] = yaml.safe_load(RECEIVER.read_text(encoding="utf-8"))
    config = {"storage": document["storage"]} if "storage" in document else {}
    now_ms = round(time.time() * 1000)
    moments = [now_ms, *(now_ms - round(_HOUR_MS * hours) for hours in (0.5, 2, HOURS_KEPT - 0.1))]
    binary: Path = request.getfixturevalue(program)
    with running(binary, tmp_path, config, options=["--web.enable-remote-write-receiver"]) as receiver:
        for number, moment in enumerate(moments):
            _write(receiver, f"r{number}", moment)
        stored = receiver.read_samples("output_tokens_total", end_ms=now_ms, range_ms=HOURS_KEPT * _HOUR_MS)
    assert {dict(one.labels)["replica"]: list(one.times) for one in stored} == {
        f"r{number}": [moment] for number, moment in enumerate(moments)
    }


def _write(receiver: Prometheus, replica: str, moment: int) -> None:
    message = WriteRequest()
    series = message.timeseries.add()
    for name, value in (("__name__", "output_tokens_total"), ("replica", replica)):
        series.labels.add(name=name, value=value)
    series.samples.add(value=1.0, timestamp=moment)
    body = bytes(snappy.compress_raw(message.SerializeToString()))
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    asked = Request(f"http://127.0.0.1:{receiver.port}/api/v1/write", body, headers)
    with urlopen(asked, timeout=deadline_seconds()) as answer:
        assert answer.status in (200, 204)
