"""The vLLM plugin, loaded into a fake vLLM: what its statistics say is what a reader of the page finds."""

from __future__ import annotations

import functools
import gc
import importlib
import logging
import math
import re
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from servescope.contract.metrics import METRICS, OUTCOMES
from servescope.exposition.serving import serve
from servescope.instruments.resources import Gpu, Resources
from servescope.instruments.values import REFUSALS
from servescope.sources.parse import parse_exposition
from tests.plugins.conftest import read_sample
from tests.plugins.support import fake_vllm
from tests.plugins.support.fake_vllm import (
    Finished,
    FinishReason,
    Iteration,
    Prompts,
    Scheduler,
    Speculation,
    configuration,
)
from tests.proofs.real.processes import pick_ports
from tests.support.waiting import deadline_seconds, wait_for

VARIABLES = ("PLUGIN", "ADDRESS", "PORT", "MODEL_NAME", "DEPLOYMENT_ID", "INFERENCE_STACK", "ENVIRONMENT",
             "ROLLOUT_PHASE", "REPLICA", "ROLE")  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"SERVESCOPE_{name}", raising=False)
    monkeypatch.setenv("SERVESCOPE_REPLICA", "pod-0")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The plugin's module, as vLLM 0.32 loads it."""
    yield from loaded(monkeypatch)


@pytest.fixture
def older_plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The plugin's module, as a vLLM without loggers for all engines loads it."""
    yield from loaded(monkeypatch, aggregate=False)


