"""The translation of captures and of pages, as tests read it."""

from __future__ import annotations

from pathlib import Path

from servescope.contract.identity import IDENTITY_LABELS, Identity
from servescope.contract.samples import format_series
from servescope.sources.identification import identify
from servescope.sources.parse import Exposition, parse_exposition
from servescope.sources.translate import Translation, translate

IDENTITY = Identity("tiny", "chat", "vllm-0.32", replica="a:1")


def read_capture(captures: Path, name: str) -> Exposition:
    return parse_exposition((captures / f"{name}.txt").read_text())


def translate_identified(exposition: Exposition, identity: Identity = IDENTITY) -> Translation:
    source = identify(exposition).source
    assert source is not None
    return translate(exposition, source, identity)


def show(translation: Translation, prefix: str = "") -> dict[str, float]:
    """The samples as text without the identity labels, those that begin so."""
    shown = {}
    for sample in translation.samples:
        own = tuple(pair for pair in sample.labels if pair[0] not in IDENTITY_LABELS)
        if sample.name.startswith(prefix):
            shown[format_series(sample.name, own)] = sample.value
    return shown


def total(translation: Translation, name: str, **labels: str) -> float:
    values = [
        sample.value
        for sample in translation.samples
        if sample.name == name and labels.items() <= dict(sample.labels).items()
    ]
    assert values, name
    return sum(values)
