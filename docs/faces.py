"""The table of the emulator's faces in `docs/emulator-server.md`, from the source maps."""

from __future__ import annotations

from collections.abc import Iterator

from docs.markdown import codes, table
from servescope.contract.metrics import METRICS
from servescope.sources.inversion import newest_release
from servescope.sources.map_files import load_sources
from servescope.sources.maps import Source

_OF_ENGINES = ("kv_cache_eligible_tokens_total", "kv_cache_reused_tokens_total", "replica_start_time_seconds")
"""What an engine knows beside the metrics of engines."""


def render_faces() -> Iterator[str]:
    """A row for each source map that there is a face of."""
    yield from table(("`--metrics`", "whose names", "page of", "what is read from it"), _rows())


def _rows() -> Iterator[tuple[str, ...]]:
    for name, source in load_sources().items():
        if source.layer in ("frontend", "engine"):
            page = "the router" if source.layer == "frontend" else "each engine"
            yield f"`{name}`", f"{source.title}, {newest_release(source).versions}", page, _read(source)


def _read(source: Source) -> str:
    taken = [name for name, each in source.metrics.items() if each.alternatives]
    known = [name for name, each in METRICS.items() if each.component == "engine" or name in _OF_ENGINES]
    missing = [name for name in known if name in source.metrics and name not in taken]
    if source.layer == "frontend" or len(missing) > len(known) / 2:
        return codes(taken)
    return f"all that an engine knows but {codes(missing)}"
