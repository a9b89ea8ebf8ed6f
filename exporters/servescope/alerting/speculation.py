"""The alerts on speculative decoding."""

from __future__ import annotations

from typing import Final

from servescope.alerting.choices import band_start, bound
from servescope.alerting.playbooks.latency import SPECULATION
from servescope.alerting.records import (
    PERCENT,
    WHO,
    AdHocExpression,
    Alert,
    All,
    Compare,
    FigureRef,
    FirstCheck,
    Quotient,
    Runbook,
    by_replica,
)
from servescope.contract.bands import SPECULATION_BAND
from servescope.contract.bounds import DRAFT_TRAFFIC, LATE_POSITION
from servescope.contract.expressions import rate

_RATE: Final = FigureRef("speculation_rate")
_TUNE: Final = band_start("speculation_rate", 0)
_ALIGNED: Final = band_start("speculation_rate", 1)
_POSITIONS: Final = "spec_decode_accepted_tokens_per_second"
_FIRST_POSITION: Final = FigureRef(_POSITIONS, (("position", ("0",)),))
_LATE: Final = bound(LATE_POSITION)
_BY_REPLICA: Final = by_replica("speculation_rate")
_DRAFTS: Final = Compare(AdHocExpression(rate("spec_decode_num_draft_tokens_total")), ">=", bound(DRAFT_TRAFFIC))

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
            "Answers come more slowly than without speculative decoding. No request fails.",
            "Compare the acceptance by draft position. If all positions dropped together, draft and main model no "
            "longer match, for example after one of them got new weights. If only late positions dropped, see "
            "ServescopeDraftCollapsesLate. Check whether the traffic changed at the same time.",
            f"{SPECULATION_BAND.lowest.advice} If only one replica is low, restart that one with the arguments of the "
            "others.",
            "Traffic of another kind, such as code instead of prose, lowers the acceptance for as long as it lasts.",
            FirstCheck(
                _RATE,
                f"below {_TUNE:%}, and down by a step when a version or a draft changed.",
                "well above that; or a slow change together with the kind of traffic.",
                _BY_REPLICA,
                "All replicas low: the draft does not fit the model or the traffic. A single one low: it runs another "
                "version or another draft.",
                lowest=True,
            ),
            (SPECULATION,),
            "Do not restart all replicas at once: caches are lost, and requests queue. Do not lengthen the draft.",
            "Nobody at night: it costs speed and no requests. In the morning whoever trains or chooses the draft.",
            f"The rate is above {_TUNE:%} again, or no draft tokens are proposed any more.",
        ),
        "speculation", "speculation_rate", keep_firing_for="10m",
    ),
    Alert(
        "ServescopeSpeculationNeedsTuning", "info", "engine", "speculation",
        All((Compare(_RATE, ">=", _TUNE), Compare(_RATE, "<", _ALIGNED), _DRAFTS)),
        "The acceptance rate of draft tokens is lower than it could be.",
        f"The main model of {WHO} accepts {PERCENT} of the draft tokens; a well aligned draft reaches {_ALIGNED:%}.",
        Runbook(
            f"The main model accepts between {_TUNE:%} and {_ALIGNED:%} of the draft tokens. Speculative decoding pays "
            "off, but could save more.",
            "Nothing; the GPUs do more work than necessary.",
            "Compare the acceptance by draft position, and with other deployments of the same model.",
            f"Nothing at night. {SPECULATION_BAND.steps[0].rating.advice}",
            "Many models and kinds of traffic do not allow a higher rate; silence the alert for them.",
            FirstCheck(
                _RATE,
                f"below {_ALIGNED:%}, and higher before the last change of the model or the draft.",
                f"{_ALIGNED:%} or more; or the same as ever for this traffic.",
                _BY_REPLICA,
                "A replica that differs from the others has another draft, or conversations of another kind.",
                lowest=True,
            ),
            (SPECULATION,),
            "Do not switch speculative decoding off: at this rate it still saves time.",
            "Nobody. It is work for whoever trains or chooses the draft.",
            f"The rate is {_ALIGNED:%} or more.",
        ),
        "speculation", "speculation_rate", for_="30m", keep_firing_for="30m",
    ),
    Alert(
        "ServescopeDraftCollapsesLate", "warning", "engine", "speculation",
        All((
            Compare(Quotient(FigureRef(_POSITIONS), _FIRST_POSITION), "<", _LATE),
            Compare(_FIRST_POSITION, ">=", bound(DRAFT_TRAFFIC)),
        )),
        "Late draft positions are almost never accepted.",
        f"Draft position {{{{ $labels.position }}}} of {WHO} is accepted {PERCENT} as often as the first one; below "
        f"{_LATE:%} it costs more than it saves.",
        Runbook(
            "The first draft position is accepted as usual, later ones are not: the draft is too long. The alert fires "
            f"for each position that is accepted less than {_LATE:%} as often as the first.",
            "Answers come a little more slowly: the GPUs draft and verify tokens that are discarded.",
            "Find the first position at which the acceptance drops: that is the length to use.",
            "Shorten the draft (max_draft_len) to the positions that are accepted, at the next restart.",
            "A long draft chosen on purpose for rare, very regular output.",
            FirstCheck(
                FigureRef(_POSITIONS),
                "early positions are high, and from one position on next to nothing is accepted.",
                "the acceptance falls evenly from each position to the next.",
                by_replica(_POSITIONS),
                "Each line is a position of a replica. All replicas alike: the draft is too long. A single one: it has "
                "other arguments.",
                lowest=True,
            ),
            (SPECULATION,),
            "Do not switch speculative decoding off: the early positions pay for themselves.",
            "Nobody at night. In the morning whoever chooses the length of the draft.",
            "No position is accepted as rarely as that.",
        ),
        "speculation", _POSITIONS, keep_firing_for="10m",
    ),
)  # fmt: skip
