"""Each native family is read or ignored by name, and each name in a map is on a page of its engine, or has a gate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import servescope.sources
from servescope.contract.identity import Identity
from servescope.errors import ConfigurationError
from servescope.exposition.rendering import render
from servescope.instruments.autoscaler import AutoscalerInstruments
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.router import RouterInstruments
from servescope.sources.families import sort_families
from servescope.sources.identification import identify
from servescope.sources.map_files import load_sources, read_source
from servescope.sources.maps import Source
from servescope.sources.parse import Exposition, parse_exposition
from tests.conftest import PAGES, REFERENCE
from tests.pages.writing import UNMAPPED
from tests.sources.support.source_maps import MINIMAL
from tests.support.captures import read_captures

ALL = [path for folder in (PAGES, REFERENCE) for path in read_captures(folder) if path.stem not in UNMAPPED]
FOLDER = Path(servescope.sources.__file__).parent
CAPTURED = [path for path in ALL if not path.read_text("utf-8").startswith("# Written by ")]


def read_page(path: Path) -> Exposition:
    return parse_exposition(path.read_text("utf-8"))


def unknown_families(text: str, source: Source) -> tuple[str, ...]:
    return sort_families(parse_exposition(text), source).unknown


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_family_of_a_page_is_read_or_ignored(path: Path) -> None:
    """A family that its map neither reads nor ignores is named: read it, or write down why not."""
    source = identify(exposition := read_page(path)).source
    if source is not None:
        assert sort_families(exposition, source).unknown == ()


def test_every_family_of_our_own_instruments_is_read_or_ignored() -> None:
    """Their page is made here, as no program has to be captured."""
    page = render(
        EngineInstruments(Identity("llama-70b", "chat-v2", "v2")),
        RouterInstruments(Identity("llama-70b", "chat-v2", "v2", role="router")),
        AutoscalerInstruments(Identity("llama-70b", "chat-v2", "v2", role="autoscaler")),
    )

    assert unknown_families(page.decode(), load_sources()["servescope"]) == ()


def names_without_a_gate(source: Source) -> Iterator[str]:
    """The names that a map reads, or ignores one by one, and that every page of its releases has."""
    read = [name for name in source.read_names() if not any(group.has(name) for group in source.gated)]
    yield from sorted(read)
    for group in source.ignored:
        if group.gate is None:
            yield from (name for name in group.names if not name.endswith("*"))


def is_of_a_file(source: Source) -> bool:
    return (FOLDER / f"{source.name}.toml").is_file()


def test_every_name_of_a_map_is_on_a_page_or_has_a_gate() -> None:
    """A name that no captured page shows is wrong, or the map says when it is exposed: `gated`, or `gate`.

    So it is of each engine of which a page was captured; the reference has some that the tree has not. The names of a
    form are those of its map.
    """
    pages: dict[str, list[Exposition]] = {}
    for page in map(read_page, CAPTURED):
        if (found := identify(page).source) is not None and is_of_a_file(found):
            pages.setdefault(found.name, []).append(page)

    assert pages.keys() >= {"llamacpp", "litellm"}
    assert {
        source: [
            name
            for name in names_without_a_gate(load_sources()[source])
            if not any(page.has(name) for page in captured)
        ]
        for source, captured in pages.items()
    } == {name: [] for name in pages}


@pytest.mark.parametrize("source", load_sources().values(), ids=lambda source: source.name)
def test_a_gate_is_of_a_name_that_the_map_reads(source: Source) -> None:
    """One of a name that it reads no more is stale."""
    for group in source.gated:
        for name in group.names:
            assert any(group.has(each) for each in source.read_names() if each.startswith(name.rstrip("*"))), name


def test_a_family_is_read_in_its_parts_and_in_either_spelling() -> None:
    """A histogram is one family, and is read where the sum of it is; what merely ends like a part is its own."""
    source = read_source(
        "x.toml",
        MINIMAL + "[metrics.decode_seconds_total]\ntake = [{ native = 'x:decode_sum' }]\n"
        "[[ignored]]\nreason = 'r'\nnames = ['x:age_count', 'x:inner_*']\n",
    )
    page = "x_decode_bucket 1\nx_decode_sum 1\nx_decode_count 1\nx_decode_created 1\nx_age_count 1\nx_inner_a 1\n"

    assert unknown_families(page, source) == ()
    assert unknown_families(page + "x_outer_bucket 1\nx_outer_sum 1\nx_outer_count 1\n", source) == ("x_outer",)


def test_a_part_of_a_histogram_is_ignored_as_the_whole() -> None:
    """Lines that somebody searched for have no types: a count alone is of the family that the map ignores."""
    source = load_sources()["vllm"]
    assert unknown_families("vllm:request_queue_time_seconds_count 3\n", source) == ()
    assert unknown_families("vllm:request_queue_times_count 3\n", source) == ("vllm:request_queue_times_count",)


def test_what_every_process_exposes_is_in_no_map() -> None:
    """It is ignored for all of them."""
    source = read_source("x.toml", MINIMAL)
    text = "python_info 1\nprocess_open_fds 1\ngo_threads 1\npromhttp_metric_handler_requests_total 1\ny 1\n"
    found = sort_families(parse_exposition(text), source)

    assert found.unknown == ("y",)
    assert set(found.ignored.values()) == {"of the process and its language, whatever program it is"}


@pytest.mark.parametrize(
    ("addition", "message"),
    [
        ("[[ignored]]\nreason = 'r'\nnames = ['x']", r"ignored: the map reads 'x' itself"),
        ("[[ignored]]\nreason = 'r'\nnames = ['a*b']", r"names: \['a\*b'\] is wrong, expected names of families"),
        ("[[ignored]]\nnames = ['a']", r"ignored\[0\]: 'reason' is missing"),
        ("[[gated]]\nreason = 'r'\nnames = []", r"gated\[0\]\.names: \[\] is wrong"),
    ],
)
def test_a_wrong_group_is_refused(addition: str, message: str) -> None:
    """With its place and what was expected."""
    with pytest.raises(ConfigurationError, match=message):
        read_source("x.toml", MINIMAL + addition)
