"""Pages that no engine should answer, as `servescope inspect` reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from servescope.cli import main
from servescope.sources import identification, map_files
from servescope.sources.identification import identify
from servescope.sources.map_files import load_sources
from servescope.sources.parse import parse_exposition
from tests.sources.support.source_maps import MINIMAL
from tests.support.inspecting import FIRST, inspect_as_json, rows_by_name

SGLANG = "sglang:num_running_reqs 2\nsglang:num_queue_reqs 1\nsglang:generation_tokens_total 7\n"
KSERVE = (
    'request_predict_seconds_bucket{model_name="m",le="+Inf"} 3\n'
    'request_predict_seconds_sum{model_name="m"} 1\nrequest_predict_seconds_count{model_name="m"} 3\n'
)


@pytest.mark.parametrize("page", [FIRST + SGLANG, SGLANG + FIRST], ids=["first", "last"])
def test_of_two_engines_on_one_page_the_one_with_more_names_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, page: str
) -> None:
    """In whatever order; a note names the other and how to read it, which works."""
    (tmp_path / "x.txt").write_text(page)
    document = inspect_as_json(capsys, str(tmp_path / "x.txt"))
    other = inspect_as_json(capsys, str(tmp_path / "x.txt"), "--source", "sglang")

    assert (document["source"], rows_by_name(document)["output_tokens_total"]["value"]) == ("vllm", 100)
    note = document["notes"][0]
    assert "also those of 'sglang' (SGLang)" in note
    assert "with source = 'sglang'" in note
    assert (other["source"], rows_by_name(other)["output_tokens_total"]["value"]) == ("sglang", 7)


def test_a_page_of_one_engine_is_of_no_other(captures: Path) -> None:
    """No map claims what is another's."""
    pages = [path for path in sorted(captures.glob("*.txt")) if "json" not in path.name]
    claimed = {path.name: identify(parse_exposition(path.read_bytes())).others for path in pages}

    assert {name: others for name, others in claimed.items() if others} == {}
    assert len(pages) > 10


def test_a_map_that_is_over_another_is_read_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few of its names are exposed; and every map that one is over is there."""
    assert {name for source in load_sources().values() for name in source.signs.over} <= set(load_sources())

    few = MINIMAL.replace('all = ["x"]', 'all = ["few"]\nover = ["many"]')
    many = MINIMAL + '[metrics.preemptions_total]\ntake = [{ native = "y" }]\n'
    maps = {name: map_files.read_source(f"{name}.toml", text) for name, text in (("few", few), ("many", many))}
    monkeypatch.setattr(identification, "load_sources", lambda: maps)
    found = identify(parse_exposition("x 1\ny 1\nfew 1\n"))

    assert (found.source, found.others) == (maps["few"], ())


def test_a_program_in_the_same_registry_changes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """KServe's histograms, and AIBrix's copies of an engine's series, beside those of the engine."""
    copies = "".join(line for line in FIRST.splitlines(keepends=True) if "num_requests" in line)
    (tmp_path / "alone.txt").write_text(FIRST)
    (tmp_path / "beside.txt").write_text(FIRST + KSERVE + copies + "aibrix:queue_size 0\naibrix:cache_hit_rate NaN\n")
    alone, beside = (inspect_as_json(capsys, str(tmp_path / f"{name}.txt")) for name in ("alone", "beside"))

    assert beside["metrics"] == alone["metrics"]
    assert len(beside["notes"]) == 2 + len(alone["notes"])
    assert any("repeat a series" in note for note in beside["notes"])


def test_what_an_engine_says_of_its_version_is_not_believed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its names decide, and of a renamed series that is exposed twice the newer one is read."""
    lies = 'vllm:build_info{version="0.32.0"} 1\npython_info{version="9.9"} 1\n'
    renamed = 'vllm:time_per_output_token_seconds_sum{engine="0"} 9\nvllm:time_per_output_token_seconds_count 9\n'
    (tmp_path / "x.txt").write_text(FIRST + lies + renamed)
    document = inspect_as_json(capsys, str(tmp_path / "x.txt"))

    assert "0.32" not in document["versions"]
    assert rows_by_name(document)["inter_token_latency_seconds"]["native"] == "vllm:inter_token_latency_seconds"


@pytest.mark.parametrize(
    ("cut", "note"),
    [
        ('vllm:prompt_tokens_total{engine="0"} 1234', "the last line has no end, so the answer may be cut"),
        (
            'vllm:e2e_request_latency_seconds_bucket{engine="0",le="1.0"} 3\n',
            "the answer ends with a bucket of 'vllm:e2e_request_latency_seconds', of which it has no sum and no count",
        ),
        ('vllm:e2e_request_latency_seconds_sum 3\nvllm:e2e_request_latency_seconds_bucket{le="1.0"} 3\n', None),
        ("# EOF", None),
    ],
)
def test_half_a_page_is_read_with_a_note(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cut: str, note: str | None
) -> None:
    """A number that lost its last digits is still a number, and a line that ends a body may not be the last one."""
    (tmp_path / "x.txt").write_text(FIRST + cut)
    document = inspect_as_json(capsys, str(tmp_path / "x.txt"))

    cut_notes = [each for each in document["notes"] if "may be cut" in each]
    assert cut_notes == [each for each in document["notes"] if note and each.startswith(note)]
    assert bool(cut_notes) == bool(note)


def test_a_page_that_ends_within_a_number_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The error says that it was cut there."""
    (tmp_path / "x.txt").write_text(FIRST + 'vllm:prompt_tokens_total{engine="0"} 1.79e+')

    assert main(["inspect", str(tmp_path / "x.txt")]) == 2
    assert "x.txt: the text ended within its last line; line 11: '1.79e+' is not a number" in capsys.readouterr().err


def test_a_flood_of_series_names_its_family(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Not the sample that happened to be the first too many."""
    flood = "".join(f'vllm:debug{{request="{number}"}} 1\n' for number in range(60))
    (tmp_path / "x.txt").write_text(flood + FIRST)

    assert main(["inspect", str(tmp_path / "x.txt"), "--max-series", "64"]) == 2
    error = capsys.readouterr().err
    assert "more samples than the limit of 64 (max_series), 60 of these are of 'vllm:debug'" in error


def test_a_map_that_is_wrong_stops_the_program_with_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps are part of the package: without one of them an engine would silently be unknown."""
    (tmp_path / "turbine.toml").write_text('titel = "Turbine"\n')
    monkeypatch.setattr(map_files, "files", lambda _: tmp_path)
    load_sources.cache_clear()
    try:
        assert main(["inspect", str(tmp_path / "x.txt")]) == 2
        assert "turbine.toml: unknown key 'titel'; did you mean 'title'?" in capsys.readouterr().err
    finally:
        monkeypatch.undo()
        load_sources.cache_clear()
