"""What was not observed is never called healthy: how much of each arm's requests the evidence has, and why not all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import Series
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.evidence.folding import ArmFold, fold, read_families
from servescope.cutover.judgement import Judgement
from servescope.cutover.plan.plan import Arm, CutoverPlan
from servescope.cutover.verdict.judge import fold_evidence, judge, judge_folded
from servescope.increments.batches import Processes, TargetBatch, batches, read_histogram
from servescope.increments.blocks import BLOCK_MS, Tallies, TargetIncrements
from servescope.sources.reader import Reader
from servescope.store.embedded import Store
from tests.support.captures import OF_EACH_ERA
from tests.support.cutover_evidence import HOUR, SCRAPES, Side, Story, evidence_of, frozen_of, metric_of, plan_of
from tests.support.recorded_stack import MINUTES, START_MS, recorded_minutes

_IDENTITY = Identity("llama", "chat-v1", "v1", replica="r")


@dataclass(frozen=True)
class WholePage:
    """The increments of a page, alone as a batch, and the histograms that it has."""

    target: TargetIncrements
    batch: TargetBatch
    histograms: tuple[str, ...]

    def fold(self, plan: CutoverPlan) -> ArmFold:
        """It as v1 of a plan."""
        return fold(plan, [self.target], 0, BLOCK_MS).v1


def as_batch(page: bytes) -> WholePage:
    """A page of a source that is known."""
    reader = Reader(_IDENTITY)
    own = set(_IDENTITY.labels())
    totals: dict[Series, float] = {}
    for sample in reader.read(page).snapshot.samples():
        series = Series(sample.name, tuple(pair for pair in sample.labels if pair not in own))
        totals[series] = totals.get(series, 0.0) + sample.value
    kinds = {series: METRICS[SAMPLE_FAMILIES[series.name]] for series in totals if series.name in SAMPLE_FAMILIES}
    counters = tuple(series for series, metric in kinds.items() if metric.kind != "gauge")
    none = np.zeros(1, dtype=np.int64)
    target = TargetIncrements(
        _IDENTITY.target_id, _IDENTITY, none, counters, np.array([[totals[each]] for each in counters]), (),
        np.zeros((0, 1)), np.zeros((0, 1)), np.full(1, np.nan), Tallies(none + 20, none, none, none, none),
        source=reader.source or "", layer=reader.layer,
    )  # fmt: skip
    (batch,) = batches([target], none)
    return WholePage(
        target, batch, tuple(sorted({metric.name for metric in kinds.values() if metric.kind == "histogram"}))
    )


STORY = Story(past_hours=25, hours=4, requests_per_minute=1_500.0, v1=Side(replicas=9), v2=Side(replicas=3))
LARGE = replace(STORY, requests_per_minute=3_000.0, v1=Side(replicas=12), v2=Side(replicas=10), share=0.45)
FIRST_TOKEN = "time_to_first_token_seconds"

Change = Callable[[TargetIncrements], TargetIncrements]
Gains = Callable[[np.ndarray], np.ndarray]


def judged(evidence: Evidence, story: Story = STORY, coverage: float = 0.95) -> Judgement:
    """The judgement at the end of a story; the plan is frozen from its whole evidence."""
    frozen = frozen_of(story, coverage=coverage)
    return judge(frozen, evidence, (Decision("start", story.started_ms, stage=0),), story.end_ms)


def changed(change: Change, replicas: Collection[str], story: Story = STORY) -> Evidence:
    """The evidence with these replicas changed."""
    evidence = evidence_of(story)
    return replace(
        evidence,
        targets=tuple(change(each) if each.identity.replica in replicas else each for each in evidence.targets),
    )


def altered(prefix: str, change: Gains, *, part: float = 1.0, ending: str = "", hours: float = 99.0) -> Change:
    """Gains of the series that are called so, in a part of the blocks of the first hours of the cutover, by chance."""
    random = np.random.default_rng(1)

    def alter(target: TargetIncrements) -> TargetIncrements:
        rows = [
            row
            for row, each in enumerate(target.series)
            if each.name.startswith(prefix) and each.name.endswith(ending)
        ]  # fmt: skip
        ends = STORY.started_ms + hours * HOUR * BLOCK_MS
        since = np.flatnonzero((target.blocks >= STORY.started_ms) & (target.blocks < ends))
        cells = np.ix_(np.array(rows), random.choice(since, size=round(part * since.size), replace=False))
        gains = np.array(target.gains)
        gains[cells] = change(gains[cells])
        return replace(target, gains=gains)

    return alter


def lacking(is_lost: Callable[[Series], bool]) -> Change:
    """A page without some series, as a rule of relabelling drops them."""

    def drop(target: TargetIncrements) -> TargetIncrements:
        kept = [row for row, each in enumerate(target.series) if not is_lost(each)]
        return replace(target, series=tuple(target.series[row] for row in kept), gains=target.gains[kept])

    return drop


def without(prefix: str) -> Change:
    """A page that lacks the series that are called so."""
    return lacking(lambda each: each.name.startswith(prefix))


def emptied(target: TargetIncrements) -> TargetIncrements:
    """A page with nothing on it."""
    return replace(without("")(target), gauges=(), levels=target.levels[:0], above=target.above[:0])


without_errors = lacking(lambda each: ("outcome", "error") in each.labels)
without_buckets = lacking(lambda each: each.name.endswith("_bucket"))


def failing(from_hour: float) -> Change:
    """A replica whose scrapes fail from that hour of the stage on; one that never succeeded shows no layer."""

    def fail(target: TargetIncrements) -> TargetIncrements:
        late = target.blocks >= STORY.started_ms + from_hour * 3_600_000
        tallies = replace(
            target.tallies, scrapes=np.where(late, 0, target.tallies.scrapes), failed=np.where(late, SCRAPES, 0)
        )
        found = replace(target, gains=np.where(late, np.nan, target.gains), tallies=tallies)
        return replace(emptied(found), source="", layer="") if late.all() else found

    return fail


def resetting(target: TargetIncrements) -> TargetIncrements:
    """Counters of an old process that begin anew at every scrape, and lose what they had."""
    late = target.blocks >= STORY.started_ms
    resets = np.where(late, SCRAPES, target.tallies.resets)
    return replace(target, tallies=replace(target.tallies, resets=resets))


V1, V2 = ([f"{arm}-{replica}" for replica in range(replicas)] for arm, replicas in (("v1", 9), ("v2", 3)))
TWO = V2[:2]

UNSEEN: dict[str, tuple[Change, Collection[str], str]] = {
    "two of three report no first token": (without(FIRST_TOKEN), TWO, "not reported by chat-v2/aggregated/v2-"),
    "two of three report no requests": (without("requests_total"), TWO, "not reported by chat-v2/aggregated/v2-"),
    "two of three have empty pages": (emptied, TWO, "not reported by chat-v2/aggregated/v2-"),
    "two of three have sums below zero": (
        altered(FIRST_TOKEN, lambda gains: 0.0 * gains - 1.0, ending="_sum"), TWO, "contradict each other",
    ),
    "two of three count requests below zero": (
        altered("requests_total", lambda gains: 0.0 * gains - 1.0), TWO, "contradict each other",
    ),
    "v2's sums are a twentieth": (altered(FIRST_TOKEN, lambda gains: 0.05 * gains, ending="_sum"), V2, "0 % of v2's"),
    "v1's sums are twenty times": (altered(FIRST_TOKEN, lambda gains: 20.0 * gains, ending="_sum"), V1, "0 % of v1's"),
    "v1's sums are in milliseconds": (
        altered("request_duration_seconds", lambda gains: 1000.0 * gains, ending="_sum"), V1, "0 % of v1's",
    ),
    "a tenth of v2's first tokens is negated": (altered(FIRST_TOKEN, np.negative, part=0.1), V2, "contradict"),
    "a tenth of v2 is negated": (altered("", np.negative, part=0.1), V2, "contradict each other"),
    "a tenth of v2 is emptied": (altered("", lambda gains: gains * np.nan, part=0.1), V2, "not reported by"),
    "a tenth of v2's requests is thinned": (
        altered("requests_total", lambda gains: 0.4 * gains, part=0.1), V2, "contradict each other",
    ),
    "a tenth of v2's first tokens is thinned": (
        altered(FIRST_TOKEN, lambda gains: 0.4 * gains, part=0.1), V2, "contradict each other",
    ),
    "v2's counters begin anew at every scrape": (resetting, V2, "contradict each other"),
    "half of v2's requests are lost": (altered("requests_", lambda gains: 0.5 * gains), V2, "contradict each other"),
    "half of v2's observations are lost": (altered("time_", lambda gains: 0.5 * gains), V2, "contradict each other"),
}  # fmt: skip


@pytest.mark.slow
def test_the_whole_evidence_is_healthy_and_says_so() -> None:
    """All of both arms' requests are in it, and nothing was thrown away."""
    judgement = judged(evidence_of(STORY))

    assert judgement.verdict == "HEALTHY"
    assert judgement.v2 is not None
    assert (judgement.v2.covered, judgement.v2.rejected) == (1.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSEEN)
