"""What the event log gets of targets and configured shares: what differs from the evaluation before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from servescope.collector.targets.traffic_split import ConfiguredTraffic
from servescope.contract.events import Event
from servescope.contract.identity import Identity
from servescope.contract.samples import Labels, make_labels
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus

_ABOUT: Final = ("source", "version", "layer")


class EventLog:
    """Compares targets and configured shares with those before, also with those before a restart. Not thread safe."""

    def __init__(self) -> None:
        self._targets: dict[str, tuple[Identity, Mapping[str, str]]] = {}
        self._shares: dict[Labels, str] = {}

    def recall(self, history: Store, now_ms: int) -> Event | None:
        """Begin with what the store knows; returns when the clock was set back last. Raises StoreError."""
        set_back = None
        self._targets = {each.target_id: _seen(each) for each in history.targets() if each.last_scrape_ms is not None}
        for event in history.read_events(0, now_ms):
            if event.kind == "traffic_split":
                self._shares[event.labels] = dict(event.detail).get("ratio", "")
            elif event.kind == "clock_set_back":
                set_back = event
        self._shares = {labels: share for labels, share in self._shares.items() if share}
        return set_back

    def note(
        self, at_ms: int, targets: Sequence[TargetStatus], traffic_split: Sequence[ConfiguredTraffic]
    ) -> list[Event]:
        """The events since the last call."""
        return [*self._note_targets(at_ms, targets), *self._note_shares(at_ms, traffic_split)]

    def _note_targets(self, at_ms: int, targets: Sequence[TargetStatus]) -> Iterator[Event]:
        former, self._targets = self._targets, {}
        listed = {each.target_id for each in targets}
        for target_id, (identity, _) in former.items():
            if target_id not in listed:
                yield Event(at_ms, "target_gone", _labels(identity), f"{_title(identity)} is gone")
        for status in targets:
            if status.last_scrape_ms is None:
                continue
            identity, about = self._targets[status.target_id] = _seen(status)
            if status.target_id not in former:
                yield Event(at_ms, "target_appeared", _labels(identity), f"{_title(identity)} appeared")
                continue
            before = former[status.target_id][1]
            changed = [name for name in _ABOUT if about[name] != before[name]]
            # A target that had not been identified yet did not change.
            if changed and before["source"]:
                said = ", ".join(f"{name} {before[name] or 'none'} → {about[name] or 'none'}" for name in changed)
                detail = {name: about[name] for name in changed}
                detail |= {f"former_{name}": before[name] for name in changed}
                text = f"{_title(identity)}: {said}"
                yield Event(at_ms, "target_changed", _labels(identity), text, make_labels(detail))

    def _note_shares(self, at_ms: int, traffic_split: Sequence[ConfiguredTraffic]) -> Iterator[Event]:
        former, self._shares = self._shares, {each.labels(): f"{each.ratio:g}" for each in traffic_split}
        for labels in {**former, **self._shares}:
            before, now = former.get(labels, ""), self._shares.get(labels, "")
            if before != now:
                stack = dict(labels).get("inference_stack", "")
                text = f"configured share of {stack}: {before or 'none'} → {now or 'none'}"
                detail = make_labels({"former_ratio": before, "ratio": now})
                yield Event(at_ms, "traffic_split", labels, text, detail)


def _seen(status: TargetStatus) -> tuple[Identity, Mapping[str, str]]:
    return status.identity, {"source": status.source, "version": status.versions, "layer": status.layer}


def _labels(identity: Identity) -> Labels:
    return make_labels((*identity.labels(), ("target_id", identity.target_id)))


def _title(identity: Identity) -> str:
    return "/".join(part for part in (identity.deployment_id, identity.role, identity.replica) if part)
