from __future__ import annotations

from pathlib import Path

import pytest

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, PROCESS_RATIOS
from servescope.errors import ConfigurationError
from servescope.sources.identification import identify
from servescope.sources.map_files import load_sources, read_source
from servescope.sources.maps import Source
from servescope.sources.parse import parse_exposition
from servescope.sources.translate import translate
from tests.sources.support.source_maps import MINIMAL


@pytest.mark.parametrize("source", load_sources().values(), ids=lambda source: source.name)
def test_every_map_covers_the_contract(source: Source) -> None:
    """A metric is mapped, or the map says why not; what is not simply present has a reason, each label an answer."""
    # Only gauges of one process's ratios are left out.
    assert set(source.metrics) == set(METRICS) - set(PROCESS_RATIOS)
    for name, metric_map in source.metrics.items():
        if not metric_map.alternatives:
            assert metric_map.status, name
            assert metric_map.reason, name
        for alternative in metric_map.alternatives:
            assert alternative.status == "present" or alternative.reason, name
            for label, rules in (pair for term in alternative.terms for pair in term.labels):
                # The last rule takes whatever a newer release may expose.
                assert rules[-1].when == (), (name, label)


def test_no_map_leaves_to_a_process_what_that_process_does_not_expose() -> None:
    """A mock worker says of a router's metric that the Dynamo frontend supplies it only where the frontend does."""
    frontend, mocker = load_sources()["dynamo-frontend"], load_sources()["dynamo-mocker"]
    left = {
        name
        for name, each in mocker.metrics.items()
        if each.status == "elsewhere" and "Dynamo frontend" in (each.reason or "")
    }
    assert "router_queued_requests" in left
    assert {name for name in left if frontend.metrics[name].status == "impossible"} == set()


def test_a_map_without_a_metric_is_refused() -> None:
    """The error for a map without a metric names it, so that a new metric cannot be forgotten."""
    without_engine = MINIMAL.replace('[default.engine]\nstatus = "impossible"\nreason = "no"\n', "")
    with pytest.raises(ConfigurationError, match=r"x\.toml: metrics\.tps_per_request is missing"):
        read_source("x.toml", without_engine)


def test_a_minimal_map_is_read() -> None:
    """Defaults by component are enough where an engine supplies nothing."""
    assert len(read_source("x.toml", MINIMAL).metrics) == len(METRICS) - len(PROCESS_RATIOS)


@pytest.mark.parametrize(
    ("addition", "message"),
    [
        ("[metrics.tps]\nstatus = 'impossible'\nreason = 'r'", r"unknown key 'metrics\.tps'; known: tps_per_request"),
        ("[metrics.preemptions_total]\ntake = [{ nativ = 'x' }]", r"take\[0\]\.nativ'; did you mean 'native'\?"),
        ("[metrics.preemptions_total]\ntake = [{ native = ['x'] }]", r"native: \['x'\] is wrong, expected a string"),
        ("[metrics.preemptions_total", "x.toml: not TOML"),
        ("[metrics.preemptions_total]\ntake = []", r"take: \[\] is wrong, expected one alternative or more"),
        ("[metrics.preemptions_total]\ntake = [{ from = [] }]", r"take\[0\]\.from: \[\] is wrong, expected one term"),
        (
            "[metrics.preemptions_total]\ntake = [{ native = 'x', status = 'derived' }]",
            r"take\[0\]\.reason is missing, expected why it is derived",
        ),
        (
            "[metrics.requests_total]\nzero = { outcome = ['ok'] }\ntake = [{ native = 'x' }]",
            r"requests_total\.absent is missing, expected 'zero'",
        ),
        (
            "[metrics.requests_total]\nabsent = 'zero'\ntake = [{ native = 'x', set = { outcome = [{ is = 'ok' }] } }]",
            r"requests_total\.zero is missing, expected the values of outcome that are 0",
        ),
        (
            "[metrics.request_duration_seconds]\nedges = [2, 1]\ntake = [{ native = 'x' }]",
            r"edges: \[2, 1\] is wrong, expected numbers of which each is above the one before",
        ),
        ("[first_use]\nlabels = ['model']", r"first_use\.like is missing, expected the series that has these"),
        ("[[setup]]\nfact = 'page'\nnative = 'x'", r"setup\[0\]\.fact: 'page' is wrong, expected one of block_tokens"),
    ],
)
def test_a_wrong_map_names_file_key_value_and_what_was_expected(addition: str, message: str) -> None:
    """Each mistake is refused with its place."""
    with pytest.raises(ConfigurationError, match=message) as error:
        read_source("x.toml", MINIMAL + addition)
    assert str(error.value).startswith("x.toml: ")


