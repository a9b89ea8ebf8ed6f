"""What OpenMetrics 1.0 has beyond the Prometheus text format: other heads, exemplars and an end.

The lines of samples are the same in both: counters have `_total` there too, and `le` is canonical. A unit is exposed
where the family's name ends with it, as the standard demands. `_created` is left out: it would add a line to every
counter and histogram, and Prometheus reads it only with a feature flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from servescope.contract.samples import escape_label_value, format_value
from servescope.contract.types import Metric

if TYPE_CHECKING:
    from prometheus_client.samples import Exemplar as PrometheusExemplar

END = b"# EOF\n"

_LONGEST_EXEMPLAR = 128
_LABEL = "trace_id"


class Traced(Protocol):
    """One observation and its trace; `time` is in Unix seconds."""

    @property
    def trace_id(self) -> str:
        """The id of the trace, as the embedder passed it."""

    @property
    def value(self) -> float:
        """What was observed, in the unit of its histogram."""

    @property
    def time(self) -> float:
        """When it was recorded, in Unix seconds."""


def head(metric: Metric) -> bytes:
    """HELP, TYPE and, where there is one, UNIT of the metric's family, which has a counter's name without `_total`."""
    family = metric.documented
    text = escape_label_value(metric.help)
    lines = f"# HELP {family} {text}\n# TYPE {family} {metric.kind}\n"
    unit = unit_of(metric)
    if unit:
        lines += f"# UNIT {family} {unit}\n"
    return lines.encode()


def unit_of(metric: Metric) -> str:
    """The unit of the metric's family where its name ends with it, else empty."""
    return metric.unit if metric.documented.endswith(f"_{metric.unit}") else ""


def with_exemplars(text: bytes, exemplars: Sequence[Traced | None]) -> bytes:
    """The lines of one histogram series, whose buckets come first, with each bucket's exemplar behind its line."""
    if not any(exemplars):
        return text
    lines = text.split(b"\n")
    for number, exemplar in enumerate(exemplars):
        if exemplar is not None and fits(exemplar):
            lines[number] += _exemplar(exemplar)
    return b"\n".join(lines)


def for_prometheus_client(exemplar: Traced) -> PrometheusExemplar | None:
    """The exemplar as prometheus_client takes it; None when its trace id is too long for the standard."""
    from prometheus_client.samples import Exemplar as PrometheusExemplar

    return PrometheusExemplar({_LABEL: exemplar.trace_id}, exemplar.value, exemplar.time) if fits(exemplar) else None


def fits(exemplar: Traced) -> bool:
    """Whether the standard lets an exemplar carry that trace id: 128 characters with the label's name."""
    return len(_LABEL) + len(exemplar.trace_id) <= _LONGEST_EXEMPLAR


def _exemplar(exemplar: Traced) -> bytes:
    trace_id = escape_label_value(exemplar.trace_id)
    return f' # {{{_LABEL}="{trace_id}"}} {format_value(exemplar.value)} {exemplar.time:.3f}'.encode()
