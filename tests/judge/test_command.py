"""`servescope judge` as an operator uses it: a run from start to verdict, exit codes, and what is refused."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from servescope.judge.arguments import read_plan
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.report.schema import judgement_schema
from tests.support.commands import Done, run
from tests.support.cutover_evidence import Side, Story
from tests.support.cutover_past import MadePast, given, made_past
from tests.support.cutover_plans import LEAST_PLAN

STAGES = "\n[[stages]]\nshare = 0.5\n\n[[stages]]\nshare = 1.0\n"
HOUR_MS = 3_600_000
EQUAL = Story(past_hours=26, hours=8, v2=Side(replicas=1))
SLOWER = Story(past_hours=26, hours=8, v2=Side(replicas=1, slower=1.5))

Judge = Callable[..., Done]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """The least plan, with two stages more."""
    path = tmp_path / "cutover.toml"
    path.write_text(LEAST_PLAN + STAGES, encoding="utf-8")
    return path


@pytest.fixture
def judge(plan: Path) -> Judge:
    """`servescope judge VERB … --plan cutover.toml`."""
    return lambda *words: run("judge", *words, "--plan", str(plan))


@pytest.fixture(scope="module")
def pasts() -> dict[str, MadePast]:
    """What is judged: two engines that are equal, and one that is slower."""
    return {"equal": made_past(EQUAL), "slower": made_past(SLOWER)}


@pytest.fixture
def equal(pasts: dict[str, MadePast]) -> Iterator[MadePast]:
    """A cutover between equal engines, at its start."""
    with given(pasts["equal"]) as past:
        past.now_ms, past.fails = EQUAL.started_ms, ""
        yield past


@pytest.fixture
def slower(pasts: dict[str, MadePast]) -> Iterator[MadePast]:
    """A cutover to an engine that is slower, at its start."""
    with given(pasts["slower"]) as past:
        past.now_ms, past.fails = SLOWER.started_ms, ""
        yield past


@pytest.mark.slow
def test_a_run_from_its_start_to_health(equal: MadePast, judge: Judge) -> None:
    """`start` freezes the plan; `run` waits, then says HEALTHY with code 0; `advance` begins the next stage."""
    begun = judge("start", "--by", "ada", "--reason", "first try")
    assert begun.returncode == 0, begun.stderr
    assert "run 1 of plan 'cutover' begins" in begun.stdout

    equal.now_ms += 60_000
    assert judge("run").returncode == 11
    equal.now_ms = EQUAL.end_ms
    healthy = judge("run")
    assert healthy.returncode == 0, healthy.stdout
    assert healthy.stdout.startswith("HEALTHY: go on\n")

    advanced = judge("decide", "advance", "--by", "ada", "--reason", "proven at 25 %")
    assert advanced.returncode == 0, advanced.stderr
    assert "stage 2 of 3 begins: 50 % on v2" in advanced.stdout
    assert "stage 2 of 3" in judge("run").stdout
    assert judge("verify").returncode == 0


def test_a_plan_says_beforehand_how_long_each_stage_takes(equal: MadePast, judge: Judge, plan: Path) -> None:
    """By stage and metric, while v2 is not there yet; at 100 % nothing can be proven, and it says so."""
    plan.write_text((LEAST_PLAN + STAGES).replace("chat-v2", "chat-v3"), encoding="utf-8")
    done = judge("plan")
    assert done.returncode == 0, done.stderr
    assert "stage 1, 25 % on v2: about " in done.stdout
    assert "Time to first token" in done.stdout
    stages = json.loads(judge("plan", "--format", "json").stdout)["stages"]

    assert [stage["share"] for stage in stages] == [0.25, 0.5, 1.0]
    assert stages[0]["seconds"] > 0
    assert stages[2]["seconds"] is None
    assert "cannot be proven healthy here" in stages[2]["sentence"]
    assert not plan.with_suffix(".journal.db").exists()


def test_a_plan_whose_v1_selects_nothing_is_refused(equal: MadePast, judge: Judge, plan: Path) -> None:
    """There is no past to plan from."""
    plan.write_text(LEAST_PLAN.replace("chat-v1", "chat-v0"), encoding="utf-8")

    assert "arm v1 of plan 'cutover' selects nothing" in judge("plan").stderr


def test_harm_is_code_10_until_it_is_acknowledged(slower: MadePast, judge: Judge) -> None:
    """Its reason names the metric; the journal has the judgement that a rollback was decided on."""
    judge("start")
    slower.now_ms = SLOWER.end_ms
    harmful = judge("run", "--format", "json")
    shown = json.loads(harmful.stdout)
    assert harmful.returncode == 10
    assert (shown["verdict"], shown["advice"]) == ("DEGRADED", "roll back")
    assert shown["latched_since"] is not None
    jsonschema.Draft202012Validator(judgement_schema()).validate(shown)

    back = judge("decide", "rollback", "--by", "ben", "--reason", "first tokens are late", "--format", "json")
    assert json.loads(back.stdout)["judgement"]["verdict"] == "DEGRADED"
    refused = judge("decide", "hold", "--by", "ben", "--reason", "too late")
    assert (refused.returncode, "has ended: rolled back" in refused.stderr) == (1, True)
    assert judge("start").stdout.startswith("run 2 of plan 'cutover' begins")


def test_one_stage_is_judged_without_a_journal(slower: MadePast, judge: Judge, plan: Path) -> None:
    """With `--since`; nothing is written."""
    slower.now_ms = SLOWER.end_ms
    done = judge("run", "--since", "8h", "--format", "json")

    assert done.returncode == 10, done.stderr
    stages = len(read_plan(plan).stages)
    assert (json.loads(done.stdout)["stage"]["index"], json.loads(done.stdout)["stage"]["count"]) == (0, stages)
    assert list(plan.parent.iterdir()) == [plan]


def test_a_stage_that_is_judged_alone_is_the_plans(slower: MadePast, judge: Judge, plan: Path) -> None:
    """`--stage 2` shows the second stage and its share, in every verb that shows one."""
    stages = read_plan(plan).stages
    slower.now_ms = SLOWER.end_ms

    for verb in ("run", "explain"):
        shown = judge(verb, "--since", "8h", "--stage", "2")
        expected = f"plan cutover, stage 2 of {len(stages)} ({100 * stages[1].share:g} % on v2"
        assert expected in shown.stdout, shown.stderr or shown.stdout
    report = plan.with_name("report.html")
    judge("report", "--since", "8h", "--stage", "2", "--out", str(report))
    assert f"stage 2 of {len(stages)}" in report.read_text(encoding="utf-8")


def test_a_v2_without_traffic_is_no_data(judge: Judge) -> None:
    """Code 12, with the reason."""
    with given(made_past(Story(past_hours=26, hours=2, share=0.0))) as past:
        done = judge("run", "--since", "2h")

    assert past.reads
    assert done.returncode == 12
    assert done.stdout.startswith("NO DATA")


def test_a_past_that_does_not_answer_wholly_is_no_data(equal: MadePast, judge: Judge) -> None:
    """It is named, and a run cannot be started on it."""
    judge("start")
    equal.now_ms = EQUAL.end_ms
    equal.fails = "http://prometheus:9090: a partial answer to query_range: store-7 is down"
    done = judge("run")
    assert done.returncode == 12
    assert "store-7 is down" in done.stdout

    refused = judge("start", "--replace", "--by", "ada", "--reason", "again")
    assert refused.returncode == 1
    assert "cannot be frozen: http://prometheus:9090: a partial answer" in refused.stderr


def test_an_earlier_time_is_judged_as_it_was(equal: MadePast, judge: Judge, plan: Path) -> None:
    """Whatever was observed since; and nothing is written to the journal."""
    judge("start")
    then_ms = equal.now_ms = EQUAL.started_ms + 3 * HOUR_MS
    live = json.loads(judge("run", "--format", "json").stdout)
    written = len(CutoverJournal(plan.with_suffix(".journal.db")).entries())
    equal.now_ms = EQUAL.end_ms
    later = judge("run", "--format", "json", "--at", live["at"])

    assert json.loads(later.stdout) == live
    assert then_ms < EQUAL.end_ms
    assert len(CutoverJournal(plan.with_suffix(".journal.db")).entries()) == written


@pytest.mark.slow
def test_an_explanation_and_a_report(slower: MadePast, judge: Judge, tmp_path: Path) -> None:
    """Of the run, with its decisions and the journal's last hash, which `verify` finds."""
    judge("start")
    slower.now_ms = SLOWER.end_ms
    explained = judge("explain", "--metric", "time_to_first_token_seconds")
    assert explained.returncode == 0, explained.stderr
    assert 'deployment_id="chat-v2"' in explained.stdout
    assert "would change it: " in explained.stdout

    judge("decide", "hold", "--by", "ada", "--reason", "let us see")
    page = tmp_path / "report.html"
    assert judge("report", "--out", str(page)).returncode == 0
    text = page.read_text(encoding="utf-8")
    head = CutoverJournal(tmp_path / "cutover.journal.db").entries()[-1].hash
    assert head in text
    assert "let us see" in text
    assert judge("verify", "--head", head).returncode == 0
    assert judge("verify", "--head", "0" * 64).returncode == 1


