"""A store with two customers' deployments at one scrape, as a collector leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from servescope.contract.identity import Identity
from servescope.contract.samples import Sample, Series, Snapshot, make_labels
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from tests.support.customer_edges import T0, Seen, histogram, series

CHAT_1 = Identity("llama", "chat", "v2", "prod", replica="pod-1")
CHAT_2 = Identity("llama", "chat", "v2", "prod", replica="pod-2")
SEARCH = Identity("llama", "search", "v2", replica="pod-1")

ENGINE_PAGE: Mapping[Series, Seen] = {
    series("requests_total", outcome="ok", engine="0"): Seen(7),
    series("queued_requests", engine="0"): Seen(1),
    series("kv_cache_usage", engine="0"): Seen(0.5),
    series("router_index_state", state="exact"): Seen(1),
    **histogram("time_to_first_token_seconds", (0.1, 0.5), (3, 2, 1), (0, 0, 0)),
}


def write_store(path: Path) -> None:
    """Scrapes and figures at T0."""
    with Store(path) as store:
        for identity in (CHAT_1, CHAT_2, SEARCH):
            store.set_target(TargetStatus(identity.target_id, "http://127.0.0.1/metrics", identity, healthy=True))
            samples = [
                Sample(name, make_labels((*labels, *identity.labels())), seen.value)
                for (name, labels), seen in ENGINE_PAGE.items()
            ]
            store.append_scrape(identity.target_id, T0, Snapshot.of(samples))
        figures = {"request_rate": 3.0, "time_to_first_token_p95": 0.4}
        store.append_figures(CHAT_1.deployment(), T0, figures)
        store.append_figures(SEARCH.deployment(), T0, {**figures, "queued_requests": 1.0})
