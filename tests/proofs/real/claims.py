"""What must hold: each contract value beside what the client counted, exact where the engine makes it so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from servescope.contract.metrics import OUTCOMES
from tests.proofs.real.client import Counts, Exchange
from tests.proofs.real.engines import BLOCK_SIZE, DYNAMO_WORKERS, PLUGIN

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Claim:
    """One value as read, and the range it must lie in; None is absent."""

    engine: str
    what: str
    read: float | None
    low: float | None
    high: float | None
    why: str = ""

    @property
    def holds(self) -> bool:
        """Whether the value is in the range; absent only if it is to be."""
        if self.read is None or self.low is None or self.high is None:
            return self.read is None and self.low is None and self.high is None
        return self.low <= self.read <= self.high

    @property
    def exact(self) -> bool:
        """Whether a single value is right."""
        return self.low == self.high


def _outcome(outcome: str) -> str:
    return f'requests_total{{outcome="{outcome}"}}'


class Ledger:
    """Sums over what the client counted."""

    def __init__(self, counts: Counts) -> None:
        self.ok = counts.of("ok")
        self.left = counts.of("client_abort")
        self.errors = counts.of("error")
        self.rejected = counts.of("rejected")
        self.unknown_model = counts.of("client_error", "unknown_model")
        self.refused = counts.of("client_error")
        self.timed = counts.timed()
        # Who read a chunk was served; who left while waiting for the whole answer may have been anywhere.
        self.left_served = [each for each in self.left if each.chunks]
        self.left_waiting = [each for each in self.left if not each.chunks]

    @property
    def input(self) -> float:
        return _sum(each.prompt_tokens for each in self.ok)

    @property
    def output(self) -> float:
        return _sum(each.output_tokens for each in self.ok)

    @property
    def cached(self) -> float:
        return _sum(each.cached_tokens for each in self.ok)

    def given_up(self, exchanges: Iterable[Exchange] | None = None) -> float:
        """Prompt tokens of those that left, or of the exchanges given, known from their token ids."""
        return _sum(each.job.prompt_tokens or 0 for each in (self.left if exchanges is None else exchanges))

    def durations(self, exchanges: Iterable[Exchange]) -> float:
        return _sum(each.duration_seconds for each in exchanges)

    def latest_first_tokens(self) -> float:
        """No engine can have been later with its first tokens than the client saw anything of the answers."""
        return _sum(each.first_token_seconds or each.duration_seconds for each in (*self.ok, *self.left))

    @property
    def seen_first_tokens(self) -> float:
        return _sum(each.first_token_seconds or 0 for each in (*self.ok, *self.left))

    @property
    def seen_decoding(self) -> float:
        return _sum((each.last_token_seconds or 0) - (each.first_token_seconds or 0) for each in self.timed)


def _sum(values: Iterable[float]) -> float:
    return float(sum(values))


# --- Totals since the engines started ---------------------------------------------------------------------------------


def claim_totals(engine: str, counts: Counts, totals: Values) -> list[Claim]:
    """Counters, histograms and gauges on the collector's `/metrics`, after the last request."""
    ledger = Ledger(counts)
    own = _TOTALS[engine](ledger)
    read = {**totals, "requests_total": _sum(totals.get(_outcome(each), 0.0) for each in OUTCOMES)}
    ranges = {**_shared_totals(ledger), **own}
    return [Claim(engine, what, read.get(what), low, high, why) for what, (low, high, why) in ranges.items()]


SEEN_SHARE = 0.2
"""The least share of the seconds a client waited that the engine must own to: the rest is the way and the machine."""

LATE_SECONDS = 10.0
"""How long an engine may take to notice that a client has left, on a machine that is busy with both."""

Range = tuple[float | None, float | None, str]
ABSENT: Range = (None, None, "")


def exactly(value: float, why: str = "") -> Range:
    """The range of one value."""
    return float(value), float(value), why


