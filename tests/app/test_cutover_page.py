"""The cutover page as a reader meets it: the answer, its reason, and what it rests on, for every verdict."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from streamlit.testing.v1 import AppTest

from app import selection
from app.charts import distributions
from app.cutovers import answer, cutovers, emulated, journals, timeline, verdicts
from app.cutovers.judging import CutoverView, WarmReplicas, count_warm
from app.elements import display
from app.selection import TimeRange
from servescope.console import JOURNAL_VARIABLE
from servescope.cutover.comparison.freezing import freeze
from servescope.cutover.judgement import (
    Cause,
    Decided,
    EffectSpan,
    FiringAlert,
    Judgement,
    MetricJudgement,
    OverallRatio,
    Verdict,
)
from servescope.cutover.plan.plan import PlanChangedError
from servescope.cutover.verdict.judge import fold_evidence
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import list_runs, start_run
from servescope.store.embedded import Store
from tests.app.support.canned_cutover import (
    DECISIONS,
    EVIDENCE,
    FOLDED,
    JUDGEMENT,
    METRICS_JUDGED,
    NOW_MS,
    RUN,
    STAGES,
    START_MS,
    make_cutover_view,
    make_judgement,
)
from tests.support.console_pages import charts, html, open_first, open_view
from tests.support.cutover_evidence import Side, Story, evidence_of, plan_of

pytestmark = pytest.mark.slow

Show = Callable[[CutoverView | cutovers.Missing], AppTest]


@pytest.fixture
def show(empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Show:
    """Opens the cutover page on what is given in place of what the judge answers."""

    def show_(view: CutoverView | cutovers.Missing) -> AppTest:
        monkeypatch.setattr(cutovers, "current_run", lambda: view if isinstance(view, cutovers.Missing) else RUN)
        monkeypatch.setattr(cutovers, "check_plan", lambda run: None)
        monkeypatch.setattr(cutovers, "read_view", lambda store, run: view)
        return open_view("cutover")

    return show_


@pytest.mark.parametrize(
    ("verdict", "advice"),
    [("HEALTHY", "Go on"), ("INCONCLUSIVE", "Hold"), ("DEGRADED", "Roll back"), ("NO DATA", "Hold")],
)
def test_the_answer_comes_first(show: Show, verdict: Verdict, advice: str) -> None:
    """The first thing on the first page is what to do, with the verdict as a word and the reason in a sentence."""
    view = make_cutover_view(verdict)
    answer = show(view).get("html")[0].proto.body

    assert f">{advice}<" in answer
    assert verdict in answer
    assert view.judgement.reason.replace("'", "&#x27;") in answer
    assert answer.index(advice) < answer.index(verdict)


def test_every_metric_is_in_the_forest_plot(show: Show) -> None:
    """Each metric has a row with its ratio v2 ÷ v1, its interval, its margin and why; worst first, required first."""
    rows = re.findall(r"<tr><th scope=\"row\".*?</tr>", html(show(make_cutover_view())), re.DOTALL)[
        : len(METRICS_JUDGED) - 1
    ]
    titles = [re.findall(r"<div>([^<]+)</div>", row)[0] for row in rows]
    first_token = rows[titles.index("Time to first token")]

    assert sorted([*titles, "Speculation rate"]) == sorted(each.title for each in METRICS_JUDGED)
    assert titles[0] in ("Time to first token", "Errors")
    for part in ("× 1.04", "0.96 – 1.12", "10 % worse", "62 %", "about 1 h 20 min more", "the margin of 10 %"):
        assert part in first_token


def test_ratio_over_the_whole_run_is_a_tooltip(show: Show) -> None:
    """Beside the ratio of the stage is that of all stages, from the second stage on."""
    view = make_cutover_view()
    whole = OverallRatio(1.12, 1.04, 1.21)
    metrics = tuple(replace(each, overall=whole if each.ratio else None) for each in view.judgement.metrics)

    def text_of_stage(index: int) -> str:
        stage = replace(view.judgement.stage, index=index)
        return html(show(replace(view, judgement=replace(view.judgement, metrics=metrics, stage=stage))))

    assert "Over the whole run: × 1.12, interval 1.04 – 1.21" in text_of_stage(1)
    assert "Over the whole run" not in text_of_stage(0)


def test_reported_metrics_without_data_are_one_line(show: Show) -> None:
    """A metric that neither stack has and that never decides is named below the others, without a row of dashes."""
    view = make_cutover_view()
    last = view.judgement.metrics[-1]
    empty = replace(last, required=False, ratio=None, low=None, high=None, v1=None, v2=None)
    text = html(show(replace(view, judgement=replace(view.judgement, metrics=(*view.judgement.metrics[:-1], empty)))))

    assert f"without data in this stage: {empty.title}" in text
    assert f"<div>{empty.title}</div>" not in text


def test_ratio_is_not_flipped_but_worse_is_always_right() -> None:
    """A faster v2 has a ratio above 1 in figures and lies left of "same"; a slower one lies right of it."""
    faster = next(each for each in METRICS_JUDGED if each.better == "higher")
    slower = next(each for each in METRICS_JUDGED if each.better == "lower" and each.ratio and each.ratio > 1)

    assert faster.ratio is not None
    assert faster.ratio > 1.0
    assert (verdicts.worse_by(faster, faster.ratio) or 0.0) < 0.0
    assert (verdicts.worse_by(slower, slower.ratio) or 0.0) > 0.0
    assert verdicts.worse_by(slower, 1.1) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("value", "band", "place"),
    [
        (50_000.0, (50_000.0, 150_000.0), -1.0),
        (150_000.0, (50_000.0, 150_000.0), 1.0),
        (0.4, (0.4, None), -1.0),
        (0.8, (0.4, None), 0.0),
        (0.5, (None, 0.5), 1.0),
        (0.5, (None, None), None),
    ],
)
def test_level_is_placed_within_its_band(
    value: float, band: tuple[float | None, float | None], place: float | None
) -> None:
    """The ends of a band are one margin to either side of its middle; without ends there is no place."""
    found = verdicts.place_in_band(value, *band)

    assert found == (None if place is None else pytest.approx(place))


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (METRICS_JUDGED[1], "10 % worse"),
        (METRICS_JUDGED[3], "2 ×"),
        (METRICS_JUDGED[4], "−5 % to 15 %"),
        (METRICS_JUDGED[6], "at least 40 %"),
    ],
)
def test_margin_reads_as_people_say_it(metric: MetricJudgement, text: str) -> None:
    """A margin is a percentage, a factor, or the ends of a band."""
    assert verdicts.describe_margin(metric) == text


def test_an_estimate_beyond_the_plot_is_an_arrow_alone(show: Show) -> None:
    """An interval that is wholly beyond the plot has no bar that hides the arrow."""
    far = replace(METRICS_JUDGED[1], verdict="HEALTHY", cause="better", ratio=0.27, low=0.26, high=0.28)
    view = make_cutover_view("HEALTHY")
    row = html(show(replace(view, judgement=replace(view.judgement, metrics=(far,)))))

    assert "off left good" in row
    assert 'class="interval' not in row


def test_latched_harm_says_what_it_would_be_without(show: Show) -> None:
    """A DEGRADED that nobody acknowledged says since when, and what the live verdict is."""
    text = html(show(make_cutover_view("DEGRADED")))

    assert "nobody has acknowledged it; without it the verdict would be INCONCLUSIVE" in text
    assert "beyond margin" in text


def test_efficiency_is_one_line_that_never_decides(show: Show) -> None:
    """Efficiency is in the answer in one sentence, marked as reported only."""
    text = html(show(make_cutover_view()))

    assert "v2 serves 1.42 × (1.35–1.49) the tokens per GPU" in text
    assert "reported, never decides" in text


def test_what_a_stack_cannot_report_is_named(show: Show) -> None:
    """Each metric that one stack cannot report is named with the reason, and each span that was not observed."""
    text = html(show(make_cutover_view()))

    for name, why in JUDGEMENT.incomparable.items():
        assert name in text
        assert why in text
    assert "the collector did not scrape" in text


def test_warm_replicas_are_counted(show: Show) -> None:
    """An autoscaler's young replica is one of several that serve, and does not make a stack cold as a whole."""
    view = replace(make_cutover_view(), warm=(WarmReplicas(10, 12), WarmReplicas(2, 2)))
    text = re.sub(r"<[^>]*>", " ", html(show(view)))

    assert "10 of 12 that serve now" in text
    assert "2 of 2 warm" in text


