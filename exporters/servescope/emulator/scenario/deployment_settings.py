"""A deployment as a scenario describes it: its identity, engines, routing, scaling, and how its replicas live."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from servescope.contract.identity import Deployment, Identity
from servescope.emulator.deployment.disaggregation import Disaggregation, parse_disaggregation
from servescope.emulator.deployment.plan import DeploymentPlan
from servescope.emulator.deployment.replica import BackOff, ColdStart, HealthCheck
from servescope.emulator.router.configuration import KvRouterParameters, Recovery, RouterRuntime, parse_routing
from servescope.emulator.scenario.engine_settings import ENGINE_SETTINGS, RUNTIME_SETTINGS, parse_engine
from servescope.errors import ConfigurationError, UsageError
from servescope.migration.fields.llm_config import AUTOSCALING, LLM_CONFIG, require
from servescope.migration.scaling import ConcurrencyScaling, TokenScaling
from servescope.settings.tables import REQUIRED, Setting, Table
from servescope.settings.values import format_duration, parse_duration

T = TypeVar("T")


def _seconds(value: float) -> str:
    """A duration as it is written in a file."""
    return f'"{format_duration(round(value * 1000))}"'


_START, _CHECK, _BACK_OFF, _RUNTIME = ColdStart(), HealthCheck(), BackOff(), RouterRuntime()
_TOKENS, _CONCURRENCY = TokenScaling(), ConcurrencyScaling()

DEPLOYMENT_SETTINGS: Final = (
    Setting("model_name", REQUIRED),
    Setting("deployment_id", REQUIRED),
    Setting("inference_stack", '"v2"'),
    Setting("environment", '""'),
    Setting("rollout_phase", '""'),
    Setting("share", "1.0"),
    Setting("start", '"0s"'),
    Setting("traffic", ""),
    Setting("engine", ""),
    Setting("runtime", ""),
    Setting("llm_config", ""),
    Setting("speculator", ""),
    Setting("autoscaling", ""),
    Setting("router", ""),
    Setting("cold_start", ""),
    Setting("health_check", ""),
    Setting("back_off", ""),
    Setting("drain", '"10m"'),
)
"""The keys of `[[deployments]]`."""

LLM_CONFIG_SETTINGS: Final = tuple(
    Setting(name, "" if field.default is None else json.dumps(field.default)) for name, field in LLM_CONFIG.keys.items()
)
"""The keys of `[deployments.llm_config]`, as documented."""

TOKEN_SCALING_SETTINGS: Final = (
    Setting("min_replica", str(_TOKENS.min_replica)),
    Setting("max_replica", str(_TOKENS.max_replica)),
    Setting("initial_replicas", "min_replica"),
    Setting("autoscaling_window", _seconds(_TOKENS.autoscaling_window)),
    Setting("scale_down_delay", _seconds(_TOKENS.scale_down_delay)),
    Setting("target_in_flight_tokens", f"{_TOKENS.target_in_flight_tokens:g}"),
    Setting("prefill_target_in_flight_tokens", "target_in_flight_tokens"),
)
"""The keys of `[deployments.autoscaling]` of a deployment that scales on its tokens in flight."""

CONCURRENCY_SCALING_SETTINGS: Final = (
    Setting("min_replica", str(_CONCURRENCY.min_replica)),
    Setting("max_replica", str(_CONCURRENCY.max_replica)),
    Setting("initial_replicas", "min_replica"),
    Setting("autoscaling_window", _seconds(_CONCURRENCY.autoscaling_window)),
    Setting("scale_down_delay", _seconds(_CONCURRENCY.scale_down_delay)),
    Setting("concurrency_target", f"{_CONCURRENCY.concurrency_target:g}"),
    Setting("target_utilization_percentage", f"{_CONCURRENCY.target_utilization_percentage:g}"),
)
"""The keys of `[deployments.autoscaling]` of a v1 deployment, or of one that gives a `concurrency_target`."""

ROUTER_SETTINGS: Final = (
    Setting("kind", '"kv", for v1 "least-load"'),
    Setting("replicas", str(_RUNTIME.replicas)),
    Setting("saturation_ratio", f"{_RUNTIME.saturation_ratio:g}"),
    Setting("max_queued", str(_RUNTIME.max_queued)),
    Setting("sync", _seconds(_RUNTIME.sync_seconds)),
    Setting("event_delay", '"20ms"'),
    Setting("snapshots", ""),
    Setting("snapshot_every", _seconds(_RUNTIME.recovery.snapshot_seconds)),
)
"""The keys of `[deployments.router]`."""

COLD_START_SETTINGS: Final = (
    Setting("image_pull", _seconds(_START.image_pull_seconds)),
    Setting("weights_load", _seconds(_START.weights_load_seconds)),
    Setting("engine_start", _seconds(_START.engine_start_seconds)),
    Setting("warm_up", _seconds(_START.warm_up_seconds)),
)
"""The keys of `[deployments.cold_start]`."""

HEALTH_CHECK_SETTINGS: Final = (
    Setting("period", _seconds(_CHECK.period_seconds)),
    Setting("failures", str(_CHECK.failures)),
    Setting("stalled", ""),
    Setting("restart_after", _seconds(_CHECK.restart_after_seconds)),
)
"""The keys of `[deployments.health_check]`."""

BACK_OFF_SETTINGS: Final = (
    Setting("first", _seconds(_BACK_OFF.first_seconds)),
    Setting("most", _seconds(_BACK_OFF.most_seconds)),
    Setting("forgiven_after", _seconds(_BACK_OFF.forgiven_after_seconds)),
)
"""The keys of `[deployments.back_off]`."""

_SPECULATOR = "speculator"
# It names files and paths of URLs; OpenAI's API has the paths below v1.
_DEPLOYMENT_ID = re.compile(r"(?!v1$)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KINDS_OF_ROUTER = ("kv", "least-load")


class DescribedDeployment(NamedTuple):
    """A deployment, and its share of the traffic beside the shares of others."""

    plan: DeploymentPlan
    share: float


def parse_deployment(table: Table, *, directory: Path) -> DescribedDeployment:
    """The deployment of one `[[deployments]]` table, whose keys were checked; paths in it are relative to `directory`.

    Raises ConfigurationError, which says where.
    """
    identity = _identity(table)
    if not _DEPLOYMENT_ID.fullmatch(identity.deployment_id):
        raise table.wrong("deployment_id", "letters, digits, '.', '_' and '-', at most 100, and not 'v1'")
    is_v1 = identity.inference_stack == "v1"
    llm_config = table.table("llm_config", LLM_CONFIG_SETTINGS)
    if is_v1 and "llm_config" in table.values:
        raise table.wrong("llm_config", f"none in a v1 deployment, whose drafts {table.key(_SPECULATOR)} describes")
    if not is_v1 and _SPECULATOR in table.values:
        raise table.wrong(_SPECULATOR, f"it in a v1 deployment only; here {llm_config.key('speculative_config')} is")
    engine = parse_engine(
        table.table("engine", ENGINE_SETTINGS),
        table.table("runtime", RUNTIME_SETTINGS),
        directory=directory,
        speculation=_mapping(table, _SPECULATOR) if is_v1 else _mapping(llm_config, "speculative_config"),
    )
    disaggregation = _placed(llm_config, lambda: parse_disaggregation(llm_config.values, llm_config.path))
    router = table.table("router", ROUTER_SETTINGS)
    plan = _placed(
        table,
        lambda: DeploymentPlan(
            identity=identity,
            engine=engine.parameters,
            scaling=_scaling(table, llm_config, is_v1=is_v1, disaggregation=disaggregation),
            routing=_routing(router, llm_config, is_v1=is_v1),
            router=_router_runtime(router, directory),
            cold_start=_cold_start(table.table("cold_start", COLD_START_SETTINGS)),
            health_check=_health_check(table.table("health_check", HEALTH_CHECK_SETTINGS)),
            back_off=_back_off(table.table("back_off", BACK_OFF_SETTINGS)),
            event_seconds=_duration(router, "event_delay", 0.02),
            drain_seconds=_duration(table, "drain", 600.0),
            opens_seconds=_duration(table, "start", 0.0),
            disaggregation=disaggregation,
            kv_transfer=engine.transfer,
        ),
    )
    return DescribedDeployment(plan, _number(table, "share", 1.0, least=0.0))


def _identity(table: Table) -> Deployment:
    values = {
        "model_name": table.string("model_name", None),
        "deployment_id": table.string("deployment_id", None),
        "inference_stack": table.string("inference_stack", "v2"),
        "environment": table.string("environment", ""),
        "rollout_phase": table.string("rollout_phase", ""),
    }
    return _placed(table, lambda: Identity(**values).deployment())


def _scaling(
    table: Table, llm_config: Table, *, is_v1: bool, disaggregation: Disaggregation | None
) -> TokenScaling | ConcurrencyScaling:
    given = table.values.get("autoscaling", {})
    by_concurrency = is_v1 or (isinstance(given, Mapping) and "concurrency_target" in given)
    decay: Mapping[str, Any] = llm_config.values.get("b10_autoscaling_config", {})  # type: ignore[assignment] # checked
    where = llm_config.key("b10_autoscaling_config")
    _placed(llm_config, lambda: require(AUTOSCALING.check, decay, where), placed=True)
    if by_concurrency:
        if decay or disaggregation is not None:
            what = "b10_autoscaling_config" if decay else "is_disaggregated"
            raise llm_config.wrong(what, "it beside token-based autoscaling, which has target_in_flight_tokens")
        return _concurrency_scaling(table.table("autoscaling", CONCURRENCY_SCALING_SETTINGS))
    scaling = table.table("autoscaling", TOKEN_SCALING_SETTINGS)
    lowest = scaling.whole_number("min_replica", _TOKENS.min_replica)
    values = TokenScaling(
        min_replica=lowest,
        max_replica=scaling.whole_number("max_replica", _TOKENS.max_replica),
        initial_replicas=scaling.whole_number("initial_replicas", lowest),
        autoscaling_window=_duration(scaling, "autoscaling_window", _TOKENS.autoscaling_window),
        scale_down_delay=_duration(scaling, "scale_down_delay", _TOKENS.scale_down_delay),
        target_in_flight_tokens=_number(scaling, "target_in_flight_tokens", _TOKENS.target_in_flight_tokens),
        **decay,
    )
    if "prefill_target_in_flight_tokens" not in scaling.values:
        return values
    if disaggregation is None:
        raise scaling.wrong("prefill_target_in_flight_tokens", "it in a disaggregated deployment only")
    return replace(values, prefill_target_in_flight_tokens=_number(scaling, "prefill_target_in_flight_tokens", 0.0))


def _concurrency_scaling(scaling: Table) -> ConcurrencyScaling:
    lowest = scaling.whole_number("min_replica", _CONCURRENCY.min_replica)
    return ConcurrencyScaling(
        min_replica=lowest,
        max_replica=scaling.whole_number("max_replica", _CONCURRENCY.max_replica),
        initial_replicas=scaling.whole_number("initial_replicas", lowest),
        autoscaling_window=_duration(scaling, "autoscaling_window", _CONCURRENCY.autoscaling_window),
        scale_down_delay=_duration(scaling, "scale_down_delay", _CONCURRENCY.scale_down_delay),
        concurrency_target=_number(scaling, "concurrency_target", _CONCURRENCY.concurrency_target),
        target_utilization_percentage=_number(
            scaling, "target_utilization_percentage", _CONCURRENCY.target_utilization_percentage, most=100.0
        ),
    )


def _routing(router: Table, llm_config: Table, *, is_v1: bool) -> KvRouterParameters | None:
    kind = router.choice("kind", _KINDS_OF_ROUTER, "least-load" if is_v1 else "kv")
    if kind == "kv":
        if is_v1:
            raise router.wrong("kind", "'least-load' in a v1 deployment, which has no other")
        given = llm_config.values.get("b10_routing_config", {})
        return _placed(llm_config, lambda: parse_routing(given, llm_config.key("b10_routing_config")), placed=True)
    if "b10_routing_config" in llm_config.values:
        raise llm_config.wrong("b10_routing_config", f"none beside {router.key('kind')} = 'least-load'")
    return None


def _router_runtime(router: Table, directory: Path) -> RouterRuntime:
    given = "snapshots" in router.values
    return _placed(
        router,
        lambda: RouterRuntime(
            recovery=Recovery(
                snapshot_seconds=_duration(router, "snapshot_every", _RUNTIME.recovery.snapshot_seconds),
                snapshot_directory=directory / router.string("snapshots", None) if given else None,
            ),
            replicas=router.whole_number("replicas", _RUNTIME.replicas),
            saturation_ratio=_number(router, "saturation_ratio", _RUNTIME.saturation_ratio),
            max_queued=_count(router, "max_queued", _RUNTIME.max_queued),
            sync_seconds=_duration(router, "sync", _RUNTIME.sync_seconds),
        ),
    )


def _cold_start(table: Table) -> ColdStart:
    return ColdStart(
        image_pull_seconds=_duration(table, "image_pull", _START.image_pull_seconds),
        weights_load_seconds=_duration(table, "weights_load", _START.weights_load_seconds),
        engine_start_seconds=_duration(table, "engine_start", _START.engine_start_seconds),
        warm_up_seconds=_duration(table, "warm_up", _START.warm_up_seconds),
    )


def _health_check(table: Table) -> HealthCheck:
    return _placed(
        table,
        lambda: HealthCheck(
            period_seconds=_duration(table, "period", _CHECK.period_seconds),
            failures=table.whole_number("failures", _CHECK.failures),
            stalled_seconds=_duration(table, "stalled", 0.0) if "stalled" in table.values else None,
            restart_after_seconds=_duration(table, "restart_after", _CHECK.restart_after_seconds),
        ),
    )


def _back_off(table: Table) -> BackOff:
    return BackOff(
        first_seconds=_duration(table, "first", _BACK_OFF.first_seconds),
        most_seconds=_duration(table, "most", _BACK_OFF.most_seconds),
        forgiven_after_seconds=_duration(table, "forgiven_after", _BACK_OFF.forgiven_after_seconds),
    )


def _mapping(table: Table, key: str) -> Mapping[str, object] | None:
    value = table.values.get(key)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise table.wrong(key, f"a table [{table.key(key)}]")
    return value


def _number(table: Table, key: str, default: float, *, least: float | None = None, most: float = math.inf) -> float:
    """The number at a key: above 0, or from `least` on, and at most `most`."""
    value = table.values.get(key, default)
    low = "a number above 0" if least is None else f"a number of {least:g} or more"
    expected = low if most == math.inf else f"{low}, at most {most:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise table.wrong(key, expected)
    # What is no number, nan, fits nowhere.
    fits = value > 0 if least is None else value >= least
    # Beyond that a whole number is none that can be reckoned with either.
    if not fits or value > most or value > sys.float_info.max:
        raise table.wrong(key, expected)
    return float(value)


def _count(table: Table, key: str, default: int) -> int:
    """The whole number at a key, 0 or more."""
    value = table.values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise table.wrong(key, "a whole number of 0 or more")
    return value


def _duration(table: Table, key: str, default: float) -> float:
    """Seconds of the duration at a key; none is a duration, too."""
    expected = "a duration such as '15s', '5m', '500ms' or '0s'"
    return table.parsed(key, parse_duration, round(default * 1000), expected) / 1000


def _placed(table: Table, make: Callable[[], T], *, placed: bool = False) -> T:
    """What `make` makes; an error says in which file and, unless it does so itself (`placed`), in which table."""
    try:
        return make()
    except ConfigurationError:
        raise
    except UsageError as error:
        where = table.origin if placed or str(error).startswith(table.path) else f"{table.origin}: {table.path}"
        raise ConfigurationError(f"{where}: {error}") from error
