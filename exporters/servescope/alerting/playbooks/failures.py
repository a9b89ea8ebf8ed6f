"""Playbooks of what fails: requests, replicas that hang or do not answer, and metrics that do not arrive."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.families import read_topics

_TOPICS: Final = read_topics("failures")

ERRORS: Final = _TOPICS["errors"]
HANG: Final = _TOPICS["hang"]
UNREACHABLE: Final = _TOPICS["unreachable"]
ABORTS: Final = _TOPICS["aborts"]
TELEMETRY: Final = _TOPICS["telemetry"]
