"""A figure that is 0 or absent has its reason on the pages where it is read."""

from __future__ import annotations

import pytest

from app.charts import tables
from app.data import queries
from app.data.promised import Promises
from app.data.readings import FiguresAt
from servescope.contract.figures import FIGURES
from servescope.contract.identity import Identity
from servescope.contract.objectives import OBJECTIVES
from servescope.store.records import TargetStatus

HIT_RATE = FIGURES["kv_cache_hit_rate"]
OFF = 'the prefix cache is off: vllm:cache_config_info has enable_prefix_caching="False"'
NONE = "no token of a prompt was reused since its process started"


def target(eligible: str = "", reused: str = "") -> TargetStatus:
    """An engine whose two counters of the cache are 0 for these reasons, or not."""
    coverage: dict[str, dict[str, str | None]] = {
        name: {"status": "present", "native": "x", "reason": None} | ({"zero": zero} if zero else {})
        for name, zero in (("kv_cache_eligible_tokens_total", eligible), ("kv_cache_reused_tokens_total", reused))
    }
    return TargetStatus("chat/0", "http://chat", Identity("llama", "chat", "v1"), coverage=coverage)


@pytest.mark.parametrize(
    ("value", "targets", "why"),
    [
        (0.0, [target(reused=OFF)], OFF),
        (0.0, [target(reused=OFF), target(reused=NONE)], f"{OFF}; {NONE}"),
        # One reused something at some time, though nothing in this window.
        (0.0, [target(reused=OFF), target()], ""),
        (0.3, [target(reused=OFF)], ""),
        (None, [target(eligible=OFF, reused=OFF)], OFF),
        (float("nan"), [target(eligible=OFF, reused=OFF)], OFF),
        (None, [target(reused=NONE)], "nothing to measure in this window"),
    ],
)
def test_a_figure_is_explained_where_every_target_has_a_reason(
    value: float | None, targets: list[TargetStatus], why: str
) -> None:
    """Each reason once; where one target counted something, the window is empty and nothing else."""
    assert queries.explain_value(HIT_RATE, value, targets) == why


def test_the_reason_of_a_zero_is_on_hover() -> None:
    """Beside the value, which stays."""
    moment = FiguresAt({"kv_cache_hit_rate": 0.0}, 300_000)
    promised: Promises = OBJECTIVES
    shown = tables.show_figure(HIT_RATE, 0.0, NONE, promised, moment)

    assert NONE in shown
    assert ">0 %<" in shown or ">0.0 %<" in shown or ">0%<" in shown


def test_the_coverage_of_a_target_has_it_too() -> None:
    """On the Sources page, in the row of the metric."""
    assert OFF[:24].capitalize()[1:] in tables.draw_metrics(queries.read_coverage(target(reused=OFF)))
