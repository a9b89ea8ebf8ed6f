"""The files of `deploy/victoriametrics/`: vmagents as a cluster, two storage nodes, vmalert and vmauth."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.__main__ import GENERATED as RULES
from tests.support import past_one_machine
from tests.support.victoria_cluster import DEPLOYED, FLAG_FILES, STORAGES, VMAGENTS, program_of, read_flags
from tests.support.waiting import deadline_seconds

_SECONDS = 60.0


def _program(name: str) -> Path:
    found = program_of(name)
    if found is None:
        pytest.skip(
            f"{FLAG_FILES[name]} not found: `python -m tests.tools` prepares it or says why it is not available"
        )
    return found


def _run(name: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [_program(name), *arguments], capture_output=True, text=True, timeout=deadline_seconds(_SECONDS), check=False
    )
    return done.returncode, done.stdout + done.stderr


def _flags(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for flag in read_flags(name):
        key, _, value = flag.partition("=")
        found.setdefault(key, []).append(value)
    return found


def _scrapes() -> Any:
    return yaml.safe_load((DEPLOYED / "scrape.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("vmagent", f"-promscrape.config={DEPLOYED / 'scrape.yml'}"),
        ("vmauth", f"-auth.config={DEPLOYED / 'vmauth.yml'}"),
        ("vmalert", f"-rule={RULES / '*.rules.yml'}"),
    ],
)
def test_programs_accept_their_files(name: str, option: str) -> None:
    """Each program reads its configuration, vmalert our rules as they are generated, and refuses nothing in it."""
    code, said = _run(name, "-dryRun", option)

    assert code == 0, said


@pytest.mark.parametrize("name", FLAG_FILES)
def test_programs_have_the_flags_they_are_given(name: str) -> None:
    """Every flag of a file is one that the program lists."""
    known = set(re.findall(r"^  (-[\w.]+)", _run(name, "-help")[1], re.MULTILINE))

    assert known > set(_flags(name))


def test_targets_get_the_labels_that_prometheus_agents_give_them() -> None:
    """The same lists of targets lead to the same series, whichever of the two scrapes them."""
    agent = yaml.safe_load(past_one_machine.agent_text(0))
    (of_agents,) = (job for job in agent["scrape_configs"] if job["job_name"] == past_one_machine.TARGETS_JOB)
    (ours,) = (job for job in _scrapes()["scrape_configs"] if job["job_name"] == past_one_machine.TARGETS_JOB)
    divides = {"hashmod", "keep"}
    labelled = [each for each in of_agents["relabel_configs"] if each.get("action") not in divides]

    assert ours["relabel_configs"][:-1] == labelled[:-1]
    assert ours["metrics_path"] == of_agents["metrics_path"]
    assert (ours["sample_limit"], ours["max_scrape_size"]) == (of_agents["sample_limit"], of_agents["body_size_limit"])


def test_parts_agree_on_times_and_sizes() -> None:
    """Samples are deduplicated by the interval they are scraped at; rules look back as far as queries do."""
    storage, vmalert, vmagent, vmauth = (_flags(name) for name in ("storage", "vmalert", "vmagent", "vmauth"))
    (interval,) = storage["-dedup.minScrapeInterval"]
    rules = [group for path in RULES.glob("*.rules.yml") for group in yaml.safe_load(path.read_text())["groups"]]

    assert _scrapes()["global"]["scrape_interval"] == interval == min(group["interval"] for group in rules)
    assert storage["-search.latencyOffset"] == vmalert["-rule.evalDelay"]
    assert storage["-search.maxLookback"] == vmalert["-datasource.queryStep"]
    assert storage["-search.maxQueryLen"] == vmauth["-maxRequestBodySizeToRetry"]
    assert vmagent["-promscrape.cluster.membersCount"] == [str(VMAGENTS)]


def test_parts_know_each_other() -> None:
    """Each storage node is written by every vmagent and read through vmauth; every part is scraped."""
    scraped = {
        job["job_name"]: [target for group in job.get("static_configs", ()) for target in group["targets"]]
        for job in _scrapes()["scrape_configs"]
    }
    storages = [f"http://{target}" for target in scraped["victoria-metrics"]]
    written, read = yaml.safe_load((DEPLOYED / "vmauth.yml").read_text())["unauthorized_user"]["url_map"]

    assert len(storages) == STORAGES
    assert _flags("vmagent")["-remoteWrite.url"] == [f"{url}/api/v1/write" for url in storages]
    assert read["url_prefix"] == storages
    assert written["url_prefix"] == [f"http://{target}" for target in scraped["vmagent"]]
    for flag in ("-datasource.url", "-remoteRead.url", "-remoteWrite.url"):
        assert _flags("vmalert")[flag] == [f"http://{target}" for target in scraped["vmauth"]]
    assert _flags("vmalert")["-notifier.url"] == [f"http://{target}" for target in scraped["alertmanager"]]
    assert {len(scraped[job]) for job in ("vmagent", past_one_machine.TRANSLATE_JOB)} == {VMAGENTS}