def test_a_release_has_the_evidence_of_its_map_or_its_own() -> None:
    """A map has to say how it is known to be right; a release that differs says so itself."""
    with pytest.raises(ConfigurationError, match=r"evidence is missing, expected one of run, driven, read"):
        read_source("x.toml", MINIMAL.replace('evidence = "run"', ""))
    source = read_source("x.toml", MINIMAL + "[[versions]]\nis = '2'\n[[versions]]\nis = '1'\nevidence = 'read'\n")

    assert [source.evidence_of(release) for release in ("2", "1", "")] == ["run", "read", "run"]


def test_a_histogram_whose_sum_is_wrong_has_none() -> None:
    """Its count and buckets are read, its sum is not, and the reason goes with it."""
    metric = "[metrics.request_duration_seconds]\nno_sum = 'of middles'\ntake = [{ native = 'd' }]\n"
    text = 'x 1\n# TYPE d histogram\nd_bucket{le="1"} 2\nd_bucket{le="+Inf"} 2\nd_sum 1\nd_count 2\n'
    found = translate(parse_exposition(text), read_source("x.toml", MINIMAL + metric), Identity("m", "d", "v1"))
    assert {sample.name for sample in found.samples} == {
        "request_duration_seconds_bucket", "request_duration_seconds_count",
    }  # fmt: skip
    assert found.coverage["request_duration_seconds"].explain() == "of middles"


def test_a_map_must_say_how_it_is_identified() -> None:
    """A map that matches every exposition is refused."""
    with pytest.raises(ConfigurationError, match=r"identify: expected names that identify the source"):
        read_source("x.toml", MINIMAL.replace('all = ["x"]', ""))


@pytest.mark.parametrize(
    ("capture", "source", "versions"),
    [
        ("vllm-0.32.0-1", "vllm", "newer than 0.13, read up to 0.32"),
        ("vllm-0.13era-1", "vllm", "about 0.13"),
        ("vllm-0.5.0-1", "vllm", "0.5 to 0.9 (V0 engine)"),
        ("sglang-0.5.7era-1", "sglang", "0.5.7 to about 0.5.9"),
        ("sglang-0.4.x-1", "sglang", "before 0.4.5"),
        ("dynamo-frontend-1.6.1-1", "dynamo-frontend", "1.6"),
        ("dynamo-frontend-0.8dev-1", "dynamo-frontend", "before 1.6 (about 0.8)"),
        ("dynamo-mocker-1.6.1-1", "dynamo-mocker", "1.6"),
        ("trtllm-1.2rc-1", "trtllm", "up to 1.2"),
        ("llamacpp-2026-1", "llamacpp", "2026, read at build 11669"),
        ("triton-trtllm-1.0.0-1", "trtllm-on-triton", "1, read in November 2026"),
        (
            "gaie-epp-legacy-1-goldens",
            "epp",
            "before llm-d router 0.9, Gateway API inference extension 1",
        ),
    ],
)
def test_identifies_engines_and_versions_by_their_names(
    captures: Path, capture: str, source: str, versions: str
) -> None:
    """An exposition's names say which engine it is and which versions it can be."""
    found = identify(parse_exposition((captures / f"{capture}.txt").read_text()))
    assert found.source is load_sources()[source]
    assert found.versions == versions


