"""Annotations: an alert's templates rendered with its labels and value, as Prometheus renders them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote_plus

from servescope.alerting.headlines import with_value
from servescope.alerting.rules.links import RUNBOOKS, dashboard_path, runbook_url
from servescope.alerting.rules.records import ALSO_FIRING, LISTED, NOTHING_LISTED, Alert
from servescope.collector.paging.states import AlertInstance
from servescope.errors import UsageError

_PLACE: Final = re.compile(
    r"\{\{ (?:\$labels\.(?P<label>\w+)(?P<query> \| urlquery)?|"
    r'\$value(?: \| printf "%\.(?P<digits>\d)g")? \| (?P<form>humanize\w*)(?P<spaced> \| reReplaceAll "%" " %")?) \}\}'
)
_CASE: Final = re.compile(r"\{\{ if eq \$labels\.(\w+) `([^`]*)` \}\}(.*?)\{\{ end \}\}")
_PROMISED: Final = re.compile(r"\{\{ if and (.*?)\{\{ else \}\}(.*?)\{\{ end \}\}")
_EQUAL: Final = re.compile(r'\(eq \$labels\.(\w+) "([^"]*)"\)')
_CHOICE: Final = re.compile(r"\{\{ if \$labels\.(\w+) \}\}(.*?)\{\{ else \}\}(.*?)\{\{ end \}\}")


@dataclass(frozen=True, slots=True)
class Links:
    """The links in notifications: the URL of a runbook, with {alert} for the alert's name, and the base URL of Grafana.

    One without {alert} is the folder of the generated pages.
    """

    runbooks: str = RUNBOOKS
    grafana: str = "http://localhost:3000"


def annotate(
    alert: Alert, labels: Mapping[str, str], value: float, links: Links, listed: Sequence[str] = ()
) -> dict[str, str]:
    """The annotations of an alert with these labels, this value and what it lists."""
    texts = {
        "summary": alert.summary,
        "description": alert.description,
        "headline": with_value(alert.headline),
    }
    return {
        **{key: render(text, labels, value, listed) for key, text in texts.items()},
        "runbook_url": runbook_url(links.runbooks, alert.name),
        "dashboard_url": f"{links.grafana}/d/{render(dashboard_path(alert), labels, value)}",
    }


def list_others(alert: Alert, labels: Mapping[str, str], active: Iterable[AlertInstance]) -> dict[str, str]:
    """The annotation of a page on a deployment that lists what else is `active` there; none for other alerts."""
    if alert.severity != "critical" or not labels.get("model_name"):
        return {}
    found = {
        each.alert if each.state == "firing" else f"{each.alert} ({each.state})"
        for each in active
        if each.alert != alert.name and each.state != "resolved" and _is_beside(dict(each.labels), labels)
    }
    return {ALSO_FIRING: ", ".join(sorted(found))}


def _is_beside(other: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether an alert is on the same model, and on the same deployment or on none."""
    deployment = labels.get("deployment_id", "")
    return all(other.get(label, "") == labels.get(label, "") for label in ("model_name", "environment")) and (
        not deployment or other.get("deployment_id", "") in ("", deployment)
    )


def render(template: str, labels: Mapping[str, str], value: float, listed: Sequence[str] = ()) -> str:
    """Render what is `LISTED`, `{{ $labels.x }}` and `{{ $value | humanize… }}`; an absent label is "".

    A space is put before a per cent sign by `| reReplaceAll "%" " %"`; `$value | printf "%.2g"` has two digits.

    `{{ $labels.x | urlquery }}` escapes the label for a URL. `{{ if $labels.x }}…{{ else }}…{{ end }}` is its first
    part where the label is there, and else its second; ``{{ if eq $labels.x `y` }}…{{ end }}`` is its part where the
    label is that. `{{ if and (eq $labels.x "y") … }}…{{ else if and … }}…{{ else }}…{{ end }}` is the part of the first
    case whose labels are all equal.

    Raises UsageError for any other `{{ … }}`.
    """

    def fill(found: re.Match[str]) -> str:
        if found["label"]:
            text = labels.get(found["label"], "")
            return quote_plus(text) if found["query"] else text
        text = _FORMS[found["form"]](float(f"{value:.{found['digits']}g}") if found["digits"] else value)
        return text.replace("%", " %") if found["spaced"] else text

    template = template.replace(LISTED, ", ".join(listed) or NOTHING_LISTED)
    template = _PROMISED.sub(lambda found: _promised(found[1], found[2], labels), template)
    template = _CASE.sub(lambda found: found[3] if labels.get(found[1]) == found[2] else "", template)
    template = _CHOICE.sub(lambda found: found[2] if labels.get(found[1]) else found[3], template)
    for place in re.findall(r"\{\{.*?(?:\}\}|$)", template):
        found = _PLACE.fullmatch(place)
        if found is None or found["form"] not in (None, *_FORMS):
            raise UsageError(
                f"unknown template {place!r}, supported: $labels.…, $labels.… | urlquery, if $labels.… else, "
                f'$value | {", ".join(_FORMS)}, $value | humanizePercentage | reReplaceAll "%" " %"'
            )
    return _PLACE.sub(fill, template)


def _promised(cases: str, otherwise: str, labels: Mapping[str, str]) -> str:
    for case in cases.split("{{ else if and "):
        where, text = case.split(" }}", 1)
        if all(labels.get(label, "") == value for label, value in _EQUAL.findall(where)):
            return text
    return otherwise


def _humanize(value: float) -> str:
    """With a metric prefix."""
    if value == 0 or not math.isfinite(value):
        return _significant(value)
    return _prefixed(value, large=True)


def _humanize_percentage(value: float) -> str:
    return f"{_significant(value * 100)}%"


def _humanize_duration(value: float) -> str:
    """In days, hours, minutes and seconds; below a second with a metric prefix."""
    if value == 0 or not math.isfinite(value):
        return f"{_significant(value)}s" if value == 0 else _significant(value)
    if abs(value) < 1:
        return f"{_prefixed(value, large=False)}s"
    sign, value = ("-", -value) if value < 0 else ("", value)
    whole = int(value)
    seconds, minutes, hours, days = whole % 60, whole // 60 % 60, whole // 3600 % 24, whole // 86_400
    if days:
        return f"{sign}{days}d {hours}h {minutes}m {seconds}s"
    if hours:
        return f"{sign}{hours}h {minutes}m {seconds}s"
    if minutes:
        return f"{sign}{minutes}m {seconds}s"
    return f"{sign}{_significant(value)}s"


def _prefixed(value: float, *, large: bool) -> str:
    prefix = ""
    if abs(value) >= 1:
        for each in "kMGTPEZY" if large else "":
            if abs(value) < 1000:
                break
            prefix, value = each, value / 1000
    else:
        for each in "munpfazy":
            if abs(value) >= 1:
                break
            prefix, value = each, value * 1000
    return f"{_significant(value)}{prefix}"


def _significant(value: float) -> str:
    """Four significant digits, as Go's %.4g."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return f"{value:.4g}"


_FORMS: Final[Mapping[str, Callable[[float], str]]] = {
    "humanize": _humanize,
    "humanizePercentage": _humanize_percentage,
    "humanizeDuration": _humanize_duration,
}
