"""One collector among servers that do everything wrong at once: each costs its own scrapes, counted and named."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from servescope.collector.command import collect
from servescope.collector.config import read_configuration
from servescope.store.embedded import Store
from tests.support.authorities import Authority
from tests.support.collect_command import get
from tests.support.faulty_servers import FAULTS, HEALTHY, MAX_BODY_BYTES, answering
from tests.support.prometheus import free_port
from tests.support.slowness import slowness
from tests.support.waiting import deadline_seconds, wait_for

HEALTHY_SCRAPES = 6
CERTIFICATES: Mapping[str, tuple[str, bool, bool]] = {
    "expired certificate": ("127.0.0.1", True, True),
    "another name": ("other.example", False, True),
    "unknown authority": ("127.0.0.1", False, False),
}


@contextmanager
def serving_faults(authority: Authority) -> Iterator[Mapping[str, str]]:
    """The URL of each fault's server, by name; all of them run in a thread of their own."""
    urls: dict[str, str] = {}
    loop, started = asyncio.new_event_loop(), threading.Event()

    async def serve(stop: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            for name, fault in FAULTS.items():
                urls[name] = await stack.enter_async_context(answering(fault.serve))
            for name, (host, expired, _) in CERTIFICATES.items():
                tls = authority.server(host, expired=expired)
                urls[name] = await stack.enter_async_context(answering(HEALTHY, tls=tls))
            urls["healthy"] = await stack.enter_async_context(answering(HEALTHY))
            started.set()
            await stop.wait()

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(stop)))
    thread.start()
    try:
        assert started.wait(deadline_seconds())
        yield urls
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(deadline_seconds())
        loop.close()


def configuration(urls: Mapping[str, str], port: int, ca: Path) -> str:
    """One target for each server, in one deployment."""
    tables = []
    for name, url in urls.items():
        known = name in CERTIFICATES and CERTIFICATES[name][2]
        authority = f"tls_ca_file = {str(ca)!r}" if known else ""
        # Only what never answers is waited for in vain; whatever else is wrong is found however slow the machine is.
        timeout = 'scrape_timeout = "400ms"' if name in FAULTS and FAULTS[name].outcome == "timeout" else ""
        tables.append(f"[[deployments.targets]]\nurl = '{url}/metrics'\nreplica = '{name}'\n{authority}\n{timeout}\n")
    interval_ms = round(1000 * slowness())
    return f"""
[collector]
listen = "127.0.0.1:{port}"
scrape_interval = "{interval_ms}ms"
scrape_timeout = "{interval_ms}ms"
evaluation_interval = "{interval_ms}ms"
window = "{60 * interval_ms}ms"
max_body_bytes = {MAX_BODY_BYTES}
[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v1"
{"".join(tables)}
"""


def scrape_counts(page: str) -> Counter[str]:
    return Counter(
        {
            outcome: int(float(n))
            for outcome, n in re.findall(r'servescope_scrapes_total\{outcome="(\w+)"\} (\S+)', page)
        }
    )


@pytest.mark.slow
def test_every_fault_at_once_disturbs_no_healthy_target(tmp_path: Path) -> None:
    """The healthy one misses no scrape; every fault is counted by outcome, and named by target and cause."""
    authority, port = Authority(tmp_path), free_port()
    base = f"http://127.0.0.1:{port}"
    expected = {name: (fault.outcome, fault.cause) for name, fault in FAULTS.items()}
    expected |= dict.fromkeys(CERTIFICATES, ("tls", "certificate refused: "))
    expected |= {"no such name": ("dns", "cannot find host"), "dead port": ("unreachable", "Connection refused")}

    def look() -> tuple[str, dict[str, Any]] | None:
        """The page once the healthy target was scraped often enough, and every other one at least once."""
        page = get(f"{base}/metrics")
        targets = {each["identity"]["replica"]: each for each in json.loads(get(f"{base}/api/v1/targets"))["targets"]}
        done = all(each["last_scrape_ms"] for each in targets.values())
        return (page, targets) if done and scrape_counts(page)["ok"] >= HEALTHY_SCRAPES else None

    async def run(urls: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
        dead = f"http://127.0.0.1:{free_port()}"
        everything = {**urls, "no such name": "http://no-such-host.invalid", "dead port": dead}
        (tmp_path / "servescope.toml").write_text(configuration(everything, port, authority.path))
        stop = asyncio.Event()
        collecting = asyncio.create_task(collect(read_configuration(tmp_path / "servescope.toml"), stop))
        try:
            return await asyncio.to_thread(wait_for, look, "a scrape of every target", ignoring=(OSError,))
        finally:
            stop.set()
            await collecting

    with serving_faults(authority) as urls:
        page, targets = asyncio.run(run(urls))

    counted = scrape_counts(page)
    assert targets["healthy"]["healthy"]
    for name, (outcome, cause) in expected.items():
        assert counted[outcome] >= 1, outcome
        assert not targets[name]["healthy"], name
        assert str(targets[name]["error"]).startswith(targets[name]["url"]), name
        # A machine that is busy reads what was sent a moment later with what came before it.
        causes = (cause, "not HTTP") if name == "chunk lying later" else (cause,)
        assert any(each in str(targets[name]["error"]) for each in causes), name
    least = Counter(outcome for outcome, _ in expected.values())
    assert all(counted[outcome] >= count for outcome, count in least.items())
    assert counted["internal"] == 0
    with Store(tmp_path / "servescope.db", read_only=True) as store:
        scrapes = store.read_scrapes(targets["healthy"]["target_id"], 0, 1 << 43)
    times = [time_ms for time_ms, _ in scrapes]
    assert len(scrapes) >= HEALTHY_SCRAPES
    assert all(snapshot is not None for _, snapshot in scrapes)
    # A scrape that a busy machine begins late is in the second of the next one.
    assert len({time_ms // 1000 for time_ms in times}) >= HEALTHY_SCRAPES // 2, times
