"""The pages of engines, `docs/engines/*.md`, and the table of all of them in the README, from the source maps.

What is covered release by release is read from the pages of engines in `tests/pages`; which alerts, panels and judged
metrics work from the maps, as `servescope rules` and `servescope dashboards` leave out what cannot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

from dashboards.__main__ import BOARDS
from dashboards.board import Board
from dashboards.engines import keep_filled
from dashboards.options import DEFAULTS, Options
from docs.markdown import codes, table
from servescope.alerting.alerts import ALERTS
from servescope.alerting.feeding import can_fire, metrics_of
from servescope.contract.identity import Identity
from servescope.contract.judged import JUDGED
from servescope.sources.identification import identify
from servescope.sources.map_files import load_sources
from servescope.sources.maps import SUPPLIED, Evidence, MetricMap, Source
from servescope.sources.parse import ParseError, parse_exposition
from servescope.sources.translate import Coverage, translate

FOLDER: Final = Path(__file__).parent / "engines"
_PAGES: Final = Path(__file__).parent.parent / "tests" / "pages"
_CAPTURED: Final = "# Captured from"

_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "Requests": ("requests_total",),
    "Tokens": ("input_tokens_total", "output_tokens_total"),
    "Latency": ("time_to_first_token_seconds", "time_per_output_token_seconds", "request_duration_seconds"),
    "Cache": ("kv_cache_eligible_tokens_total", "kv_cache_reused_tokens_total"),
    "Speculation": ("spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"),
    "Replicas": ("replica_count_by_status",),
}
"""What is asked of an engine first, and the metrics that it takes."""
_SIGNS_SAY: Final = "● reported, ◐ approximate or in part, ○ reported by another process beside it, – not."
_SIGNS: Final = {"present": "●", "derived": "●", "approximate": "◐"}


@dataclass(frozen=True, slots=True)
class _Release:
    """A page of an engine in the tree: what it is of, whether an engine served it, and what it covers."""

    versions: str
    captured: bool
    coverage: Mapping[str, Coverage]


@dataclass(frozen=True, slots=True)
class _Family:
    """The maps of one family of engines, and the pages that there are of each."""

    name: str
    sources: tuple[Source, ...]
    releases: Mapping[str, tuple[_Release, ...]]

    @property
    def slug(self) -> str:
        """The name of its page, without the ending."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def serves(self) -> bool:
        """Whether it runs models or is in front of what does; the others are around them."""
        return any(source.layer != "around" for source in self.sources)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its maps."""
        return tuple(source.name for source in self.sources)

    def find(self, metric: str) -> MetricMap:
        """Where a metric comes from: of several maps that of the first that has it, or can say the most of it."""
        maps = [source.metrics[metric] for source in self.sources if metric in source.metrics]
        had = [each for each in maps if _is_own(each)]
        return next(iter(had or [each for each in maps if each.status == "elsewhere"] or maps))

    def has(self, metric: str) -> bool:
        """Whether a target of it reports the metric."""
        return _is_own(self.find(metric))


def _is_own(metric: MetricMap) -> bool:
    return bool(metric.alternatives) or metric.status in SUPPLIED


def render_engines() -> Mapping[Path, Callable[[], str]]:
    """The page of each family of engines: its path, and what writes it."""
    families = _families()
    return {FOLDER / f"{each.slug}.md": partial(_page, each) for each in families}


def render_summary() -> Iterator[str]:
    """The table of all families for the README."""
    serving = [family for family in _families() if family.serves]
    yield from table(("Engine", "Releases", *_PARTS, "Proven by"), map(_summary_row, serving))
    yield _SIGNS_SAY
    yield "An engine's page says in which releases, why not, and how to start it so that its page has the most."
    yield ""
    yield "Around the engines, as [targets that are no replica](docs/discovery.md#what-is-around-the-engines):"
    yield ""
    around = [family for family in _families() if not family.serves]
    yield from table(("Program", "Reads", "For", "Proven by"), map(_around_row, around))


@cache
def _families() -> list[_Family]:
    releases = _read_releases()
    grouped: dict[str, list[Source]] = {}
    for source in load_sources().values():
        if source.layer != "process":
            grouped.setdefault(source.family, []).append(source)
    found = (
        _Family(name, tuple(sources), {each.name: releases.get(each.name, ()) for each in sources})
        for name, sources in grouped.items()
    )
    return sorted(found, key=lambda family: family.name.lower())


def _release_number(page: Path) -> tuple[str, list[int]]:
    """A page's name up to its first number, and its numbers, so that 0.13 comes after 0.8."""
    return re.split(r"\d", page.stem)[0], list(map(int, re.findall(r"\d+", page.stem)))


