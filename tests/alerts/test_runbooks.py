"""The runbooks: what somebody who is woken finds in each, and that it is of this alert and of engines that have it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

import pytest

from alerts.__main__ import GENERATED
from alerts.options import make_options
from alerts.runbooks import queries_of, render_index, render_runbook
from servescope.alerting import playbooks
from servescope.alerting.alerts import ALERTS
from servescope.alerting.playbooks.families import FAMILIES, Playbook
from servescope.alerting.rules.links import causes_of, panel_path
from servescope.alerting.rules.promql import alert_promql
from servescope.alerting.rules.records import Alert, labels_of
from servescope.alerting.sections import families_of, is_alive
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.objectives import OBJECTIVES
from servescope.sources.map_files import load_sources

SECTIONS = (
    "Meaning", "What users notice", "Open first", "Find the cause", "Do now", "Do not", "Whom to call",
    "How to know that it is over", "False positives", "The rule",
)  # fmt: skip
VLLM_ALONE = make_options({"alerts": {"sources": ["vllm"]}}, origin="options.toml")


@pytest.fixture(params=ALERTS)
def alert(request: pytest.FixtureRequest) -> Alert:
    return ALERTS[request.param]


def read_sections(alert: Alert) -> Mapping[str, str]:
    """The text of each section of a committed page, by its title."""
    page = (GENERATED / "runbooks" / f"{alert.name}.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^## ", page, flags=re.MULTILINE)
    return {title: text.strip() for title, _, text in (part.partition("\n") for part in parts)}


def test_it_has_every_section(alert: Alert) -> None:
    """In the order in which they are needed, none of them empty; a second query only where there are parts."""
    sections = read_sections(alert)

    assert [title for title in sections if not title.startswith(("Then by ", "Where the cause is "))] == list(SECTIONS)
    assert {title.split("`")[1] for title in sections if "the cause is" in title} <= causes_of(alert).keys()
    assert all(sections.values())
    assert alert_promql(alert) in sections["The rule"]
    assert panel_path(alert) in sections["Open first"]


def test_it_says_how_a_bad_and_a_good_answer_look(alert: Alert) -> None:
    """Of the first query, which is one; and how to read the second."""
    sections = read_sections(alert)
    first = sections["Open first"]
    second = [text for title, text in sections.items() if title.startswith("Then by ")]
    causes = [text for title, text in sections.items() if title.startswith("Where the cause is ")]

    assert first.count("```promql") == 1
    assert re.search(r"\*\*Bad:\*\* \w+", first.replace("`", ""))
    assert re.search(r"\*\*Good:\*\* \w+", first.replace("`", ""))
    assert all(re.match(r"\w[^\n]+[.?]\n\n```promql\n(?:top|bottom)k by ", text) for text in second)
    assert queries_of(alert) == tuple(re.findall(r"```promql\n(.+)\n```", "\n".join((first, *second, *causes))))


def test_it_asks_the_replicas_where_the_alert_is_about_some(alert: Alert) -> None:
    """Engines of a deployment are compared with one another; an autoscaler or a judge has nothing to compare."""
    is_of_deployment = {*DEPLOYMENT_LABELS[:3]} <= {*labels_of(alert.condition)}
    is_about_engines = is_of_deployment and alert.component not in ("autoscaler", "judge")
    look = alert.runbook.first

    if is_about_engines:
        assert look.by_replica is not None
        assert "replica" in labels_of(look.by_replica)
        assert "Then by replica" in read_sections(alert)


def test_it_says_how_a_replica_is_taken_out_of_routing(alert: Alert) -> None:
    """Wherever somebody is asked to; nobody remembers the command at night."""
    found = read_sections(alert)
    asked = "out of routing" in f"{alert.runbook.mitigation} {found.get('Then by replica', '')}"

    assert asked == ("`kubectl label pod POD KEY-`" in found["Do now"])


def test_objectives_have_texts_of_their_own() -> None:
    """What users notice, where to look and what to do differ between latencies and failing requests."""
    for ending in ("BurnsFast", "Burns"):
        by_title: dict[str, list[str]] = {}
        for name in OBJECTIVES:
            camel = "".join(word.capitalize() for word in name.split("_"))
            for title, text in read_sections(ALERTS[f"Servescope{camel}Budget{ending}"]).items():
                by_title.setdefault(title, []).append(text)
        for title in (
            "What users notice",
            "Open first",
            "Then by replica",
            "Find the cause",
            "Do now",
            "False positives",
        ):
            assert len(by_title[title]) == len({*by_title[title]}) == len(OBJECTIVES), title


def test_no_alert_has_the_text_of_another() -> None:
    """Not one page is a copy: what users notice or what to do differs."""
    pages = [(alert.runbook.impact, alert.runbook.diagnosis, alert.runbook.mitigation) for alert in ALERTS.values()]

    assert len({*pages}) == len(pages)


def test_engines_that_cannot_raise_an_alert_are_not_in_its_runbook(alert: Alert) -> None:
    """Dynamo is not where its programs lack the metrics; with chosen sources there are only their families."""
    text = read_sections(alert)["Do now"]
    named = {family for family in FAMILIES if re.search(rf"^- \*\*(?:[^*]+, )?{family}[,:*]", text, re.MULTILINE)}
    vllm_alone = render_runbook(alert, VLLM_ALONE)

    assert named == ({*families_of(alert)} if alert.runbook.playbooks else set())
    assert "Dynamo" not in named or is_alive(alert, "Dynamo")
    assert not re.search(r"^- \*\*[^:]*(?:SGLang|TensorRT-LLM|Dynamo)", vllm_alone, re.MULTILINE)


def test_an_engine_raises_alerts_on_the_objectives_that_it_is_held_to() -> None:
    """Time per output token or the gaps between tokens, whichever it shows; and on nothing of a router by itself."""
    per_token, gap = (ALERTS[f"Servescope{each}BudgetBurns"] for each in ("TimePerOutputToken", "InterTokenLatency"))

    families = ("vLLM", "SGLang", "Dynamo")
    assert [is_alive(per_token, each) for each in families] == [True, True, False]
    assert [is_alive(gap, each) for each in families] == [False, False, True]
    assert not is_alive(ALERTS["ServescopeCacheChurn"], "vLLM")


def test_a_family_that_does_not_raise_an_alert_says_why() -> None:
    """SGLang exposes no rate of speculation, and a router's skew is of no engine."""
    text = {
        name: read_sections(ALERTS[f"Servescope{name}"])["Do now"]
        for name in ("SpeculationBelowBreakEven", "CacheChurn", "QueueGrowing")
    }

    assert "SGLang does not expose what this alert reads" in text["SpeculationBelowBreakEven"]
    assert "No engine raises this alert by its own metrics" in text["CacheChurn"]
    assert "SGLang does not" not in text["QueueGrowing"]


def test_every_family_has_a_source_map() -> None:
    """Whether an alert can rise is known of each."""
    assert {source.family for source in load_sources().values()} >= {*FAMILIES}


def test_every_playbook_is_of_use() -> None:
    """Each topic is part of a runbook, and says something about each family."""
    modules = [import_module(f"{playbooks.__name__}.{each.name}") for each in iter_modules(playbooks.__path__)]
    written = [each for module in modules for each in vars(module).values() if isinstance(each, Playbook)]
    used = {book for alert in ALERTS.values() for book in alert.runbook.playbooks}

    assert {*written} == used
    assert len({book.topic for book in used}) == len(used)
    assert all(book.of(family) for book in used for family in FAMILIES)


def test_the_index_begins_with_what_pages() -> None:
    """And of that with what pages soonest; it links every page."""
    rows = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| (\w+) ", render_index(ALERTS.values()), re.MULTILINE)
    severities = [severity for _, severity in rows]

    assert {name for name, _ in rows} == ALERTS.keys()
    assert severities == sorted(severities, key=("critical", "warning", "info", "none").index)
    assert ALERTS[rows[0][0]].for_ == min(
        (each.for_ for each in ALERTS.values() if each.severity == "critical"), key=lambda wait: int(wait[:-1])
    )
