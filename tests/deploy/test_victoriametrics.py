"""The files of `deploy/victoriametrics/`: vmagents as a cluster, two storage nodes, vmalert and vmauth."""

from __future__ import annotations

import itertools
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from servescope.alerting.monitoring.blindness import FLEET_UNSEEN
from servescope.contract.own_metrics import AGENTS_JOB
from servescope.contract.samples import Labels
from tests.support import past_one_machine
from tests.support.documents import read_yaml
from tests.support.prometheus import Range
from tests.support.recorded_targets import Recording, serving_recordings
from tests.support.victoria_cluster import (
    DEPLOYED,
    FLAG_FILES,
    OWN_SECONDS,
    STORAGES,
    VMAGENTS,
    VictoriaCluster,
    program_of,
    read_flags,
    victoria_cluster,
)
from tests.support.waiting import deadline_seconds, wait_for

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
    return read_yaml((DEPLOYED / "scrape.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("vmagent", f"-promscrape.config={DEPLOYED / 'scrape.yml'}"),
        ("vmauth", f"-auth.config={DEPLOYED / 'vmauth.yml'}"),
        ("vmalert", f"-rule={DEPLOYED / '*.rules.yml'}"),
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
    agent = read_yaml(past_one_machine.agent_text(0))
    (of_agents,) = (job for job in agent["scrape_configs"] if job["job_name"] == past_one_machine.TARGETS_JOB)
    (ours,) = (job for job in _scrapes()["scrape_configs"] if job["job_name"] == past_one_machine.TARGETS_JOB)
    divides = {"hashmod", "keep"}
    labelled = [each for each in of_agents["relabel_configs"] if each.get("action") not in divides]

    assert ours["relabel_configs"][:-1] == labelled[:-1]
    assert ours["metrics_path"] == of_agents["metrics_path"]
    assert (ours["sample_limit"], ours["max_scrape_size"]) == (of_agents["sample_limit"], of_agents["body_size_limit"])


def test_parts_agree_on_times_and_sizes() -> None:
    """Samples are deduplicated by the interval they are scraped at; rules are evaluated as of when queries answer."""
    storage, vmalert, vmagent, vmauth = (_flags(name) for name in ("storage", "vmalert", "vmagent", "vmauth"))
    (interval,) = storage["-dedup.minScrapeInterval"]
    rules = read_yaml((DEPLOYED / "servescope.rules.yml").read_text(encoding="utf-8"))["groups"]

    assert _scrapes()["global"]["scrape_interval"] == interval == min(group["interval"] for group in rules)
    assert storage["-search.latencyOffset"] == vmalert["-rule.evalDelay"]
    assert storage["-search.maxQueryLen"] == vmauth["-maxRequestBodySizeToRetry"]
    assert vmagent["-promscrape.cluster.membersCount"] == [str(VMAGENTS)]


def test_parts_know_each_other() -> None:
    """Each storage node is written by every vmagent and read through vmauth; every part is scraped."""
    scraped = {
        job["job_name"]: [target for group in job.get("static_configs", ()) for target in group["targets"]]
        for job in _scrapes()["scrape_configs"]
    }
    storages = [f"http://{target}" for target in scraped["victoria-metrics"]]
    probed, written, read = read_yaml((DEPLOYED / "vmauth.yml").read_text())["unauthorized_user"]["url_map"]

    assert len(storages) == STORAGES
    assert _flags("vmagent")["-remoteWrite.url"] == [f"{url}/api/v1/write" for url in storages]
    assert read["url_prefix"] == storages
    assert written["url_prefix"] == [f"http://{target}" for target in scraped[AGENTS_JOB]]
    assert probed["url_prefix"] == [f"http://{target}" for target in scraped[past_one_machine.TRANSLATE_JOB]]
    for flag in ("-datasource.url", "-remoteRead.url", "-remoteWrite.url"):
        assert _flags("vmalert")[flag] == ["http://vmauth:8427"]
    assert _flags("vmalert")["-notifier.url"] == [f"http://{target}" for target in scraped["alertmanager"]]
    assert {len(scraped[job]) for job in (AGENTS_JOB, "vmauth", past_one_machine.TRANSLATE_JOB)} == {VMAGENTS}


# --- Running, while a part of it is killed ----------------------------------------------------------------------------

TIMES = 15
"""How many times as fast time passes: the window of five minutes is 20 s."""
WINDOW_SECONDS = 300 // TIMES
STEADY, DOWN = "steady", "down"
PARTS = ("vmagent", "translator", "storage")
_ENGINES, _OTHERS = 6, 3
_VLLM = "vllm-0.32.0-1"
_LATE = 3
"""So many times as late as usual an evaluation may come on a busy machine."""
_RATIOS = ("ratio", "p50", "p95", "p99", "mean", "avg")


def _groups(addresses: Sequence[str]) -> list[dict[str, Any]]:
    """The first engines are a deployment that stays, the next one that fails, and the others one each that stays."""
    names = [DOWN, *(f"other-{number}" for number in range(_OTHERS))]
    return [
        {"targets": list(addresses[:_ENGINES]), "labels": _labels(STEADY)},
        *(
            {"targets": [address], "labels": _labels(name)}
            for address, name in zip(addresses[_ENGINES:], names, strict=True)
        ),
    ]


def _labels(deployment: str) -> dict[str, str]:
    return {
        "model_name": f"model-{deployment}", "deployment_id": deployment, "inference_stack": "v2",
        "environment": "live", "__param_source": "vllm",
    }  # fmt: skip


@pytest.mark.proof
@pytest.mark.parametrize("part", PARTS)
def test_killed_part_costs_no_figure_and_no_alert(
    part: str, any_captures: Path, alertmanager: Path, tmp_path: Path
) -> None:
    """A vmagent, a translator or the first storage node is killed, and a deployment fails while it is dead."""
    for name in FLAG_FILES:
        _program(name)
    capture = str(any_captures / f"{_VLLM}.txt")
    recordings = [Recording(capture, 1 + number / 100) for number in range(_ENGINES + 1 + _OTHERS)]
    with (
        serving_recordings(recordings, tmp_path) as targets,
        victoria_cluster(
            tmp_path / "stack", _groups(targets.addresses), alertmanager=alertmanager, times=TIMES
        ) as running,
    ):
        _wait_until_level(running)
        began_ms = _now_ms()
        truth = {point.labels: point.value for point in running.reader.query(_figures(), at_ms=began_ms)}
        job, killed = {
            "vmagent": (AGENTS_JOB, running.vmagents[0]),
            "translator": (past_one_machine.TRANSLATE_JOB, running.translators[1]),
            "storage": ("victoria-metrics", running.storages[0]),
        }[part]
        past_one_machine.kill(killed)
        named = f'up{{job="{job}"}} == 0'
        wait_for(lambda: _values(running, named), f"a dead {part}")
        targets.cut_off([_ENGINES])
        page = ("ServescopeDeploymentDown", DOWN)
        wait_for(lambda: page in running.notified("page"), "the page", seconds=180)
        if part == "storage":
            running.read_first(1)
        killed.start()
        killed.wait_until_ready()
        wait_for(lambda: not _values(running, named), f"{part} that is back")
        _wait_until_level(running)
        ended_ms = _now_ms() - OWN_SECONDS * 1000
        figures = running.reader.read_samples(_figures(), end_ms=ended_ms, range_ms=ended_ms - began_ms)
        pages = running.notified("page")

    # The replicas of the deployment that fails are also counted, and found to be none.
    assert {each for each in pages if each[1]} - {("ServescopeNoActiveReplica", DOWN)} == {page}
    assert truth.keys() <= {each.labels for each in figures}
    assert _wrong(figures, truth) == []
    assert [_name(each) for each in figures if _longest_gap_ms(each) > _LATE * _interval_ms(each)] == []


_MANY = 24
"""Of so many targets about a third is scraped by two of three vmagents alone."""


@pytest.mark.proof
def test_two_dead_vmagents_are_one_page(any_captures: Path, alertmanager: Path, tmp_path: Path) -> None:
    """Targets that only they scraped have no samples any more: a page says how many are seen, and what is dead."""
    for name in FLAG_FILES:
        _program(name)
    capture = str(any_captures / f"{_VLLM}.txt")
    with serving_recordings([Recording(capture)] * _MANY, tmp_path) as targets:
        groups = [
            {"targets": [address], "labels": _labels(f"chat-{number}")}
            for number, address in enumerate(targets.addresses)
        ]
        with victoria_cluster(tmp_path / "stack", groups, alertmanager=alertmanager, times=TIMES) as running:
            up = "count(servescope_target_up == 1)"
            wait_for(lambda: _values(running, up) == [_MANY], "targets that are up", seconds=180)
            dead, posts = running.vmagents[:2], len(running.receivers.sent())
            for vmagent in dead:
                past_one_machine.kill(vmagent)
            wait_for(lambda: _firing_since(running, posts), "the page", seconds=180)
            pages = _firing_since(running, posts)
            for vmagent in dead:
                vmagent.start()
                vmagent.wait_until_ready()
            wait_for(lambda: _values(running, up) == [_MANY], "targets that are up again", seconds=180)
            wait_for(lambda: not _values(running, "servescope_target_unseen"), "no target that is unseen", seconds=180)

    assert {page["labels"]["alertname"] for page in pages} == {FLEET_UNSEEN}
    said = pages[-1]["annotations"]
    assert 40 < float(re.findall(r"Only ([\d.]+) % of the targets are seen", said["description"])[0]) < 80
    # What only they scraped of the monitoring itself is named beside them.
    parts = [each for each in said["parts_down"].split("), ") if "no longer scraped" not in each]
    assert [each.rstrip(")") for each in parts] == sorted(
        f"{past_one_machine.address_of(each)} (servescope-agents" for each in dead
    )


def _firing_since(running: VictoriaCluster, posts: int) -> list[Mapping[str, Any]]:
    """The alerts of pages since so many notifications that fire."""
    return [
        alert
        for sent in running.receivers.sent(posts)
        if sent.receiver == "page"
        for alert in sent.alerts
        if alert["status"] == "firing"
    ]


def _now_ms() -> int:
    return round(time.time() * 1000)


def _figures() -> str:
    return f'{{__name__=~"deployment:.+",deployment_id="{STEADY}"}}'


def _values(running: VictoriaCluster, expression: str) -> list[float]:
    return [point.value for point in running.reader.query(expression, at_ms=_now_ms())]


def _wait_until_level(running: VictoriaCluster) -> None:
    """Wait until every target of the steady deployment was scraped all the window long."""
    scraped = f'count(count_over_time(servescope_probe_success{{deployment_id="{STEADY}"}}[{WINDOW_SECONDS}s]) >= 18)'
    steady = f'deployment:requests:rate5m{{deployment_id="{STEADY}"}}[{WINDOW_SECONDS // 2}s]'
    level = f"min_over_time({steady}) / max_over_time({steady}) > 0.97 and count_over_time({steady}) >= 5"
    wait_for(lambda: _values(running, scraped) == [_ENGINES], "targets that are scraped all the time", seconds=180)
    wait_for(lambda: _values(running, level), "a level rate", seconds=180)


def _wrong(figures: Sequence[Range], truth: Mapping[Labels, float]) -> list[str]:
    """What was recorded that is not so; a scrape's time is up to a tenth of its interval off on a busy machine.

    Totals over windows that are longer than the test are left out, as they grow.
    """
    found = []
    for each in figures:
        if each.labels not in truth or re.search(r":increase(?!5m)", _name(each)):
            continue
        true, operation = truth[each.labels], _name(each).rpartition(":")[2]
        off = 1e-3 if any(word in operation for word in _RATIOS) else 0.1
        found += [
            f"{_name(each)} {value:g} in place of {true:g} at {at}"
            for at, value in zip(each.times, each.values, strict=True)
            if abs(value - true) > off * abs(true) + 1e-9
        ]
    return found


def _name(samples: Range) -> str:
    return dict(samples.labels)["__name__"]


def _interval_ms(samples: Range) -> int:
    """How far apart its evaluations are: a second, or four in the group of the objectives."""
    return 60_000 // TIMES if re.search("objective|increase", _name(samples)) else 15_000 // TIMES


def _longest_gap_ms(samples: Range) -> int:
    return max(after - before for before, after in itertools.pairwise(samples.times))