def _shared_totals(ledger: Ledger) -> dict[str, Range]:
    served = len(ledger.ok) + len(ledger.left_served)
    left_output = _sum(each.chunks for each in ledger.left), _sum(each.job.max_tokens for each in ledger.left)
    return {
        'requests_total{outcome="rejected"}': exactly(len(ledger.rejected), "answered 503 or 529"),
        'requests_total{outcome="error"}': exactly(len(ledger.errors), "answered 500"),
        "input_tokens_total": (
            ledger.input + ledger.given_up(ledger.left_served),
            ledger.input + ledger.given_up(),
            "a client that left before any token may have been prefilled or not",
        ),
        "output_tokens_total": (
            ledger.output + left_output[0],
            ledger.output + left_output[1],
            "engines go on for a moment when a client leaves: at least the chunks it read, at most what it asked for",
        ),
        "time_to_first_token_seconds_count": (
            float(served),
            float(len(ledger.ok) + len(ledger.left)),
            "one per request with a token, of clients that left as well",
        ),
        "time_to_first_token_seconds_sum": (
            SEEN_SHARE * ledger.seen_first_tokens,
            ledger.latest_first_tokens() * 1.02,
            "not later than the client saw them; at least a fifth of what streams saw",
        ),
        "concurrent_requests": exactly(0, "all have ended"),
        "queued_requests": exactly(0, "all have ended"),
    }


def _vllm_totals(ledger: Ledger) -> dict[str, Range]:
    late = "vLLM may be done before it notices that a client left: the request then counts as finished"
    finished = float(len(ledger.ok)), float(len(ledger.ok) + len(ledger.left)), late
    refused = len(ledger.rejected) + len(ledger.errors) + len(ledger.refused)
    duration, longest = ledger.durations(ledger.ok), ledger.durations(ledger.ok) + len(ledger.left) * LATE_SECONDS
    drafts = "drafts depend on the text; without any there would be no series"
    return {
        'requests_total{outcome="ok"}': finished,
        "requests_total": (finished[0] + refused, finished[1] + refused, "all outcomes together"),
        'requests_total{outcome="client_abort"}': exactly(0, "vLLM 0.32 does not count a client that leaves"),
        'requests_total{outcome="client_error"}': exactly(len(ledger.refused), "answered 400 or 404"),
        "requests_started_total": ABSENT,
        "input_tokens_per_request_count": finished,
        "input_tokens_per_request_sum": (ledger.input, ledger.input + ledger.given_up(), late),
        "output_tokens_per_request_count": finished,
        "output_tokens_per_request_sum": (
            ledger.output, ledger.output + _sum(each.job.max_tokens for each in ledger.left), late,
        ),
        "request_duration_seconds_count": finished,
        "request_duration_seconds_sum": (SEEN_SHARE * duration, longest * 1.02, "within what the client waited"),
        "time_per_output_token_seconds_count": finished,
        "decode_seconds_total": (SEEN_SHARE * ledger.seen_decoding, longest * 1.02, "within what the client waited"),
        "kv_cache_eligible_tokens_total": (
            ledger.input + ledger.given_up(ledger.left_served),
            ledger.input + ledger.given_up(),
            "all prompt tokens",
        ),
        "kv_cache_reused_tokens_total": (
            ledger.cached,
            ledger.cached + ledger.given_up(),
            "cached tokens in the answers' usage, plus those of clients that left before it",
        ),
        "kv_cache_predicted_tokens_total": ABSENT,
        "kv_cache_best_tokens_total": ABSENT,
        "spec_decode_num_draft_tokens_total": (1.0, 4 * ledger.output, drafts),
        "spec_decode_num_accepted_tokens_total": (1.0, ledger.output, "an accepted token is an output token"),
        'replica_count_by_status{status="active"}': exactly(1, "counted by the collector"),
    }  # fmt: skip


