"""A configuration of customers in a folder, with the files that it names."""

from __future__ import annotations

from pathlib import Path

COLLECTOR = """
[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v2"
environment = "prod"
fixed_labels = true
targets = [{ url = "http://127.0.0.1:9/metrics" }]

[[deployments]]
deployment_id = "search"
model_name = "llama"
inference_stack = "v2"
fixed_labels = true
targets = [{ url = "http://127.0.0.1:10/metrics" }]

[[deployments]]
deployment_id = "loose"
model_name = "llama"
inference_stack = "v2"
file_sd = [{ files = ["loose.json"] }]
"""

CUSTOMERS = """
collector = "servescope.toml"

[[customers]]
name = "acme"
metrics = ["engine", "kv_cache_eligible_tokens_total"]
figures = ["latency"]
labels = ["deployment_id", "model_name", "outcome", "replica"]
renames = { deployment_id = "service", replica = "pod" }
replica_key_file = "acme.key"
resolution = "replica"

[[customers.deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v2"
environment = "prod"

[[customers.push]]
preset = "datadog"
url = "https://otlp.datadoghq.com/v1/metrics"
headers_from_file = { dd-api-key = "datadog.key" }

[customers.pull]
token_file = "acme.token"

[[customers]]
name = "globex"
metrics = ["requests_total"]

[[customers.deployments]]
deployment_id = "search"
model_name = "llama"
inference_stack = "v2"

[[customers.push]]
protocol = "otlp-http"
url = "http://127.0.0.1:4318"
"""

FILES = {
    "servescope.toml": COLLECTOR,
    "acme.key": "a" * 64,
    "globex.key": "b" * 64,
    "acme.token": "acme-token",
    "globex.token": "globex-token",
    "datadog.key": "0123456789abcdef",
}


def write_customers(folder: Path, text: str = CUSTOMERS) -> Path:
    """The configuration's file in a folder that has all that it names."""
    for name, content in FILES.items():
        (folder / name).write_text(content, encoding="utf-8")
    path = folder / "customers.toml"
    path.write_text(text, encoding="utf-8")
    return path
