"""Alerts without a Prometheus fire at the very evaluations at which promtool finds that Prometheus' do."""

from __future__ import annotations

from collections import Counter

import pytest

from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.records import labels_of
from tests.support.alert_mutants import EQUIVALENT, mutants
from tests.support.alert_proofs import LONG, PROOFS, stories_of
from tests.support.alert_stories import beside_each_other
from tests.support.story_view import StoryView, first_difference

AlertStories = tuple[str, list[StoryView]]


@pytest.fixture(scope="module")
def stories(request: pytest.FixtureRequest) -> AlertStories:
    """The name of an alert, and its stories: once for it and its mutants."""
    return request.param, [StoryView(story) for story in beside_each_other(stories_of(request.param))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "stories", [pytest.param(name, marks=[pytest.mark.proof] * (name == "ServescopeRouterHotSpot")) for name in ALERTS],
    indirect=True,
)  # fmt: skip
def test_fires_when_prometheus_does(stories: AlertStories) -> None:
    """Every story of every proof: the same labels and annotations at the same minutes, firing, kept and resolved."""
    name, views = stories
    assert first_difference(ALERTS[name], views) == ""


@pytest.mark.slow
@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.proof)])
@pytest.mark.parametrize(
    "stories", [pytest.param(name, marks=[pytest.mark.proof] * (name in LONG)) for name in ALERTS], indirect=True
)
def test_every_mutant_dies(stories: AlertStories, step: int) -> None:
    """A comparison turned round, a threshold or a time shifted, a matcher or a condition dropped: the proof fails."""
    name, views = stories
    drawn = list(mutants(ALERTS[name]))[::step]

    alive = [what for what, mutant in drawn if not first_difference(mutant, views)]
    assert not Counter(alive) - Counter(EQUIVALENT.get(name, []))


@pytest.mark.parametrize("name", ALERTS)
def test_a_condition_has_the_labels_it_is_said_to_have(name: str) -> None:
    """Annotations, inhibitions and routes use them."""
    assert set(PROOFS[name].labels) <= set(labels_of(ALERTS[name].condition))
