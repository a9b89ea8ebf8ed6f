"""What targets were found to be, in the log: the first few one by one, and the others by their source."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from servescope.collector.scrapes.target_state import TargetState
from servescope.contract.identity import SEVERAL_MODELS, UNKNOWN_MODEL
from servescope.sources.map_files import load_sources

_logger = logging.getLogger(__name__)

MOST_NAMED: Final = 10
"""So many targets have a line of their own; thousands would hide everything else."""


class Findings:
    """Logs each target once, when it is read for the first time. Not thread safe."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._rest: Counter[str] = Counter()

    def note(self, watched: TargetState) -> None:
        """Log what a target is that was read just now, or count it for the next summary."""
        target_id, status = watched.target.target_id, watched.status
        if not status.healthy or watched.unnamed or target_id in self._known:
            return
        self._known.add(target_id)
        versions = f" ({status.versions})" if status.versions else ""
        what = f"{load_sources()[status.source].title}{versions}"
        if len(self._known) > MOST_NAMED:
            self._rest[what] += 1
            return
        model = watched.target.identity.model_name
        named = {UNKNOWN_MODEL: "its pages name no model", SEVERAL_MODELS: "several models"}.get(
            model, f"model {model}"
        )
        place = f"deployment {watched.target.identity.deployment_id}"
        _logger.info("found %s at %s, %s, %s", what, watched.target.url, named, place)

    def log_rest(self) -> None:
        """Log how many more were read since the last time, by what they are."""
        if self._rest:
            listed = "; ".join(f"{count} × {what}" for what, count in self._rest.most_common())
            _logger.info("found %d more targets, which /api/v1/targets lists: %s", self._rest.total(), listed)
            self._rest.clear()
