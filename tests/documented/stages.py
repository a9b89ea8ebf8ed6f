"""What the pages take to be there before their commands are typed: engines, stores, a Prometheus, files."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from servescope.settings.values import format_instant
from tests.conftest import PAGES as ENGINE_PAGES
from tests.conftest import ROOT
from tests.documented.pages import Command
from tests.documented.place import ENGINE, Place
from tests.support.either_past import either_past, write_store
from tests.support.kept import kept
from tests.support.otlp_receiver import Receiver
from tests.support.past import remembering
from tests.support.programs import answers
from tests.support.prometheus import running
from tests.support.waiting import wait_for

Stage = Callable[[Place], None]
_VLLM = ENGINE_PAGES / "vllm-0.32.0-1.txt"

CONFIGURATION: Final = """\
model_name: chat
resources:
  accelerator: H100
secrets:
  hf_access_token: null
trt_llm:
  build:
    base_model: decoder
    checkpoint_repository:
      source: HF
      repo: Qwen/Qwen3-4B
    max_seq_len: 32768
    max_batch_size: 64
    max_num_tokens: 8192
    quantization_type: fp8_kv
    plugin_configuration:
      paged_kv_cache: true
  runtime:
    kv_cache_free_gpu_mem_fraction: 0.9
    enable_chunked_context: true
"""
OPTIMISATION: Final = """\
{"backend": {"name": "auto", "version": "latest"}, "model_type": "llm", "quantization": "float16",
 "optimisations": {"model_type": "llm", "speculative_decoding": {"type": "auto", "enabled": false}},
 "tensor_parallel_size": 1}
"""


def block(page: str, contains: str) -> str:
    """The first block of a page with this text in it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"(?ms)^```\w+\n(.*?)^```", text)
    return next(each for each in blocks if contains in each)


# --- What several pages take ------------------------------------------------------------------------------------------


def _engine(place: Place) -> None:
    place.serve_engine(_VLLM)


def _past(place: Place) -> None:
    """A store with seventy minutes of chat-v1 and chat-v2, and the time at its end."""

    def make(folder: Path) -> None:
        start_ms, end_ms = write_store(folder / "s.db")
        (folder / "times").write_text(f"{start_ms} {end_ms}", encoding="utf-8")

    _use_past(place, kept("documented-store", make))


def _past_twice(place: Place) -> None:
    """The same in a Prometheus as well."""
    binaries = place.binaries

    def make(folder: Path) -> None:
        with either_past(binaries["prometheus"], binaries["promtool"], folder) as past:
            (folder / "times").write_text(f"{past.start_ms} {past.end_ms}", encoding="utf-8")

    folder = kept("documented-past", make)
    _use_past(place, folder)
    shutil.copytree(folder / "prometheus" / "data", place.folder / "prometheus" / "data")
    prometheus = place.closing.enter_context(remembering(binaries["prometheus"], place.folder / "prometheus"))
    for port in (9090, 8427):
        place.set_port(port, prometheus.port)


def _use_past(place: Place, folder: Path) -> None:
    end_ms = int((folder / "times").read_text(encoding="utf-8").split()[1])
    for each in ("servescope.db", "servescope.db-wal"):
        (place.folder / each).unlink(missing_ok=True)
    shutil.copy(folder / "s.db", place.folder / "servescope.db")
    (place.folder / "clock").write_text(f"{time.time()}={end_ms / 1000}*1", encoding="utf-8")
    place.variables["SERVESCOPE_CLOCK"] = str(place.folder / "clock")
    place.instead |= {"2026-11-20T00:00:00Z": format_instant(end_ms), "/var/lib/prometheus/data": "blocks"}


def _gate(place: Place) -> None:
    """A judge that watches."""
    place.variables["TOKEN"] = "secret-of-ci"
    place.run(Command("", "servescope judge watch --plan cutover.toml --store servescope.db --gate-token-env TOKEN"))


