"""Playbooks of what fails: requests, replicas that hang or do not answer, and metrics that do not arrive."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.families import Playbook

ERRORS: Final = Playbook(
    "failing requests",
    vllm="`EngineDeadError` in the log: the engine is dead and the server shuts down; the cause is in the trace above "
    'it. `vllm:request_success_total` with `finished_reason="error"` counts failures after the start, '
    "`vllm:admission_rejections_total` refusals. Out of memory under load: lower `--gpu-memory-utilization` or "
    "`--max-num-seqs` at the restart.",
    sglang="`Scheduler hit an exception` and `SIGQUIT received` in the log: the engine is dead; the trace is above. "
    "`The request queue is full.` is a refusal by `--max-queued-requests`. `sglang:num_aborted_requests_total` counts "
    "failures and clients that left alike: use `http_responses_total` by `status_code`.",
    tensorrt_llm="`trtllm_request_error_total` by `http_code` counts failures; lines with `[TensorRT-LLM][ERROR]` have "
    "the cause. A prompt longer than `max_seq_len` or `max_num_tokens` is refused: that is the client's.",
    dynamo='`dynamo_frontend_requests_total` with `status="error"`, by `error_type`: `unavailable` is no worker, '
    "`overload` all busy, `response_timeout` a worker that hangs, `internal` a failure. With `--migration-limit` "
    "above zero a request survives its worker.",
)

HANG: Final = Playbook(
    "a replica that hangs",
    vllm="`/health` answers while the engine hangs. Save stacks first: `py-spy dump --pid` of the process "
    "`EngineCore` and of its workers. A watchdog of NCCL in the log points to a collective operation that waits for "
    "another GPU.",
    sglang="`/health_generate` sends a token through the engine and fails if it hangs. `watchdog timeout` in the log, "
    "with the stacks above it, means that the server ends itself (`--watchdog-timeout`).",
    tensorrt_llm="`Hang detected` in the log, with the stacks of all threads, means that the server ends itself. A "
    "hang on one rank leaves the others waiting in NCCL.",
    dynamo="`dynamo_component_inflight_requests` of a worker that stays up with no tokens: end that worker; the "
    "frontend moves its requests if `--migration-limit` is above zero, and fails them if not. Health checks of "
    "workers are on `DYN_SYSTEM_PORT`.",
)

UNREACHABLE: Final = Playbook(
    "engines that do not answer",
    vllm="`/health` of each engine; the last lines of the log name `torch.OutOfMemoryError`, a missing file, or "
    "`EngineDeadError`.",
    sglang="`/health` of each engine; the last lines of the log name `SIGQUIT received` and, above it, the exception "
    "of the child process that ended first.",
    tensorrt_llm="`/health` of each engine; the last lines of the log name an error of CUDA or MPI. One rank that ends "
    "takes all ranks with it.",
    dynamo="`/health` of the frontend lists the instances: if none is listed, the workers are gone or discovery (etcd "
    "or Kubernetes) has failed. `kubectl get dynamographdeployment,pods` shows which.",
)

ABORTS: Final = Playbook(
    "clients that leave and requests that do not end",
    vllm='`vllm:request_success_total` with `finished_reason="abort"` counts clients that left. A request ends only '
    "at its stop, its limit of tokens or its client's end: there is no timeout for one in the engine.",
    sglang="`sglang:num_aborted_requests_total` counts clients that left and failures alike. `/abort_request` ends a "
    "request by its id.",
    tensorrt_llm="It has no metric of clients that left. The gateway's log shows them.",
    dynamo='`dynamo_frontend_requests_total` with `error_type="cancelled"` counts clients that left, '
    "`dynamo_frontend_disconnected_clients` shows them now.",
)

TELEMETRY: Final = Playbook(
    "metrics that are missing",
    vllm="Metrics are on `/metrics` of the API port, unless `--disable-log-stats` is set. Renamed metrics are hidden "
    "for one release: `--show-hidden-metrics-for-version` brings them back.",
    sglang="Metrics are on `/metrics` only with `--enable-metrics`. Some appear with the first request that uses them.",
    tensorrt_llm="Metrics are on `/prometheus/metrics`, with `return_perf_metrics: true` and "
    "`enable_iter_perf_stats: true`; `/metrics` is JSON that one reader drains.",
    dynamo="The frontend has `/metrics` on its HTTP port. Workers have it on `DYN_SYSTEM_PORT`, which is off unless "
    "set, and the planner on `PLANNER_PROMETHEUS_PORT`, likewise.",
)
