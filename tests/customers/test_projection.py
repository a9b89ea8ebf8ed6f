"""What a policy lets through of an edge: points, their names, starts and ends, and what is withheld."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from servescope.contract.identity import Deployment, Identity
from servescope.customers.points.points import HistogramValue, StreamPoint
from servescope.customers.points.projection import Projection, Projector
from servescope.customers.points.prometheus_series import labels_of
from servescope.customers.points.totals import Totals, dump_totals, load_totals
from servescope.customers.policy.policy import HashKey, Naming, Policy, Quotas, Resolution
from servescope.customers.transports.otlp import encode
from servescope.settings.access import AccessError
from tests.support.customer_edges import BORN, MINUTE, T0, Seen, fleet, histogram, series, target

CHAT = Deployment("llama", "chat", "v2", "prod")
ENGINE = Identity("llama", "chat", "v2", "prod", replica="pod-1")
OTHER = Identity("llama", "chat", "v2", "prod", replica="pod-2")
TOKENS = series("output_tokens_total")
QUEUED = series("queued_requests")
TTFT = "time_to_first_token_seconds"
PLAIN = Policy(
    "acme",
    frozenset({CHAT}),
    metrics=("kv_cache_usage", "output_tokens_total", "queued_requests", "requests_total", TTFT),
    labels=("deployment_id", "replica", "outcome"),
    replicas="plain",
    resolution="replica",
)
SUMMED = replace(PLAIN, resolution="deployment")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "acme.key"
    path.write_text("a" * 64 + "\n")
    return path


def project(policy: Policy, *targets: object, number: int = 1, temporality: str = "cumulative") -> Projection:
    return Projector(policy).project(fleet(*targets, number=number), temporality, Totals())  # type: ignore[arg-type]


def described(point: StreamPoint) -> tuple[object, ...]:
    """Name, labels, start, time after T0, value."""
    labels = dict((*point.stream.resource, *point.stream.attributes))
    return point.stream.metric.name, labels, point.start_ms, point.time_ms - T0, point.value


def values(projection: Projection) -> list[object]:
    return [point.value for point in projection.points]


def test_a_replicas_series_leave_as_they_are_without_labels_that_are_not_listed() -> None:
    """The value, its start, the labels of the policy; a native label never leaves."""
    seen = {series("requests_total", outcome="ok", engine="0", exported_deployment_id="globex"): Seen(7, 2)}
    (point,) = project(PLAIN, target(ENGINE, seen)).points

    assert described(point) == (
        "requests_total", {"deployment_id": "chat", "replica": "pod-1", "outcome": "ok"}, BORN, MINUTE, 7.0,
    )  # fmt: skip
    assert dict(point.stream.resource) == {"deployment_id": "chat", "replica": "pod-1"}


def test_a_target_cannot_say_whose_it_is() -> None:
    """A native label with the name of one that is exported, or of another metric's, does not leave."""
    seen = {series("output_tokens_total", deployment_id="globex", replica="x", outcome="ok"): Seen(7, 2)}
    (point,) = project(PLAIN, target(ENGINE, seen)).points

    assert described(point)[1] == {"deployment_id": "chat", "replica": "pod-1"}


def test_a_delta_is_what_was_gained_since_the_edge_before() -> None:
    """A gauge has no start in either form."""
    seen = {TOKENS: Seen(100, 30), QUEUED: Seen(4)}
    points = project(PLAIN, target(ENGINE, seen), temporality="delta").points

    assert [(point.start_ms, point.time_ms, point.value) for point in points] == [
        (T0, T0 + MINUTE, 30.0),
        (None, T0 + MINUTE, 4.0),
    ]


def test_a_delta_lane_begins_with_no_point() -> None:
    """What was counted before the lane is none of its points."""
    assert project(PLAIN, target(ENGINE, {TOKENS: Seen(100)}), number=0, temporality="delta").points == []


