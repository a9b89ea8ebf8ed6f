"""Stories of alerts in minutes: values that are well, then bad ones, then good ones again; promtool's tests of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any
from urllib.parse import quote_plus

from alerts.also_firing import also_firing
from alerts.options import DEFAULTS
from alerts.parts_down import NO_PART, parts_down
from alerts.rules import annotations_of
from servescope.alerting.rules.records import PERCENT, Alert
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import METRICS
from tests.support.promtool import check_firing

DEPLOYMENT = {"model_name": "m", "deployment_id": "d", "inference_stack": "v2", "environment": "e"}
TARGET = {**DEPLOYMENT, "replica": "r0", "role": "aggregated"}
ROUTER = {**DEPLOYMENT, "replica": "router-0", "role": "router"}

_OF_ENVIRONMENT = f'environment="{DEPLOYMENT["environment"]}"'
_LONGEST_MINUTES = 600

Value = float | str | None
"""A value that stays, for a counter its increase per second; promtool's own notation of values; None for no series."""

STALE = "stale"
"""The word for a series that the last scrape no longer showed, as Prometheus marks it."""

_WORDS = {"_": None, STALE: math.nan}

Values = Mapping[str, "float | str"]
Changed = Mapping[str, "Value | tuple[Value, Value]"]
"""By series; of a pair the first is of the time when all is well."""


@dataclass(frozen=True)
class Proof:
    """How an alert is proven.

    In `well` it is silent, in `bad` it fires with `value`, which may be a function of the minutes since it was bad;
    `also` are other bad values at which it fires, each with its value; `silent` are values at which it does not, by
    why. `bad` and the others hold only what differs from `well`; None is a series that is not there. `elsewhere` are
    bad values at which it fires with other labels than `labels`, the alert's own. `ends` are values that end it, beside
    those of `well`, by why: what differs from `well` after the bad values; `after` is what always does. `lag` and
    `late` are the minutes until the condition begins and ceases to hold, `open_lag` and `open_late` those of left-open
    ranges where they differ. `beside` are the proofs of the alert's other causes.
    """

    well: Values
    bad: Changed
    value: float | Callable[[int], float]
    silent: Mapping[str, Changed]
    also: Mapping[str, tuple[Changed, float | Callable[[int], float]]] = field(default_factory=dict)
    elsewhere: Mapping[str, tuple[Changed, float, Mapping[str, str]]] = field(default_factory=dict)
    ends: Mapping[str, Changed] = field(default_factory=dict)
    after: Changed = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=lambda: DEPLOYMENT)
    lead: int = 20
    lag: int = 0
    late: int = 0
    stays: int = 15
    is_always: bool = False
    open_lag: int | None = None
    open_late: int | None = None
    beside: tuple[Proof, ...] = ()


def figure(name: str, **labels: str) -> str:
    """A recorded figure of the deployment."""
    return series(FIGURES[name].record(), {**DEPLOYMENT, **labels})


def metric(name: str, **labels: str) -> str:
    """A contract metric of the deployment."""
    assert name in METRICS, name
    return series(name, {**DEPLOYMENT, **labels})


def own(name: str, **labels: str) -> str:
    """One of the collector's own series."""
    return series(name, labels)


def series(name: str, labels: Mapping[str, str]) -> str:
    """A series as promtool takes it."""
    pairs = ", ".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{pairs}}}"


def minutes(duration: str) -> int:
    """A duration of whole minutes."""
    return 0 if not duration else int(duration[:-1]) * {"m": 1, "h": 60, "d": 1440}[duration[-1]]