def test_a_young_replica_is_not_warm() -> None:
    """Of the replicas that served in the last block, those count that may be compared."""
    story = Story(past_hours=26, hours=1, v1=Side(replicas=3), v2=Side(replicas=2, warm=False, slower=1.3))
    evidence = evidence_of(story)
    frozen = freeze(plan_of(story.share), evidence, story.started_ms)

    assert count_warm(frozen, fold_evidence(frozen, evidence, (), story.end_ms)) == ((3, 3), (0, 2))


def test_share_of_requests_is_what_both_arms_finished() -> None:
    """v2's share by block is of all requests: 0 before the cutover, about a quarter in the last stage."""
    share = make_cutover_view().share

    assert share.iloc[0] == 0.0
    assert share.iloc[-12:].mean() == pytest.approx(0.25, abs=0.03)


def test_planned_share_follows_the_decisions() -> None:
    """The planned share steps at each advance and is 0 after a rollback."""
    rolled_back = (*DECISIONS, DECISIONS[-1].__class__("rollback", DECISIONS[-1].at_ms + 1000, "anna", "errors"))
    steps = timeline.plan_steps(STAGES, rolled_back, TimeRange(0, DECISIONS[-1].at_ms + 5000, live=True))

    assert [share for _, share in steps] == [0.01, 0.05, 0.25, 0.0, 0.0]
    assert timeline.plan_steps(STAGES, (), TimeRange(0, 1, live=True)) == []


