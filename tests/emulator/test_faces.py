"""Faces: what the emulator says in another program's names is read back by that program's source map."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import Sample, Series
from servescope.emulator.deployment.deployment import EmulatedTarget
from servescope.emulator.deployment.stack import V2, V2_DISAGGREGATED, EmulatedStack
from servescope.emulator.engine.engine import Engine
from servescope.emulator.faces.faces import make_pages
from servescope.emulator.faces.native_pages import FrontendPages, engine_samples
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.errors import UsageError
from servescope.exposition.rendering import render
from servescope.sources.identification import identify
from servescope.sources.inversion import NativePage
from servescope.sources.map_files import load_sources, read_source
from servescope.sources.maps import Source
from servescope.sources.parse import parse_exposition
from servescope.sources.translate import Coverage, translate

FACES = {name: source for name, source in load_sources().items() if source.layer in ("frontend", "engine")}
"""Every source map of what serves requests, but our own names'."""

APART = {
    "litellm": {"input_tokens_total"},
    "tgi": {"concurrent_requests", "input_tokens_total", "output_tokens_total"},
    "trtllm-on-triton": {"input_tokens_total", "output_tokens_total"},
    "sglang": {"decode_seconds_total"},
    "nim": {"decode_seconds_total"},
    "dynamo-frontend": {"input_tokens_total", "output_tokens_total", "decode_seconds_total"},
    "epp": {"input_tokens_total", "output_tokens_total", "requests_total", "kv_cache_eligible_tokens_total"},
}
"""Metrics that a map reads from a native series which another metric is read from too, and which is that one's."""

STEP_SECONDS = 12.0

Values = Mapping[Series, float]


@dataclass
class Shown:
    """One moment of a target in the names of one source: its page, and what there was to say."""

    source: Source
    target: EmulatedTarget
    page: bytes
    said: Values

    def read(self) -> tuple[Values, Mapping[str, Coverage]]:
        """What the map reads on the page."""
        translation = translate(parse_exposition(self.page), self.source, self.target.identity)
        return by_series(translation.samples), translation.coverage


@pytest.fixture(scope="module")
def shown() -> dict[str, list[Shown]]:
    """By source a minute of a stack with every outcome; a replica and the router restart on the way."""
    stack = EmulatedStack.of(
        [(replace(V2, engine=replace(V2.engine, error_share=0.02, max_queue=1)), 1.0)],
        traffic=GeneratedTraffic(Mix(requests_per_second=10.0, abort_share=0.1, oversized_share=0.02)),
    )
    (deployment,) = stack.deployments
    model = deployment.plan.identity.model_name
    fronts = {name: FrontendPages(each, deployment) for name, each in FACES.items() if each.layer == "frontend"}
    engines = {name: NativePage(each, model) for name, each in FACES.items() if each.layer == "engine"}
    found: dict[str, list[Shown]] = {name: [] for name in FACES}
    for step in range(6):
        stack.clock.run_until(step * STEP_SECONDS)
        if step == 3:
            deployment.restart("engine-1")
            deployment.restart("router-0")
        target = stack.targets()[0]
        for name, page in engines.items():
            samples = engine_samples(engine_of(target))
            found[name].append(Shown(FACES[name], target, page.render(samples), by_series(samples)))
        for name, front in fronts.items():
            found[name].append(Shown(FACES[name], target, front.render(target), by_series(front.samples())))
    return found


@pytest.fixture(scope="module")
def idle() -> EmulatedStack:
    """v1 and v2 without requests."""
    return EmulatedStack(quiet=True)


def engine_of(target: EmulatedTarget) -> Engine:
    """The engine that a target is."""
    assert target.engine is not None
    return target.engine


def by_series(samples: Iterable[Sample]) -> dict[Series, float]:
    """Values by the contract's own labels, those of equal series added."""
    values: dict[Series, float] = {}
    for name, labels, value in samples:
        if name in SAMPLE_FAMILIES:
            own = METRICS[SAMPLE_FAMILIES[name]].labels
            series = Series(name, tuple(pair for pair in labels if pair[0] in own or pair[0] == "le"))
            values[series] = values.get(series, 0.0) + value
    return values


