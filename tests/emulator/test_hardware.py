"""Costs derived from data sheets."""

from __future__ import annotations

import pytest

from servescope.emulator.engine.hardware import list_hardware, list_models, size_engine
from servescope.errors import UsageError


@pytest.mark.parametrize("hardware", list_hardware())
def test_every_gpu_serves_the_small_model(hardware: str) -> None:
    """Each preset has what a cost is made of: every part takes time, and there is room for a cache."""
    size = size_engine(hardware, model="llama-3.1-8b")
    cost = size.cost
    assert (
        min(
            cost.weights,
            cost.per_prefill_token,
            cost.per_prefill_pair,
            cost.per_decoding_sequence,
            cost.per_context_token,
        )
        > 0
    )
    assert size.cache_tokens > 10_000
    assert size.transfer.seconds(2000) > size.transfer.seconds(1000) > 0


def test_prefill_is_bound_by_compute_and_decode_by_memory() -> None:
    """An H200 prefills like an H100, which has the same compute, and decodes faster by its memory's bandwidth."""
    h100, h200 = (size_engine(name, model="llama-3.1-8b", precision="bf16") for name in ("h100", "h200"))
    assert h200.cost.per_prefill_token == h100.cost.per_prefill_token
    host = 1.5e-3
    assert (h100.cost.weights - host) / (h200.cost.weights - host) == pytest.approx(4.8 / 3.35)
    assert h100.cost.per_context_token / h200.cost.per_context_token == pytest.approx(4.8 / 3.35)


def test_cost_is_that_of_the_data_sheet() -> None:
    """Weights of 16.06 GB at three quarters of 3.35 TB/s, 2 x 8.03 GFLOP at 55 % of 989 TFLOP/s, by hand."""
    cost = size_engine("h100", model="llama-3.1-8b", precision="bf16").cost
    assert cost.weights == pytest.approx(0.0015 + 16.06e9 / (0.75 * 3.35e12))
    assert cost.per_prefill_token == pytest.approx(16.06e9 / (0.55 * 989e12))
    # 32 layers of 2 x 8 heads of 128 values, 2 bytes each.
    assert cost.per_context_token == pytest.approx(131_072 / (0.75 * 3.35e12))


def test_tensor_parallelism_divides_and_talks() -> None:
    """Twice the GPUs read the weights in half the time but for the exchange, which a slow link makes dear."""
    one, two = (size_engine("h100", model="llama-3.1-8b", tensor_parallel_size=size) for size in (1, 2))
    assert two.cost.per_context_token == pytest.approx(one.cost.per_context_token / 2)
    assert one.cost.weights / 2 < two.cost.weights < one.cost.weights
    assert two.cache_tokens > 2 * one.cache_tokens
    slow = [size_engine("l40s", model="llama-3.1-8b", tensor_parallel_size=size) for size in (1, 2)]
    assert slow[1].cost.per_prefill_token > 0.9 * slow[0].cost.per_prefill_token


def test_mixture_of_experts_computes_with_few_and_reads_all() -> None:
    """Its tokens cost by the parameters they pass through, its steps by all of them."""
    dense = size_engine("h200", model="qwen3-32b").cost
    sparse = size_engine("h200", model="mixtral-8x7b").cost
    assert sparse.per_prefill_token < dense.per_prefill_token
    assert sparse.weights > dense.weights


@pytest.mark.parametrize(
    ("hardware", "options", "message"),
    [
        ("h300", {}, "unknown hardware 'h300', supported: a100, h100, h200, b200, l40s, l4"),
        ("h100", {"model": "gpt-5"}, "unknown model 'gpt-5', supported: llama-3.1-8b"),
        ("h100", {"tensor_parallel_size": 3}, "tensor_parallel_size is 3, supported: 1, 2, 4, 8"),
        ("h100", {"precision": "fp4"}, "precision 'fp4' .*supported: bf16, fp8"),
        ("l4", {"model": "deepseek-v3"}, "671 GB.* do not fit into 'l4' .24 GB each., expected larger GPUs"),
        ("h200", {"model": "deepseek-v3"}, "expected tensor_parallel_size 8 or more"),
    ],
)
def test_impossible_hardware_is_refused(hardware: str, options: dict[str, object], message: str) -> None:
    """Unknown names are refused with those there are, and models that do not fit with what they need."""
    with pytest.raises(UsageError, match=message):
        size_engine(hardware, **options)  # type: ignore[arg-type] # each of its kind


def test_all_models_have_a_place() -> None:
    """Every model preset fits on some GPUs."""
    for model in list_models():
        assert size_engine("b200", model=model, tensor_parallel_size=8).cache_tokens > 100_000