def test_timeline_has_verdicts_stages_decisions_deploys_and_alerts(show: Show) -> None:
    """Below the share there is a lane for each of what changed, in that order; an alert lasts until it is resolved."""
    drawn = charts(show(make_cutover_view()))
    lanes = next(chart for chart in drawn if "title" not in chart)
    view = make_cutover_view()
    chart = timeline.draw_lanes(view.judgement.changes, STAGES, DECISIONS, EVIDENCE.events, view.span)
    alert = chart.data[chart.data["lane"] == "alerts"].iloc[0]

    assert lanes["layer"][0]["encoding"]["y"]["sort"] == ["verdict", "stage", "decisions", "deploys", "alerts"]
    assert alert["end"] - alert["start"] == EVIDENCE.events[2].time_ms - EVIDENCE.events[1].time_ms


def test_charts_are_valid(show: Show) -> None:
    """Altair accepts every chart of the page."""
    altair = pytest.importorskip("altair")
    drawn = charts(show(make_cutover_view()))

    assert len(drawn) == 4
    for chart in drawn:
        altair.LayerChart.validate({**chart, "data": {"name": "given"}})


def test_distribution_is_at_shared_edges_only() -> None:
    """Both arms have the share above each edge that both have; a histogram that nobody observed has none."""
    found = distributions.compare_distributions("time_to_first_token_seconds", FOLDED, JUDGEMENT.stage.since_ms)

    assert found is not None
    assert found.v1[found.edges.index(0.25)] == pytest.approx(0.69, abs=0.02)
    assert list(found.v2) == sorted(found.v2, reverse=True)
    assert distributions.compare_distributions("output_tokens_per_request", FOLDED, 0) is None


def test_missing_plan_says_what_to_do_next(show: Show) -> None:
    """Without a plan the page is one sentence with the command that comes next."""
    page = show(cutovers.Missing("No cutover is planned here yet.", "servescope judge plan"))

    assert page.info[0].value == "No cutover is planned here yet."
    assert page.code[0].value == "servescope judge plan"


def test_it_is_the_first_page_once_a_cutover_was_started(show: Show) -> None:
    """Before, that is the fleet."""
    show(make_cutover_view())
    assert open_first().subheader[0].value == "Cutover"
    show(cutovers.Missing("No cutover is planned here yet.", "servescope judge plan"))
    assert not [each.value for each in open_first().subheader if each.value == "Cutover"]


