"""The report and the text of a judgement: what a person reads of it, and that nothing else is needed to read it."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from servescope.contract.events import Event
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.forecast.duration import MetricForecast, StageForecast
from servescope.cutover.judgement import VERDICTS, Cause, PromptMix, Verdict
from servescope.judge.report.report import Recorded, render_report
from servescope.judge.report.text import (
    describe_forecast,
    describe_judgement,
    duration,
    explain_judgement,
    gathered,
    margin,
    number,
)
from tests.support.cutover_plans import cutover_plan, frozen_plan
from tests.support.judgements import AT_MS, START_MS, judgement

HEAD = "ab" * 32
DECISIONS = (
    (Decision("start", START_MS, "ada", "first try", 0), ""),
    (Decision("advance", START_MS + 600_000, "ada", "all is well", 1), "HEALTHY"),
    (Decision("hold", AT_MS, "ben <ben@example.com>", "is this & that harmful?"), "DEGRADED"),
)
EVENTS = (Event(START_MS + 900_000, "deploy", (), "deploy chat-v2 1.4.2"),)


def report(verdict: Verdict = "DEGRADED") -> str:
    """The report of a run with decisions."""
    recorded = Recorded(2, DECISIONS, "chat.journal.db", HEAD)
    return render_report(judgement(verdict), frozen_plan(), EVENTS, recorded)


class Tags(HTMLParser):
    """The tags that are open, those that did not match, and what the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.loaded += [f"{tag} {name}" for name, _ in attributes if name in ("src", "href", "data", "action")]
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_the_report_has_the_hashes_of_what_is_configured() -> None:
    """Those that the plan records, by what they are of."""
    plan = replace(
        cutover_plan(), configurations={"v2": "0a" * 32, "management_api": "0b" * 32}, checklist=("Watch <x>",)
    )
    text = render_report(judgement("HEALTHY"), frozen_plan(plan), ())

    assert "<h2>After the move</h2>\n<ul><li>Watch &lt;x&gt;</li></ul>" in text
    assert f"<p>Configuration of v2: <code>{'0a' * 32}</code></p>" in text
    assert f"<p>Configuration of v2 in the Management API: <code>{'0b' * 32}</code></p>" in text


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_report_needs_nothing_else(verdict: Verdict) -> None:
    """It is well-formed, and loads nothing: no script, no font, no picture from elsewhere."""
    text = report(verdict)
    tags = Tags()
    tags.feed(text)

    assert (tags.open, tags.wrong, tags.loaded) == ([], [], [])
    assert "<script" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_the_report_shows_what_was_judged_and_who_decided() -> None:
    """Verdict, reason, each metric with its interval, the decisions with their verdicts, and both hashes."""
    text = report()

    for shown in (
        "DEGRADED, beyond margin", "roll back", "proven beyond the margin of 10 %", "1.22–1.41",
        "ben &lt;ben@example.com&gt;", "is this &amp; that harmful?", "all is well", "deploy chat-v2 1.4.2",
        "v1 observes per output event, v2 per token.", "the judge and the collector were down",
        "v2 serves 1.42 × (1.35–1.49) the tokens per GPU.", HEAD, judgement().plan_hash,
        "<td>1.12 (1.04–1.21)</td>", "<td>0.80 (0.00–∞)</td>",
        "<td>62</td><td>31 000</td><td>on 6 of 6 replicas, in 51 of 144 blocks of a replica</td>",
        "<td>18</td><td>10 200</td><td>on 1 of 2 replicas, in 3 of 48 blocks of a replica</td>",
    ):  # fmt: skip
        assert shown in text, shown


def test_a_judgement_without_a_journal_has_a_report_without_decisions() -> None:
    """And says nothing of a journal."""
    text = render_report(judgement(), frozen_plan(), ())

    assert "<h2>Decisions</h2>" not in text
    assert "journal" not in text


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_interval_of_each_metric_is_drawn_where_its_figures_are(verdict: Verdict) -> None:
    """The point lies between the ends of its interval; a metric without a ratio has none."""
    text = report(verdict)
    intervals = re.findall(r'class="interval [^"]*" x1="([\d.]+)" x2="([\d.]+)"', text)
    points = re.findall(r'class="point [^"]*" cx="([\d.]+)"', text)

    assert len(points) == len(intervals) == (0 if verdict == "NO DATA" else 2)
    for (low, high), point in zip(intervals, points, strict=True):
        assert float(low) < float(point) < float(high)


def test_what_would_change_a_verdict_has_its_label() -> None:
    """It is a sentence of its own, and no part of the reason."""
    cells = re.findall(r"<td>([^<]*)</td>", report("HEALTHY"))
    assert any(
        re.fullmatch(r"Errors are 0\.9 × .*; would change it: DEGRADED when the lower end .*", each) for each in cells
    )


def test_a_forecast_is_one_duration_and_events_are_times() -> None:
    """A table never says another time than the sentence above it, nor a percentage of what is counted."""
    waits = (
        MetricForecast("time_to_first_token_seconds", "Time to first token", True, 0.1, 7_200.0, 1.7),
        MetricForecast("request_error_share", "Errors", True, 1.0, 190_000.0, 1.7),
    )
    text = describe_forecast([StageForecast(0, 0.05, 1, 18_000.0, 1_800.0, waits)])

    assert "stage 1, 5 % on v2: about 2 d 5 h, longest for Errors" in text
    assert re.search(r"Errors +2 × +2 d 5 h +from 2\.7 × on", text), text
    assert re.search(r"Time to first token +10 % worse +2 h +from 170 % worse on", text), text


