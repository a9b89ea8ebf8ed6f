"""What is read by a map of a program that nobody has run is shown, and decides nothing: neither harm nor health."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.evidence.evidence import Decision, Evidence
from servescope.cutover.forecast.duration import forecast_stages
from servescope.cutover.judgement import Judgement
from servescope.cutover.verdict.judge import judge
from servescope.increments.blocks import TargetIncrements
from servescope.sources.map_files import load_sources
from tests.support.cutover_evidence import Side, Story, evidence_of, metric_of, plan_of

READ = next(source for source in load_sources().values() if source.evidence == "read").name
RUN, OLD_RELEASE = next(
    (source.name, rule.versions)
    for source in load_sources().values()
    for rule in source.versions
    if (source.layer, source.evidence, rule.evidence) == ("engine", "run", "read")
)
"""A source that was run, and a release of it that was not."""

ERRORS, FIRST_TOKEN = "request_error_share", "time_to_first_token_seconds"
HARMED = Side(replicas=4, first_token=3.0, errors=0.2, source=READ, layer="engine")


def judged(story: Story, evidence: Evidence, *required: str) -> Judgement:
    frozen = freeze(plan_of(story.share, required=required or None), evidence, story.started_ms)
    return judge(frozen, evidence, [Decision("start", story.started_ms, stage=0)], story.end_ms)


@pytest.mark.parametrize(
    "v2", [HARMED, replace(HARMED, errors=1.0)], ids=["slower, and a fifth of it fails", "all of it fails"]
)
def test_harm_of_a_source_that_was_never_run_is_no_reason_to_roll_back(v2: Side) -> None:
    """It is shown with why it is not judged; of a source that was run, the same is harm beyond the margin."""
    story = Story(past_hours=6, hours=4, v2=v2)
    judgement = judged(story, evidence_of(story), ERRORS, FIRST_TOKEN)

    assert (judgement.verdict, judgement.advice) == ("INCONCLUSIVE", "hold")
    assert f"is read by {READ}, a map of a program that was never run: it is shown, and not judged" in judgement.reason
    assert "a map of a program that was never run" in judgement.incomparable[ERRORS]
    assert metric_of(judgement, ERRORS).cause == "never run"
    run = replace(story, v2=replace(v2, source=RUN))
    assert judged(run, evidence_of(run), ERRORS, FIRST_TOKEN).advice == "roll back"


def test_a_release_that_was_never_run_is_not_judged_either() -> None:
    """Others of the same source are."""
    story = Story(past_hours=6, hours=4, v2=replace(HARMED, source=RUN))
    found = evidence_of(story)
    targets = [replace(each, versions=OLD_RELEASE) if each.source == RUN else each for each in found.targets]

    assert judged(story, replace(found, targets=tuple(targets)), ERRORS).verdict == "INCONCLUSIVE"


def only(target: TargetIncrements, kept: Callable[[str], bool]) -> TargetIncrements:
    """The target with the counters that are called so."""
    rows = np.array([kept(each.name) for each in target.series])
    series = tuple(each for each, is_kept in zip(target.series, rows.tolist(), strict=True) if is_kept)
    return replace(target, series=series, gains=target.gains[rows])


def with_engines_never_run(evidence: Evidence) -> Evidence:
    """v2's first tokens are those of engines of their own, and nobody has run a release of them."""
    targets = []
    for target in evidence.targets:
        if not target.target_id.startswith("chat-v2"):
            targets.append(target)
            continue
        engine = replace(target.identity, replica=f"engine-{target.identity.replica}")
        targets.append(only(target, lambda name: not name.startswith(FIRST_TOKEN)))
        targets.append(
            replace(
                only(target, lambda name: name.startswith(FIRST_TOKEN)), target_id=engine.target_id, identity=engine,
                source=READ, layer="engine", gauges=(), levels=target.levels[:0], above=target.above[:0],
            )
        )  # fmt: skip
    return replace(evidence, targets=tuple(targets))


def test_other_metrics_are_judged_without_it() -> None:
    """HEALTHY is of those, and names what it does not cover; so does the forecast."""
    story = Story(past_hours=6, hours=8, v2=Side(first_token=3.0))
    evidence = with_engines_never_run(evidence_of(story))
    judgement = judged(story, evidence, ERRORS, FIRST_TOKEN)

    assert (judgement.verdict, judgement.advice) == ("HEALTHY", "go on")
    assert "are proven within their margins, without Time to first token: " in judgement.reason
    assert metric_of(judgement, FIRST_TOKEN).cause == "never run"
    assert judgement.scope.covers[0] == "proven within their margins before it is HEALTHY: Errors"
    assert any(each.startswith("Time to first token: ") for each in judgement.scope.unseen)
    plan = freeze(plan_of(story.share, required=(ERRORS, FIRST_TOKEN)), evidence, story.end_ms)
    (stage,) = forecast_stages(plan, evidence)
    assert [each.name for each in stage.metrics if each.required] == [ERRORS]