def test_an_edited_plan_is_reported(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that was edited after its run froze it is named above the judgement of the frozen one."""
    page = show(make_cutover_view())
    assert not page.warning

    def refuse(run: object) -> None:
        raise PlanChangedError("plan.toml: margin is 0.2, frozen 0.1")

    monkeypatch.setattr(cutovers, "check_plan", refuse)
    page.run()

    assert page.warning[0].value == "plan.toml: margin is 0.2, frozen 0.1. Judged as it was frozen."


# --- What a tired reader trusts ---------------------------------------------------------------------------------------

UTC_ZONE = ZoneInfo("UTC")


def text_of(show: Show, judgement: Judgement, verdict: Verdict = "INCONCLUSIVE") -> str:
    """What a reader reads of the tables and tiles of a judgement."""
    shown = html(show(replace(make_cutover_view(verdict), judgement=judgement)))
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", shown))


def test_go_on_says_to_which_share() -> None:
    """The next stage's, or that there is none; hold and roll back say at or from which."""
    healthy = make_judgement("HEALTHY")
    last = replace(healthy, stage=replace(healthy.stage, index=len(STAGES) - 1))
    planned = display.format_planned(STAGES[healthy.stage.index + 1].share)

    assert f">to {planned} on v2<" in answer.draw_answer(healthy, UTC_ZONE, STAGES)
    assert "is the last stage" in answer.draw_answer(last, UTC_ZONE, STAGES)
    assert ">from 25 % on v2<" in answer.draw_answer(make_judgement("DEGRADED"), UTC_ZONE, STAGES)
    assert ">at 25 % on v2<" in answer.draw_answer(make_judgement("INCONCLUSIVE"), UTC_ZONE, STAGES)


def test_an_alert_that_pages_is_in_the_answer(show: Show) -> None:
    """By name, with the arm, the replica and since when; above the reason."""
    fired = FiringAlert("ServescopeUpButNotServing", "v2", NOW_MS - 600_000, "A replica is up and serves none.", "r-0")
    text = text_of(show, replace(make_judgement("HEALTHY"), alerts=(fired,), advice="hold"), "HEALTHY")

    assert "ServescopeUpButNotServing fires on v2, r-0, since" in text
    assert text.index("A replica is up and serves none.") < text.index("Still to settle")
    assert "UpButNotServing" not in text_of(show, make_judgement("HEALTHY"), "HEALTHY")


def test_a_rollback_says_who_decided(show: Show) -> None:
    """Not "Roll back", as that was done: by whom, when and why."""
    decided = Decided(NOW_MS - 60_000, "anna", "slow at 25 %")
    text = text_of(show, replace(make_judgement("DEGRADED"), rolled_back=decided), "DEGRADED")

    assert "Rolled back from 25 % on v2" in text
    assert "Rolled back by anna at" in text
    assert ": slow at 25 %." in text
    assert "Roll back" not in text


def test_a_rollback_leaves_nothing_to_acknowledge(show: Show) -> None:
    """Harm that was proven is said, and not that it waits for somebody."""
    decided = Decided(NOW_MS - 60_000, "anna", "slow at 25 %")
    text = text_of(show, replace(make_judgement("DEGRADED"), live="DEGRADED", rolled_back=decided), "DEGRADED")

    assert "Harm was proven at" in text
    assert "nobody has acknowledged" not in text


def test_an_acknowledgement_says_who_and_why(show: Show) -> None:
    """Once nothing is latched; while something is, it was of harm of before."""
    decided = Decided(NOW_MS - 60_000, "bo", "the old driver, replaced")
    judgement = replace(make_judgement(), acknowledged=decided)

    assert "was acknowledged by bo at" in text_of(show, judgement)
    assert "the old driver, replaced" in text_of(show, judgement)
    assert "acknowledged by bo" not in text_of(show, replace(judgement, latched_since_ms=NOW_MS))


def test_harm_that_goes_on_would_not_end_with_an_acknowledgement(show: Show) -> None:
    """Where the live verdict is DEGRADED too, the latch is said and nothing of what it would be without."""
    judgement = replace(make_judgement("DEGRADED"), live="DEGRADED")
    text = text_of(show, judgement, "DEGRADED")

    assert "nobody has acknowledged it." in text
    assert "without it" not in text


def waiting(cause: Cause, **changes: Any) -> Judgement:
    """A judgement whose required metrics all wait for something else than data."""
    judgement = make_judgement()
    metrics = tuple(
        replace(each, verdict="INCONCLUSIVE", cause=cause, eta_seconds=None, information=9e9)
        if each.required else each
        for each in judgement.metrics
    )  # fmt: skip
    return replace(judgement, metrics=metrics, **changes)


@pytest.mark.parametrize(
    ("cause", "word"),
    [
        ("load", "like loads"), ("warming", "warm replicas"), ("mix", "the same prompts"),
        ("share", "the planned share"), ("one replica", "one replica of v2"), ("rejected", "whole counters"),
        ("prompts unknown", "the sizes of prompts"), ("explained by load", "like loads"),
        ("explained by reuse", "like reuse"),
    ],
)  # fmt: skip
def test_what_is_waited_for_is_said_and_no_time(show: Show, cause: Cause, word: str) -> None:
    """Not "about 0 s" and 100 % for hours: that loads, warmth or prompts are waited for, and how to get them."""
    text = text_of(show, waiting(cause, waits_for="what there is to do"))
    first = text[: text.index("Reported only")]

    assert f"Waits for {word}" in text
    assert "how long cannot be said" in text
    assert "Waits for what there is to do." in text
    assert f"waits for {word}" in first
    assert "about 0 s" not in text
    assert "100 %" not in first


def test_a_metric_that_has_gathered_enough_is_settled_by_the_next_block() -> None:
    """Not in about 0 s."""
    judgement = make_judgement()
    metrics = tuple(replace(each, eta_seconds=0.0) for each in judgement.metrics if each.verdict == "INCONCLUSIVE")
    tiles = verdicts.draw_state(replace(judgement, metrics=metrics), WarmReplicas(2, 2))

    assert "by the next block" in tiles
    assert "0 s" not in re.sub(r"<[^>]*>", " ", tiles)


def test_no_arrow_to_better_in_a_row_that_harms(show: Show) -> None:
    """A mean that is better while slow requests are more has a quiet point, and says so."""
    view = make_cutover_view("DEGRADED")
    worse = next(each for each in view.judgement.metrics if each.verdict == "DEGRADED")
    odd = replace(worse, ratio=0.5, low=0.45, high=0.55, reason=f"{worse.title} has more slow requests than on v1")
    shown = html(show(replace(view, judgement=replace(view.judgement, metrics=(odd,)))))

    assert "off left critical" not in shown
    assert "point critical" not in shown
    assert "slow requests are more" in shown


@pytest.mark.parametrize(
    ("first_end_ms", "sentence"),
    [
        (NOW_MS - 3_600_000, r"was × 3.70 until \d\d:\d\d, × 1.20 since(?! \d\d:)"),
        # What was between both ratios is of neither.
        (NOW_MS - 7_200_000, r"was × 3.70 until (?:\d+ \w+ )?\d\d:\d\d, × 1.20 since \d\d:\d\d"),
    ],
)
def test_a_change_of_the_effect_is_beside_the_ratio(show: Show, first_end_ms: int, sentence: str) -> None:
    """What it was until when, and what it is since, in the reader's time."""
    view = make_cutover_view()
    metric = replace(
        METRICS_JUDGED[1],
        spans=(
            EffectSpan(START_MS, first_end_ms, 3.7, 3.6, 3.8),
            EffectSpan(NOW_MS - 3_600_000, NOW_MS, 1.2, 1.1, 1.3),
        ),
    )  # fmt: skip
    assert re.search(sentence, text_of(show, replace(view.judgement, metrics=(metric,))))


def test_plain_figures_are_named_beside_those_that_are_compared(show: Show) -> None:
    """Only where they differ; what a ratio of counters is among has its unit."""
    metric = METRICS_JUDGED[1]
    assert metric.v1 is not None
    differs = replace(metric, v1=replace(metric.v1, everything=2.0, everything_count=1e6), counted="seconds")
    same = replace(metric, v1=replace(metric.v1, everything=metric.v1.value))
    judgement = make_judgement()

    assert "all 2 s" in text_of(show, replace(judgement, metrics=(differs,)))
    assert "61.2 k seconds" in text_of(show, replace(judgement, metrics=(differs,)))
    assert " all " not in text_of(show, replace(judgement, metrics=(same,)))


def test_times_of_a_reason_are_the_readers() -> None:
    """The judge says UTC, and the page the reader's time, with the day where that is another one."""
    at_ms = 1_795_000_200_000
    shown = display.in_zone("worse since 2026-11-18 06:10 UTC, for 3 h", at_ms, ZoneInfo("Asia/Tokyo"))
    assert shown == "worse since 15:10, for 3 h"
    assert display.in_zone("since 2026-11-17 06:10 UTC", at_ms, UTC_ZONE) == "since 17 Nov 06:10"


def test_an_interval_of_an_old_journal_without_its_estimate_is_named() -> None:
    """What was written down stays: it is not shown as an interval of that ratio."""
    metric = {"name": "tps_per_request", "required": True, "ratio": 3.703, "low": 3.681, "high": 3.572}
    body: dict[str, Any] = {"judgement": {"verdict": "INCONCLUSIVE", "reason": "r", "metrics": [metric]}, "stage": 1}
    entry = replace(RUN.entries[-1], kind="advance", body=body)
    text = re.sub(r"<[^>]*>", " ", journals.draw_decisions([(RUN, entry)], UTC_ZONE))

    assert "× 3.70 (its interval was recorded of other blocks)" in text
    assert "3.68" not in text
    whole = {**metric, "low": 3.68, "high": 3.75}
    entry = replace(entry, body={**body, "judgement": {**body["judgement"], "metrics": [whole]}})
    assert "× 3.70 (3.68 – 3.75)" in re.sub(r"<[^>]*>", " ", journals.draw_decisions([(RUN, entry)], UTC_ZONE))


# --- The controls of an emulated cutover ------------------------------------------------------------------------------


class Client:
    """The switches of an emulator that runs these deployments."""

    def __init__(self, *deployments: str) -> None:
        self.deployments = deployments
        self.shares: list[float] = []

    def read(self) -> dict[str, Any]:
        return {"deployments": {each: {} for each in self.deployments}, "active": []}

    def set_share(self, deployment: str, share: float, *, follow_seconds: float) -> None:
        self.shares.append(share)


def test_controls_that_are_gone_say_why(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rollback, who did it and where to go on; without v2 in the emulator, that."""
    monkeypatch.setattr(emulated, "control", lambda: Client("other"))
    captions = [each.value for each in show(make_cutover_view()).caption]
    assert any("no slider and no switch" in each for each in captions)

    last = replace(RUN.entries[-1], kind="rollback", by="anna", reason="slow", body={})
    ended = replace(RUN, entries=(*RUN.entries, last), ended="rolled back")
    monkeypatch.setattr(f"{__name__}.RUN", ended)
    captions = [each.value for each in show(make_cutover_view("DEGRADED")).caption]
    assert any("was rolled back by anna" in each and "Plan page" in each for each in captions)


def test_a_stage_that_the_slider_moved_keeps_its_judgement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision is written down with the judgement of that moment, forwards and backwards."""
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "journal.db"))
    monkeypatch.setattr(selection, "now_ms", lambda: NOW_MS)
    monkeypatch.setattr(cutovers, "read_view", lambda store, run: make_cutover_view("HEALTHY"))
    monkeypatch.setattr(emulated, "freeze_plan", lambda store, plan, now_ms: RUN.frozen)
    with CutoverJournal(tmp_path / "journal.db") as journal:
        run = start_run(journal, RUN.frozen, by="anna", reason="as agreed")
    store = cast("Store", None)
    emulated.move_to(store, run, 2)
    with CutoverJournal(tmp_path / "journal.db") as journal:
        moved = list_runs(journal)[-1]
    emulated.move_to(store, moved, 0)
    with CutoverJournal(tmp_path / "journal.db") as journal:
        first, second = list_runs(journal)

    kinds = [entry.kind for entry in first.entries]
    assert kinds == ["start", "advance", "advance", "rollback"]
    assert [entry.body["judgement"]["verdict"] for entry in first.entries[1:]] == ["HEALTHY"] * 3
    assert second.stage == 0