def _plugin_totals(ledger: Ledger) -> dict[str, Range]:
    native = _vllm_totals(ledger)
    several = sum(each.output_tokens > 1 for each in ledger.ok)
    rated = float(several), float(several + len(ledger.left)), "requests of two tokens or more"
    harmed = len(ledger.rejected) + len(ledger.errors)
    return {
        **native,
        'requests_total{outcome="client_abort"}': (
            0.0, float(len(ledger.left)),
            "who left with a first token, unless vLLM was done before it noticed: the request then counts as finished",
        ),
        'requests_total{outcome="client_error"}': (None, None, "what is refused for its form reaches no engine"),
        "requests_total": (
            float(len(ledger.ok) + len(ledger.left_served) + harmed), float(len(ledger.ok) + len(ledger.left) + harmed),
            "who left after its first token is counted, as finished or as gone",
        ),
        "tps_per_request_count": rated,
        "time_per_output_token_seconds_count": rated,
    }  # fmt: skip


def claim_plugin(inside: Values, native: Values) -> list[Claim]:
    """What the plugin in vLLM says is what vLLM's own page says, where that says it."""
    sums = "sums of the same times"
    ranges = {what: exactly(native.get(what, 0.0)) for what in _SAME_AS_NATIVE}
    ranges |= {
        what: (native[what] * (1 - ROUNDING), native[what] * (1 + ROUNDING), sums) for what in _SAME_SECONDS_AS_NATIVE
    }
    return [Claim(PLUGIN, what, inside.get(what), low, high, why) for what, (low, high, why) in ranges.items()]


ROUNDING = 1e-9

_SAME_AS_NATIVE = (
    "input_tokens_total",
    "output_tokens_total",
    "input_tokens_per_request_sum",
    "output_tokens_per_request_sum",
    "time_to_first_token_seconds_count",
    "request_duration_seconds_count",
    "preemptions_total",
    "kv_cache_eligible_tokens_total",
    "kv_cache_reused_tokens_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    *(f'spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}}' for position in range(4)),
    *(_outcome(outcome) for outcome in ("ok", "error", "rejected")),
    "kv_cache_usage",
)
_SAME_SECONDS_AS_NATIVE = ("time_to_first_token_seconds_sum", "request_duration_seconds_sum", "decode_seconds_total")


def _dynamo_totals(ledger: Ledger) -> dict[str, Range]:
    counted = [*ledger.ok, *ledger.left, *ledger.rejected, *ledger.errors, *ledger.unknown_model]
    served = float(len(ledger.ok) + len(ledger.left_served)), float(len(ledger.ok) + len(ledger.left))
    race = "a client that leaves before the whole answer came is counted as gone or, now and then, as served"
    shared = _shared_totals(ledger)
    duration = ledger.durations(counted)
    longest = (duration + len(ledger.left) * LATE_SECONDS) * 1.02
    every_attempt = ledger.input + ledger.given_up((*ledger.left, *ledger.errors))
    return {
        'requests_total{outcome="ok"}': (float(len(ledger.ok)), float(len(ledger.ok) + len(ledger.left_waiting)), race),
        'requests_total{outcome="client_abort"}': (float(len(ledger.left_served)), float(len(ledger.left)), race),
        "requests_total": exactly(len(counted), "all outcomes together"),
        'requests_total{outcome="client_error"}': exactly(
            len(ledger.unknown_model), "bodies that are no valid request are refused before they are counted"
        ),
        "requests_started_total": exactly(len(counted)),
        "input_tokens_per_request_count": (*served, "with a token, of clients that left as well"),
        "input_tokens_per_request_sum": shared["input_tokens_total"],
        "output_tokens_per_request_count": (*served, "with a token, of clients that left as well"),
        "output_tokens_per_request_sum": shared["output_tokens_total"],
        "request_duration_seconds_count": exactly(len(counted), "every counted request, whatever became of it"),
        "request_duration_seconds_sum": (SEEN_SHARE * duration, longest, "within what the client waited"),
        "time_per_output_token_seconds_count": ABSENT,
        "decode_seconds_total": (SEEN_SHARE * ledger.seen_decoding, longest, "within what the client waited"),
        "kv_cache_eligible_tokens_total": (
            ledger.input + ledger.given_up((*ledger.left_served, *ledger.errors)), every_attempt,
            "prompt tokens of every routing attempt: one that is too long is routed before it fails",
        ),
        "kv_cache_reused_tokens_total": (
            ledger.cached, ledger.cached + ledger.given_up(ledger.left_waiting),
            "observed when an answer ends: not for clients that left, unless counted as served",
        ),
        "kv_cache_predicted_tokens_total": (
            BLOCK_SIZE, every_attempt, "more than none, at most what was eligible"
        ),
        "kv_cache_best_tokens_total": (BLOCK_SIZE, every_attempt, "more than none, at most what was eligible"),
        "spec_decode_num_draft_tokens_total": ABSENT,
        "spec_decode_num_accepted_tokens_total": ABSENT,
        'replica_count_by_status{status="active"}': exactly(DYNAMO_WORKERS, "registered with the router"),
    }  # fmt: skip


