"""The comparison with a real router, as far as it runs without one: the prompts, our side, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from servescope.errors import ServescopeError
from tests.proofs.truth.emulated import run_emulated
from tests.proofs.truth.figures import Figures
from tests.proofs.truth.report import MARKERS, Compared, TraceCompared, apart, holds, render
from tests.proofs.truth.settings import BLOCK_TOKENS, CREDIT, MAX_SEQ_LEN, SETTINGS, Setting, TraceSetting, make_prompts

PLAIN = Setting("prefix-heavy", 1.0, 0.0, 512)


def test_both_sides_get_the_same_prompts() -> None:
    """One seed makes one sequence, in sizes that every worker of every setting can take."""
    for setting in SETTINGS:
        prompts = make_prompts(setting.traffic, 100, seed=1)
        assert prompts == make_prompts(setting.traffic, 100, seed=1) != make_prompts(setting.traffic, 100, seed=2)
        for prompt in prompts:
            tokens = len(prompt.tokens) + prompt.output_tokens
            assert tokens <= MAX_SEQ_LEN
            assert -(-tokens // BLOCK_TOKENS) < setting.cache_blocks


@pytest.mark.slow
def test_weight_trades_balance_for_hits() -> None:
    """On our side, with many prompts shared: the higher the weight, the more is reused of what could be."""
    prompts = make_prompts("prefix-heavy", 200, seed=1)
    none, one, more = (run_emulated(Setting("prefix-heavy", weight, 0.0, 512), prompts) for weight in (0.0, 1.0, 3.5))
    assert none.efficiency < one.efficiency < more.efficiency
    assert none.eligible == one.eligible == sum(len(prompt.tokens) for prompt in prompts)
    assert run_emulated(PLAIN, prompts) == one


@pytest.mark.slow
def test_clamped_router_trades_hits_as_dynamo_does() -> None:
    """With the floor under its costs our router reuses less at a high weight; at a weight of 1 there is no floor."""
    prompts = make_prompts("prefix-heavy", 200, seed=1)
    free, clamped = (run_emulated(Setting("prefix-heavy", 3.5, 0.0, 512, clamped=on), prompts) for on in (False, True))
    assert clamped.hit_rate < free.hit_rate - 0.02
    assert run_emulated(Setting("prefix-heavy", 1.0, 0.0, 512, clamped=True), prompts) == run_emulated(PLAIN, prompts)


OURS = Figures(eligible=1000, predicted=600, reused=500, best=800)


@pytest.mark.parametrize(
    ("setting", "reused", "agrees"),
    [
        (PLAIN, 535, True),
        (PLAIN, 600, False),
        (Setting("prefix-heavy", 3.5, 0.0, 512, explained=CREDIT), 600, True),
        (Setting("prefix-heavy", 0.0, 0.0, 512), 545, True),
        (Setting("prefix-heavy", 0.0, 0.0, 512), 555, False),
    ],
)
def test_figures_agree_within_five_points_or_are_explained(setting: Setting, reused: int, agrees: bool) -> None:
    """Without weight on caches the real router knows no best prefix, and the hit rate alone is compared."""
    real = OURS._replace(reused=reused, best=0 if setting.weight == 0 else 800)
    assert holds(Compared(setting, OURS, real)) is agrees


def test_results_stand_between_the_marks(tmp_path: Path) -> None:
    """What is around them stays; figures too far apart stand out, with the reason where there is one."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKERS.begin}\nold\n{MARKERS.end}\nafter\n", encoding="utf-8")
    live = [
        Compared(PLAIN, OURS, OURS._replace(reused=520)),
        Compared(Setting("prefix-heavy", 3.5, 0.05, 512, explained=CREDIT), OURS, OURS._replace(reused=300)),
    ]
    trace = TraceCompared(TraceSetting(1.0, 0.0, 5000), 0.322, 0.325)
    assert apart(trace) == pytest.approx(0.003)
    MARKERS.write(page, render({"Run": "today"}, live, [trace]))
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{MARKERS.begin}\n\n- Run: today\n")
    assert text.endswith(f"{MARKERS.end}\nafter\n")
    assert "old" not in text
    assert (
        "| prefix-heavy | 1 as credit | 0 | 512 | 50.0 %, 52.0 % | 80.0 %, 80.0 % | 62.5 %, 65.0 % | 2.5 points |"
        in text
    )
    assert f"**25.0 points** | {CREDIT} |" in text
    assert "| conversation, 1 as credit | 0 | 5000 | 32.2 %, 32.5 % | 0.3 points |" in text


def test_page_without_marks_is_refused(tmp_path: Path) -> None:
    """Nothing is written into a page that has no place for it."""
    page = tmp_path / "page.md"
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(ServescopeError, match="has no lines"):
        MARKERS.write(page, "results")
    assert page.read_text(encoding="utf-8") == "nothing"
