"""What an exposition is, and what every metric and figure of the contract gets from it.

A single exposition holds totals only, so counters, ratios and means are since the start of its process; with two they
are between them. Rates need the seconds in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, Protocol

import numpy as np

from servescope.contract.expressions import (
    Difference,
    Expression,
    Level,
    Quantile,
    Ratio,
    Vector,
    is_per_second,
    leaves,
)
from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, PROCESS_RATIOS, SEGMENT
from servescope.contract.samples import Labels, Sample, Series
from servescope.contract.types import Figure, Metric
from servescope.errors import ServescopeError
from servescope.increments.extrapolation import step_gains
from servescope.increments.readings import evaluate_increases
from servescope.sources.families import Families, sort_families
from servescope.sources.identification import Identification, identify
from servescope.sources.map_files import load_sources
from servescope.sources.maps import SUPPLIED, Source, Status
from servescope.sources.parse import Exposition, explain_half_histogram
from servescope.sources.parts import WHOLE_PAGE, PagePart
from servescope.sources.segments import SegmentNames
from servescope.sources.series_plan import list_first
from servescope.sources.translate import Coverage, Translation, translate
from servescope.sources.zeros import SINCE_START, Counting, explain_figure, explain_zeros

# Prometheus' client libraries expose it for every process.
_PROCESS_START = "process_start_time_seconds"

Span = Literal["start", "between"]
_SINCE = {"start": SINCE_START, "between": "between the two expositions"}
_NO_RATE = {
    "start": "needs two expositions and --seconds",
    "between": "needs --seconds",
}

# What every answer moves, and the outcome of an answer.
_OF_ANSWERS = (
    "requests_total",
    "input_tokens_total",
    "output_tokens_total",
    "time_to_first_token_seconds",
    "request_duration_seconds",
)
_OK = ("outcome", "ok")


class InspectionError(ServescopeError):
    """An exposition cannot be read, or two of them cannot be compared."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One metric or figure of the contract: its value, or None and the reason; that of 0 where the page shows one.

    `kind` is metric for what instruments expose, figure for what is only derived; `measure` is one of total, increase,
    now, mean, ratio, rate, p50 …; `parts` are the values by the contract's own labels.
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
    """The identification and, of a known source, an entry for every metric and figure, and the families not read."""

    subject: str
    identification: Identification
    source: Source | None
    span: Span
    seconds: float | None
    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()
    families: Families = field(default_factory=Families)


