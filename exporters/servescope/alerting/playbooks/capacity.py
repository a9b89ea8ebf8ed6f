"""Playbooks of memory and replicas: the KV cache, GPUs, starts, and autoscalers."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.families import read_topics

_TOPICS: Final = read_topics("capacity")

KV_MEMORY: Final = _TOPICS["kv_memory"]
GPU: Final = _TOPICS["gpu"]
START: Final = _TOPICS["start"]
SCALING: Final = _TOPICS["scaling"]
