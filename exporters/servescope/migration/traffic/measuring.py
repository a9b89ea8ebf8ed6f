"""The traffic that the options of `servescope migrate` choose, and the numbers that are made of it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any, Final

from servescope.errors import UsageError
from servescope.migration.document.document import Document
from servescope.migration.fields.body import make_body
from servescope.migration.scaling import TokenScaling
from servescope.migration.traffic.token_target import TargetOptions, TokenTargets, measure_targets
from servescope.migration.traffic.traffic_reading import find_deployment, read_traffic
from servescope.settings.values import parse_duration
from servescope.store.opening import open_history, read_time
from servescope.store.prometheus.options import OPTIONS

CHOOSING: Final = ("deployment", "store", "prometheus")
"""The options that choose traffic: one of them has to be there."""
_BESIDE: Final = (
    "at", "past", "targets", "max_replica", "requests_per_replica", "start_seconds", "measured_target", *OPTIONS,
)  # fmt: skip
_SETTINGS: Final = ("min_replica", "autoscaling_window", "scale_down_delay")


def measure(arguments: argparse.Namespace, config: Document | None, given: Document | None) -> TokenTargets | None:
    """The numbers from the traffic that was chosen; None where none was.

    `config` is the configuration that is migrated, `given` that of the Management API. Raises UsageError, and
    ServescopeError where the history cannot be read.
    """
    if all(getattr(arguments, name) is None for name in CHOOSING):
        for name in _BESIDE:
            if getattr(arguments, name):
                raise UsageError(f"--{name.replace('_', '-')} goes with --deployment, --store or --prometheus")
        return None
    options = _read_target_options(arguments, config, given)
    end_ms = read_time("--at", arguments.at)
    with open_history(arguments) as history:
        deployments = find_deployment(history, arguments.deployment)
        traffic = read_traffic(history, deployments, end_ms - _read_length(arguments.past), end_ms)
    return measure_targets(traffic, options)


def _read_length(text: str | None) -> int:
    try:
        length_ms = parse_duration(text or "1d")
    except ValueError:
        length_ms = 0
    if not 3_600_000 <= length_ms <= 35 * 86_400_000:
        raise UsageError(f"--past is {text!r}, expected a duration from 1h to 35d")
    return length_ms


def _read_target_options(
    arguments: argparse.Namespace, config: Document | None, given: Document | None
) -> TargetOptions:
    options = TargetOptions(concurrency_target=arguments.concurrency_target, targets=_read_targets(arguments.targets))
    for name, most in (("requests_per_replica", 2048), ("max_replica", 1000)):
        value = getattr(arguments, name)
        if value is not None and not 1 <= value <= most:
            raise UsageError(f"--{name.replace('_', '-')} is {value}, expected 1 to {most}")
    if arguments.start_seconds is not None and not 0 <= arguments.start_seconds <= 86_400:
        raise UsageError(f"--start-seconds is {arguments.start_seconds:g}, expected 0 to 86400")
    if arguments.concurrency_target is not None and not 0 < arguments.concurrency_target < 1e9:
        raise UsageError(f"--concurrency-target is {arguments.concurrency_target:g}, expected a number above 0")
    options = follow_config(options, config)
    options = _follow_body(options, given)
    if arguments.requests_per_replica is not None:
        options = replace(options, requests_per_replica=arguments.requests_per_replica, requests_from="as given")
    if arguments.max_replica is not None:
        options = replace(options, max_replica=arguments.max_replica)
    if arguments.start_seconds is not None:
        options = replace(options, start_seconds=arguments.start_seconds)
    return options


def _read_targets(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        targets = tuple(sorted({int(each) for each in text.split(",")}))
    except ValueError:
        targets = ()
    if not targets or len(targets) > 20 or not 1 <= targets[0] <= targets[-1] <= 10**9:
        raise UsageError(f"--targets is {text!r}, expected up to 20 numbers of tokens, such as 50000,80000")
    return targets


def follow_config(options: TargetOptions, config: Document | None) -> TargetOptions:
    """With the largest batch and the GPUs of a replica as a configuration has them."""
    root = config.root if config is not None else None
    if root is None:
        return options
    for block, size, gpus in (
        ("build", "max_batch_size", "tensor_parallel_count"), ("runtime", "max_batch_size", "tensor_parallel_size"),
    ):  # fmt: skip
        batch, count = root.find("trt_llm", block, size), root.find("trt_llm", block, gpus)
        if batch is not None and _is_count(batch.value):
            options = replace(options, requests_per_replica=batch.value, requests_from="its max_batch_size")
        if count is not None and _is_count(count.value):
            options = replace(options, gpus_per_replica=count.value)
    return options


def _follow_body(options: TargetOptions, given: Document | None) -> TargetOptions:
    """With the settings of autoscaling of a body for the Management API, where it has no errors."""
    body = make_body(given) if given is not None else None
    if body is None or any(each.severity == "error" for each in body.findings):
        return options
    settings: dict[str, Any] = body.body.get("autoscaling_settings") or {}
    decay = (body.body["llm_config"].get("b10_autoscaling_config") or {}).get("scale_down_half_life_seconds")
    scaling = {name: settings[name] for name in _SETTINGS if settings.get(name) is not None}
    least = scaling.get("min_replica", 1)
    scaling |= {"initial_replicas": least, "max_replica": max(least, TokenScaling().max_replica)}
    if decay is not None:
        scaling["scale_down_half_life_seconds"] = decay
    return replace(options, scaling=TokenScaling(**scaling), max_replica=settings.get("max_replica"))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
