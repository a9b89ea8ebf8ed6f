"""The comparison as Markdown, put between two marks of a page whose other text stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.proofs.truth.figures import Figures
from tests.proofs.truth.settings import TOLERANCE, Setting, TraceSetting
from tests.support.markers import Markers

MARKERS = Markers("<!-- truth: written by `make truth`, do not edit -->", "<!-- end of truth -->")


@dataclass(frozen=True, slots=True)
class Compared:
    """One setting's figures, ours and the real router's; what one of them has not is left out of both."""

    setting: Setting
    ours: Figures
    real: Figures

    @property
    def pairs(self) -> dict[str, tuple[float, float]]:
        """Each figure of both, by its name."""
        pairs = {"hit rate": (self.ours.hit_rate, self.real.hit_rate)}
        # Without weight on caches Dynamo does not ask its index, and knows no best.
        if self.setting.weight > 0:
            pairs["best prefix"] = (self.ours.best_prefix_hit_rate, self.real.best_prefix_hit_rate)
            pairs["efficiency"] = (self.ours.efficiency, self.real.efficiency)
        return pairs


@dataclass(frozen=True, slots=True)
class TraceCompared:
    """One setting's hit rate on the trace, ours and the real router's."""

    setting: TraceSetting
    ours: float
    real: float

    @property
    def pairs(self) -> dict[str, tuple[float, float]]:
        """The one figure of both."""
        return {"hit rate": (self.ours, self.real)}


def apart(compared: Compared | TraceCompared) -> float:
    """How far apart the figures are that are furthest apart."""
    return max(abs(ours - real) for ours, real in compared.pairs.values())


def holds(compared: Compared | TraceCompared) -> bool:
    """Whether they agree, or are known not to."""
    return apart(compared) <= TOLERANCE or bool(compared.setting.explained)


def render(facts: Mapping[str, str], live: Sequence[Compared], traces: Sequence[TraceCompared]) -> str:
    """The tables of a run; in each cell ours, then the real router's."""
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    if live:
        lines += ["", "| prompts | weight | T | blocks | hit rate | best prefix | efficiency | apart by | |"]
        lines += ["|---|---|---:|---:|---:|---:|---:|---:|---|", *map(_live_row, live)]
    if traces:
        lines += ["", "| trace, weight | T | blocks | hit rate | apart by | |", "|---|---:|---:|---:|---:|---|"]
        lines += map(_trace_row, traces)
    return "\n".join(lines) + "\n"


def _live_row(compared: Compared) -> str:
    setting, pairs = compared.setting, compared.pairs
    cells = [_pair(pairs.get(name)) for name in ("hit rate", "best prefix", "efficiency")]
    return (
        f"| {setting.traffic} | {setting.weight_shown} | {setting.temperature:g} | {setting.cache_blocks} | "
        f"{' | '.join(cells)} | {_apart(compared)} | {_why(compared)} |"
    )


def _trace_row(compared: TraceCompared) -> str:
    setting = compared.setting
    return (
        f"| conversation, {setting.weight_shown} | {setting.temperature:g} | {setting.cache_blocks} | "
        f"{_pair(compared.pairs['hit rate'])} | {_apart(compared)} | {_why(compared)} |"
    )


def _pair(pair: tuple[float, float] | None) -> str:
    return f"{pair[0]:.1%}, {pair[1]:.1%}".replace("%", " %") if pair else "–"


def _apart(compared: Compared | TraceCompared) -> str:
    points = f"{100 * apart(compared):.1f} points"
    return points if apart(compared) <= TOLERANCE else f"**{points}**"


def _why(compared: Compared | TraceCompared) -> str:
    return compared.setting.explained if apart(compared) > TOLERANCE else ""
