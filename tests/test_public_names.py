"""Public names: what the docs and examples import, each by one path, which its module's `__all__` lists."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import servescope
from tests.conftest import ROOT

PACKAGE = ROOT / "exporters" / "servescope"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "exporters" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
REFERENCES = [*PAGES, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "adr").glob("*.md"))]

# A name such as `servescope.exposition.rendering.render` within a sentence.
_REFERENCE = re.compile(r"`(servescope(?:\.[a-z_]+)+)\.([A-Za-z_]+)(?:\([^`]*\))?`")


def code_blocks() -> Iterator[tuple[str, str]]:
    """Every Python program that a page or an example shows, with where it is."""
    for page in PAGES:
        for block in re.findall(r"(?ms)^```python\n(.*?)^```", page.read_text(encoding="utf-8")):
            yield page.name, block
    for example in EXAMPLES:
        yield example.name, example.read_text(encoding="utf-8")


def imports(code: str) -> Iterator[tuple[str, str]]:
    """The module and the name of every import of ours."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "servescope":
            yield from ((str(node.module), alias.name) for alias in node.names)


IMPORTED = {name: where for where, code in code_blocks() for name in imports(code)}
REFERRED = {
    reference: page.name
    for page in REFERENCES
    for reference in _REFERENCE.findall(page.read_text(encoding="utf-8"))
    if (PACKAGE.parent / Path(*reference[0].split("."))).with_suffix(".py").is_file()
}
PUBLIC_MODULES = sorted({module for module, _ in IMPORTED})


@pytest.mark.parametrize(("module", "name"), sorted({**REFERRED, **IMPORTED}))
def test_a_documented_name_is_in_its_modules_all(module: str, name: str) -> None:
    """What a page or an example imports, or refers to by its path, is public there."""
    where = {**REFERRED, **IMPORTED}[module, name]
    loaded = importlib.import_module(module)

    assert hasattr(loaded, name), f"{where}: {module}.{name}"
    assert module not in PUBLIC_MODULES or name in loaded.__all__, f"{where}: {module}.{name}"


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_of_a_module_is_documented(module: str) -> None:
    """`__all__` lists what docs and examples use of the module, and nothing beside it."""
    documented = {name for place, name in {**REFERRED, **IMPORTED} if place == module}

    assert documented == set(importlib.import_module(module).__all__) - {"__version__"}


def test_a_public_name_has_one_path() -> None:
    """No two modules list the same name."""
    paths: dict[str, list[str]] = {}
    for module in PUBLIC_MODULES:
        for name in importlib.import_module(module).__all__:
            paths.setdefault(name, []).append(module)

    assert {name: modules for name, modules in paths.items() if len(modules) > 1} == {}


def test_a_room_re_exports_nothing() -> None:
    """The `__init__` of a room is its docstring: a name is imported from the module that defines it."""
    rooms = [path for path in sorted(PACKAGE.rglob("__init__.py")) if path.parent != PACKAGE]
    wrong = [
        str(path.relative_to(PACKAGE))
        for path in rooms
        if any(not isinstance(node, ast.Expr) for node in ast.parse(path.read_text(encoding="utf-8")).body)
    ]

    assert wrong == []


def test_one_line_imports_what_an_embedder_needs() -> None:
    """The names are those of the modules that define them, and `dir` shows them before they are loaded."""
    from servescope import AutoscalerInstruments, EngineInstruments, Identity, RouterInstruments, serve

    defined: list[Any] = [AutoscalerInstruments, EngineInstruments, Identity, RouterInstruments, serve]
    assert {one.__name__ for one in defined} == set(servescope.__all__) - {"__version__"}
    assert all(one.__module__.startswith("servescope.") for one in defined)
    assert set(servescope.__all__) <= set(dir(servescope))
    with pytest.raises(AttributeError, match="module 'servescope' has no attribute 'Engine'"):
        servescope.Engine  # type: ignore[attr-defined]  # noqa: B018 - it raises
