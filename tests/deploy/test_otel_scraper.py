"""The OpenTelemetry Collector as a scraper: what of `deploy/otel-scraper.yaml` can be checked without one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.support.past_one_machine import AGENTS, ROOT, TARGETS_JOB, agent_text
from tests.support.promtool import run

_TEXT = (ROOT / "deploy" / "otel-scraper.yaml").read_text(encoding="utf-8")


def _document() -> Any:
    filled = _TEXT.replace("AGENTS", str(AGENTS)).replace("NUMBER", "0")
    # `$` is the collector's own; what it gives its receiver has one of two.
    assert not re.search(r"(?<!\$)\$(?!\$)", re.sub(r"^#.*", "", filled, flags=re.MULTILINE))
    return yaml.safe_load(filled.replace("$$", "$"))


def test_prometheus_accepts_what_the_receiver_is_given(promtool: Path, promtool_3: Path, tmp_path: Path) -> None:
    """The receiver's part is a configuration of Prometheus 2 and 3; unfilled it is refused."""
    path = tmp_path / "scrape.yml"
    path.write_text(yaml.safe_dump(_document()["receivers"]["prometheus"]["config"]), encoding="utf-8")
    for program in (promtool, promtool_3):
        done = run(program, ["check", "config", "--agent", path], tmp_path)
        assert done.returncode == 0, done.stdout

    path.write_text(yaml.safe_dump(yaml.safe_load(_TEXT)["receivers"]["prometheus"]["config"]), encoding="utf-8")
    done = run(promtool, ["check", "config", "--agent", path], tmp_path)
    assert (done.returncode != 0, "AGENTS" in done.stdout) == (True, True)


def test_it_scrapes_as_a_prometheus_agent_does() -> None:
    """The job for targets is that of the agents, so that both give the same series and divide targets alike."""
    (agents,) = (job for job in yaml.safe_load(agent_text(0))["scrape_configs"] if job["job_name"] == TARGETS_JOB)
    (ours,) = _document()["receivers"]["prometheus"]["config"]["scrape_configs"]

    assert ours.pop("file_sd_configs") != agents.pop("file_sd_configs")
    assert ours == agents


def test_every_part_is_in_a_pipeline_and_names_stay() -> None:
    """Each receiver, processor and exporter is used and there, and none renames what the rules read."""
    document = _document()
    (pipeline,) = document["service"]["pipelines"].values()

    assert {part: list(document[part]) for part in ("receivers", "processors", "exporters")} == pipeline
    assert document["exporters"]["prometheusremotewrite"]["add_metric_suffixes"] is False
