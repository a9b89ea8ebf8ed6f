"""Texts of scenarios: few requests to small engines, so that days of them are emulated in minutes."""

from __future__ import annotations

TRAFFIC = """
seed = 3
[traffic]
requests_per_second = {rate}
output_tokens = 60
output_range = [8, 300]
burst_factor = 1
day_seconds = 86400
day_amplitude = 0.3
oversized_share = 0
"""
DEPLOYMENT = """
[[deployments]]
model_name = "m"
deployment_id = "{name}"
inference_stack = "v1"
share = {share}
[deployments.runtime]
max_batch_size = 10
max_num_tokens = 2048
[deployments.autoscaling]
min_replica = {replicas}
max_replica = {replicas}
[deployments.engine]
block_tokens = 128
cache_blocks = 1000
"""
