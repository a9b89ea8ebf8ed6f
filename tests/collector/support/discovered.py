"""A configuration and the list of a discovery as files, as tests of the collector write them."""

from __future__ import annotations

from pathlib import Path

from servescope.collector.config import Configuration, read_configuration
from servescope.collector.discovery.targets import Discovery


def configure(folder: Path, text: str) -> Configuration:
    """The configuration of a `servescope.toml` with this text."""
    path = folder / "servescope.toml"
    path.write_text(text, encoding="utf-8")
    return read_configuration(path)


def urls(discovery: Discovery) -> list[str]:
    """The URLs of the targets, in their order."""
    return [target.url for target in discovery.targets]