def test_what_was_not_observed_is_not_healthy(name: str) -> None:
    """It is NO DATA, with how much is known of which arm, and why the rest is not."""
    change, replicas, words = UNSEEN[name]
    judgement = judged(changed(change, replicas))

    assert judgement.verdict == "NO DATA"
    assert "and the plan asks for 95 %" in judgement.reason
    assert words in judgement.reason


@pytest.mark.slow
@pytest.mark.parametrize("from_hour", [-100.0, 2.0])
@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_that_cannot_be_scraped_are_not_healthy(replicas: int, from_hour: float) -> None:
    """Of ten, whether they ever could be or not; a plan that asks for less is content with what is known."""
    evidence = changed(failing(from_hour), [f"v2-{replica}" for replica in range(replicas)], LARGE)
    judgement = judged(evidence, LARGE)

    assert judgement.verdict == "NO DATA"
    assert "scrapes failed of chat-v2/aggregated/v2-0" in judgement.reason
    assert judged(evidence, LARGE, coverage=0.5 if replicas == 2 else 0.85).verdict == "HEALTHY"


@pytest.mark.slow
@pytest.mark.parametrize(("prefix", "metric"), [("requests_", "request_error_share"), (FIRST_TOKEN, FIRST_TOKEN)])
def test_a_loss_that_no_block_shows_is_seen_in_the_stage(prefix: str, metric: str) -> None:
    """Where a replica has few requests in a block, half of them are within what its counters may differ by."""
    story = replace(STORY, requests_per_minute=60.0, hours=6)
    judgement = judged(changed(altered(prefix, lambda gains: np.floor(0.5 * gains)), V2, story), story)
    found = metric_of(judgement, metric)

    assert found.verdict == "NO DATA"
    assert "it counts fewer requests than other counters of the same processes" in found.reason


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [V2, TWO])
def test_failures_whose_series_is_lost_are_not_healthy(replicas: list[str]) -> None:
    """Requests that began and ended in no counter may be errors; a source that has not had any yet shows none."""
    story = replace(STORY, v2=Side(replicas=3, errors=0.02))
    judgement = judged(changed(without_errors, replicas, story), story)
    errors = metric_of(judgement, "request_error_share")
    none_yet = replace(STORY, v2=Side(replicas=3, errors=0.0))

    assert judgement.verdict == "NO DATA"
    assert errors.cause == "unaccounted"
    assert "% of v2's requests began and ended in no counter; as events these would be beyond" in errors.reason
    assert judged(changed(without_errors, V2, none_yet), none_yet).verdict == "HEALTHY"