def loaded(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[Any]:
    fake_vllm.install(monkeypatch, **options)
    module = importlib.import_module("servescope.plugins.vllm")
    # Every reading sees what was recorded before it, not a page kept for other scrapers.
    monkeypatch.setattr(module, "serve", functools.partial(serve, cache_seconds=0))
    yield module
    module._PAGE._remove(module._PAGE._shown)


def page(module: Any) -> str:
    """The page a scraper gets."""
    with urlopen(module._PAGE._server.url, timeout=deadline_seconds()) as response:
        return str(response.read().decode())


def read(module: Any, name: str, **labels: str) -> float | None:
    return read_sample(page(module), name, **labels)


def assert_values(module: Any, **expected: Any) -> None:
    """Each name has one sample of this value on the page, or none where None is expected."""
    assert {name: read(module, name) for name in expected} == expected


def refused(module: Any) -> dict[str, float]:
    counts = {kind: read(module, "servescope_instrument_errors_total", kind=kind) or 0 for kind in REFUSALS}
    return {kind: count for kind, count in counts.items() if count}


def start(module: Any, **options: Any) -> Any:
    return module.ServescopeStatLogger(configuration(**options), engine_indexes=[0])


def test_a_request_from_its_first_token_to_its_end(plugin: Any) -> None:
    """Tokens and first tokens come with their steps; sizes, rates and the outcome with the end."""
    logger = start(plugin)
    logger.record(
        scheduler_stats=Scheduler(num_running_reqs=1, kv_cache_usage=0.25),
        iteration_stats=Iteration(1, Prompts(100, 64), 0, [], [0.5], []),
        mm_cache_stats=None,
        engine_idx=0,
    )
    assert_values(plugin, input_tokens_total=100, output_tokens_total=1, time_to_first_token_seconds_sum=0.5)
    assert_values(plugin, concurrent_requests=1, kv_cache_usage=0.25, request_duration_seconds_count=0)

    logger.record(Scheduler(), Iteration(10, Prompts(), 0, [Finished()], [], [0.2] * 10))
    assert read(plugin, "output_tokens_total") == 11
    assert read(plugin, "requests_total", outcome="ok") == 1
    assert_values(plugin, tps_per_request_sum=5.0, tps_per_request_count=1, decode_seconds_total=2.0)
    assert_values(plugin, time_per_output_token_seconds_sum=0.2, request_duration_seconds_sum=2.5)
    assert_values(plugin, input_tokens_per_request_sum=100, output_tokens_per_request_sum=11)
    assert_values(plugin, inter_token_latency_seconds_count=10, concurrent_requests=0)
    assert read(plugin, "time_to_first_token_seconds_count") == 1
    assert refused(plugin) == {}


def test_a_wall_clock_that_is_set_back_costs_no_request(plugin: Any) -> None:
    """vLLM measures from arrival by the wall clock and decoding by another: the longer one is believed."""
    logger = start(plugin)
    logger.record(None, Iteration(finished_requests=[Finished(e2e_latency=-3600.0)]))
    assert_values(plugin, request_duration_seconds_sum=2.0, tps_per_request_sum=5.0)
    assert refused(plugin) == {}


def test_what_vllm_does_not_report_is_absent(plugin: Any) -> None:
    """Arrivals and requests refused for their form are absent, not 0; so are figures that only a router knows."""
    logger = start(plugin)
    logger.record(Scheduler(), Iteration(1, Prompts(10, 0), 0, [Finished()], [0.1], []))
    assert read(plugin, "requests_started_total") is None
    assert read(plugin, "requests_total", outcome="client_error") is None
    assert read(plugin, "requests_total", outcome="error") == 0
    assert read(plugin, "kv_cache_predicted_tokens_total") is None
    assert "router_" not in page(plugin)
    assert "spec_decode" not in page(plugin)


def test_cache_reuse_is_booked_with_the_prompt(plugin: Any) -> None:
    """Cached tokens are reported by the step that read the prompt; the finished request does not count them again."""
    logger = start(plugin)
    logger.record(None, Iteration(1, Prompts(100, 64), 0, [], [0.5], []))
    logger.record(None, Iteration(10, Prompts(), 0, [Finished()], [], []))
    assert_values(plugin, kv_cache_eligible_tokens_total=100, kv_cache_reused_tokens_total=64, kv_cache_hit_rate=0.64)


def test_cache_reuse_by_request_where_steps_do_not_report_it(plugin: Any) -> None:
    """An older vLLM reports cached tokens of finished requests: -1 for unknown."""
    logger = start(plugin)
    step = SimpleNamespace(num_prompt_tokens=100, num_generation_tokens=11, finished_requests=[Finished()])
    logger.record(None, step)
    logger.record(None, SimpleNamespace(finished_requests=[Finished(num_cached_tokens=-1)]))
    assert_values(plugin, input_tokens_total=100, kv_cache_eligible_tokens_total=100, kv_cache_reused_tokens_total=64)
    assert read(plugin, "requests_total", outcome="ok") == 2


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (FinishReason.STOP, "ok"),
        (FinishReason.LENGTH, "ok"),
        (FinishReason.REPETITION, "ok"),
        (FinishReason.ABORT, "client_abort"),
        (FinishReason.ERROR, "error"),
        ("stop", "ok"),
        ("evaporated", "error"),
        (None, "error"),
    ],
)
def test_outcomes_by_finish_reason(plugin: Any, reason: Any, outcome: str) -> None:
    """Every finish reason has an outcome; one that is not known counts as an error, so that no harm is overlooked."""
    logger = start(plugin)
    logger.record(None, Iteration(finished_requests=[Finished(finish_reason=reason)]))
    assert read(plugin, "requests_total", outcome=outcome) == 1
    assert sum(read(plugin, "requests_total", outcome=each) or 0 for each in OUTCOMES) == 1


@pytest.mark.parametrize("decode_time", [2.0, None])
def test_answers_that_reach_their_length_are_counted(plugin: Any, decode_time: float | None) -> None:
    """Whether or not vLLM reports the times of the request; before any has ended, nothing is claimed."""
    logger = start(plugin)
    assert read(plugin, "answers_truncated_total") is None
    for reason in FinishReason:
        logger.record(None, Iteration(finished_requests=[Finished(finish_reason=reason, decode_time=decode_time)]))
    assert read(plugin, "answers_truncated_total") == 1
    assert read(plugin, "requests_total", outcome="ok") == 3