def test_the_text_begins_with_the_verdict_and_its_reason() -> None:
    """Then the metrics, one a line."""
    lines = describe_judgement(judgement("INCONCLUSIVE")).splitlines()

    assert lines[0] == "INCONCLUSIVE: hold"
    assert lines[1] == "Time to first token is 1.02 × v1's (0.93–1.12); 40 more minutes settle 10 % at this share."
    assert "stage 2 of 4 (25 % on v2, observed 24.7 %)" in lines[3]
    row = next(line for line in lines if line.startswith("Time to first token  "))
    assert row.split()[4:] == ["INCONCLUSIVE", "1.02", "0.93–1.12", "10", "%", "worse", "67", "%", "40", "min"]


def test_latched_harm_says_how_it_is_acknowledged() -> None:
    """And what the verdict would be without."""
    text = describe_judgement(replace(judgement("DEGRADED"), live="HEALTHY"))

    assert "harm was proven at 2026-11-18 12:55 UTC" in text
    assert "it would be HEALTHY: `servescope judge decide acknowledge`" in text


def test_an_explanation_has_the_queries_and_what_would_flip_the_verdict() -> None:
    """For one metric or for all; with arms, counts, resets, noise, edges, interval and margin."""
    metric = replace(judgement("DEGRADED").metrics[1], name="request_error_share")
    shown = replace(judgement("DEGRADED"), metrics=(judgement("DEGRADED").metrics[0], metric))
    text = explain_judgement(shown, frozen_plan(), "time_to_first_token_seconds")

    for part in (
        'time_to_first_token_seconds_sum{deployment_id="chat-v1"}', 'deployment_id="chat-v2"', "n = 31 000",
        "6 replicas", "0 resets", "margin 10 % worse", "noise of a block 0.0707", "calibrated on 576 blocks",
        "above 1 seconds: v1 5 %, v2 6 %", "DEGRADED when the lower end exceeds 1.02",
        "over the whole run, all stages together: 1.12 (1.04–1.21)",
    ):  # fmt: skip
        assert part in text, part
    assert "request_error_share" not in text
    everything = explain_judgement(shown, frozen_plan())
    assert "request_error_share" in everything
    assert "n = 10 200, 18 events on 1 of 2 replicas, in 3 of 48 blocks of a replica" in everything


def test_values_are_written_for_people() -> None:
    """Three digits, minutes to days, the side of the margin that harms."""
    assert [number(value) for value in (None, 0.000123, 0.0421, 1.0, 999.4, 1800.0, 31000.0)] == [
        "–", "0.000123", "0.0421", "1", "999", "1 800", "31 000",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (None, 59.0, 2400.0, 18_000.0, 400_000.0)] == [
        "–", "59 s", "40 min", "5 h", "4 d 15 h",
    ]  # fmt: skip
    assert margin(judgement().metrics[0]) == "10 % worse"
    assert margin(replace(judgement().metrics[0], better=None)) == "10 % more or less"
    assert margin(replace(judgement().metrics[0], name="request_error_share", margin=2.0)) == "3 ×"
    assert margin(judgement().metrics[2]) == "50\xa0000 to 150\xa0000 tokens"
    assert margin(replace(judgement().metrics[2], unit="ratio", band=(-0.05, 0.15))) == "−5 % to 15 %"
    assert margin(replace(judgement().metrics[2], unit="ratio", band=(0.4, None))) == "at least 40 %"


def test_the_mix_of_prompts_and_its_distance_are_two_sentences() -> None:
    """The reason of a mix is a clause, as a judge makes it."""
    page = render_report(
        judgement(mix=PromptMix(0.003, False, False, False, "the arms get the same")), frozen_plan(), ()
    )

    assert "Prompt mix: the arms get the same. Total variation distance 0.003." in page


@pytest.mark.parametrize(("verdict", "cause", "shown"), [
    ("INCONCLUSIVE", "needs data", "67 %"), ("INCONCLUSIVE", "warming", "–"), ("NO DATA", "stale", "–"),
    ("HEALTHY", "not worse", "67 %"),
])  # fmt: skip
def test_what_information_does_not_settle_is_not_gathered(verdict: Verdict, cause: Cause, shown: str) -> None:
    """No 100 % beside a verdict that waits for something else."""
    assert gathered(replace(judgement(verdict).metrics[0], cause=cause)) == shown


def test_a_duration_of_a_stage_is_said_once() -> None:
    """A slow start that the slowest metric does not wait for takes as long, and not "about 1 d 4 h" once more."""
    waits = (MetricForecast("request_error_share", "Errors", True, 1.0, 100_000.0, 1.7, cold_seconds=100_000.0),)
    stage = StageForecast(0, 0.05, 1, 18_000.0, 1_800.0, waits, 5_400.0)
    slower = replace(stage, metrics=(replace(waits[0], cold_seconds=108_000.0),))

    assert "about 1 d 4 h, longest for Errors" in stage.sentence
    assert stage.sentence.endswith("; as long with 1 h 30 min, where they start slowly or have cold caches")
    assert slower.sentence.endswith("; about 1 d 6 h with 1 h 30 min, where they start slowly or have cold caches")