def inspect(
    expositions: Sequence[Exposition],
    *,
    subject: str,
    seconds: float | None = None,
    source_name: str | None = None,
    segment_label: str = SEGMENT,
    part: PagePart = WHOLE_PAGE,
) -> Report:
    """The report on one exposition, or on two of the same endpoint in their order.

    With `source_name` the source is not identified; `segment_label` is the native label that separates segments,
    and `part` which series are read of a page that measures several deployments.
    Raises InspectionError when the two are of different sources.
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
    segments = SegmentNames(segment_label)
    translations = [translate(each, source, identity, segments, part) for each in expositions]
    increases, resets = _increases(translations)
    zeros = _explain_zeros(increases, translations[-1], span)
    entries = tuple(_add_zero(entry, zeros) for entry in _entries(increases, translations[-1].coverage, span, seconds))
    notes = (
        *_notes(expositions, found, source, resets),
        *_part_notes(last, part),
        *_first_use_notes(translations[-1]),
        *_segment_notes(translations[-1], segment_label),
    )
    return Report(subject, found, source, span, seconds, entries, notes, sort_families(last, source))


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
    """The contract samples to evaluate, gauges as they are, and how many counters were reset in between."""
    last = translations[-1].samples
    if len(translations) == 1:
        return last, 0
    before = {(sample.name, sample.labels): sample.value for sample in translations[0].samples}
    # A series that is new began at 0: label values appear on their first use.
    starts = np.array([0.0 if _is_gauge(each.name) else before.get((each.name, each.labels), 0.0) for each in last])
    values = np.array([each.value for each in last])
    is_reset = values < starts
    gains = step_gains(starts, values, is_reset).tolist()
    return [each._replace(value=gain) for each, gain in zip(last, gains, strict=True)], int(is_reset.sum())


def _explain_zeros(samples: Sequence[Sample], translation: Translation, span: Span) -> dict[str, str]:
    counted = Counting([Series(each.name, each.labels) for each in samples])
    return explain_zeros(counted.read(np.array([each.value for each in samples])), translation.facts, _SINCE[span])


def _add_zero(entry: Entry, zeros: Mapping[str, str]) -> Entry:
    """The entry with the reason why it is 0, or has nothing to be computed from."""
    if entry.value or entry.status not in SUPPLIED or entry.reason in _NO_RATE.values():
        return entry
    figure = FIGURES.get(entry.name)
    why = zeros.get(entry.name) or (
        explain_figure(figure.expression, zeros, absent=entry.value is None) if figure else ""
    )
    return replace(entry, reason=_joined(*((entry.reason, why) if entry.value is None else (why, entry.reason))))


def _is_gauge(name: str) -> bool:
    return name in METRICS and METRICS[name].kind == "gauge"


def _notes(expositions: Sequence[Exposition], found: Identification, source: Source, resets: int) -> Iterator[str]:
    if found.source is not source:
        guess = f"look like those of {found.nearest}" if found.nearest else "are unknown"
        yield f"read as {source.name!r} by --source; its names {guess}"
    elif found.others:
        yield found.explain_others()
    for each in expositions:
        if each.cut:
            yield f"{each.cut}; a collector refuses it"
        elif half := explain_half_histogram([Series(sample.name, sample.labels) for sample in each.samples]):
            yield half
    dropped = sum(each.dropped for each in expositions)
    if dropped:
        yield f"{dropped} samples that are NaN or infinite were dropped"
    repeated = [series for each in expositions for series in each.repeated]
    if repeated:
        yield f"{len(repeated)} samples repeat a series, of which the first value is used: {repeated[0]}"
    if resets:
        yield f"{resets} counters were reset in between: {_explain_resets(expositions)}; they count from 0"


def _part_notes(exposition: Exposition, part: PagePart) -> Iterator[str]:
    """Which series are read of a page that measures several deployments, and what the others are of."""
    if not part.select:
        return
    series = [Series(sample.name, sample.labels) for sample in exposition.samples]
    yield f"only series with {part.describe()} are read, and what describes the process"
    if absent := part.absent(series):
        yield f"no series has {list_first(absent)}"
    if others := part.unclaimed(series):
        yield f"{sum(others.values())} series have other values ({len(others)}): {list_first(list(others))}"


def _first_use_notes(translation: Translation) -> Iterator[str]:
    """Which of what every answer moves is 0 for want of a series, and may be missing, as requests were answered."""
    names = ("time_to_first_token_seconds_count", "output_tokens_total", "concurrent_requests")
    begun, tokens, running = (_sum(each for each in translation.samples if each.name == name) or 0 for name in names)
    ended = _sum(each for each in translation.samples if each.name == "requests_total" and _OK in each.labels) or 0
    unseen = [name for name in _OF_ANSWERS if _is_unseen(translation.coverage[name])]
    if unseen and (ended or (begun or min(tokens, 1)) > running):
        yield (
            f"0 for want of a series though requests were answered, so unknown in a part of a page: {', '.join(unseen)}"
        )


def _is_unseen(own: Coverage) -> bool:
    return own.status in SUPPLIED and own.native is None


def _segment_notes(translation: Translation, label: str) -> Iterator[str]:
    """Which segments the requests are kept apart by, the first few by name."""
    found = sorted({value for sample in translation.samples for name, value in sample.labels if name == SEGMENT})
    if found:
        named = list_first([repr(each) for each in found])
        yield f"requests are kept apart by the label {label!r}, in {len(found)} segments: {named}"
    elif label != SEGMENT:
        yield f"no series that can have segments has the label {label!r}"


def _explain_resets(expositions: Sequence[Exposition]) -> str:
    starts = [
        max((sample.value for sample in each.by_name.get(_PROCESS_START, ())), default=0.0) for each in expositions
    ]
    if starts[0] < starts[-1]:
        return "the process was restarted"
    return "the process was restarted, or the later exposition was named first"


class _Evaluate(Protocol):
    """Evaluates an expression over the samples that it reads: by labels, and by seconds where those are known."""

    def __call__(self, expression: Expression, by: Sequence[str] = (), per: float | None = None, /) -> Vector: ...


def _entries(
    samples: Sequence[Sample], coverage: Mapping[str, Coverage], span: Span, seconds: float | None
) -> Iterator[Entry]:
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)

    def evaluate(expression: Expression, by: Sequence[str] = (), per: float | None = None, /) -> Vector:
        read = (f"{name}{part}" for name in sorted(leaves(expression)) for part in ("", "_bucket", "_sum", "_count"))
        found = chain.from_iterable(by_name.get(name, ()) for name in read)
        return evaluate_increases(expression, found, by=by, seconds=per)

    for name, metric in METRICS.items():
        if name not in FIGURES:
            yield _metric_entry(metric, by_name, coverage[name], span)
            continue
        entry = _figure_entry(FIGURES[name], evaluate, coverage, span, seconds)
        yield entry if name in PROCESS_RATIOS else _as_metric(entry, coverage[name])
    for name, figure in FIGURES.items():
        if name not in METRICS:
            yield _figure_entry(figure, evaluate, coverage, span, seconds)


def _as_metric(entry: Entry, own: Coverage) -> Entry:
    """The entry of a figure that has the name of a metric: the metric's own coverage decides."""
    if own.status not in SUPPLIED:
        return replace(entry, status=own.status, value=None, native=own.native, reason=own.reason, parts=())
    reasons = dict.fromkeys((entry.reason, own.reason) if entry.value is None else (own.reason or entry.reason,))
    return replace(entry, status=own.status, native=own.native or entry.native, reason=_joined(*reasons))


