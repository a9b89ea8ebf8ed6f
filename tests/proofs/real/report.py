"""The results of a run as Markdown, put between two marks of a page whose other text stays as it is."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.proofs.real.claims import Claim
from tests.support.markers import Markers

MARKERS = Markers("<!-- results: written by `make real`, do not edit -->", "<!-- end of results -->")


@dataclass(frozen=True, slots=True)
class Section:
    """The claims of one kind, under a heading."""

    title: str
    claims: list[Claim]


def render(facts: Mapping[str, str], sections: Iterable[Section]) -> str:
    """The results of a run."""
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    for section in sections:
        lines += ["", f"### {section.title}", "", "| engine | value | read | client's count or range | why |"]
        lines += ["|---|---|---:|---:|---|", *map(_row, section.claims)]
    return "\n".join(lines) + "\n"


def print_claims(section: Section) -> None:
    """The section on the terminal, one line per claim; what does not hold is marked."""
    print(f"\n{section.title}")
    for claim in section.claims:
        mark = "ok  " if claim.holds else "FAIL"
        why = f"  ({claim.why})" if claim.why else ""
        print(f"  {mark} {claim.engine:8} {claim.what:55} {_number(claim.read):>14}  {_range(claim)}{why}", flush=True)


def describe_run(seconds: float) -> str:
    """When, how long and on what a run was made that ends now."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {seconds:.0f} s, {os.cpu_count()} cores, {platform.machine()}"


def conclude(page: Path | None, facts: Mapping[str, str], sections: Sequence[Section]) -> int:
    """Write the results into a page where one is given, and print how many claims hold; 1 where some do not."""
    made = [claim for section in sections for claim in section.claims]
    failed = [claim for claim in made if not claim.holds]
    holding = f"{len(made) - len(failed)} of {len(made)}"
    if page is not None:
        MARKERS.write(page, render({**facts, "Claims": f"{holding} hold"}, sections))
    print(f"\n{holding} claims hold")
    return 1 if failed else 0


def _row(claim: Claim) -> str:
    value = f"`{claim.what}`" if claim.what.isidentifier() or "{" in claim.what else claim.what
    mark = "" if claim.holds else " **wrong**"
    return f"| {claim.engine} | {value} | {_number(claim.read)}{mark} | {_range(claim)} | {claim.why} |"


def _range(claim: Claim) -> str:
    if claim.low is None or claim.high is None:
        return "absent"
    return f"= {_number(claim.low)}" if claim.exact else f"{_number(claim.low)} … {_number(claim.high)}"


def _number(value: float | None) -> str:
    if value is None:
        return "absent"
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.4f}" if abs(value) < 10 else f"{value:,.1f}"
