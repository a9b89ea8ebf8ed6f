"""The console's pages as a reader meets them: what they show, also where nothing is known, and what a link keeps."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

import streamlit as st
from streamlit.testing.v1 import AppTest

from app import selection
from app.data import queries
from app.elements.colors import V1, V2
from servescope.console import RULES_VARIABLE
from servescope.contract.events import Event, EventKind
from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import make_labels
from servescope.cutover.plan.files import preset_metrics
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from tests.support.console_pages import charts, html, open_first, open_view, read
from tests.support.console_store import PLANS, write_day

pytestmark = pytest.mark.slow

Open = Callable[..., AppTest]

PAGES = ("fleet", "deployment", "compare", "sources")
NOW_MS = int(datetime(2026, 11, 20, 14, 5, tzinfo=UTC).timestamp()) * 1000


@pytest.fixture(scope="session")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two hours of 20 deployments, up to the time of the pages."""
    path = tmp_path_factory.mktemp("console") / "day.db"
    write_day(path, hours=2, step_seconds=60, end_ms=NOW_MS)
    return path


@pytest.fixture(scope="module")
def opened() -> dict[object, AppTest]:
    """The pages that were opened, by what they were opened with."""
    return {}


@pytest.fixture
def open_page(day: Path, opened: dict[object, AppTest], monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a page of the console with a link's parameters, on the day's store or another one.

    A page that was opened before is given again, unless a `fresh` one is asked for, to change it or its settings.
    """
    monkeypatch.setattr(selection, "now_ms", lambda: NOW_MS)

    def open_(name: str = "fleet", store: Path = day, *, fresh: bool = False, **parameters: str) -> AppTest:
        monkeypatch.setenv("SERVESCOPE_STORE", str(store))
        if fresh:
            return open_view(name, **parameters)
        key = (name, store, *parameters.items())
        if key not in opened:
            opened[key] = open_view(name, **parameters)
        return opened[key]

    return open_


def row(page: AppTest, name: str) -> str:
    """The row of a deployment or figure."""
    found: list[str] = [text for text in re.findall(r"<tr.*?</tr>", html(page), re.DOTALL) if f">{name}<" in text]
    assert len(found) == 1, found
    return found[0]


def row_of(text: str, name: str) -> str:
    """The first row of this heading."""
    rows: list[str] = re.findall(r"<tr.*?</tr>", text, re.DOTALL)
    return next(row for row in rows if f">{name}<" in row)


def titles(page: AppTest) -> list[str]:
    """The titles of a page's charts."""
    return [str(chart["title"]["text"]) for chart in charts(page)]


def paths(chart: dict[str, Any]) -> dict[str, Any]:
    """The layer of a chart's lines."""
    found: dict[str, Any] = next(layer for layer in chart["layer"] if "fold" in str(layer.get("transform", "")))
    return found


def inline_rows(chart: dict[str, Any]) -> list[dict[str, Any]]:
    """What a chart shows beside its lines: bands, objectives, marks."""
    return [row for layer in chart["layer"] for row in layer.get("data", {}).get("values", ())]


def linked(page: AppTest, name: str) -> str:
    """A query parameter of the address bar."""
    value: str | list[str] = page.query_params[name]
    return value if isinstance(value, str) else value[0]


# --- Every page -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_empty_store_invites_a_collector(open_page: Open, tmp_path: Path, name: str) -> None:
    """A store without anything shows the command that fills it."""
    Store(tmp_path / "empty.db").close()

    page = open_page(name, tmp_path / "empty.db")

    assert any("servescope collect --store" in code.value for code in page.code)
    assert "Nothing has been collected" in page.info[0].value


@pytest.mark.parametrize("name", PAGES)
def test_store_that_went_away_is_said(open_page: Open, tmp_path: Path, name: str) -> None:
    """A store that is not there is named in an error, not in a traceback."""
    page = open_page(name, tmp_path / "gone.db")

    assert "gone.db" in page.error[0].value


@pytest.mark.parametrize("name", PAGES)
def test_every_page_offers_its_file(open_page: Open, name: str) -> None:
    """Each page has one download of what it shows."""
    assert len(open_page(name).get("download_button")) == 1


# --- Links ------------------------------------------------------------------------------------------------------------


def test_link_selects_and_is_kept(open_page: Open) -> None:
    """A deployment and a range given in a link are what the page shows and what its link says."""
    page = open_page("deployment", deployment="voice-v2", range="15m")

    assert page.selectbox(key="choose_deployment").value == "voice-v2"
    assert linked(page, "deployment") == "voice-v2"
    assert linked(page, "range") == "15m"


def test_choice_is_written_to_the_link(open_page: Open) -> None:
    """Choosing a stack on the page changes the link, and only that stack's deployments stay."""
    page = open_page(fresh=True)

    page.selectbox(key="choose_stack").select("v1").run()

    assert linked(page, "stack") == "v1"
    assert ">chat-v1<" in html(page)
    assert ">chat-v2<" not in html(page)


def test_unknown_value_in_a_link_is_said(open_page: Open) -> None:
    """A link to a deployment that is not there names it and the alternatives, and shows another."""
    page = open_page("deployment", deployment="chat-v3")

    assert "unknown deployment 'chat-v3', supported: agents-v2" in page.warning[0].value
    assert linked(page, "deployment") == "agents-v2"


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"range": "soon"}, "unknown range 'soon', supported: 15m"),
        ({"from": "yesterday", "to": "2026-01-01"}, "from 'yesterday' is not a time"),
        ({"from": "2026-01-02", "to": "2026-01-01"}, "is not before"),
        ({"from": "0001-01-01T00:00:00Z", "to": "2026-01-01"}, "from '0001-01-01T00:00:00Z' is out of range"),
        ({"from": "2026-01-01", "to": "9999-12-31T23:00:00-14:00"}, "to '9999-12-31T23:00:00-14:00' is out of range"),
        ({"from": "1970-01-01T00:00:00+01:00", "to": "2026-01-01"}, "expected a time from 1970 to 9998"),
    ],
)
def test_unusable_range_in_a_link_is_said(open_page: Open, parameters: dict[str, str], complaint: str) -> None:
    """A range that cannot be understood is quoted, and the last hour is shown."""
    page = open_page(**parameters)

    assert complaint in read(page.warning[0].value)
    assert linked(page, "range") == "1h"


