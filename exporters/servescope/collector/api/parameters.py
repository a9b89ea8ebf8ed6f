"""Reading the parameters of requests to the API, with an error for each that is wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aiohttp import web

from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment
from servescope.contract.metrics import METRICS
from servescope.store.schema import LATEST_MS
from servescope.web.answers import RequestError, UnknownError

DEFAULT_RANGE_MS: Final = 3_600_000
DEFAULT_EVENTS_RANGE_MS: Final = 7 * 86_400_000
DEFAULT_SAMPLES_RANGE_MS: Final = 900_000
MOST_SAMPLES_RANGE_MS: Final = 86_400_000
DEFAULT_POINTS: Final = 1_000
MOST_POINTS: Final = 11_000

_SHOWN_CHARACTERS = 200
_LISTED = 100


class QueryRange(NamedTuple):
    """A stretch of time in milliseconds; both ends count."""

    start_ms: int
    end_ms: int


def check_parameters(request: web.Request, known: Sequence[str]) -> None:
    """Raises RequestError for a parameter that is not known, or that is given twice; only `name` may be."""
    for name in request.query:
        if name not in known:
            raise RequestError(f"unknown parameter {quote_start(name)}, supported: {', '.join(known) or 'none'}")
        if name != "name" and len(request.query.getall(name)) > 1:
            raise RequestError(f"parameter {name!r} is given twice")


def read_range(request: web.Request, now_ms: int, *, default_ms: int, most_ms: int | None = None) -> QueryRange:
    """The `start_ms` and `end_ms` of a request; the last `default_ms` until now where they are left out."""
    end_ms = read_whole_number(request, "end_ms", min(now_ms, LATEST_MS), most=LATEST_MS)
    start_ms = read_whole_number(request, "start_ms", max(0, end_ms - default_ms), most=LATEST_MS)
    if start_ms > end_ms:
        raise RequestError(f"start_ms {start_ms} is after end_ms {end_ms}")
    if most_ms is not None and end_ms - start_ms > most_ms:
        raise RequestError(f"start_ms {start_ms} is {end_ms - start_ms} ms before end_ms, at most {most_ms} are read")
    return QueryRange(start_ms, end_ms)


def read_whole_number(request: web.Request, name: str, default: int, *, least: int = 0, most: int) -> int:
    """A number in plain digits; raises RequestError."""
    text = request.query.get(name)
    if text is None:
        return default
    # Twenty digits are more than any bound; more of them are not even read.
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or not least <= int(text) <= most:
        raise RequestError(f"{name} {quote_start(text)} is wrong, expected a whole number from {least} to {most}")
    return int(text)


def read_figure_names(request: web.Request) -> frozenset[str]:
    """The requested figures, or keys of figures; empty for all."""
    return frozenset(_checked_names(request, (name.partition("{")[0] for name in _names(request)), FIGURES, "figure"))


def read_metric_names(request: web.Request) -> list[str]:
    """The requested contract metrics, at least one."""
    names = _checked_names(request, _names(request), METRICS, "metric")
    if not names:
        raise RequestError(f"name is missing, supported: {', '.join(METRICS)}")
    return list(dict.fromkeys(names))


def choose_deployments(deployments: Sequence[Deployment], query: Mapping[str, str]) -> list[Deployment]:
    """The deployments whose labels are those of the query, which must name a `deployment_id`."""
    wanted = {name: query[name] for name in DEPLOYMENT_LABELS if name in query}
    if "deployment_id" not in wanted:
        raise RequestError(f"deployment_id is missing, supported: {_ids(deployments)}")
    chosen = [each for each in deployments if all(getattr(each, name) == value for name, value in wanted.items())]
    if not chosen:
        asked = ", ".join(f"{name}={quote_start(value)}" for name, value in wanted.items())
        raise UnknownError(f"no deployment with {asked}, supported: {_ids(deployments)}")
    return chosen


def _names(request: web.Request) -> list[str]:
    return request.query.getall("name", [])


def _checked_names(request: web.Request, bare: Iterable[str], known: Collection[str], what: str) -> list[str]:
    names = _names(request)
    for name, each in zip(names, bare, strict=True):
        if each not in known:
            raise RequestError(f"unknown {what} {quote_start(name)}, supported: {', '.join(known)}")
    return names


def quote_start(text: str) -> str:
    """The value as errors quote it; the start of one that is long."""
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}…"


def _ids(deployments: Sequence[Deployment]) -> str:
    ids = sorted({repr(each.deployment_id) for each in deployments})
    more = f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else ""
    return ", ".join(ids[:_LISTED]) + more or "none yet"
