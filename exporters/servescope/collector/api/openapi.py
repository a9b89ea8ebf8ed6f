"""The OpenAPI 3.1 description of the API: every path, parameter, answer and error, at `/api/v1/openapi.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from servescope import __version__
from servescope.collector.api.events import MOST_BODY_BYTES, MOST_EVENTS_SHOWN
from servescope.collector.api.parameters import (
    DEFAULT_EVENTS_RANGE_MS,
    DEFAULT_POINTS,
    DEFAULT_RANGE_MS,
    DEFAULT_SAMPLES_RANGE_MS,
    MOST_POINTS,
    MOST_SAMPLES_RANGE_MS,
)
from servescope.collector.api.schemas import SCHEMAS, Schema, alternatives, ref
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.metrics import METRICS
from servescope.exposition.negotiation import OPENMETRICS, TEXT
from servescope.store.schema import LATEST_MS
from servescope.web.bounds import Bounds

_BOUNDS = Bounds()


def describe() -> Schema:
    """The OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "servescope collector",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": (
                "What `servescope collect` serves. Times are milliseconds since 1970; what was absent is null or left "
                "out; no number is NaN or infinite. Everything but the two health pages needs a bearer token when one "
                "is configured."
            ),
        },
        "servers": [{"url": "/", "description": "the collector that served this document"}],
        "security": [{"bearer": []}],
        "tags": [
            {"name": "figures", "description": "What is stored of deployments."},
            {"name": "collector", "description": "The collector itself, and its targets."},
        ],
        "paths": _paths(),
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of those configured; without any configured, everybody may ask.",
                }
            },
            "schemas": dict(SCHEMAS),
            "responses": {name: response for name, (_, response) in _ERRORS.items()},
            "headers": {
                "RetryAfter": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}},
                "Allow": {"description": "The methods there are.", "schema": {"type": "string"}},
                "WWWAuthenticate": {"description": "That a bearer token is needed.", "schema": {"type": "string"}},
            },
        },
    }


# --- Paths ------------------------------------------------------------------------------------------------------------


def _paths() -> Schema:
    return {
        "/": _page("index", "collector", "The paths there are.", _text("One path a line.")),
        "/metrics": _page("metrics", "collector", "The exposition that Prometheus scrapes.", _exposition()),
        "/-/healthy": _health("healthy", "Whether the collector runs.", {}),
        "/-/ready": _health(
            "ready", "Whether figures were derived yet.", {"503": _text("Not yet: no figures were derived.")}
        ),
        "/-/reload": _reload(),
        "/api/v1/deployments": _query(
            "deployments", "figures", "Every deployment within retention, with its latest figures.", "Deployments"
        ),
        "/api/v1/figures": _query(
            "figures",
            "figures",
            "Figures over time. Of each of `max_points` equal stretches of time the last instant is taken, never an "
            "average.",
            "Figures",
            (
                *_deployment_parameters(),
                *_time_parameters(DEFAULT_RANGE_MS),
                _names(
                    "A figure, which selects all its keys, or one key such as "
                    '`replica_count_by_status{status="active"}`; all figures when it is left out.',
                    {"type": "string", "pattern": rf"^({alternatives(FIGURES)})(\{{[^\r\n]*)?$"},
                ),
                _parameter(
                    "max_points",
                    "Instants at most.",
                    {"type": "integer", "minimum": 1, "maximum": MOST_POINTS, "default": DEFAULT_POINTS},
                ),
            ),
            found=True,
        ),
        "/api/v1/samples": _query(
            "samples",
            "figures",
            "The stored samples of contract metrics, a row per native series, before any sum. At most "
            f"{MOST_SAMPLES_RANGE_MS} ms at once.",
            "Samples",
            (
                *_deployment_parameters(),
                *_time_parameters(DEFAULT_SAMPLES_RANGE_MS),
                _names(
                    "A contract metric; a histogram selects its buckets, sum and count.",
                    {"enum": list(METRICS)},
                    required=True,
                ),
            ),
            found=True,
        ),
        "/api/v1/targets": _query(
            "targets", "collector", "Every target, and what is wrong with the lists of them.", "Targets"
        ),
        "/api/v1/catalog": _query("catalog", "collector", "Every metric and figure of the contract.", "Catalog"),
        "/api/v1/status": _query("status", "collector", "The collector itself: version, store, targets.", "Status"),
        "/api/v1/alerts": _query(
            "alerts",
            "collector",
            "Every alert that is pending, firing, or was resolved lately, and the receivers.",
            "Alerts",
        ),
        "/api/v1/events": {
            **_query(
                "events",
                "figures",
                f"What happened: alerts, targets, configured shares, deploys; the last {MOST_EVENTS_SHOWN} of more.",
                "Events",
                _time_parameters(DEFAULT_EVENTS_RANGE_MS),
            ),
            **_deploy(),
        },
        "/api/v1/openapi.json": _query(
            "openapi", "collector", "This document.", {"type": "object", "required": ["openapi", "info", "paths"]}
        ),
    }


