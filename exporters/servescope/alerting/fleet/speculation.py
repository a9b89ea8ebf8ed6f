"""The alerts on speculative decoding."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.latency import SPECULATION
from servescope.alerting.rules.choices import band_start, bound
from servescope.alerting.rules.records import (
    PERCENT,
    WHO,
    AdHocExpression,
    Alert,
    All,
    Compare,
    FigureRef,
    FirstCheck,
    Runbook,
    by_replica,
)
from servescope.contract.bands import SPECULATION_BAND
from servescope.contract.bounds import DRAFT_TRAFFIC
from servescope.contract.expressions import rate

_RATE: Final = FigureRef("speculation_rate")
_TUNE: Final = band_start("speculation_rate", 0)
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
            "longer match, for example after one of them got new weights. If only late positions dropped, the "
            "draft is too long. Check whether the traffic changed at the same time.",
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
)  # fmt: skip
