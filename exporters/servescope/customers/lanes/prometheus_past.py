"""What an operator should know of a Prometheus that customers' points are read from."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from servescope.customers.lanes.claimed_past import ClaimedPast
from servescope.customers.policy.policy import Policy
from servescope.store.history import History
from servescope.store.prometheus.client import PrometheusError
from servescope.store.prometheus.places import describe_places

_logger = logging.getLogger(__name__)


def warn_of_prometheus(history: History, policies: Iterable[Policy]) -> None:
    """Log which of our rules it does not evaluate, and which deployments it has of several clusters or tenants."""
    if not isinstance(history, ClaimedPast):
        return
    url = history.prometheus.url
    try:
        for file, effect in history.missing_rules().items():
            _logger.warning("the Prometheus at %s does not evaluate %s: %s", url, file, effect)
        spread = history.spread()
    except PrometheusError as error:
        _logger.warning("neither the rules nor the tenants of the Prometheus are known: %s", error)
        return
    for policy in policies:
        for deployment in sorted(policy.deployments & spread.keys()):
            places = [far for far in spread[deployment] if history.claimants.admits_far(deployment, far)]
            if len(places) > 1:
                _logger.warning(
                    "customer %s: deployment %s has targets in %s, all of which the customer receives; where they are "
                    "not all the customer's, list its clusters and namespaces in [deployments.claims], and read one "
                    "tenant alone",
                    policy.name, deployment.deployment_id, " and in ".join(describe_places(places)),
                )  # fmt: skip
