"""The reference captures of real `/metrics` pages."""

from __future__ import annotations

from pathlib import Path


def read_captures(reference: Path) -> list[Path]:
    """The captures that are Prometheus text."""
    return [path for path in sorted((reference / "captures").glob("*.txt")) if "json" not in path.name]
