"""What is recorded of the fleet as a whole: targets that nothing asks any more, and how full windows are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from alerts.__main__ import FILES, GENERATED
from alerts.fleet import fleet_rules
from alerts.options import DEFAULTS, Options, make_options
from alerts.rules import alert_groups, dashboard_url
from servescope.alerting.alerts import ALERTS
from servescope.alerting.monitoring.blindness import FLEET_UNSEEN
from servescope.alerting.rules.promql import is_kept_unknown
from servescope.alerting.rules.records import WHO, Alert, labels_of
from tests.support.alert_proofs import stories_of
from tests.support.alert_stories import DEPLOYMENT, STALE, TARGET, firing, minutes, rendered, series
from tests.support.promtool import Suite, check_firing, failures, unit_test

pytestmark = pytest.mark.slow

_PROBED = {**TARGET, "job": "servescope-targets", "instance": "10.0.0.7:8000"}
_AGENT = {"job": "servescope-agents", "instance": "agent-1:9090"}
_COLLECTOR = {"job": "servescope", "instance": "collector:9900"}
_SECOND = {**_COLLECTOR, "instance": "collector-2:9900"}

Given = Mapping[str, str]
_HOURS = 80
"""Minutes that a story lasts which goes beyond the hour."""


def _group(options: Options = DEFAULTS) -> dict[str, Any]:
    return {"name": "fleet", "rules": fleet_rules(options)}


def _times(value: str, count: int) -> str:
    return " ".join([value] * count)


def _unseen(at: int, *why: str, labels: Mapping[str, str] = TARGET) -> dict[str, Any]:
    """A check that a target is unseen for these reasons, and no other target is."""
    return {
        "expr": "servescope_target_unseen",
        "eval_time": f"{at}m",
        "exp_samples": [
            {"labels": series("servescope_target_unseen", {**labels, "why": each}), "value": 1} for each in sorted(why)
        ],
    }


def _check(
    promtool: Path, folder: Path, given: Given, checks: Iterable[Mapping[str, Any]], options: Options = DEFAULTS
) -> Mapping[str, str]:
    groups = [_group(options), *alert_groups([options.alerts()[FLEET_UNSEEN]], options)]
    return failures(promtool, folder, {"fleet": Suite([unit_test(given, checks)], groups)})


# --- Agents -----------------------------------------------------------------------------------------------------------


def test_targets_of_a_dead_agent_are_unseen_until_they_are_asked_again(each_promtool: Path, tmp_path: Path) -> None:
    """From the second minute on, as their samples age, beyond what Prometheus looks back, and no longer than that."""
    given = {
        series("up", _PROBED): f"{_times('1', 10)} {_times('_', 20)} {_times('1', 10)}",
        series("up", _AGENT): f"{_times('1', 10)} {_times('0', 20)} {_times('1', 10)}",
    }
    checks = [_unseen(10), _unseen(11, "agent"), _unseen(20, "agent"), _unseen(29, "agent"), _unseen(30), _unseen(39)]

    assert _check(each_promtool, tmp_path, given, checks) == {}


@pytest.mark.parametrize(("down", "is_missed"), [("0", True), ("_", False)])
def test_how_long_they_are_missed(each_promtool: Path, tmp_path: Path, down: str, is_missed: bool) -> None:
    """As long as an agent is down; if none is known to be, as it is listed no more, for the hour."""
    given = {
        series("up", _PROBED): f"{_times('1', 10)} {_times('_', _HOURS)}",
        series("up", _AGENT): f"{_times('1', 10)} {_times(down, _HOURS)}",
    }
    checks = [_unseen(60, "agent"), _unseen(_HOURS, *["agent"] * is_missed)]

    assert _check(each_promtool, tmp_path, given, checks) == {}


def test_targets_that_left_the_lists_are_not_missed(each_promtool: Path, tmp_path: Path) -> None:
    """However many, also while an agent of others is down for hours, and when they were down before they left."""
    others = [{**_PROBED, "replica": f"r{number}"} for number in range(1, 5)]
    given = {
        series("up", _PROBED): _times("1", _HOURS),
        **{series("up", each): f"{_times('1', 10)} {STALE} {_times('_', _HOURS)}" for each in others},
        **{series("servescope_probe_success", each): f"{_times('0', 10)} {STALE}" for each in others},
        series("up", _AGENT): f"{_times('1', 5)} {_times('0', _HOURS)}",
    }
    checks = [_unseen(at) for at in (4, 9, 10, 11, 12, 20, 75)]

    assert _check(each_promtool, tmp_path, given, checks) == {}


def test_an_agent_that_dies_while_nothing_is_evaluated_is_noticed(each_promtool: Path, tmp_path: Path) -> None:
    """Its samples aged all the same: that is read from them, not from what was recorded."""
    given = {
        series("up", _PROBED): f"{_times('1', 10)} {_times('_', 20)}",
        series("up", _AGENT): f"{_times('1', 10)} {_times('_', 10)} {_times('0', 10)}",
    }
    suite = Suite([unit_test(given, [_unseen(25, "agent")])], [{**_group(), "interval": "25m"}])

    assert failures(each_promtool, tmp_path, {"fleet": suite}) == {}


def test_a_target_that_another_agent_asks_is_seen(each_promtool: Path, tmp_path: Path) -> None:
    """No label names the agent; where one does, the fresher of both series counts."""
    given = {
        series("up", {**_PROBED, "pod": "agent-0"}): f"{_times('1', 10)} {_times('_', 20)}",
        series("up", {**_PROBED, "pod": "agent-1"}): f"{_times('_', 12)} {_times('1', 18)}",
        series("up", _AGENT): f"{_times('1', 10)} {_times('0', 20)}",
    }
    checks = [_unseen(11, "agent"), _unseen(12), _unseen(20), _unseen(29)]

    assert _check(each_promtool, tmp_path, given, checks) == {}


# --- Translators ------------------------------------------------------------------------------------------------------


def test_targets_that_no_translator_answers_for_are_unseen(each_promtool: Path, tmp_path: Path) -> None:
    """At once. One that a translator finds down is known to be down, and so is one that is scraped without any."""
    down = {**_PROBED, "replica": "down"}
    direct = {**_PROBED, "replica": "direct", "job": "ours"}
    given = {
        series("up", _PROBED): "1 0 0 1",
        series("up", down): "1 1 1 1",
        series("servescope_probe_success", down): "1 0 0 1",
        series("up", direct): "1 0 0 1",
    }
    checks = [_unseen(0), _unseen(1, "translator"), _unseen(2, "translator"), _unseen(3)]

    assert _check(each_promtool, tmp_path, given, checks) == {}


# --- Collectors -------------------------------------------------------------------------------------------------------


def _collected(page: Mapping[str, str], values: str, **labels: str) -> dict[str, str]:
    """What a collector says of a target."""
    target = {**TARGET, **labels, **page}
    return {
        series("servescope_target_scrape_age_seconds", target): values.replace("1", "15"),
        series("servescope_target_up", target): values,
    }


def _page(page: Mapping[str, str], values: str) -> dict[str, str]:
    """That a collector's page was read."""
    return {series("servescope_build_info", {**page, "version": "1"}): values}


