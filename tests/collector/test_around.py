"""What is around the engines: a target that measures a deployment and is no replica of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.target import Target
from servescope.web.connections import FetchError
from tests.conftest import PAGES
from tests.support.picker_page import PickerCollector

_CONFIGURATION = """
[collector]
listen = "127.0.0.1:0"
[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v1"
[[deployments.targets]]
url = "http://engine:8000"
[[deployments.targets]]
url = "http://node:9400"
role = "auxiliary"
select = { namespace = "prod", pod = "chat-*" }
"""
_CLUSTER = """
[[deployments.targets]]
url = "http://cluster:8080"
role = "autoscaler"
select = [{ namespace = "prod", deployment = "chat" }, { namespace = "prod", pod = "chat-*-*" }]
"""
ACTIVE, FAILED = (f'replica_count_by_status{{status="{status}"}}' for status in ("active", "failed"))


class Collector(PickerCollector):
    """A collector of pages by the host that they are at; what has none does not answer."""

    def __init__(self, folder: Path, text: str, **pages: str) -> None:
        super().__init__(folder, text)
        self.pages = {host: (PAGES / f"{page}.txt").read_bytes() for host, page in pages.items()}

    async def _fetch(self, target: Target, _: Limits, /) -> bytes:
        host = target.host.partition(":")[0]
        if host not in self.pages:
            raise FetchError("unreachable", "cannot connect: Connection refused")
        return self.pages[host]


def figures(folder: Path, text: str, **pages: str) -> dict[str, float]:
    """The figures of the deployment after one scrape of each page."""
    collector = Collector(folder, text, **pages)
    try:
        return dict(asyncio.run(collector.step(None))["chat"])
    finally:
        collector.collector.close()


def test_an_exporter_that_answers_is_no_replica(tmp_path: Path) -> None:
    """With an engine there is one active replica, without it none; what the exporter measures is there in both."""
    dcgm = "dcgm-exporter-4.8-1"
    served = figures(tmp_path, _CONFIGURATION, engine="vllm-0.32.0-1", node=dcgm)
    alone = figures(tmp_path, _CONFIGURATION, node=dcgm)
    assert (served[ACTIVE], alone[ACTIVE]) == (1.0, 0.0)
    assert served["gpu_usage"] == alone["gpu_usage"] == 0.9
    assert alone["gpu_last_error"] == 79.0


def test_an_exporter_that_fails_is_no_unhealthy_replica(tmp_path: Path) -> None:
    """Its figures are missing, and nothing else."""
    found = figures(tmp_path, _CONFIGURATION, engine="vllm-0.32.0-1")
    assert (found[ACTIVE], found['replica_count_by_status{status="unhealthy"}']) == (1.0, 0.0)
    assert "gpu_usage" not in found


def test_a_cluster_counts_replicas_in_place_of_the_collector(tmp_path: Path) -> None:
    """Of the workload that is selected, whether or not its engines are listed."""
    found = figures(tmp_path, _CONFIGURATION + _CLUSTER, engine="vllm-0.32.0-1", cluster="kube-state-metrics-2-1")
    assert (found[ACTIVE], found[FAILED], found["autoscaler_rounded_desired_scale"]) == (3.0, 1.0, 4.0)
    assert "autoscaler_max_replicas" not in found
