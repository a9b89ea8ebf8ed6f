"""The `[[traffic_split]]` of a configuration: how a model's requests are to be split between the inference stacks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from servescope.contract.identity import Deployment
from servescope.contract.samples import Labels, make_labels
from servescope.errors import ConfigurationError
from servescope.settings.tables import REQUIRED, Setting, Table

TRAFFIC_SPLIT_SETTINGS = (Setting("model_name", REQUIRED), Setting("environment", '""'), Setting("stacks", REQUIRED))

# Ratios such as 1/3 are written with some digits only.
_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class ConfiguredTraffic:
    """The ratio, 0 … 1, of a model's requests in an environment that an inference stack is to get."""

    model_name: str
    environment: str
    inference_stack: str
    ratio: float

    def labels(self) -> Labels:
        """The labels of its series, empty ones left out."""
        return make_labels((name, getattr(self, name)) for name in ("model_name", "environment", "inference_stack"))


def read_traffic_split(tables: Sequence[Table], deployments: Iterable[Deployment]) -> tuple[ConfiguredTraffic, ...]:
    """The configured traffic of each stack, of all tables.

    The ratios of a table sum to 1, over stacks that `deployments` have of that model in that environment. Raises
    ConfigurationError naming file, key and value.
    """
    stacks: dict[tuple[str, str], dict[str, None]] = {}
    for deployment in deployments:
        key = (deployment.model_name, deployment.environment)
        stacks.setdefault(key, {})[deployment.inference_stack] = None
    found: dict[tuple[str, str], tuple[ConfiguredTraffic, ...]] = {}
    for table in tables:
        key = (table.string("model_name", None), table.string("environment", ""))
        if key in found:
            raise table.wrong("model_name", "one [[traffic_split]] table for each model_name and environment")
        if key not in stacks:
            where = "model_name" if key[0] not in {model for model, _ in stacks} else "environment"
            place = ("model_name", "environment").index(where)
            known = sorted({each[place] for each in stacks if where == "model_name" or each[0] == key[0]})
            raise table.wrong(where, f"one of [[deployments]]: {', '.join(map(repr, known))}")
        found[key] = tuple(_read_stacks(table, key, stacks[key]))
    return tuple(each for stacks_of_model in found.values() for each in stacks_of_model)


def _read_stacks(table: Table, key: tuple[str, str], known: Iterable[str]) -> Iterable[ConfiguredTraffic]:
    written = table.values["stacks"]
    if not isinstance(written, dict) or not written:
        raise table.wrong("stacks", "a ratio by inference stack, such as { v1 = 0.9, v2 = 0.1 }")
    stacks = Table(written, table.origin, table.key("stacks"))
    ratios = {stack: _read_ratio(stacks, stack, known) for stack in written}
    total = math.fsum(ratios.values())
    if abs(total - 1) > _SUM_TOLERANCE:
        listed = ", ".join(f"{stack} = {ratio:g}" for stack, ratio in ratios.items())
        raise ConfigurationError(
            f"{table.origin}: {table.key('stacks')}: {{ {listed} }} is wrong, expected ratios that sum to 1, "
            f"not to {total:g}"
        )
    return (ConfiguredTraffic(*key, stack, ratio) for stack, ratio in ratios.items())


def _read_ratio(stacks: Table, stack: str, known: Iterable[str]) -> float:
    if stack not in known:
        raise ConfigurationError(
            f"{stacks.origin}: {stacks.key(stack)}: no deployment of this model has the inference_stack {stack!r}, "
            f"expected one of {', '.join(known)}"
        )
    ratio = stacks.values[stack]
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
        raise stacks.wrong(stack, "a number from 0 to 1")
    return float(ratio)
