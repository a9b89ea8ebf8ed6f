"""`servescope import`: the past of a real Prometheus becomes the scrapes and figures a collector would have stored."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from servescope.collector.config import CollectorSettings
from servescope.collector.importing.importer import Import
from servescope.collector.targets.target import Target
from servescope.contract.expressions import promql
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment, Identity
from servescope.contract.samples import Snapshot
from servescope.sources.reader import Reader
from servescope.store.embedded import Store
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.selectors import format_time
from servescope.store.prometheus.targets import find_contract_targets, find_engines
from servescope.store.records import RecordedSettings
from tests.support import commands
from tests.support import prometheus as real
from tests.support.fake_targets import FakeTarget, Incident, serving
from tests.support.past import INTERVAL_MS, Scraped, a_day_ago, compare_figure, remembering, write_blocks
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

COUNT = 100
CHAT = Deployment("llama-70b", "chat-v2", "v2")
ENGINE = Deployment("llama-70b", "chat-v1", "vllm-0.32")
SETTINGS = CollectorSettings()


@dataclass(frozen=True)
class Past:
    """A Prometheus with history, and what its targets answered at each instant; None where a scrape failed."""

    url: str
    prometheus: real.Prometheus
    start_ms: int
    end_ms: int
    answers: Mapping[Identity, Mapping[int, str | None]]


def vllm_text(step: int, replica: int) -> str:
    """What an engine with vLLM's names shows at a step; it restarts at step 60."""
    done = (step % 60) * (3 + replica)
    labels = 'model_name="m",engine="0"'
    lines = [
        f"vllm:prompt_tokens_total{{{labels}}} {done * 210.0}",
        f"vllm:generation_tokens_total{{{labels}}} {done * 97.0}",
        f"vllm:num_requests_running{{{labels}}} {step % 7}",
        f"vllm:num_requests_waiting{{{labels}}} {step % 3}",
        f"vllm:kv_cache_usage_perc{{{labels}}} {(step % 9) / 10}",
        f'vllm:request_success_total{{{labels},finished_reason="stop"}} {float(done)}',
        f'vllm:request_success_total{{{labels},finished_reason="length"}} {done // 4}',
        f"vllm:prefix_cache_queries_total{{{labels}}} {done * 210}",
        f"vllm:unheard_of_total{{{labels}}} {done}",
        f"python_gc_objects_collected_total {step}",
    ]
    for name in ("vllm:e2e_request_latency_seconds", "vllm:inter_token_latency_seconds"):
        for edge, share in (("0.3", 0.1), ("1.0", 0.5), ("5", 0.9), ("+Inf", 1.0)):
            lines.append(f'{name}_bucket{{{labels},le="{edge}"}} {math.floor(done * share)}')
        lines += [f"{name}_sum{{{labels}}} {done * 1.37}", f"{name}_count{{{labels}}} {done}"]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def past(prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    """25 minutes of two of our engines and two of vLLM's, with failures, restarts and series that come and go."""
    start_ms = a_day_ago()
    times = range(start_ms, start_ms + COUNT * INTERVAL_MS, INTERVAL_MS)
    ours = [
        FakeTarget("r0", Identity("llama-70b", "chat-v2", "v2", replica="r0"), 1, (
            Incident(300, 500, missing="spec_decode*"), Incident(700, 701, restart=True),
        )),
        FakeTarget("r1", Identity("llama-70b", "chat-v2", "v2", replica="r1"), 2, (
            Incident(400, 520, answer="500"), Incident(900, 930, answer="500"),
        )),
    ]  # fmt: skip
    scrapes, answers = [], {}
    for number, target in enumerate(ours):
        attached = {"job": "instruments", "instance": f"10.0.0.{number}:9000", "pod": f"chat-{number}"}
        answers[target.identity] = texts = {
            time_ms: None if target.failure(elapsed) else target.exposition(elapsed)
            for time_ms in times
            for elapsed in [(time_ms - start_ms) / 1000]
        }
        scrapes += [Scraped(time_ms, attached, text) for time_ms, text in texts.items()]
    for replica in range(2):
        instance = f"10.0.1.{replica}:8000"
        identity = Identity("llama-70b", "chat-v1", "vllm-0.32", replica=instance)
        answers[identity] = {
            time_ms: None if step in (20, 21) and replica else vllm_text(step, replica)
            for step, time_ms in enumerate(times)
        }
        # The engine's own label of this name is in the way of Prometheus' and was renamed by it.
        attached = {"job": "vllm", "instance": instance, "model_name": "llama-70b"}
        scrapes += [Scraped(time_ms, attached, text) for time_ms, text in answers[identity].items()]
    folder = tmp_path_factory.mktemp("past")
    write_blocks(scrapes, promtool, folder)
    with remembering(prometheus, folder) as running:
        yield Past(f"http://127.0.0.1:{running.port}", running, start_ms, times[-1], answers)


@pytest.fixture(scope="module")
def whole(past: Past, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one import of all of it, which no test writes."""
    path = tmp_path_factory.mktemp("whole") / "s.db"
    assert import_(past, path, *span(past)).returncode == 0
    return path


def import_(past: Past, path: Path, *arguments: str) -> commands.Done:
    """Run the command as a user does."""
    return commands.run("import", "--from", past.url, "--store", str(path), *arguments)


def span(past: Past) -> list[str]:
    """The arguments that ask for all of it."""
    return ["--start", format_time(past.start_ms), "--end", format_time(past.end_ms)]


def content(path: Path, past: Past) -> dict[str, object]:
    """All that a store holds of the time."""
    with Store(path, read_only=True) as store:
        scrapes = {
            target.target_id: [
                (time_ms, None if snapshot is None else sorted(snapshot.samples()))
                for time_ms, snapshot in store.read_scrapes(target.target_id, 0, past.end_ms)
            ]
            for target in store.targets()
        }
        figures = {
            deployment: {
                key: (table.times.tolist(), [value if value == value else None for value in values.tolist()])
                for table in [store.read_figures(deployment, 0, past.end_ms)]
                for key, values in table.values.items()
            }
            for deployment in store.deployments()
        }
    return {"scrapes": scrapes, "figures": figures}


def expected(past: Past, identity: Identity) -> list[tuple[int, Snapshot | None]]:
    """What a collector would have made of a target's answers."""
    reader = Reader(identity)
    return [
        (time_ms, None if text is None else reader.read(text.encode()).snapshot)
        for time_ms, text in past.answers[identity].items()
    ]


def sampled(scrapes: list[tuple[int, Snapshot | None]]) -> list[tuple[int, object]]:
    return [(time_ms, snapshot and sorted(snapshot.samples())) for time_ms, snapshot in scrapes]


def test_our_instruments_come_back_scrape_by_scrape(past: Past, whole: Path) -> None:
    """Contract series with their identity need no mapping: every scrape is what a collector would have stored."""
    with Store(whole, read_only=True) as store:
        assert [target.identity.replica for target in store.targets()] == ["r0", "r1"]
        for target in store.targets():
            stored = store.read_scrapes(target.target_id, past.start_ms, past.end_ms)
            assert sampled(stored) == sampled(expected(past, target.identity))


def test_engines_are_read_by_their_source_maps(past: Past, tmp_path: Path) -> None:
    """Engines a Prometheus scraped itself are translated; series that no map reads are named."""
    path = tmp_path / "s.db"
    done = import_(
        past, path, *span(past), "--match", '{job="vllm"}', "--deployment", "chat-v1", "--model-name", "llama-70b",
        "--inference-stack", "vllm-0.32",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no source map reads vllm:unheard_of_total" in done.stdout
    assert "python_gc" not in done.stdout
    with Store(path, read_only=True) as store:
        targets = store.targets()
        assert [(target.source, target.healthy) for target in targets] == [("vllm", True)] * 2
        for target in targets:
            stored = store.read_scrapes(target.target_id, past.start_ms, past.end_ms)
            assert sampled(stored) == sampled(expected(past, target.identity))


def test_figures_of_the_past_are_those_of_the_recording_rules(past: Past, whole: Path) -> None:
    """At every instant the store's figure is what Prometheus computes over the same samples."""
    compared = 0
    with Store(whole, read_only=True) as store:
        table = store.read_figures(CHAT, past.start_ms, past.end_ms)
        assert table.times.tolist() == list(range(-(-past.start_ms // 15_000) * 15_000, past.end_ms + 1, 15_000))
        for figure in FIGURES.values():
            if figure.name == "replica_count_by_status" or _reads_gauges(figure.name):
                continue  # counted by the collector itself; and blocks made by promtool have no stale markers
            rule = promql(figure.expression, window="5m", by=(*DEPLOYMENT_LABELS, *figure.by))
            tracks = past.prometheus.query_range(
                rule, start_ms=int(table.times[0]), end_ms=int(table.times[-1]), step_ms=15_000
            )
            for track in (track for track in tracks if dict(track.labels)["deployment_id"] == "chat-v2"):
                compared += compare_figure(figure, table, track)
    assert compared > 1_000


def _reads_gauges(name: str) -> bool:
    from servescope.contract.expressions import Level

    return isinstance(FIGURES[name].expression, Level)


def test_importing_twice_changes_nothing(past: Past, whole: Path, tmp_path: Path) -> None:
    """A second import finds everything there and fetches nothing again."""
    path = tmp_path / "s.db"
    shutil.copy(whole, path)
    before = content(path, past)
    done = import_(past, path, *span(past))
    assert content(path, past) == before
    assert "0 scrapes imported" in done.stdout
    assert f"{COUNT} scrapes were in the store already" in done.stdout


def test_the_window_of_imported_figures_is_recorded(past: Past, tmp_path: Path) -> None:
    """What the console names as their window; figures behind them keep their own."""
    path = tmp_path / "s.db"
    later = RecordedSettings(600_000, 30_000, 15_000, "closed")
    with Store(path) as store, store.transaction():
        store.record_settings(past.end_ms + 50_000, later)
    start_ms = past.end_ms - 60_000
    import_(past, path, "--start", format_time(start_ms), "--end", format_time(past.end_ms))
    with Store(path, read_only=True) as store:
        assert store.settings_at(start_ms) == RecordedSettings(300_000, 15_000, 15_000, "closed")
        assert store.settings_at(past.end_ms + 60_000) == later


def test_an_interrupted_import_is_resumed(past: Past, whole: Path, tmp_path: Path) -> None:
    """An import that fails on the way keeps its whole stretches, and the next one adds the rest."""
    pieces = tmp_path / "pieces.db"

    def end(_: object) -> None:
        raise KeyboardInterrupt

    client = Prometheus(past.url)
    targets, _ = find_contract_targets(client, start_ms=past.start_ms, end_ms=past.end_ms)
    with Store(pieces) as store, pytest.raises(KeyboardInterrupt):
        Import(client, store, targets, SETTINGS).run(past.start_ms, past.end_ms, end)
    with Store(pieces, read_only=True) as store:
        (first, last) = store.time_range() or (0, 0)
        assert first < last < past.end_ms
    assert import_(past, pieces, *span(past)).returncode == 0
    assert content(pieces, past) == content(whole, past)


def test_older_past_is_added_before_what_is_there(past: Past, whole: Path, tmp_path: Path) -> None:
    """The second half first and then the whole gives what the whole gives at once."""
    pieces = tmp_path / "pieces.db"
    import_(past, pieces, "--start", format_time(past.start_ms + 700_000), "--end", format_time(past.end_ms))
    import_(past, pieces, *span(past))
    assert content(pieces, past)["scrapes"] == content(whole, past)["scrapes"]
    with Store(pieces, read_only=True) as in_pieces, Store(whole, read_only=True) as at_once:
        ours, theirs = (store.read_figures(CHAT, 0, past.end_ms) for store in (in_pieces, at_once))
    assert ours.times.tolist() == theirs.times.tolist()
    assert ours.values.keys() == theirs.values.keys()
    for key, values in theirs.values.items():
        # Sums of many series may differ in their last bit by the order in which these are read.
        assert ours.values[key] == pytest.approx(values, rel=1e-12, abs=1e-12, nan_ok=True), key


def test_a_collectors_own_scrapes_stay_alone(past: Past, whole: Path, tmp_path: Path) -> None:
    """Where a collector scraped a target itself, the same time is not imported a second time from a Prometheus."""
    path = tmp_path / "s.db"
    identity = next(iter(past.answers))
    target = Target("http://r0/metrics", identity)
    own = [(time_ms + 4_000, snapshot) for time_ms, snapshot in expected(past, identity)[30:60]]
    with Store(whole, read_only=True) as other:
        status = next(each for each in other.targets() if each.target_id == target.target_id)
    with Store(path) as store, store.transaction():
        store.set_target(replace(status, url=target.url, last_scrape_ms=past.end_ms + 1))
        for time_ms, snapshot in own:
            store.append_scrape(target.target_id, time_ms, snapshot)
    done = import_(past, path, *span(past))
    assert done.returncode == 0, done.stderr
    with Store(path, read_only=True) as store:
        times = [time_ms for time_ms, _ in store.read_scrapes(target.target_id, 0, past.end_ms)]
        assert [time_ms for time_ms in times if own[0][0] <= time_ms <= own[-1][0]] == [time_ms for time_ms, _ in own]
        assert min(later - earlier for earlier, later in pairwise(times)) >= INTERVAL_MS
        assert next(each for each in store.targets() if each.target_id == target.target_id).url == target.url


def test_a_store_that_is_being_written_is_refused(past: Past, tmp_path: Path) -> None:
    """One store has one writer: while a collector runs, the import says so and changes nothing."""
    path = tmp_path / "s.db"
    with Store(path):
        done = import_(past, path, *span(past))
    assert done.returncode == 1
    assert "another collector" in done.stderr


def test_a_prometheus_without_the_contract_is_an_error_with_the_remedy(past: Past, tmp_path: Path) -> None:
    """Where a Prometheus scraped engines, an import without a mapping says how to name them."""
    done = import_(past, tmp_path / "s.db", *span(past), "--match", '{job="vllm"}')
    assert done.returncode == 2
    assert "--deployment ID --match" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_configuration_names_the_engines_of_several_deployments(past: Past, tmp_path: Path) -> None:
    """`[[import]]` tables say which series belong to which of the configuration's deployments."""
    config = tmp_path / "servescope.toml"
    config.write_text(
        '[[deployments]]\ndeployment_id = "chat-v1"\nmodel_name = "llama-70b"\ninference_stack = "vllm-0.32"\n'
        'targets = [{url = "http://127.0.0.1:1/metrics"}]\n'
        '[[import]]\ndeployment_id = "chat-v1"\nmatch = \'{job="vllm"}\'\n',
        encoding="utf-8",
    )
    done = import_(past, tmp_path / "s.db", *span(past), "--config", str(config))
    assert done.returncode == 0, done.stderr
    with Store(tmp_path / "s.db", read_only=True) as store:
        assert store.deployments() == [ENGINE]
    config.write_text(config.read_text(encoding="utf-8").replace("match", "matches"), encoding="utf-8")
    refused = import_(past, tmp_path / "s.db", *span(past), "--config", str(config))
    assert refused.returncode == 2
    assert "unknown key 'import[0].matches'" in refused.stderr


def test_engines_without_an_up_are_distinguished_by_job_and_instance(past: Past) -> None:
    """A match that no `up` has still finds the engines, whose scrapes are then the instants of their samples."""
    client = Prometheus(past.url)
    found = find_engines(
        client, '{job="vllm",engine="0"}', ENGINE, role="aggregated", replica_label="instance", source=None,
        start_ms=past.start_ms, end_ms=past.end_ms,
    )  # fmt: skip
    assert [(each.identity.replica, each.has_up) for each in found] == [
        ("10.0.1.0:8000", False), ("10.0.1.1:8000", False),
    ]  # fmt: skip


@pytest.mark.proof
def test_a_target_that_left_ends_where_it_ended_for_prometheus(prometheus: Path, tmp_path: Path) -> None:
    """The API returns no stale markers, and yet a gauge of a target that left counts no longer than it did there."""
    identities = {name: Identity("m", "chat", "v2", replica=name) for name in ("stays", "leaves")}
    leaving = FakeTarget("leaves", identities["leaves"], 2, known=((0, 3),))
    targets = [FakeTarget("stays", identities["stays"], 1), leaving]
    discovery = tmp_path / "targets.json"
    job = {"job_name": "chat", "scrape_interval": "250ms", "scrape_timeout": "200ms"}
    config = {"scrape_configs": [{**job, "file_sd_configs": [{"files": [str(discovery)]}]}]}
    with serving(targets, discovery) as server, real.running(prometheus, tmp_path, config) as running:

        def has_left() -> bool:
            server.write_discovery()
            moment = time.time_ns() // 1_000_000 - 4_000
            return server.elapsed() > 3 and not running.query('count(up{instance="leaves"})', at_ms=moment)

        wait_for(has_left, "four seconds without the target that discovery took away")
        end_ms = time.time_ns() // 1_000_000 - 500
        start_ms = end_ms - round(server.elapsed() * 1000)
        client = Prometheus(f"http://127.0.0.1:{running.port}")
        found, problems = find_contract_targets(client, start_ms=start_ms, end_ms=end_ms)
        assert (len(found), problems) == (2, [])
        settings = replace(SETTINGS, window_ms=3_000, evaluation_interval_ms=250)
        deployment = Deployment("m", "chat", "v2")
        with Store(tmp_path / "s.db") as store:
            work = Import(client, store, found, settings)
            work.run(start_ms, end_ms)
            table = store.read_figures(deployment, start_ms, end_ms)
            left_ms, last = store.read_scrapes(Target("", leaving.identity).target_id, start_ms, end_ms)[-1]
        assert last is None
        theirs = {
            time_ms: value
            for track in running.query_range(
                promql(FIGURES["concurrent_requests"].expression, window="3s", by=DEPLOYMENT_LABELS),
                start_ms=int(table.times[0]), end_ms=int(table.times[-1]), step_ms=250,
            )
            for time_ms, value in zip(track.times, track.values, strict=True)
        }  # fmt: skip
    ours = dict(zip(table.times.tolist(), table.values["concurrent_requests"].tolist(), strict=True))
    # The marker is where the next scrape would have been, which is known to within the scrape's own delay.
    unsure = range(left_ms - 300, left_ms + 300)
    behind = [time_ms for time_ms in theirs if time_ms > left_ms + 300]
    assert len(behind) > 3
    wrong = [time_ms for time_ms in theirs if time_ms not in unsure and ours.get(time_ms) != theirs[time_ms]]
    assert wrong == []


def test_a_store_is_imported_into_only_as_it_should_be(past: Past, tmp_path: Path) -> None:
    """What a clock that was ahead left in it is dropped first; no time later than now, and no file of several names."""
    path = tmp_path / "s.db"
    now_ms = round(time.time() * 1000)
    with Store(path) as store:
        store.append_figures(CHAT, now_ms + 540_000, {"request_rate": 777.0})
    done = import_(past, path, *span(past))
    assert done.returncode == 0
    assert "servescope: the clock was set back from " in done.stderr
    with Store(path, read_only=True) as store:
        held = store.time_range()
        assert held is not None
        assert held[1] <= past.end_ms
    (tmp_path / "other.db").hardlink_to(path)
    done = import_(past, tmp_path / "other.db", *span(past))
    assert (done.returncode, "has 2 names (hard links)" in done.stderr) == (2, True)
    done = import_(past, path, "--end", "2099-01-01T00:00:00Z")
    assert done.returncode == 2
    assert "--end '2099-01-01T00:00:00Z' is later than now, " in done.stderr
