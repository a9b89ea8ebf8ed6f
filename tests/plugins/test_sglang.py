"""The SGLang plugin, loaded into a fake SGLang: what its processes know is what a reader of the one page finds."""

from __future__ import annotations

import ast
import functools
import importlib
import logging
import math
import re
import socket
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest

from servescope.contract.metrics import METRICS
from servescope.exposition.serving import serve
from servescope.instruments.processes import ProcessGroup
from servescope.instruments.values import REFUSALS
from servescope.sources.parse import parse_exposition
from tests.plugins.conftest import read_sample
from tests.plugins.support import fake_sglang
from tests.plugins.support.fake_sglang import (
    COLLECTORS,
    MANAGER,
    REGISTRY,
    Abort,
    Output,
    QueueCount,
    State,
    Stats,
    Times,
    arguments,
)  # fmt: skip
from tests.support.waiting import deadline_seconds

VARIABLES = ("PLUGIN", "ADDRESS", "PORT", "MODEL_NAME", "DEPLOYMENT_ID", "INFERENCE_STACK", "ENVIRONMENT",
             "ROLLOUT_PHASE", "REPLICA", "ROLE")  # fmt: skip
LABELS = {"model_name": "llama-70b"}

STATISTICS = {
    Output: ("sglang.srt.managers.io_struct", "BatchStrOutput"),
    State: ("sglang.srt.managers.tokenizer_manager", "ReqState"),
    Stats: (COLLECTORS, "SchedulerStats"),
}
"""The class of SGLang's that each of the fake's is like."""


class Loaded:
    """The plugin in the processes of one server, all of which are this one."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.manager: Any = None

    def start(self, **options: Any) -> Any:
        """The server's manager of requests, as SGLang makes it."""
        manager = sys.modules[fake_sglang.MANAGER].__dict__["TokenizerManager"]
        self.manager = manager(arguments(**options), dict(LABELS))
        return self.manager

    def start_scheduler(self, ranks: Any = None, **options: Any) -> Any:
        """The collector of a scheduler, as SGLang makes it."""
        collector = sys.modules[fake_sglang.COLLECTORS].__dict__["SchedulerMetricsCollector"]
        return collector(labels={**LABELS, "pp_rank": 0, **(ranks or {})}, server_args=arguments(**options))

    def server(self) -> Any:
        """The reader of the server's process; None when the plugin is off."""
        return self.module._READERS.get(self.manager.metrics_collector)

    def page(self) -> str:
        """The page a scraper gets."""
        with urlopen(self.server().page.url, timeout=deadline_seconds()) as response:
            return str(response.read().decode())

    def read(self, name: str, **labels: str) -> float | None:
        return read_sample(self.page(), name, **labels)

    def shows(self, **expected: Any) -> None:
        """Each name has one sample of this value on the page, or none where None is expected."""
        assert {name: self.read(name) for name in expected} == expected

    def refused(self) -> dict[str, float]:
        counts = {kind: self.read("servescope_instrument_errors_total", kind=kind) or 0 for kind in REFUSALS}
        return {kind: count for kind, count in counts.items() if count}