def test_targets_of_a_dead_collector_are_unseen(each_promtool: Path, tmp_path: Path) -> None:
    """Those of its last page, at once, and as long as it is down; not one that had left its lists before."""
    ends = f"{_times('1', 10)} {STALE} {_times('_', _HOURS)}"
    given = {
        **_collected(_COLLECTOR, ends),
        **_collected(_COLLECTOR, f"{_times('1', 8)} {STALE}", replica="left"),
        **_page(_COLLECTOR, ends),
        series("up", _COLLECTOR): f"{_times('1', 10)} {_times('0', _HOURS)}",
    }
    checks = [_unseen(9), _unseen(10, "collector"), _unseen(20, "collector"), _unseen(_HOURS, "collector")]

    assert _check(each_promtool, tmp_path, given, checks) == {}


def test_targets_of_a_collector_that_is_gone_are_unseen_for_the_hour(each_promtool: Path, tmp_path: Path) -> None:
    """One that Prometheus does not even list, as a pod that cannot be scheduled has no address."""
    ends = f"{_times('1', 10)} {STALE} {_times('_', _HOURS)}"
    given = {
        **_collected(_COLLECTOR, ends),
        **_page(_COLLECTOR, ends),
        series("up", _COLLECTOR): ends,
        **_page(_SECOND, _times("1", _HOURS)),
    }
    checks = [_unseen(10, "collector"), _unseen(60, "collector"), _unseen(_HOURS)]

    assert _check(each_promtool, tmp_path, given, checks) == {}


