"""The comparison with a real router, as far as it runs without one: the prompts, our side, and the page."""

from __future__ import annotations

import pytest

from tests.proofs.truth.emulated import run_emulated
from tests.proofs.truth.settings import Setting, make_prompts

PLAIN = Setting(1.0, 0.0, 512)


@pytest.mark.slow
def test_weight_trades_balance_for_hits() -> None:
    """On our side, with many prompts shared: the higher the weight, the more is reused of what could be."""
    prompts = make_prompts("prefix-heavy", 200)
    none, one, more = (run_emulated(Setting(weight, 0.0, 512), prompts) for weight in (0.0, 1.0, 3.5))
    assert none.efficiency < one.efficiency < more.efficiency
    assert none.eligible == one.eligible == sum(len(prompt.tokens) for prompt in prompts)
    assert run_emulated(PLAIN, prompts) == one


@pytest.mark.slow
def test_clamped_router_trades_hits_as_dynamo_does() -> None:
    """With the floor under its costs our router reuses less at a high weight; at a weight of 1 there is no floor."""
    prompts = make_prompts("prefix-heavy", 200)
    free, clamped = (run_emulated(Setting(3.5, 0.0, 512, clamped=on), prompts) for on in (False, True))
    assert clamped.hit_rate < free.hit_rate - 0.02
    assert run_emulated(Setting(1.0, 0.0, 512, clamped=True), prompts) == run_emulated(PLAIN, prompts)
