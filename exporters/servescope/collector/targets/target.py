"""What is scraped: one `/metrics`, its identity, and how it is accessed."""

from __future__ import annotations

from dataclasses import dataclass, field

from servescope.collector.targets.deployments import ScrapeSettings, host_and_port
from servescope.contract.identity import UNKNOWN_MODEL, Identity
from servescope.contract.metrics import SEGMENT
from servescope.settings.access import Access
from servescope.sources.parts import WHOLE_PAGE, PagePart


@dataclass(frozen=True, slots=True)
class Target:
    """One `/metrics` to scrape and whose it is; `source` is None when it shall be identified.

    `segment_label` is the label of its series that separates segments; `part` is which of its series are read, where
    the page measures several deployments.
    """

    url: str
    identity: Identity
    source: str | None = None
    access: Access = field(default_factory=Access)
    scraping: ScrapeSettings = field(default_factory=ScrapeSettings)
    segment_label: str = SEGMENT
    part: PagePart = WHOLE_PAGE

    @property
    def target_id(self) -> str:
        """The name under which the store knows the target, the same after a restart; one per identity."""
        return self.identity.target_id

    @property
    def takes_model(self) -> bool:
        """Whether no model is configured for it, so that its pages name it."""
        return self.identity.model_name == UNKNOWN_MODEL

    def shares_page(self, other: Target) -> bool:
        """Whether both are parts of one page, which is scraped once for them."""
        return bool(self.part.select and other.part.select) and (self.url, self.access, self.scraping) == (
            other.url, other.access, other.scraping,
        )  # fmt: skip

    @property
    def host(self) -> str:
        """The `host:port` it is scraped at."""
        return host_and_port(self.url)
