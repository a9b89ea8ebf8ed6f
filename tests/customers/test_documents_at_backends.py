"""What a customer is given works where its metrics are stored: each panel and each alert, asked of the backend."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate, product
from pathlib import Path
from typing import Final

import pytest

from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, REPLICA_START_TIME
from servescope.contract.samples import Labels, Sample, Snapshot, format_edge, make_labels
from servescope.contract.types import Metric
from servescope.customers.lanes.cursors import CursorFile, LaneId
from servescope.customers.points.naming import known_labels
from servescope.customers.policy.policy import Naming
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from tests.customers.support.otlp_prometheus import OtlpPrometheus
from tests.support import prometheus, victoria_metrics
from tests.support.commands import run
from tests.support.documents import read_yaml
from tests.support.programs import answers, program
from tests.support.prometheus import Prometheus, free_port
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

MINUTE = 60_000
QUIET_MS = 9 * MINUTE
"""For how long one deployment has been silent at the end."""
BACKFILL_MS = 14 * MINUTE
REMOTE_WRITE = "remote-write"


@dataclass(frozen=True)
class Customer:
    """One of the customers: its naming and labels, and what its deployments are called by the label that names them."""

    name: str
    naming: Naming
    resolution: str = "deployment"
    labels: tuple[str, ...] = ("deployment_id", "model_name")
    renames: Mapping[str, str] | None = None

    @property
    def shows_id(self) -> bool:
        """Whether it is told of its deployments by their ids, and not by their models alone."""
        return "deployment_id" in self.labels

    def deployment(self, state: str, replica: str = "") -> Identity:
        """Its deployment that is `live`, or `quiet` in the end."""
        return Identity(f"{self.name}-{state}-model", f"{self.name}-{state}", "v2", "prod", replica=replica)

    def known_as(self, state: str) -> str:
        """What distinguishes that deployment's series from all others: some value of a label has it."""
        identity = self.deployment(state)
        return identity.deployment_id if self.shows_id else identity.model_name


CUSTOMERS = (
    Customer("plain", Naming.DOCUMENTED),
    Customer("prefixed", Naming.PREFIX, "replica", renames={"deployment_id": "service", "outcome": "result"}),
    Customer("otel", Naming.OTEL, "replica"),
    Customer("anonymous", Naming.OTEL, labels=("model_name",), renames={"outcome": "request.outcome"}),
)
EVERY_CUSTOMER = tuple(
    Customer(f"{naming.value}-{resolution}-{place}", naming, resolution, labels, renames)
    for naming, resolution, (place, (labels, renames)) in product(
        Naming,
        ("deployment", "replica"),
        enumerate(
            (
                (("deployment_id",), {}),
                (("model_name", "environment"), {"model_name": "model"}),
                (("deployment_id", "model_name", "inference_stack", "environment", "rollout_phase"),
                 {"deployment_id": "service", "outcome": "result", "window": "over"}),
            )
        ),
    )
)  # fmt: skip


def test_each_panel_and_each_alert_has_what_it_asks_for(
    prometheus_3: Path, prometheus: Path, victoria_metrics: Path, tmp_path: Path
) -> None:
    """In the three namings, of deployments and replicas, with renames, at each backend that answers PromQL."""
    binaries = {"prometheus": prometheus_3, "victoriametrics": victoria_metrics, REMOTE_WRITE: prometheus}
    check(CUSTOMERS, binaries, ("prometheus", "victoriametrics", "victoriametrics-prometheus", REMOTE_WRITE), tmp_path)


@pytest.mark.proof
def test_each_panel_and_each_alert_under_every_naming(
    prometheus_3: Path, prometheus: Path, victoria_metrics: Path, tmp_path: Path
) -> None:
    """Every naming, resolution and set of labels; also with the names that a Mimir has by default."""
    binaries = {"prometheus": prometheus_3, "victoriametrics": victoria_metrics, REMOTE_WRITE: prometheus}
    every = ("prometheus", "mimir", "victoriametrics", "victoriametrics-prometheus", REMOTE_WRITE)
    check(EVERY_CUSTOMER, binaries, every, tmp_path)