@pytest.mark.parametrize("part_hours", [(1, 4), (1, 2, 4), (4,)])
def test_failures_whose_series_ends_are_not_healthy(part_hours: tuple[int, ...]) -> None:
    """A process that has counted errors and shows none any more may still have them, in whatever parts one reads."""
    evidence, gone_ms = evidence_of(STORY), STORY.started_ms + HOUR * BLOCK_MS
    decisions = (Decision("start", STORY.started_ms, stage=0),)
    frozen = frozen_of(STORY)
    folded, read_ms = None, 0
    for hours in part_hours:
        until_ms = STORY.started_ms + hours * HOUR * BLOCK_MS
        targets = (_ended(each, gone_ms) for each in evidence.targets)
        read = [each.at((each.blocks >= read_ms) & (each.blocks < until_ms)) for each in targets]
        part = replace(evidence, targets=tuple(map(_without_unseen, read)), observed_until_ms=until_ms)
        folded, read_ms = fold_evidence(frozen, part, decisions, until_ms, folded), until_ms
    assert folded is not None
    judgement = judge_folded(frozen, folded, evidence, decisions, STORY.end_ms)

    assert judgement.verdict == "NO DATA"
    assert "the evidence has 0 % of v2's requests" in judgement.reason


def _ended(target: TargetIncrements, gone_ms: int) -> TargetIncrements:
    """A page of v2 that has no series of failed requests from a time on."""
    failed = np.array([("outcome", "error") in each.labels for each in target.series])
    gone = failed[:, None] & (target.blocks >= gone_ms) & (target.identity.inference_stack == "v2")
    return replace(target, gains=np.where(gone, np.nan, target.gains))