Load = Callable[..., Loaded]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Load the plugin as SGLang does: `register` in each process, then its hooks are applied."""
    loaded: list[Loaded] = []
    for name in VARIABLES:
        monkeypatch.delenv(f"SERVESCOPE_{name}", raising=False)
    monkeypatch.setenv("SERVESCOPE_REPLICA", "pod-0")
    # Deleted again after the test, which sets it.
    monkeypatch.setenv("_SERVESCOPE_SGLANG_GROUP", "")
    monkeypatch.delenv("_SERVESCOPE_SGLANG_GROUP")

    def loading(**options: Any) -> Loaded:
        fake_sglang.install(monkeypatch, **options)
        module = importlib.import_module("servescope.plugins.sglang")
        # Every reading sees what was recorded before it, not a page kept for other scrapers.
        monkeypatch.setattr(module, "serve", functools.partial(serve, cache_seconds=0))
        # However slow the machine is.
        patient = functools.partial(ProcessGroup, wait_seconds=deadline_seconds())
        monkeypatch.setattr(module, "ProcessGroup", patient)
        module.register()
        sys.modules[fake_sglang.REGISTRY].__dict__["HookRegistry"].apply_hooks()
        loaded.append(Loaded(module))
        return loaded[-1]

    yield loading
    for each in loaded:
        for reader in list(each.module._READERS.values()):
            reader.close()


def test_a_request_from_its_first_token_to_its_end(load: Load) -> None:
    """Times as they come; tokens, sizes, rates and the outcome with the end."""
    plugin = load()
    manager = plugin.start()
    manager.metrics_collector.observe_time_to_first_token(LABELS, 0.5, stream=True)
    manager.metrics_collector.observe_inter_token_latency(LABELS, 2.0, 10)
    manager.collect_metrics(State(finished=False), Output(), 0)
    plugin.shows(time_to_first_token_seconds_sum=0.5, inter_token_latency_seconds_count=10, output_tokens_total=0)
    manager.collect_metrics(State(), Output(), 0)

    plugin.shows(input_tokens_total=100, output_tokens_total=11, tps_per_request_sum=5.0, tps_per_request_count=1)
    plugin.shows(time_per_output_token_seconds_sum=0.2, request_duration_seconds_sum=2.5, decode_seconds_total=2.0)
    plugin.shows(
        input_tokens_per_request_sum=100, output_tokens_per_request_sum=11, time_to_first_token_seconds_count=1
    )
    plugin.shows(kv_cache_eligible_tokens_total=100, kv_cache_reused_tokens_total=64, kv_cache_hit_rate=0.64)
    assert plugin.read("requests_total", outcome="ok") == 1
    assert plugin.read("requests_started_total") is None
    assert plugin.read("spec_decode_num_draft_tokens_total") is None
    assert plugin.refused() == {}


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ({"type": "stop", "matched": 2}, "ok"),
        ({"type": "length", "length": 11}, "ok"),
        ({"type": "abort", "status_code": None}, "client_abort"),
        ({"type": "abort", "status_code": 400}, "client_error"),
        ({"type": "abort", "status_code": 503}, "rejected"),
        ({"type": "abort", "status_code": 500}, "error"),
        ({"type": "evaporated"}, "error"),
        (None, "error"),
    ],
)
def test_outcomes_by_finish_reason(load: Load, reason: Any, outcome: str) -> None:
    """Every reason has an outcome; one that is not known counts as an error, so that no harm is overlooked."""
    plugin = load()
    plugin.start().collect_metrics(State(), Output(finished_reasons=[reason]), 0)
    assert plugin.read("requests_total", outcome=outcome) == 1
    assert plugin.read("requests_total", outcome="ok") == (1 if outcome == "ok" else 0)
    truncated = (reason or {}).get("type") == "length"
    assert (plugin.read("answers_truncated_total") or 0) == (1 if truncated else 0)


def test_requests_that_end_before_they_run(load: Load) -> None:
    """A client that leaves the queue, a full queue; one that has ended already, or is not to be measured, is not."""
    plugin = load()
    manager = plugin.start()
    unmeasured = State(obj=SimpleNamespace(log_metrics=False))
    manager.rid_to_state.update({"1": State(), "2": State(), "3": unmeasured})
    for abort in (Abort("1"), Abort("2", {"type": "abort", "status_code": 503}), Abort("3"), Abort("1"), Abort("4")):
        manager._handle_abort_req(abort)
    assert plugin.read("requests_total", outcome="client_abort") == 1
    assert plugin.read("requests_total", outcome="rejected") == 1
    assert manager.rid_to_state == {}
    plugin.shows(input_tokens_total=0, request_duration_seconds_count=0)


def test_speculation_by_position(load: Load) -> None:
    """Of ten steps four accepted nothing, three one token and three two: of thirty draft tokens nine."""
    plugin = load()
    manager = plugin.start(speculative_algorithm="EAGLE", speculative_num_steps=3, speculative_num_draft_tokens=4)
    plugin.shows(spec_decode_num_draft_tokens_total=0)
    manager.metrics_collector.observe_inter_token_latency(LABELS, 2.0, 10)
    manager.collect_metrics(State(), Output(spec_correct_drafts_histogram=[[4, 3, 3]]), 0)
    plugin.shows(spec_decode_num_draft_tokens_total=30, spec_decode_num_accepted_tokens_total=9, speculation_rate=0.3)
    plugin.shows(spec_decode_num_drafts_total=10, inter_token_latency_seconds_count=None)
    by_position = [plugin.read("spec_decode_num_accepted_tokens_per_pos_total", position=str(at)) for at in range(3)]
    assert by_position == [6, 3, 0]


def test_what_runs_and_waits_is_the_schedulers(load: Load) -> None:
    """It is on the page of the server, of all data-parallel ranks; of other ranks and stages only the first counts."""
    plugin = load()
    plugin.start()
    plugin.shows(concurrent_requests=None, kv_cache_usage=None)
    first, second = plugin.start_scheduler({"dp_rank": 0}), plugin.start_scheduler({"dp_rank": 1})
    further, silent = plugin.start_scheduler({"pp_rank": 1}), plugin.start_scheduler({"tp_rank": 1})
    silent.increment_retracted_reqs(9, 0, 0)
    further.log_stats(Stats(num_running_reqs=QueueCount(9)))
    first.log_stats(Stats(QueueCount(3), QueueCount(2), 1, 0.5, num_prefill_inflight_queue_reqs=QueueCount(1)))
    second.log_stats(Stats(QueueCount(1), token_usage=0.25))
    first.increment_retracted_reqs(num_retracted_reqs=2, num_retracted_input_tokens=1, num_retracted_output_tokens=1)
    plugin.shows(concurrent_requests=8, queued_requests=3, kv_cache_usage=0.375, preemptions_total=2)


def test_schedulers_that_repeat_each_other_are_not_added_up(load: Load) -> None:
    """With metrics of all schedulers their ranks cannot be distinguished from engines: what runs is absent."""
    plugin = load()
    plugin.start()
    plugin.start_scheduler(enable_metrics_for_all_schedulers=True).log_stats(Stats(QueueCount(3)))
    plugin.shows(concurrent_requests=None, queued_requests=None)


@pytest.mark.parametrize(("mode", "role"), [("prefill", "prefill"), ("decode", "decode"), ("null", "aggregated")])
def test_the_role_is_that_of_disaggregation(load: Load, mode: str, role: str) -> None:
    """A worker that prefills leaves the requests to the one that decodes."""
    plugin = load()
    manager = plugin.start(disaggregation_mode=mode)
    manager.metrics_collector.observe_time_to_first_token(LABELS, 0.5, stream=True)
    manager.collect_metrics(State(), Output(), 0)
    counted = 0 if mode == "prefill" else 1
    assert plugin.read("requests_total", role=role, outcome="ok") == counted
    assert plugin.read("time_to_first_token_seconds_count", role=role) == counted


def test_identity_comes_from_sglang_unless_the_environment_names_it(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Served model, release and host are the defaults; a variable wins."""
    monkeypatch.setenv("SERVESCOPE_DEPLOYMENT_ID", "chat-v2")
    plugin = load()
    plugin.start()
    labels = dict(
        next(each for each in parse_exposition(plugin.page()).samples if each.name == "input_tokens_total").labels
    )
    assert labels["model_name"] == "llama-70b"
    assert labels["deployment_id"] == "chat-v2"
    assert labels["inference_stack"] == "sglang-0.5"
    assert labels["replica"] == "pod-0"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("PORT", "http", r"SERVESCOPE_PORT is 'http', expected a port from 0 to 65535"),
        ("ROLE", "router", r"SERVESCOPE_ROLE is 'router', supported: aggregated, prefill, decode"),
        ("PLUGIN", "maybe", r"SERVESCOPE_PLUGIN is 'maybe', supported: on, off"),
    ],
)
def test_a_wrong_variable_is_named_and_the_plugin_stays_out(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, text: str, message: str
) -> None:
    """SGLang starts and runs all the same."""
    monkeypatch.setenv(f"SERVESCOPE_{name}", text)
    plugin = load()
    manager = plugin.start()
    manager.collect_metrics(State(), Output(), 0)
    plugin.start_scheduler().log_stats(Stats())
    assert plugin.server() is None
    assert re.search(message, caplog.text), caplog.text
    assert "SGLang goes on without it" in caplog.text


