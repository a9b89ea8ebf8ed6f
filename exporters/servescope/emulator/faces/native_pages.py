"""The pages of a deployment's processes in the names of other programs, written by inverted source maps.

An engine's page says what its instruments count, and what is reported to its router of its cache. A frontend's page
says what a program in front of the deployment sees: every request, and all that engines and routers count, whichever of
them restarts or ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.metrics import METRICS, OUTCOMES, REPLICA_START_TIME, SAMPLE_FAMILIES
from servescope.contract.samples import Sample, Series
from servescope.contract.types import Metric
from servescope.emulator.deployment.deployment import EmulatedDeployment, EmulatedTarget
from servescope.emulator.deployment.replica import Replica
from servescope.emulator.engine.engine import Engine
from servescope.instruments.instrument import Instruments
from servescope.sources.inversion import NativePage
from servescope.sources.maps import Source

# Counted where a request enters the deployment: what routers turn away reaches no engine.
_COUNTED_ITSELF: Final = frozenset(
    ("requests_started_total", "requests_total", "concurrent_requests", REPLICA_START_TIME)
)
_ABORTED: Final = "client_abort"


def engine_samples(engine: Engine) -> list[Sample]:
    """What an engine knows of itself: what its instruments count, its drafts, and the reuse of its cache."""
    samples = engine.instruments.samples()
    totals = {sample.name: sample.value for sample in samples}
    known = {
        "kv_cache_eligible_tokens_total": totals.get("input_tokens_total", 0.0),
        "kv_cache_reused_tokens_total": float(engine.reused_tokens),
    }
    if engine.parameters.draft_length:
        drafted = totals.get("spec_decode_num_draft_tokens_total", 0.0)
        known["spec_decode_num_drafts_total"] = drafted / engine.parameters.draft_length
    return [*samples, *(Sample(name, (), value) for name, value in known.items())]


class FrontendPages:
    """The page of what is in front of a deployment in the names of the source, shown in the place of its router.

    It never restarts, and began with the deployment.
    """

    def __init__(self, source: Source, deployment: EmulatedDeployment) -> None:
        self._deployment = deployment
        self._page = NativePage(source, deployment.plan.identity.model_name)
        self._sees_aborts = _ABORTED in _outcomes(source)
        self._began = min(each.created_at for each in deployment.router.processes.values())
        self._counting = dict.fromkeys(self._living())
        self._ended: dict[Series, float] = {}
        deployment.watch_engines(self._watch)

    def render(self, _: EmulatedTarget) -> bytes:
        """The page of the frontend."""
        return self._page.render(self.samples())

    def samples(self) -> list[Sample]:
        """What it has seen, in the contract's names."""
        living = self._living()
        for ended in [each for each in self._counting if each not in living]:
            self._keep(ended)
        self._counting.update(dict.fromkeys(living))
        ended_counts = [Sample(*series, value) for series, value in self._ended.items()]
        autoscaler = self._deployment.autoscaler.instruments.samples()
        seen = [sample for each in living for sample in _mean_ratios(each, len(self._deployment.replicas))]
        behind = [each for each in (*ended_counts, *seen, *autoscaler) if each.name not in _COUNTED_ITSELF]
        return [*behind, *self._own_counts()]

    def _living(self) -> list[Instruments]:
        engines = [replica.engine.instruments for replica in self._deployment.replicas.values()]
        return [*engines, *self._deployment.router.processes.values()]

    def _watch(self, replica: Replica) -> None:
        self._counting[replica.engine.instruments] = None

    def _keep(self, ended: Instruments) -> None:
        del self._counting[ended]
        for name, labels, value in ended.samples():
            metric = _metric(name)
            if metric is not None and metric.kind != "gauge":
                series = Series(name, tuple(pair for pair in labels if pair[0] not in IDENTITY_LABELS))
                self._ended[series] = self._ended.get(series, 0.0) + value

    def _own_counts(self) -> Iterator[Sample]:
        deployment = self._deployment
        yield Sample(REPLICA_START_TIME, (), self._began)
        yield Sample("concurrent_requests", (), float(deployment.in_flight))
        yield Sample("requests_started_total", (), float(deployment.outcomes.total() + deployment.in_flight))
        for outcome in OUTCOMES:
            # Who counts answers by how they begin counts one that is aborted later as ok.
            shown = "ok" if outcome == _ABORTED and not self._sees_aborts else outcome
            yield Sample("requests_total", (("outcome", shown),), float(deployment.outcomes[outcome]))


def _outcomes(source: Source) -> set[str]:
    """The outcomes of requests that a source distinguishes."""
    terms = (term for each in source.metrics["requests_total"].alternatives for term in each.terms)
    return {rule.value for term in terms for _, rules in term.labels for rule in rules}


def _mean_ratios(instruments: Instruments, engines: int) -> Iterator[Sample]:
    """The samples of a process, of which shares are added up to their mean over all engines."""
    for sample in instruments.samples():
        metric = _metric(sample.name)
        is_share = metric is not None and metric.component == "engine" and metric.unit == "ratio"
        yield sample._replace(value=sample.value / engines) if is_share else sample


def _metric(name: str) -> Metric | None:
    return METRICS.get(SAMPLE_FAMILIES.get(name, ""))
