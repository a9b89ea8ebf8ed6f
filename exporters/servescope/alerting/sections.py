"""The sections of a runbook, in the order in which somebody who was woken needs them.

They are the same in the generated pages and in the console; how terms are written as PromQL is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from servescope.alerting.feeding import can_hold, metrics_of
from servescope.alerting.links import panel_title
from servescope.alerting.playbooks.families import ENGINES, FAMILIES, Family
from servescope.alerting.promises import objectives_of
from servescope.alerting.records import Alert, BadRatio, FirstCheck, Runbook, Term, labels_of, terms

_WORST: Final = 10

_SOURCES: Final[dict[Family, tuple[str, ...]]] = {
    "vLLM": ("vllm",),
    "SGLang": ("sglang",),
    "TensorRT-LLM": (),
    "Dynamo": ("dynamo-frontend", "dynamo-mocker"),
}
"""The source maps of each family. The first says what the family has, as a mock lacks what real workers have."""

_ANY_ENGINE: Final = "servescope"
"""The source of a program of any family that exposes the contract by the instruments."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a runbook: its title, its text in Markdown, and the PromQL that it refers to, "" for none."""

    title: str
    text: str
    query: str = ""


def runbook_sections(
    alert: Alert,
    rule: str,
    write: Callable[[Term], str],
    *,
    panel: str = "",
    deployment: Sequence[str] = ("deployment_id",),
    sources: Sequence[str] = (),
) -> tuple[Section, ...]:
    """The sections of an alert's runbook.

    `rule` is its expression and `write` makes PromQL of a term. `panel` is the panel to open as Markdown, by default
    its title. `deployment` are the labels that distinguish deployments. With `sources` only their families are in it.
    """
    book = alert.runbook
    where = panel or f"*{panel_title(alert)}*"
    waits = f"when this holds for {alert.for_}" if alert.for_ else "when this holds"
    return (
        Section("Meaning", book.meaning),
        Section("What users notice", book.impact),
        *_first(book.first, f"{where} of the dashboard *{alert.dashboard}*", write, deployment),
        Section("Find the cause", book.diagnosis),
        Section("Do now", "\n\n".join((book.mitigation, *_out_of_routing(book), *_by_family(alert, sources)))),
        Section("Do not", book.avoid),
        Section("Whom to call", book.call),
        Section("How to know that it is over", book.over),
        Section("False positives", book.false_positives),
        Section("The rule", f"Severity {alert.severity}. Fires {waits}:", rule),
    )


def _first(look: FirstCheck, panel: str, write: Callable[[Term], str], deployment: Sequence[str]) -> Iterator[Section]:
    yield Section(
        "Open first", f"{panel}, or this query:\n\n- **Bad:** {look.bad}\n- **Good:** {look.good}", write(look.query)
    )
    if look.by_replica is not None:
        worst = "bottomk" if look.lowest else "topk"
        query = f"{worst} by ({', '.join(deployment)}) ({_WORST}, {write(look.by_replica)})"
        yield Section(f"Then by {_parts(look.by_replica)}", look.apart, query)


_OUT: Final = "out of routing"
_HOW_OUT: Final = (
    "To take a replica out of routing: on Kubernetes remove the label that its Service selects (`kubectl label pod POD "
    "KEY-`), elsewhere remove it from the gateway's backends; its process goes on, and can be examined. A worker of "
    "Dynamo registers itself with the frontend: end it."
)


def _out_of_routing(book: Runbook) -> Iterator[str]:
    """How to do it, where a runbook says so."""
    apart = book.first.apart if book.first.by_replica is not None else ""
    if _OUT in book.mitigation or _OUT in apart:
        yield _HOW_OUT


def _parts(term: Term) -> str:
    """What each value of a term is of."""
    return "replica" if "replica" in labels_of(term) else "deployment"


# --- Engine families --------------------------------------------------------------------------------------------------


def _by_family(alert: Alert, sources: Sequence[str]) -> Iterator[str]:
    families = families_of(alert, sources)
    for book in alert.runbook.playbooks:
        parts: dict[str, list[Family]] = {}
        for family in families:
            parts.setdefault(book.of(family), []).append(family)
        lines = [f"- **{', '.join(same)}:** {text}" for text, same in parts.items()]
        yield f"About {book.topic}:\n\n" + "\n".join(lines)
    if alert.runbook.playbooks:
        yield from _caveat(alert, families)


def families_of(alert: Alert, sources: Sequence[str] = ()) -> tuple[Family, ...]:
    """The families whose replicas an alert can be about: engines by themselves, or as workers of another program.

    Dynamo is left out where its programs do not expose what the alert reads. With `sources`, only their families.
    """
    chosen = [family for family in FAMILIES if not sources or _is_chosen(family, sources)]
    return tuple(family for family in chosen if family in ENGINES or is_alive(alert, family))


def _is_chosen(family: Family, sources: Sequence[str]) -> bool:
    behind_dynamo = family in ENGINES and bool({*_SOURCES["Dynamo"]} & {*sources})
    return _ANY_ENGINE in sources or behind_dynamo or bool({*_SOURCES[family]} & {*sources})


def is_alive(alert: Alert, family: Family) -> bool:
    """Whether the alert can fire with the metrics of a family alone, by its source maps and their objectives."""
    promised = {term.objective.name for term in terms(alert.condition) if isinstance(term, BadRatio)}
    return any(
        can_hold(alert.condition, metrics_of((source,))) and promised <= objectives_of((source,)).keys()
        for source in _SOURCES[family][:1]
    )


def _caveat(alert: Alert, families: Sequence[Family]) -> Iterator[str]:
    """Where the alert's metrics come from, for families that do not expose them by themselves."""
    behind_dynamo = is_alive(alert, "Dynamo")
    silent = [family for family in ENGINES if not is_alive(alert, family)]
    if len(silent) == len(ENGINES):
        yield (
            "No engine raises this alert by its own metrics: what it reads comes from servescope's instruments in the "
            f"engine, or from a program beside it, such as {'Dynamo, ' if behind_dynamo else ''}a router, an "
            "autoscaler or the collector."
        )
        return
    for family in silent:
        if family in families:
            why = "does not expose what this alert reads" if _SOURCES[family] else "has no source map"
            yield (
                f"{family} {why}: its part is for {'workers of Dynamo, or for ' if behind_dynamo else ''}engines with "
                "servescope's instruments or a source map of your own."
            )
