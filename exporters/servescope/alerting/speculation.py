"""The alerts on speculative decoding."""

from __future__ import annotations

from typing import Final

from servescope.alerting.choices import band_start, bound
from servescope.alerting.records import PERCENT, WHO, Alert, All, Compare, Measured, Quotient, Runbook, Shown
from servescope.contract.bands import SPECULATION_BAND
from servescope.contract.bounds import DRAFT_TRAFFIC, LATE_POSITION
from servescope.contract.expressions import rate

_RATE: Final = Shown("speculation_rate")
_TUNE: Final = band_start("speculation_rate", 0)
_ALIGNED: Final = band_start("speculation_rate", 1)
_POSITIONS: Final = "spec_decode_accepted_tokens_per_second"
_FIRST_POSITION: Final = Shown(_POSITIONS, (("position", ("0",)),))
_LATE: Final = bound(LATE_POSITION)
_DRAFTS: Final = Compare(Measured(rate("spec_decode_num_draft_tokens_total")), ">=", bound(DRAFT_TRAFFIC))

SPECULATION_ALERTS: Final = (
    Alert(
        "ServescopeSpeculationBelowBreakEven", "warning", "engine", "speculation",
        All((Compare(_RATE, "<", _TUNE), _DRAFTS)),
        "Speculative decoding costs more than it saves.",
        f"The main model of {WHO} accepts {PERCENT} of the draft tokens; below {_TUNE:%} speculative decoding does not "
        "pay off.",
        Runbook(
            f"The main model accepts less than {_TUNE:%} of the draft tokens. Drafting and verifying tokens costs more "
            "than the accepted ones save.",
            "Output is slower than without speculative decoding, and the GPUs serve fewer requests.",
            "Compare the acceptance by draft position. If all positions dropped together, draft and main model no "
            "longer match, for example after one of them got new weights. If only late positions dropped, see "
            "ServescopeDraftCollapsesLate. Check whether the traffic changed at the same time.",
            SPECULATION_BAND.lowest.advice,
            "Traffic of another kind, such as code instead of prose, lowers the acceptance for as long as it lasts.",
        ),
        "speculation", "speculation_rate", keep="10m",
    ),
    Alert(
        "ServescopeSpeculationNeedsTuning", "info", "engine", "speculation",
        All((Compare(_RATE, ">=", _TUNE), Compare(_RATE, "<", _ALIGNED), _DRAFTS)),
        "The acceptance rate of draft tokens is lower than it could be.",
        f"The main model of {WHO} accepts {PERCENT} of the draft tokens; a well aligned draft reaches {_ALIGNED:%}.",
        Runbook(
            f"The main model accepts between {_TUNE:%} and {_ALIGNED:%} of the draft tokens. Speculative decoding pays "
            "off, but could save more.",
            "None for users; the GPUs do more work than necessary.",
            "Compare the acceptance by draft position, and with other deployments of the same model.",
            SPECULATION_BAND.steps[0].verdict.advice,
            "Many models and kinds of traffic do not allow a higher rate; silence the alert for them.",
        ),
        "speculation", "speculation_rate", wait="30m", keep="30m",
    ),
    Alert(
        "ServescopeDraftCollapsesLate", "warning", "engine", "speculation",
        All((
            Compare(Quotient(Shown(_POSITIONS), _FIRST_POSITION), "<", _LATE),
            Compare(_FIRST_POSITION, ">=", bound(DRAFT_TRAFFIC)),
        )),
        "Late draft positions are almost never accepted.",
        f"Draft position {{{{ $labels.position }}}} of {WHO} is accepted {PERCENT} as often as the first one; below "
        f"{_LATE:%} it costs more than it saves.",
        Runbook(
            "The first draft position is accepted as usual, later ones are not: the draft is too long. The alert fires "
            f"for each position that is accepted less than {_LATE:%} as often as the first.",
            "The GPUs spend time on drafting and verifying tokens that are discarded.",
            "Find the first position at which the acceptance drops.",
            "Shorten the draft (max_draft_len) to the positions that are accepted.",
            "A long draft chosen on purpose for rare, very regular output.",
        ),
        "speculation", _POSITIONS, keep="10m",
    ),
)  # fmt: skip
