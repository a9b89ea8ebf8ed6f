"""Speculative decoding: where drafts come from, how long they are, how far they are right, and what drafting costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from types import MappingProxyType
from typing import Any, NamedTuple

from servescope.errors import UsageError
from servescope.migration.document.shapes import TableShape
from servescope.migration.fields.llm_config import canonical_type, check_speculation, require
from servescope.migration.fields.trt_llm import LOOKAHEAD_SIZES, SPECULATOR

_LONGEST_DRAFT = 64  # positions that the instruments distinguish


class _Kind(NamedTuple):
    """What drafts of one kind are like by default.

    The first position is accepted with `first`, each later one, given those before it, `fade` times as often.
    `draft_seconds` is what a draft position takes, whatever the batch.
    """

    stack: str
    length: int
    first: float
    fade: float
    draft_seconds: float


# Chances are of the order that public reports give for chat: Eagle 3 about 0.8 to 0.9 at the first position (Li et al.,
# 2025), DeepSeek-V3's next-token layer 0.85 to 0.90 (its technical report, 5.4.3), n-grams far less outside of code.
# Seconds are those of one pass through a head of one layer beside a model of 80; n-grams are looked up on the host.
_KINDS = {
    "Eagle": _Kind("v2", 3, 0.88, 0.97, 400e-6),
    "MTP": _Kind("v2", 1, 0.87, 0.97, 500e-6),
    "NGram": _Kind("v2", 4, 0.55, 0.90, 20e-6),
    "lookahead": _Kind("v1", 3, 0.60, 0.93, 20e-6),
}

DECODING_TYPES = tuple(_KINDS)
"""The kinds of drafts there are: three documented for v2, and v1's lookahead."""

_LOOKAHEAD = TableShape(keys=MappingProxyType({
    name: replace(SPECULATOR.keys[name], is_required=True) for name in ("speculative_decoding_mode", *LOOKAHEAD_SIZES)
}))  # fmt: skip
"""What of v1's `speculator` is emulated."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """How drafts are made, and how far they are right.

    `acceptance` has the chance of each draft position (0 to 1), given that those before it were accepted.
    `draft_seconds` is what drafting one position takes in every step, whatever the batch; that the model has to verify
    it is part of the engine's cost. `decoding_type` is one of `DECODING_TYPES`. The chances fall by the share
    `drift_per_hour` in each hour of an engine's life, as the traffic moves away from what the draft was trained on.
    """

    acceptance: tuple[float, ...]
    draft_seconds: float = 0.0
    decoding_type: str = "Eagle"
    drift_per_hour: float = 0.0

    def __post_init__(self) -> None:
        if not self.acceptance or not all(0 <= chance <= 1 for chance in self.acceptance):
            raise UsageError(f"acceptance is {self.acceptance!r}, expected one or more chances in [0, 1]")
        if len(self.acceptance) > _LONGEST_DRAFT:
            raise UsageError(f"acceptance has {len(self.acceptance)} positions, expected {_LONGEST_DRAFT} at most")
        if not 0 <= self.draft_seconds < 1e3:
            raise UsageError(f"draft_seconds is {self.draft_seconds!r}, expected seconds of 0 or more")
        if self.decoding_type not in _KINDS:
            known = ", ".join(DECODING_TYPES)
            raise UsageError(f"unknown decoding_type {self.decoding_type!r}, supported: {known}")
        if not 0 <= self.drift_per_hour < 1:
            raise UsageError(f"drift_per_hour is {self.drift_per_hour!r}, expected a share of 0 or more and below 1")

    @property
    def draft_length(self) -> int:
        """Tokens drafted for one sequence in one step."""
        return len(self.acceptance)

    def reach(self, factors: Sequence[float] = (), *, age_seconds: float = 0.0) -> list[float]:
        """The chance that a draft is right up to each position, when the engine has lived for that long.

        `factors` lower the chances of the positions, the last of them that of all after it.
        """
        alignment = (1 - self.drift_per_hour) ** (age_seconds / 3600)
        chances = tuple(chance * alignment for chance in self.acceptance)
        if factors:
            last = len(factors) - 1
            chances = tuple(chance * factors[min(at, last)] for at, chance in enumerate(chances))
        return list(accumulate(chances, mul))


def speculate(
    decoding_type: str, *, draft_length: int | None = None, acceptance: Sequence[float] | None = None
) -> Speculation:
    """Speculation of a kind, its name in any case; what is left out is as usual for the kind.

    Raises UsageError for an unknown kind, or a draft of no tokens or more than 64.
    """
    name = _canonical(decoding_type, DECODING_TYPES, "decoding_type")
    kind = _KINDS[name]
    if acceptance is None:
        length = kind.length if draft_length is None else draft_length
        if not 1 <= length <= _LONGEST_DRAFT:
            raise UsageError(f"draft length is {length!r}, expected 1 to {_LONGEST_DRAFT}")
        acceptance = [kind.first * kind.fade**position for position in range(length)]
    elif draft_length is not None and len(acceptance) != draft_length:
        raise UsageError(f"acceptance has {len(acceptance)} positions, but the draft has {draft_length}")
    return Speculation(tuple(acceptance), kind.draft_seconds, name)


def parse_speculation(table: Mapping[str, object], *, acceptance: Sequence[float] | None = None) -> Speculation:
    """Speculation as v2's `speculative_config` or v1's `speculator` describes it.

    v2 has `decoding_type` (Eagle, MTP or NGram, in any case), `speculative_model_dir` (Eagle needs it),
    `num_nextn_predict_layers` (MTP needs it), `max_draft_len`, and `eagle3_one_model` (Eagle only); v1 has
    `speculative_decoding_mode` and the three sizes of lookahead: both by the rules of `migration`. Anything else raises
    UsageError, which says what is expected. `acceptance` are the chances of the positions, for those that are not as
    usual for the kind.
    """
    if "speculative_decoding_mode" in table:
        return _parse_lookahead(table, acceptance)
    require(check_speculation, table, "speculative_config")
    values: Mapping[str, Any] = table
    name = canonical_type(values["decoding_type"])
    layers = values.get("num_nextn_predict_layers") if name == "MTP" else None
    return _with_length(name, values.get("max_draft_len", layers), acceptance)


def _parse_lookahead(table: Mapping[str, Any], acceptance: Sequence[float] | None) -> Speculation:
    require(_LOOKAHEAD.check, table, "speculator")
    # An n-gram begins with a token that is there already: the draft is the rest of it.
    return _with_length("lookahead", max(table["lookahead_ngram_size"] - 1, 1), acceptance)


def _with_length(name: str, length: int | None, acceptance: Sequence[float] | None) -> Speculation:
    """Chances that were given for more positions than the draft has are for those there are."""
    if acceptance is not None and length is not None and len(acceptance) > length:
        acceptance = acceptance[:length]
    return speculate(name, draft_length=length, acceptance=acceptance)


def _canonical(value: object, names: Sequence[str], what: str) -> str:
    for name in names:
        if isinstance(value, str) and value.lower() == name.lower():
            return name
    raise UsageError(f"unknown {what} {value!r}, supported: {', '.join(names)}")
