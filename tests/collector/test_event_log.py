"""What becomes an event: targets that come, go and change, and configured shares; once, also over a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from servescope.collector.recording.event_log import EventLog
from servescope.collector.targets.traffic_split import ConfiguredTraffic
from servescope.contract.identity import Identity
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus

NOW = 1_800_000_000_000
IDENTITY = Identity("llama", "chat", "v2", replica="0")
NEW = TargetStatus(IDENTITY.target_id, "http://r0", IDENTITY)
FAILED = replace(NEW, last_scrape_ms=NOW)
READ = replace(FAILED, source="vllm", versions="0.31", layer="engine")
LABELS = dict([*IDENTITY.labels(), ("target_id", IDENTITY.target_id)])


def split(ratio: float) -> list[ConfiguredTraffic]:
    return [ConfiguredTraffic("llama", "", "v1", 1 - ratio), ConfiguredTraffic("llama", "", "v2", ratio)]


def test_a_target_appears_changes_and_goes_once() -> None:
    """It is there with its first scrape; being identified is no change, another version is."""
    log = EventLog()
    assert log.note(NOW, [NEW], []) == []
    (came,) = log.note(NOW + 1, [FAILED], [])
    assert (came.time_ms, came.kind, dict(came.labels), came.text) == (
        NOW + 1, "target_appeared", LABELS, "chat/aggregated/0 appeared",
    )  # fmt: skip
    assert log.note(NOW + 2, [READ], []) == []
    assert log.note(NOW + 3, [READ], []) == []
    (changed,) = log.note(NOW + 4, [replace(READ, versions="0.32")], [])
    assert (changed.kind, changed.text) == ("target_changed", "chat/aggregated/0: version 0.31 \u2192 0.32")
    assert dict(changed.detail) == {"version": "0.32", "former_version": "0.31"}
    (gone,) = log.note(NOW + 5, [], [])
    assert (gone.kind, dict(gone.labels), gone.text) == ("target_gone", LABELS, "chat/aggregated/0 is gone")
    assert log.note(NOW + 6, [], []) == []


def test_shares_are_events_when_they_are_set_changed_and_removed() -> None:
    log = EventLog()
    noted = [
        [(dict(event.labels)["inference_stack"], dict(event.detail)) for event in log.note(NOW, [], shares)]
        for shares in (split(0.05), split(0.05), split(0.25), [])
    ]
    assert noted == [
        [("v1", {"ratio": "0.95"}), ("v2", {"ratio": "0.05"})],
        [],
        [("v1", {"former_ratio": "0.95", "ratio": "0.75"}), ("v2", {"former_ratio": "0.05", "ratio": "0.25"})],
        [("v1", {"former_ratio": "0.75"}), ("v2", {"former_ratio": "0.25"})],
    ]


def test_a_restart_is_no_event(tmp_path: Path) -> None:
    """What the store knows is known; what changed while the collector was down is an event."""
    with Store(tmp_path / "servescope.db") as store:
        store.set_target(READ)
        store.append_events(EventLog().note(NOW, [], split(0.05)))
        log = EventLog()
        log.recall(store, NOW)
        assert log.note(NOW + 1, [READ], split(0.05)) == []
        log.recall(store, NOW)
        kinds = [event.kind for event in log.note(NOW + 1, [replace(READ, versions="0.32")], split(0.25))]
        assert kinds == ["target_changed", "traffic_split", "traffic_split"]