def test_an_excluded_span_is_left_out(equal: MadePast, judge: Judge) -> None:
    """And is shown with its reason."""
    judge("start")
    equal.now_ms = EQUAL.end_ms
    done = judge("decide", "exclude", "--by", "ada", "--reason", "deploy of v1", "--from", "4h", "--to", "3h")
    assert done.returncode == 0, done.stderr

    assert "deploy of v1" in judge("run").stdout


@pytest.mark.slow
def test_proven_harm_is_excluded_by_force_alone(slower: MadePast, judge: Judge) -> None:
    """Refused without; with it the verdict stays DEGRADED until it is acknowledged, and the exclusion is shown."""
    judge("start")
    slower.now_ms = SLOWER.end_ms
    assert judge("run").returncode == 10
    words = ("decide", "exclude", "--by", "ada", "--reason", "a noisy neighbour", "--from", "8h", "--to", "1h")

    refused = judge(*words)
    assert refused.returncode == 1
    assert "harm was proven at" in refused.stderr
    assert "--force" in refused.stderr
    forced = judge(*words, "--force")
    assert forced.returncode == 0, forced.stderr
    judged = judge("run")
    assert judged.returncode == 10
    assert "harm was proven, and ada excluded" in judged.stdout
    assert judge("decide", "hold", "--by", "ada", "--reason", "x", "--force").returncode == 2