@pytest.mark.parametrize("name", FACES)
def test_the_map_reads_what_was_said(shown: dict[str, list[Shown]], name: str) -> None:
    """Whatever the map takes and the emulator knows, at every moment, in the newest release's names."""
    differing = set()
    for moment in shown[name]:
        read, coverage = moment.read()
        for series, value in read.items():
            if series in moment.said and value != pytest.approx(moment.said[series], rel=1e-9):
                differing.add(SAMPLE_FAMILIES[series.name])
        taken = {metric for metric, each in FACES[name].metrics.items() if each.alternatives}
        whole = {metric for metric in taken if coverage[metric].status in ("present", "derived")}
        said = {series for series, value in moment.said.items() if value and "le" not in dict(series.labels)}
        lost = {series for series in said - read.keys() if SAMPLE_FAMILIES[series.name] in whole}
        without_sum = {f"{metric}_sum" for metric, each in FACES[name].metrics.items() if each.no_sum}
        assert {series for series in lost if series.name not in without_sum} == set()
    assert differing == APART.get(name, set())


@pytest.mark.parametrize("face", FACES)
def test_buckets_at_other_edges_are_between_ours(shown: dict[str, list[Shown]], face: str) -> None:
    """A count at an edge that we have not is one that ours allow, and so is what it gained over any time."""
    moments = [(moment.read()[0], moment.said) for moment in shown[face]]
    for (read_before, said_before), (read, said) in pairwise(moments):
        buckets = gains(read_before, read) + gains(said_before, said)
        for name in {bucket.name for bucket, _ in buckets}:
            gained = sorted((edge_of(bucket), gain) for bucket, gain in buckets if bucket.name == name)
            assert all(lower <= upper + 1e-9 for (_, lower), (_, upper) in pairwise(gained)), name


def gains(before: Values, after: Values) -> list[tuple[Series, float]]:
    """What each bucket counted in between."""
    return [(each, value - before.get(each, 0.0)) for each, value in after.items() if each.name.endswith("_bucket")]


def edge_of(bucket: Series) -> float:
    """The upper edge of a bucket."""
    return float(dict(bucket.labels)["le"])


@pytest.mark.parametrize("name", FACES)
def test_every_page_is_identified_as_the_newest_release(shown: dict[str, list[Shown]], name: str) -> None:
    """From the first moment on, before any request."""
    for moment in shown[name]:
        found = identify(parse_exposition(moment.page))
        assert found.source is not None
        assert found.source.name == moment.source.name
        assert found.versions == identify(parse_exposition(shown[name][-1].page)).versions != ""


@pytest.mark.parametrize("name", FACES)
def test_counters_fall_at_no_time(shown: dict[str, list[Shown]], name: str) -> None:
    """Not those that are what another leaves of a sum, nor those of a frontend behind which processes restart."""
    before: dict[tuple[str, str], float] = {}
    for moment in shown[name]:
        page = moment.page.decode()
        gauges = set(re.findall(r"^# TYPE (\S+) gauge$", page, re.M))
        for native, labels, text in re.findall(r"^([a-z]\S*?)(\{.*\})? (\S+)$", page, re.M):
            if native not in gauges:
                assert float(text) >= before.get((native, labels), 0.0), (native, labels)
                before[native, labels] = float(text)
    assert before


def test_what_is_exposed_at_first_use_stays_away_until_then(shown: dict[str, list[Shown]]) -> None:
    """A series that the map calls 0 while it is absent; what has a value from the start is there at 0."""
    first, last = shown["sglang"][0].page.decode(), shown["sglang"][-1].page.decode()
    assert "sglang:num_requests_total{" not in first
    assert "sglang:time_to_first_token_seconds_bucket{" not in first
    assert 'sglang:num_queue_reqs{model_name="llama-3.3-70b"} 0.0\n' in first
    assert "sglang:num_requests_total{" in last
    assert "sglang:time_to_first_token_seconds_bucket{" in last
    fresh = shown["trtllm"][0].page.decode()
    assert re.search(r'^trtllm_time_to_first_token_seconds_bucket\{.*le="0.001".*\} 0.0$', fresh, re.M)