def test_all_counters_of_a_replica_count_since_one_time() -> None:
    """Not since their process began, nor each since it was seen, also where one is a series and another a sum."""
    seen = {
        series("requests_total", outcome="ok", engine="0"): Seen(900, 450, counted=450),
        series("requests_total", outcome="ok", engine="1"): Seen(901, 451, counted=451),
        series("requests_total", outcome="error", engine="0"): Seen(49, 12, counted=12),
    }
    points = project(PLAIN, target(ENGINE, seen, T0 - MINUTE)).points

    assert [described(point)[1:] for point in points] == [
        ({"deployment_id": "chat", "replica": "pod-1", "outcome": "ok"}, T0 - MINUTE, MINUTE, 901.0),
        ({"deployment_id": "chat", "replica": "pod-1", "outcome": "error"}, T0 - MINUTE, MINUTE, 12.0),
    ]


def test_what_a_replica_counted_before_it_ended_has_a_point_before_the_end() -> None:
    """So that nothing of it is lost."""
    points = project(PLAIN, target(ENGINE, {TOKENS: Seen(gain=5, ended=True, counted=20), QUEUED: Seen(1)})).points

    assert [described(point)[2:] for point in points[:2]] == [(BORN, MINUTE - 1, 20.0), (None, MINUTE, None)]
    assert len(points) == 3


def test_a_series_that_ended_has_a_point_without_a_value() -> None:
    """And without a start."""
    points = project(PLAIN, target(ENGINE, {TOKENS: Seen(ended=True), QUEUED: Seen(ended=True)})).points

    assert [(point.start_ms, point.value) for point in points] == [(None, None), (None, None)]


def test_a_histogram_leaves_with_its_own_edges() -> None:
    """Counts are of each bucket by itself."""
    (point,) = project(PLAIN, target(ENGINE, histogram(TTFT, (0.1, 0.5), (3, 2, 1), (1, 1, 0)))).points
    assert point.value == HistogramValue((0.1, 0.5), (3, 2, 1), 6.0)

    (delta,) = project(
        PLAIN, target(ENGINE, histogram(TTFT, (0.1, 0.5), (3, 2, 1), (1, 1, 0))), temporality="delta"
    ).points
    assert delta.value == HistogramValue((0.1, 0.5), (1, 1, 0), 2.0)


def test_a_histogram_without_its_sum_is_withheld() -> None:
    """It is counted by its reason."""
    parts = {name: seen for name, seen in histogram(TTFT, (0.1,), (1, 1), (1, 1)).items() if "_sum" not in name.name}

    projection = project(PLAIN, target(ENGINE, parts))
    assert projection.points == []
    assert projection.withheld == {"incomplete": 1}


@pytest.mark.parametrize("cumulated", [(3e19, 2e19, 1e19), (1, 5, 3)])
def test_a_histogram_that_no_message_can_have_is_left_out(cumulated: tuple[float, ...]) -> None:
    """Counts beyond 2^53 or that fall from bucket to bucket; the rest of the replica's series leaves."""
    seen = histogram(TTFT, (0.1, 0.5), (0, 0, 0), (0, 0, 0))
    parts = {each: Seen(value) for each, value in zip(seen, (*cumulated, cumulated[-1], 1.0), strict=False)}
    requests = {series("requests_total", outcome="ok"): Seen(1e19, 1e19)}

    points = project(PLAIN, target(ENGINE, {**parts, **requests})).points
    assert [point.stream.metric.kind for point in points] == ["counter"]
    (metric,) = encode(points, "cumulative").resource_metrics[0].scope_metrics[0].metrics
    assert metric.sum.data_points[0].as_double == 1e19


