"""Whether to speculate, and how many tokens to draft: from how often drafts were accepted up to each position.

A draft is right up to a position or it is not, so that acceptance falls from position to position. The documented bands
of the acceptance rate are applied to each of them: one that is accepted less often than the lowest band ends costs more
than it saves.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from servescope.contract.bands import SPECULATION_BAND
from servescope.contract.identity import OLD_STACK
from servescope.migration.advice.advice import Advice, Answer, show_count
from servescope.migration.traffic.traffic import ServedTraffic
from servescope.settings.values import format_percent

_POSITION: Final = re.compile(r'spec_decode_num_accepted_tokens_per_pos_total\{position="(\d+)"\}')
_PAYS_FROM: Final = SPECULATION_BAND.steps[0].start
_ALIGNED_FROM: Final = SPECULATION_BAND.steps[1].start
_FEWEST_DRAFTS: Final = 1000
"""With fewer drafts acceptance is a matter of chance."""

_BANDS: Final = (
    f"Below {format_percent(_PAYS_FROM)} speculation costs more than it saves; "
    f"a draft of which {format_percent(_ALIGNED_FROM)} are accepted is aligned well."
)
_LOOKAHEAD: Final = (
    "This is v1's lookahead, which v2 does not have: another kind of draft has an acceptance of its own."
)
_KINDS: Final = (
    "N-gram is the nearest in v2, and needs no draft model (--n-gram); Eagle needs a trained head, MTP a model with "
    "such layers, and both need the Enterprise tier."
)


def advise_speculation(traffic: ServedTraffic) -> Advice:
    """Whether to speculate on the traffic that a deployment served, and how many tokens to draft at once."""
    drafted = traffic.gained("spec_decode_num_draft_tokens_total")
    accepted = traffic.gained("spec_decode_num_accepted_tokens_total")
    if not drafted or accepted is None:
        text = "no drafts are reported, so nothing is known of how many would be accepted"
        return Advice("speculation", "unknown", text, (_BANDS, _KINDS))
    by_position = _find_positions(traffic)
    drafts = _find_drafts(traffic, drafted, by_position)
    if (drafts or drafted) < _FEWEST_DRAFTS:
        text = f"there were fewer than {show_count(_FEWEST_DRAFTS)} drafts"
        return Advice("speculation", "unknown", text, (_BANDS,))
    reach = tuple(each / drafts for each in by_position) if drafts else ()
    advice = _weigh_positions(reach) if reach else _weigh_rate(accepted / drafted)
    reasons = [f"Of {show_count(round(drafted))} drafted tokens {format_percent(accepted / drafted, 1)} were accepted."]
    if drafts:
        step = f"A step gave {1 + accepted / drafts:.2f} tokens of a request"
        reasons.append(f"{step}, with {drafted / drafts:.1f} drafted.")
    reasons += [*advice.reasons, _BANDS]
    if traffic.deployments[0].inference_stack != OLD_STACK:
        return replace(advice, reasons=tuple(reasons))
    reasons += [_LOOKAHEAD, _describe_needed(accepted / drafted), _KINDS]
    # What lookahead's drafts are worth does not prove it of another kind.
    return replace(advice, answer="may pay" if advice.answer == "pays" else advice.answer, reasons=tuple(reasons))


def _find_positions(traffic: ServedTraffic) -> tuple[float, ...]:
    """The tokens that were accepted at each position, from the first; empty where that is not reported.

    An engine may report positions that it never drafts: the last one is that at which any token was accepted.
    """
    gained = {
        int(match[1]): traffic.gained(series) or 0.0
        for series in traffic.counters
        if (match := _POSITION.fullmatch(series)) is not None
    }
    length = max((position + 1 for position, tokens in gained.items() if tokens), default=0)
    return tuple(gained.get(position, 0.0) for position in range(length))


def _find_drafts(traffic: ServedTraffic, drafted: float, by_position: tuple[float, ...]) -> float | None:
    """How many drafts there were: as reported, or else as many as have all positions; None where neither is known."""
    drafts = traffic.gained("spec_decode_num_drafts_total")
    if drafts is None and by_position:
        drafts = drafted / len(by_position)
    # No position is accepted more often than there are drafts: else their length varies.
    return drafts if drafts and max(by_position, default=0.0) <= drafts else None


def _weigh_positions(reach: tuple[float, ...]) -> Advice:
    """The number of tokens to draft: as many as there are positions from the first on that save more than they cost."""
    length = next((at for at, share in enumerate(reach) if share < _PAYS_FROM), len(reach))
    shown = f"Accepted up to each position, from the first: {', '.join(f'{format_percent(share)}' for share in reach)}."
    if not length:
        text = (
            f"already the first token is accepted in {format_percent(reach[0])} of the drafts only: do without drafts"
        )
        return Advice("speculation", "does not pay", text, (shown,))
    kept = sum(reach[:length])
    gain = f"{1 + kept:.2f} tokens a step in place of one, {format_percent(kept / length)} of the drafted ones accepted"
    if length < len(reach):
        text = f"draft {_count_tokens(length)} in place of {len(reach)} (max_draft_len: {length}): {gain}"
        return Advice("speculation", "pays", text, (shown, "What is drafted beyond that costs more than it saves."))
    text = f"draft {_count_tokens(length)}, as today (max_draft_len: {length}): {gain}"
    return Advice("speculation", "pays", text, (shown, _describe_next(reach)))


def _count_tokens(number: int) -> str:
    return "1 token" if number == 1 else f"{number} tokens"


def _describe_next(reach: tuple[float, ...]) -> str:
    unknown = f"Position {len(reach) + 1} was never drafted, so its acceptance is not known"
    if len(reach) < 2:
        return f"{unknown}."
    guess = reach[-1] * reach[-1] / reach[-2]
    worth = "one more is worth a trial" if guess >= _PAYS_FROM else "one more would hardly pay"
    return f"{unknown}; if it falls as before it is {format_percent(guess)}, and {worth}."


def _weigh_rate(rate: float) -> Advice:
    """The answer where only the share of all drafted tokens is known."""
    reason = "Acceptance by position is not reported, so how many tokens to draft is not known."
    rating = SPECULATION_BAND.judge(rate)
    answer: Answer = "does not pay" if rating == SPECULATION_BAND.lowest else "pays"
    text = f"{format_percent(rate)} of the drafted tokens are accepted: {rating.label}"
    return Advice("speculation", answer, text, (f"{rating.advice}", reason))


def _describe_needed(rate: float) -> str:
    """What has to be accepted of n-grams so that they are worth as much as lookahead."""
    return (
        f"N-gram drafts of the same length are worth as much where {format_percent(rate)} of their tokens are "
        f"accepted, and anything from {format_percent(_PAYS_FROM)} on."
    )