def _plan(place: Place) -> None:
    place.write("cutover.toml", block("docs/cutover.md", "[arms]"))


def _started(place: Place) -> None:
    """A run of the plan."""
    _plan(place)
    place.run(Command("", "servescope judge start --plan cutover.toml --store servescope.db"))


def _options(place: Place) -> None:
    shutil.copy(ROOT / "examples/options.toml", place.folder / "mine.toml")


def _emulator(place: Place) -> None:
    place.run(Command("", "servescope emulate --listen 127.0.0.1:9800"))


def _collector(place: Place) -> None:
    """A collector of an emulated stack, which has its figures."""
    _emulator(place)
    place.run(Command("", "servescope collect --config emulated/servescope.toml"))
    figures = "http://127.0.0.1:9900/api/v1/figures?deployment_id=chat-v2&name=request_rate"
    place.run(Command("", f"curl --silent --retry 120 --retry-delay 1 --retry-all-errors '{figures}'"))


def _collector_with_token(place: Place) -> None:
    """The same with a token, which reports of deploys need."""
    place.variables["TOKEN"] = "secret-of-ci"
    place.write("token", "secret-of-ci\n")
    text = (place.folder / "emulated/servescope.toml").read_text(encoding="utf-8")
    place.write("emulated/with-token.toml", f'[api]\nbearer_token_file = "{place.folder}/token"\n{text}')
    place.run(Command("", "servescope collect --config emulated/with-token.toml"))


# --- Page by page -----------------------------------------------------------------------------------------------------


def _readme(place: Place) -> None:
    _engine(place)
    place.write("models/chat/config.yaml", CONFIGURATION)
    place.write("cutover.toml", block("README.md", "[arms]"))


def _readme_past(place: Place) -> None:
    place.end_servers()
    _past(place)


def _customers(place: Place) -> None:
    """The collector and the customer of the page, in two files, and the backend of that customer."""
    _engine(place)
    receiver = place.closing.enter_context(Receiver())
    place.set_port(4318, int(receiver.url.split(":")[2].split("/")[0]))
    place.write("servescope.toml", block("docs/customers.md", "# servescope.toml"))
    place.write("customers.toml", block("docs/customers.md", "# customers.toml"))
    place.write("old.toml", block("docs/customers.md", "# customers.toml").replace(', "kv_cache_hit_rate"', ""))
    place.run(Command("", "servescope collect --config servescope.toml"))


def _sign_in(place: Place) -> None:
    _past(place)
    place.write("chat.toml", block("docs/cutover.md", "[arms]"))
    place.write(
        "secrets.toml",
        '[auth]\nredirect_uri = "https://console.example.com/oauth2callback"\n'
        'cookie_secret = "0123456789abcdef0123456789abcdef"\nclient_id = "console"\nclient_secret = "hidden"\n'
        'server_metadata_url = "https://login.example.com/.well-known/openid-configuration"\n',
    )


def _two_engines(place: Place) -> None:
    _engine(place)
    place.set_port(9000, place.port(8000))
    place.write("targets/chat-v2-1.json", '[{"targets": ["10.0.0.8:8000"]}]')
    place.write("token", "secret\n")
    configuration = block("docs/collector.md", "chat-v2-*.json")
    place.write("servescope.toml", configuration.replace("/run/secrets/metrics-token", "token"))


def _translator(place: Place) -> None:
    _engine(place)
    place.write("translate.toml", f'[translate]\ntargets = ["127.0.0.1/32:{place.port(8000)}"]\n')


