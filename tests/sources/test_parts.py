"""The part of a page that is one deployment's: what is read of it, and what belongs to nobody."""

from __future__ import annotations

import pytest

from servescope.cli import main
from servescope.sources.inspection import Report, inspect
from servescope.sources.maps import Values
from servescope.sources.parse import parse_exposition
from servescope.sources.parts import PagePart, overlap, read_select
from tests.conftest import PAGES
from tests.support.inspecting import inspect_as_json

PAGE = (PAGES / "gaie-epp-legacy-1-goldens.txt").read_text("utf-8")


def inspect_part(*selected: str, page: str = PAGE) -> Report:
    return inspect([parse_exposition(page)], subject="page", part=PagePart(read_select(selected)))


def values(report: Report) -> dict[str, float | None]:
    return {name: value for each in report.entries for name, value in ((each.name, each.value), *each.parts)}


def test_a_part_has_its_own_series() -> None:
    """The parts are disjoint, and of the whole page nothing is lost."""
    parts = [values(inspect_part(f"target_model_name=tiny-{name}")) for name in ("v1", "v2")]
    whole = values(inspect_part())
    for name in ("requests_started_total", 'requests_total{outcome="rejected"}', "output_tokens_total"):
        assert [each[name] for each in parts] != [0, 0]
        assert sum(each[name] or 0 for each in parts) == whole[name]
    assert [each["request_duration_seconds"] for each in parts] == [0.5, 1.0]


def test_what_is_exposed_without_the_label_is_not_zero() -> None:
    """Requests in flight are counted by the client's model alone: of neither part, and the reason says so."""
    entry = next(
        each for each in inspect_part("target_model_name=tiny-v1").entries if each.name == "concurrent_requests"
    )
    assert (entry.status, entry.value) == ("impossible", None)
    assert entry.reason == "exposed without target_model_name='tiny-v1': inference_objective_running_requests"


def test_an_empty_value_selects_what_has_no_such_label() -> None:
    """An operator can say whose the gauges of a pool are."""
    found = values(inspect_part("target_model_name=tiny-v1", "target_model_name="))
    assert found['replica_count_by_status{status="active"}'] == 3
    assert found["request_duration_seconds"] == 0.5


def test_a_part_that_is_not_used_yet_is_zero() -> None:
    """Its counters are exposed for others, so they are 0 and not unknown; a note says that there are none."""
    report = inspect_part("target_model_name=tiny-v3")
    found = values(report)
    assert found["requests_started_total"] == found['requests_total{outcome="error"}'] == 0
    assert "no series has target_model_name='tiny-v3'" in report.notes
    others = "71 series have other values (2): target_model_name='tiny-v1', target_model_name='tiny-v2'"
    assert others in report.notes


def test_several_labels_must_all_fit() -> None:
    """A name is often unique within a namespace alone."""
    part = PagePart(((("namespace", ("a",)), ("deployment", ("x", "y"))),))
    assert part.has((("deployment", "y"), ("namespace", "a"), ("pod", "p")))
    assert not part.has((("deployment", "y"), ("namespace", "b")))
    assert part.describe() == "namespace='a', deployment='x' or 'y'"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((("model", ("a",)),), (("model", ("b",)),), False),
        ((("model", ("a", "b")),), (("model", ("b", "c")),), True),
        ((("model", ("a",)), ("zone", ("x",))), (("model", ("a",)), ("zone", ("y",))), False),
        # A series may have both labels.
        ((("model", ("a",)),), (("zone", ("y",)),), True),
        ((), (("zone", ("y",)),), True),
    ],
)
def test_parts_overlap_unless_a_label_differs(one: Values, other: Values, expected: bool) -> None:
    first, second = ((each,) if each else () for each in (one, other))
    assert overlap(first, second) is expected
    assert overlap(second, first) is expected


def test_several_selects_overlap_where_one_of_each_does() -> None:
    """Otherwise they are apart, however many they are."""
    named = [(("model", (name,)),) for name in "abcd"]
    assert overlap((named[0], named[1]), (named[2], named[1]))
    assert not overlap((named[0], named[1]), (named[2], named[3]))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("chat-*-*", "chat-7f9-x2", True),
        ("chat-*-*", "chat-v2-*-*", False),
        ("chat-*-*", "chat-*", False),
        ("chat-*", "chat-0", True),
        ("chat-*", "talk-*", False),
        ("v*-0", "v2-*", True),
        ("v*", "v", False),
        ("*", "", False),
    ],
)
def test_a_star_is_one_part_of_a_name(one: str, other: str, expected: bool) -> None:
    """So the pods of one Deployment are not those of another whose name begins alike."""
    first, second = (((("pod", (each,)),),) for each in (one, other))
    assert overlap(first, second) is overlap(second, first) is expected
    if "*" not in other:
        assert PagePart(first).has((("pod", other),)) is expected