def test_a_restarted_engine_begins_at_zero_and_its_frontend_goes_on() -> None:
    """A frontend is another process: what ended behind it stays counted, and what its routers turn away is, too."""
    stack = EmulatedStack.of([(V2, 1.0)], traffic=GeneratedTraffic(Mix()))
    (deployment,) = stack.deployments
    pages = make_pages(["sglang,sglang-router"], stack.deployments)
    stack.clock.run_until(15.0)
    engine, router = stack.targets()[0], next(each for each in stack.targets() if each.identity.role == "router")
    assert value(pages.render(engine), "sglang:generation_tokens_total") > 0
    ok = value(pages.render(router), "smg_router_request_duration_seconds_count")
    for name in list(deployment.replicas):
        deployment.restart(name)
    restarted = stack.targets()[0]
    assert value(pages.render(restarted), "sglang:generation_tokens_total") == 0
    assert value(pages.render(router), "smg_router_request_duration_seconds_count") == ok > 0
    assert value(pages.render(router), "smg_http_requests_total") == sum(deployment.outcomes.values()) + (
        deployment.in_flight
    )


def test_a_frontend_in_front_of_phases_counts_each_request_once() -> None:
    """Prefill workers count the prompt and decode workers the end; an aborted answer is one that began well."""
    stack = EmulatedStack.of([(V2_DISAGGREGATED, 1.0)], traffic=GeneratedTraffic(Mix()))
    stack.clock.run_until(20.0)
    (deployment,) = stack.deployments
    router = next(each for each in stack.targets() if each.identity.role == "router")
    page = make_pages(["litellm"], stack.deployments).render(router)
    assert value(page, "litellm_request_total_latency_metric_count") > 0
    assert deployment.outcomes["client_abort"] > 0
    ended = parse_exposition(page).by_name["litellm_proxy_total_requests_metric_total"]
    assert sum(sample.value for sample in ended) == sum(deployment.outcomes.values())
    assert value(page, "litellm_input_tokens_metric_total") > value(page, "litellm_output_tokens_metric_total")


def value(page: bytes, name: str) -> float:
    """The value of the first series of a name, 0 where there is none."""
    found = parse_exposition(page).by_name.get(name.replace(":", "_"), ())
    return found[0].value if found else 0.0


@pytest.mark.parametrize(
    ("faces", "listed"),
    [
        ([], {"v1 aggregated", "v1 router", "v1 autoscaler", "v2 aggregated", "v2 router", "v2 autoscaler"}),
        (
            ["servescope"],
            {"v1 aggregated", "v1 router", "v1 autoscaler", "v2 aggregated", "v2 router", "v2 autoscaler"},
        ),
        (["vllm"], {"v1 aggregated", "v2 aggregated"}),
        (["litellm"], {"v1 router", "v2 router"}),
        (["llamacpp,vllm-router"], {"v1 aggregated", "v1 router", "v2 aggregated", "v2 router"}),
        (["chat-v2=sglang"], {"v1 aggregated", "v1 router", "v1 autoscaler", "v2 aggregated"}),
        (["vllm", "chat-v2=servescope"], {"v1 aggregated", "v2 aggregated", "v2 router", "v2 autoscaler"}),
    ],
)
def test_what_has_no_page_in_the_names_is_not_listed(idle: EmulatedStack, faces: list[str], listed: set[str]) -> None:
    """It has its page in our own names at its path all the same; each deployment may have a face of its own."""
    pages = make_pages(faces, idle.deployments)
    seen = [target for target in idle.targets() if pages.lists(target)]
    assert {f"{target.identity.inference_stack} {target.identity.role}" for target in seen} == listed
    for target in idle.targets():
        if target not in seen:
            assert pages.render(target) == render(target.instruments)


@pytest.mark.parametrize(
    ("faces", "message"),
    [
        (
            ["sglng"],
            r"--metrics 'sglng': unknown face 'sglng', did you mean 'sglang'\?; supported: baseten, ",
        ),
        (["chat-v3=vllm"], r"unknown deployment 'chat-v3', did you mean 'chat-v2'\?; supported: chat-v1, chat-v2"),
        (["vllm,sglang"], "'vllm,sglang': expected one engine, one frontend, or one of each"),
        (["servescope,litellm"], "'servescope,litellm': expected one engine, one frontend, or one of each"),
        (["vllm", "sglang"], "'sglang': every deployment has a face already"),
        ([""], "unknown face ''; supported"),
    ],
)
def test_a_face_that_cannot_be_is_refused(idle: EmulatedStack, faces: list[str], message: str) -> None:
    """With what was probably meant."""
    with pytest.raises(UsageError, match=message):
        make_pages(faces, idle.deployments)


