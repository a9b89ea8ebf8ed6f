"""Observability for LLM serving stacks: one metric contract from the inside of an engine to a cutover verdict.

Importing this package loads nothing but itself; each part is imported by its own name, for example
`from servescope.instruments.engine import EngineInstruments`.
"""

from __future__ import annotations

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("servescope")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
