"""The event log of the store: appended, read by time, kept as long as increments."""

from __future__ import annotations

from typing import Any, cast

import pytest

from servescope.contract.events import Event
from servescope.store.embedded import Store
from servescope.store.records import RefusedError, StoreError

NOW = 1_800_000_000_000
DEPLOY = Event(NOW + 5, "deploy", (("deployment_id", "chat"),), "chat 1.4 \u2192 1.5", (("by", "ci"),))
GONE = Event(NOW, "target_gone", (("target_id", "chat/aggregated/0#1"),), "chat/aggregated/0 is gone")
FIRED = Event(NOW + 5, "alert_fired", (("alertname", "A"),), "A fires")


def test_events_are_read_in_the_order_of_time(store: Store) -> None:
    """Both ends belong to it; those of one instant come in the order in which they were appended."""
    store.append_events([DEPLOY, GONE])
    store.append_events([FIRED])
    assert store.read_events(0, NOW * 2) == [GONE, DEPLOY, FIRED]
    assert store.read_events(NOW + 1, NOW + 5) == [DEPLOY, FIRED]
    assert store.read_events(NOW, NOW + 4) == [GONE]
    assert store.read_events(0, NOW * 2, most=2) == [DEPLOY, FIRED]
    with Store(store.path, read_only=True) as reader:
        assert reader.read_events(0, NOW * 2) == [GONE, DEPLOY, FIRED]


def test_events_are_kept_as_long_as_increments(store: Store) -> None:
    store.append_events([DEPLOY, GONE])
    assert store.prune(NOW * 2, increments_before_ms=NOW) == 0
    assert store.prune(0, increments_before_ms=NOW + 1) == 1
    assert store.read_events(0, NOW * 2) == [DEPLOY]


def test_an_event_of_an_unknown_kind_is_refused(store: Store) -> None:
    with pytest.raises(RefusedError, match="unknown kind of event 'moved', supported: alert_fired, alert_resolved"):
        store.append_events([Event(NOW, cast("Any", "moved"), (), "")])


def test_a_damaged_event_is_an_error(store: Store) -> None:
    store.append_events([DEPLOY])
    store._connection.execute("UPDATE events SET body = '[1]'")
    with pytest.raises(StoreError, match="an event is damaged"):
        store.read_events(0, NOW * 2)
