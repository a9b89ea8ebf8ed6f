"""Playbooks of what is between clients and engines: routers, cached prefixes, cache events, and KV transfers."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.families import Playbook

PREFIX_CACHE: Final = Playbook(
    "cached prefixes",
    vllm="`Prefix cache hit rate` in the log is that of the replica. It is zero with `--no-enable-prefix-caching`, and "
    "each restart empties the cache.",
    sglang="`#cached-token` in the `Prefill batch` lines is what was reused. It is zero with `--disable-radix-cache`, "
    "and `/flush_cache` empties the cache: find out whether something calls it.",
    tensorrt_llm="`trtllm_kv_cache_reused_blocks_total` beside `trtllm_kv_cache_missed_blocks_total` shows reuse. It "
    "is zero with `enable_block_reuse: false` in `kv_cache_config`. Do not use `trtllm_kv_cache_hit_rate`: it is the "
    "average since the start.",
    dynamo="Only with `--router-mode kv` the frontend looks at cached prefixes. "
    "`overlap_score_credit` in `--router-policy-config`, or `--router-kv-overlap-score-credit`, is how much a cached "
    "prefix counts against load; a `--router-temperature` above zero spreads requests at random.",
)

CACHE_EVENTS: Final = Playbook(
    "cache events",
    vllm="A worker publishes events only with `--kv-events-config` (`enable_kv_cache_events`, publisher `zmq`). "
    "`buffer_steps` and `replay_endpoint` let a router ask for what it missed; `hwm` bounds the socket's buffer, "
    "beyond which events are dropped.",
    sglang="A worker publishes events only with `--kv-events-config`, by one publisher for each attention "
    "data-parallel rank: a router that subscribes to one of several ranks misses the others.",
    tensorrt_llm="A worker has events only with `event_buffer_max_size` above zero and `enable_block_reuse` in "
    "`kv_cache_config`; a gap in `event_id` means that this buffer overflowed. Exactly one reader may take them.",
    dynamo="`dynamo_component_kv_cache_events_applied` by `status` shows events that could not be applied. Workers "
    "publish them with their engine's switch (TensorRT-LLM workers: `--publish-kv-events`). In need, "
    "`--no-router-kv-events` makes the frontend predict from its own decisions instead.",
)

ROUTER: Final = Playbook(
    "a router",
    vllm="Routers are programs of their own (`vllm-router`, the production stack's): the log names the engines that "
    "it found and those that fail. An engine answers by itself too: send it a request on `/v1/completions`.",
    sglang="The SGLang model gateway (`python -m sglang_router.launch_router`) lists its workers and their health on "
    "`/workers`; a worker with an open circuit breaker gets no requests. An engine answers by itself too, on "
    "`/generate`.",
    tensorrt_llm="Only disaggregated serving has one (`trtllm-serve disaggregated`): its log names servers that do not "
    "answer. An engine answers by itself too, on `/v1/completions`.",
    dynamo="The frontend is the router (`python -m dynamo.frontend`): `/live` shows whether it runs, `/health` the "
    "instances that it has discovered. Without instances look at discovery (etcd or Kubernetes) and the event plane "
    "(NATS) first: workers need no restart for that.",
)

KV_TRANSFER: Final = Playbook(
    "KV transfers",
    vllm="Look for errors of the KV connector (`--kv-transfer-config`) on both sides, and whether NIXL's transport is "
    "the one meant (`UCX_TLS`, `UCX_NET_DEVICES`). Prompts that no decode worker fetches are freed after a timeout "
    "and computed again.",
    sglang="`KVTransferError` in the log names the room and the reason. Check that decode workers reach the bootstrap "
    "port of the prefill workers (`--disaggregation-bootstrap-port`) and the device of "
    "`--disaggregation-ib-device`.",
    tensorrt_llm="Look for errors of the cache transceiver on both sides; `cache_transceiver_config` sets its "
    "`backend` and `kv_transfer_timeout_ms`, and `max_tokens_in_buffer` has to hold the longest prompt.",
    dynamo="The transfer is that of the workers' engine, in most cases through NIXL. The frontend shows it only as "
    "late tokens, and as `response_timeout` in `error_type` of `dynamo_frontend_requests_total`.",
)