def promtool_tests(alert: Alert, proof: Proof, *, is_left_open: bool = False) -> Iterator[dict[str, Any]]:
    """promtool's unit tests of an alert, by the proof; Prometheus 3 has left-open ranges."""
    if is_left_open:
        lag = proof.lag if proof.open_lag is None else proof.open_lag
        late = proof.late if proof.open_late is None else proof.open_late
        proof = replace(proof, lag=lag, late=late)
    for other in proof.beside:
        yield from promtool_tests(alert, other, is_left_open=is_left_open)
    if proof.is_always:
        yield from _always(alert, proof)
        return
    waits, keeps = minutes(alert.for_), minutes(alert.keep_firing_for)
    began = proof.lead + proof.lag
    ended = proof.lead + waits + proof.lag + proof.stays
    length = ended + proof.late + keeps + 10
    over = ended + proof.late + keeps

    def value_at(at: int, value: float | Callable[[int], float]) -> float:
        return value(min(at, ended - 1) - proof.lead) if callable(value) else value

    def story(
        name: str,
        changed: Changed,
        checks: Mapping[int, float | None],
        labels: Mapping[str, str] = proof.labels,
        after: Changed = MappingProxyType({}),
    ) -> dict[str, Any]:
        after = {**proof.after, **after}
        keys = dict.fromkeys((*proof.well, *changed, *after))
        by_series = {
            key: _story(key, _stages(key, proof.well, changed, after), proof.lead, ended, length) for key in keys
        }
        given = [{"series": key, "values": notation(values)} for key, values in by_series.items()]
        return {
            "name": name,
            "interval": "1m",
            "input_series": given,
            "alert_rule_test": [_check(alert, labels, at, value) for at, value in sorted(checks.items())],
        }

    fires = (began + waits, ended - 1, *((over - 1,) if keeps else ()))
    silence = dict.fromkeys((proof.lead - 1, began + waits - 1, over))
    for name, (changed, value) in {"bad": (proof.bad, proof.value), **proof.also}.items():
        yield story(f"fires: {name}", changed, {**silence, **{at: value_at(at, value) for at in fires}})
    for name, (changed, value, labels) in proof.elsewhere.items():
        yield story(f"fires: {name}", changed, {**silence, **{at: value_at(at, value) for at in fires}}, labels)
    for name, after in proof.ends.items():
        checks = {**silence, **{at: value_at(at, proof.value) for at in fires}}
        yield story(f"ends: {name}", proof.bad, checks, after=after)
    for name, changed in proof.silent.items():
        yield story(f"silent: {name}", changed, dict.fromkeys(range(proof.lead - 1, length)))