def test_a_worker_that_prefills_does_not_report_how_answers_end(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for one token of each, so that all of its requests end at that length."""
    monkeypatch.setenv("SERVESCOPE_ROLE", "prefill")
    logger = start(plugin)
    logger.record(None, Iteration(finished_requests=[Finished(finish_reason=FinishReason.LENGTH)]))
    assert read(plugin, "requests_total", outcome="ok") == 1
    assert read(plugin, "answers_truncated_total") is None


def test_a_refusal_for_want_of_capacity_is_rejected(plugin: Any) -> None:
    """Admission control refuses before any engine sees the request."""
    logger = plugin.ServescopeStatLogger(configuration(data_parallel_size=2), engine_indexes=[0, 1])
    logger.record_admission_rejection("max_num_queued_reqs")
    assert read(plugin, "requests_total", outcome="rejected", replica="pod-0-dp0") == 1
    assert read(plugin, "requests_total", outcome="rejected", replica="pod-0-dp1") == 0


def test_speculation_by_position(plugin: Any) -> None:
    """Its counters are 0 from the start; each position counts by itself."""
    logger = start(plugin, draft_length=3)
    assert read(plugin, "spec_decode_num_draft_tokens_total") == 0
    logger.record(
        Scheduler(spec_decoding_stats=Speculation(6, [2, 1, 1], 2)), Iteration(inter_token_latencies_iter=[0.1])
    )
    logger.record(Scheduler(spec_decoding_stats=None), None)
    assert_values(plugin, spec_decode_num_drafts_total=2, spec_decode_num_draft_tokens_total=6)
    assert read(plugin, "spec_decode_num_accepted_tokens_total") == 4
    assert read(plugin, "spec_decode_num_accepted_tokens_per_pos_total", position="0") == 2
    assert read(plugin, "spec_decode_num_accepted_tokens_per_pos_total", position="2") == 1
    assert read(plugin, "speculation_rate") == pytest.approx(4 / 6)
    # A step's time is not that between two tokens when it brings several.
    assert read(plugin, "inter_token_latency_seconds_count") is None
    assert refused(plugin) == {}


def test_positions_beyond_the_last_are_counted_with_it(plugin: Any) -> None:
    """A draft longer than there are series for loses no accepted token."""
    logger = start(plugin, draft_length=100)
    logger.record(Scheduler(spec_decoding_stats=Speculation(100, [1] * 80 + [0] * 20)), None)
    assert read(plugin, "spec_decode_num_accepted_tokens_total") == 80
    assert read(plugin, "spec_decode_num_accepted_tokens_per_pos_total", position="63") == 17


def test_a_diffusion_model_does_not_speculate(plugin: Any) -> None:
    """It reports its canvas as drafts, which they are not."""
    logger = start(plugin, draft_length=4, diffusion=True)
    logger.record(Scheduler(spec_decoding_stats=Speculation(4, [1, 1, 0, 0])), None)
    assert "spec_decode" not in page(plugin)


def test_clients_that_left_are_those_that_are_nowhere(plugin: Any) -> None:
    """vLLM forgets a request whose client leaves: it had a first token, did not end, and is not in the engine."""
    logger = start(plugin)
    logger.record(Scheduler(num_running_reqs=3), Iteration(3, Prompts(30, 0), 0, [], [0.1] * 3, []))
    assert read(plugin, "requests_total", outcome="client_abort") == 0

    logger.record(Scheduler(num_running_reqs=1), Iteration(3, finished_requests=[Finished()]))
    assert read(plugin, "requests_total", outcome="client_abort") == 1

    # One that waits for its first token hides another that left, until the engine is empty.
    logger.record(Scheduler(num_waiting_reqs=1), None)
    assert read(plugin, "requests_total", outcome="client_abort") == 1
    logger.record(Scheduler(), None)
    assert read(plugin, "requests_total", outcome="client_abort") == 2


def test_a_stop_string_is_no_client_that_left(plugin: Any) -> None:
    """The server ends such a request before the engine does: it has ended, and still runs for a step."""
    logger = start(plugin)
    logger.record(Scheduler(num_running_reqs=1), Iteration(1, Prompts(10, 0), 0, [], [0.1], []))
    logger.record(Scheduler(num_running_reqs=1), Iteration(1, finished_requests=[Finished()]))
    logger.record(Scheduler(), None)
    assert read(plugin, "requests_total", outcome="client_abort") == 0


def test_waiting_requests_and_preemptions(plugin: Any) -> None:
    """Requests put off count as queued; preempted ones are counted."""
    logger = start(plugin)
    logger.record(Scheduler(2, 3, 4), Iteration(num_preempted_reqs=2))
    assert_values(plugin, queued_requests=7, concurrent_requests=9, preemptions_total=2)


@pytest.mark.parametrize(("scope", "known"), [("cgroup", True), ("process", False)])
def test_cpu_and_memory_are_the_containers_or_absent(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, scope: str, known: bool
) -> None:
    """The server process alone is not the engine; GPUs are reported either way, once for all engines of the server."""
    resources = Resources(2.0, 1000, (Gpu("0", 0.5, 77),))
    monkeypatch.setattr(plugin, "ResourceMeter", lambda: SimpleNamespace(scope=scope, read=lambda: resources))
    logger = plugin.ServescopeStatLogger(configuration(data_parallel_size=2), engine_indexes=[0, 1])
    assert_values(plugin, cpu_usage=2.0 if known else None, memory_usage=1000 if known else None)
    assert read(plugin, "gpu_memory_usage", gpu="0", replica="pod-0-dp0") == 77
    assert read(plugin, "gpu_memory_usage", gpu="0", replica="pod-0-dp1") is None
    assert logger is not None


def test_identity_comes_from_the_configuration_unless_the_environment_names_it(
    plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Served model, release and host are the defaults; a variable wins."""
    first = start(plugin)
    labels = dict(parse_exposition(page(plugin)).samples[0].labels)
    assert labels["model_name"] == labels["deployment_id"] == "llama-70b"
    assert labels["inference_stack"] == "vllm-0.32"
    assert labels["role"] == "aggregated"
    assert labels["replica"] == "pod-0"
    for name, text in {"DEPLOYMENT_ID": "chat-v2", "ENVIRONMENT": "production", "ROLLOUT_PHASE": "promoting"}.items():
        monkeypatch.setenv(f"SERVESCOPE_{name}", text)
    second = start(plugin)
    assert read(plugin, "input_tokens_total", deployment_id="chat-v2", environment="production") == 0
    assert read(plugin, "input_tokens_total", deployment_id="llama-70b") == 0
    assert first is not second


@pytest.mark.parametrize(
    ("role", "expected"), [("kv_producer", "prefill"), ("kv_consumer", "decode"), ("kv_both", "aggregated")]
)
def test_the_role_is_that_of_the_kv_transfer(plugin: Any, role: str, expected: str) -> None:
    """A disaggregated server knows which half it is."""
    options = configuration()
    options.kv_transfer_config = SimpleNamespace(kv_role=role)
    logger = plugin.ServescopeStatLogger(options, engine_indexes=[0])
    assert read(plugin, "input_tokens_total", role=expected) == 0
    assert logger is not None


def test_data_parallel_engines_share_one_page(plugin: Any) -> None:
    """Each rank is a replica of its own."""
    logger = plugin.ServescopeStatLogger(configuration(data_parallel_size=2), engine_indexes=[0, 1])
    logger.record(None, Iteration(5), engine_idx=1)
    assert read(plugin, "output_tokens_total", replica="pod-0-dp0") == 0
    assert read(plugin, "output_tokens_total", replica="pod-0-dp1") == 5
    assert page(plugin).count("# TYPE output_tokens_total") == 1


def test_an_older_vllm_makes_one_logger_per_engine(older_plugin: Any) -> None:
    """They share one page at one port; refused requests never come to their notice."""
    options = configuration(data_parallel_size=2)
    loggers = [older_plugin.ServescopeStatLogger(options, index) for index in (0, 1)]
    url = older_plugin._PAGE._server.url
    loggers[1].record(None, Iteration(5), engine_idx=1)
    assert read(older_plugin, "output_tokens_total", replica="pod-0-dp1") == 5
    assert read(older_plugin, "requests_total", outcome="rejected", replica="pod-0-dp0") is None
    assert older_plugin._PAGE._server.url == url


def test_several_servers_of_one_engine_have_a_port_and_a_replica_each(
    plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters add up over them; the engine's state comes now to one, now to another, and is absent."""
    (port,) = pick_ports(1)
    monkeypatch.setenv("SERVESCOPE_PORT", str(port - 2))
    options = configuration(_api_process_rank=2, _api_process_count=4)
    logger = plugin.ServescopeStatLogger(options, engine_indexes=[0])
    logger.record(Scheduler(1, 1, 0, 0.5), Iteration(5))
    assert f":{port}/" in plugin._PAGE._server.url
    assert read(plugin, "output_tokens_total", replica="pod-0-api2") == 5
    assert_values(plugin, concurrent_requests=None, kv_cache_usage=None)


def test_the_port_closes_when_vllm_drops_its_logger(plugin: Any) -> None:
    """After vLLM replaced its loggers nothing is recorded: a frozen page would be mistaken for an idle engine."""
    logger = start(plugin)
    url = plugin._PAGE._server.url
    assert urlopen(url, timeout=deadline_seconds()).status == 200
    del logger
    gc.collect()
    wait_for(lambda: plugin._PAGE._server is None, "the server to close")
    with pytest.raises(URLError):
        urlopen(url, timeout=deadline_seconds())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("PORT", "http", r"SERVESCOPE_PORT is 'http', expected a port from 0 to 65535"),
        ("PORT", "70000", r"SERVESCOPE_PORT leads to port 70000"),
        ("ADDRESS", "256.1.1.1", r"cannot serve metrics at '256\.1\.1\.1' port 0: .*"),
        ("ROLE", "router", r"SERVESCOPE_ROLE is 'router', supported: aggregated, prefill, decode"),
        ("ROLLOUT_PHASE", "done", r"SERVESCOPE_ROLLOUT_PHASE is 'done', supported: promoting, stable"),
        ("PLUGIN", "maybe", r"SERVESCOPE_PLUGIN is 'maybe', supported: on, off"),
    ],
)
def test_a_wrong_variable_is_named_and_the_plugin_stays_out(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, text: str, message: str
) -> None:
    """vLLM starts and runs all the same."""
    monkeypatch.setenv(f"SERVESCOPE_{name}", text)
    logger = start(plugin)
    logger.log_engine_initialized()
    logger.record(Scheduler(), Iteration(1, finished_requests=[Finished()]))
    logger.record_admission_rejection("max_num_queued_reqs")
    logger.record_sleep_state(1, 1)
    logger.log()
    assert plugin._PAGE._server is None
    assert re.search(message, caplog.text), caplog.text
    assert "vLLM goes on without it" in caplog.text


