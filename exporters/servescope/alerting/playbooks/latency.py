"""Playbooks of what users wait for: first tokens, further tokens, the queue, and speculative decoding."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.families import read_topics

_TOPICS: Final = read_topics("latency")

FIRST_TOKEN: Final = _TOPICS["first_token"]
OUTPUT_TOKENS: Final = _TOPICS["output_tokens"]
QUEUE: Final = _TOPICS["queue"]
SPECULATION: Final = _TOPICS["speculation"]
