"""What a deployment served, read from a past: which targets count, and what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Series, make_labels
from servescope.errors import UsageError
from servescope.increments.blocks import BLOCK_MS, Tallies, TargetIncrements
from servescope.migration.traffic.traffic import ServedTraffic
from servescope.migration.traffic.traffic_reading import find_deployment, read_traffic
from servescope.store.history import History

BLOCKS = 4
LATER_MS = 60_000


class Past:
    """A past with these targets."""

    def __init__(self, targets: Sequence[TargetIncrements]) -> None:
        self._targets = targets

    def deployments(self) -> list[Deployment]:
        """Those of the targets."""
        return list({target.identity.deployment(): None for target in self._targets})

    def read_increments(self, deployment: Deployment, _: Any, __: int, ___: int) -> list[TargetIncrements]:
        """The targets of a deployment, whenever."""
        return [target for target in self._targets if target.identity.deployment() == deployment]

    def remarks(self) -> tuple[str, ...]:
        """None."""
        return ()


def target(replica: str = "0", *, layer: str = "engine", in_flight: float = 3.0, **identity: str) -> TargetIncrements:
    """A replica that ends 30 requests a block, with prompts of 100 tokens, half of them up to 50."""
    series = [
        Series("requests_total", make_labels({"outcome": "ok"})),
        *(Series("input_tokens_per_request_bucket", make_labels({"le": edge})) for edge in ("50", "200", "+Inf")),
        Series("input_tokens_per_request_sum", ()),
        Series("input_tokens_per_request_count", ()),
    ]
    gains = np.repeat(np.array([30.0, 15.0, 30.0, 30.0, 3000.0, 30.0])[:, None], BLOCKS, axis=1)
    none = np.zeros(BLOCKS, dtype=np.int64)
    labels: dict[str, Any] = {"model_name": "chat", "deployment_id": "chat-v1", "inference_stack": "v1", **identity}
    return TargetIncrements(
        f"{layer}-{replica}",
        Identity(**labels, replica=replica),
        np.arange(BLOCKS, dtype=np.int64) * BLOCK_MS,
        tuple(series),
        gains,
        (Series("concurrent_requests", ()), Series("gpu_usage", make_labels({"gpu": "0"}))),
        np.repeat(np.array([[in_flight], [0.5]]), BLOCKS, axis=1),
        np.full((2, BLOCKS), np.nan),
        np.full(BLOCKS, np.nan),
        Tallies(none + 20, none, none, none, none),
        layer=layer,
    )


def scraped(which: TargetIncrements, block: int, scrapes: int, failed: int = 0) -> TargetIncrements:
    """A target of which so many scrapes of a block succeeded and failed, and with none nothing is known."""
    tallies, levels, gains = which.tallies, which.levels.copy(), which.gains.copy()
    made, missed = tallies.scrapes.copy(), tallies.failed.copy()
    made[block], missed[block] = scrapes, failed
    if not scrapes:
        levels[:, block] = gains[:, block] = np.nan
    return replace(which, tallies=replace(tallies, scrapes=made, failed=missed), levels=levels, gains=gains)


def read(*targets: TargetIncrements, deployment: str | None = None) -> ServedTraffic:
    """What they served."""
    past = cast("History", Past(targets))
    return read_traffic(past, find_deployment(past, deployment), 0, BLOCKS * BLOCK_MS + LATER_MS)


def test_replicas_add_up() -> None:
    """Requests, requests in flight and histograms are sums over replicas."""
    traffic = read(target("0"), target("1", in_flight=5.0))
    assert traffic.replicas.tolist() == [2] * BLOCKS
    assert traffic.concurrency.tolist() == [8] * BLOCKS
    assert traffic.requests.tolist() == [60] * BLOCKS
    assert traffic.counters['requests_total{outcome="ok"}'].tolist() == [60] * BLOCKS
    prompts = traffic.pool("input_tokens_per_request")
    assert prompts is not None
    assert (prompts.count, prompts.mean, prompts.quantile(0.5)) == (240, 100, 50)
    assert traffic.gpus_per_replica == 1


def test_a_frontend_and_its_engines_count_requests_once() -> None:
    """What both show is taken from the frontend; replicas are the engines."""
    traffic = read(target("front", layer="frontend", in_flight=9.0), target("0"), target("1"), target("2"))
    assert traffic.replicas.tolist() == [3] * BLOCKS
    assert traffic.concurrency.tolist() == [9] * BLOCKS
    assert traffic.requests.tolist() == [30] * BLOCKS


def test_a_replica_that_came_within_a_block_counts_by_its_share() -> None:
    """Half of the block's scrapes make half a replica with half of its requests in flight."""
    traffic = read(target("0"), scraped(target("1"), 2, 10))
    assert traffic.replicas.tolist() == [2, 2, 1.5, 2]
    assert traffic.concurrency.tolist() == [6, 6, 4.5, 6]


def test_a_replica_that_cannot_be_scraped_is_not_there() -> None:
    """It is counted as absent, and that is said; without any replica nothing is known, and that is not zero."""
    traffic = read(target("0"), scraped(target("1"), 1, 0, failed=20))
    assert traffic.replicas.tolist() == [2, 1, 2, 2]
    assert traffic.concurrency.tolist() == [6, 3, 6, 6]
    assert "1 times a replica could not be scraped" in traffic.remarks[0]
    alone = read(scraped(target("0"), 1, 0, failed=20))
    assert np.isnan(alone.replicas).tolist() == [False, True, False, False]
    assert np.isnan(alone.concurrency).tolist() == [False, True, False, False]


def test_what_one_replica_does_not_know_is_not_known() -> None:
    """A counter or a gauge that is missing on a replica which was scraped leaves the sum of its block unknown."""
    other = target("1")
    other.gains[0, 1], other.levels[0, 2] = np.nan, np.nan
    traffic = read(target("0"), other)
    assert np.isnan(traffic.requests).tolist() == [False, True, False, False]
    assert np.isnan(traffic.concurrency).tolist() == [False, False, True, False]


def test_a_deployment_is_chosen_by_id_or_labels() -> None:
    """Without a choice it is the only one of v1; with several an error lists them, and rollout phases are one."""
    first, staged = target(environment="production"), target(environment="staging")
    newer = target(deployment_id="chat-v2", inference_stack="v2")
    promoting = target("1", environment="production", rollout_phase="promoting")
    past = cast("History", Past((first, staged, newer, promoting)))
    assert [each.environment for each in find_deployment(past, "environment=staging,model_name=chat")] == ["staging"]
    assert {each.rollout_phase for each in find_deployment(past, "environment=production")} == {"", "promoting"}
    assert find_deployment(cast("History", Past((first, newer))), None) == (first.identity.deployment(),)
    with pytest.raises(UsageError, match="a deployment of v1: 2 deployments fit, expected --deployment with labels"):
        find_deployment(past, None)
    with pytest.raises(UsageError, match="is not there, expected one of: none"):
        find_deployment(cast("History", Past(())), "chat-v1")


def test_disaggregated_deployments_are_refused() -> None:
    """Their workers serve parts of requests."""
    with pytest.raises(UsageError, match="prefill and decode have workers of their own"):
        read(target(role="prefill"))
