"""Every panel works on every captured engine, or is empty for the reason it gives; the page that says so is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.options import make_options
from tests.proofs.engines.captures import OLD_NAMES
from tests.proofs.engines.matrix import Matrix, make_matrix
from tests.proofs.engines.page import COMMAND, PAGE, render_page

pytestmark = pytest.mark.slow

# What is shown of both captured releases of an engine, whatever was renamed or added between them.
BOTH_VLLM = {
    ("requests", "In flight"), ("requests", "Queued"), ("requests", "Time to first token"),
    ("requests", "Time per output token"), ("requests", "Request duration"), ("requests", "Requests by outcome"),
    ("requests", "Tokens per second per request"), ("cache", "KV cache in use"), ("cache", "Preemptions"),
    ("cutover", "Requests by stack"), ("cutover", "Failed requests by stack"),
    ("fleet", "Requests in total"),
}  # fmt: skip
BOTH_SGLANG = {
    ("requests", "In flight"), ("requests", "Queued"), ("requests", "Time to first token"),
    ("requests", "Time to first token: attainment"), ("requests", "Request duration"),
    ("requests", "Requests by outcome"), ("requests", "Input tokens"), ("requests", "Output tokens"),
    ("cache", "KV cache in use"), ("cutover", "Requests by stack"), ("fleet", "Requests in total"),
}  # fmt: skip
BOTH_DYNAMO = {
    ("requests", "In flight"), ("requests", "Queued"), ("requests", "Time to first token"),
    ("requests", "Request duration"), ("requests", "Requests by outcome"),
    ("requests", "Tokens per second per request"),
    ("cutover", "Requests by stack"), ("fleet", "Requests in total"),
}  # fmt: skip


@pytest.fixture(scope="module")
def matrix(any_captures: Path, prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """All panels on all engines that there are pages of."""
    return make_matrix(prometheus, promtool, any_captures, tmp_path_factory.mktemp("engines"))


def test_every_panel_is_the_same_without_a_collector(matrix: Matrix) -> None:
    """Probes, and the rules in place of a collector, leave no panel empty that a collector fills, nor the reverse."""
    assert {engine: panels for engine, panels in matrix.probed.items() if panels} == {}
    assert len(matrix.probed) > 3


def test_an_empty_panel_says_why_on_every_engine(matrix: Matrix) -> None:
    """None is empty if the engine exposes its metrics, and none gives idle or broken as reason if it does not."""
    assert matrix.undeclared() == []


@pytest.mark.reference
def test_the_page_is_that_of_the_panels_and_captures(matrix: Matrix, reference: Path) -> None:
    """`docs/engines.md` has the results of this run."""
    assert PAGE.read_text(encoding="utf-8") == render_page(matrix, reference / "captures"), f"run `{COMMAND}`"


@pytest.mark.reference
@pytest.mark.usefixtures("reference")
def test_old_and_new_names_of_one_engine_both_give_data(matrix: Matrix) -> None:
    """Dynamo under its older names alone shows what it shows under both; so do two releases of each engine."""
    for line in matrix.lines:
        assert line.cells[OLD_NAMES.name] == line.cells["dynamo-1-6"], (line.board, line.panel)
    for shown, releases in (
        (BOTH_VLLM, ("vllm-0-13", "vllm-0-32")),
        (BOTH_SGLANG, ("sglang-0-4", "sglang-0-5")),
        (BOTH_DYNAMO, ("dynamo-0-8", "dynamo-1-6")),
    ):
        for board, panel in shown:
            cells = matrix.find(board, panel).cells
            assert [cells[release].found for release in releases] == ["data", "data"], (board, panel)


@pytest.mark.reference
@pytest.mark.usefixtures("reference")
def test_a_feature_that_is_off_shows_nothing_rather_than_zero(matrix: Matrix) -> None:
    """vLLM without speculation has no speculation rate and names the counters; with it, there is one."""
    cells = matrix.find("speculation", "Speculation rate").cells

    assert cells["vllm-0-13"].found == "off"
    assert set(cells["vllm-0-13"].missing) == {
        "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_draft_tokens_total",
    }
    # What was captured drafted too little for a rate to say something.
    assert cells["vllm-0-32"].found == "idle"
    assert matrix.find("speculation", "Drafted and accepted").cells["vllm-0-32"].found == "data"


@pytest.mark.reference
@pytest.mark.usefixtures("reference")
def test_nothing_looked_up_is_no_hit_rate_of_zero(matrix: Matrix) -> None:
    """vLLM 0.13 was captured before its cache was asked for anything: the hit rate is idle; 0.32 shows a real one."""
    cells = matrix.find("cache", "KV cache hit rate").cells

    assert (cells["vllm-0-13"].found, cells["vllm-0-32"].found) == ("idle", "data")
    assert (cells["sglang-0-4"].found, cells["sglang-0-5"].found) == ("off", "data")


def test_a_promise_between_two_buckets_is_one_at_the_next(matrix: Matrix) -> None:
    """Dynamo's first tokens are counted up to 2.2 and to 4.7 seconds: it is held to 4.7, others to 2.5."""
    cells = matrix.find("requests", "Time to first token: attainment").cells

    assert (cells["dynamo-1-6"].found, cells["vllm-0-32"].found) == ("data", "data")


# The newest captured release of each engine, with the sources that an operator names for it.
SHIPPED = {"vllm-0-32": ["vllm"], "sglang-0-5": ["sglang"], "dynamo-1-6": ["dynamo-frontend", "dynamo-mocker"]}
# What releases newer than the captured one have, of which tests/sources/test_sglang.py reads a page, and engines that
# transfer KV by NIXL.
NOT_CAPTURED = {
    "sglang-0-5": {"output_tokens_per_request", "time_per_output_token_seconds"},
    "vllm-0-32": {"kv_transfer_seconds", "kv_transfer_bytes_total"},
}


@pytest.mark.parametrize("engine", SHIPPED)
def test_no_alert_that_is_shipped_for_an_engine_is_dead_on_it(matrix: Matrix, engine: str) -> None:
    """What it reads is there, or is supplied by a process beside the engine; nothing is read that has another shape."""
    options = make_options({"alerts": {"sources": SHIPPED[engine]}}, origin="options.toml")
    shipped = {name: matrix.alerts[name][engine] for name in options.alerts() if name in matrix.alerts}
    dead = {
        name: cell
        for name, cell in shipped.items()
        if (cell.found == "broken" or (cell.found == "off" and not matrix.is_elsewhere(engine, cell)))
        and not (cell.missing and set(cell.missing) <= NOT_CAPTURED.get(engine, set()))
    }

    assert len(shipped) > 20
    assert dead == {}


def test_every_alert_works_with_our_own_instruments(matrix: Matrix) -> None:
    """But on gaps between tokens, which they report beside a request's own time per output token."""
    dead = {name for name, cells in matrix.alerts.items() if cells["chat-v2.*"].found in ("off", "broken")}

    assert {name for name in dead if "InterToken" not in name} == set()