def test_a_deployment_sums_what_its_replicas_gained() -> None:
    """The total begins at the first edge and goes on from what was acknowledged, through a restart of ours as well."""
    projector = Projector(SUMMED)
    first = projector.project(
        fleet(target(ENGINE, {TOKENS: Seen(100)}), target(OTHER, {TOKENS: Seen(50)}), number=0), "cumulative", Totals()
    )
    second = projector.project(
        fleet(target(ENGINE, {TOKENS: Seen(110, 10)}), target(OTHER, {TOKENS: Seen(3, 5)})), "cumulative", first.totals
    )
    third = Projector(SUMMED).project(
        fleet(target(ENGINE, {TOKENS: Seen(111, 1)}), target(OTHER, {TOKENS: Seen(4, 1)}), number=2),
        "cumulative",
        load_totals(dump_totals(second.totals)),
    )

    assert [described(point)[1:] for each in (first, second, third) for point in each.points] == [
        ({"deployment_id": "chat"}, T0, 0, 0.0),
        ({"deployment_id": "chat"}, T0, MINUTE, 15.0),
        ({"deployment_id": "chat"}, T0, 2 * MINUTE, 17.0),
    ]


@pytest.mark.parametrize("policy", [PLAIN, SUMMED])
def test_the_end_of_a_histogram_has_its_edges(policy: Policy) -> None:
    """By which each of its buckets ends in Prometheus."""
    projector = Projector(policy)
    seen = histogram(TTFT, (0.1, 1.0), (1, 2, 3), (1, 1, 1))
    first = projector.project(fleet(target(ENGINE, seen)), "cumulative", Totals())
    gone = dict.fromkeys(seen, Seen(ended=True))

    (end,) = projector.project(fleet(target(ENGINE, gone), number=2), "cumulative", first.totals).points

    assert (end.value, end.edges) == (None, (0.1, 1.0))


def test_what_was_counted_before_the_last_replica_left_is_sent_before_its_end() -> None:
    """When one is back, the total goes on, so that it never falls."""
    projector = Projector(SUMMED)
    first = projector.project(fleet(target(ENGINE, {TOKENS: Seen(10, 10)})), "cumulative", Totals())
    gone = projector.project(
        fleet(target(ENGINE, {TOKENS: Seen(gain=4, ended=True)}), number=2), "cumulative", first.totals
    )
    none = projector.project(fleet(number=3), "cumulative", gone.totals)
    back = projector.project(fleet(target(ENGINE, {TOKENS: Seen(20, 6)}), number=4), "cumulative", none.totals)

    assert [described(point)[2:] for point in gone.points] == [(T0, 2 * MINUTE - 1, 14.0), (None, 2 * MINUTE, None)]
    assert none.points == []
    assert [described(point)[2:] for point in back.points] == [(T0, 4 * MINUTE, 20.0)]


def test_series_that_differ_in_labels_that_do_not_leave_are_summed() -> None:
    """Of a ratio there is no sum: it is withheld."""
    seen = {
        series("requests_total", outcome="ok", engine="0"): Seen(10, 1),
        series("requests_total", outcome="ok", engine="1"): Seen(20, 2),
        series("queued_requests", engine="0"): Seen(3),
        series("queued_requests", engine="1"): Seen(4),
        series("kv_cache_usage", engine="0"): Seen(0.5),
        series("kv_cache_usage", engine="1"): Seen(0.7),
    }
    projection = project(PLAIN, target(ENGINE, seen))

    assert [described(point)[0::4] for point in projection.points] == [
        ("requests_total", 30.0),
        ("queued_requests", 7.0),
    ]
    assert projection.withheld == {"ratio": 2}


def test_histograms_of_other_edges_are_summed_at_those_that_all_have() -> None:
    """Counts up to these are exact; when all replicas have finer ones again, a new total begins."""
    projector = Projector(SUMMED)
    fine, coarse = ((0.1, 0.5, 1.0), (4, 3, 2, 1), (4, 3, 2, 1)), ((0.5,), (5, 6), (5, 6))
    both = projector.project(
        fleet(target(ENGINE, histogram(TTFT, *fine)), target(OTHER, histogram(TTFT, *coarse))), "cumulative", Totals()
    )
    one = projector.project(fleet(target(ENGINE, histogram(TTFT, *fine)), number=2), "cumulative", both.totals)

    assert values(both) == [HistogramValue((0.5,), (12, 9), 21.0)]
    assert [(point.start_ms, point.value) for point in one.points] == [
        (T0 + MINUTE, HistogramValue((0.1, 0.5, 1.0), (4, 3, 2, 1), 10.0))
    ]