def test_a_target_that_another_collector_has_is_seen(each_promtool: Path, tmp_path: Path) -> None:
    """Of a pair, and when a collector comes back under another address; one that left in between is not missed."""
    ends, begins = f"{_times('1', 10)} {STALE} {_times('_', 30)}", f"{_times('_', 12)} {_times('1', 20)}"
    given = {
        **_collected(_COLLECTOR, ends, replica="moved"),
        **_collected(_SECOND, begins, replica="moved"),
        **_collected(_COLLECTOR, ends),
        **_collected({**_COLLECTOR, "instance": "pair:9900"}, _times("1", 30)),
        **_page(_COLLECTOR, ends),
        **_page(_SECOND, begins),
        **_page({**_COLLECTOR, "instance": "pair:9900"}, _times("1", 30)),
    }
    moved = {**TARGET, "replica": "moved"}
    checks = [_unseen(9), _unseen(11, "collector", labels=moved), _unseen(12), _unseen(25)]

    assert _check(each_promtool, tmp_path, given, checks) == {}


# --- Windows ----------------------------------------------------------------------------------------------------------


def _covered(at: str, value: float) -> dict[str, Any]:
    name = series("servescope_window_coverage_ratio", DEPLOYMENT)
    return {
        "expr": f"round({name}, 0.05)",
        "eval_time": at,
        "exp_samples": [{"labels": series("", DEPLOYMENT), "value": value}],
    }


def _scraped(values: Sequence[str], checks: Iterable[tuple[str, float]]) -> dict[str, Any]:
    """Two targets of a deployment, scraped every 15 s; a down one is scraped as well."""
    given = {}
    for number, text in enumerate(values):
        target = {**_PROBED, "replica": f"r{number}"}
        given[series("up", target)] = text
        given[series("servescope_probe_success", target)] = text.replace("1", "0") if number else text
    return unit_test(given, [_covered(*check) for check in checks], interval="15s")


@pytest.mark.parametrize(
    ("second", "checks"),
    [
        # Its agent dies after ten minutes.
        (f"{_times('1', 40)}", [("9m45s", 1.0), ("12m15s", 0.75), ("14m45s", 0.5), ("30m", 0.5)]),
        # It leaves the lists.
        (f"{_times('1', 40)} {STALE}", [("9m45s", 1.0), ("12m15s", 1.0), ("30m", 1.0)]),
        # It is added after ten minutes, and takes five until its rates are whole.
        (f"{_times('_', 40)} {_times('1', 80)}", [("9m45s", 1.0), ("12m15s", 0.75), ("15m", 1.0)]),
    ],
)
def test_how_much_of_a_window_is_there(
    each_promtool: Path, tmp_path: Path, second: str, checks: Sequence[tuple[str, float]]
) -> None:
    """The share of the usual scrapes, of those targets that are listed or missed, to a scrape."""
    suite = Suite([_scraped((_times("1", 130), second), checks)], [_group()], interval="15s")

    assert failures(each_promtool, tmp_path, {"window": suite}) == {}


def test_a_receiver_that_was_away_marks_what_it_lacks(each_promtool: Path, tmp_path: Path) -> None:
    """Nothing of ten minutes: half of a window's scrapes are half of its totals, until the window is full again."""
    gap = f"{_times('1', 40)} {_times('_', 40)} {_times('1', 40)}"
    checks = [("9m45s", 1.0), ("20m", 0.05), ("22m15s", 0.5), ("25m", 1.0)]
    suite = Suite([_scraped((gap, gap), checks)], [_group()], interval="15s")

    assert failures(each_promtool, tmp_path, {"window": suite}) == {}


# --- All rules together -----------------------------------------------------------------------------------------------


def _fleet(count: int, behind: int, values: str) -> dict[str, str]:
    """Deployments of one engine, the first of which are asked through one translator, which answers as the values."""
    given = {}
    for number in range(count):
        target = {**_PROBED, "deployment_id": f"d{number}", "instance": f"10.0.0.{number}:8000"}
        text = values if number < behind else _times("1", 40)
        given[series("up", target)] = text
        given[series("servescope_probe_success", target)] = text.replace("0", STALE)
    return given