CLUSTER = (PAGES / "kube-state-metrics-2-1.txt").read_text("utf-8")
CHAT = (
    "namespace=prod", "deployment=chat", "or", "namespace=prod", "horizontalpodautoscaler=keda-hpa-chat",
    "or", "namespace=prod", "pod=chat-*-*",
)  # fmt: skip


def test_a_workload_is_selected_by_different_labels() -> None:
    """Its Deployment, its autoscaler and its pods: nothing of its namesake in another namespace, or of its sister."""
    report = inspect_part(*CHAT, page=CLUSTER)
    found = values(report)
    statuses = ("active", "starting", "failed")
    assert [found[f'replica_count_by_status{{status="{name}"}}'] for name in statuses] == [3, 1, 1]
    names = ("rounded_desired_scale", "policy_desired_scale", "min_replicas", "max_replicas")
    assert [found[f"autoscaler_{name}"] for name in names] == [4, 4, 2, 8]
    assert report.notes == (
        "only series with namespace='prod', deployment='chat'; or namespace='prod', "
        "horizontalpodautoscaler='keda-hpa-chat'; or namespace='prod', pod='chat-*-*' are read, and what describes the "
        "process",
        "9 series have other values (4): {deployment='chat', namespace='test'}, {deployment='chat-v2', "
        "namespace='prod'}, namespace='prod', {namespace='prod', pod='chat-v2-5c8d77b9f-lq2vd'}",
    )


def test_pods_that_do_not_wait_have_not_failed_and_others_are_unknown() -> None:
    """0 of the pods that are selected; without them nothing is said of failures."""
    failed = 'replica_count_by_status{status="failed"}'
    sister = ("namespace=prod", "deployment=chat-v2")
    assert values(inspect_part(*sister, "or", "namespace=prod", "pod=chat-v2-*-*", page=CLUSTER))[failed] == 0
    assert failed not in values(inspect_part(*sister, page=CLUSTER))


def test_what_is_selected_and_not_on_the_page_is_named() -> None:
    """Each value that no series has, or a set of labels that none has together."""
    notes = inspect_part(*CHAT, "or", "pod=talk-*-*", "or", "deployment=talk", page=CLUSTER).notes
    assert "no series has pod='talk-*-*', deployment='talk'" in notes
    notes = inspect_part(*CHAT, "or", "namespace=test", "deployment=chat-v2", page=CLUSTER).notes
    assert "no series has namespace='test', deployment='chat-v2'" in notes


def test_an_autoscaler_alone_has_bounds_and_no_replicas() -> None:
    """What it lacks says by which labels it was asked for."""
    report = inspect_part("namespace=prod", "horizontalpodautoscaler=keda-hpa-chat", page=CLUSTER)
    replicas = next(each for each in report.entries if each.name == "replica_count_by_status")
    assert (replicas.status, replicas.value) == ("impossible", None)
    assert "exposed without namespace='prod', horizontalpodautoscaler='keda-hpa-chat': kube_" in (replicas.reason or "")
    assert values(report)["autoscaler_max_replicas"] == 8


@pytest.mark.parametrize("text", ["model", "le=1", "a-b=c", "=v", "or"])
def test_what_selects_nothing_is_refused(text: str) -> None:
    """The text is quoted, with what was expected."""
    with pytest.raises(ValueError, match=r"is not LABEL=VALUE, such as 'model=v2'"):
        read_select([text])
    with pytest.raises(ValueError, match="'or' is at the end, expected LABEL=VALUE behind it"):
        read_select(["model=v2", "or"])


def test_inspect_selects_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    """What it is given is in its notes; what is no label and value is refused by name."""
    page = str(PAGES / "gaie-epp-legacy-1-goldens.txt")
    notes = inspect_as_json(capsys, page, "--select", "target_model_name=tiny-v2")["notes"]
    assert "only series with target_model_name='tiny-v2' are read, and what describes the process" in notes
    assert main(["inspect", page, "--select", "tiny-v2"]) == 2
    assert "--select 'tiny-v2' is not LABEL=VALUE, such as 'model=v2'" in capsys.readouterr().err