def _query(
    operation: str,
    tag: str,
    summary: str,
    schema: str | Schema,
    parameters: Sequence[Schema] = (),
    *,
    found: bool = False,
) -> Schema:
    """A page of the API; `found` when it may name what is not there."""
    answer = {
        "description": summary.partition(". ")[0].rstrip(".") + ".",
        "content": {"application/json": {"schema": ref(schema) if isinstance(schema, str) else schema}},
    }
    return _operations(operation, tag, summary, {"200": answer, **_errors(bad=True, found=found)}, parameters)


def _page(operation: str, tag: str, summary: str, answer: Schema) -> Schema:
    return _operations(operation, tag, summary, {"200": answer, **_errors(bad=False, found=False)})


def _health(operation: str, summary: str, unwell: Schema) -> Schema:
    responses = {"200": _text("It is so."), **unwell, **_errors(bad=False, found=False, open_to_all=True)}
    responses.update(unwell)
    operations = _operations(operation, "collector", summary, responses)
    for one in operations.values():
        one["security"] = []
    return operations


def _reload() -> Schema:
    return {
        "post": {
            "operationId": "reload",
            "tags": ["collector"],
            "summary": "Read the configuration again; one that is wrong leaves the running one in place.",
            "responses": {
                "200": {
                    "description": "The configuration in the file is applied.",
                    "content": {"application/json": {"schema": ref("Configuration")}},
                },
                **_errors(bad=True, found=False),
                "403": {"$ref": "#/components/responses/Forbidden"},
            },
        }
    }


def _deploy() -> Schema:
    return {
        "post": {
            "operationId": "reportDeploy",
            "tags": ["figures"],
            "summary": "Add a deploy to the event log; always with a bearer token. It is written soon after.",
            "requestBody": {"required": True, "content": {"application/json": {"schema": ref("Deploy")}}},
            "responses": {
                "202": {
                    "description": "The event as it is written.",
                    "content": {"application/json": {"schema": ref("Event")}},
                },
                **_errors(bad=True, found=False),
                "403": {"$ref": "#/components/responses/Forbidden"},
                "413": {"$ref": "#/components/responses/BodyTooLarge"},
            },
        }
    }


def _operations(
    operation: str, tag: str, summary: str, responses: Schema, parameters: Sequence[Schema] = ()
) -> dict[str, Schema]:
    """GET, and HEAD, which is answered alike but for the body."""
    read: Schema = {"operationId": operation, "tags": [tag], "summary": summary, "responses": responses}
    if parameters:
        read["parameters"] = list(parameters)
    bare = {code: _without_content(response) for code, response in responses.items()}
    return {"get": read, "head": {**read, "operationId": f"{operation}Head", "responses": bare}}


def _without_content(response: Schema) -> Schema:
    reference = response.get("$ref")
    described = _ERRORS[reference.rpartition("/")[2]][1] if reference else response
    return {name: value for name, value in described.items() if name != "content"}


# --- Parameters -------------------------------------------------------------------------------------------------------


