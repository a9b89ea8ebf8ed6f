"""The emulated deployments of the running stack: small, alike, and each for a fault of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from servescope.contract.identity import NEW_STACK, OLD_STACK

REQUESTS_PER_SECOND: Final = 1.0
"""Of a deployment with a share of 1, on average; of the emulated time."""
_SPECULATION: Final = {"decoding_type": "Eagle", "speculative_model_dir": "/models/eagle", "max_draft_len": 3}
# What fails stays so for some minutes, in place of being back within seconds.
_SLOW_TO_RETURN: Final = {"first": "10m", "most": "10m"}
_ROOMY: Final = {"min_replica": 4, "max_replica": 4}


@dataclass(frozen=True, slots=True)
class Deployed:
    """One deployment: the labels of its series, and what it has otherwise than the others, by the scenario's tables."""

    name: str
    model: str = ""
    stack: str = NEW_STACK
    phase: str = ""
    share: float = 1.0
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all its series, empty ones left out."""
        labels = {
            "model_name": self.model or f"model-{self.name}",
            "deployment_id": self.name,
            "inference_stack": self.stack,
            "environment": "live",
            "rollout_phase": self.phase,
        }
        return {name: value for name, value in labels.items() if value}

    def toml(self) -> str:
        """Its table in a scenario."""
        is_new = self.stack == NEW_STACK
        usual: dict[str, Mapping[str, Any]] = {
            # Nobody fails or is turned away while all is well.
            "engine": {"error_share": 0.0, "max_queue": 64, **({"acceptance": [0.93, 0.90, 0.87]} if is_new else {})},
            "runtime": {"max_batch_size": 32},
            # As many as there are, whatever the load.
            "autoscaling": {
                "min_replica": 2,
                "max_replica": 2,
                **({"target_in_flight_tokens": 200_000} if is_new else {"concurrency_target": 1_000}),
            },
            **({"llm_config": {"speculative_config": _SPECULATION}} if is_new else {}),
        }
        lines = ["[[deployments]]", *_pairs(self.labels), f"share = {self.share}"]
        for name in (*usual, *(name for name in self.tables if name not in usual)):
            lines += ["", f"[deployments.{name}]", *_pairs({**usual.get(name, {}), **self.tables.get(name, {})})]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Emulated:
    """One emulator: its deployments, and the traffic that they share, in a split that the collector may know."""

    deployments: tuple[Deployed, ...]
    requests_per_second: float = REQUESTS_PER_SECOND
    traffic: Mapping[str, Any] = field(default_factory=dict)
    split_configured: bool = True

    def scenario(self) -> str:
        """Its scenario file."""
        rate = round(self.requests_per_second * sum(each.share for each in self.deployments), 3)
        traffic = {"preset": "chat", "requests_per_second": rate, **self.traffic}
        return "\n".join(
            ["seed = 1", "", "[traffic]", *_pairs(traffic), "", *(each.toml() for each in self.deployments)]
        )


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in values.items()]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_pairs(value)) + " }"
    # What JSON and TOML write alike is all there is.
    return json.dumps(value)


def _phased(name: str) -> Deployed:
    """A deployment of one prefill and one decode worker."""
    phases = {"prefill_workers_per_replica": 1, "decode_workers_per_replica": 1}
    return Deployed(name, tables={
        "llm_config": {"is_disaggregated": True, "b10_disagg_config": phases},
        "autoscaling": {"min_replica": 1, "max_replica": 1},
    })  # fmt: skip


EMULATED: Final[Mapping[str, Emulated]] = {
    "cache": Emulated((
        Deployed("draft"),
        Deployed("router"),
        Deployed("churn"),
        Deployed("balance"),
        # One replica's cache holds a quarter of what the four hold, so that its hit rate is far below half of theirs.
        Deployed("shrink", tables={
            "engine": {"cache_blocks": 450},
            "autoscaling": {"min_replica": 4, "max_replica": 4, "target_in_flight_tokens": 400_000},
        }),
    )),
    # So few in each that one that waits for a core does not fall far behind.
    "scale": Emulated((
        # More than one by its load, and room for them; slow to stop those that the next burst needs, so that it flaps
        # neither before the fault nor after it.
        Deployed("pinned", tables={"autoscaling": {
            "min_replica": 1, "max_replica": 8, "target_in_flight_tokens": 5_000, "scale_down_delay": "30m",
        }}),
        Deployed("slow-start"),
    )),
    "serve": Emulated((
        Deployed("failing", tables={"back_off": _SLOW_TO_RETURN}),
        Deployed("down", tables={"back_off": _SLOW_TO_RETURN}),
        Deployed("frozen"),
        # So busy that there is a request in flight at every moment.
        Deployed("frozen-scaler", share=3.0, tables={"autoscaling": _ROOMY}),
        Deployed("silent-scaler"),
    )),
    "users": Emulated((
        Deployed("errors"),
        # So busy that as many of them fail as ought to, give or take few.
        Deployed("few-errors", share=4.0, tables={"autoscaling": _ROOMY}),
        Deployed("late"),
        Deployed("briefly-late"),
        Deployed("hung-up"),
        Deployed("brief"),
        Deployed("invalid"),
        Deployed("slow-gpu", share=2.0, tables={"autoscaling": _ROOMY}),
        # So large a batch that those that hang leave room for the others.
        Deployed("hanging", tables={"runtime": {"max_batch_size": 1024}}),
    )),
    # One replica of each differs from the others.
    "replicas": Emulated((
        # Room for the traffic of both replicas in one.
        Deployed("preferred", share=3.0, tables={
            "engine": {"cache_blocks": 20_000, "max_queue": 256}, "runtime": {"max_batch_size": 256},
        }),
        Deployed("leaking", share=2.0, tables={"autoscaling": _ROOMY}),
        Deployed("restarting"),
    )),
    "pair": Emulated((
        Deployed("pair-v1", model="model-pair", stack=OLD_STACK),
        Deployed("pair-v2", model="model-pair"),
        Deployed("promoting", phase="promoting", tables={"back_off": _SLOW_TO_RETURN}),
    )),
    # For a judge, which compares nothing but these two. It alone is to notice that the traffic is moved.
    "judged": Emulated((
        # Room for the traffic of both.
        Deployed("judged-v1", model="model-judged", stack=OLD_STACK, tables={"autoscaling": _ROOMY}),
        Deployed("judged-v2", model="model-judged"),
    ), split_configured=False),
    # One whose router dies, and one of whose gateway nothing comes any more.
    "traffic": Emulated((
        Deployed("routerless"),
        Deployed("cut-off"),
    )),
    # One loses a GPU; the KV of the others gets from prefill to decode workers, or does not.
    "memory": Emulated((
        Deployed("gpu"),
        _phased("phased"),
        _phased("stuck-kv"),
    )),
    # Alone, as each gets many times its traffic: more than its cache has room for. Answers that are long beside their
    # prompts grow, so that requests are preempted; those that are short hardly do, so that requests wait for room.
    "crowd": Emulated(
        (Deployed("crowded", share=0.4, tables={"engine": {"cache_blocks": 500}}),),
        traffic={"message_tokens": 300.0, "output_tokens": 500.0, "output_range": [200, 1000]},
    ),
    "prompts": Emulated((
        Deployed("filled", tables={
            "engine": {"cache_blocks": 1200, "max_queue": 100_000},
            "router": {"max_queued": 100_000, "saturation_ratio": 100.0},
        }),
    ), traffic={"preset": "code-completion", "abort_share": 0.0}),
    "targets": Emulated((
        Deployed("targets"),
        Deployed("gone"),
        Deployed("unlisted"),
        Deployed("dark"),
    )),
    # Too much for one of its replicas, and no burst of it for all; what waits there is not rejected.
    "overrun": Emulated((
        Deployed("overrun", share=6.0, tables={"engine": {"max_queue": 100_000}, "autoscaling": _ROOMY}),
    )),
    # Alone, as it has much to catch up with in the end.
    "queue": Emulated((Deployed("queue", tables={"router": {"max_queued": 100_000}}),)),
    # So little traffic that a queue of requests that take minutes is long before many of them were late.
    "slow-queue": Emulated((
        Deployed("backlog", share=0.2, tables={
            "router": {"max_queued": 100_000}, "autoscaling": {"min_replica": 1, "max_replica": 1},
        }),
    )),
    # Of its own address, as the pace of scrapes is limited by address.
    "slowly": Emulated((Deployed("seldom", tables={"autoscaling": {"min_replica": 6, "max_replica": 6}}),)),
}  # fmt: skip
"""The emulators by name."""


def find_emulator(deployment: str) -> str:
    """The name of the emulator that a deployment lives in; raises KeyError."""
    for name, emulated in EMULATED.items():
        if any(each.name == deployment for each in emulated.deployments):
            return name
    raise KeyError(deployment)