def claim_order(engine: str, totals: Values) -> Iterator[Claim]:
    """What holds between counters of one engine."""

    def between(what: str, low: float, high: float, why: str) -> Claim:
        return Claim(engine, what, totals.get(what), low, high, why)

    drafted = totals.get("spec_decode_num_draft_tokens_total")
    if drafted is not None:
        accepted = totals["spec_decode_num_accepted_tokens_total"]
        by_position = [
            totals.get(f'spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}}', 0.0)
            for position in range(4)
        ]
        yield between("spec_decode_num_accepted_tokens_total", 1, drafted, "no more is accepted than drafted")
        yield Claim(engine, "accepted tokens over all draft positions", sum(by_position), accepted, accepted)
        yield Claim(
            engine, "accepted at the last draft position", by_position[-1], 0, by_position[0],
            "a position is accepted only after those before it",
        )  # fmt: skip
    if engine in ("vllm", PLUGIN):
        for histogram in ("input_tokens_per_request", "output_tokens_per_request", "request_duration_seconds"):
            ok = totals[_outcome("ok")]
            yield between(f"{histogram}_count", ok, ok, "one observation per finished request")
    if engine == PLUGIN:
        begun = totals["time_to_first_token_seconds_count"]
        accounted = totals[_outcome("ok")] + totals[_outcome("client_abort")]
        yield Claim(
            engine, "ended or gone, of those with a first token", accounted, begun, begun, "nobody is forgotten"
        )
    best = totals.get("kv_cache_best_tokens_total")
    if best is not None:
        yield between("kv_cache_predicted_tokens_total", 0, best, "the chosen worker has no more than the best one")
        eligible = totals["kv_cache_eligible_tokens_total"]
        yield between("kv_cache_best_tokens_total", 0, eligible, "no more is cached than prompted")


# --- What rose while the collector watched ----------------------------------------------------------------------------

STORED = (
    "requests_total",
    "input_tokens_total",
    "output_tokens_total",
    "kv_cache_eligible_tokens_total",
    "kv_cache_reused_tokens_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "input_tokens_per_request_count",
    "input_tokens_per_request_sum",
    "output_tokens_per_request_count",
    "output_tokens_per_request_sum",
    "request_duration_seconds_count",
    "requests_started_total",
    "time_to_first_token_seconds_count",
    "tps_per_request_count",
)


def claim_increases(engine: str, measured: Counts, increases: Values) -> list[Claim]:
    """The rise of counters while the collector watched: the traffic sent meanwhile, no more and no less."""
    claims = (claim for claim in claim_totals(engine, measured, increases) if claim.what.partition("{")[0] in STORED)
    # The reasons of the totals are those of ranges; what is exact needs none.
    return [replace(claim, why="") if claim.exact else claim for claim in claims]


EXTRAPOLATION = 0.03
"""Rates are extrapolated to the window's ends by half a scrape, and not below zero: the parts of a ratio may differ."""


def claim_figures(engine: str, measured: Counts, figures: Values) -> list[Claim]:
    """Derived figures over a window that holds the measured traffic, of clients none of which left."""
    ledger = Ledger(measured)
    ranges = _FIGURES[engine](ledger)
    return [Claim(engine, what, figures.get(what), low, high, why) for what, (low, high, why) in ranges.items()]


