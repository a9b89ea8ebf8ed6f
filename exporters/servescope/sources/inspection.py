"""`servescope inspect`: what an exposition is, and what every metric and figure of the contract gets from it.

Of one exposition only totals are known, so counters, ratios and means are since the start of its process; of two,
between them. Rates need the seconds in between.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from servescope.contract.expressions import Difference, Expression, Level, Quantile, Ratio, is_per_second, leaves
from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, PROCESS_RATIOS
from servescope.contract.readings import evaluate_increases
from servescope.contract.samples import Labels, Sample
from servescope.contract.types import Figure, Metric
from servescope.errors import ServescopeError, UsageError
from servescope.sources.maps import SUPPLIED, Identification, Source, Status, identify, load_sources
from servescope.sources.parse import Exposition, ParseError, parse_exposition
from servescope.sources.translate import Coverage, Translation, translate

TIMEOUT_SECONDS = 10.0
MAX_BODY_BYTES = 64 * 2**20
LEAST_SECONDS, MOST_SECONDS = 0.001, 1e9
_CHUNK_BYTES = 1 << 16
# What Prometheus' client libraries say of every process.
_PROCESS_START = "process_start_time_seconds"
_SCHEMES = ("http", "https")

Span = Literal["start", "between"]
_NO_RATE = {
    "start": "needs two expositions and --seconds",
    "between": "needs --seconds",
}


class InspectionError(ServescopeError):
    """What was to be inspected cannot be read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One metric or figure of the contract: its value, or None and the reason.

    `kind` is figure for what is derived alone, metric for all that the contract exposes; `measure` says what the value
    is: total, increase, now, mean, ratio, rate, p50 …; `parts` are the values by the contract's own labels.
    """

    name: str
    kind: Literal["metric", "figure"]
    component: str
    measure: str
    unit: str
    status: Status
    value: float | None
    native: str | None
    reason: str | None
    verdict: str | None = None
    parts: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What was found: the identification and, of a known source, an entry for every metric and figure."""

    subject: str
    identification: Identification
    source: Source | None
    span: Span
    seconds: float | None
    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()


# --- The command ------------------------------------------------------------------------------------------------------


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `servescope inspect`."""
    parser.add_argument("exposition", metavar="URL|FILE", help="a /metrics endpoint, or a file that one answered")
    parser.add_argument("later", metavar="LATER_FILE", nargs="?", help="what the same endpoint answered later")
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="seconds between the two files; a URL is read twice, N seconds apart"
    )
    parser.add_argument("--source", metavar="NAME", help=f"do not identify it: {', '.join(load_sources())}")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="text (default) or json")


def run(arguments: argparse.Namespace) -> int:
    """Inspect and print; 1 when the exposition is unknown."""
    check_arguments(arguments)
    report = inspect(
        _read_expositions(arguments.exposition, arguments.later, arguments.seconds),
        subject=arguments.exposition,
        seconds=arguments.seconds,
        source_name=arguments.source,
    )
    lines = render_text(report) if arguments.format == "text" else render_json(report)
    sys.stdout.write(lines)
    return 0 if report.source else 1


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse arguments that contradict one another or name nothing; raises UsageError."""
    seconds, later = arguments.seconds, arguments.later
    if arguments.source is not None and arguments.source not in load_sources():
        raise UsageError(f"unknown source {arguments.source!r}, supported: {', '.join(load_sources())}")
    if seconds is not None and not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise UsageError(f"--seconds is {seconds!r}, expected {LEAST_SECONDS:g} to {MOST_SECONDS:g}")
    if _is_url(arguments.exposition):
        if later is not None:
            raise UsageError(f"a URL is read twice with --seconds N, without a later file: {later!r}")
    elif seconds is not None and later is None:
        raise UsageError(f"--seconds with the file {arguments.exposition!r} alone, expected a later file, or a URL")
    if later is not None and _is_url(later):
        raise UsageError(f"the later exposition is {later!r}, expected a file")


# --- Reading ----------------------------------------------------------------------------------------------------------


def _read_expositions(first: str, later: str | None, seconds: float | None) -> tuple[Exposition, ...]:
    if not _is_url(first):
        return tuple(_parse(_read_file(each), each) for each in (first, later) if each is not None)
    earlier = _parse(_fetch(first), first)
    if seconds is None:
        return (earlier,)
    time.sleep(seconds)
    return earlier, _parse(_fetch(first), first)


