"""The pages in `tests/pages`: each source map reads one, and written ones are what the maps say."""

from __future__ import annotations

from pathlib import Path

import pytest

from servescope.contract.metrics import METRICS
from servescope.sources.identification import identify
from servescope.sources.map_files import load_sources
from servescope.sources.maps import MetricMap
from servescope.sources.parse import parse_exposition
from tests.conftest import PAGES
from tests.pages.writing import UNMAPPED, WRITTEN, Written, texts
from tests.sources.support.translations import IDENTITY, translate_identified
from tests.support.captures import read_captures

MAPPED = [path for path in read_captures(PAGES) if path.stem not in UNMAPPED]


@pytest.mark.parametrize("name", [source.name for source in load_sources().values() if source.layer != "process"])
def test_a_source_map_has_a_page(name: str) -> None:
    """A map is added with a page of its engine; our own instruments make theirs in the tests."""
    read = [identify(parse_exposition(path.read_text("utf-8"))).source for path in MAPPED]
    assert name in {source.name for source in read if source is not None}


@pytest.mark.parametrize("path", MAPPED, ids=lambda path: path.stem)
def test_a_page_is_read_by_its_map(path: Path) -> None:
    """Something of it is supplied, and each metric is, or has a reason."""
    found = translate_identified(parse_exposition(path.read_text("utf-8")), IDENTITY)
    assert found.samples
    assert set(found.coverage) == set(METRICS)
    assert [name for name, each in found.coverage.items() if each.status != "present" and not each.reason] == []


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.txt")), ids=lambda path: path.stem)
def test_a_page_says_where_it_comes_from(path: Path) -> None:
    """A written page is not taken for a captured one."""
    assert path.read_text("utf-8").startswith(("# Written by ", "# Captured from "))


@pytest.mark.parametrize("name", texts())
def test_written_pages_are_what_the_maps_say(name: str) -> None:
    """They follow a change of a map by `make generate`."""
    assert (PAGES / f"{name}.txt").read_text("utf-8") == texts()[name], "run `python -m tests.pages`"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_a_written_page_has_everything_that_its_map_takes(page: Written) -> None:
    """In the versions that it is written for."""
    found = identify(exposition := parse_exposition(page.text()))
    assert found.source is not None
    assert (found.source.name, found.versions) == (page.source, page.versions)
    supplied = translate_identified(exposition).coverage
    missing = [name for name, each in found.source.metrics.items() if each.alternatives and not supplied[name].native]
    assert [name for name in missing if not _is_without(found.source.metrics[name], page)] == []


def _is_without(metric: MetricMap, page: Written) -> bool:
    """Whether the versions have no series for a metric."""
    read = [{*each.requires, *(term.native for term in each.terms)} for each in metric.alternatives]
    return all(any(native.startswith(page.without) for native in natives) for natives in read if page.without)