def test_absolute_range_without_figures_says_where_they_are(open_page: Open) -> None:
    """A range from before the store began says so, and when there are figures."""
    page = open_page(**{"from": "2020-01-01T00:00:00Z", "to": "2020-01-02T00:00:00Z"})

    assert linked(page, "range") == "custom"
    assert "The store holds figures from" in page.info[0].value


def test_a_range_that_would_take_minutes_to_judge_is_not(open_page: Open) -> None:
    """A link with a thousand years shows its charts, and why the Compare page judges none of it."""
    page = open_page("compare", **{"from": "1970-01-01T00:00:00Z", "to": "9998-12-31T00:00:00Z"})

    assert "too long to judge: at most 31 days are" in page.info[0].value
    assert charts(page)


def test_a_zone_that_is_a_folder_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser names its zone: what names none, as a folder or more than a file's name can have, ends no page."""
    for name in ("America", "x" * 5000, "../../etc/passwd", "\0"):
        monkeypatch.setattr(st, "context", SimpleNamespace(timezone=name, headers={}))
        assert selection.reader_zone() == UTC


# --- Fleet ------------------------------------------------------------------------------------------------------------


def test_fleet_shows_every_deployment(open_page: Open) -> None:
    """Each deployment has one row, with its model, stack and rollout phase."""
    page = open_page()

    for plan in PLANS:
        text = row(page, plan.deployment.deployment_id)
        assert all(word in text for word in (plan.deployment.model_name, plan.deployment.inference_stack))
    assert "promoting" in row(page, "chat-v2")


def test_fleet_colours_by_the_catalogs_band(open_page: Open) -> None:
    """A figure outside its band has an underline, and the band's label and advice on hover."""
    figure = FIGURES["speculation_rate"]
    assert figure.band is not None
    verdict = figure.band.judge(0.34)

    text = row(open_page(), "summarise-v2")

    assert f'class="value tuned {verdict.status}"' in text
    assert verdict.label in text
    assert verdict.advice in text


def test_fleet_says_why_a_figure_is_absent(open_page: Open) -> None:
    """A figure that a stack does not have is an en dash with the reason, and never 0."""
    text = row(open_page(), "chat-v1")

    assert 'data-tip="Speculation rate: spec_decode_num_accepted_tokens_total: speculation is off"' in text
    assert 'data-tip="KV cache hit rate: kv_cache_eligible_tokens_total: no router here"' in text