def _is_url(text: str) -> bool:
    """Whether the text is a URL; raises UsageError for one of another scheme."""
    scheme, separator, _ = text.partition("://")
    if not separator:
        return False
    if scheme.lower() not in _SCHEMES:
        raise UsageError(f"unsupported scheme {scheme!r} in {text!r}, supported: {', '.join(_SCHEMES)}")
    if not _has_host(text):
        raise UsageError(f"no host and port in {text!r}, expected a URL such as 'http://127.0.0.1:8000/metrics'")
    return True


def _has_host(url: str) -> bool:
    try:
        address = urlsplit(url)
        return bool(address.hostname) and (address.port is None or address.port > 0)
    except ValueError:
        return False


def _parse(body: bytes, origin: str) -> Exposition:
    try:
        return parse_exposition(body)
    except ParseError as error:
        raise InspectionError(f"{origin}: {error}") from error


def _read_file(name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            body = file.read(MAX_BODY_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        hint = f"; for a URL write 'http://{name}'" if re.match(r"[\w.-]+:\d+(/|$)", name) else ""
        raise InspectionError(f"cannot read {name!r}: {reason.lower()}{hint}") from error
    return _checked_size(body, name)


def _fetch(url: str) -> bytes:
    """The body at a URL; a URL without a path means `/metrics`."""
    address = urlsplit(url)
    if address.path in ("", "/"):
        url = address._replace(path="/metrics").geturl()
    accepted = {"Accept": "text/plain;version=0.0.4,*/*;q=0.1", "User-Agent": "servescope"}
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        request = urllib.request.Request(url, headers=accepted)  # noqa: S310 (the scheme was checked)
        with _opener().open(request, timeout=TIMEOUT_SECONDS) as response:
            return _checked_size(b"".join(_read_chunks(response, deadline, url)), url)
    except urllib.error.HTTPError as error:
        raise InspectionError(f"{url} answers HTTP status {error.code} {error.reason}".rstrip()) from error
    except TimeoutError as error:
        raise InspectionError(f"{url}: no complete answer within {TIMEOUT_SECONDS:g} s") from error
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise InspectionError(f"{url}: no answer within {TIMEOUT_SECONDS:g} s") from error
        raise InspectionError(f"cannot read {url}: {getattr(reason, 'strerror', None) or reason}") from error


def _opener() -> urllib.request.OpenerDirector:
    # urllib's own opener also reads files and FTP, to which a redirect could lead.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _read_chunks(response: HTTPResponse, deadline: float, url: str) -> Iterator[bytes]:
    size = 0
    # read1 returns what is there, so that a body that drips is ended by the deadline and not only by its silence.
    while chunk := response.read1(_CHUNK_BYTES):
        size += len(chunk)
        if time.monotonic() > deadline:
            raise TimeoutError
        yield chunk
        if size > MAX_BODY_BYTES:
            return


def _checked_size(body: bytes, origin: str) -> bytes:
    if len(body) > MAX_BODY_BYTES:
        raise InspectionError(f"{origin}: larger than {MAX_BODY_BYTES} bytes, too large for an exposition")
    return body


# --- Inspecting -------------------------------------------------------------------------------------------------------


def inspect(
    expositions: Sequence[Exposition], *, subject: str, seconds: float | None = None, source_name: str | None = None
) -> Report:
    """What one exposition, or two of the same endpoint in their order, give to the contract.

    `source_name` is taken instead of what the names say. Raises InspectionError when the two are of different sources.
    """
    last = expositions[-1]
    found = identify(last)
    source = load_sources()[source_name] if source_name else found.source
    span: Span = "start" if len(expositions) == 1 else "between"
    if source_name is None and span == "between":
        _check_same_source(expositions[0], found)
    if source is None:
        return Report(subject, found, None, span, seconds)
    identity = Identity("inspected", "inspected", source.name)
    translations = [translate(each, source, identity) for each in expositions]
    increases, resets = _increases(translations)
    entries = tuple(_entries(increases, translations[-1].coverage, span, seconds))
    notes = tuple(_notes(expositions, found, source, resets))
    return Report(subject, found, source, span, seconds, entries, notes)


def _check_same_source(earlier: Exposition, later: Identification) -> None:
    first = identify(earlier)
    if first.source is not later.source:
        raise InspectionError(
            f"the earlier exposition is {_what(first)}, the later {_what(later)}: not of the same endpoint"
        )


def _what(found: Identification) -> str:
    if found.source:
        return found.source.title
    return f"unknown (it looks like {found.nearest})" if found.nearest else "unknown"


def _increases(translations: Sequence[Translation]) -> tuple[list[Sample], int]:
    """The contract samples to evaluate, gauges as they stand, and how many counters were reset in between."""
    last = translations[-1].samples
    if len(translations) == 1:
        return last, 0
    before = {(sample.name, sample.labels): sample.value for sample in translations[0].samples}
    samples, resets = [], 0
    for sample in last:
        # A series that was not there before began at 0: label values appear on their first use.
        start = 0.0 if _is_gauge(sample.name) else before.get((sample.name, sample.labels), 0.0)
        if sample.value < start:
            start, resets = 0.0, resets + 1
        samples.append(sample._replace(value=sample.value - start))
    return samples, resets


def _is_gauge(name: str) -> bool:
    return name in METRICS and METRICS[name].kind == "gauge"


def _notes(expositions: Sequence[Exposition], found: Identification, source: Source, resets: int) -> Iterator[str]:
    if found.source is not source:
        guess = f"looks like {found.nearest}" if found.nearest else "are unknown"
        yield f"read as {source.name!r} because --source says so; its names {guess}"
    dropped = sum(each.dropped for each in expositions)
    if dropped:
        yield f"{dropped} samples that are NaN or infinite were left out"
    repeated = [series for each in expositions for series in each.repeated]
    if repeated:
        yield f"{len(repeated)} samples are of series that stand there before, the first is taken: {repeated[0]}"
    if resets:
        yield f"{resets} series began anew in between: {_explain_resets(expositions)}; they count from 0"


def _explain_resets(expositions: Sequence[Exposition]) -> str:
    starts = [
        max((sample.value for sample in each.by_name.get(_PROCESS_START, ())), default=0.0) for each in expositions
    ]
    if starts[0] < starts[-1]:
        return "the process was restarted"
    return "the process was restarted, or the later exposition was named first"


def _entries(
    samples: Sequence[Sample], coverage: Mapping[str, Coverage], span: Span, seconds: float | None
) -> Iterator[Entry]:
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    for name, metric in METRICS.items():
        if name not in FIGURES:
            yield _metric_entry(metric, by_name, coverage[name], span)
        elif name in PROCESS_RATIOS:
            yield _figure_entry(FIGURES[name], samples, coverage, span, seconds)
        else:
            entry = _figure_entry(FIGURES[name], samples, coverage, span, seconds)
            yield _as_metric(entry, coverage[name])
    for name, figure in FIGURES.items():
        if name not in METRICS:
            yield _figure_entry(figure, samples, coverage, span, seconds)


def _as_metric(entry: Entry, own: Coverage) -> Entry:
    """The entry of a figure that bears the name of a metric: the metric's own coverage counts."""
    if own.status not in SUPPLIED:
        return replace(entry, status=own.status, value=None, native=own.native, reason=own.reason, parts=())
    reasons = dict.fromkeys((entry.reason, own.reason) if entry.value is None else (own.reason or entry.reason,))
    return replace(entry, status=own.status, native=own.native or entry.native, reason=_joined(*reasons))


def _metric_entry(metric: Metric, by_name: Mapping[str, list[Sample]], own: Coverage, span: Span) -> Entry:
    measure = {"histogram": "mean", "gauge": "now"}.get(metric.kind, "total" if span == "start" else "increase")
    value, parts = _metric_value(metric, by_name)
    reason = own.reason
    if value is None and not parts and own.status in SUPPLIED:
        reason = _joined("no observation", own.reason)
    return Entry(
        metric.name,
        "metric",
        metric.component,
        measure,
        metric.unit,
        own.status,
        value,
        own.native,
        reason,
        parts=parts,
    )


def _metric_value(
    metric: Metric, by_name: Mapping[str, list[Sample]]
) -> tuple[float | None, tuple[tuple[str, float], ...]]:
    if metric.kind == "histogram":
        total, count = (_sum(by_name.get(f"{metric.name}_{part}", ())) for part in ("sum", "count"))
        return (total / count if total is not None and count else None), ()
    samples = by_name.get(metric.name, ())
    groups: dict[str, float] = {}
    for sample in samples if metric.labels else ():
        key = figure_key(metric.name, {label: value for label, value in sample.labels if label in metric.labels})
        groups[key] = groups.get(key, 0.0) + sample.value
    # States of one thing are 1 or 0 each; their sum says nothing.
    is_state = metric.kind == "gauge" and metric.unit == "ratio" and bool(groups)
    parts = tuple((key, value) for key, value in groups.items() if math.isfinite(value))
    return None if is_state else _sum(samples), parts


def _sum(samples: Iterable[Sample]) -> float | None:
    """Their sum, None when there is none or it overflows."""
    values = [sample.value for sample in samples]
    return sum(values) if values and math.isfinite(sum(values)) else None


def _figure_entry(
    figure: Figure, samples: Sequence[Sample], coverage: Mapping[str, Coverage], span: Span, seconds: float | None
) -> Entry:
    own = _cover_figure(figure, coverage)
    reason, value = own.reason, None
    parts: tuple[tuple[str, float], ...] = ()
    if own.status in SUPPLIED and is_per_second(figure.expression) and seconds is None:
        reason = _NO_RATE[span]
    elif own.status in SUPPLIED:
        vector = evaluate_increases(figure.expression, samples, by=figure.by, seconds=seconds)
        value, parts = _figure_value(figure, vector)
        reason = own.reason if vector else _joined(_explain_no_data(figure.expression), own.reason)
    return Entry(
        figure.name,
        "metric" if figure.name in METRICS else "figure",
        _component(figure),
        _measure(figure),
        figure.unit,
        own.status,
        value,
        own.native,
        reason,
        _verdict(figure, value),
        parts,
    )


def _figure_value(figure: Figure, vector: Mapping[Labels, float]) -> tuple[float | None, tuple[tuple[str, float], ...]]:
    if not figure.by:
        return vector.get(()), ()
    parts = tuple((figure_key(figure.name, dict(labels)), value) for labels, value in vector.items())
    return (sum(value for _, value in parts) if parts else None), parts


def _cover_figure(figure: Figure, coverage: Mapping[str, Coverage]) -> Coverage:
    """A figure is supplied when all it is made of is; otherwise the first part that is not says why."""
    read = {metric: coverage[metric] for metric in _metrics_read(figure)}
    for metric, each in read.items():
        if each.status not in SUPPLIED:
            reason = each.reason if metric == figure.name else f"{metric}: {each.reason}"
            return Coverage(each.status, None, reason)
    natives = ", ".join(dict.fromkeys(each.native for each in read.values() if each.native))
    rough = [each.reason for each in read.values() if each.status == "approximate" and each.reason]
    status: Status = "approximate" if rough else "derived"
    return Coverage(status, natives or None, "; ".join(dict.fromkeys(rough)) or None)


def _metrics_read(figure: Figure) -> list[str]:
    names = sorted(leaves(figure.expression))
    return [name if name in METRICS else name.rpartition("_")[0] for name in names]


def _component(figure: Figure) -> str:
    if figure.name in METRICS:
        return METRICS[figure.name].component
    return METRICS[_metrics_read(figure)[0]].component


def _measure(figure: Figure) -> str:
    match figure.expression:
        case Level():
            return "now"
        case Quantile(quantile, _):
            return f"p{quantile * 100:g}"
        case expression if is_per_second(expression):
            return "rate"
        case _:
            return "mean" if figure.unit != "ratio" else "ratio"


def _verdict(figure: Figure, value: float | None) -> str | None:
    if figure.band is None or value is None:
        return None
    verdict = figure.band.judge(value)
    return f"{verdict.status}: {verdict.label}"


def _explain_no_data(expression: Expression) -> str:
    match expression:
        case Ratio(_, denominator):
            return f"no data: nothing to divide by, {' - '.join(_sorted_leaves(denominator))} is 0"
        case Difference(left, _):
            return _explain_no_data(left)
        case Quantile(_, histogram):
            return f"no data: no observation in {histogram}"
        case _:
            return "no data: no series"


def _sorted_leaves(expression: Expression) -> list[str]:
    return sorted(leaves(expression))


def _joined(*reasons: str | None) -> str | None:
    return "; ".join(reason for reason in reasons if reason) or None


# --- Showing ----------------------------------------------------------------------------------------------------------


def render_json(report: Report) -> str:
    """The report as JSON, one object."""
    found = report.identification
    document = {
        "subject": report.subject,
        "source": report.source.name if report.source else None,
        "title": report.source.title if report.source else None,
        "versions": found.versions,
        "nearest": found.nearest,
        "reason": found.reason if report.source is None else None,
        "since": "process start" if report.span == "start" else "earlier exposition",
        "seconds": report.seconds,
        "notes": list(report.notes),
        "metrics": [row for entry in report.entries for row in _rows(entry)],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _rows(entry: Entry) -> Iterator[dict[str, object]]:
    for name, value in ((entry.name, entry.value), *entry.parts):
        yield {
            "name": name,
            "kind": entry.kind,
            "status": entry.status,
            "value": value,
            "unit": entry.unit,
            "measure": entry.measure,
            "native": entry.native,
            "reason": entry.reason,
            "verdict": entry.verdict,
        }


def render_text(report: Report, *, width: int | None = None) -> str:
    """The report for people, in lines of at most `width` columns (the terminal's, if None)."""
    width = width or max(100, shutil.get_terminal_size((120, 24)).columns)
    lines = [*_headline(report, width), ""]
    for component in ("engine", "router", "autoscaler"):
        entries = [entry for entry in report.entries if entry.component == component]
        if entries:
            lines += [*_section(component, entries, width), ""]
    return "\n".join(lines)


def _headline(report: Report, width: int) -> Iterator[str]:
    found = report.identification
    if report.source is None:
        guess = f"; it looks like {found.nearest}" if found.nearest else ""
        versions = f" {found.versions}" if found.versions else ""
        yield from textwrap.wrap(f"{report.subject}: unknown{guess}{versions}", width, break_on_hyphens=False)
        yield from textwrap.wrap(found.reason, width, break_on_hyphens=False)
        return
    versions = f", {found.versions}" if found.versions else ""
    yield f"{report.subject}: {report.source.title}{versions} (source map {report.source.name!r})"
    yield _explain_span(report)
    for note in report.notes:
        yield from textwrap.wrap(f"note: {note}", width)


def _explain_span(report: Report) -> str:
    if report.span == "start":
        return "One exposition: totals, means and ratios are since its process started; there are no rates."
    if report.seconds is None:
        return "Two expositions: increases, means and ratios between them; rates need --seconds."
    return f"Two expositions {report.seconds:g} s apart: increases, means, ratios and rates between them."


def _section(component: str, entries: Sequence[Entry], width: int) -> Iterator[str]:
    rows = {entry.name: list(_text_rows(entry)) for entry in entries}
    columns = [max(len(row[column]) for each in rows.values() for row in each) for column in range(4)]
    yield component.upper()
    for entry in entries:
        for row in rows[entry.name]:
            yield from _aligned(row, columns, width)


def _aligned(row: tuple[str, ...], columns: Sequence[int], width: int) -> Iterator[str]:
    name, value, measure, status, told = row
    head = f"  {name:<{columns[0]}}  {value:>{columns[1]}}  {measure:<{columns[2]}}  {status:<{columns[3]}}  "
    # Where a terminal leaves no room for a column of reasons, the lines grow longer than it.
    room = max(width - len(head), 40)
    first, *rest = textwrap.wrap(told, room, break_on_hyphens=False, break_long_words=False) or [""]
    yield (head + first).rstrip()
    yield from (" " * len(head) + line for line in rest)


def _text_rows(entry: Entry) -> Iterator[tuple[str, ...]]:
    # What a derived figure is made of stands with the metrics above it.
    native = entry.native if entry.kind == "metric" and entry.name not in PROCESS_RATIOS else None
    told = " · ".join(filter(None, (native, entry.verdict, entry.reason)))
    yield entry.name, _format(entry.value, entry.unit), entry.measure, entry.status, told
    for name, value in entry.parts:
        yield f"  {name.removeprefix(entry.name)}", _format(value, entry.unit), "", "", ""


def _format(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "ratio":
        return f"{value:.4f}"
    if unit == "seconds":
        return f"{value * 1000:.4g} ms" if abs(value) < 1 else f"{value:,.2f} s"
    if unit == "bytes":
        return f"{value / 2**20:,.1f} MiB"
    return f"{value:,.0f} {unit}" if value == round(value) else f"{value:,.4g} {unit}"
