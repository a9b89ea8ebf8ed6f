"""Which deployments are listed, were listed within the last day, and ought to be: conditions of several alerts."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from servescope.alerting.rules import records
from servescope.contract.expressions import Matchers
from servescope.contract.identity import DEPLOYMENT_LABELS, ENGINE_ROLES, IDENTITY_LABELS
from servescope.contract.own_metrics import SCRAPE_AGE_SERIES, UNSEEN_SERIES

PHASE: Final = "rollout_phase"
ANY_PHASE: Final = tuple(label for label in DEPLOYMENT_LABELS if label != PHASE)
"""The labels of a deployment: one that enters another phase of its rollout is the same, though its series differ."""

MODEL_LABELS: Final = ("model_name", "environment")

ENGINES: Final[Matchers] = (("role", ENGINE_ROLES),)
ROUTERS: Final[Matchers] = (("role", ("router",)),)

REMEMBERED: Final = "1d"
"""How long a deployment that is no longer listed is missed."""

SENT: Final = records.FigureRef("autoscaler_rounded_desired_scale")
SCALED_TO_ZERO: Final = records.Compare(SENT, "==", 0.0)
NONE_WANTED_LATELY: Final = records.Compare(records.OverTime("min", SENT, "20m"), "==", 0.0)
"""The autoscaler requests no replica, or did not at some time within the 20 minutes of a cold start."""

START_GRACE: Final = "30m"
"""How long a target, or a deployment, may take to come up for the first time."""

RETIRED: Final = records.Compare(
    records.SelfMetric("servescope_configured_traffic_ratio", ("model_name", "environment", "inference_stack")),
    "==",
    0.0,
)
"""The configured traffic split sends a stack no requests: no user is affected by what becomes of it."""

COLLECTED: Final = records.Present(records.SelfMetric("servescope_build_info"))
"""Without a collector nothing is listed: one alert reports that, and not one for each deployment."""


def scrape_age(where: Matchers = ()) -> records.SelfMetric:
    """The series of targets that are there while a target is listed, whether or not its scrapes succeed."""
    return records.SelfMetric(SCRAPE_AGE_SERIES, IDENTITY_LABELS, where)


def target_up(where: Matchers = ()) -> records.SelfMetric:
    """Whether the last scrape of each target succeeded; absent until it was scraped."""
    return records.SelfMetric("servescope_target_up", IDENTITY_LABELS, where)


def starting(up: records.Extreme | records.Total, known: str) -> records.Condition:
    """What appeared within `START_GRACE` and has been at 0 ever since, and was not there for as long as `known` before.

    Whether it appeared is sampled every five minutes, so that the grace may last five minutes longer.
    """
    lately = records.Subquery("max", up, START_GRACE, every="1m")
    before = records.Subquery("max", up, known, before=START_GRACE)
    return records.Except(records.Compare(lately, "==", 0.0), records.Present(before))


TARGET_UP: Final = records.Extreme("max", target_up(), tuple(label for label in IDENTITY_LABELS if label != PHASE))
"""Whether a target is up, in whichever phase of its rollout."""
TARGET_STARTING: Final = starting(TARGET_UP, "1h")
"""A target that has not been up yet, and was listed within `START_GRACE`."""


def unseen(by: tuple[str, ...] = IDENTITY_LABELS) -> records.Extreme:
    """The targets that nothing asks any more, or whose translator does not answer; a collector itself has none."""
    return records.Extreme("max", records.SelfMetric(UNSEEN_SERIES, (*IDENTITY_LABELS, "why")), by)


def listed(where: Matchers) -> records.Condition:
    """A deployment with such targets."""
    return records.Present(records.Extreme("min", scrape_age(where), ANY_PHASE))


def lately_listed(where: Matchers) -> records.Condition:
    """A deployment that has, or within a day had, such targets."""
    return records.Present(
        records.Subquery("max", records.Extreme("min", scrape_age(where), ANY_PHASE), REMEMBERED, every="15m")
    )


def unless_unused(condition: records.Condition) -> records.Condition:
    """The condition, without deployments that are scaled to zero or retired."""
    return records.Except(records.Except(condition, SCALED_TO_ZERO), RETIRED)


EXPECTED: Final = unless_unused(lately_listed(ENGINES))
"""A deployment that ought to be listed."""

REPLACED: Final = records.All((
    records.Compare(records.OverTime("last", records.FigureRef("request_rate"), REMEMBERED), "==", 0.0),
    records.Present(records.Total(records.FigureRef("request_rate"), MODEL_LABELS)),
))  # fmt: skip
"""A deployment that had no requests when it was last seen, and whose model has another one."""

GONE: Final = records.Except(records.Except(EXPECTED, listed(ENGINES)), REPLACED)


def unknown(labels: Container[str]) -> records.Condition:
    """Targets of one role, some of which are unseen while none is up: of a deployment, or a replica if `labels` has it.

    What they exposed is not known to be over.
    """
    by = (*ANY_PHASE, "role", *(["replica"] if "replica" in labels else []))
    return records.Except(
        records.Present(unseen(by)), records.Compare(records.Extreme("max", target_up(), by), "==", 1.0)
    )