def test_a_target_of_another_deployment_does_not_leave() -> None:
    """Not even the end of one that was the customer's before."""
    for name in ("chat ", "chat-2", "CHAT", "ｃhat"):
        other = replace(ENGINE, deployment_id=name)
        projection = project(PLAIN, target(other, {TOKENS: Seen(7, 2, ended=True)}))
        assert projection.points == []
        assert projection.withheld == {"foreign": 1}


def test_replicas_are_hashed_with_the_customers_key(key: Path) -> None:
    """Two customers with the same key have other names for one replica."""
    policy = replace(PLAIN, replicas="hashed", key=HashKey(str(key)))
    (point,) = project(policy, target(ENGINE, {TOKENS: Seen(7, 2)})).points
    (other,) = project(replace(policy, name="globex"), target(ENGINE, {TOKENS: Seen(7, 2)})).points

    replica = dict(point.stream.resource)["replica"]
    assert "pod" not in repr(point)
    assert len(replica) == 20
    assert replica != dict(other.stream.resource)["replica"]


def test_a_new_key_ends_the_series_of_the_old_one(key: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The id beside the names announces it; after a restart of ours as well, as the file still has the old key."""
    policy = replace(PLAIN, replicas="hashed", key=HashKey(str(key)))
    edges = [fleet(target(ENGINE, {TOKENS: Seen(7 + each, 1)}), number=each) for each in (1, 2)]
    caplog.set_level("INFO")
    first = Projector(policy).project(edges[0], "cumulative", Totals())
    assert not caplog.text
    key.write_text("b" * 32 + "\n" + "a" * 64 + "\n")
    second = Projector(policy).project(edges[1], "cumulative", load_totals(dump_totals(first.totals)))

    end, point = second.points
    assert "customer acme: replicas have other names from now on" in caplog.text
    assert "bbbb" not in caplog.text
    assert end.stream == first.points[0].stream
    assert end.value is None
    assert point.value == 9.0
    labels = dict(point.stream.resource)
    assert labels["replica_key"] != dict(end.stream.resource)["replica_key"]
    assert labels["replica"] != dict(end.stream.resource)["replica"]


def test_without_its_key_nothing_leaves(key: Path) -> None:
    """The error names the file and shows no key."""
    projector = Projector(replace(PLAIN, replicas="hashed", key=HashKey(str(key))))
    key.unlink()

    with pytest.raises(AccessError, match=r"key file '.*acme.key' cannot be read: No such file"):
        projector.project(fleet(target(ENGINE, {TOKENS: Seen(7, 2)})), "cumulative", Totals())


def test_names_follow_the_policy() -> None:
    """Renames and a prefix; in OTLP's own names those of the instruments."""
    renamed = replace(
        PLAIN, naming=Naming.PREFIX, prefix="acme_", renames={"replica": "pod", "deployment_id": "service.name"}
    )
    (point,) = project(renamed, target(ENGINE, {TOKENS: Seen(7, 2)})).points
    assert described(point)[:2] == ("acme_output_tokens_total", {"service.name": "chat", "pod": "pod-1"})
    assert point.stream.metric.family == "acme_output_tokens_total"

    (point,) = project(replace(PLAIN, naming=Naming.OTEL), target(ENGINE, {TOKENS: Seen(7, 2)})).points
    assert described(point)[:2] == (
        "servescope.output_tokens",
        {"service.name": "chat", "service.instance.id": "pod-1"},
    )
    assert (point.stream.metric.unit, point.stream.metric.whole) == ("{token}", True)


@pytest.mark.parametrize(
    ("labels", "service"),
    [
        (("deployment_id", "model_name", "replica"), {"service.name": "chat", "service.instance.id": "pod-1"}),
        (("model_name", "inference_stack"), {"service.name": "llama/v2"}),
        (("rollout_phase",), {"service.name": "acme"}),
        ((), {"service.name": "acme"}),
    ],
)
def test_every_resource_is_a_service(labels: tuple[str, ...], service: dict[str, str]) -> None:
    """Named after what is exported of the deployment, or after the customer: never after what is withheld."""
    resolution: Resolution = "replica" if "replica" in labels else "deployment"
    policy = replace(PLAIN, labels=labels, resolution=resolution)
    (point,) = project(policy, target(ENGINE, {TOKENS: Seen(7, 2)})).points

    assert dict(point.stream.service) == service
    assert "service_name" not in dict(labels_of(point.stream))  # which the page and remote write have


def test_a_service_that_the_policy_names_is_not_named_again() -> None:
    """Where labels are called so already."""
    (point,) = project(replace(PLAIN, naming=Naming.OTEL), target(ENGINE, {TOKENS: Seen(7, 2)})).points
    assert point.stream.service == ()
    renamed = replace(PLAIN, renames={"deployment_id": "service.name"})
    (point,) = project(renamed, target(ENGINE, {TOKENS: Seen(7, 2)})).points
    assert dict(point.stream.service) == {"service.instance.id": "pod-1"}


def test_figures_have_the_names_of_the_policy_too() -> None:
    """In OTLP's own names units are fields; a figure that no series of it has is no point."""
    policy = replace(SUMMED, metrics=(), figures=("request_rate", "time_to_first_token_p95"))
    shown = {"time_to_first_token_p95": 0.5}
    prefixed = project_figures(replace(policy, naming=Naming.PREFIX, prefix="acme_"), shown)
    assert [described(point)[0] for point in prefixed.points] == ["acme_time_to_first_token_seconds_p95"]
    (point,) = project_figures(replace(policy, naming=Naming.OTEL), shown).points
    assert (point.stream.metric.name, point.stream.metric.unit) == ("servescope.time_to_first_token_p95", "s")


def test_derived_figures_are_gauges_of_the_deployment_with_their_window() -> None:
    """One that is absent at the next edge ends."""
    policy = replace(SUMMED, metrics=(), figures=("replica_count_by_status", "time_to_first_token_p95"))
    shown = {"time_to_first_token_p95": 0.5, 'replica_count_by_status{status="active"}': 2.0}
    projector = Projector(replace(policy, labels=(*policy.labels, "status")))
    first = projector.project(fleet(figures={CHAT: shown}), "delta", Totals())
    second = projector.project(fleet(figures={}, number=2), "delta", load_totals(dump_totals(first.totals)))

    assert [described(point) for point in first.points] == [
        ("time_to_first_token_seconds_p95", {"deployment_id": "chat", "window": "5m"}, None, MINUTE, 0.5),
        ("replica_count_by_status", {"deployment_id": "chat", "status": "active", "window": "5m"}, None, MINUTE, 2.0),
    ]
    assert values(second) == [None, None]
    assert {point.stream for point in second.points} == {point.stream for point in first.points}

    closed = project_figures(policy, shown)
    assert [described(point)[0] for point in closed.points] == ["time_to_first_token_seconds_p95"]
    assert closed.withheld == {"label": 1}


def project_figures(policy: Policy, shown: dict[str, float]) -> Projection:
    return Projector(policy).project(fleet(figures={CHAT: shown}), "delta", Totals())


def test_what_is_beyond_the_quota_stays_out_and_what_is_within_stays_in() -> None:
    """A histogram costs as many series as Prometheus has of it."""
    projector = Projector(replace(PLAIN, quotas=Quotas(series=2)))
    late = Identity("llama", "chat", "v2", "prod", replica="pod-0")
    first = projector.project(
        fleet(target(ENGINE, {TOKENS: Seen(1, 1)}), target(OTHER, {TOKENS: Seen(2, 1)})), "cumulative", Totals()
    )
    second = projector.project(
        fleet(
            target(late, {TOKENS: Seen(3, 1), **histogram(TTFT, (0.1,), (1, 1), (1, 1))}),
            target(ENGINE, {TOKENS: Seen(1, 1)}),
            target(OTHER, {TOKENS: Seen(2, 1)}),
            number=2,
        ),
        "cumulative",
        first.totals,
    )

    assert values(second) == [1.0, 2.0]
    assert second.withheld == {"quota": 1 + 4}