@pytest.mark.parametrize(
    ("capture", "nearest", "reason"),
    [
        ("dcgm-exporter-4.x-1", "DCGM exporter", "the map 'dcgm' reads DCGM exporter 3 and 4 up to 4.8"),
    ],
)
def test_the_unknown_is_unknown_with_a_nearest_guess(captures: Path, capture: str, nearest: str, reason: str) -> None:
    """An exposition without a map is unknown, with the nearest guess and why it is not that."""
    found = identify(parse_exposition((captures / f"{capture}.txt").read_text()))
    assert found.source is None
    assert found.nearest == nearest
    assert reason in found.reason


@pytest.mark.parametrize(("capture", "source"), [("vllm-0.32.0-1", "vllm"), ("sglang-0.5.7era-1", "sglang")])
def test_underscores_for_colons_are_the_same_engine(captures: Path, capture: str, source: str) -> None:
    """A pipeline that rewrites vllm: to vllm_ changes nothing."""
    text = (captures / f"{capture}.txt").read_text().replace(f"{source}:", f"{source}_")
    assert identify(parse_exposition(text)).source is load_sources()[source]


def test_a_router_with_names_of_an_engine_is_not_the_engine() -> None:
    """A router that sums up its engines' series under their names is recognised by names of its own."""
    page = "".join(f"vllm:{name} 1\n" for name in ("num_requests_running", "num_requests_waiting", "current_qps"))
    found = identify(parse_exposition(page + "vllm:generation_tokens_total 7\n"))
    assert (found.source, found.nearest) == (None, "vLLM")
    assert "reads vLLM 0.5 to 0.32, of whose names 3 of" in found.reason
    assert "it has 'vllm:current_qps'" in found.reason
    assert found.advice.startswith("it borrows names of vLLM: scrape what is behind it")
    assert "--source" not in found.advice


def test_nothing_is_guessed_from_nothing() -> None:
    """An empty exposition, and one of foreign names, have no nearest guess."""
    assert identify(parse_exposition("")).nearest is None
    found = identify(parse_exposition("up 1"))
    assert (found.source, found.nearest) == (None, None)
    assert "vllm" in found.reason


@pytest.mark.parametrize(
    ("text", "nearest", "reason", "advice"),
    [
        (
            "vllm:num_requests_running 1\nvllm:num_preemptions_total 1\nprocess_start_time_seconds 1",
            "vLLM", "of whose names 2 of ", "source = 'vllm' or --source",
        ),
        ("sglang:cache_hit_rate 1", "SGLang", "the map 'sglang' reads SGLang 0.4", "source = 'sglang'"),
        (
            "nv_inference_count 1", "Triton Inference Server", "has no source map",
            "write a source map (docs/sources.md), or take the target",
        ),
        (
            "acme_num_requests_running 1\nacme_kv_cache_usage_perc 1\nacme_generation_tokens_total 1",
            "vLLM", "3 of its names end as those of vLLM do", "scrape the engine itself",
        ),
        # Not vLLM's router, whose names end so too.
        (
            "sgl_router_requests_total 1\nsgl_router_active_workers 1\nsgl_router_processed_requests_total 1",
            "SGLang's router before 0.3", "has no source map", "take the target",
        ),
        ("process_start_time_seconds 1\npython_info 1", None, "no name in it is known", "check that the URL"),
        ("# TYPE vllm:num_requests_running gauge\n", None, "no samples", "may describe families alone"),
    ],
)  # fmt: skip
def test_what_no_map_reads_names_what_is_nearest_and_what_to_do(
    text: str, nearest: str | None, reason: str, advice: str
) -> None:
    """By names that a map has, then by how they begin, then by how they end; those of every process do not count."""
    found = identify(parse_exposition(text))
    assert (found.source, found.nearest) == (None, nearest)
    assert reason in found.reason
    assert advice in found.advice