def _deployment_parameters() -> list[Schema]:
    """The labels that choose deployments, of which the id is required."""
    schemas: dict[str, Schema] = {name: {"type": "string"} for name in DEPLOYMENT_LABELS}
    schemas["deployment_id"] |= {"minLength": 1}
    return [
        _parameter(
            name,
            "The deployment's name." if name == "deployment_id" else "Chooses among deployments of one id.",
            schemas[name],
            required=name == "deployment_id",
        )
        for name in ("deployment_id", *(name for name in DEPLOYMENT_LABELS if name != "deployment_id"))
    ]


def _time_parameters(range_ms: int) -> tuple[Schema, Schema]:
    time = {"type": "integer", "format": "int64", "minimum": 0, "maximum": LATEST_MS}
    return (
        _parameter("start_ms", f"The first instant, {range_ms} ms before `end_ms` when it is left out.", time),
        _parameter("end_ms", "The last instant, now when it is left out; not before `start_ms`.", time),
    )


def _names(description: str, schema: Schema, *, required: bool = False) -> Schema:
    listed: Schema = {"type": "array", "items": schema}
    if required:
        listed["minItems"] = 1
    return {
        **_parameter("name", f"{description} May be repeated.", listed, required=required),
        "style": "form",
        "explode": True,
    }


def _parameter(name: str, description: str, schema: Schema, *, required: bool = False) -> Schema:
    return {"name": name, "in": "query", "required": required, "description": description, "schema": schema}


# --- Answers ----------------------------------------------------------------------------------------------------------


def _text(description: str) -> Schema:
    return {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _exposition() -> Schema:
    content = {form.partition(";")[0]: {"schema": {"type": "string"}} for form in (TEXT, OPENMETRICS)}
    return {"description": "Prometheus text 0.0.4, or OpenMetrics 1.0 where Accept prefers it.", "content": content}


def _error(description: str, **headers: str) -> Schema:
    response: Schema = {"description": description, "content": {"application/json": {"schema": ref("Error")}}}
    if headers:
        response["headers"] = {
            name.replace("_", "-"): {"$ref": f"#/components/headers/{which}"} for name, which in headers.items()
        }
    return response


_RETRY = {"Retry_After": "RetryAfter"}


_ERRORS: Mapping[str, tuple[str, Schema]] = {
    "Bad": ("400", _error("A parameter is wrong, or the answer would be too large; the text says what would do.")),
    "Unauthorized": (
        "401", _error("No bearer token, or one that is not among those configured.", WWW_Authenticate="WWWAuthenticate")
    ),
    "Forbidden": ("403", _error("Asked by a page of a web site, or needs a bearer token while none is configured.")),
    "BodyTooLarge": ("413", _error(f"A body of more than {MOST_BODY_BYTES} bytes.")),
    "Unknown": ("404", _error("There is no such deployment; the text says what there is.")),
    "MethodNotAllowed": ("405", _error("There is no such method here.", Allow="Allow")),
    "LineTooLong": ("414", _error(f"Path and query of more than {_BOUNDS.line_bytes} bytes.")),
    "Misdirected": (
        "421", _error("A Host that is a name, while no bearer token is configured and only this machine is served.")
    ),
    "HeadersTooLarge": (
        "431", _error(f"A header of more than {_BOUNDS.header_bytes} bytes, or more than {_BOUNDS.headers} headers.")
    ),
    "Internal": ("500", _error("A fault of the collector's own, which is in its log.")),
    "Busy": (
        "503", _error("Too many requests at once, an answer that took too long, or a store that fails.", **_RETRY)
    ),
}  # fmt: skip


def _errors(*, bad: bool, found: bool, open_to_all: bool = False) -> Schema:
    left_out = {"Forbidden", "BodyTooLarge"}
    if not bad:
        left_out.add("Bad")
    if not found:
        left_out.add("Unknown")
    if open_to_all:
        left_out |= {"Unauthorized", "Misdirected", "Busy"}
    return {
        status: {"$ref": f"#/components/responses/{name}"}
        for name, (status, _) in _ERRORS.items()
        if name not in left_out
    }