@pytest.mark.parametrize(
    ("behind", "firing"),
    [
        (5, {"ServescopeFleetUnseen", "ServescopeTranslatorDown"}),
        # Four of five are seen: each of the others has its page, as before.
        (2, {"ServescopeDeploymentDown", "ServescopeNoActiveReplica", "ServescopeTargetDown",
             "ServescopeTranslatorDown"}),
    ],
)  # fmt: skip
def test_a_dead_translator_is_one_page(each_promtool: Path, tmp_path: Path, behind: int, firing: set[str]) -> None:
    """What only it answered for is not called down while too few targets are seen."""
    translator = {"job": "servescope-translate", "instance": "translate-1:9905"}
    given = {
        **_fleet(10, behind, f"{_times('1', 20)} {_times('0', 20)}"),
        series("up", translator): f"{_times('1', 20)} {_times('0', 20)}",
    }
    names = 'count by (alertname) (ALERTS{alertstate="firing",severity=~"critical|warning"})'
    deployments = dict.fromkeys(
        ("ServescopeDeploymentDown", "ServescopeNoActiveReplica", "ServescopeTargetDown"), behind
    )
    check = {
        "expr": names,
        "eval_time": "32m",
        "exp_samples": [
            {"labels": f'{{alertname="{name}"}}', "value": deployments.get(name, 1)} for name in sorted(firing)
        ],
    }
    suite = Suite([unit_test(given, [check])], files=[GENERATED / name for name in FILES], interval="2m")

    assert failures(each_promtool, tmp_path, {"translator": suite}) == {}


def test_page_names_the_parts_that_are_dead(each_promtool: Path, tmp_path: Path) -> None:
    """Those that do not answer, and those that nothing scrapes any more, of the cluster whose targets are not seen."""
    options = make_options({"extra_labels": ["cluster"]}, origin="options.toml")
    here, elsewhere = {**_AGENT, "cluster": "eu"}, {**_AGENT, "cluster": "us"}
    given = {
        series("servescope_target_unseen", {**TARGET, "why": "agent", "cluster": "eu"}): _times("1", 20),
        series("up", here): _times("0", 20),
        series("up", {**here, "instance": "agent-2:9090"}): f"{_times('1', 5)} {STALE}",
        series("up", {**here, "instance": "agent-3:9090"}): _times("1", 20),
        series("up", {**elsewhere, "instance": "agent-4:9090"}): _times("0", 20),
        series("up", {**here, "instance": "10.0.0.7:8000", "job": "ours"}): _times("0", 20),
    }
    alert = options.alerts()[FLEET_UNSEEN]
    expected = firing(alert, {"cluster": "eu"}, 0.0)
    expected["exp_annotations"] |= {
        "parts_down": "agent-1:9090 (servescope-agents), agent-2:9090 (servescope-agents, no longer scraped)",
        "dashboard_url": dashboard_url(alert, options).replace("{{ $labels.cluster | urlquery }}", "eu"),
    }
    checks = [{"eval_time": "10m", "alertname": FLEET_UNSEEN, "exp_alerts": [expected]}]
    suite = Suite([unit_test(given, alert_rule_test=checks)], alert_groups([alert], options))

    assert failures(each_promtool, tmp_path, {"parts": suite}) == {}


