"""Agents that divide targets and write to one Prometheus: the files of `deploy/prometheus/`, and what they do."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from servescope.alerting.monitoring.blindness import FLEET_UNSEEN
from servescope.collector.targets.relabel import read_rules, relabel
from servescope.contract.identity import IDENTITY_LABELS, Identity
from servescope.settings.addresses import read_address
from servescope.settings.tables import Table
from servescope.sources.map_files import load_sources
from servescope.translate.config import read_probe_configuration
from servescope.translate.outer import read_outer
from tests.proofs.live.stack import Program
from tests.support.past_one_machine import (
    AGENTS,
    DEPLOYED,
    PastOneMachine,
    address_of,
    agent_of,
    agent_text,
    find_named,
    kill,
    past_one_machine,
)
from tests.support.prometheus import Range
from tests.support.promtool import run
from tests.support.recorded_targets import RecordedTargets, Recording, serving_recordings
from tests.support.waiting import deadline_seconds, wait_for

LISTS = sorted((DEPLOYED / "targets").glob("*.json"))


@pytest.mark.parametrize("program", ["promtool", "promtool_3"])
def test_prometheus_accepts_both_configurations(program: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Each agent's, with its number filled in, and the receiver's; for Prometheus 2.42 less the line that it says."""
    promtool: Path = request.getfixturevalue(program)
    for number in range(AGENTS):
        (tmp_path / f"agent-{number}.yml").write_text(agent_text(number), encoding="utf-8")
    agents = [f"agent-{number}.yml" for number in range(AGENTS)]

    receiver = (DEPLOYED / "receiver.yml").read_text(encoding="utf-8")
    if program == "promtool":
        receiver = re.sub(r"(?m)^  rule_query_offset: .*\n", "", receiver)
    (tmp_path / "receiver.yml").write_text(receiver, encoding="utf-8")

    for options in (["--agent", *agents], ["--syntax-only", "receiver.yml"]):
        done = run(promtool, ["check", "config", *options], tmp_path)
        assert done.returncode == 0, done.stdout


def test_agent_without_its_number_is_refused(promtool: Path, tmp_path: Path) -> None:
    """A file that nobody has filled in would scrape nothing; Prometheus names what is to be replaced."""
    done = run(promtool, ["check", "config", "--agent", DEPLOYED / "agent.yml"], tmp_path)

    assert done.returncode != 0
    assert "AGENTS" in done.stdout


def test_no_list_says_how_a_translator_is_asked() -> None:
    """As one may that scrapers of engines with TLS have, too."""
    listed = {"__address__": "10.0.0.7:8000", "__scheme__": "https", "__metrics_path__": "/engine"}
    jobs = [yaml.safe_load(agent_text(number))["scrape_configs"][0] for number in range(AGENTS)]
    rules = [read_rules([Table(rule, "agent.yml", "") for rule in job["relabel_configs"]]) for job in jobs]
    (found,) = filter(None, (relabel(listed, each) for each in rules))

    assert (found["__scheme__"], found["__address__"]) == ("http", "translate:9905")
    assert (found["__metrics_path__"], found["__param_target"]) == ("/probe", "10.0.0.7:8000")


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_lists_of_targets_name_what_exists(path: Path) -> None:
    """Their labels are those of an identity; the translator knows sources and layers, and may ask the targets."""
    translator = read_probe_configuration(DEPLOYED.parent / "translate.toml")
    for group in json.loads(path.read_text(encoding="utf-8")):
        assert all(translator.rule_for(read_address(target)) for target in group["targets"])
        labels = dict(group["labels"])
        assert labels.pop("__param_source") in load_sources()
        read_outer(labels.pop("__param_behind", ""), {})
        assert set(labels) <= set(IDENTITY_LABELS)
        Identity(**labels)


# --- Running ----------------------------------------------------------------------------------------------------------