def _scraping_prometheus(place: Place) -> None:
    """A Prometheus that scrapes an engine as the job `vllm`, now."""
    _engine(place)
    del place.variables["SERVESCOPE_CLOCK"]
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "vllm", "static_configs": [{"targets": [f"127.0.0.1:{place.port(ENGINE)}"]}]}],
    }
    prometheus = place.closing.enter_context(running(place.binaries["prometheus"], place.folder / "scraping", config))
    place.set_port(9090, prometheus.port)

    def several() -> bool:
        found = prometheus.read_samples("up", end_ms=time.time_ns() // 1_000_000, range_ms=60_000)
        return any(len(each.times) > 2 for each in found)

    wait_for(several, "three scrapes")


def _migration(place: Place) -> None:
    """A configuration, a folder of them, those of the backend server, and the traffic of a model."""
    _past_twice(place)
    place.instead["model_name=chat"] = "model_name=llama,inference_stack=v1"
    for name in ("config.yaml", "models/chat/config.yaml", "models/search/config.yaml"):
        place.write(name, CONFIGURATION)
    body = '{"llm_config": {"speculative_config": {"decoding_type": "NGram"}}}'
    place.write("llm_config.json", '{"speculative_config": {"decoding_type": "NGram"}}')
    place.write("body.json", body)
    place.write("optimization.json", OPTIMISATION)
    place.write("pipeline.json", '{"mode": "chat", "type": "llm", "loras": []}')
    shutil.copy(ROOT / "tests/emulator/traces/mooncake.jsonl", place.folder / "requests.jsonl")


def _unmigrated(place: Place) -> None:
    """The configuration as it was."""
    place.write("config.yaml", CONFIGURATION)


def _backend_server(place: Place) -> None:
    """The folder of a backend server has no `config.yaml` yet."""
    (place.folder / "config.yaml").unlink()


def _demo(place: Place) -> None:
    """The demo, with its emulator at the pages' port."""
    place.run(Command("", "servescope demo --directory demo"))

    def address() -> str | None:
        lists = sorted((place.folder / "demo" / "targets").glob("*.json"))
        found = [re.search(r"127\.0\.0\.1:(\d+)", path.read_text(encoding="utf-8")) for path in lists]
        return next((each[1] for each in found if each), None)

    port = int(wait_for(address, "the lists of the demo's targets"))
    place.set_port(9800, port)
    wait_for(lambda: answers(f"http://127.0.0.1:{port}/faults"), "the demo's emulator")


STAGES: Final[Mapping[str, tuple[Stage, ...]]] = {
    "README.md": (_readme,),
    "docs/api.md": (_collector,),
    "docs/collector.md": (_two_engines,),
    "docs/console.md": (_sign_in,),
    "docs/customer-backends.md": (_customers,),
    "docs/customers.md": (_customers,),
    "docs/cutover.md": (_past, _plan),
    "docs/dashboards.md": (_options,),
    "docs/demo.md": (_demo,),
    "docs/history.md": (_past_twice,),
    "docs/judge-gates.md": (_past_twice, _started),
    "docs/migration.md": (_migration,),
    "docs/translate.md": (_translator,),
    "docs/victoriametrics.md": (_past_twice,),
}
"""What is there before the first command of a page; nothing where a page is not named."""

BEFORE: Final[Mapping[tuple[str, str], Stage]] = {
    ("README.md", "servescope judge plan"): _readme_past,
    ("docs/judge-gates.md", "curl "): _gate,
    ("docs/history.md", "servescope import --from http://prometheus:9090 --store servescope.db --start"): (
        _scraping_prometheus
    ),
    ("docs/emulator-server.md", "servescope emulate"): Place.end_servers,
    ("docs/migration.md", "servescope migrate config.yaml --n-gram"): _unmigrated,
    (
        "docs/migration.md",
        "servescope migrate optimization.json --pipeline pipeline.json --checkpoint HF:owner/model --accelerator",
    ): _backend_server,
    ("docs/api.md", "curl -X POST"): _collector_with_token,
}
"""What changes before the command of a page that begins so."""

CODES: Final[Mapping[str, tuple[int, ...]]] = {
    "servescope judge run --plan cutover.toml --prometheus http://prometheus:9090 --journal": (0, 1),
    "servescope judge run": (0, 10, 11, 12),
    "curl --fail --silent --show-error": (0, 22),
    "servescope migrate models/ --check": (1,),
}
"""The exit codes of commands whose answer is one."""
