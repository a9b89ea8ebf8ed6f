"""One page that measures deployments of two customers: each receives what is selected for its own, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from servescope.customers.config import read_policies
from servescope.customers.points.projection import Projector
from servescope.customers.points.reading import IntervalReader
from servescope.customers.points.totals import Totals
from servescope.customers.policy.policy import Policy
from servescope.customers.transports.otlp import encode
from servescope.customers.transports.page import render_openmetrics, render_text
from servescope.customers.transports.remote_write import encode_2
from servescope.errors import ConfigurationError
from servescope.store.embedded import Store
from tests.support.picker_page import START, Counted, collecting_picker, configuration, picker_page

MINUTE = 60
OWNERS = {"acme": "v1", "globex": "v2"}
_CUSTOMER = """
[[customers]]
name = "{name}"
metrics = ["engine", "replica_count_by_status"]
figures = ["request_rate", "request_rejected_share"]
labels = ["deployment_id", "inference_stack", "outcome"]

[[customers.deployments]]
deployment_id = "{id}"
model_name = "llama"
inference_stack = "{id}"

[customers.pull]
token_file = "{name}.token"
"""
LISTED = 'file_sd = [{ files = ["x.json"] }]\nclaims = { targets = ["picker:9090"] }\n'


def write_customers(folder: Path, collector: str) -> Path:
    """A customer of each part of the page that a collector with this configuration reads."""
    (folder / "servescope.toml").write_text(collector, encoding="utf-8")
    for name in OWNERS:
        (folder / f"{name}.token").write_text(f"token-of-{name}", encoding="utf-8")
    path = folder / "customers.toml"
    tables = "".join(_CUSTOMER.format(name=name, id=own) for name, own in OWNERS.items())
    path.write_text(f'collector = "servescope.toml"\n{tables}', encoding="utf-8")
    return path


def owned(more: str = "") -> str:
    """The collector's configuration of both parts, whose labels are fixed."""
    return configuration(*OWNERS.values(), model=f'model_name = "llama"\nfixed_labels = true\n{more}')


def exported(store: Store, policy: Policy) -> list[bytes]:
    """What leaves for a customer of the last minute, by each way; the text format first."""
    reader = IntervalReader(store, policy.deployments, policy.metrics, policy.figures)
    projector, totals = Projector(policy), Totals()
    for edge, _ in reader.read(None, [(START + minute * MINUTE) * 1000 for minute in (1, 2, 3)]):
        projection = projector.project(edge, "cumulative", totals)
        totals = projection.totals
    points = projection.points
    return [
        render_text(points),
        render_openmetrics(points),
        encode(points, "cumulative").SerializeToString(),
        encode_2(points).SerializeToString(),
    ]


def values(page: bytes) -> dict[str, float]:
    """The samples of a page by name and outcome; each is of one deployment."""
    return {
        f"{sample.name} {sample.labels.get('outcome', '')}".rstrip(): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_each_customer_receives_its_own_part(tmp_path: Path) -> None:
    """Counters, outcomes, histograms and figures are those of its part, and nothing that leaves names the other's."""

    async def collect() -> dict[str, list[bytes]]:
        async with collecting_picker(tmp_path, owned()) as world:
            first, second = Counted(), Counted({"ResourceExhausted": 0})
            for minute in range(3):
                first.answer(0.5, 30)
                second.answer(0.9, 60).errors = {"ResourceExhausted": 20 * minute}
                await world.step(picker_page(v1=first, v2=second), seconds=MINUTE)
            policies = read_policies(write_customers(tmp_path, owned()))
            return {each.name: exported(world.history, each) for each in policies}

    found = asyncio.run(collect())
    acme, globex = (values(found[name][0]) for name in OWNERS)
    assert (acme["requests_total ok"], globex["requests_total ok"]) == (60, 120)
    assert (acme["requests_total rejected"], globex["requests_total rejected"]) == (0, 40)
    assert acme["request_duration_seconds_sum"] == pytest.approx(60 * 0.5)
    assert globex["request_duration_seconds_sum"] == pytest.approx(120 * 0.9)
    assert acme["request_rejected_share"] == 0.0
    assert globex["request_rejected_share"] > 0.1
    assert globex["request_rate"] > 2 * acme["request_rate"] > 0
    # A gauge of the whole pool is of neither.
    assert not [name for name in (*acme, *globex) if name.startswith("replica_count")]
    for name, own in OWNERS.items():
        (other,) = set(OWNERS.values()) - {own}
        assert all(own.encode() in text and other.encode() not in text for text in found[name])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("", None),
        (LISTED, r"a target may claim both .*deployment_id='v2'.* and .*deployment_id='v1'.* of customer 'acme'"),
    ],
)
def test_a_page_of_two_customers_is_no_target_of_lists(tmp_path: Path, more: str, message: str | None) -> None:
    """Lists know addresses alone, and not who selects what of a page; targets that are written out do."""
    path = write_customers(tmp_path, owned(more))
    if message is None:
        assert [policy.name for policy in read_policies(path)] == list(OWNERS)
        return
    with pytest.raises(ConfigurationError, match=message):
        read_policies(path)
