"""Playbooks of what is between clients and engines: routers, cached prefixes, cache events, and KV transfers."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.families import read_topics

_TOPICS: Final = read_topics("routing")

PREFIX_CACHE: Final = _TOPICS["prefix_cache"]
CACHE_EVENTS: Final = _TOPICS["cache_events"]
ROUTER: Final = _TOPICS["router"]
KV_TRANSFER: Final = _TOPICS["kv_transfer"]
