"""No customer receives anything that depends on another: names, values, counts, errors, by push or by pull."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment, Identity
from servescope.contract.samples import Sample, Snapshot, make_labels
from servescope.customers.points.edges import IntervalSnapshot
from servescope.customers.points.points import StreamPoint
from servescope.customers.points.projection import Projector
from servescope.customers.points.reading import IntervalReader
from servescope.customers.points.totals import Totals, dump_totals, load_totals
from servescope.customers.policy.policy import HashKey, Policy
from servescope.customers.transports.otlp import encode
from servescope.customers.transports.page import render_openmetrics, render_text
from servescope.customers.transports.remote_write import encode_2
from servescope.settings.access import AccessError
from servescope.store.embedded import Store
from servescope.store.prometheus.figure_queries import matchers
from servescope.store.records import TargetStatus
from tests.customers.support.tenants import LOOK_ALIKES, METRICS, TwoCustomers, customers, fleets, pages
from tests.support.customer_edges import MINUTE, T0, fleet
from tests.support.drawing import examples

KEYS = {"acme": "a" * 40, "globex": "b" * 40}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("keys")
    for name, key in KEYS.items():
        (folder / name).write_text(key)
    return {name: str(folder / name) for name in KEYS}


def sent(points: Sequence[StreamPoint]) -> list[bytes]:
    """What leaves, by each way."""
    return [
        encode(points, "cumulative").SerializeToString(deterministic=True),
        encode_2(points).SerializeToString(deterministic=True),
        render_text(points),
        render_openmetrics(points),
    ]


def stream(policy: Policy, edges: Sequence[IntervalSnapshot]) -> list[list[bytes]]:
    """What leaves of the edges, one after the other."""
    projector, totals, found = Projector(policy), Totals(), []
    for edge in edges:
        projection = projector.project(edge, "cumulative", totals)
        totals = load_totals(dump_totals(projection.totals))
        found.append(sent(projection.points))
    return found


FEW = settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
MANY = settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@FEW
@given(data=st.data())
def test_what_leaves_does_not_depend_on_what_is_anothers(keys: dict[str, str], data: st.DataObject) -> None:
    """Bit by bit the same with and without the other customer, even if the reading handed over too much."""
    check_projection(keys, data)


@FEW
@given(data=st.data())
def test_a_deployment_that_moves_leaves_no_trace_with_its_former_customer(
    keys: dict[str, str], data: st.DataObject
) -> None:
    """From the move on it receives what it would receive without it."""
    check_move(keys, data)


@pytest.mark.slow
@settings(FEW, max_examples=examples(4))
@given(data=st.data())
def test_what_is_read_of_a_store_does_not_depend_on_what_is_anothers(keys: dict[str, str], data: st.DataObject) -> None:
    """Names that are patterns, matchers or paths select nothing but themselves."""
    check_store(keys, data)


@pytest.mark.proof
@MANY
@given(data=st.data())
def test_many_fleets_and_policies(keys: dict[str, str], data: st.DataObject) -> None:
    """All of the above."""
    check_projection(keys, data)
    check_move(keys, data)
    check_store(keys, data)


def check_projection(keys: dict[str, str], data: st.DataObject) -> None:
    both: TwoCustomers = data.draw(customers(keys["acme"], keys["globex"]))
    alone, mixed = [], []
    for number in range(3):
        own = data.draw(fleets(sorted(both.first.deployments), sorted(both.second.deployments)))
        others = data.draw(fleets(sorted(both.second.deployments), sorted(both.first.deployments)))
        figures = {name: data.draw(st.floats(0, 1)) for name in ("request_rate", "kv_cache_hit_rate")}
        ours = dict.fromkeys(both.first.deployments, figures)
        theirs = {deployment: dict.fromkeys(figures, 0.123) for deployment in both.second.deployments}
        alone.append(fleet(*own, number=number, figures=ours))
        mixed.append(fleet(*others, *own, *others, number=number, figures={**theirs, **ours}))

    assert stream(both.first, mixed) == stream(both.first, alone)


def check_move(keys: dict[str, str], data: st.DataObject) -> None:
    both: TwoCustomers = data.draw(customers(keys["acme"], keys["globex"]))
    labels = tuple(dict.fromkeys((*both.first.labels, "deployment_id", "model_name", "inference_stack", "environment")))
    before = replace(both.first, labels=labels, renames={})
    after = replace(before, deployments=before.deployments - {both.moving})
    shared = [data.draw(fleets(sorted(before.deployments), sorted(both.second.deployments))) for _ in range(3)]
    former = Projector(before).project(fleet(*shared[0], number=1), "cumulative", Totals())
    projector, totals = Projector(after), former.totals
    for number in (1, 2):
        edge = fleet(*shared[number], number=number + 1)
        projection = projector.project(edge, "cumulative", totals)
        totals = projection.totals
        staying = [each for each in shared[number] if each.identity.deployment() != both.moving]
        without = Projector(after).project(replace(edge, targets=tuple(staying)), "cumulative", former.totals)
        if number == 1:
            assert sent(projection.points) == sent(without.points)
        assert not any(_is_of(point, both.moving) for point in projection.points)


def _is_of(point: StreamPoint, deployment: Deployment) -> bool:
    named = {name.removeprefix("servescope."): value for name, value in point.stream.resource}
    id_ = named.get("deployment_id", named.get("service.name"))
    environment = named.get("environment", named.get("deployment.environment.name", ""))
    return (named["model_name"], id_, named["inference_stack"], environment) == (
        deployment.model_name,
        deployment.deployment_id,
        deployment.inference_stack,
        deployment.environment,
    )


def check_store(keys: dict[str, str], data: st.DataObject) -> None:
    both: TwoCustomers = data.draw(customers(keys["acme"], keys["globex"]))
    policy = replace(both.first, metrics=METRICS[:2], figures=("request_rate",))
    scrapes = {
        deployment: data.draw(pages(sorted(both.second.deployments)))
        for deployment in (*both.first.deployments, *both.second.deployments)
    }
    with tempfile.TemporaryDirectory() as folder:
        read = []
        for name, held in (("alone.db", both.first.deployments), ("mixed.db", scrapes)):
            with Store(Path(folder) / name) as store:
                for deployment in sorted(held):
                    identity = Identity(*_four(deployment), replica="pod")
                    samples = [
                        Sample(each, make_labels({**dict(labels), **dict(identity.labels())}), seen.value)
                        for (each, labels), seen in scrapes[deployment].items()
                    ]
                    distinct = list(
                        {(each, labels): Sample(each, labels, value) for each, labels, value in samples}.values()
                    )
                    store.set_target(TargetStatus(identity.target_id, "http://127.0.0.1/metrics", identity))
                    for time_ms in (T0, T0 + MINUTE):
                        store.append_scrape(identity.target_id, time_ms, Snapshot.of(distinct))
                        store.append_figures(
                            deployment, time_ms, {"request_rate": float(len(deployment.deployment_id))}
                        )
                reader = IntervalReader(store, policy.deployments, policy.metrics, policy.figures)
                edges = [edge for edge, _ in reader.read(None, [T0, T0 + MINUTE])]
                assert {each.identity.deployment() for edge in edges for each in edge.targets} <= policy.deployments
                read.append(stream(policy, edges))
    assert read[0] == read[1]


def _four(deployment: Deployment) -> tuple[str, str, str, str]:
    return deployment.model_name, deployment.deployment_id, deployment.inference_stack, deployment.environment


def test_a_hash_does_not_show_which_names_were_tried(keys: dict[str, str]) -> None:
    """Without the key, no list of names yields the hashes: those of another key, and plain digests, are all others."""
    import hashlib

    from servescope.customers.points.hashing import ReplicaHash

    ours, theirs = ReplicaHash(keys["acme"], "acme"), ReplicaHash(keys["globex"], "acme")
    guessed = {ours.name(name, ours.refresh()) for name in LOOK_ALIKES}
    tried = {theirs.name(name, theirs.refresh()) for name in LOOK_ALIKES}
    for digest in (hashlib.sha256, hashlib.sha1, hashlib.md5, hashlib.blake2b):
        tried |= {digest(name.encode("utf-8", "surrogatepass")).hexdigest()[:20] for name in LOOK_ALIKES}

    assert len(guessed) == len(LOOK_ALIKES)
    assert not guessed & tried


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_prometheus_is_asked_for_a_deployment_by_equality(name: str) -> None:
    """Each label has one matcher, whose value is the name, whatever that has in it."""
    deployment = Deployment(name, name, "v2", name)
    text = matchers(deployment)

    assert re.fullmatch(r'(?:\w+="(?:[^"\\\n]|\\.)*"(?:,|$))+', text)
    found = re.findall(r'(\w+)="((?:[^"\\\n]|\\.)*)"', text)
    asked = {label: re.sub(r"\\(.)", r"\1", value) for label, value in found}
    assert asked == {label: getattr(deployment, label) for label in DEPLOYMENT_LABELS}


def test_an_error_of_one_customer_names_nothing_of_another(keys: dict[str, str], tmp_path: Path) -> None:
    """Nor a key."""
    path = tmp_path / "acme.key"
    path.write_text(f"{KEYS['acme']}\nshort\n")
    policy = Policy(
        "acme", frozenset({Deployment("m", "chat", "v2")}), ("requests_total",), labels=("replica",),
        key=HashKey(str(path)), resolution="replica",
    )  # fmt: skip

    with pytest.raises(AccessError) as error:
        Projector(policy)
    assert "short" not in str(error.value).replace("shorter", "")
    assert KEYS["acme"] not in str(error.value)
    assert "globex" not in str(error.value)