def test_harm_is_not_excluded_as_if_before_it_was_known(slower: MadePast, judge: Judge) -> None:
    """A span is left out now, with what is known now: an earlier time would erase the latch, also by force."""
    judge("start")
    slower.now_ms = SLOWER.end_ms
    words = ("decide", "exclude", "--by", "ada", "--reason", "a deploy", "--from", "8h", "--to", "1h", "--at", "8h")
    for force in ((), ("--force",)):
        refused = judge(*words, *force)

        assert refused.returncode == 2
        assert "--at does not go with `exclude`" in refused.stderr
    assert judge("run").returncode == 10


# --- Refused ----------------------------------------------------------------------------------------------------------


def test_an_edited_plan_is_refused(equal: MadePast, judge: Judge, plan: Path) -> None:
    """By name, with what differs, and code 2; only a rollback is accepted."""
    judge("start")
    plan.write_text(LEAST_PLAN + STAGES.replace("0.5", "0.4"), encoding="utf-8")
    for words in (("run",), ("explain",), ("decide", "advance", "--by", "ada", "--reason", "x")):
        refused = judge(*words)
        assert refused.returncode == 2, words
        assert "was edited after run 1 froze it" in refused.stderr
        assert "stages[1].share is 0.4, frozen 0.5" in refused.stderr

    assert judge("decide", "rollback", "--by", "ada", "--reason", "x").returncode == 0