def test_idle_deployment_shows_zero_traffic_and_no_latency(open_page: Open) -> None:
    """Without traffic the request rate is 0, and what it is needed for is absent."""
    text = row(open_page(), "evals-staging")

    assert '<span class="value">0</span>' in text
    assert "Time to first token, p50: nothing to measure in this window" in text


def test_stopped_deployment_is_past(open_page: Open) -> None:
    """A deployment whose figures are old is greyed, with their age, and not counted in the sums."""
    page = open_page(range="3h")

    assert '<tr class="past">' in row(page, "chat-staging")
    assert "the collector has written nothing newer" in row(page, "chat-staging")
    assert '<tr class="past">' not in row(page, "chat-v2")


def test_fleet_sorts_by_attention(open_page: Open) -> None:
    """With attention first harm leads, the worst first, and what is only to be tuned follows."""
    page = open_page(sort="attention")
    names = re.findall(r'class="name"[^>]*>([^<]+)<', html(page))

    assert names[0] == "extract-v1"  # refuses more than pages
    assert 'class="value band critical"' in row(page, "extract-v1")
    assert names.index("summarise-v1") < names.index("support-bot-v2")  # slow, and hits that are traded
    assert 'class="value band' not in row(page, "support-bot-v2")
    assert len(names) == len(PLANS)


def test_a_deployment_without_an_active_replica_leads(open_page: Open, tmp_path: Path) -> None:
    """It has no figure that is beyond an objective, as it has none; one that was scaled to zero asks for nothing."""
    counts = {"calm": (2, 0), "dead": (0, 2), "scaled-to-zero": (0, 0)}
    with Store(tmp_path / "three.db") as store:
        for name, (active, unhealthy) in counts.items():
            figures = {
                'replica_count_by_status{status="active"}': float(active),
                'replica_count_by_status{status="unhealthy"}': float(unhealthy),
                **({"request_error_share": 0.002} if active else {}),
            }
            store.append_figures(Deployment("llama", name, "v2"), NOW_MS, figures)
    page = open_page(store=tmp_path / "three.db", sort="attention")

    assert re.findall(r'class="name"[^>]*>([^<]+)<', html(page)) == ["dead", "calm", "scaled-to-zero"]
    assert 'class="value band critical" data-tip="no active replica' in row(page, "dead")
    assert "band critical" not in row(page, "scaled-to-zero")
    assert "1 without an active replica" in html(page)
    assert "1 beyond" in html(page)


def test_harm_is_read_by_the_objectives(open_page: Open) -> None:
    """A latency beyond its objective has a background and the promise on hover, and the key says what that means."""
    text = html(open_page())

    assert re.search(r'class="value band warning" data-tip="Time to first token, p95 [^"]*beyond the objective', text)
    assert "99 % of requests have their first token within 2.5 s." in text
    assert "users notice" in text
    assert ">Harm to users<" in text.replace('<span class="when"> · now</span>', "<")


def test_one_hue_is_one_stack(open_page: Open) -> None:
    """Every deployment of a stack has its hue, on the fleet page and in every chart, whatever percentile is drawn."""
    page = open_page("deployment", deployment="summarise-v2")
    of_stack = [chart for chart in charts(page) if "Replicas" not in chart["title"]["text"]]
    hues = {color for chart in of_stack for color in paths(chart)["encoding"]["color"]["scale"]["range"]}

    assert hues == {V2}
    quantiles = next(chart for chart in charts(page) if chart["title"]["text"] == "Time to first token")
    dashes = paths(quantiles)["encoding"]["strokeDash"]["scale"]["range"]
    assert len({tuple(dash) for dash in dashes}) == 4


@pytest.mark.parametrize(
    ("name", "link"),
    [("deployment", {"deployment": "summarise-v2"}), ("compare", {"left": "chat-v1", "right": "chat-v2"})],
)
def test_every_chart_has_a_legend(open_page: Open, name: str, link: dict[str, str]) -> None:
    """A chart of one line too says whose it is."""
    drawn = charts(open_page(name, **link))

    assert drawn
    for chart in drawn:
        legend = paths(chart)["encoding"]["color"]["legend"]
        assert legend is not None, chart["title"]
        assert "''" not in legend["labelExpr"]


