"""Stories of alerts on a collector's series, with the series of a Prometheus that scrapes the targets itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.own_metrics import SCRAPE_AGE_SERIES
from tests.support.alert_stories import STALE, series

UP, SUCCESS = "up", "servescope_probe_success"
_HEALTH, _COLLECTOR = "servescope_target_up", "servescope_build_info"
_OTHERS: Final = {"job": "servescope-targets", "role": "autoscaler", "deployment_id": "another"}
"""A target of no deployment of a story, which is scraped where a collector would be: something is listed."""

Identity = tuple[tuple[str, str], ...]


def concerns_targets(story: Mapping[str, Any]) -> bool:
    """Whether a story has series of targets."""
    return any(_name(each["series"]) in (_HEALTH, SCRAPE_AGE_SERIES) for each in story["input_series"])


def probed(story: Mapping[str, Any]) -> dict[str, Any]:
    """The story with `up` and `servescope_probe_success` in place of what a collector says of its targets."""
    of_collectors = (_HEALTH, SCRAPE_AGE_SERIES, "servescope_targets")
    given = [each for each in story["input_series"] if _name(each["series"]) not in of_collectors]
    of_targets: dict[Identity, dict[str, list[str]]] = {}
    for each in story["input_series"]:
        if _name(each["series"]) in (_HEALTH, SCRAPE_AGE_SERIES):
            found = of_targets.setdefault(_identity(each["series"]), {})
            found[_name(each["series"])] = each["values"].split()
    inputs = [
        {**each, "series": series(UP, _OTHERS)} if _name(each["series"]) == _COLLECTOR else each for each in given
    ]
    inputs += [pair for identity, values in of_targets.items() for pair in _pair(identity, values)]
    return {**story, "input_series": inputs}


def _pair(identity: Identity, values: Mapping[str, list[str]]) -> Iterator[dict[str, str]]:
    """The two series of a target; one that is listed and of which no more is said is scraped."""
    listed = values.get(SCRAPE_AGE_SERIES) or values[_HEALTH]
    health = values.get(_HEALTH) or [word if word in ("_", STALE) else "1" for word in listed]
    labels = {**dict(identity), "job": _OTHERS["job"], "instance": dict(identity)["replica"]}
    up = [word if word in ("_", STALE) else "1" for word in listed]
    yield {"series": series(UP, labels), "values": " ".join(up)}
    yield {"series": series(SUCCESS, labels), "values": " ".join(health)}


def _name(text: str) -> str:
    return text.partition("{")[0]


def _identity(text: str) -> Identity:
    return tuple((name, value) for name, value in re.findall(r'(\w+)="(.*?)"', text) if name in IDENTITY_LABELS)
