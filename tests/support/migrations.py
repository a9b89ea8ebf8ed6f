"""Migrated configurations, as the drafts that follow from them get them."""

from __future__ import annotations

from servescope.migration.document.document import read_document
from servescope.migration.fields.body import make_body
from servescope.migration.files import MigrationOptions, report_document
from servescope.migration.moves import Move, read_move
from servescope.migration.report import FileReport
from servescope.migration.translation.translation import Answers

V1 = """\
model_name: Mine 70B
trt_llm:
  build:
    checkpoint_repository: {source: HF, repo: a/b}
    speculator: {speculative_decoding_mode: LOOKAHEAD_DECODING, lookahead_windows_size: 7, lookahead_ngram_size: 5,
                 lookahead_verification_set_size: 3}
  runtime: {request_default_max_tokens: 100}
"""
"""A file of v1 that is moved; the ones below wait for an answer, stay, are wrong, are moved already."""
ASKED = V1.replace("repo: a/b}", "repo: a/b}\n    max_num_tokens: 200000")
STAYS = V1.replace("speculator: {", "base_model: encoder\n    speculator: {")
WRONG = V1.replace("100", "no")
MOVED = "trt_llm: {inference_stack: v2, build: {checkpoint_repository: {source: HF, repo: a/b}}, runtime: {}}\n"


def report_of(text: str, *, n_gram: bool = False, target: int | None = None, llm_config: str = "") -> FileReport:
    """What becomes of a file with this text; `n_gram`, a target and an `llm_config` go into the body beside it."""
    given = read_document(llm_config, "llm_config.json") if llm_config else None
    body = make_body(given, n_gram=n_gram, target_in_flight_tokens=target)
    options = MigrationOptions("v2", Answers(), body, is_strict=False, is_written=False)
    return report_document(read_document(text, "models/mine/config.yaml"), options)


def move_of(text: str, *, n_gram: bool = False, target: int | None = None, llm_config: str = "") -> Move:
    """The move of a file with this text."""
    return read_move(report_of(text, n_gram=n_gram, target=target, llm_config=llm_config))