VLLM, FRONTEND, WORKER = "vllm-0.32.0-1", "dynamo-frontend-1.6.1-1", "dynamo-mocker-1.6.1-1"
STEADY, DOWN, PHASED = "steady", "down", "dynamo"
TIMES = 15
"""How many times as fast time passes: the window of five minutes is 20 s."""
_SPARE = 8
"""So many recordings for each target that is wanted of an agent: which agent has one depends on its port."""


@dataclass(frozen=True, slots=True)
class Served:
    """The targets while they are served: by deployment, the places of theirs among the recordings, agent by agent."""

    targets: RecordedTargets
    places: Mapping[str, Sequence[int]]

    def groups(self) -> list[dict[str, Any]]:
        """The targets as `file_sd` lists them."""
        return [
            {"targets": [self.targets.addresses[place]], "labels": _labels(deployment, number)}
            for deployment, places in self.places.items()
            for number, place in enumerate(places)
        ]


def _labels(deployment: str, number: int) -> dict[str, str]:
    own = {"model_name": f"model-{deployment}", "deployment_id": deployment, "inference_stack": "v2"}
    if deployment != PHASED:
        return {**own, "environment": "live", "__param_source": "vllm"}
    if number == 0:
        return {**own, "environment": "live", "role": "router", "__param_source": "dynamo-frontend"}
    return {**own, "environment": "live", "__param_source": "dynamo-mocker", "__param_behind": "frontend"}


@contextmanager
def _serving(captures: Path, folder: Path, wanted: Mapping[str, int]) -> Iterator[Served]:
    """Deployments of vLLM with so many engines of each agent, no two as fast, and one of Dynamo with a worker each."""
    engines = sum(wanted.values()) * AGENTS
    recordings = [
        *(Recording(str(captures / f"{VLLM}.txt"), 1 + number / 100) for number in range(_SPARE * engines)),
        Recording(str(captures / f"{FRONTEND}.txt")),
        *(Recording(str(captures / f"{WORKER}.txt")) for _ in range(_SPARE * AGENTS)),
    ]
    frontend = _SPARE * engines
    with serving_recordings(recordings, folder) as targets:
        free: list[list[int]] = [[] for _ in range(AGENTS)]
        workers: list[list[int]] = [[] for _ in range(AGENTS)]
        for place, address in enumerate(targets.addresses):
            (free if place < frontend else workers)[agent_of(address)].append(place)
        places = {name: [own.pop() for own in free for _ in range(count)] for name, count in wanted.items()}
        yield Served(targets, {**places, PHASED: [frontend, *(own[-1] for own in workers)]})


def _now_ms() -> int:
    return round(time.time() * 1000)


def _values(running: PastOneMachine, expression: str) -> list[float]:
    return [point.value for point in running.prometheus.query(expression, at_ms=_now_ms())]


@pytest.mark.slow
def test_every_target_reaches_the_receiver_once(
    any_captures: Path, prometheus: Path, alertmanager: Path, tmp_path: Path
) -> None:
    """Each target's series come through the agent that its address gives, under its labels and the contract's names."""
    with (
        _serving(any_captures, tmp_path, {STEADY: 1}) as served,
        past_one_machine(
            tmp_path / "stack", served.groups(), prometheus=prometheus, alertmanager=alertmanager, times=TIMES
        ) as running,
    ):
        count = sum(map(len, served.places.values()))
        arrived = wait_for(
            lambda: (
                found
                if len(found := running.prometheus.query("servescope_probe_success == 1", at_ms=_now_ms())) == count
                else None
            ),
            "every target's samples",
        )
        requests = running.prometheus.query("requests_total", at_ms=_now_ms())

    labels = [dict(point.labels) for point in arrived]
    assert sorted(each["instance"] for each in labels) == sorted(
        address for group in served.groups() for address in group["targets"]
    )
    assert {each["job"] for each in labels} == {"servescope-targets"}
    counted = [dict(point.labels) for point in requests]
    assert {each["deployment_id"] for each in counted} == {STEADY, PHASED}
    assert {each["role"] for each in counted if each["deployment_id"] == PHASED} == {"router"}
    assert {each["role"] for each in counted if each["deployment_id"] == STEADY} == {"aggregated"}