def test_a_port_in_use_is_named(plugin: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It does not serve elsewhere instead, where nobody looks."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("SERVESCOPE_PORT", str(port))
        start(plugin)
    assert f"port {port}" in caplog.text
    assert "SERVESCOPE_PORT" in caplog.text


def test_a_second_server_of_the_same_identity_leaves_the_first_as_it_was(
    plugin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """They would have the same series."""
    first, second = start(plugin), start(plugin)
    second.record(None, Iteration(7))
    first.record(None, Iteration(5))
    assert read(plugin, "output_tokens_total") == 5
    assert "replica 'pod-0' of 'llama-70b' is on this process's page already" in caplog.text


def test_it_can_be_switched_off(plugin: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without an error in the log."""
    monkeypatch.setenv("SERVESCOPE_PLUGIN", "off")
    with caplog.at_level(logging.INFO):
        start(plugin).record(Scheduler(), Iteration(1))
    assert plugin._PAGE._server is None
    assert [record.levelname for record in caplog.records if record.name == "vllm.servescope"] == ["INFO"]


def test_a_misspelt_variable_is_logged(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not read, and the plugin runs."""
    monkeypatch.setenv("SERVESCOPE_MODELNAME", "llama")
    logger = start(plugin)
    assert "unknown variable SERVESCOPE_MODELNAME is not read, did you mean SERVESCOPE_MODEL_NAME?" in caplog.text
    assert plugin._PAGE._server is not None
    assert logger is not None


@pytest.mark.parametrize("config", [None, object(), SimpleNamespace(model_config=None)])
def test_a_configuration_without_a_model_is_logged(plugin: Any, config: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The variable to set is named."""
    plugin.ServescopeStatLogger(config, engine_indexes=[0]).record(Scheduler(), Iteration(1))
    assert "SERVESCOPE_MODEL_NAME is not set and the engine does not name its model" in caplog.text


class Raising:
    """An object whose every attribute raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is not to be had")


HOSTILE: tuple[Any, ...] = (None, math.nan, math.inf, -1, -0.5, 2**70, "many", b"\xff", [], {}, object(), Raising(),
                            True)  # fmt: skip


@pytest.mark.parametrize("wrong", HOSTILE, ids=lambda wrong: re.sub(" at 0x.*", "", repr(wrong)))
def test_no_value_of_any_attribute_raises_or_leaves_a_wrong_number(plugin: Any, wrong: Any) -> None:
    """Each attribute in turn holds it; the page stays one that a scraper takes, and a good step after it is booked."""
    logger = start(plugin, draft_length=2)
    for name in vars(Iteration()):
        logger.record(None, Iteration(**{name: wrong}))
    for name in ("total", "cached_tokens"):
        logger.record(None, Iteration(prompt_token_stats=Prompts(**{name: wrong})))
    for name in vars(Finished()):
        logger.record(None, Iteration(finished_requests=[Finished(**{name: wrong})]))
    for name in vars(Scheduler()):
        logger.record(Scheduler(**{name: wrong}), None)
    for name in vars(Speculation()):
        logger.record(Scheduler(spec_decoding_stats=Speculation(**{name: wrong})), None)
    for given in ([wrong], [wrong, 0.5]):
        logger.record(
            Scheduler(spec_decoding_stats=Speculation(2, given)),
            Iteration(time_to_first_tokens_iter=given, inter_token_latencies_iter=given, finished_requests=given),
        )
    logger.record(wrong, wrong, wrong, wrong)
    logger.record(scheduler_stats=wrong, iteration_stats=wrong, engine_idx=0, more=wrong)
    for sample in parse_exposition(page(plugin)).samples:
        assert math.isfinite(sample.value), sample
        assert sample.value >= 0, sample
        if sample.name == "kv_cache_usage":
            assert sample.value <= 1

    before = read(plugin, "requests_total", outcome="ok") or 0
    logger.record(Scheduler(), Iteration(11, Prompts(100, 64), 0, [Finished()], [0.5], []))
    assert (read(plugin, "requests_total", outcome="ok") or 0) == before + 1


@pytest.mark.parametrize("missing", ["scheduler", "iteration", "finished", "speculation"])
def test_missing_attributes_cost_only_themselves(plugin: Any, missing: str) -> None:
    """Of an object without any attribute nothing is booked, and nothing else is lost."""
    logger = start(plugin, draft_length=2)
    bare = SimpleNamespace()
    logger.record(
        bare if missing == "scheduler" else Scheduler(1, 1, 0, 0.5, bare if missing == "speculation" else None),
        bare if missing == "iteration" else Iteration(5, finished_requests=[bare] if missing == "finished" else []),
    )
    assert read(plugin, "concurrent_requests") == (None if missing == "scheduler" else 2)
    assert read(plugin, "output_tokens_total") == (0 if missing == "iteration" else 5)
    # Of a request of which nothing can be read it is known that it ended; how is not, so it counts as an error.
    assert read(plugin, "requests_total", outcome="error") == (1 if missing == "finished" else 0)
    assert refused(plugin) == {}


def test_attributes_and_arguments_of_later_releases_are_accepted(plugin: Any) -> None:
    """What is not known is left aside."""
    logger = plugin.ServescopeStatLogger(vllm_config=configuration(), engine_indexes=[0], watermark=object())
    step = Iteration(5)
    step.num_corrupted_reqs = 1  # type: ignore[attr-defined]
    logger.record(Scheduler(), step, None, 0, object(), weights=object())
    logger.record_admission_rejection("max_num_queued_tokens", engine_idx=3)
    assert read(plugin, "output_tokens_total") == 5
    assert read(plugin, "requests_total", outcome="rejected") == 1


def test_an_unannounced_engine_is_logged_once(plugin: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Its statistics are left out."""
    logger = start(plugin)
    for _ in range(3):
        logger.record(Scheduler(), Iteration(5), engine_idx=9)
    assert read(plugin, "output_tokens_total") == 0
    assert caplog.text.count("engine 9 is not one of [0]") == 1


def test_the_page_holds_contract_names_only(plugin: Any) -> None:
    """Every family is the catalog's, or our own."""
    logger = start(plugin, draft_length=2)
    logger.record(Scheduler(1), Iteration(5, Prompts(5, 1), 0, [Finished()], [0.1], []))
    families = {line.split()[2] for line in page(plugin).splitlines() if line.startswith("# TYPE")}
    assert families <= {*METRICS, "servescope_instrument_errors_total"}
    assert {"tps_per_request", "kv_cache_reused_tokens_total"} <= families