def test_a_new_map_has_a_face_by_itself(idle: EmulatedStack) -> None:
    """Factors, labels, sums and the codes of an answer are all written the other way round."""
    missing = "".join(
        f'[default.{each}]\nstatus = "impossible"\nreason = "not reported"\n'
        for each in ("engine", "router", "autoscaler", "process")
    )
    source = read_source("turbine.toml", TURBINE + missing)
    samples = [
        Sample("queued_requests", (), 2.0),
        Sample("concurrent_requests", (), 5.0),
        Sample("decode_seconds_total", (), 1.5),
        Sample("preemptions_total", (), 3.0),
        Sample("requests_total", (("outcome", "ok"),), 7.0),
        Sample("requests_total", (("outcome", "error"),), 1.0),
        Sample("time_to_first_token_seconds_bucket", (("le", "0.1"),), 4.0),
        Sample("time_to_first_token_seconds_bucket", (("le", "1.0"),), 8.0),
        Sample("time_to_first_token_seconds_bucket", (("le", "+Inf"),), 8.0),
        Sample("time_to_first_token_seconds_sum", (), 2.0),
        Sample("time_to_first_token_seconds_count", (), 8.0),
    ]
    assert NativePage(source, "m").render(samples).decode() == WRITTEN
    read = by_series(translate(parse_exposition(WRITTEN), source, idle.targets()[0].identity).samples)
    said = by_series(samples)
    assert {series: read[series] for series in said if series in read} == {
        series: value for series, value in said.items() if dict(series.labels).get("le") != "0.1"
    }


TURBINE = """
title = "Turbine"
covers = "Turbine 2"
evidence = "read"
layer = "engine"
prefixes = ["turbine_"]
model_label = "model"
[identify]
all = ["turbine_running", "turbine_build_info"]
[[versions]]
is = "2"
[metrics.queued_requests]
take = [{ native = "turbine_waiting" }]
[metrics.concurrent_requests]
take = [{ from = [{ native = "turbine_running" }, { native = "turbine_waiting" }] }]
[metrics.preemptions_total]
take = [{ native = "turbine_preempted_total", requires = ["turbine_cache_blocks"] }]
[metrics.decode_seconds_total]
take = [{ native = "turbine_decode_milliseconds_total", scale = 0.001 }, { native = "turbine_decode_ms" }]
[metrics.time_to_first_token_seconds]
edges = [0.5, 1]
take = [{ native = "turbine_ttft_milliseconds", scale = 0.001 }]
[metrics.requests_total]
absent = "zero"
zero = { outcome = ["rejected"] }
[[metrics.requests_total.take]]
native = "turbine_answers_total"
select = { path = "/v1" }
except = { code = "500" }
drop = ["path", "code"]
[metrics.requests_total.take.set]
outcome = [
    { is = "ok", when = { code = "200" } },
    { is = "rejected", when = { code = "429" } },
    { is = "error" },
]
"""
WRITTEN = """\
# TYPE turbine_running gauge
turbine_running{model="m"} 3.0
# TYPE turbine_waiting gauge
turbine_waiting{model="m"} 2.0
# TYPE turbine_answers_total counter
turbine_answers_total{code="200",model="m",path="/v1"} 7.0
turbine_answers_total{code="501",model="m",path="/v1"} 1.0
# TYPE turbine_ttft_milliseconds histogram
turbine_ttft_milliseconds_bucket{le="500.0",model="m"} 5.777777777777778
turbine_ttft_milliseconds_bucket{le="1000.0",model="m"} 8.0
turbine_ttft_milliseconds_bucket{le="+Inf",model="m"} 8.0
turbine_ttft_milliseconds_sum{model="m"} 2000.0
turbine_ttft_milliseconds_count{model="m"} 8.0
# TYPE turbine_preempted_total counter
turbine_preempted_total{model="m"} 3.0
# TYPE turbine_decode_milliseconds_total counter
turbine_decode_milliseconds_total{model="m"} 1500.0
# TYPE turbine_build_info gauge
turbine_build_info{model="m"} 0.0
# TYPE turbine_cache_blocks gauge
turbine_cache_blocks{model="m"} 0.0
"""