def _without_unseen(target: TargetIncrements) -> TargetIncrements:
    """As it is read of blocks in which some series are not there at all."""
    seen = np.flatnonzero(np.isfinite(target.gains).any(axis=1))
    return replace(target, series=tuple(target.series[row] for row in seen), gains=target.gains[seen])


def test_what_was_in_flight_when_processes_ended_is_not_lost() -> None:
    """Replicas of v2 begin anew each half hour, and nobody sees how the last requests of each process end."""

    def restarting(target: TargetIncrements) -> TargetIncrements:
        starts = STORY.started_ms + 6 * BLOCK_MS * np.arange(8.0)
        started = starts[np.maximum(0, np.searchsorted(starts, target.blocks, side="right") - 1)]
        row = next(row for row, each in enumerate(target.series) if ("outcome", "ok") in each.labels)
        gains = np.array(target.gains)
        gains[row, np.isin(target.blocks + BLOCK_MS, starts)] -= 20.0
        return replace(target, gains=gains, started_ms=np.where(target.blocks < starts[0], target.started_ms, started))

    judgement = judged(changed(restarting, V2))

    assert {each.cause for each in judgement.metrics if each.required} == {"warming", "not worse"}


@pytest.mark.parametrize("replicas", [V1[:6], TWO])
def test_shares_of_slow_requests_are_of_replicas_that_report_the_edge(replicas: list[str]) -> None:
    """Others have no slow requests that are known, and no fast ones."""
    judgement = judged(changed(without_buckets, replicas))
    edges = [edge for each in judgement.metrics for edge in each.edges]

    assert judgement.verdict == "HEALTHY"
    assert edges
    for edge in edges:
        assert edge.v2 == pytest.approx(edge.v1, rel=0.1)


def test_an_edge_that_an_arm_does_not_report_is_not_compared() -> None:
    """Neither are there no slow requests of v2, nor more than on v1."""
    for replicas in (V1, V2):
        judgement = judged(changed(without_buckets, replicas))

        assert judgement.verdict == "HEALTHY"
        assert not any(each.edges for each in judgement.metrics)


def test_what_is_thrown_away_of_one_arm_alone_decides_nothing() -> None:
    """Four per cent of v2's blocks could choose the outcome; four per cent of both arms' do not."""
    change = altered("requests_started_total", lambda gains: 0.3 * gains, part=0.055, hours=3.0)
    one = judged(changed(change, V2))
    both = judged(changed(change, [*V1, *V2]))

    assert one.verdict == "INCONCLUSIVE"
    assert "0.0 % of v1's requests and 4." in one.reason
    assert "% of v2's are in blocks that were thrown away" in one.reason
    assert one.v2 is not None
    assert one.v2.rejected == pytest.approx(0.042, abs=0.005)
    assert both.verdict == "HEALTHY"


@pytest.mark.slow
def test_harm_beyond_the_margin_is_harm_although_some_was_thrown_away() -> None:
    """A harmful v2 whose counters are also damaged is not excused by that."""
    story = replace(STORY, v2=Side(replicas=3, slower=1.5))
    change = altered("requests_started_total", lambda gains: 0.3 * gains, part=0.055, hours=3.0)

    assert judged(changed(change, V2, story), story).verdict == "DEGRADED"


def changed_since(hours: float, change: Callable[[TargetIncrements, np.ndarray], np.ndarray]) -> Change:
    """The gains of blocks from that hour of the cutover on, (m, k), as a change makes them."""

    def apply(target: TargetIncrements) -> TargetIncrements:
        late = target.blocks >= STORY.started_ms + hours * 3_600_000
        gains = np.array(target.gains)
        gains[:, late] = change(target, gains[:, late])
        return replace(target, gains=gains)

    return apply