def _read_releases() -> dict[str, tuple[_Release, ...]]:
    found: dict[str, dict[str, _Release]] = {}
    for path in sorted(_PAGES.glob("*.txt"), key=_release_number, reverse=True):
        text = path.read_text(encoding="utf-8")
        try:
            exposition = parse_exposition(text)
        except ParseError:
            continue
        identified = identify(exposition)
        if identified.source is not None:
            source = identified.source
            coverage = translate(exposition, source, Identity("m", "d", source.name)).coverage
            release = _Release(identified.versions, text.startswith(_CAPTURED), coverage)
            found.setdefault(source.name, {}).setdefault(release.versions, release)
    return {name: tuple(by_versions.values()) for name, by_versions in found.items()}


# --- The summary ------------------------------------------------------------------------------------------------------


def _summary_row(family: _Family) -> tuple[str, ...]:
    covers = "; ".join(dict.fromkeys(source.covers for source in family.sources))
    parts = (_part_sign(family, names) for names in _PARTS.values())
    return f"[{family.name}](docs/engines/{family.slug}.md)", covers, *parts, _evidence(family)


def _around_row(family: _Family) -> tuple[str, ...]:
    covers = "; ".join(source.covers for source in family.sources)
    own = [name for name in family.sources[0].metrics if family.has(name)]
    return f"[{family.name}](docs/engines/{family.slug}.md)", covers, codes(own), _evidence(family)


def _part_sign(family: _Family, names: Sequence[str]) -> str:
    own = [family.find(name) for name in names if family.has(name)]
    if not own:
        return "○" if any(family.find(name).status == "elsewhere" for name in names) else "–"
    rough = any(each.alternatives and all(one.status == "approximate" for one in each.alternatives) for each in own)
    return "◐" if rough or len(own) < len(names) else "●"


def _evidence(family: _Family) -> str:
    """How it is known that the maps are right, and of releases of which it is known in another way."""
    said = dict.fromkeys(_EVIDENCE[source.evidence] for source in family.sources)
    others = {_EVIDENCE[each.evidence]: None for source in family.sources for each in source.versions}
    return "; ".join((*said, *(f"some releases by {words}" for words in others if words not in said)))


_EVIDENCE: Final[Mapping[Evidence, str]] = {
    "run": "a run of the program",
    "driven": "its own metric classes, driven",
    "read": "its source alone",
}


# --- A page -----------------------------------------------------------------------------------------------------------


def _page(family: _Family) -> str:
    lines = [*_introduction(family)]
    if family.serves:
        lines += [*_parts(family), *_start(family)]
    lines += [*_reported(family), *_missing(family), *_unread(family)]
    if family.serves:
        lines += _alive(family)
    return "\n".join(lines).rstrip() + "\n"


def _introduction(family: _Family) -> Iterator[str]:
    yield from ("<!-- Generated by `python -m docs.generate`; do not edit. -->", "", f"# {family.name}", "")
    for source in family.sources:
        yield f"- [Source map](../sources.md) `{source.name}`: {source.covers}, read as {_LAYERS[source.layer]}."
    yield from (
        "- [All engines](../../README.md#engines), "
        "and [which panel has data on pages of real engines](../engines.md), release by release.",
        "",
    )


def _parts(family: _Family) -> Iterator[str]:
    """What is asked of an engine first."""
    yield from table(("", "", "From, or why not"), (_part_row(family, *part) for part in _PARTS.items()))
    yield from (_SIGNS_SAY, "")


_LAYERS: Final = {
    "frontend": "what is in front of engines",
    "process": "the process itself",
    "engine": "an engine",
    "around": "what is around engines, and no replica",
}


def _part_row(family: _Family, title: str, names: Sequence[str]) -> tuple[str, ...]:
    own = [name for name in names if family.has(name)]
    lacks = {name: family.find(name).reason or "" for name in names if name not in own}
    # The one latency that is there is enough: why the others are not is below.
    why = {} if own and title == "Latency" else lacks
    said = [codes(own)] if own else []
    said += [f"{codes([name])}: {reason}" for name, reason in why.items()] if own else list(dict.fromkeys(why.values()))
    return title, _part_sign(family, names), "; ".join(said)


def _start(family: _Family) -> Iterator[str]:
    flags = [each for source in family.sources for each in source.flags]
    plugin = "".join(source.plugin for source in family.sources)
    why_not = "".join(source.without_plugin for source in family.sources)
    yield from ("## To start it", "")
    if flags:
        yield from table(("With", "its page has"), ((f"`{each.flag}`", each.adds) for each in flags))
    else:
        yield from ("Nothing has to be switched on.", "")
    if plugin:
        yield f"[Our plugin inside it](../embedding.md#inside-{family.slug}) adds {plugin}."
    else:
        because = f": {why_not}" if why_not else ""
        yield (
            f"There is no plugin of ours for it{because}; a program of your own "
            "[embeds our instruments](../embedding.md)."
        )
    yield ""