def test_objective_is_drawn_where_users_are_promised_something(open_page: Open) -> None:
    """Errors and user-facing latency have a line where the promise ends, with its value."""
    drawn = {chart["title"]["text"]: chart for chart in charts(open_page("deployment", deployment="chat-v2"))}
    lines = {title: [row["name"] for row in inline_rows(chart) if "name" in row] for title, chart in drawn.items()}

    assert lines["Errors"][0] == "objective 0.1 %"
    assert lines["Time to first token"][0] == "objective 2.5 s"
    assert lines["In flight"] == []


def test_pages_show_the_edge_of_each_deployment(open_page: Open) -> None:
    """A Dynamo deployment's chart has 4.7 s, the reading of another 2.5 s; a comparison of both has both lines."""
    (drawn,) = [each for each in charts(open_page("deployment", deployment="rag-answers-dynamo"))
                if each["title"]["text"] == "Time to first token"]  # fmt: skip
    assert "objective 4.7 s" in [each.get("name") for each in inline_rows(drawn)]
    assert "have their first token within 2.5 s." in row(open_page(), "summarise-v1")

    compared = open_page("compare", left="chat-v1", right="rag-answers-dynamo")
    (both,) = [each for each in charts(compared) if each["title"]["text"] == "Time to first token, p95"]
    names = [each["name"] for each in inline_rows(both) if "name" in each]
    assert names == ["objective 2.5 s", "objective 4.7 s", "objective 2.5 s, 4.7 s"]