def check(customers: Sequence[Customer], binaries: Mapping[str, Path], kinds: Sequence[str], folder: Path) -> None:
    """Store, send, and ask."""
    now_ms = time.time_ns() // 1_000_000
    boundary_ms = (now_ms - 10_000) // MINUTE * MINUTE
    ends = {
        customer.deployment(state, f"pod-{number}"): now_ms if state == "live" else boundary_ms - QUIET_MS
        for customer, state, number in product(customers, ("live", "quiet"), range(2))
    }
    write_full_past(folder / "past.db", ends, boundary_ms - BACKFILL_MS - MINUTE)
    with backends(kinds, binaries, folder) as (servers, urls):
        write_configuration(folder, customers, urls)
        deliver(folder, [LaneId(each.name, kind) for each in customers for kind in kinds_of(each, urls)], boundary_ms)
        for kind in servers:
            if kind.startswith("victoriametrics"):
                victoria_metrics.VictoriaMetrics(servers[kind].port).flush()
        for customer in customers:
            asked = ask_everything(customer, servers, folder, boundary_ms)
            assert asked == set(kinds_of(customer, urls))


@contextmanager
def backends(
    kinds: Iterable[str], binaries: Mapping[str, Path], folder: Path
) -> Iterator[tuple[dict[str, Prometheus], dict[str, str]]]:
    """The servers that answer, and the addresses that are sent to, by the names of destinations."""
    servers: dict[str, Prometheus] = {}
    urls: dict[str, str] = {}
    with ExitStack() as ends:
        for kind in kinds:
            place = folder / kind
            if kind.startswith("victoriametrics"):
                options = ("-opentelemetry.usePrometheusNaming",) if kind != "victoriametrics" else ()
                victoria = ends.enter_context(
                    victoria_metrics.running(binaries["victoriametrics"], place, options=options)
                )
                servers[kind], urls[kind] = victoria.reader, victoria.otlp_url
                continue
            binary = binaries[REMOTE_WRITE if kind == REMOTE_WRITE else "prometheus"]
            options = ("--web.enable-remote-write-receiver",)
            servers[kind] = ends.enter_context(prometheus.running(binary, place, {}, options=options))
            urls[kind] = f"http://127.0.0.1:{servers[kind].port}/api/v1/write"
            if kind != REMOTE_WRITE:
                receiver = OtlpPrometheus(urls[kind], suffixes=kind == "prometheus")
                urls[kind] = ends.enter_context(receiver).url
        yield servers, urls


def kinds_of(customer: Customer, urls: Iterable[str]) -> list[str]:
    """The destinations of a customer: names with dots are for OTLP alone."""
    return [kind for kind in urls if kind != REMOTE_WRITE or customer.naming is not Naming.OTEL]


