"""JSON Schemas of the API's answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

from servescope.alerting.alerts import ALERTS
from servescope.collector.api.events import HASH, MOST_TEXT, TEXT
from servescope.collector.paging.states import State as AlertState
from servescope.contract.events import EVENT_KINDS
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS, ROLES, ROLLOUT_PHASES
from servescope.contract.metrics import METRICS
from servescope.contract.types import Component, Kind, Status, Unit
from servescope.settings.json_schema import closed_object
from servescope.sources.maps import Status as CoverageStatus
from servescope.store.records import Health
from servescope.store.schema import LATEST_MS

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    """The schema of that name, by reference."""
    return {"$ref": f"#/components/schemas/{name}"}


def alternatives(names: Iterable[str]) -> str:
    """A pattern that any of the names matches."""
    return "|".join(re.escape(name) for name in names)


def _label(name: str) -> Schema:
    closed = {"role": ROLES, "rollout_phase": ROLLOUT_PHASES}
    return {"enum": list(closed[name])} if name in closed else {"type": "string"}


def _by_figure(values: Schema) -> Schema:
    return {
        "type": "object",
        "propertyNames": {"pattern": rf"^({alternatives(FIGURES)})(\{{.*\}})?$"},
        "additionalProperties": values,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _nullable(kind: str, **rest: float) -> Schema:
    return {"type": [kind, "null"], **rest}


_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_TIME: Final[Schema] = {"type": "integer", "format": "int64", "minimum": 0}
_NULLABLE_TIME: Final[Schema] = {"type": ["integer", "null"], "format": "int64", "minimum": 0}

_TARGET: Final = closed_object(
    {
        "target_id": {"type": "string", "minLength": 1},
        "url": {"type": "string", "format": "uri"},
        "identity": ref("Identity"),
        "select": {
            "type": "string",
            "description": "The labels of the series that are read, where the page measures several deployments.",
        },
        "source": {"type": "string"},
        "versions": {"type": "string"},
        "state": {
            "enum": list(get_args(Health)),
            "description": "How its last scrape ended: `not_understood` when it answered with metrics that no source "
            "map reads, which `error` explains.",
        },
        "healthy": {"type": "boolean"},
        "last_scrape_ms": _NULLABLE_TIME,
        "last_success_ms": _NULLABLE_TIME,
        "starting_since_ms": {
            **_NULLABLE_TIME,
            "description": "When it was first scraped, of a target that has not answered since.",
        },
        "duration_seconds": _nullable("number", minimum=0),
        "samples": _COUNT,
        "error": _nullable("string"),
        "scrape_interval_ms": _COUNT,
        "next_scrape_ms": _NULLABLE_TIME,
        "coverage": {
            "type": "object",
            "propertyNames": {"enum": list(METRICS)},
            "additionalProperties": closed_object(
                {
                    "status": {"enum": list(get_args(CoverageStatus))},
                    "native": _nullable("string"),
                    "reason": _nullable("string"),
                    "zero": {
                        **_nullable("string"),
                        "description": "Why nothing was counted since its process started, where that is so.",
                    },
                }
            ),
        },
        "warnings": _list({"type": "string"}),
        "missing_metrics": {
            "type": "object",
            "propertyNames": {"enum": list(METRICS)},
            "additionalProperties": {"type": "string"},
        },
    }
)

_TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_ALERT: Final = closed_object(
    {
        "name": {"enum": list(ALERTS)},
        "state": {"enum": list(get_args(AlertState))},
        "labels": _TEXTS,
        "annotations": _TEXTS,
        "value": {"type": "number"},
        "since_ms": _TIME,
        "fired_ms": _NULLABLE_TIME,
        "resolved_ms": _NULLABLE_TIME,
        "is_kept": {"type": "boolean", "description": "It fires though its condition holds no more."},
    }
)
_RECEIVERS: Final = {
    "type": "object",
    "additionalProperties": _nullable("string"),
    "description": "By receiver, why the last notification failed; null when it did not.",
}
_ALERTS: Final = closed_object(
    {
        "evaluated_ms": _NULLABLE_TIME,
        "evaluated": _list({"enum": list(ALERTS)}),
        "alerts": _list(_ALERT),
        "receivers": _RECEIVERS,
    }
)

_STATUS: Final = closed_object(
    {
        "version": {"type": "string"},
        "time_ms": _TIME,
        "uptime_seconds": {"type": "number", "minimum": 0},
        "window": {"type": "string", "pattern": "^[0-9]+(ms|[smhd])$"},
        "scrape_interval_ms": _COUNT,
        "evaluation_interval_ms": _COUNT,
        "retention_ms": _COUNT,
        "increments_retention_ms": _COUNT,
        "evaluated_ms": _NULLABLE_TIME,
        "series": _COUNT,
        "targets": closed_object(dict.fromkeys(get_args(Health), _COUNT)),
        "discovery_problems": _COUNT,
        "clock_problem": _nullable("string"),
        "configuration": ref("Configuration"),
        "store": closed_object(
            {
                "bytes": _COUNT,
                "oldest_ms": _NULLABLE_TIME,
                "newest_ms": _NULLABLE_TIME,
                "problem": _nullable("string"),
            }
        ),
    }
)

_METRIC: Final = closed_object(
    {
        "name": {"enum": list(METRICS)},
        "kind": {"enum": list(get_args(Kind))},
        "unit": {"enum": list(get_args(Unit))},
        "component": {"enum": list(get_args(Component))},
        "help": {"type": "string"},
        "absent": {"type": "string"},
        "labels": _list({"type": "string"}),
        "label_values": {"type": "object", "additionalProperties": _list({"type": "string"})},
    }
)

_STEP: Final = closed_object(
    {
        "start": _nullable("number"),
        "inclusive": {"type": "boolean"},
        "status": {"enum": list(get_args(Status))},
        "label": {"type": "string"},
        "advice": {"type": "string"},
    }
)

_EVIDENCE: Final = {
    **closed_object(
        {"figure": {"enum": list(FIGURES)}, "least": {"type": "number", "minimum": 0}, "counts": {"type": "string"}}
    ),
    "description": "The least that the window has to have before the band judges; `figure` is the rate of what counts.",
}

_FIGURE: Final = closed_object(
    {
        "name": {"enum": list(FIGURES)},
        "title": {"type": "string"},
        "group": {"type": "string"},
        "unit": {"enum": list(get_args(Unit))},
        "help": {"type": "string"},
        "better": {"enum": ["higher", "lower", None]},
        "idle": {"enum": ["zero", "absent"]},
        "over_window": {"type": "boolean", "description": "Whether it is over a window, which may be filling."},
        "labels": _list({"type": "string"}),
        "exposed": _nullable("string"),
        "record": {"type": "string"},
        "promql": {"type": "string"},
        "band": {"anyOf": [_list(_STEP), {"type": "null"}]},
        "evidence": {"anyOf": [_EVIDENCE, {"type": "null"}]},
    }
)

_PART: Final = {"type": "number", "minimum": 0, "maximum": 1}
_FILLING: Final = {
    **closed_object({"filled": {**_PART, "exclusiveMaximum": 1}, "text": {"type": "string", "minLength": 1}}),
    "description": "How much of the window is there; null once it is whole.",
}

_LABELS: Final = {"type": "object", "additionalProperties": {"type": "string", "minLength": 1}}
_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": MOST_TEXT, "pattern": f"^{TEXT}$"}

SCHEMAS: Final[Mapping[str, Schema]] = {
    "Error": closed_object({"error": {"type": "string", "minLength": 1}}),
    "Deployment": closed_object({name: _label(name) for name in DEPLOYMENT_LABELS}),
    "Identity": closed_object({name: _label(name) for name in IDENTITY_LABELS}),
    "Deployments": closed_object(
        {
            "deployments": _list(
                closed_object(
                    {
                        "deployment": ref("Deployment"),
                        "time_ms": _TIME,
                        "figures": _by_figure({"type": "number"}),
                        "filling": {"anyOf": [_FILLING, {"type": "null"}]},
                    }
                )
            )
        }
    ),
    "Figures": closed_object(
        {
            "start_ms": _TIME,
            "end_ms": _TIME,
            "deployments": _list(
                closed_object(
                    {
                        "deployment": ref("Deployment"),
                        "times_ms": _list(_TIME),
                        "filled": _list(_PART),
                        "figures": _by_figure(_list(_nullable("number"))),
                    }
                )
            ),
        }
    ),
    "Samples": closed_object(
        {
            "start_ms": _TIME,
            "end_ms": _TIME,
            "deployments": _list(
                closed_object({"deployment": ref("Deployment"), "series": _list(ref("Series"))}),
            ),
        }
    ),
    "Series": closed_object(
        {
            "name": {"type": "string", "minLength": 1},
            "labels": {"type": "object", "additionalProperties": {"type": "string", "minLength": 1}},
            "times_ms": {**_list(_TIME), "minItems": 1},
            "values": {**_list({"type": "number"}), "minItems": 1},
        }
    ),
    "Targets": closed_object(
        {
            "targets": _list(ref("Target")),
            "problems": _list({"type": "string"}),
            "lists": _list(ref("TargetList")),
            "configuration": ref("Configuration"),
        }
    ),
    "TargetList": closed_object(
        {
            "kind": {"enum": ["targets", "file_sd", "http_sd"]},
            "place": {"type": "string"},
            "deployment_id": {"type": "string", "minLength": 1},
            "targets": _COUNT,
            "dropped": _COUNT,
            "problem": _nullable("string"),
        }
    ),
    "Target": _TARGET,
    "Catalog": closed_object({"metrics": _list(_METRIC), "figures": _list(_FIGURE)}),
    "Status": _STATUS,
    "Alerts": _ALERTS,
    "Event": closed_object(
        {
            "time_ms": _TIME,
            "kind": {"enum": list(EVENT_KINDS)},
            "labels": _LABELS,
            "text": {"type": "string"},
            "detail": _LABELS,
        }
    ),
    "Events": closed_object({"start_ms": _TIME, "end_ms": _TIME, "events": _list(ref("Event"))}),
    "Deploy": {
        "type": "object",
        "properties": {
            "text": _TEXT,
            "by": _TEXT,
            "labels": {
                "type": "object",
                "properties": dict.fromkeys(IDENTITY_LABELS, _TEXT),
                "additionalProperties": False,
            },
            "time_ms": {"type": "integer", "minimum": 0, "maximum": LATEST_MS},
            "configuration": {"type": "string", "pattern": f"^{HASH}$"},
        },
        "required": ["text", "by"],
        "additionalProperties": False,
    },
    "Configuration": closed_object(
        {"loaded_ms": _TIME, "error": _nullable("string"), "needs_restart": _list({"type": "string"})}
    ),
}
