"""Playbooks of what users wait for: first tokens, further tokens, the queue, and speculative decoding.

Log lines, metrics and switches are those of vLLM 0.32, SGLang 0.5.23, TensorRT-LLM 1.3 and Dynamo 1.6.
"""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.families import Playbook

_WORKERS_SWITCHES: Final = "Everything else is a switch of its workers' engine."

FIRST_TOKEN: Final = Playbook(
    "late first tokens",
    vllm="The log line `Running: … reqs, Waiting: … reqs` separates the two causes: requests that wait mean that the "
    "batch or the KV cache is full; none that wait mean slow prompts. `vllm:request_queue_time_seconds` and "
    "`vllm:request_prefill_time_seconds` measure both. At the next restart: a higher `--max-num-batched-tokens` gives "
    "earlier first tokens and slower further ones, `--max-num-seqs` bounds the batch.",
    sglang="`Prefill batch` lines in the log show `#queue-req` (the queue) and `#cached-token` (prompts that need no "
    "computation); `sglang:queue_time_seconds` measures the wait. At the next restart: `--chunked-prefill-size` sets "
    "how much of a prompt one step takes, a lower `--schedule-conservativeness` admits requests earlier.",
    tensorrt_llm="`trtllm_request_queue_time_seconds` on `/prometheus/metrics` measures the wait, if "
    "`return_perf_metrics: true` is set. Do not read `/metrics` by hand: reading it drains the statistics. At the next "
    "restart: `enable_chunked_prefill: true` keeps a long prompt from blocking others, `max_num_tokens` bounds the "
    "tokens of a step.",
    dynamo="`dynamo_frontend_router_queue_pending_requests` above zero: requests wait in the router, for workers that "
    "are all busy (`prefill_busy_threshold_frac` in `--router-policy-config`, or `--router-queue-threshold`). At zero "
    "they wait in a worker. With prefill workers of their own, add prefill workers, not decode workers. "
    + _WORKERS_SWITCHES,
)

OUTPUT_TOKENS: Final = Playbook(
    "slow tokens",
    vllm="The log line `Running: … reqs` shows the batch; `vllm:num_preemptions_total` that rises means that requests "
    "are stopped and computed again. At the next restart: a lower `--max-num-seqs` gives fewer requests at a time and "
    "faster tokens, a lower `--max-num-batched-tokens` shorter pauses by other requests' prompts.",
    sglang="`Decode batch` lines in the log show `#running-req`, `gen throughput (token/s)` and `cuda graph`: with "
    "`cuda graph: False` at a usual batch each step is slow. At the next restart: a lower `--max-running-requests` "
    "makes tokens faster, a lower `--chunked-prefill-size` shortens the pauses by other requests' prompts.",
    tensorrt_llm="`print_iter_log: true` logs the time of each step, and `trtllm_num_requests_running` is the batch. "
    "At the next restart: a lower `max_batch_size` makes tokens faster; check that `cuda_graph_config` is set as "
    "before.",
    dynamo="`dynamo_frontend_inter_token_latency_seconds` has no label for the worker: find the slow one by its own "
    "`/metrics` on `DYN_SYSTEM_PORT`. With decode workers of their own, add decode workers. " + _WORKERS_SWITCHES,
)

QUEUE: Final = Playbook(
    "a queue",
    vllm="`vllm:num_requests_waiting_by_reason`: `capacity` is a full batch or KV cache, `deferred` is a wait for "
    "something else, such as KV from another worker. With `GPU KV cache usage` low in the log, `--max-num-seqs` is "
    "the limit: raise it at the next restart.",
    sglang="`Decode batch` lines show `#queue-req` beside `token usage`: a queue with a low `token usage` means that "
    "the scheduler admits too little (lower `--schedule-conservativeness`, or raise `--max-running-requests`, at the "
    "next restart). `--max-queued-requests` makes it refuse further requests with `The request queue is full.`",
    tensorrt_llm="`trtllm_num_requests_waiting` beside `trtllm_kv_cache_utilization` (both need "
    "`enable_iter_perf_stats: true`): with room in the cache, `max_batch_size` is the limit; raise it at the next "
    "restart.",
    dynamo="`dynamo_frontend_queued_requests` counts a request until its first token. "
    "`--active-decode-blocks-threshold` and `--active-prefill-tokens-threshold` make the frontend refuse requests "
    "while all workers are busy: set them where a refusal is better than a long wait. Without them nothing is "
    "refused.",
)

SPECULATION: Final = Playbook(
    "speculative decoding",
    vllm="`SpecDecoding metrics:` lines in the log show the acceptance by position. The draft is set by "
    "`--speculative-config`: reduce `num_speculative_tokens`, or leave the option out to switch it off. Both need a "
    "restart: one replica after the other.",
    sglang="`Decode batch` lines in the log show `accept len` and `accept rate`. `--speculative-num-steps` and "
    "`--speculative-num-draft-tokens` set the draft; without `--speculative-algorithm` it is off. Both need a restart: "
    "one replica after the other.",
    tensorrt_llm="`trtllm_spec_decode_num_accepted_tokens_total` ÷ `trtllm_spec_decode_num_draft_tokens_total` is the "
    "acceptance. `speculative_config` in the YAML of `trtllm-serve` sets the draft (`max_draft_len`); without it "
    "there is none. Both need a restart: one replica after the other.",
    dynamo="It has no switch for drafts: they belong to the engine of its workers. Change the workers' arguments in "
    "the DynamoGraphDeployment; the operator replaces the workers.",
)
