"""Playbooks of memory and replicas: the KV cache, GPUs, starts, and autoscalers."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.families import Playbook

KV_MEMORY: Final = Playbook(
    "a KV cache without room",
    vllm="`GPU KV cache size: … tokens` is logged at the start: compare it with another replica. "
    "`vllm:num_preemptions_total` counts preempted requests. At the next restart: a lower `--max-num-seqs` or "
    "`--max-model-len`, a higher `--gpu-memory-utilization`, or `--kv-cache-dtype` with a smaller type.",
    sglang="`KV cache pool is full. Retract requests.` in the log is a preemption; `token usage` in the batch lines is "
    "the share in use, and `max_total_num_tokens=` at the start the size. At the next restart: a lower "
    "`--max-running-requests`, a higher `--schedule-conservativeness`, or a higher `--mem-fraction-static`.",
    tensorrt_llm="`Allocated … GiB for max tokens in paged KV cache` is logged at the start. With the default "
    "`GUARANTEED_NO_EVICT` requests wait and none is paused; with `MAX_UTILIZATION` "
    "`trtllm_num_paused_requests` counts paused ones. At the next restart: a lower `max_batch_size`, or a higher "
    "`kv_cache_config.free_gpu_memory_fraction`.",
    dynamo="The cache is that of its workers. `--active-decode-blocks-threshold` keeps the frontend from sending "
    "requests to workers whose cache is fuller than that share, and refuses them if all are.",
)

GPU: Final = Playbook(
    "a GPU",
    vllm="A lost GPU shows as a CUDA or NCCL error in the log and then `EngineDeadError`; the server shuts down.",
    sglang="A lost GPU shows as `Scheduler hit an exception` in the log and then `SIGQUIT received`; the server ends.",
    tensorrt_llm="A lost GPU shows as an error of CUDA or NCCL in the log, or as `Hang detected` if a collective "
    "operation never returns.",
    dynamo="It shows what its worker's engine shows; the worker ends, and the frontend sends it no further requests.",
)

START: Final = Playbook(
    "a start",
    vllm="The log shows how far it is: `Loading weights took`, `torch.compile takes`, `Graph capturing finished`, "
    "`Application startup complete`. `No available memory for the cache blocks`: raise `--gpu-memory-utilization` or "
    "lower `--max-model-len`. `--enforce-eager` skips compilation and graphs: a faster start for slower tokens, in "
    "need only.",
    sglang="The log shows how far it is: `Load weight begin`, `Load weight end`, `CUDA graph begin`, "
    "`The server is fired up and ready to roll!`. `Not enough memory. Please try to increase --mem-fraction-static.` "
    "says what to raise; a CUDA out of memory after that says to lower it.",
    tensorrt_llm="The log shows the weights, then `Allocated … GiB for max tokens in paged KV cache`; `/health` "
    "answers after that. Out of memory at the start: lower `kv_cache_config.free_gpu_memory_fraction` or "
    "`max_num_tokens`.",
    dynamo="`kubectl get dynamographdeployment` and `kubectl describe pod` show what a worker waits for. A worker "
    "registers after its engine has started: until then `/health` of the frontend does not list it. The log of the "
    "worker has the lines of its engine.",
)

_NO_AUTOSCALER: Final = (
    "No autoscaler of its own: an HPA, KEDA or the orchestrator sets the replicas. `kubectl get "
    "hpa,scaledobject` shows bounds and state, `kubectl describe hpa` the reason of the last decision. To set replicas "
    "by hand under KEDA, use the annotation `autoscaling.keda.sh/paused-replicas`, and remove it afterwards."
)

SCALING: Final = Playbook(
    "an autoscaler",
    vllm=_NO_AUTOSCALER,
    sglang=_NO_AUTOSCALER,
    tensorrt_llm=_NO_AUTOSCALER,
    dynamo="The planner's log has each decision: `Updating … component … to desired replica count`; `is not ready, "
    "ignoring this scaling` means that an earlier change is not finished; `No prometheus metric data available` that "
    "it sees no traffic. `max_gpu_budget` and `min_endpoint` in its configuration are the bounds, "
    "`throughput_adjustment_interval_seconds` and `load_adjustment_interval_seconds` its pace. By hand: stop the "
    "planner, then set `replicas` in the DynamoGraphDeployment, or in its scaling adapter where it has one.",
)