def test_a_damaged_journal_is_reported_by_entry(equal: MadePast, judge: Judge, plan: Path) -> None:
    """By every verb, with code 1."""
    judge("start")
    judge("decide", "hold", "--by", "ada", "--reason", "as planned")
    path = plan.with_suffix(".journal.db")
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER entries_are_not_changed")
    connection.execute("UPDATE entries SET by = 'eve' WHERE number = 2")
    connection.commit()
    connection.close()

    checked = judge("verify")
    assert checked.returncode == 1
    assert "entry 2 (hold, " in checked.stdout
    for words in (("run",), ("decide", "rollback", "--by", "ada", "--reason", "x")):
        refused = judge(*words)
        assert refused.returncode == 1
        assert "entry 2 (hold, " in refused.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[stages]]\nshare = 0.25\n", "'arms' is missing"),
        (LEAST_PLAN.replace("chat-v2", "chat-v1"), "v1 and v2 overlap"),
        (LEAST_PLAN + '[[metrics]]\nname = "request_error_share"\nmargin = -1.0\n', "margin"),
        (LEAST_PLAN + '[[metrics]]\nname = "time_to_first_tokens"\n', "time_to_first_token_seconds"),
        ("[arms\n", "not TOML"),
    ],
)
def test_a_wrong_plan_is_refused(equal: MadePast, judge: Judge, plan: Path, text: str, reason: str) -> None:
    """With the file, the key and the value, and code 2."""
    plan.write_text(text, encoding="utf-8")
    refused = judge("run", "--since", "1h")

    assert refused.returncode == 2
    assert f"{plan}: " in refused.stderr
    assert reason in refused.stderr


def test_arms_that_select_nothing_are_refused(equal: MadePast, judge: Judge, plan: Path) -> None:
    """With the deployments that there are."""
    plan.write_text(LEAST_PLAN.replace("chat-v2", "chat-v3"), encoding="utf-8")
    refused = judge("start")

    assert refused.returncode == 2
    assert "arm v2 of plan 'cutover' selects nothing" in refused.stderr
    assert "'chat-v1', 'chat-v2'" in refused.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("run",), "has no run in the journal"),
        (("run", "--since", "yesterday"), "--since 'yesterday' is no time"),
        (("plan", "--at", "99999d"), "--at '99999d' is before 1970"),
        (("run", "--since", "1h", "--stage", "4"), "--stage 4 is not one of the plan's, 1 to 3"),
        (("run", "--since", "1h", "--journal", "x.db"), "--journal and --since are both given"),
        (("run", "--stage", "1"), "--stage goes with --since"),
        (("start", "--replace"), "it needs --by NAME and --reason TEXT"),
        (("decide", "promote", "--by", "ada", "--reason", "x"), "invalid choice"),
        (("decide", "hold", "--by", "ada"), "--reason"),
        (("watch", "--at", "1h"), "--at does not go with `watch`"),
        (("watch", "--listen", "9910"), "--listen '9910' is not HOST:PORT"),
        (("watch", "--gate-cert-file", "gate.pem"), "tls_cert_file and tls_key_file go together"),
    ],
)
def test_wrong_usage_is_code_2(equal: MadePast, judge: Judge, words: tuple[str, ...], reason: str) -> None:
    """And says what is wrong."""
    refused = judge(*words)

    assert refused.returncode == 2
    assert reason in refused.stderr


def test_from_and_to_go_with_exclude(equal: MadePast, judge: Judge) -> None:
    """Another decision would ignore them."""
    judge("start")
    refused = judge("decide", "hold", "--by", "ada", "--reason", "x", "--from", "1h")

    assert (refused.returncode, "go with `exclude`" in refused.stderr) == (2, True)


def test_a_missing_store_and_two_pasts_are_refused(judge: Judge, tmp_path: Path, monkeypatch: Any) -> None:
    """By name; a store that is not one, too."""
    monkeypatch.chdir(tmp_path)
    assert "no servescope.db here" in judge("run", "--since", "1h").stderr
    both = judge("run", "--since", "1h", "--store", "x.db", "--prometheus", "http://127.0.0.1:9")
    assert (both.returncode, "are both given" in both.stderr) == (2, True)
    other = judge("run", "--since", "1h", "--store", str(tmp_path / "none.db"))
    assert (other.returncode, "no store at" in other.stderr) == (2, True)
    token = judge("run", "--since", "1h", "--username", "ada", "--store", "x.db")
    assert (token.returncode, "--username goes with --prometheus" in token.stderr) == (2, True)


def test_verify_without_a_journal_fails(judge: Judge) -> None:
    """There is nothing that could be whole."""
    assert judge("verify").returncode == 2
    assert run("judge", "verify").returncode == 2