def _metric_entry(metric: Metric, by_name: Mapping[str, list[Sample]], own: Coverage, span: Span) -> Entry:
    measure = {"histogram": "mean", "gauge": "now"}.get(metric.kind, "total" if span == "start" else "increase")
    value, parts = _metric_value(metric, by_name)
    reason = own.explain()
    is_unset = metric.kind == "gauge" and own.native is None
    if value is None and not parts and own.status in SUPPLIED and own.no_sum is None and not is_unset:
        is_counted = bool(_sum(by_name.get(f"{metric.name}_count", ())))
        reason = _joined("observations without their sum" if is_counted else "no observation", own.reason)
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
    # The states of one thing are 1 or 0 each; their sum has no meaning.
    is_state = metric.kind == "gauge" and metric.unit == "ratio" and bool(groups)
    parts = tuple((key, value) for key, value in groups.items() if math.isfinite(value))
    return None if is_state else _sum(samples), parts


def _sum(samples: Iterable[Sample]) -> float | None:
    """Their sum, None when there is none or it overflows."""
    values = [sample.value for sample in samples]
    return sum(values) if values and math.isfinite(sum(values)) else None


def _figure_entry(
    figure: Figure, evaluate: _Evaluate, coverage: Mapping[str, Coverage], span: Span, seconds: float | None
) -> Entry:
    own = _cover_figure(figure, coverage)
    reason, value = own.reason, None
    parts: tuple[tuple[str, float], ...] = ()
    if own.status in SUPPLIED and is_per_second(figure.expression) and seconds is None:
        reason = _NO_RATE[span]
    elif own.status in SUPPLIED:
        vector = evaluate(figure.expression, figure.by, seconds)
        value, parts = _figure_value(figure, vector)
        reason = own.reason if vector else _joined(_explain_no_data(figure.expression, evaluate), own.reason)
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
        _verdict(figure, value, evaluate),
        parts,
    )


def _figure_value(figure: Figure, vector: Mapping[Labels, float]) -> tuple[float | None, tuple[tuple[str, float], ...]]:
    if not figure.by:
        return vector.get(()), ()
    parts = tuple((figure_key(figure.name, dict(labels)), value) for labels, value in vector.items())
    return (sum(value for _, value in parts) if parts else None), parts


def _cover_figure(figure: Figure, coverage: Mapping[str, Coverage]) -> Coverage:
    """A figure is supplied when all metrics it reads are; otherwise the first that is not gives the reason."""
    read = {metric: coverage[metric] for metric in _metrics_read(figure)}
    for metric, each in read.items():
        if each.status not in SUPPLIED:
            reason = each.reason if metric == figure.name else f"{metric}: {each.reason}"
            return Coverage(each.status, None, reason)
        if each.no_sum is not None and f"{metric}_sum" in leaves(figure.expression):
            return Coverage("impossible", None, each.no_sum)
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


def _verdict(figure: Figure, value: float | None, evaluate: _Evaluate) -> str | None:
    """How its band judges a value, or why there is too little to judge by."""
    if figure.band is None or value is None:
        return None
    evidence, rating = figure.band.evidence, figure.band.judge(value)
    counted = evaluate(FIGURES[evidence.figure].expression) if evidence else {}
    lack = evidence.describe_lack(sum(counted.values())) if evidence and counted else ""
    return lack or f"{rating.status}: {rating.label}"


def _explain_no_data(expression: Expression, evaluate: _Evaluate) -> str:
    match expression:
        case Ratio(divided, denominator):
            if any(evaluate(denominator).values()):
                return f"no data: no such series of {' - '.join(sorted(leaves(divided)))}"
            return f"no data: nothing to divide by, {' - '.join(sorted(leaves(denominator)))} is 0"
        case Difference(left, _):
            return _explain_no_data(left, evaluate)
        case Quantile(_, histogram):
            return f"no data: no observation in {histogram}"
        case _:
            return "no data: no series"


def _joined(*reasons: str | None) -> str | None:
    return "; ".join(reason for reason in reasons if reason) or None