def _reported(family: _Family) -> Iterator[str]:
    yield from ("## What it reports", "")
    for source in family.sources:
        releases = family.releases[source.name]
        own = [name for name, each in source.metrics.items() if _is_own(each)]
        if len(family.sources) > 1:
            yield from (f"### {source.title}", "")
        yield from table(
            ("Metric", *(release.versions or source.covers for release in releases), "Native series", "What to know"),
            (_metric_row(source, name, releases) for name in own),
        )
        yield from (
            f"- {release.versions or source.covers}: "
            + ("a page that it served." if release.captured else "a page written from the map; no engine served it.")
            for release in releases
        )
        yield ""
    yield from (
        "● reported, ◐ approximate, – not on that page: it may need a flag, a feature that is on, or a first event.",
        "Of several native series the first that is exposed is used.",
        "",
    )


def _metric_row(source: Source, name: str, releases: Sequence[_Release]) -> tuple[str, ...]:
    metric = source.metrics[name]
    natives = dict.fromkeys(
        " + ".join(dict.fromkeys(codes([term.native]) for term in each.terms)) for each in metric.alternatives
    )
    reasons = [*(each.reason for each in metric.alternatives), metric.reason]
    signs = (_SIGNS.get(release.coverage[name].status, "–") for release in releases)
    return f"`{name}`", *signs, "<br>".join(natives) or "computed", "; ".join(dict.fromkeys(filter(None, reasons)))


def _missing(family: _Family) -> Iterator[str]:
    lacking = {name: family.find(name) for name in family.sources[0].metrics if not family.has(name)}
    for status, title in (
        ("impossible", "What it never reports, and why"),
        ("elsewhere", "What another process reports"),
    ):
        by_reason: dict[str, list[str]] = {}
        for name, each in lacking.items():
            if (each.status == "elsewhere") == (status == "elsewhere"):
                by_reason.setdefault(each.reason or "", []).append(name)
        if by_reason:
            yield from (f"## {title}", "")
            yield from table(("Why", "Metrics"), ((reason, codes(names)) for reason, names in by_reason.items()))


def _unread(family: _Family) -> Iterator[str]:
    """What a page may lack of the names that are read, and what is on it that is not."""
    gated = [each for source in family.sources for each in source.gated]
    if gated:
        yield from ("## Series that a page may lack", "")
        yield from table(("Needs", "Series"), ((each.gate or each.reason, codes(each.names)) for each in gated))
    ignored = [each for source in family.sources for each in source.ignored]
    if ignored:
        yield from ("## Series that are not read, and why", "")
        yield from table(("Why", "Series"), ((each.reason, codes(each.names)) for each in ignored))


def _alive(family: _Family) -> Iterator[str]:
    had = metrics_of(family.names)
    yield from (
        "## Alerts, panels and the judge",
        "",
        "With what it reports, or another process beside it does; the collector counts replicas itself.",
        "",
    )
    dead = [name for name, alert in ALERTS.items() if not can_fire(alert, family.names)]
    yield f"- {len(ALERTS) - len(dead)} of {len(ALERTS)} alerts can fire. These cannot: {codes(dead)}."
    empty, count = _empty_panels(family.names)
    yield f"- {count - sum(map(len, empty.values()))} of {count} panels can have data. These stay empty:"
    for board, titles in empty.items():
        if titles:
            yield f"  - {board}: {'; '.join(titles)}"
    judged = {name: [each for each in metric.families if each not in had] for name, metric in JUDGED.items()}
    yield f"- The judge compares {codes(name for name, lacks in judged.items() if not lacks) or 'nothing'}."
    yield from ("", "It has NO DATA of these:", "")
    yield from table(
        ("Judged metric", "Without"), ((f"`{name}`", codes(lacks)) for name, lacks in judged.items() if lacks)
    )


@cache
def _boards() -> tuple[Board, ...]:
    return tuple(make(DEFAULTS) for make in BOARDS)


def _empty_panels(names: tuple[str, ...]) -> tuple[dict[str, list[str]], int]:
    """By dashboard the panels that stay empty on these sources, and how many panels there are."""
    chosen = Options(engines=names)
    empty: dict[str, list[str]] = {}
    count = 0
    for board in _boards():
        left = {panel.title for row in keep_filled(board, chosen).rows for panel in row.panels}
        titles = [panel.title for row in board.rows for panel in row.panels]
        count += len(titles)
        empty[board.title] = [title for title in titles if title not in left]
    return empty, count