# --- While a part of it is killed -------------------------------------------------------------------------------------

WINDOW_SECONDS = 300 // TIMES
PARTS = ("agent", "translator", "receiver")
# What is formed over more than the window grows until it is full.
_LONG = re.compile(r"increase|rate(?:1h|2h|6h|30m|1d|3d)$")
_REPLICAS = "deployment:replica_count_by_status:sum"
_RATIOS = ("ratio", "p50", "p95", "p99", "mean", "avg")
_MANY = 2000
"""Samples that an agent keeps back in some seconds."""
_JITTER = 0.25
"""A page is rendered some time after its scrape began, which is much of a window this short."""
_NOISE = 0.002
"""Of a ratio: the part of a scrape that a killed agent had sent already."""
_FRESH_SECONDS = 3
"""An older scrape is one of three missed in a row: the board of the targets shows it by its age."""
_AGES = f'servescope_target_scrape_age_seconds{{deployment_id="{STEADY}"}}'
_UP = f'servescope_target_up{{deployment_id="{STEADY}"}}'


@pytest.mark.proof
@pytest.mark.parametrize("part", PARTS)
def test_killed_part_costs_no_figure_and_no_alert(
    part: str, any_captures: Path, prometheus: Path, prometheus_3: Path, alertmanager: Path, tmp_path: Path
) -> None:
    """An agent, a translator or the receiver is killed, and a deployment and a router of another fail meanwhile."""
    with (
        _serving(any_captures, tmp_path, {STEADY: 3, DOWN: 1}) as served,
        past_one_machine(
            tmp_path / "stack",
            served.groups(),
            prometheus=prometheus,
            receiver=prometheus_3,
            alertmanager=alertmanager,
            times=TIMES,
        ) as running,
    ):
        targets = len(served.places[STEADY])
        _wait_until_level(running, targets)
        began_ms = _now_ms()
        truth = _recorded(running, began_ms)
        killed = {"agent": running.agents[1], "translator": running.translators[1], "receiver": running.receiver}[part]
        failing = [*served.places[DOWN], served.places[PHASED][0]]
        kill(killed)
        if part == "receiver":
            # It is away until the agents have kept back what it would have had.
            wait_for(lambda: min(map(_kept_back, running.agents)) > _MANY, "samples that the agents keep")
            served.targets.cut_off(failing)
            _restart(killed)
        else:
            _wait_until_named(running, part)
            _wait_for_page(running, FLEET_UNSEEN, "")
            served.targets.cut_off(failing)
        _wait_for_page(running, "ServescopeDeploymentDown", DOWN)
        if part != "receiver":
            _restart(killed)
        _wait_for_page(running, "ServescopeRouterDown", PHASED)
        _wait_until_level(running, targets)
        ended_ms = _now_ms()
        figures = _read(running, f'{{__name__=~"deployment:.+",deployment_id="{STEADY}"}}', began_ms, ended_ms)
        ages, healthy = (_read(running, each, began_ms, ended_ms) for each in (_AGES, _UP))
        # From before it was killed on, so that a gap has two ends.
        lately_ms = began_ms - WINDOW_SECONDS * 1000
        scraped = _read(running, f'servescope_probe_success{{deployment_id="{STEADY}"}}', lately_ms, ended_ms)
        pages = running.notified("page")

        messages = _messages_of(running, FLEET_UNSEEN)

    # The replicas of the deployment that fails are also counted, and found to be none.
    assert pages - {("ServescopeNoActiveReplica", DOWN), (FLEET_UNSEEN, "")} == {
        ("ServescopeDeploymentDown", DOWN),
        ("ServescopeRouterDown", PHASED),
    }
    # A third of the fleet is unseen: one page, which says what is dead.
    dead = {
        "agent": f"{address_of(killed)} (servescope-agents)",
        "translator": f"{address_of(killed)} (servescope-translate)",
    }
    assert messages == ([dead[part]] if part in dead else [])
    assert _wrong(figures, truth, find_named(ages, healthy, targets, _FRESH_SECONDS)) == []
    missed = {
        agent_of(dict(each.labels)["instance"]) for each in scraped if _longest_gap_ms(each) > _FRESH_SECONDS * 1000
    }
    assert missed == (set() if part == "receiver" else {1})