def rows_of(target: TargetIncrements, prefix: str, **labels: str) -> list[int]:
    """The series whose names begin so and that have these labels."""
    return [
        row
        for row, each in enumerate(target.series)
        if each.name.startswith(prefix) and labels.items() <= dict(each.labels).items()
    ]


def hanging(part: float, from_hour: float = 0.0) -> Change:
    """Of the requests that begin since then this part never ends, and stays in flight."""

    def hang(target: TargetIncrements, gains: np.ndarray) -> np.ndarray:
        begun = rows_of(target, "requests_started_total")
        started = gains[begun].copy()
        gains = np.floor((1.0 - part) * gains)
        gains[begun] = started
        return gains

    def apply(target: TargetIncrements) -> TargetIncrements:
        found = changed_since(from_hour, hang)(target)
        begun, ended = (
            found.gains[rows_of(found, name)].sum(axis=0) for name in ("requests_started_total", "requests_total")
        )
        levels = np.array(found.levels)
        flying = [row for row, each in enumerate(found.gauges) if each.name == "concurrent_requests"]
        levels[flying] += np.cumsum(begun - ended)
        return replace(found, levels=levels)

    return apply


@pytest.mark.parametrize(
    ("part", "replicas", "from_hour", "arm"),
    [(1.0, ["v2-0"], 0.0, "v2"), (1.0, ["v2-0"], 2.0, "v2"), (1.0, ["v1-3"], 0.0, "v1"), (0.15, V2, 0.0, "v2")],
)
def test_requests_that_never_end_are_not_healthy(part: float, replicas: list[str], from_hour: float, arm: str) -> None:
    """One replica of ten hangs, or all do with some requests: what is in flight for ever was answered by nobody."""
    story = LARGE if replicas == ["v2-0"] else STORY
    judgement = judged(changed(hanging(part, from_hour), replicas, story), story)

    assert judgement.verdict == "NO DATA"
    assert f"% of {arm}'s requests" in judgement.reason
    assert "% began and have not ended" in judgement.reason
    few = judged(changed(hanging(0.02), replicas, story), story)
    assert few.verdict == ("HEALTHY" if arm == "v1" else "INCONCLUSIVE")
    assert ("Requests that never end" in few.reason) == (arm == "v2")


@pytest.mark.slow
def test_harm_of_what_was_answered_is_harm_though_a_part_never_is() -> None:
    """A frozen replica excuses nothing that the others do."""
    story = replace(STORY, v2=Side(replicas=3, slower=1.5))

    assert judged(changed(hanging(0.25), V2, story), story).verdict == "DEGRADED"


def failing_all(target: TargetIncrements, gains: np.ndarray) -> np.ndarray:
    """Every request fails, and shows nothing else."""
    ok, failed = (rows_of(target, "requests_total", outcome=each) for each in ("ok", "error"))
    kept = [*rows_of(target, "requests_total"), *rows_of(target, "requests_started_total")]
    moved = 0.0 * gains
    moved[kept] = gains[kept]
    moved[failed] += gains[ok]
    moved[ok] = 0.0
    return moved


@pytest.mark.parametrize("replicas", [V1, [*V1, *V2]])
def test_a_latency_that_no_request_shows_any_more_is_not_healthy(replicas: list[str]) -> None:
    """Requests that all fail show none, on v1 or on both: nothing was compared since, and v2 is not known to answer."""
    judgement = judged(changed(changed_since(2.0, failing_all), replicas))
    found = metric_of(judgement, FIRST_TOKEN)

    assert judgement.verdict == "NO DATA"
    assert found.cause == "unseen"
    assert "none of an arm's requests showed it in the last half an hour" in found.reason
    assert judgement.changes[-1].at_ms == STORY.started_ms + 2.5 * 3_600_000


def test_a_v1_that_warms_up_is_no_control() -> None:
    """All of its replicas begin anew at hour 3: what v2 does since then is compared with nothing."""
    late_ms = STORY.started_ms + 3 * HOUR * BLOCK_MS

    def restarted(target: TargetIncrements) -> TargetIncrements:
        return replace(target, started_ms=np.where(target.blocks < late_ms, target.started_ms, float(late_ms)))

    judgement = judged(changed(restarted, V1))

    assert judgement.verdict == "NO DATA"
    assert {each.cause for each in judgement.metrics if each.name == FIRST_TOKEN} == {"unseen"}