def test_a_port_in_use_is_named(load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It does not serve elsewhere instead; of several workers of one server one has the page of all."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("SERVESCOPE_PORT", str(port))
        plugin = load()
        plugin.start()
        assert f"port {port}" in caplog.text
        assert "SERVESCOPE_PORT" in caplog.text
        assert plugin.server() is None
        caplog.clear()
        plugin.start(tokenizer_worker_num=2)
    assert plugin.server().page is None
    assert "ERROR" not in caplog.text


def test_it_can_be_switched_off(load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without an error in the log, and without a hook."""
    monkeypatch.setenv("SERVESCOPE_PLUGIN", "off")
    with caplog.at_level(logging.INFO):
        plugin = load()
        plugin.start()
    assert plugin.server() is None
    assert [record.levelname for record in caplog.records if record.name == "sglang.servescope"] == ["INFO"]


class Raising:
    """An object whose every attribute raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is not to be had")


HOSTILE: tuple[Any, ...] = (None, math.nan, -1, 2**70, "many", [], {}, object(), Raising())


@pytest.mark.parametrize("wrong", HOSTILE, ids=lambda wrong: re.sub(" at 0x.*", "", repr(wrong)))
def test_no_value_of_any_attribute_raises_or_leaves_a_wrong_number(load: Load, wrong: Any) -> None:
    """Each attribute in turn holds it; the page stays one that a scraper takes, and a good end after it is booked."""
    plugin = load()
    manager = plugin.start(speculative_algorithm="NGRAM", speculative_num_draft_tokens=4)
    scheduler = plugin.start_scheduler()
    scheduler.log_stats(Stats())
    manager.rid_to_state["1"] = State()
    for name in vars(Output()):
        manager.collect_metrics(State(), Output(**{name: wrong}), 0)
        manager.collect_metrics(State(), Output(**{name: [wrong]}), 0)
    for name in ("first", "lasted"):
        manager.collect_metrics(State(time_stats=Times(**{name: wrong})), Output(), 0)
    for name in vars(Stats()):
        scheduler.log_stats(Stats(**{name: wrong}))
    manager.collect_metrics(State(time_stats=wrong), Output(), 0)
    manager.collect_metrics(State(), wrong, 0)
    manager._handle_abort_req(SimpleNamespace(rid="1", finished_reason=wrong))
    manager.metrics_collector.observe_time_to_first_token(LABELS, wrong, stream=True)
    manager.metrics_collector.observe_inter_token_latency(LABELS, wrong, wrong)
    scheduler.log_stats(wrong)
    scheduler.increment_retracted_reqs(wrong, wrong, wrong)
    for sample in parse_exposition(plugin.page()).samples:
        assert math.isfinite(sample.value), sample
        assert sample.value >= 0, sample

    before = plugin.read("requests_total", outcome="ok") or 0
    manager.collect_metrics(State(), Output(), 0)
    assert (plugin.read("requests_total", outcome="ok") or 0) == before + 1


def test_the_page_holds_contract_names_only(load: Load) -> None:
    """Every family is the catalog's, or our own."""
    plugin = load()
    plugin.start().collect_metrics(State(), Output(), 0)
    families = {line.split()[2] for line in plugin.page().splitlines() if line.startswith("# TYPE")}
    assert {name for name in families if not name.startswith("servescope_")} <= METRICS.keys()


# --- SGLang's own package, read where it is at hand: it runs with CUDA alone ------------------------------------------


class Wheel:
    """The source in the wheel, module by module."""

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path)

    def source(self, module: str) -> str:
        return self._archive.read(module.replace(".", "/") + ".py").decode()

    @functools.cache  # noqa: B019  # it lives as long as the tests of this module
    def classes(self, module: str) -> dict[str, ast.ClassDef]:
        return {each.name: each for each in ast.walk(ast.parse(self.source(module))) if isinstance(each, ast.ClassDef)}

    def method(self, module: str, owner: str, name: str) -> ast.FunctionDef:
        body = self.classes(module)[owner].body
        return next(each for each in body if isinstance(each, ast.FunctionDef) and each.name == name)

    def attributes(self, module: str, owner: str) -> set[str]:
        """Its annotated fields, and those of its bases in the module."""
        found = self.classes(module)[owner]
        names = {
            each.target.id
            for each in found.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        for base in found.bases:
            if isinstance(base, ast.Name) and base.id in self.classes(module):
                names |= self.attributes(module, base.id)
        return names


@pytest.fixture(scope="module")
def wheel(sglang_wheel: Path) -> Wheel:
    return Wheel(sglang_wheel)


def test_the_registry_of_sglang_itself_calls_the_plugin(load: Load, wheel: Wheel) -> None:
    """Its hooks are registered, applied and called by SGLang's own code."""
    plugin = load(registry_source=wheel.source(REGISTRY))
    manager, scheduler = plugin.start(), plugin.start_scheduler()
    manager.metrics_collector.observe_time_to_first_token(LABELS, 0.5, stream=True)
    manager.collect_metrics(State(), Output(), 0)
    scheduler.log_stats(Stats(token_usage=0.5))
    plugin.shows(output_tokens_total=11, time_to_first_token_seconds_count=1, kv_cache_usage=0.5)


def test_sglang_loads_functions_of_the_entry_point_group(wheel: Wheel) -> None:
    """By the name that servescope's package declares, and in the processes of server and scheduler."""
    assert 'GENERAL_PLUGINS_GROUP = "sglang.srt.plugins"' in wheel.source("sglang.srt.plugins.__init__")
    for module in ("sglang.srt.entrypoints.engine", "sglang.srt.managers.scheduler"):
        assert "load_plugins()" in wheel.source(module)


@pytest.mark.parametrize(
    ("module", "owner", "name", "parameters"),
    [
        (COLLECTORS, "TokenizerMetricsCollector", "__init__", "self server_args labels"),
        (COLLECTORS, "TokenizerMetricsCollector", "observe_time_to_first_token", "self labels value"),
        (
            COLLECTORS,
            "TokenizerMetricsCollector",
            "observe_inter_token_latency",
            "self labels internval num_new_tokens",
        ),
        (COLLECTORS, "SchedulerMetricsCollector", "__init__", "self labels server_args"),
        (COLLECTORS, "SchedulerMetricsCollector", "log_stats", "self stats"),
        (COLLECTORS, "SchedulerMetricsCollector", "increment_retracted_reqs", "self num_retracted_reqs"),
        (MANAGER, "TokenizerManager", "collect_metrics", "self state recv_obj i"),
        (MANAGER, "TokenizerManager", "_handle_abort_req", "self recv_obj"),
    ],
)
def test_what_is_hooked_takes_what_the_plugin_reads(
    wheel: Wheel, module: str, owner: str, name: str, parameters: str
) -> None:
    """By position or by name: the first parameters have these names, in this order."""
    taken = wheel.method(module, owner, name).args.args
    assert [each.arg for each in taken][: len(parameters.split())] == parameters.split()


def test_the_statistics_have_what_the_plugin_reads(wheel: Wheel) -> None:
    """Every attribute of the fake's is one of SGLang's."""
    for fake, (module, owner) in STATISTICS.items():
        assert vars(fake()).keys() - wheel.attributes(module, owner) == set(), owner
    times = wheel.classes("sglang.srt.observability.req_time_stats")["APIServerReqTimeStats"].body
    assert {name for name in vars(Times) if name.startswith("get_")} <= {getattr(each, "name", "") for each in times}
    fields = wheel.source("sglang.srt.arg_groups.field_order")
    assert [name for name in vars(arguments()) if f'"{name}"' not in fields] == []
    assert "rid_to_state" in wheel.source(MANAGER)
    assert "log_metrics: bool" in wheel.source("sglang.srt.managers.io_struct")


def test_the_reasons_of_ends_are_those_that_the_plugin_knows(wheel: Wheel) -> None:
    """Each class of SGLang's that ends a request says stop, length or abort."""
    known: dict[str, Any] = {"FINISH_MATCHED_TOKEN": "stop", "FINISH_MATCHED_STR": "stop", "FINISH_LENGTH": "length",
                             "FINISH_ABORT": "abort"}  # fmt: skip
    for name, kind in known.items():
        said = ast.unparse(wheel.method("sglang.srt.managers.schedule_batch", name, "to_json"))
        assert f"'type': '{kind}'" in said