def _wait_until_level(running: PastOneMachine, targets: int) -> None:
    """Wait until every target of the steady deployment was scraped all the window long."""
    expression = (
        f'count(count_over_time(servescope_probe_success{{deployment_id="{STEADY}"}}[{WINDOW_SECONDS}s])'
        f" >= {WINDOW_SECONDS - 2})"
    )
    steady = f'deployment:requests:rate5m{{deployment_id="{STEADY}"}}'
    level = f"min_over_time({steady}[{WINDOW_SECONDS // 2}s]) / max_over_time({steady}[{WINDOW_SECONDS // 2}s]) > 0.8"
    wait_for(lambda: _values(running, expression) == [targets], "targets that are scraped all the time")
    wait_for(lambda: _values(running, level), "a level rate")


def _wait_for_page(running: PastOneMachine, alert: str, deployment: str) -> None:
    wait_for(lambda: (alert, deployment) in running.notified("page"), f"{alert} of {deployment}")


def _wait_until_named(running: PastOneMachine, part: str) -> None:
    """Wait until the receiver says what is gone: an alert the program, the age of scrapes its targets."""
    wait_for(lambda: _values(running, f"{_AGES} > {_FRESH_SECONDS}"), "targets whose scrapes are old")
    alert = {"agent": "ServescopeAgentDown", "translator": "ServescopeTranslatorDown"}[part]
    wait_for(lambda: (alert, "") in running.firing(), alert)


def _kept_back(agent: Program) -> float:
    with urlopen(agent.ready_url.replace("/-/ready", "/metrics"), timeout=deadline_seconds()) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith("prometheus_remote_storage_samples_pending")
    )


def _messages_of(running: PastOneMachine, alert: str) -> list[str]:
    """Which parts are down by each message that opened a page of an alert."""
    found = {
        sent.body["groupKey"]: firing[0]["annotations"]["parts_down"]
        for sent in running.receivers.sent()
        if sent.receiver == "page"
        and (firing := [a for a in sent.alerts if a["labels"]["alertname"] == alert and a["status"] == "firing"])
    }
    return [*found.values()]


def _restart(program: Program) -> None:
    program.start()
    program.wait_until_ready()


def _recorded(running: PastOneMachine, at_ms: int) -> dict[Any, float]:
    selector = f'{{__name__=~"deployment:.+",deployment_id="{STEADY}"}}'
    return {point.labels: point.value for point in running.prometheus.query(selector, at_ms=at_ms)}


def _read(running: PastOneMachine, selector: str, start_ms: int, end_ms: int) -> list[Range]:
    return running.prometheus.read_samples(selector, end_ms=end_ms, range_ms=end_ms - start_ms)


def _wrong(figures: Sequence[Range], truth: Mapping[Any, float], marked: Sequence[int]) -> list[str]:
    """What was recorded that is not so, and was not marked."""
    found = []
    for each in figures:
        name = dict(each.labels)["__name__"]
        if _LONG.search(name):
            continue
        true = truth[each.labels]
        is_ratio = any(word in name.rpartition(":")[2] for word in _RATIOS)
        for at, value in zip(each.times, each.values, strict=True):
            is_marked = any(at - WINDOW_SECONDS * 1000 <= moment <= at for moment in marked)
            if is_marked and name == _REPLICAS:
                continue
            lowest = true - (_NOISE + _NOISE * true if is_ratio else true * (1 if is_marked else _JITTER))
            highest = true + (_NOISE + _NOISE * true if is_ratio else true * _JITTER)
            if not lowest <= value <= highest:
                found.append(
                    f"{name} {value:g} in place of {true:g} at {at}, {'marked' if is_marked else 'not marked'}"
                )
    return found


def _longest_gap_ms(samples: Range) -> int:
    return max(after - before for before, after in zip(samples.times, samples.times[1:], strict=False))
