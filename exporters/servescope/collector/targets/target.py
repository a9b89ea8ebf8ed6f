"""What is scraped: one `/metrics`, its identity, and how it is accessed."""

from __future__ import annotations

from dataclasses import dataclass, field

from servescope.collector.targets.deployments import ScrapeSettings, host_and_port
from servescope.contract.identity import UNKNOWN_MODEL, Identity
from servescope.contract.metrics import SEGMENT
from servescope.settings.access import Access


@dataclass(frozen=True, slots=True)
class Target:
    """One `/metrics` to scrape and whose it is; `source` is None when it shall be identified.

    `segment_label` is the label of its series that separates segments.
    """

    url: str
    identity: Identity
    source: str | None = None
    access: Access = field(default_factory=Access)
    scraping: ScrapeSettings = field(default_factory=ScrapeSettings)
    segment_label: str = SEGMENT

    @property
    def target_id(self) -> str:
        """The name under which the store knows the target, the same after a restart; one per identity."""
        return self.identity.target_id

    @property
    def takes_model(self) -> bool:
        """Whether no model is configured for it, so that its pages name it."""
        return self.identity.model_name == UNKNOWN_MODEL

    @property
    def host(self) -> str:
        """The `host:port` it is scraped at."""
        return host_and_port(self.url)
