"""Observability for LLM serving stacks: one metric contract from the inside of an engine to a cutover verdict.

    from servescope import AutoscalerInstruments, EngineInstruments, Identity, RouterInstruments, serve

Importing this package loads nothing but itself; each of these names loads its module when it is first used.
"""

from __future__ import annotations

__all__ = ["AutoscalerInstruments", "EngineInstruments", "Identity", "RouterInstruments", "__version__", "serve"]

TYPE_CHECKING = False  # as `typing` has it, without the cost of importing typing
if TYPE_CHECKING:
    from servescope.contract.identity import Identity
    from servescope.exposition.serving import serve
    from servescope.instruments.autoscaler import AutoscalerInstruments
    from servescope.instruments.engine import EngineInstruments
    from servescope.instruments.router import RouterInstruments

    __version__: str
else:
    _MODULES = {
        "AutoscalerInstruments": "servescope.instruments.autoscaler",
        "EngineInstruments": "servescope.instruments.engine",
        "Identity": "servescope.contract.identity",
        "RouterInstruments": "servescope.instruments.router",
        "serve": "servescope.exposition.serving",
    }

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            from importlib import import_module

            value = getattr(import_module(_MODULES[name]), name)
        elif name == "__version__":
            from importlib.metadata import version

            value = version("servescope")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
