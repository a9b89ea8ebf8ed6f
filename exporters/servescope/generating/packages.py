"""Imports the packages that write the files, from wherever they are."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from servescope.errors import ServescopeError, require_extra

_PACKAGES = ("dashboards", "alerts")  # the second imports the first


def load(name: str) -> ModuleType:
    """The module `<name>.__main__` of `alerts` or `dashboards`: of the installed wheel, else of the checkout.

    Raises UsageError without the extra `generate`, ServescopeError where the package is in neither place.
    """
    require_extra("generate", "grafanalib", "yaml")
    for each in _PACKAGES:
        register(each, _find(each))
    return importlib.import_module(f"{name}.__main__")


def register(name: str, folder: Path) -> None:
    """Have `import <name>` find our package in a folder, whatever else has that name, and whatever the folder's is."""
    known = sys.modules.get(name)
    if known is not None and known.__spec__ is not None and known.__spec__.origin == str(folder / "__init__.py"):
        return
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ServescopeError(f"no package in {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _find(name: str) -> Path:
    package = Path(__file__).resolve().parents[1]
    places = (package / "_generators" / name, package.parents[1] / name)
    for place in places:
        if (place / "__main__.py").is_file():
            return place
    raise ServescopeError(f"{name!r} is in neither {places[0]} nor {places[1]}; install the wheel again")
