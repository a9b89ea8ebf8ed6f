"""The plan of a cutover: its arms, stages and metrics with their margins; and the same frozen, with a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from servescope.contract.identity import GROUP_LABELS, Identity
from servescope.contract.judged import (
    DEFAULT_ALPHA_HARM,
    DEFAULT_ALPHA_HEALTH,
    DEFAULT_CALIBRATION_DAYS,
    DEFAULT_COVERAGE,
    DEFAULT_HOLDBACK,
    DRAFTED_STAGES,
    MetricKind,
    MetricRole,
)
from servescope.cutover.statistics.mix import PromptSlope
from servescope.errors import UsageError


@dataclass(frozen=True, slots=True)
class Arm:
    """The targets of one side: those whose identity has all labels of one of the selectors."""

    name: Literal["v1", "v2"]
    selectors: tuple[Mapping[str, str], ...]

    def selects(self, identity: Identity) -> bool:
        """Whether a target belongs to this arm."""
        for selector in self.selectors:
            for label, value in selector.items():
                if getattr(identity, label) != value:
                    break
            else:
                return True
        return False

    def shared_labels(self, identities: Iterable[Identity]) -> dict[str, str]:
        """The labels of a deployment, out of `GROUP_LABELS`, that all its targets have alike, without empty ones."""
        chosen = [each for each in identities if self.selects(each)]
        shared = {label: {getattr(each, label) for each in chosen} for label in GROUP_LABELS}
        return {label: value for label, values in shared.items() if len(values) == 1 for value in values if value}


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the cutover: the share of requests that v2 is to have, 0 … 1, and how long it lasts at least."""

    share: float
    least_hours: float = 0.0


@dataclass(frozen=True, slots=True)
class MetricPlan:
    """How one metric is judged.

    `margin` is the relative change to the worse that v2 must be proven to stay below, a positive fraction; `floor` the
    change below which harm is immaterial; both None of a band, which has `low` and `high` instead. A metric that is not
    `required` never makes a verdict DEGRADED; while harm of one that is a `guard` is proven, no verdict is HEALTHY.
    Of a metric with a margin, `better` None says that a change either way is harm. `edges` are the bucket edges, in the
    metric's unit, at which slow fractions are compared; chosen when the plan is frozen where it has none.
    """

    name: str
    kind: MetricKind
    better: Literal["higher", "lower"] | None
    required: bool = True
    margin: float | None = None
    floor: float | None = None
    low: float | None = None
    high: float | None = None
    edges: tuple[float, ...] = ()
    guard: bool = False

    @property
    def role(self) -> MetricRole:
        """What it decides; metrics of one role share the probability of a false alarm."""
        return "required" if self.required else "guard" if self.guard else "reported"


