"""A collector on the simulated fleet of the benchmarks: the fleet is one of vLLM's, and many targets are no failure."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import _fleet
from benchmarks._pages import SAMPLES, Page, make_shape
from benchmarks._processes import ending
from tests.support.waiting import deadline_seconds, wait_for

_TARGETS = 80
_FEW_FILES = 64


def test_page_is_one_of_vllms_and_moves() -> None:
    """A page has the samples of a vLLM's, most of which the next one has changed and none of whose counters fell."""
    page = Page(make_shape("llama", 1), 1)
    before, after = _values(page.render()), _values(page.render())

    assert len(before) == len(after) == SAMPLES
    assert sum(before[series] != after[series] for series in before) > 0.75 * SAMPLES
    assert all(
        after[series] >= before[series] for series in before if re.search(r"_(total|bucket|count|sum)\b", series)
    )


def _values(page: bytes) -> dict[str, float]:
    families = text_string_to_metric_families(page.decode())
    return {f"{each.name}{each.labels}": each.value for family in families for each in family.samples}


@pytest.mark.slow
def test_targets_outnumber_the_files_usually_allowed(tmp_path: Path) -> None:
    """With a soft limit of open files below the number of targets, every one of them is read all the same."""
    with _fleet.serving(_TARGETS, tmp_path / "targets") as fleet:
        configuration, port = _fleet.write_configuration(
            fleet, tmp_path, {"scrape_interval": "2s", "evaluation_interval": "2s", "window": "10s"}
        )
        with _collecting_with_few_files(configuration):
            unread = _unread(port)

        assert unread == []
        assert set(fleet.arrivals("servescope")) == set(range(_TARGETS))


@contextmanager
def _collecting_with_few_files(configuration: Path) -> Iterator[None]:
    collect = [sys.executable, "-m", "servescope.cli", "collect", "--config", str(configuration)]
    command = ["sh", "-c", f'ulimit -S -n {_FEW_FILES}; exec "$@"', "sh", *collect]
    with (configuration.parent / "collect.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    with ending(process):
        yield


def _unread(port: int) -> list[str]:
    """What the targets that are not healthy say, once all have been scraped."""

    def scraped() -> list[dict[str, object]] | None:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/targets", timeout=deadline_seconds()) as answer:
            targets: list[dict[str, object]] = json.loads(answer.read())["targets"]
        known = len(targets) == _TARGETS and all(target["last_scrape_ms"] is not None for target in targets)
        return targets if known else None

    targets = wait_for(scraped, "a scrape of every target", ignoring=(URLError, OSError))
    return [str(target["error"]) for target in targets if not target["healthy"]]
