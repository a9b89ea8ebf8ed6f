"""Kinds of drafts, and the configuration that names them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servescope.emulator.engine.speculation import DECODING_TYPES, Speculation, parse_speculation, speculate
from servescope.errors import UsageError

EAGLE = {"decoding_type": "Eagle", "speculative_model_dir": "/models/eagle"}
LOOKAHEAD = {
    "speculative_decoding_mode": "LOOKAHEAD_DECODING", "lookahead_windows_size": 7, "lookahead_ngram_size": 5,
    "lookahead_verification_set_size": 3,
}  # fmt: skip


def test_kinds_are_taken_in_any_case() -> None:
    """Eagle, MTP and NGram are what they are however they are written."""
    for name in ("eagle", "EAGLE", "Eagle"):
        assert parse_speculation({**EAGLE, "decoding_type": name}).decoding_type == "Eagle"
    assert parse_speculation({"decoding_type": "ngram"}).decoding_type == "NGram"
    assert parse_speculation({"decoding_type": "mtp", "num_nextn_predict_layers": 2}).draft_length == 2


def test_draft_length_is_what_is_asked_for() -> None:
    """max_draft_len decides it; MTP drafts one token per layer, lookahead all of an n-gram but its first."""
    assert parse_speculation({**EAGLE, "max_draft_len": 5, "eagle3_one_model": True}).draft_length == 5
    assert parse_speculation({**LOOKAHEAD}).draft_length == 4
    assert parse_speculation({**LOOKAHEAD, "lookahead_ngram_size": 1}).draft_length == 1
    assert speculate("NGram", draft_length=7).draft_length == 7


def test_chances_fall_along_the_draft() -> None:
    """Every kind is right less often the further it drafts; looking n-grams up costs next to nothing."""
    for name in DECODING_TYPES:
        reach = speculate(name, draft_length=6).reach()
        assert reach == sorted(reach, reverse=True)
        assert 0 < reach[-1] < reach[0] < 1
    assert speculate("NGram").draft_seconds < speculate("Eagle").draft_seconds / 10


def test_factors_lower_positions() -> None:
    """A factor for each position, the last one for all after it."""
    speculation = Speculation((0.8, 0.5, 0.5))
    assert speculation.reach() == pytest.approx([0.8, 0.4, 0.2])
    assert speculation.reach((0.5,)) == pytest.approx([0.4, 0.1, 0.025])
    assert speculation.reach((1.0, 0.5)) == pytest.approx([0.8, 0.2, 0.05])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "decoding_type is missing, expected one of: Eagle, MTP, NGram"),
        ({"decoding_type": "lookahead"},
         "speculative_config.decoding_type is 'lookahead', expected one of: Eagle, MTP, NGram"),
        ({"decoding_type": 3}, "decoding_type is 3, expected one of"),
        ({"decoding_type": "Eagle"}, "speculative_model_dir is missing: decoding_type Eagle requires it"),
        ({**EAGLE, "speculative_model_dir": ""}, "speculative_model_dir is '', expected a path"),
        ({"decoding_type": "MTP"}, "num_nextn_predict_layers is missing: decoding_type MTP requires it"),
        ({"decoding_type": "MTP", "num_nextn_predict_layers": 0},
         "num_nextn_predict_layers is 0, expected a whole number"),
        ({"decoding_type": "NGram", "eagle3_one_model": True},
         "eagle3_one_model is for decoding_type Eagle only, not for NGram"),
        ({**EAGLE, "eagle3_one_model": "yes"}, "eagle3_one_model is 'yes', expected true or false"),
        ({**EAGLE, "max_draft_len": True}, "max_draft_len is true, expected a whole number"),
        ({**EAGLE, "max_draft_len": 65}, "draft length is 65, expected 1 to 64"),
        ({**EAGLE, "draft_len": 3}, "draft_len is an unknown field, did you mean 'max_draft_len'?"),
        ({"speculative_decoding_mode": "MEDUSA"},
         "speculator.speculative_decoding_mode is 'MEDUSA', expected one of: LOOKAHEAD_DECODING"),
        ({"speculative_decoding_mode": "LOOKAHEAD_DECODING"}, "speculator.lookahead_windows_size is missing"),
        ({**LOOKAHEAD, "lookahead_ngram_size": 0}, "lookahead_ngram_size is 0, expected a whole number of 1 or more"),
        ({**LOOKAHEAD, "lookahead_window": 7}, "lookahead_window is an unknown field, did you mean"),
    ],
)  # fmt: skip
def test_wrong_configurations_are_refused(table: dict[str, object], message: str) -> None:
    """What is missing, unknown or impossible is named, with what is supported."""
    with pytest.raises(UsageError, match=message):
        parse_speculation(table)


def test_impossible_speculation_is_refused() -> None:
    """Chances for another number of positions, unknown kinds and negative seconds are refused."""
    with pytest.raises(UsageError, match="acceptance has 2 positions, but the draft has 3"):
        speculate("Eagle", draft_length=3, acceptance=(0.5, 0.5))
    with pytest.raises(UsageError, match="unknown decoding_type 'medusa', supported: Eagle, MTP, NGram, lookahead"):
        speculate("medusa")
    with pytest.raises(UsageError, match="draft_seconds is -1"):
        replace(Speculation((0.5,)), draft_seconds=-1)
    with pytest.raises(UsageError, match="65 positions, expected 64 at most"):
        Speculation((0.5,) * 65)