def beside_each_other(stories: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same stories of an alert in fewer tests: those of one timeline as one.

    promtool takes hardly longer for ten series than for one. Each story has an environment of its own there, and
    shares with the others what has none. A story of silence is checked minute by minute: between the checks of the
    others, as many alerts fire as did at the last of them. Left as they are: an alert that looks at more than one
    environment, which is one without such a label or on a plan, and stories of a day, which have more samples than
    promtool loads at once.
    """
    stories = [*stories]
    fired = [
        alert["exp_labels"] for story in stories for check in story["alert_rule_test"] for alert in check["exp_alerts"]
    ]
    together: dict[object, list[dict[str, Any]]] = {}
    timelines: dict[object, tuple[str, ...]] = {}
    for number, story in enumerate(stories):
        shared = tuple(tuple(each.items()) for each in story["input_series"] if _OF_ENVIRONMENT not in each["series"])
        times = tuple(check["eval_time"] for check in story["alert_rule_test"])
        is_alone = minutes(times[-1]) > _LONGEST_MINUTES or any(
            "environment" not in labels or "plan" in labels for labels in fired
        )
        first = timelines.setdefault((shared, times[0], _length(story)), times)
        if not any(check["exp_alerts"] for check in story["alert_rule_test"]):
            # Those that fire come before those that are silent.
            times = first
        together.setdefault((is_alone and number, shared, times), []).append(story)
    return [_merged(each) if len(each) > 1 else each[0] for each in together.values()]


def _length(story: Mapping[str, Any]) -> int:
    return max((len(each["values"].split()) for each in story["input_series"]), default=0)


def _merged(stories: Sequence[dict[str, Any]]) -> dict[str, Any]:
    apart = [_in_environment(str(number), story) for number, story in enumerate(stories)]
    series = {each["series"]: each for story in apart for each in story["input_series"]}
    name = stories[0]["alert_rule_test"][0]["alertname"]
    expected = [{minutes(each["eval_time"]): each["exp_alerts"] for each in one["alert_rule_test"]} for one in apart]
    checks, counts = [], []
    for at in sorted(set().union(*expected)):
        if all(at in each for each in expected):
            fire = [alert for each in expected for alert in each[at]]
            checks.append({"eval_time": f"{at}m", "alertname": name, "exp_alerts": fire})
        else:
            last = [each[max(minute for minute in each if minute <= at)] for each in expected]
            counts.append(check_firing(name, at, sum(map(len, last))))
    return {
        **apart[0],
        "name": "; ".join(f"{number}: {story['name']}" for number, story in enumerate(stories)),
        "input_series": [*series.values()],
        "alert_rule_test": checks,
        "promql_expr_test": counts,
    }


def _in_environment(name: str, story: Mapping[str, Any]) -> dict[str, Any]:
    text = json.dumps(story)
    for where in ('environment=\\"{}\\"', '"environment": "{}"', "var-environment={}"):
        text = text.replace(where.format(DEPLOYMENT["environment"]), where.format(name))
    renamed: dict[str, Any] = json.loads(text)
    return renamed


def absent_test(alert: Alert, proof: Proof) -> dict[str, Any]:
    """Nothing is there at all, from the first minute on: silence."""
    at = minutes(alert.for_) + 1
    return {
        "name": "silent: nothing is there",
        "interval": "1m",
        "input_series": [{"series": "something_else", "values": notation([1.0] * (at + 5))}],
        "alert_rule_test": [_check(alert, proof.labels, at, None)],
    }


def _always(alert: Alert, proof: Proof) -> Iterator[dict[str, Any]]:
    yield {
        "name": "fires: always",
        "interval": "1m",
        "input_series": [],
        "alert_rule_test": [_check(alert, proof.labels, at, 1.0) for at in (0, 10)],
    }


def _check(alert: Alert, labels: Mapping[str, str], at: int, value: float | None) -> dict[str, Any]:
    expected = []
    if value is not None:
        expected.append(firing(alert, labels, value))
    return {"eval_time": f"{at}m", "alertname": alert.name, "exp_alerts": expected}


def firing(alert: Alert, labels: Mapping[str, str], value: float) -> dict[str, Any]:
    """A firing alert, with no other beside it, as promtool takes it."""
    annotations = {key: rendered(text, labels, value) for key, text in annotations_of(alert).items()}
    annotations |= dict.fromkeys(also_firing(alert, DEFAULTS), "")
    annotations |= dict.fromkeys(parts_down(alert, DEFAULTS), NO_PART)
    return {"exp_labels": {**labels, **alert.labels}, "exp_annotations": annotations}


def _stages(key: str, well: Values, changed: Changed, after: Changed) -> tuple[Value, Value, Value]:
    """A series' values before, while and after it is bad."""
    before: Value = well.get(key)
    bad = changed.get(key, before)
    if isinstance(bad, tuple):
        before, bad = bad
    end = after.get(key, before)
    assert not isinstance(end, tuple), key
    return before, bad, end


def _story(key: str, stages: tuple[Value, Value, Value], lead: int, ended: int, length: int) -> list[float | None]:
    """A series' values by the minute: well until `lead`, bad until `ended`, then what ends it; None for no value."""
    is_counter = key.split("{")[0].endswith(("_total", "_sum", "_count"))
    values: list[float | None] = []
    total = 0.0
    for value, count in zip(stages, (lead, ended - lead, length - ended), strict=True):
        if value is None:
            values += [None] * count
        elif isinstance(value, str):
            # Repeated to the length it is to have.
            words = [_WORDS[word] if word in _WORDS else float(word) for word in value.split()]
            values += (words * (count // len(words) + 1))[:count]
        elif is_counter:
            values += [total + value * 60 * (minute + 1) for minute in range(count)]
            total += value * 60 * count
        else:
            values += [value] * count
    return values


def notation(values: Sequence[float | None]) -> str:
    """Values as promtool takes them."""
    return " ".join("_" if value is None else STALE if math.isnan(value) else repr(value) for value in values)


# --- Templates --------------------------------------------------------------------------------------------------------


def rendered(text: str, labels: Mapping[str, str], value: float) -> str:
    """An annotation as Prometheus renders it."""
    text = re.sub(
        r"{{ if eq \$labels\.(\w+) `([^`]+)` }}(.*?){{ end }}",
        lambda match: match[3] if labels.get(match[1]) == match[2] else "",
        text,
    )
    text = re.sub(
        r"{{ if \$labels\.(\w+) }}(.*?){{ else }}(.*?){{ end }}",
        lambda match: match[2] if labels.get(match[1]) else match[3],
        text,
    )
    text = re.sub(r"{{ \$labels\.(\w+) }}", lambda match: labels.get(match[1], ""), text)
    text = re.sub(r"{{ \$labels\.(\w+) \| urlquery }}", lambda match: quote_plus(labels.get(match[1], "")), text)
    text = re.sub(r"{{ with printf .*?{{ end }}{{ else }}(.*?){{ end }}", r"\1", text)
    for digits in re.findall(r'\$value \| printf "%\.(\d)g"', text):
        short = float(f"{value:.{digits}g}")
        text = text.replace(PERCENT.replace("$value", f'$value | printf "%.{digits}g"'), f"{_general(short * 100)} %")
        text = text.replace(f'{{{{ $value | printf "%.{digits}g" | humanize }}}}', _humanized(short))
    text = text.replace(PERCENT, f"{_general(value * 100)} %")
    text = text.replace("{{ $value | humanize }}", _humanized(value))
    text = text.replace("{{ $value | humanizeDuration }}", _duration(value))
    assert "{{" not in text, text
    return text


def _duration(seconds: float) -> str:
    if seconds <= -60:
        return f"-{_duration(-seconds)}"
    return f"{int(seconds) // 60}m {int(seconds) % 60}s" if seconds >= 60 else f"{_humanized(seconds)}s"


def _general(value: float) -> str:
    return f"{value:.4g}"


def _humanized(value: float) -> str:
    if value == 0 or 1 <= abs(value) < 1000:
        return _general(value)
    if abs(value) < 1:
        return f"{_general(value * 1000)}m"
    return f"{_general(value / 1000)}k"
