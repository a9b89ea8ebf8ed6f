"""Pages of engines: those in the tree, and the reference captures of real ones, which have the same names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

OF_EACH_ERA: Final = (
    "vllm-0.32.0-1",
    "vllm-0.13era-1",
    "sglang-0.5.7era-1",
    "sglang-0.4.x-1",
    "dynamo-frontend-1.6.1-1",
    "dynamo-frontend-0.8dev-1",
    "dynamo-mocker-1.6.1-1",
    "trtllm-1.2rc-1",
    "llamacpp-2026-1",
)
"""One of each engine or router and each era of its names; each is mapped by a source map of ours."""


def read_captures(captures: Path) -> list[Path]:
    """The pages of a folder that are Prometheus text."""
    return [path for path in sorted(captures.glob("*.txt")) if "json" not in path.name]
