"""A thousand configurations translated, beside what PyYAML needs only to read them."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import yaml

from servescope.migration.command import configure as configure_command
from servescope.migration.files import migrate_file, read_options
from servescope.migration.finding import Found, find_configs
from servescope.migration.masked_report import mask_report
from servescope.migration.report import diff, to_json
from tests.support.configurations import Style, draw_configuration

_FILES = 1000
_MOST_SECONDS = 10.0


def run(_: argparse.Namespace) -> None:
    """Print the processor time of reading, of the whole report, and of writing every file."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(_FILES):
            random = Random(number)
            path = root / str(number) / "config.yaml"
            path.parent.mkdir()
            path.write_text(Style(random).write(draw_configuration(random)), encoding="utf-8")
        paths = [each.path for each in find_configs([root]) if isinstance(each, Found)]
        print(
            f"\n## {_FILES} configurations of {sum(path.stat().st_size for path in paths) // _FILES} bytes on average\n"
        )
        read = _measure("yaml.safe_load", lambda: [yaml.safe_load(path.read_bytes()) for path in paths])
        reported = _measure("servescope migrate --format json", lambda: _migrate(root))
        _measure("servescope migrate --write", lambda: _migrate(root, "--write"))
        print(
            f"\na report takes {reported / read:.1f} times what reading takes; wanted are less than {_MOST_SECONDS:g} s"
        )


def _migrate(root: Path, *words: str) -> None:
    parser = argparse.ArgumentParser()
    configure_command(parser)
    arguments = parser.parse_args([str(root), *words])
    options = read_options(arguments)
    found = [each for each in find_configs(arguments.configs) if isinstance(each, Found)]
    reports = [mask_report(migrate_file(each.path, options, each.folder)) for each in found]
    to_json(reports)
    changed = sum(bool(diff(each)) for each in reports)
    if changed != _FILES:
        raise RuntimeError(f"{changed} of {_FILES} files were translated")


def _measure(name: str, act: Callable[[], object]) -> float:
    started = time.process_time()
    act()
    seconds = time.process_time() - started
    print(f"{name:<36} {seconds:6.2f} s")
    return seconds
