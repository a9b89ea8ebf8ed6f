"""Run the named benchmarks, or all."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

import benchmarks
from servescope.errors import suggest
from servescope.settings.command_line import CommandParser


def main() -> int:
    """Print each benchmark's ratios; 0 when all ran."""
    names = sorted(
        module.name for module in pkgutil.iter_modules([str(Path(benchmarks.__file__).parent)]) if module.name[0] != "_"
    )
    parser = CommandParser(prog="python -m benchmarks", description=benchmarks.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(names)}; all by default")
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}
    for module in modules.values():
        if hasattr(module, "configure"):
            module.configure(parser)
    arguments = parser.parse_args()
    chosen = arguments.names or names
    for name in chosen:
        if name not in names:
            parser.error(f"unknown benchmark {name!r}; {suggest(name, names) or 'known: ' + ', '.join(names)}")
    for name in chosen:
        modules[name].run(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