def _share(part: float, whole: float, why: str = "") -> Range:
    return part / whole * (1 - EXTRAPOLATION), part / whole * (1 + EXTRAPOLATION), why


def _rate_of_streams(ledger: Ledger) -> Range:
    seen = _sum(each.output_tokens - 1 for each in ledger.timed) / ledger.seen_decoding
    return seen / 3, seen * 3, f"streams, on the client's clock: {seen:.0f} tokens/s"


def _first_token_mean(ledger: Ledger) -> Range:
    whole = len(ledger.ok) + len(ledger.left)
    return (
        SEEN_SHARE * ledger.seen_first_tokens / whole,
        ledger.latest_first_tokens() / whole * (1 + EXTRAPOLATION),
        "not later than the client saw them",
    )


def _vllm_figures(ledger: Ledger) -> dict[str, Range]:
    counted = len(ledger.ok) + len(ledger.rejected) + len(ledger.refused)
    return {
        "request_rejected_share": _share(len(ledger.rejected), counted),
        "request_error_share": exactly(0),
        "input_tokens_per_request": _share(ledger.input, len(ledger.ok)),
        "output_tokens_per_request": _share(ledger.output, len(ledger.ok)),
        "client_abort_share": exactly(0),
        "kv_cache_hit_rate": _share(ledger.cached, ledger.input, "cached ÷ prompt tokens of the answers' usage"),
        "kv_cache_hit_rate_skew": ABSENT,
        "kv_cache_best_prefix_hit_rate": ABSENT,
        "kv_cache_hit_rate_efficiency": ABSENT,
        "speculation_rate": (0.01, 1.0, "accepted ÷ drafted"),
        "tps_per_request": _rate_of_streams(ledger),
        "time_to_first_token_mean": _first_token_mean(ledger),
        "concurrent_requests": exactly(0),
    }


def _plugin_figures(ledger: Ledger) -> dict[str, Range]:
    counted = len(ledger.ok) + len(ledger.rejected)
    return {**_vllm_figures(ledger), "request_rejected_share": _share(len(ledger.rejected), counted)}


def _dynamo_figures(ledger: Ledger) -> dict[str, Range]:
    counted = sum(map(len, (ledger.ok, ledger.rejected, ledger.errors, ledger.unknown_model)))
    eligible = ledger.input + ledger.given_up(ledger.errors)
    return {
        "request_rejected_share": _share(len(ledger.rejected), counted),
        "request_error_share": _share(len(ledger.errors), counted),
        "client_abort_share": exactly(0),
        "input_tokens_per_request": _share(ledger.input, len(ledger.ok)),
        "output_tokens_per_request": _share(ledger.output, len(ledger.ok)),
        "kv_cache_hit_rate": _share(ledger.cached, eligible, "cached ÷ prompt tokens of the answers' usage"),
        "kv_cache_hit_rate_skew": (-0.15, 0.30, "the index knows what the workers hold"),
        "kv_cache_best_prefix_hit_rate": (ledger.cached / eligible * 0.5, 1.0, "about the hit rate, or above it"),
        "kv_cache_hit_rate_efficiency": (0.5, 1.05, "some hits are traded for balance"),
        "speculation_rate": ABSENT,
        "tps_per_request": _rate_of_streams(ledger),
        "time_to_first_token_mean": _first_token_mean(ledger),
        "concurrent_requests": exactly(0),
    }


_TOTALS = {"vllm": _vllm_totals, PLUGIN: _plugin_totals, "dynamo": _dynamo_totals}
_FIGURES = {"vllm": _vllm_figures, PLUGIN: _plugin_figures, "dynamo": _dynamo_figures}


def claim_history(engine: str, sent_at_once: int, concurrent: list[float | None]) -> list[Claim]:
    """Requests in flight over time: some while there was traffic, never more than the client had."""
    peak = max((value for value in concurrent if value is not None), default=None)
    return [Claim(engine, "concurrent_requests, at most", peak, 1, sent_at_once, "as many as the client sent at once")]