def test_an_idle_replica_lacks_nothing() -> None:
    """One that reports no counter and had nothing in flight served nothing."""

    def idle(target: TargetIncrements) -> TargetIncrements:
        return replace(target, gains=np.where(target.blocks < 0, target.gains, np.nan), levels=0.0 * target.levels)

    assert judged(changed(idle, ["v2-9"], LARGE), LARGE).verdict == "HEALTHY"


def test_a_name_that_is_used_again_lacks_nothing_meanwhile() -> None:
    """An autoscaler's replica that was away for two hours was not to be scraped; one that did not restart was."""

    def away(restarts: bool) -> Change:
        gone = STORY.started_ms + np.array([1, 3]) * HOUR * BLOCK_MS

        def apply(target: TargetIncrements) -> TargetIncrements:
            found = target.at((target.blocks < gone[0]) | (target.blocks >= gone[1]))
            later = np.where(found.blocks >= gone[1], float(gone[1]), found.started_ms)
            return replace(found, started_ms=later if restarts else found.started_ms)

        return apply

    restarted, missed = (judged(changed(away(each), ["v2-0"], LARGE), LARGE).v2 for each in (True, False))

    assert restarted is not None
    assert missed is not None
    assert restarted.covered == 1.0
    assert missed.covered is not None
    assert missed.covered < 0.95


def test_frontends_that_report_what_engines_do_not_are_another_layer() -> None:
    """A replica of another layer, or another role, is not to report what its own does not."""

    def elsewhere(target: TargetIncrements) -> TargetIncrements:
        name = f"engine-{target.identity.replica}"
        identity = replace(target.identity, replica=name)
        return replace(emptied(target), target_id=identity.target_id, identity=identity, layer="engine")

    evidence = evidence_of(STORY)
    engines = tuple(map(elsewhere, evidence.targets))
    judgement = judged(replace(evidence, targets=(*evidence.targets, *engines)))

    assert judgement.verdict == "HEALTHY"


def test_an_exporter_beside_the_arms_is_no_evidence_of_them() -> None:
    """Scrapes of what has the role auxiliary neither lack where they fail, nor make up for those of replicas."""

    def beside(target: TargetIncrements) -> TargetIncrements:
        identity = replace(target.identity, replica=f"node-{target.identity.replica}", role="auxiliary")
        return replace(emptied(target), target_id=identity.target_id, identity=identity, layer="around")

    evidence = evidence_of(STORY)
    exporters = tuple(beside(each) for each in evidence.targets)
    failed = tuple(failing(0.0)(each) for each in exporters)
    judgement = judged(evidence)

    assert judgement.verdict == "HEALTHY"
    assert judged(replace(evidence, targets=(*evidence.targets, *exporters))) == judgement
    assert judged(replace(evidence, targets=(*evidence.targets, *failed))) == judgement


@pytest.mark.parametrize("era", OF_EACH_ERA)
def test_no_real_engine_contradicts_itself(captures: Path, era: str) -> None:
    """The totals of a page that was captured agree: its histograms' sums, and what its counters have of requests."""
    batch = as_batch((captures / f"{era}.txt").read_bytes())
    arm = batch.fold(plan_of(0.25))

    assert not arm.rejected.any()
    assert not arm.torn.any()
    for histogram in batch.histograms:
        found = read_histogram(batch.batch, histogram, Processes(batch.batch, {}))
        assert found is not None
        assert not found.torn.any(), histogram


@pytest.mark.slow
def test_no_emulated_engine_contradicts_itself() -> None:
    """Nor while engines restart, scale, abort requests and begin and end them in other blocks."""
    plan = replace(
        plan_of(0.25), v1=Arm("v1", ({"inference_stack": "v1"},)), v2=Arm("v2", ({"inference_stack": "v2"},))
    )
    end_ms = START_MS + MINUTES * 60_000
    with Store(recorded_minutes(), read_only=True) as store:
        targets = [
            target
            for deployment in store.deployments()
            for target in store.read_increments(deployment, read_families(plan), START_MS, end_ms)
        ]
    folded = fold(plan, targets, START_MS, end_ms)

    for arm in (folded.v1, folded.v2):
        assert np.nansum(arm.traffic["requests"]) > 300.0
        assert not arm.rejected.any()
