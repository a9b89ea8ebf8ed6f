"""What a mix looks like in figures: sizes, what prompts share, and what a cache without limit would reuse."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import takewhile
from statistics import fmean, quantiles
from typing import Final, NamedTuple

from servescope.emulator.clock import VirtualClock
from servescope.emulator.workload.blocks import count_shared
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.emulator.workload.requests import Finished, WorkloadRequest
from servescope.emulator.workload.traffic import Traffic

BLOCK_TOKENS: Final = 32
ANSWER_SECONDS: Final = 3.0
_WARM_UP_SECONDS: Final = 600.0
_SECONDS: Final = 1800.0
_REQUESTS_PER_SECOND: Final = 4.0


class Portrait(NamedTuple):
    """Figures of a mix over the requests that an engine takes; shares are 0 to 1.

    Token counts are means, `long_input_tokens` the 95th of 100. Of the prompt tokens `reused_share` is what one cache
    without limit has when the request comes, with every request answered in three seconds and the cache warm;
    `reused_from_others_share` the part of it in system prompts and documents. `busiest_ten_seconds` is the
    most requests in ten seconds ÷ their mean.
    """

    requests: int
    input_tokens: float
    long_input_tokens: float
    output_tokens: float
    reused_share: float
    reused_from_others_share: float
    abort_share: float
    busiest_ten_seconds: float


def portray(mix: Mix) -> Portrait:
    """The figures of half an hour of a mix's traffic, after ten minutes of it.

    At four requests per second: nothing here depends on the rate.
    """
    mix = replace(mix, requests_per_second=_REQUESTS_PER_SECOND)
    clock = VirtualClock()
    server = _Server(clock, mix)
    traffic = Traffic(
        GeneratedTraffic(mix),
        clock=clock,
        seed=1,
        block_tokens=BLOCK_TOKENS,
        sends={"": server.send},
        split={"": 1.0},
    )
    traffic.start()
    clock.run_until(_WARM_UP_SECONDS + _SECONDS)
    return server.portray()


class _Served(NamedTuple):
    seconds: float
    request: WorkloadRequest
    reused_blocks: int
    shared_blocks: int


class _Server:
    """Answers every request in the same time, by one cache without limit."""

    def __init__(self, clock: VirtualClock, mix: Mix) -> None:
        self._clock = clock
        self._mix = mix
        # Without a limit nothing is ever evicted, so which blocks there were is all there is to know.
        self._cached: set[int] = set()
        self._served: list[_Served] = []

    def send(self, request: WorkloadRequest, finished: Finished) -> None:
        if not request.block_ids and request.input_tokens == self._mix.oversized_tokens:
            finished("client_error")
            return
        # What comes while the cache is being warmed is in no figure.
        if self._clock.now >= _WARM_UP_SECONDS:
            reusable = request.block_ids[: (request.input_tokens - 1) // BLOCK_TOKENS]
            found = tuple(takewhile(self._cached.__contains__, reusable))
            shared = count_shared(found, self._mix.applications)
            self._served.append(_Served(self._clock.now, request, len(found), shared))
        self._cached.update(request.block_ids)
        patience = request.patience_seconds
        if patience is not None and patience < ANSWER_SECONDS:
            self._clock.schedule(patience, lambda: finished("client_abort"))
        else:
            self._clock.schedule(ANSWER_SECONDS, lambda: finished("ok"))

    def portray(self) -> Portrait:
        """The figures of what came once the cache was warm."""
        served = self._served
        inputs = [each.request.input_tokens for each in served]
        tens = Counter(int(each.seconds // 10) for each in served)
        return Portrait(
            requests=len(served),
            input_tokens=fmean(inputs),
            long_input_tokens=quantiles(inputs, n=20)[-1],
            output_tokens=fmean(each.request.output_tokens for each in served),
            reused_share=sum(each.reused_blocks for each in served) * BLOCK_TOKENS / sum(inputs),
            reused_from_others_share=sum(each.shared_blocks for each in served) * BLOCK_TOKENS / sum(inputs),
            abort_share=fmean(each.request.patience_seconds is not None for each in served),
            busiest_ten_seconds=max(tens.values()) / (len(served) / (_SECONDS / 10)),
        )