# Of series that are not exposed: what ends with all series holds on.
_OF_ABSENCE = frozenset({"ServescopeRequestsNotExposed"})
KEPT = [name for name, alert in ALERTS.items() if is_kept_unknown(alert) and name not in _OF_ABSENCE]
_FIRST = {frozenset(labels_of(ALERTS[name].condition)): name for name in reversed(KEPT)}.values()
"""One alert of each set of labels: which of its targets are unseen is matched by them."""
# What a headline says of a value that is known.
_VALUE = re.compile(r"\[[^\[\]]*\]")
_NOT_KNOWN = f"Whether this is over for {WHO} is not known: its targets are not seen."


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _FIRST else pytest.mark.proof) for name in KEPT]
)
def test_nothing_is_over_while_its_targets_are_not_seen(promtool: Path, tmp_path: Path, name: str) -> None:
    """All its series end, and its targets are unseen, though others of the deployment are up: it goes on firing."""
    alert = ALERTS[name]
    story = next(each for each in stories_of(name) if any(_expected(each)))
    last = max(_expected(story))
    (expected,) = [check["exp_alerts"][0] for check in story["alert_rule_test"] if check["eval_time"] == f"{last}m"]
    fires = last - minutes(alert.keep_firing_for)
    target = {label: expected["exp_labels"].get(label, text) for label, text in TARGET.items()}
    lost, up = series("servescope_target_unseen", {**target, "why": "agent"}), series("servescope_target_up", target)
    given = {each["series"]: each["values"].split()[: fires + 1] for each in story["input_series"]}
    given[up] = [*given.get(up, ["_"] * (fires + 1)), *["_"] * 60, *["1"] * 60]
    given[lost] = ["_"] * (fires + 1) + ["1"] * 60 + [STALE]
    for each in _others(target, alert):
        given[series("servescope_target_up", each)] = ["1"] * (fires + 120)
    known = target if "replica" in labels_of(alert.condition) else {**target, "replica": "r8"}
    other, before, after = series("servescope_target_up", known), ["_"] * (fires + 1), ["1"] * 120
    seen = {**given, lost: [*before, *after], other: [*given.get(other, before)[: fires + 1], *after]}
    checks = [(fires, True), (fires + 30, True), (fires + 60, True), (fires + 120, False)]
    headline = expected["exp_annotations"]["headline"]
    if _VALUE.search(alert.headline):
        headline = rendered(_VALUE.sub("", alert.headline), expected["exp_labels"], 0.0)
    unknown = {"description": rendered(_NOT_KNOWN, expected["exp_labels"], 0.0), "headline": headline}
    same = {**expected, "exp_annotations": {**expected["exp_annotations"], **unknown}}
    shown = {"eval_time": f"{fires + 30}m", "alertname": name, "exp_alerts": [same]}
    suite = Suite(
        [
            _joined("stays", given, [check_firing(name, *check) for check in checks], alert_rule_test=[shown]),
            _joined(
                "another one is up", seen, [check_firing(name, fires, True), check_firing(name, fires + 119, False)]
            ),
            _joined("never fired", {lost: given[lost]}, [check_firing(name, at, False) for at, _ in checks]),
        ],
        alert_groups([alert]),
    )

    assert failures(promtool, tmp_path, {name: suite}) == {}


def _expected(story: Mapping[str, Any]) -> list[int]:
    """The minutes at which a story's alert fires."""
    return [int(check["eval_time"][:-1]) for check in story["alert_rule_test"] if check["exp_alerts"]]


def _others(target: Mapping[str, str], alert: Alert) -> list[dict[str, str]]:
    """Targets of the same deployment that are up, of which the alert does not speak."""
    router = {**target, "role": "router", "replica": "router-9"}
    replica = {**target, "replica": "r9"}
    return [router, replica] if "replica" in labels_of(alert.condition) else [router]


def _joined(name: str, given: Mapping[str, Sequence[str]], checks: Iterable[dict[str, Any]], **more: Any) -> Any:
    return unit_test({each: " ".join(values) for each, values in given.items()}, checks, name=name, **more)


def test_labels_jobs_and_bounds_are_those_of_the_options(each_promtool: Path, tmp_path: Path) -> None:
    """The collectors' job, more labels that tell clusters apart, and below which share a fleet is blind."""
    options = make_options(
        {
            "extra_labels": ["cluster"], "selector": 'cluster!="x", ',
            "alerts": {"collector_job": "ours", "bounds": {"seen_share": 0.4}},
        },
        origin="options.toml",
    )  # fmt: skip
    page = {"job": "ours", "instance": "collector:9900", "cluster": "eu"}
    ends = f"{_times('1', 5)} {STALE} {_times('_', 20)}"
    given = {**_collected(page, ends), **_page(page, ends)}
    for replica in ("r1", "r2"):
        given |= _collected({**page, "cluster": "us"}, _times("1", 20), replica=replica)
    given |= _page({**page, "cluster": "us"}, _times("1", 20))
    checks = [
        _unseen(10, "collector", labels={**TARGET, "cluster": "eu"}),
        {
            "expr": "sum by (alertname, cluster, alertstate) (ALERTS)",
            "eval_time": "10m",
            "exp_samples": [
                {"labels": '{alertname="ServescopeFleetUnseen", cluster="eu", alertstate="firing"}', "value": 1}
            ],
        },
    ]

    assert _check(each_promtool, tmp_path, given, checks, options) == {}
