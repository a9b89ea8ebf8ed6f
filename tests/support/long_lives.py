"""What fires in the life of a fleet too large for promtool's tests, by the expressions of the rules in a Prometheus.

Recording rules are computed over the past by promtool, conditions by range queries; from these, `advance` says when an
alert fires, which is compared with Prometheus elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

import yaml

from servescope.alerting.alerts import ALERTS
from servescope.alerting.evaluation import Active, advance
from servescope.contract.expressions import Vector
from servescope.contract.samples import Labels
from servescope.store.prometheus.client import Prometheus
from tests.support.incidents import Stretches, on_deployments, rule_groups
from tests.support.ordinary import Life
from tests.support.past import a_day_ago, make_blocks, remembering
from tests.support.promtool import run

_MINUTE_MS: Final = 60_000
_EVERY_MINUTES: Final = 2
# A series that ends has no mark of it in a past that is written; of a scrape a minute, this is as good.
_OPTIONS: Final = ("--query.lookback-delta=90s",)


def fired_in_life(life: Life, *, prometheus: Path, promtool: Path, folder: Path) -> dict[str, set[Labels]]:
    """Which alerts on deployments and targets fire, and for which labels, with a scrape a minute."""
    given, minutes = life.series(), life.minutes
    start_ms = a_day_ago()
    groups = rule_groups(on_deployments())
    text = folder / "life.txt"
    with text.open("w", encoding="utf-8") as file:
        for minute, line in _lines(given):
            file.write(f"{line} {start_ms // 1000 + 60 * minute}\n")
        file.write("# EOF\n")
    make_blocks(text, promtool, folder)
    _record(groups, start_ms, minutes, prometheus=prometheus, promtool=promtool, folder=folder)
    with remembering(prometheus, folder, _OPTIONS) as running:
        client = Prometheus(f"http://127.0.0.1:{running.port}")
        rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
        return {rule["alert"]: found for rule in rules if (found := _fired(client, rule, start_ms, minutes))}


def _lines(given: Mapping[str, Stretches]) -> Iterator[tuple[int, str]]:
    for key, stretches in given.items():
        is_counter = key.split("{")[0].endswith(("_total", "_sum", "_count"))
        # OpenMetrics has no empty braces, and no space after a comma.
        written = key.removesuffix("{}").replace('", ', '",')
        total = 0.0
        values = chain.from_iterable(repeat(value, length) for length, value in stretches)
        for minute, value in enumerate(values):
            if value is None:
                total = 0.0
                continue
            yield minute, f"{written} {total if is_counter else value!r}"
            total += value * 60


def _record(
    groups: Sequence[Mapping[str, Any]], start_ms: int, minutes: int, *, prometheus: Path, promtool: Path, folder: Path
) -> None:
    """Write what the recording rules are over the life into the folder's data."""
    file = folder / "recording.yml"
    recording = [
        {"name": group["name"], "rules": [rule for rule in group["rules"] if "record" in rule]} for group in groups
    ]
    file.write_text(yaml.safe_dump({"groups": [group for group in recording if group["rules"]]}), encoding="utf-8")
    with remembering(prometheus, folder, _OPTIONS) as running:
        done = run(
            promtool,
            ["tsdb", "create-blocks-from", "rules", "--url", f"http://127.0.0.1:{running.port}",
             "--start", str(start_ms // 1000), "--end", str(start_ms // 1000 + 60 * minutes),
             "--eval-interval", "60s", "--output-dir", folder / "data", file],
            folder,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def _fired(client: Prometheus, rule: Mapping[str, Any], start_ms: int, minutes: int) -> set[Labels]:
    alert = ALERTS[rule["alert"]]
    instants: dict[int, Vector] = {}
    # A value that is infinite is one that holds, too.
    for track in client.query_range(
        f"sgn({rule['expr']})",
        start_ms=start_ms,
        end_ms=start_ms + minutes * _MINUTE_MS,
        step_ms=_EVERY_MINUTES * _MINUTE_MS,
    ):
        for at_ms, value in zip(track.times.tolist(), track.values.tolist(), strict=True):
            instants.setdefault(at_ms, {})[track.labels] = value
    fired: set[Labels] = set()
    states: dict[Labels, Active] = {}
    for at_ms in range(start_ms, start_ms + minutes * _MINUTE_MS + 1, _EVERY_MINUTES * _MINUTE_MS):
        states = advance(alert, states, instants.get(at_ms, {}), at_ms)
        fired |= {labels for labels, each in states.items() if each.fired_ms is not None}
    return fired
