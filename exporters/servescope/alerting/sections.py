"""The sections of a runbook, in the order in which somebody who was woken needs them.

They are the same in the generated pages and in the console; how terms are written as PromQL is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from servescope.alerting.feeding import can_fire
from servescope.alerting.playbooks.families import FAMILIES
from servescope.alerting.rules.links import causes_of, compared, panel_title
from servescope.alerting.rules.records import Alert, FirstCheck, Runbook, Term, labels_of
from servescope.contract.measured_layers import MEASURED_LAYERS
from servescope.sources.map_files import load_sources
from servescope.sources.maps import Source

_WORST: Final = 10


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a runbook: its title and text in Markdown, and the PromQL that it refers to, "" for none."""

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
        *_causes(alert, write),
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


def _causes(alert: Alert, write: Callable[[Term], str]) -> Iterator[Section]:
    """What each cause compares, where it is not what to open first."""
    for cause, each in causes_of(alert).items():
        term = compared(each.condition)
        if term is not None and term != alert.runbook.first.query:
            yield Section(
                f"Where the cause is `{cause}`", f"The panel *{panel_title(each)}*, or this query:", write(term)
            )


_OUT: Final = "out of routing"
_HOW_OUT: Final = (
    "To take a replica out of routing: on Kubernetes remove the label that its Service selects (`kubectl label pod POD "
    "KEY-`), elsewhere remove it from the gateway's backends; its process goes on, and can be examined. A worker "
    "that registers itself with its frontend is taken out by ending it."
)


def _out_of_routing(book: Runbook) -> Iterator[str]:
    """How to do it, where a runbook says so."""
    apart = book.first.apart if book.first.by_replica is not None else ""
    if _OUT in book.mitigation or _OUT in apart:
        yield _HOW_OUT


def _parts(term: Term) -> str:
    return "replica" if "replica" in labels_of(term) else "deployment"


# --- Engine families --------------------------------------------------------------------------------------------------


def _by_family(alert: Alert, sources: Sequence[str]) -> Iterator[str]:
    families = families_of(alert, sources)
    if not families:
        return
    for book in alert.runbook.playbooks:
        parts: dict[str, list[str]] = {}
        for family in families:
            parts.setdefault(book.of(family), []).append(family)
        lines = [f"- **{', '.join(same)}:** {text}" for text, same in parts.items()]
        yield f"About {book.topic}:\n\n" + "\n".join(lines)
    if alert.runbook.playbooks:
        yield from _caveat(alert, families)


def families_of(alert: Alert, sources: Sequence[str] = ()) -> tuple[str, ...]:
    """The families whose replicas an alert can be about: engines by themselves, or as workers of another program.

    One that is in front of engines is left out where its programs do not expose what the alert reads. With `sources`,
    only their families.
    """
    chosen = [family for family in FAMILIES if not sources or _is_chosen(family, sources)]
    return tuple(family for family in chosen if not _is_in_front(family) or is_alive(alert, family))


def _sources_of(family: str) -> list[Source]:
    """Its source maps, the outermost first: it says what the family has, as a mock worker lacks what real ones have."""
    found = (source for source in load_sources().values() if source.family == family)
    return sorted(found, key=lambda source: MEASURED_LAYERS.index(source.layer))


def _is_in_front(family: str) -> bool:
    """Whether it routes requests to workers of other families, which run the model."""
    return any(source.layer == "frontend" for source in _sources_of(family))


def _is_chosen(family: str, sources: Sequence[str]) -> bool:
    chosen = [load_sources()[name] for name in sources]
    # Instruments are in programs of any family.
    if any(source.layer == "process" or source.family == family for source in chosen):
        return True
    return not _is_in_front(family) and any(_is_in_front(source.family) for source in chosen)


def is_alive(alert: Alert, family: str) -> bool:
    """Whether the alert can fire with the metrics of a family alone, by its source maps and their histograms' edges."""
    return any(can_fire(alert, (source.name,)) for source in _sources_of(family)[:1])


def _caveat(alert: Alert, families: Sequence[str]) -> Iterator[str]:
    """Where the alert's metrics come from, for families that do not expose them by themselves."""
    fronts = [family for family in FAMILIES if _is_in_front(family) and is_alive(alert, family)]
    engines = [family for family in FAMILIES if not _is_in_front(family)]
    silent = [family for family in engines if not is_alive(alert, family)]
    if len(silent) == len(engines):
        yield (
            "No engine raises this alert by its own metrics: what it reads comes from servescope's instruments in the "
            f"engine, or from a program beside it, such as {''.join(f'{each}, ' for each in fronts)}a router, an "
            "autoscaler or the collector."
        )
        return
    for family in silent:
        if family in families:
            workers = "".join(f"workers of {each}, or for " for each in fronts)
            yield (
                f"{family} does not expose what this alert reads: its part is for {workers}engines with servescope's "
                "instruments or a source map of your own."
            )
