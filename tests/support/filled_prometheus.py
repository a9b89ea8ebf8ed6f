"""A real Prometheus that holds ten minutes of an emulated stack and what the recording rules make of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from alerts.__main__ import GENERATED as RULES
from alerts.recording import INTERVAL
from servescope.contract.identity import Deployment
from servescope.contract.own_metrics import OWN_METRICS
from servescope.contract.samples import format_series, make_labels
from servescope.cutover.judgement import VERDICTS
from servescope.emulator.deployment.stack import V1, V2, V2_DISAGGREGATED, EmulatedStack
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.exposition.rendering import render
from tests.support.documents import read_yaml
from tests.support.kept import kept
from tests.support.past import make_blocks
from tests.support.prometheus import Prometheus, running
from tests.support.promtool import run
from tests.support.recording_rules import RECORDING_FILES

START_SECONDS = 1_700_000_000
SCRAPE_SECONDS = 15
SECONDS = 600
END_MS = (START_SECONDS + SECONDS) * 1000

EVERY_RULE = 3
"""How often rules are run until all have values: the bad requests of five minutes are made of two recorded series, and
long windows sum them."""

PLAIN = "plain"
"""A deployment without speculation, as `chat-v1` is without an index of caches and a token-based autoscaler."""

_NAME = re.compile(r"[\w:]+")
_SAMPLE = re.compile(rb"^([a-zA-Z_:][^ ]*(?:\{.*\})?) (\S+)$", re.MULTILINE)


def make_stack() -> EmulatedStack:
    """v1, v2, v2 in phases, and one without speculation, under more traffic than they take."""
    plain = replace(V1, identity=replace(V1.identity, deployment_id=PLAIN), engine=replace(V1.engine, speculation=None))
    phased = replace(V2_DISAGGREGATED, identity=replace(V2.identity, deployment_id="chat-v2-phases"))
    return EmulatedStack.of(
        [(V1, 0.3), (V2, 0.3), (phased, 0.2), (plain, 0.2)],
        traffic=GeneratedTraffic(Mix(requests_per_second=5.0, abort_share=0.03)),
    )


def make_samples() -> list[bytes]:
    """The scrapes of the stack, of a collector's configuration, of replicas apart and of firing alerts."""
    return [*scraped_samples(), *_beside(), *_alerts()]


def scraped_samples() -> list[bytes]:
    """The scrapes of the stack alone, emulated once."""

    def make(folder: Path) -> None:
        (folder / "samples.txt").write_bytes(b"".join(scrape(make_stack(), SECONDS)))

    return [(kept("filled-prometheus", make) / "samples.txt").read_bytes()]


@contextmanager
def holding(
    prometheus: Path,
    promtool: Path,
    folder: Path,
    samples: Iterable[bytes],
    *,
    files: Sequence[str] = RECORDING_FILES,
) -> Iterator[Prometheus]:
    """A Prometheus over samples and the committed recording rules in these files, evaluated over them."""
    fill(prometheus, promtool, folder, samples, seconds=SECONDS, times=EVERY_RULE, files=files)
    with running(prometheus, folder, {}, options=RETENTION) as server:
        yield server


def fill(
    prometheus: Path,
    promtool: Path,
    folder: Path,
    samples: Iterable[bytes],
    *,
    seconds: int,
    interval: str = INTERVAL,
    times: int = 1,
    files: Sequence[str | Path] = RECORDING_FILES,
    options: Sequence[str] = (),
) -> None:
    """Have `folder` hold samples of so many seconds from START_SECONDS on, and what the recording rules make of them.

    `running(prometheus, folder, {}, options=RETENTION)` serves them; the Prometheus that evaluates the rules has more
    `options`. Run once over the data, a rule does not find what others record; with EVERY_RULE as `times` it does. What
    is made of scrapes alone is recorded once.
    """
    add_samples(promtool, folder, samples)
    options = (*RETENTION, *options)
    _record(prometheus, promtool, folder, seconds, interval, [RULES / name for name in files], options)
    if times > 1:
        again = folder / "again.rules.json"
        again.write_text(json.dumps({"groups": _groups_of_recorded(files)}), encoding="utf-8")
        for _ in range(times - 1):
            _record(prometheus, promtool, folder, seconds, interval, [again], options)


def _groups_of_recorded(files: Sequence[str | Path]) -> list[dict[str, Any]]:
    """The groups of the files with the rules alone that read what another of them records."""
    groups = [each for name in files for each in read_yaml((RULES / name).read_text(encoding="utf-8"))["groups"]]
    recorded = {rule["record"] for group in groups for rule in group["rules"]}
    chosen = [
        {**group, "rules": [rule for rule in group["rules"] if not recorded.isdisjoint(_NAME.findall(rule["expr"]))]}
        for group in groups
    ]
    return [group for group in chosen if group["rules"]]


