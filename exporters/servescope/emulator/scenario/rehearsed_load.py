"""The traffic that a cutover is rehearsed under: what v1 was measured to serve, or, said plainly, a made one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from servescope.emulator.engine.parameters import EngineParameters
from servescope.emulator.workload.mixes import MOST_RATE, Mix
from servescope.errors import UsageError
from servescope.increments.blocks import BLOCK_MS
from servescope.migration.moves import Move

if TYPE_CHECKING:
    from servescope.migration.traffic.traffic import ServedTraffic

UTILIZATION: Final = 0.45
"""v1's documented utilisation is 40 to 50 %."""
_CONCURRENCY_TARGET: Final = 2.0
_REPLICAS: Final = 6
"""How many of v1 the traffic needs: enough to show how replicas of one stack differ, which the judge has to know."""
_REQUEST_SECONDS: Final = 4.0
"""About what a request takes."""
_MOST_MADE: Final = 20.0
"""Requests a second that are made without having been measured: each of them has to be emulated."""
_LEAST_ROOM: Final = 64
"""Tokens that a sequence needs at least, for a prompt and an answer to be drawn."""
_DAY_SECONDS: Final = 86_400
_SHARED: Final = 1 / 3
"""The part of a prompt that an application's requests share: what is reused is not known from sizes."""


@dataclass(frozen=True, slots=True)
class RehearsedLoad:
    """What `[traffic]` has, beside `remarks` on it, and what v1 needs for it.

    `concurrency_target` and `replicas` are v1's, `tokens_per_request` is the mean of prompt and answer.
    """

    remarks: tuple[str, ...]
    mix: Mapping[str, object]
    tokens_per_request: float
    concurrency_target: float
    replicas: int


def make_load(move: Move, room: int) -> RehearsedLoad:
    """A load of the emulator's conversations that fits into an engine with room for so many tokens of a request.

    It keeps some replicas of v1 busy at the target that v2's was computed from. Raises UsageError without room.
    """
    usual, sizes = Mix(), dict[str, object]()
    if room < _LEAST_ROOM:
        raise UsageError(f"{move.origin}: cannot be rehearsed: {room} tokens have no room for a prompt and an answer")
    if room < usual.prompt_limit + usual.output_range[1]:
        sizes = {
            "system_tokens": [room // 16, room // 8], "message_tokens": room // 8, "prompt_limit": room // 2,
            "output_tokens": room // 16, "output_range": [1, room // 4],
        }  # fmt: skip
    tokens = (room // 2) / 2 + room // 16 if sizes else usual.prompt_limit / 2 + usual.output_tokens
    decided = (move.body.get("autoscaling_settings") or {}).get("target_in_flight_tokens")
    target = _CONCURRENCY_TARGET if decided is None else max(1.0, round(decided / tokens, 1))
    rate = min(_REPLICAS * UTILIZATION * target / _REQUEST_SECONDS, _MOST_MADE)
    remarks = (
        "No traffic was measured: these are the emulator's own conversations, and not those of your clients. Draft",
        "with --store or --prometheus from what v1 serves, or give a trace of it, before you believe a figure.",
    )
    mix = {"preset": "chat", "requests_per_second": round(rate, 2), "oversized_share": 0, **sizes}
    return RehearsedLoad(remarks, mix, tokens, target, _REPLICAS)


def load_of(served: ServedTraffic, room: int) -> RehearsedLoad:
    """The load that a deployment of v1 was measured to serve, in requests that are drawn from its sizes.

    Raises UsageError where the rate or the sizes of its requests are not known.
    """
    rate = served.request_rate()
    prompts, answers = (served.pool(f"{side}_tokens_per_request") for side in ("input", "output"))
    if not rate > 0 or prompts is None or answers is None:
        lacking = "how many requests there were" if not rate > 0 else "the sizes of its requests"
        raise UsageError(f"{served.name}: cannot be rehearsed: {lacking} was not observed")
    limit = max(2, room // 2, min(room - 1, math.ceil(prompts.quantile(0.999))))
    shared = min(max(1, round(prompts.mean * _SHARED)), limit - 1)
    message = max(1.0, prompts.mean - shared)
    longest = max(1, min(room - limit, math.ceil(answers.quantile(0.999))))
    mix: dict[str, object] = {
        "requests_per_second": min(round(rate, 3), MOST_RATE), "turns": 1.0, "system_tokens": [shared, shared],
        "message_tokens": round(message, 1), "message_spread": _spread(prompts.deviation(), message),
        "prompt_limit": limit, "output_tokens": round(min(answers.mean, longest), 1),
        "output_spread": _spread(answers.deviation(), answers.mean), "output_range": [1, longest],
        "burst_factor": 1.0, "oversized_share": 0, **_day(served),
    }  # fmt: skip
    concurrency, replicas = _mean(served.concurrency), _mean(served.replicas)
    return RehearsedLoad(
        remarks=(
            f"As {served.name} was observed: {rate:.3g} requests a second of {prompts.mean:.0f} tokens in and",
            f"{answers.mean:.0f} out. What prompts share is not known from sizes: a third of each is taken as shared",
            "by the requests of one application.",
        ),
        mix=mix,
        tokens_per_request=prompts.mean + answers.mean,
        concurrency_target=max(0.1, round(concurrency / max(replicas, 1.0) / UTILIZATION, 2)),
        replicas=max(1, round(replicas)),
    )


def room_of(runtime: Mapping[str, Any]) -> int:
    """Tokens that a request may have: those of a sequence, and of one pass where prompts are not chunked."""
    room = int(runtime.get("max_seq_len", EngineParameters().max_seq_len))
    if runtime.get("enable_chunked_prefill", True):
        return room
    return min(room, int(runtime.get("max_num_tokens", EngineParameters().max_num_tokens)))


def _spread(deviation: float, mean: float) -> float:
    """The sigma of a log-normal with this deviation and mean, within what a mix may have."""
    return round(min(math.sqrt(math.log1p((deviation / max(mean, 1e-9)) ** 2)), 2.0), 3)


def _mean(values: Any) -> float:
    known = [each for each in values.tolist() if math.isfinite(each)]
    return sum(known) / len(known) if known else 1.0


def _day(served: ServedTraffic) -> dict[str, object]:
    """The day that the rate follows: its first harmonic, where a whole day was observed; a flat one otherwise."""
    seconds = [at / 1000 for at in served.blocks.tolist()]
    known = [(at, each) for at, each in zip(seconds, served.requests.tolist(), strict=True) if math.isfinite(each)]
    if len(known) * BLOCK_MS < 1000 * _DAY_SECONDS:
        return {"day_seconds": float(_DAY_SECONDS), "day_amplitude": 0.0}
    mean = sum(each for _, each in known) / len(known)
    angles = [(2 * math.pi * at / _DAY_SECONDS, each / mean - 1) for at, each in known]
    sine = 2 * sum(math.sin(angle) * each for angle, each in angles) / len(angles)
    cosine = 2 * sum(math.cos(angle) * each for angle, each in angles) / len(angles)
    start = math.atan2(cosine, sine) / (2 * math.pi) % 1 * _DAY_SECONDS
    return {
        "day_seconds": float(_DAY_SECONDS), "day_amplitude": round(min(math.hypot(sine, cosine), 0.95), 3),
        "day_start_seconds": float(round(start)),
    }  # fmt: skip