def write_configuration(folder: Path, customers: Sequence[Customer], urls: Mapping[str, str]) -> None:
    """Each customer with two deployments, everything that it may receive, and all destinations."""
    collector, configured = [], ['collector = "servescope.toml"\n']
    own = [label for label in known_labels() if label not in Identity.__dataclass_fields__]
    for customer in customers:
        replicas = customer.resolution == "replica"
        exported = [*customer.labels, *own, *(["replica"] if replicas else [])]
        configured += [
            "[[customers]]",
            f'name = "{customer.name}"',
            f'naming = "{customer.naming.value}"',
            *(['prefix = "acme_"'] if customer.naming is Naming.PREFIX else []),
            'metrics = ["all"]',
            'figures = ["all"]',
            f"labels = {exported}",
            f'resolution = "{customer.resolution}"',
            *(['replicas = "plain"'] if replicas else []),
            "[customers.renames]",
            *(f'{label} = "{name}"' for label, name in (customer.renames or {}).items()),
        ]
        for state in ("live", "quiet"):
            identity = customer.deployment(state)
            described = [
                f'{label} = "{getattr(identity, label)}"'
                for label in ("model_name", "deployment_id", "inference_stack", "environment")
            ]
            configured += ["[[customers.deployments]]", *described, 'since = "2020-01-01T00:00:00Z"']
            collector += ["[[deployments]]", *described, "fixed_labels = true"]
            collector += [f'targets = [{{ url = "http://127.0.0.1:9/{identity.deployment_id}" }}]']
        for kind in kinds_of(customer, urls):
            protocol = REMOTE_WRITE if kind == REMOTE_WRITE else "otlp-http"
            configured += [
                "[[customers.push]]",
                f'name = "{kind}"',
                f'protocol = "{protocol}"',
                *([f'stores_names_as = "{kind}"'] if protocol != REMOTE_WRITE else []),
                f'url = "{urls[kind]}"',
                f'backfill = "{BACKFILL_MS // MINUTE}m"',
            ]
    (folder / "servescope.toml").write_text("\n".join(collector), encoding="utf-8")
    (folder / "customers.toml").write_text("\n".join(configured), encoding="utf-8")