def _record(
    prometheus: Path,
    promtool: Path,
    folder: Path,
    seconds: int,
    interval: str,
    files: Sequence[Path],
    options: Sequence[str],
) -> None:
    with running(prometheus, folder, {}, options=options) as server:
        done = run(
            promtool,
            [
                "tsdb", "create-blocks-from", "rules", f"--start={START_SECONDS}", f"--end={START_SECONDS + seconds}",
                f"--eval-interval={interval}", f"--output-dir={folder / 'recorded'}",
                f"--url=http://127.0.0.1:{server.port}", *files,
            ],
            folder,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout
    for block in (folder / "recorded").iterdir():
        block.rename(folder / "data" / block.name)
    (folder / "recorded").rmdir()


def add_samples(promtool: Path, folder: Path, samples: Iterable[bytes]) -> None:
    """Have `folder` hold these samples, lines of OpenMetrics, too; no Prometheus may run over it meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "samples.om"
    with text.open("wb") as file:
        file.writelines(samples)
        file.write(b"# EOF\n")
    make_blocks(text, promtool, folder)


RETENTION = ("--storage.tsdb.retention.time=100y",)
"""Options of a Prometheus that keeps samples of a time long past."""


def scrape(stack: EmulatedStack, seconds: int, appears: Mapping[str, int] = MappingProxyType({})) -> Iterator[bytes]:
    """The stack's pages with their time, scrape by scrape; `appears` says from which second on a deployment's are."""
    for after in range(SCRAPE_SECONDS, seconds + 1, SCRAPE_SECONDS):
        stack.clock.run_until(float(after))
        timestamp = str(START_SECONDS + after).encode()
        for target in stack.targets():
            if after < appears.get(target.identity.deployment_id, 0):
                continue
            page = render(target.instruments)
            yield b"".join(b"%s %s %s\n" % (series, value, timestamp) for series, value in _SAMPLE.findall(page))


def _beside() -> Iterator[bytes]:
    """What a collector reports of its configuration, a judge of a cutover, and a deployment of uneven replicas."""
    for after in range(SCRAPE_SECONDS, SECONDS + 1, SCRAPE_SECONDS):
        timestamp = str(START_SECONDS + after).encode()
        yield from (_configured(deployment, ratio, timestamp) for deployment, ratio in _CONFIGURED.items())
        yield from (b"%s %s\n" % (line, timestamp) for line in _JUDGED)
        yield from _uneven(after, timestamp)


# What a collector would report of its configuration.
_CONFIGURED = {V1.identity: 0.5, V2.identity: 0.5}


def _judged() -> Iterator[bytes]:
    """The gauges of a judge, each with every verdict or severity there is."""
    for metric in OWN_METRICS.values():
        if metric.program == "judge" and metric.kind == "gauge":
            values = {"verdict": VERDICTS, "severity": ("probable",)}
            for value in next((values[label] for label in metric.labels if label in values), ("",)):
                labels = {"plan": "chat", "metric": "output_tokens", "verdict": value, "severity": value}
                chosen = make_labels({label: labels.get(label, "x") for label in metric.labels})
                yield f"{format_series(metric.name, chosen)} {float(value in ('', 'HEALTHY'))}".encode()


_JUDGED = tuple(_judged())


def _configured(identity: Deployment, ratio: float, timestamp: bytes) -> bytes:
    labels = ",".join(
        f'{name}="{getattr(identity, name)}"' for name in ("model_name", "environment", "inference_stack")
    )
    return f"servescope_configured_traffic_ratio{{{labels}}} {ratio} ".encode() + timestamp + b"\n"


UNEVEN = {"r0": (500.0, 1000.0), "r1": (3200.0, 4000.0), "r2": (0.0, 1.0)}
"""Prompt tokens a second that each replica of the deployment `uneven` reuses, and those it gets."""


def _uneven(after: int, timestamp: bytes) -> Iterator[bytes]:
    for replica, rates in UNEVEN.items():
        labels = f'model_name="m",deployment_id="uneven",inference_stack="v2",replica="{replica}"'
        for name, per_second in zip(("reused", "eligible"), rates, strict=True):
            yield f"kv_cache_{name}_tokens_total{{{labels}}} {after * per_second} ".encode() + timestamp + b"\n"


SINCE_SECONDS = START_SECONDS + 240
"""When the conditions of the firing alerts began to hold."""

_MODEL = 'model_name="llama-3.3-70b",environment="production"'
_FIRING = (
    f'alertname="SpeculationRateLow",severity="warning",deployment_id="chat-v1",inference_stack="v1",{_MODEL}',
    f'alertname="ServescopeTrafficSplitNotAsConfigured",severity="warning",inference_stack="v1",{_MODEL}',
    'alertname="ServescopeCollectorDown",severity="critical",instance="collector:9477"',
    'alertname="ServescopeWatchdog",severity="none"',
    'alertname="SomebodysDiskFull",severity="critical",instance="database:9100"',
)


def _alerts() -> Iterator[bytes]:
    """What begins to fire: of a deployment, of a model, of the monitoring, the Watchdog, and somebody else's."""
    for labels in _FIRING:
        yield f'ALERTS{{alertstate="firing",{labels}}} 1 {START_SECONDS + SECONDS}\n'.encode()
        yield f"ALERTS_FOR_STATE{{{labels}}} {SINCE_SECONDS} {START_SECONDS + SECONDS}\n".encode()