def test_the_options_of_the_rules_are_followed(
    open_page: Open, day: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their goals and latencies are read and drawn, and their two stacks have the hues of a cutover's."""
    rules = tmp_path / "options.toml"
    rules.write_text(
        'engines = ["vllm", "servescope"]\n[alerts]\nold_stack = "vllm-0.32"\nnew_stack = "dynamo-1.6"\n'
        "[alerts.objectives]\nrequests = { goal = 0.99 }\ntime_to_first_token = { seconds = 1.0 }\n"
    )
    monkeypatch.setenv(RULES_VARIABLE, str(rules))
    with Store(day, read_only=True) as store:
        known = queries.list_deployments(store)
    assert [known[name].color for name in ("agents-vllm", "rag-answers-dynamo")] == [V1, V2]
    assert known["chat-v1"].color not in (V1, V2)

    page = open_page("deployment", fresh=True, deployment="chat-v1")
    drawn = {each["title"]["text"]: [line.get("name") for line in inline_rows(each)] for each in charts(page)}
    assert "objective 1 s" in drawn["Time to first token"]
    assert "objective 1 %" in drawn["Errors"]
    assert re.search(r"beyond the objective.*?within 1 s\.", html(open_page(fresh=True)), re.DOTALL)


def test_tiles_say_now_and_the_range(open_page: Open) -> None:
    """A tile's value is of now, or of the end of a range that is past; below it is between what it moved meanwhile."""
    live = html(open_page("deployment", deployment="chat-v2", range="1h"))
    past = html(
        open_page("deployment", deployment="chat-v2", **{"from": "2026-11-20T13:00:00Z", "to": "2026-11-20T13:30:00Z"})
    )

    assert re.search(r'Requests<span class="when"> · now</span>.*?<div>1h: [\d.]+ – [\d.]+</div>', live)
    assert re.search(r'Requests<span class="when"> · at 20 Nov 13:30</span>.*?<div>30 min: ', past)
    assert html(open_page()).count(" · now</span>") == 7


def test_rollout_and_replicas_are_shown(open_page: Open) -> None:
    """The page of a deployment begins with its rollout phase and its replicas by status."""
    text = html(open_page("deployment", deployment="summarise-v2"))

    assert "promoting" in text
    assert "1 draining" in text


def test_deployments_without_figures_are_folded_away(open_page: Open) -> None:
    """Rows of dashes alone are below the table, and counted."""
    page = open_page(**{"from": "2026-11-20T14:00:00Z", "to": "2026-11-20T14:05:00Z"})
    folded = page.expander[0]

    assert folded.label == "1 without figures in this range"
    assert "chat-staging" in folded.get("html")[0].proto.body


def test_columns_of_dashes_are_left_out_and_named(open_page: Open) -> None:
    """Of stacks without a router no column of its figures is shown, and a sentence says so."""
    page = open_page(stack="v1")

    assert ">KV cache hit rate<" not in html(page)
    assert any("No deployment here has KV cache hit rate" in each.value for each in page.caption)


def test_what_happened_is_marked_in_the_charts(open_page: Open, tmp_path: Path) -> None:
    """Alerts, rollouts and replicas of the deployment are marks of each of its charts, those of others are not."""
    store, one = tmp_path / "marked.db", Deployment("m", "chat", "v2", "production", "promoting")
    with Store(store) as written:
        for ago in range(20, 0, -1):
            written.append_figures(one, NOW_MS - ago * 60_000, {"request_rate": 1.0})
        written.append_events(
            [
                event("deploy", 12, "chat 1.4 is rolled out", deployment_id="chat"),
                event("deploy", 11, "another one", deployment_id="search"),
                event("target_gone", 10, "replica-1 is gone", deployment_id="chat", inference_stack="v2"),
                event("alert_fired", 8, "fires", alertname="ServescopeQueueGrowing", deployment_id="chat"),
                event("alert_resolved", 3, "over", alertname="ServescopeQueueGrowing", deployment_id="chat"),
            ]
        )
    page = open_page("deployment", store, range="15m")
    marked = [row for row in inline_rows(charts(page)[0]) if "what" in row]

    assert {row["what"] for row in marked} == {
        "chat 1.4 is rolled out",
        "replica-1 is gone",
        "ServescopeQueueGrowing fires",
    }
    assert {row["end"] - row["start"] for row in marked if row["end"] is not None} == {5 * 60_000}
    assert all(words in html(page) for words in ("alert fires (1)", "rollout (1)", "replica gone (1)"))


def event(kind: EventKind, minutes_ago: int, text: str, **labels: str) -> Event:
    """An event so many minutes before the pages' time."""
    return Event(NOW_MS - minutes_ago * 60_000, kind, make_labels(labels), text)


def test_one_id_on_two_stacks_stays_two(open_page: Open, tmp_path: Path) -> None:
    """The same deployment id on two stacks is two rows, distinguished by the stack."""
    with Store(tmp_path / "pair.db") as store:
        for stack in ("v1", "v2"):
            store.append_figures(Deployment("m", "chat", stack), NOW_MS, {"request_rate": 1.0})

    page = open_page(store=tmp_path / "pair.db")

    assert row(page, "chat · v1")
    assert row(page, "chat · v2")


# --- One deployment, two deployments ----------------------------------------------------------------------------------


def test_deployment_accounts_for_every_figure(open_page: Open) -> None:
    """Each figure of the catalog but a date is in a chart, or named as absent with the reason."""
    page = open_page("deployment", deployment="chat-v1")
    drawn = " ".join(titles(page))
    absent = " ".join(caption.value for caption in page.caption)

    missing = [
        figure.title for figure in FIGURES.values()
        if figure.title.partition(", ")[0] not in drawn and figure.title not in absent
    ]  # fmt: skip

    assert missing == ["Last start of a replica"]
    assert "Speculation rate (spec_decode_num_accepted_tokens_total: speculation is off)" in absent


@pytest.mark.parametrize("name", ["deployment", "compare"])
def test_charts_are_valid_and_labelled(open_page: Open, name: str) -> None:
    """Altair accepts a chart of every kind; each has a title and a y axis that names its unit."""
    altair = pytest.importorskip("altair")
    drawn = charts(open_page(name))

    assert len(drawn) > 20
    # Charts differ in kind by their number of layers and lines; validating all of them takes seconds.
    kinds = {(len(chart["layer"]), str(chart["layer"][-2]["transform"])): chart for chart in drawn}
    for chart in kinds.values():
        altair.LayerChart.validate({**chart, "data": {"name": "given"}})
    for chart in drawn:
        axes = [layer["encoding"]["y"]["axis"]["title"] for layer in chart["layer"] if "y" in layer["encoding"]]
        assert chart["title"]["text"]
        assert all(axes)


def test_banded_chart_shades_the_band(open_page: Open) -> None:
    """The skew's chart is shaded by the stretches of its band, labels on hover."""
    page = open_page("deployment", deployment="summarise-v2")
    chart = charts(page)[titles(page).index(FIGURES["kv_cache_hit_rate_skew"].title)]
    shaded = chart["layer"][0]["data"]["values"]
    band = FIGURES["kv_cache_hit_rate_skew"].band

    assert band is not None
    assert [stretch["status"] for stretch in shaded] == [
        band.lowest.status,
        *(step.rating.status for step in band.steps),
    ]
    assert [stretch["low"] for stretch in shaded[1:]] == [step.start for step in band.steps]


def test_compare_never_reads_without_evidence(open_page: Open) -> None:
    """Where no requests were counted nothing reads as better, worse or the same: every metric is NO DATA, with why."""
    page = open_page("compare", left="chat-v1", right="chat-v2")
    text = html(page)

    assert page.expander[0].label == f"{len(preset_metrics())} without data on either side"
    assert "NO DATA" in row_of(text, "Time to first token")
    assert not re.search(r">(better|worse|same)<", text)


def test_compare_averages_what_can_be_averaged(open_page: Open) -> None:
    """Below the judged metrics are rates and levels over the range, without a reading; no median, no quantile."""
    text = html(open_page("compare", left="chat-v1", right="chat-v2"))

    assert "requests" in row_of(text, "Queued")
    assert "p95" not in text


def test_compare_draws_both_in_their_own_colours(open_page: Open) -> None:
    """A deployment's line has its stack's hue; of two of one stack the right one is dashed."""
    of_two = paths(charts(open_page("compare", left="chat-v1", right="chat-v2"))[0])["encoding"]
    of_one = paths(charts(open_page("compare", left="agents-v2", right="chat-v2"))[0])["encoding"]

    assert of_two["color"]["scale"]["range"] == [V1, V2]
    assert of_one["color"]["scale"]["range"] == [V2, V2]
    assert of_one["strokeDash"]["scale"]["range"] == [[1, 0], [6, 3]]


def test_comparing_one_with_itself_asks_for_another(open_page: Open) -> None:
    """The same deployment on both sides is said, and nothing is compared."""
    page = open_page("compare", left="chat-v1", right="chat-v1")

    assert "same deployment" in page.info[0].value
    assert linked(page, "right") == "chat-v1"
    assert not charts(page)


# --- Sources ----------------------------------------------------------------------------------------------------------


def test_failing_target_leads_with_its_error(open_page: Open) -> None:
    """The target that does not answer comes first, with the error and its last success."""
    text = html(open_page("sources"))
    first = re.findall(r"<tbody>(<tr>.*?</tr>)", text, re.DOTALL)[0]

    assert "failing" in first
    assert "6 min ago" in first
    assert "connection refused: nothing listens there" in text


def test_target_that_changed_is_shown_with_its_warnings(open_page: Open) -> None:
    """A target that answers, but not as it did, says below it what is wrong, and how many metrics are missing."""
    text = html(open_page("sources"))
    above, note = re.findall(r"<tr>(?:(?!<tr>).)*</tr><tr class=\"warning\">.*?</tr>", text, re.DOTALL)[0].split(
        '<tr class="warning">'
    )

    assert "healthy" in above
    assert "1 missing" in above
    assert "kv_cache_usage (was vllm:kv_cache_usage_perc)" in note
    assert "model_name=&#x27;&lt;a &amp; b&gt;&#x27;" in note
    assert text.count('<tr class="warning">') == 1
    assert "1 of them with warnings" in text


def test_coverage_tells_what_fed_a_metric_that_is_missing(open_page: Open) -> None:
    """The coverage of a target that changed has its warnings, and the native series that a missing metric had."""
    text = html(open_page("sources", view="coverage", target=f"127.0.0.1:{port_of('agents-vllm') + 1}"))
    metric = re.findall(r"<tr><th[^>]*><code>kv_cache_usage</code>.*?</tr>", text)[0]

    assert "Samples dropped, as their values overflow (2)" in text
    assert "2 warnings" in text
    assert ">no longer reported<" in metric
    assert "its native series was vllm:kv_cache_usage_perc" in metric


def port_of(deployment_id: str) -> int:
    """The port of a deployment's first target."""
    return 8000 + 20 * [plan.deployment.deployment_id for plan in PLANS].index(deployment_id)


def test_coverage_names_native_series_and_reasons(open_page: Open) -> None:
    """The coverage of a target says per contract metric its native series, or why there is none."""
    page = open_page("sources", view="coverage", target=f"127.0.0.1:{port_of('agents-vllm')}")

    assert "vllm:time_to_first_token_seconds" in html(page)
    assert "No router here." in html(page)


def test_coverage_bars_have_a_key(open_page: Open) -> None:
    """Above the targets each colour of the bars is explained in words."""
    text = html(open_page("sources"))

    for status, words in (
        ("present", "reported"),
        ("derived", "computed from other series"),
        ("elsewhere", "reported"),
    ):
        assert re.search(rf'key part {status}"></i> {words}', text)


def test_sources_are_filtered(open_page: Open) -> None:
    """A text and a state leave the targets that match both; a link keeps them, and none is said."""
    of_one = html(open_page("sources", find="agents-vllm aggregated"))
    failing = html(open_page("sources", state="failing"))
    warned = html(open_page("sources", state="warnings"))
    none = open_page("sources", find="nothing-like-this")

    assert of_one.count("<tr><td") == 2
    assert ">healthy<" not in failing
    assert failing.count("<tr><td") == 1
    assert "1 missing" in warned
    assert warned.count("<tr><td") == 1
    assert none.info[0].value == "No target matches."


def test_sources_speak_in_sentences(open_page: Open) -> None:
    """Errors, warnings and reasons begin and end as sentences do, and counts name what they count."""
    text = html(open_page("sources"))
    coverage = open_page("sources", view="coverage", target=f"127.0.0.1:{port_of('agents-vllm')}")

    assert "nothing listens there; figures are of the other replicas." in text
    assert "Metrics that were exposed are missing (1): kv_cache_usage (was vllm:kv_cache_usage_perc)." in text
    assert "metrics have a value" in text
    assert "412 samples" in text
    assert "Speculation is off." in html(coverage)
    assert ">not reported by this source<" in html(coverage)
    assert 'key part impossible"></i> not reported' in html(coverage)


@pytest.fixture
def not_understood(tmp_path: Path) -> Path:
    """A store of a deployment with two targets that answer: no source map reads the second."""
    path, deployment = tmp_path / "two.db", Deployment("tiny", "chat", "v1")
    with Store(path) as store:
        for replica, is_read in (("r0", True), ("r1", False)):
            identity = Identity("tiny", "chat", "v1", replica=replica)
            status = TargetStatus(
                identity.target_id, f"http://{replica}/metrics", identity, healthy=is_read, not_understood=not is_read,
                last_scrape_ms=NOW_MS, last_success_ms=NOW_MS if is_read else None,
                error=None if is_read else f"http://{replica}/metrics: no source map reads it; the nearest is 'vLLM'",
            )  # fmt: skip
            store.set_target(status)
        active, unhealthy = (
            figure_key("replica_count_by_status", {"status": status}) for status in ("active", "unhealthy")
        )
        store.append_figures(deployment, NOW_MS, {active: 1.0, unhealthy: 0.0, "request_rate": 2.0})
    return path


def test_a_target_that_answers_and_is_not_understood_is_not_called_failing(
    open_page: Open, not_understood: Path
) -> None:
    """Sources keeps it apart from those that fail, with what is nearest; the fleet names it beside the replicas."""
    sources = html(open_page("sources", not_understood))
    failing = open_page("sources", not_understood, state="failing")
    unread = html(open_page("sources", not_understood, state="unread"))
    fleet = html(open_page("fleet", not_understood))

    first = re.findall(r"<tbody>(<tr>.*?</tr><tr.*?</tr>)", sources, re.DOTALL)[0]
    assert "value band warning" in first
    assert "answers, not understood" in first
    assert "the nearest is" in first
    assert ">failing<" not in sources
    assert "1 more answer, not understood" in sources
    assert failing.info[0].value == "No target matches."
    assert unread.count("<tr><td") == 1
    assert "1 active" in fleet
    assert "1 not understood" in fleet
    assert " unhealthy<" not in fleet


# --- The first page ---------------------------------------------------------------------------------------------------


def test_the_first_page_without_a_cutover_is_the_fleet(day: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a line that says how to plan one; the page of the cutover says so, too."""
    monkeypatch.setattr(selection, "now_ms", lambda: NOW_MS)
    monkeypatch.setenv("SERVESCOPE_STORE", str(day))
    page = open_first()
    advice = "No cutover is planned here yet: write a plan on the Plan page, and open the console with it."

    assert page.subheader[0].value == "Fleet"
    assert f"{advice} servescope console --plan PLAN.toml --journal JOURNAL.db" in map(
        read, [each.value for each in page.caption]
    )
    assert "chat-v1" in html(page)
    assert read(open_view("cutover").info[0].value) == advice
