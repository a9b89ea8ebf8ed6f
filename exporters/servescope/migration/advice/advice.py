"""Whether something that v2 adds pays for the traffic at hand: the answer, and the figures it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

AdvisedTopic = Literal["routing", "disaggregation", "speculation"]
Answer = Literal["pays", "may pay", "depends", "does not pay", "unknown"]

ADVICE_TITLES: Final[dict[AdvisedTopic, str]] = {
    "routing": "KV-aware routing",
    "disaggregation": "Disaggregated serving",
    "speculation": "Speculation",
}


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether one thing pays, in one sentence, and the figures and rules behind the answer, one sentence each."""

    topic: AdvisedTopic
    answer: Answer
    text: str
    reasons: tuple[str, ...]


def describe_advice(advice: Sequence[Advice]) -> str:
    """All advice for a person, in lines."""
    lines = ["Whether what v2 adds pays for this traffic:"]
    for each in advice:
        lines.append(f"  {ADVICE_TITLES[each.topic]}: {each.answer}: {each.text}.")
        lines += (f"    {reason}" for reason in each.reasons)
    return "\n".join(lines) + "\n"


def show_count(number: int) -> str:
    """With a space between thousands."""
    return f"{number:,}".replace(",", " ")


def show_seconds(seconds: float) -> str:
    """Three digits, in seconds."""
    return f"{seconds:.3g} s"
