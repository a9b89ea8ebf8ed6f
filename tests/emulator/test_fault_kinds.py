"""The registry of faults: what it promises of each kind, how faults are spelled, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.emulator.effects import EngineEffects, RouterEffects, TrafficEffects
from servescope.emulator.faults.composition import Effects, compose
from servescope.emulator.faults.faults import FAULT_SETTINGS, Fault, make_fault, parse_fault, parse_faults
from servescope.emulator.faults.kinds import KINDS, FaultKind, describe_kind
from servescope.emulator.faults.truths import Truth
from servescope.errors import ConfigurationError, UsageError
from servescope.settings.tables import Table

NOTHING = Effects()


def intensities(kind: FaultKind) -> st.SearchStrategy[float]:
    each = kind.intensity
    if each is None:
        return st.just(1.0)
    if each.whole:
        return st.integers(int(each.lowest), int(each.highest)).map(float)
    return st.floats(each.lowest, each.highest)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_has_an_effect_and_a_truth(kind: FaultKind) -> None:
    """At its default intensity a kind does something, makes something true, and says what for people."""
    intensity = kind.choose_intensity(None)
    assert kind.effects(intensity) != NOTHING
    assert kind.truths(intensity)
    assert kind.summary.endswith(".")
    assert KINDS[kind.name] is kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_intensity_in_range_has_an_effect(kind: FaultKind) -> None:
    """Whatever intensity is taken, both ends included, does something, and what it makes true can be said."""

    @given(intensity=intensities(kind))
    def check(intensity: float) -> None:
        assert kind.effects(intensity) != NOTHING
        for truth in kind.truths(intensity):
            assert truth.describe()
            assert Truth(**truth.as_json()) == truth  # type: ignore[arg-type] # what JSON brings

    check()


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.intensity], ids=lambda kind: kind.name)
def test_intensity_beyond_its_range_is_refused(kind: FaultKind) -> None:
    """Below, above and not a number: the error names the value, the range and what the number means."""
    assert kind.intensity is not None
    for wrong in (
        kind.intensity.lowest - 1,
        kind.intensity.highest * 2 + 1,
        float("nan"),
        float("inf"),
        10**400,
        "0.5",
        True,
    ):
        with pytest.raises(UsageError) as refused:
            kind.choose_intensity(wrong)
        assert repr(wrong) in str(refused.value)
        assert kind.intensity.meaning in str(refused.value)
        # The console doses it in percent, where the command line has a share.
        assert "%" not in kind.intensity.meaning


def test_kind_without_intensity_takes_none() -> None:
    """An intensity for a kind that is on or off is refused, and so is half a replica."""
    with pytest.raises(UsageError, match=r"'engine-frozen' has no intensity, got 0\.5"):
        make_fault("engine-frozen", 0.5)
    with pytest.raises(UsageError, match=r"intensity of 'replica-crash-loop' is 1\.5, expected a whole number"):
        make_fault("replica-crash-loop", 1.5)


def test_kinds_are_described_for_machines() -> None:
    """A kind is described by its range and its truths, as plain values."""
    kind = describe_kind(KINDS["draft-misaligned"])
    assert kind["intensity"] == {
        "meaning": "share by which the chance of every draft position falls",
        "default": 0.7, "lowest": 0.01, "highest": 1.0, "whole": False,
    }  # fmt: skip
    assert {"figure": "speculation_rate", "below": 0.40} in kind["truths"]  # type: ignore[operator] # a list


@pytest.mark.parametrize(
    ("truth", "value", "before", "holds"),
    [
        (Truth("speculation_rate", below=0.4), 0.39, None, True),
        (Truth("speculation_rate", below=0.4), 0.40, None, False),
        (Truth("speculation_rate", below=0.4), None, 0.9, False),
        (Truth("request_rate", above_times=2.0), 4.1, 2.0, True),
        (Truth("request_rate", above_times=2.0), 3.9, 2.0, False),
        (Truth("request_rate", above_times=2.0), 4.1, None, False),
        (Truth("request_rate", above_times=0.5, below_times=1.5), 1.0, 1.0, True),
        (Truth("request_rate", above_times=0.5, below_times=1.5), 1.6, 1.0, False),
        (Truth("time_to_first_token_p50", absent=True), None, 0.2, True),
        (Truth("time_to_first_token_p50", absent=True), 0.2, 0.2, False),
    ],
)
def test_truth_holds_or_not(truth: Truth, value: float | None, before: float | None, holds: bool) -> None:
    """A bound holds beyond it, one that is relative needs a value before, and absent is neither 0 nor a bound."""
    assert truth.holds(value, before=before) is holds


def test_truths_are_about_figures_that_exist() -> None:
    """A figure that nobody derives, and a truth that says nothing, are refused."""
    with pytest.raises(UsageError, match="unknown figure 'speculation'"):
        Truth("speculation", below=1)
    with pytest.raises(UsageError, match="either bounds or is that it is absent"):
        Truth("speculation_rate")


def test_truths_read_as_words() -> None:
    """A truth names its figure with labels, its bounds, and what they are relative to."""
    assert Truth("speculation_rate", below=0.4).describe() == "speculation_rate below 0.4"
    assert (
        Truth("replica_count_by_status", {"status": "failed"}, above=0.5).describe()
        == 'replica_count_by_status{status="failed"} above 0.5'
    )
    assert (
        Truth("request_rate", above_times=0.6, below_times=1.6, unmoved=True).describe()
        == "request_rate stays above 0.6 × before and below 1.6 × before"
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("draft-misaligned", make_fault("draft-misaligned", 0.7)),
        ("draft-misaligned:0.5", make_fault("draft-misaligned", 0.5)),
        ("draft-misaligned@chat-v2", make_fault("draft-misaligned", 0.7, deployment="chat-v2")),
        ("clock-skew:-60@chat-v2/router-0", make_fault("clock-skew", -60, deployment="chat-v2", replica="router-0")),
        (" engine-frozen@chat-v2/engine-1 ", make_fault("engine-frozen", deployment="chat-v2", replica="engine-1")),
        ("bad-replica:1e1", make_fault("bad-replica", 10)),
    ],
)
def test_faults_are_parsed(text: str, fault: Fault) -> None:
    """A fault on the command line has a kind, an intensity and a place; what is left out has its default."""
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("draft-misalined", r"unknown fault 'draft-misalined', did you mean 'draft-misaligned'"),
        ("", r"fault '' is not understood, expected KIND\[:INTENSITY\]\[@DEPLOYMENT\[/REPLICA\]\]"),
        ("engine-frozen@", "is not understood"),
        ("engine-frozen@a/b/c", "is not understood"),
        ("draft-misaligned:much", "intensity 'much' in fault 'draft-misaligned:much' is not a number"),
        ("draft-misaligned:nan", "intensity of 'draft-misaligned' is nan"),
        ("router-deaf@chat-v2/engine-0", "'router-deaf' cannot be in one replica, supported: the whole stack, one"),
        ("traffic-surge@chat-v2", "'traffic-surge' cannot be in one deployment, supported: the whole stack"),
    ],
)  # fmt: skip
def test_what_is_misspelled_is_refused(text: str, message: str) -> None:
    """Every part of a fault that is wrong is named, with what would be right."""
    with pytest.raises(UsageError, match=message):
        parse_fault(text)


def read(*tables: dict[str, Any]) -> list[Any]:
    """The faults of a scenario with these tables."""
    return parse_faults(Table({"faults": list(tables)}, "scenario.toml", "").tables("faults", FAULT_SETTINGS))


def test_scenario_schedules_faults() -> None:
    """A table of a scenario says kind, place, intensity and when; what is left out has its default."""
    first, second = read(
        {"kind": "draft-misaligned", "deployment": "chat-v2", "intensity": 0.9, "start": "5m", "end": "10m"},
        {"kind": "engine-frozen", "start": "0s"},
    )
    assert first == make_fault("draft-misaligned", 0.9, deployment="chat-v2", start_seconds=300.0, end_seconds=600.0)
    assert second == make_fault("engine-frozen")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "faults\\[0\\]: 'kind' is missing"),
        ({"kind": "x"}, "scenario.toml: faults\\[0\\]: unknown fault 'x'"),
        ({"kind": "router-deaf", "intensity": "all"}, "intensity of 'router-deaf' is 'all', expected a number"),
        ({"kind": "router-deaf", "begin": "1m"}, "unknown key 'faults\\[0\\].begin'"),
        ({"kind": "router-deaf", "start": 5}, "faults\\[0\\].start: 5 is wrong, expected a duration"),
        ({"kind": "router-deaf", "start": "5m", "end": "5m"}, "ends at 300 s, expected a time after its start, 300 s"),
        ({"kind": "router-deaf", "replica": "engine-0"}, "names replica 'engine-0' and no deployment"),
    ],
)
def test_scenario_errors_name_their_place(table: dict[str, Any], message: str) -> None:
    """What is wrong in a scenario is refused with the file and the key."""
    with pytest.raises(ConfigurationError, match=message):
        read(table)


def test_factors_multiply_and_shares_combine() -> None:
    """Two slow-downs multiply, two loss shares leave what both spare, and of a replaced setting the last counts."""
    first = Effects(
        engine=EngineEffects(prefill_factor=2.0, error_share=0.5, acceptance_factors=(1.0, 0.5)),
        router=RouterEffects(event_loss_share=0.5, temperature=1.0),
        traffic=TrafficEffects(rate_factor=3.0, preset="a"),
    )
    second = Effects(
        engine=EngineEffects(prefill_factor=1.5, error_share=0.5, acceptance_factors=(0.5,)),
        router=RouterEffects(event_loss_share=0.2, temperature=0.5),
        traffic=TrafficEffects(rate_factor=2.0, abort_share=0.1, preset="b"),
    )
    both = compose([first, second])
    assert both.engine.prefill_factor == 3.0
    assert both.engine.error_share == 0.75
    assert both.engine.acceptance_factors == (0.5, 0.25)
    assert both.router.event_loss_share == pytest.approx(0.6)
    assert both.router.temperature == 0.5
    assert both.traffic == TrafficEffects(rate_factor=6.0, abort_share=0.1, preset="b")


some_faults = st.lists(
    st.sampled_from(list(KINDS.values())).flatmap(lambda kind: intensities(kind).map(kind.effects)), max_size=6
)


@given(effects=some_faults)
def test_effects_together_stay_in_their_ranges(effects: list[Effects]) -> None:
    """However many faults are on, shares stay in 0 to 1 and factors above 0; none on is nothing wrong."""
    both = compose(effects)
    assert compose([]) == NOTHING
    assert compose([NOTHING, *effects, NOTHING]) == both
    for share in (both.engine.error_share, both.engine.churn_share, both.router.event_loss_share):
        assert 0 <= share <= 1
    assert both.traffic.abort_share is None or 0 <= both.traffic.abort_share <= 1
    for part in (both.engine, both.deployment, both.traffic):
        for each in fields(part):
            if each.name.endswith("_factor"):
                assert getattr(part, each.name) > 0
    assert all(0 <= factor <= 1 for factor in both.engine.acceptance_factors)
    assert both.engine.batch_factor <= 1


@given(first=some_faults, second=some_faults)
def test_grouping_does_not_matter(first: list[Effects], second: list[Effects]) -> None:
    """Faults that were composed before compose with others to the same, but for the last bits of their products."""
    together, apart = compose([*first, *second]), compose([compose(first), compose(second)])
    assert together.engine.decode_factor == pytest.approx(apart.engine.decode_factor)
    assert together.engine.error_share == pytest.approx(apart.engine.error_share)
    assert together.engine.frozen == apart.engine.frozen
    assert together.deployment.max_replica == apart.deployment.max_replica
    assert together.router.overlap_score_weight == apart.router.overlap_score_weight
    assert together.exposition.renamed == apart.exposition.renamed
    assert together.restart_seconds == apart.restart_seconds


@pytest.mark.parametrize("bound", [1, 4, 100])
def test_a_pinned_autoscaler_is_told_above_its_bound(bound: int) -> None:
    """At its bound the truth says a bound above it, also as people read it: `below 1.5`, not `below 1`."""
    for truth in KINDS["autoscaler-pinned"].truths(float(bound)):
        if truth.below is not None:
            assert truth.holds(bound, before=None)
            assert float(truth.describe().rsplit(" ", 1)[1]) > bound
