"""A real VictoriaMetrics on loopback for the length of a `with` block, and the samples it stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

from servescope.contract.samples import make_labels
from tests.support.programs import answers, program
from tests.support.prometheus import Prometheus, Range, free_port
from tests.support.waiting import deadline_seconds, wait_for

_SECONDS = 60.0
_END_SECONDS = 4_000_000_000


class VictoriaMetrics:
    """The addresses of a VictoriaMetrics for what is sent to it, what it has, and its answers to queries."""

    def __init__(self, port: int) -> None:
        self.url = self._base = f"http://127.0.0.1:{port}"
        self.reader = Prometheus(port)
        self.otlp_url = f"{self._base}/opentelemetry/v1/metrics"
        self.remote_write_url = f"{self._base}/api/v1/write"

    def load(self, samples: Iterable[str]) -> None:
        """Store lines of the text format, each with its time in milliseconds."""
        body = "".join(samples).encode()
        with urlopen(f"{self._base}/api/v1/import/prometheus", body, timeout=deadline_seconds(_SECONDS)) as answer:
            assert answer.status < 300
        self.flush()

    def flush(self) -> None:
        """Let queries find what was sent so far."""
        self._get("/internal/force_flush")

    def read_samples(self, selector: str) -> list[Range]:
        """All samples of the series, as they are stored; a stale marker is NaN."""
        self.flush()
        # Without an end it leaves out what was stored within the last second.
        wanted = urlencode({"match[]": selector, "reduce_mem_usage": "1", "start": "0", "end": str(_END_SECONDS)})
        lines = self._get(f"/api/v1/export?{wanted}").splitlines()
        found = [json.loads(line) for line in lines]
        return [
            Range(
                make_labels(one["metric"]),
                one["timestamps"],
                [float("nan") if value is None else float(value) for value in one["values"]],
            )
            for one in found
        ]

    def _get(self, path: str) -> str:
        with urlopen(f"{self._base}{path}", timeout=deadline_seconds(_SECONDS)) as answer:
            text: str = answer.read().decode()
            return text


@contextmanager
def running(binary: Path, folder: Path, *, options: Sequence[str] = ()) -> Iterator[VictoriaMetrics]:
    """A VictoriaMetrics on a free port, which keeps samples of any time; its data are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [
        str(binary),
        f"-storageDataPath={folder / 'data'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=100y",
        "-memory.allowedBytes=256MB",
        "-loggerLevel=WARN",
        *options,
    ]
    log = folder / "victoria-metrics.log"
    with program(command, log) as process:
        url = f"http://127.0.0.1:{port}/health"
        wait_for(lambda: answers(url), "VictoriaMetrics", process=process, log=log)
        yield VictoriaMetrics(port)
