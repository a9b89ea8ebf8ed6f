"""What known backends want of a push: the protocol, the temporality, the headers that they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from servescope.customers.policy.policy import OtlpBackend, Protocol, Temporality


@dataclass(frozen=True, slots=True)
class Preset:
    """A backend: how it is sent to, and how its address looks.

    `temporality` is the one to use, and with `only` the one that it does not refuse; `needs` is the header that
    authenticates, "" where none is needed; `headers` are sent as well; `stores_names_as` is what it makes of names that
    OTLP sends. `source` is where that is documented.
    """

    title: str
    protocol: Protocol
    temporality: Temporality
    url: str
    source: str
    only: bool = False
    needs: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    stores_names_as: OtlpBackend = "other"


PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "prometheus": Preset(
            "Prometheus", "remote-write", "cumulative", "https://prometheus.example/api/v1/write",
            "https://prometheus.io/docs/prometheus/latest/feature_flags/", only=True, stores_names_as="prometheus",
        ),
        "mimir": Preset(
            "Grafana Mimir", "remote-write", "cumulative", "https://mimir.example/api/v1/push",
            "https://grafana.com/docs/mimir/latest/references/http-api/", only=True, needs="X-Scope-OrgID",
            stores_names_as="mimir",
        ),
        "grafana-cloud": Preset(
            "Grafana Cloud", "otlp-http", "cumulative", "https://otlp-gateway-ZONE.grafana.net/otlp/v1/metrics",
            "https://grafana.com/docs/grafana-cloud/send-data/otlp/", only=True, needs="Authorization",
            stores_names_as="prometheus",
        ),
        "datadog": Preset(
            "Datadog", "otlp-http", "delta", "https://otlp.datadoghq.com/v1/metrics",
            "https://docs.datadoghq.com/opentelemetry/setup/otlp_ingest/metrics/", only=True, needs="dd-api-key",
            # Otherwise what describes the deployment is dropped: only attributes of points are tags.
            headers=(("dd-otel-metric-config", '{"resource_attributes_as_tags": true}'),),
        ),
        "new-relic": Preset(
            "New Relic", "otlp-http", "delta", "https://otlp.nr-data.net/v1/metrics",
            "https://docs.newrelic.com/docs/opentelemetry/best-practices/opentelemetry-otlp/", needs="api-key",
        ),
        "dynatrace": Preset(
            "Dynatrace", "otlp-http", "delta", "https://ENVIRONMENT.live.dynatrace.com/api/v2/otlp/v1/metrics",
            "https://docs.dynatrace.com/docs/ingest-from/opentelemetry/otlp-api/ingest-otlp-metrics/about-metrics-ingest",
            only=True, needs="Authorization",
        ),
        "otel-collector": Preset(
            "OpenTelemetry Collector", "otlp-grpc", "cumulative", "https://collector.example:4317",
            "https://opentelemetry.io/docs/collector/", stores_names_as="prometheus",
        ),
    }
)  # fmt: skip
"""The presets by their name in the configuration."""