def deliver(folder: Path, lanes: Sequence[LaneId], boundary_ms: int) -> None:
    """Run the export until every lane has the edge, and nothing was refused on the way."""
    addresses = (f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    command = [
        sys.executable, "-m", "servescope.cli", "customers", "run", "--config", "customers.toml", "--store", "past.db",
        "--listen", addresses[0], "--pull-listen", addresses[1],
    ]  # fmt: skip
    log = folder / "run.log"
    with program(command, log) as process:
        wait_for(lambda: answers(f"http://{addresses[0]}/healthz"), "the export", process=process, log=log)
        with CursorFile(folder / "customers.cursors.db") as cursors:

            def has_all(lane: LaneId) -> bool:
                cursor = cursors.cursor(lane)
                return cursor is not None and cursor.state.boundary_ms >= boundary_ms

            wait_for(lambda: all(map(has_all, lanes)), "all lanes", process=process, log=log)
            assert not [gap for lane in lanes for gap in cursors.gaps(lane, 0, 2**60)]


def ask_everything(customer: Customer, servers: Mapping[str, Prometheus], folder: Path, boundary_ms: int) -> set[str]:
    """Ask the queries of all files of a customer at the destinations that they are for, which are returned."""
    output = folder / f"given-to-{customer.name}"
    done = run(
        "customers", "document", customer.name, "--config", str(folder / "customers.toml"), "--output", str(output)
    )
    assert done.returncode == 0, done.stderr
    readme = (output / "README.md").read_text(encoding="utf-8")
    asked: set[str] = set()
    for board, rules, listed in re.findall(r"^- `(.*)` and `(.*)` have the names .* at (.*)\.$", readme, re.MULTILINE):
        panels = [
            panel["targets"][0]["expr"].replace("$__rate_interval", "5m")
            for panel in json.loads((output / board).read_text(encoding="utf-8"))["panels"]
            if panel["type"] == "timeseries"
        ]
        (group,) = read_yaml((output / rules).read_text(encoding="utf-8"))["groups"]
        silence = [rule["expr"] for rule in group["rules"] if rule["alert"].endswith("MetricsMissing")]
        budgets = [rule["expr"] for rule in group["rules"] if rule["alert"].endswith("BudgetBurn")]
        assert (len(panels), len(budgets), len(silence)) == (len(FIGURES), 6, 2)
        # With bounds that every error rate is above.
        met = [re.sub(r"\) > [\d.e-]+", ") >= -1", expression) for expression in budgets]
        for kind in re.findall("`(.*?)`", listed):
            asked.add(kind)
            assert missing(customer, [*panels, *met], servers[kind], boundary_ms) == [], (customer.name, kind)
            check_silence(customer, silence, servers[kind], boundary_ms)
    return asked


def missing(customer: Customer, queries: Sequence[str], server: Prometheus, boundary_ms: int) -> list[str]:
    """The queries that have no result of the deployment that is live."""
    known = customer.known_as("live")

    def has_result(query: str) -> bool:
        # VictoriaMetrics leaves out what came within the last half minute.
        found = server.query(query, at_ms=boundary_ms - MINUTE)
        return any(known in value for each in found for _, value in each.labels)

    return [query for query in queries if not has_result(query)]


def check_silence(customer: Customer, silence: Sequence[str], server: Prometheus, boundary_ms: int) -> None:
    """The alert is of the deployment that is silent, of none before, and of both once both are; it names them."""

    def named(at_ms: int) -> list[str]:
        found = [str(each.labels) for query in silence for each in server.query(query, at_ms=at_ms)]
        return sorted(state for labels in found for state in ("live", "quiet") if customer.known_as(state) in labels)

    assert named(boundary_ms - QUIET_MS - MINUTE) == []
    assert named(boundary_ms - MINUTE) == ["quiet"]
    assert named(boundary_ms + 20 * MINUTE) == ["live", "quiet"]


SCRAPE_MS: Final = 30_000
_EVENTS: Final = 3
"""How many events of each kind there are between two scrapes."""


def write_full_past(path: Path, until_ms: Mapping[Identity, int], start_ms: int) -> None:
    """Scrapes and figures of each replica from a time until its own."""
    with Store(path) as store, store.transaction():
        for identity, end_ms in until_ms.items():
            store.set_target(
                TargetStatus(identity.target_id, "http://127.0.0.1:9/metrics", identity, scrape_interval_ms=SCRAPE_MS)
            )
            page = list(_page(identity, start_ms))
            for number, time_ms in enumerate(range(start_ms, end_ms + 1, SCRAPE_MS), 1):
                snapshot = Snapshot.of(
                    [each._replace(value=each.value * number) if grows else each for each, grows in page]
                )
                store.append_scrape(identity.target_id, time_ms, snapshot)
                store.append_figures(identity.deployment(), time_ms, dict.fromkeys(_figure_keys(), 0.5))


def _page(identity: Identity, start_ms: int) -> Iterator[tuple[Sample, bool]]:
    """The first scrape of a replica, and what of it is counted up: the n-th has n times as much."""
    for metric in METRICS.values():
        for labels in _label_sets(metric, identity):
            if metric.kind == "histogram":
                yield from ((sample, True) for sample in _histogram(metric, labels))
            elif metric.name == REPLICA_START_TIME:
                yield Sample(metric.name, labels, start_ms / 1000), False
            else:
                is_counter = metric.kind == "counter"
                yield Sample(metric.name, labels, float(_EVENTS) if is_counter else 0.5), is_counter


def _label_sets(metric: Metric, identity: Identity) -> Iterator[Labels]:
    for values in product(*(metric.label_values.get(label, ("0",)) for label in metric.labels)):
        yield make_labels((*identity.labels(), *zip(metric.labels, values, strict=True)))


def _histogram(metric: Metric, labels: Labels) -> Iterator[Sample]:
    assert metric.edges is not None
    edges = (*map(format_edge, metric.edges), "+Inf")
    for edge, count in zip(edges, accumulate([_EVENTS] * len(edges)), strict=True):
        yield Sample(f"{metric.name}_bucket", make_labels((*labels, ("le", edge))), float(count))
    yield Sample(f"{metric.name}_count", labels, float(count))
    yield Sample(f"{metric.name}_sum", labels, float(count))


def _figure_keys() -> Iterator[str]:
    values = {label: known[:1] for metric in METRICS.values() for label, known in metric.label_values.items()}
    for figure in FIGURES.values():
        yield figure_key(figure.name, {label: values.get(label, ("0",))[0] for label in figure.by})