@pytest.mark.parametrize(("v2", "cause", "word"), [
    (0.5, "needs data", "matched"), (0.1, "needs data", "not matched"), (0.1, "load", "not matched"),
    (0.5, "load", "not matched yet"),
])  # fmt: skip
def test_loads_are_matched_by_the_figures_beside_the_word(show: Show, v2: float, cause: Cause, word: str) -> None:
    """Like loads that a metric still waits for are not matched yet."""
    judgement = waiting(cause)
    assert judgement.v1 is not None
    arms = [replace(judgement.v1, requests_per_replica_second=load) for load in (0.6, v2)]
    text = text_of(show, replace(judgement, v1=arms[0], v2=arms[1]))

    assert f"Load {word} v1 0.6 · v2 {v2} requests/s per replica in the last hour" in text


def test_what_has_no_data_is_not_settled(show: Show) -> None:
    """Nothing is open, and it is said that something is missing."""
    judgement = make_judgement("NO DATA")
    settled = [each for each in judgement.metrics if each.required and each.verdict in ("HEALTHY", "DEGRADED")]
    lacking = [each for each in judgement.metrics if each.required and each.verdict == "NO DATA"]
    text = text_of(show, judgement, "NO DATA")

    assert lacking
    assert f"Still to settle – {len(settled)} required metrics settled, {len(lacking)} without data" in text


def test_a_run_that_was_rolled_back_settles_nothing(show: Show) -> None:
    """No duration and nothing that is waited for, in the tiles and in the rows."""
    text = text_of(show, replace(waiting("load"), rolled_back=Decided(NOW_MS - 60_000, "anna", "slow at 25 %")))

    assert "Still to settle – the run was rolled back" in text
    assert "waits for" not in text.casefold()