@dataclass(frozen=True, slots=True)
class CutoverPlan:
    """What is to be judged, before it is frozen. `calibration_hours` is how much of v1's past shows its noise.

    `alpha_harm` bounds the probability that a cutover without harm is ever called DEGRADED, over all metrics and
    stages; `alpha_health` the probability, per metric, that one at its margin is ever called HEALTHY. An interval is
    wrong as often as either, at most. `holdback` is the share that v1 keeps as a control until the end.
    `configurations` are the hashes of what each side is configured with, by `CONFIGURATIONS`; those that are known.
    `checklist` is what to look after beside what is judged, a sentence each. `coverage` is the part of each arm's
    requests that the evidence of a required metric has to have, 0 … 1.
    """

    name: str
    v1: Arm
    v2: Arm
    stages: tuple[Stage, ...]
    metrics: tuple[MetricPlan, ...]
    alpha_harm: float = DEFAULT_ALPHA_HARM
    alpha_health: float = DEFAULT_ALPHA_HEALTH
    holdback: float = DEFAULT_HOLDBACK
    calibration_hours: float = 24.0 * DEFAULT_CALIBRATION_DAYS
    configurations: Mapping[str, str] = field(default_factory=dict)
    checklist: tuple[str, ...] = ()
    coverage: float = DEFAULT_COVERAGE

    def hash(self) -> str:
        """The identity of the plan: the same for the same meaning, 16 hexadecimal digits."""
        text = json.dumps(_plan_values(asdict(self)), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Noise:
    """What v1 against v1 showed of one metric before the cutover, in natural logarithms.

    `tau2` is the excess variance of a block's effect beyond sampling, autocorrelation included; `pod_tau2` the variance
    between replicas that lasts; `cv2` the squared coefficient of variation of one observation; `information_wanted` the
    information that bounds are tuned to. `calibrated` is False where there was too little past, so that the noise is
    estimated while the cutover runs. `spread` is 1/P1 + 1/P2 of the groups of replicas that `tau2` is of; `least_tau2`
    is that of the largest groups, with `least_spread`: more replicas have no less. `dispersion` is by how much events
    vary more than independent ones, and `pairs` how many pairs of them blocks had, by their size (`clusters.pairs_in`).
    """

    tau2: float
    pod_tau2: float
    cv2: float
    information_wanted: float
    blocks: int
    calibrated: bool
    spread: float = 0.0
    least_tau2: float = 0.0
    least_spread: float = 0.0
    dispersion: float = 1.0
    pairs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Slope:
    """What one unit of a feature moves the logarithm of a metric's mean by in v1's past, with its standard error."""

    slope: float
    error: float


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How the reuse of prompts and the load per replica move a metric: None where v1's past does not show it.

    `prompts` is the slope on the length of prompts beside reuse, None where length is not adjusted for. `moved` is the
    noise of what both explain of effects, `left` that of effects without.
    """

    reuse: Slope | None
    load: Slope | None
    prompts: float | None
    moved: Noise
    left: Noise


@dataclass(frozen=True, slots=True)
class ComparedEdge:
    """A bucket edge that both arms have, above which the shares of observations are compared.

    `tau2` is the excess variance of a block's difference, `floor` the difference below which it is immaterial,
    `lasting` that which replicas that differ for good explain, and `wanted` the variance at which bounds are narrowest.
    """

    edge: float
    tau2: float
    floor: float
    lasting: float
    wanted: float


@dataclass(frozen=True, slots=True)
class FrozenPlan:
    """A plan with everything that was chosen at its start, and never after.

    `layers` are by family of series the layer of v1 and of v2 that it is taken from, "" where an arm does not show it
    yet; `slopes` by metric how prompts move it; `edges` by metric the shared
    bucket edges that are compared; `histograms` are the metrics that are judged by their histogram's mean and would be
    token-weighted otherwise; `unobservable` says by metric what neither arm, or one of them, does not report;
    `top_load` is the requests per replica and second that the upper third of v1's blocks exceeded; `judged` are the
    labels of v2's deployment, as far as all its targets share them. `sensitivity` is by metric how
    what an arm is given moves it; where v1's past shows that of none it is no part of the hash, as in plans frozen
    before there was any; so it is with `tails`, the bucket edge by metric above which the share is judged.
    """

    plan: CutoverPlan
    started_ms: int
    noise: Mapping[str, Noise]
    layers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    slopes: Mapping[str, PromptSlope] = field(default_factory=dict)
    edges: Mapping[str, tuple[ComparedEdge, ...]] = field(default_factory=dict)
    histograms: tuple[str, ...] = ()
    unobservable: Mapping[str, str] = field(default_factory=dict)
    top_load: float | None = None
    judged: Mapping[str, str] = field(default_factory=dict)
    sensitivity: Mapping[str, Sensitivity] = field(default_factory=dict)
    tails: Mapping[str, float] = field(default_factory=dict)
    _hash: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def read_edges(self) -> dict[str, tuple[float, ...]]:
        """By metric the bucket edges above which observations are counted: those that are compared, and of tails."""
        edges = {name: tuple(each.edge for each in found) for name, found in self.edges.items()}
        return edges | {name: (edge,) for name, edge in self.tails.items()}

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values, with its hash; `from_json` makes the same of it."""
        return {**self._values(), "hash": self.hash()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FrozenPlan:
        """The plan that `to_json` wrote; raises PlanChangedError when it was edited since."""
        try:
            frozen = _read_frozen(values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanChangedError(f"this is no frozen plan: {error!r}") from error
        if frozen.hash() != values.get("hash"):
            raise PlanChangedError(
                f"plan {frozen.plan.name!r} was edited after it was frozen: its hash is {frozen.hash()[:16]}, and not "
                f"{str(values.get('hash'))[:16]}; start a new run of the edited plan"
            )
        return frozen

    def hash(self) -> str:
        """The identity of the frozen plan, 64 hexadecimal digits."""
        # Of every judgement, thousands of times: the plan does not change.
        if not self._hash:
            text = json.dumps(self._values(), sort_keys=True, separators=(",", ":"))
            self._hash.append(hashlib.sha256(text.encode()).hexdigest())
        return self._hash[0]

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        del values["_hash"]
        for name in ("sensitivity", "tails"):
            if not values[name]:
                del values[name]
        # Noise that knows of no events is as it was before plans did.
        noise = [*values["noise"].values(), *(each[part] for each in values.get("sensitivity", {}).values()
                                              for part in ("moved", "left"))]  # fmt: skip
        for each in noise:
            if not each["pairs"]:
                del each["pairs"]
        return values | {"plan": _plan_values(values["plan"])}


def _plan_values(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a plan without keys that plans did not always have, where these say nothing new: hashes stay."""
    metrics = [{key: value for key, value in each.items() if (key, value) not in _LATER_OF_METRICS}
               for each in values["metrics"]]  # fmt: skip
    return {key: value for key, value in values.items() if (key, value) not in _LATER_DEFAULTS} | {"metrics": metrics}


_LATER_DEFAULTS: Final = (("coverage", 0.95),)
"""What a frozen plan has that was made before there was the key, whatever the default is now."""
_LATER_OF_METRICS: Final = (("guard", False),)


class PlanChangedError(UsageError):
    """A frozen plan is not what it was when it was frozen."""


def _read_frozen(values: Mapping[str, Any]) -> FrozenPlan:
    plan = values["plan"]
    return FrozenPlan(
        plan=CutoverPlan(
            **{
                **dict(_LATER_DEFAULTS),
                **plan,
                "v1": Arm(plan["v1"]["name"], tuple(plan["v1"]["selectors"])),
                "v2": Arm(plan["v2"]["name"], tuple(plan["v2"]["selectors"])),
                "checklist": tuple(plan["checklist"]),
                "stages": tuple(Stage(**each) for each in plan["stages"]),
                "metrics": tuple(MetricPlan(**{**each, "edges": tuple(each["edges"])}) for each in plan["metrics"]),
            }
        ),
        started_ms=values["started_ms"],
        noise={name: _read_noise(each) for name, each in values["noise"].items()},
        layers={name: (v1, v2) for name, (v1, v2) in values["layers"].items()},
        slopes={name: PromptSlope(**each) for name, each in values["slopes"].items()},
        edges={name: tuple(ComparedEdge(**edge) for edge in each) for name, each in values["edges"].items()},
        histograms=tuple(values["histograms"]),
        unobservable=dict(values["unobservable"]),
        top_load=values["top_load"],
        judged=dict(values["judged"]),
        sensitivity={name: _read_sensitivity(each) for name, each in values.get("sensitivity", {}).items()},
        tails=dict(values.get("tails", {})),
    )


def _read_noise(values: Mapping[str, Any]) -> Noise:
    return Noise(**{**values, "pairs": tuple(values.get("pairs", ()))})


def _read_sensitivity(values: Mapping[str, Any]) -> Sensitivity:
    slopes = {name: None if values[name] is None else Slope(**values[name]) for name in ("reuse", "load")}
    return Sensitivity(
        **slopes, prompts=values["prompts"], moved=_read_noise(values["moved"]), left=_read_noise(values["left"])
    )  # fmt: skip


CONFIGURATIONS: Final = ("v1", "v2", "management_api")
"""What a plan records the hash of: the configuration of each arm, and v2's body of the Management API."""

USUAL_STAGES: Final = tuple(Stage(*each) for each in DRAFTED_STAGES)
"""The stages of a drafted plan."""

LEAST_MARGIN: Final = 0.005
"""A smaller margin would need more traffic than there is."""
