"""The recording rules in place of a collector's own series, from what a Prometheus that scrapes the targets itself has.

Those are `up`, and on the pages of `servescope translate` the `servescope_probe_*` of a target. The results have the
names and the labels of the collector's series, so that alerts, dashboards and the console read them alike. Labels that
a scrape adds to targets remain, as matchers of the options may ask for them.
"""

from __future__ import annotations

from typing import Any, Final

from alerts.fleet import counted_over, lost, unanswered
from alerts.options import DEFAULTS, Options
from servescope.contract.expressions import once_promql
from servescope.contract.identity import DEPLOYMENT_LABELS, ENGINE_ROLES, IDENTITY_LABELS
from servescope.contract.metrics import COUNTED_STATUSES
from servescope.contract.own_metrics import SCRAPE_AGE_SERIES, SCRAPED_UP, TARGET_UNDERSTOOD
from servescope.sources.reader import NOT_UNDERSTOOD

GROUP: Final = "servescope-without-collector"

_REMEMBERED: Final = "1h"
"""For how long a metric that a target supplied counts as missing: a probe itself remembers nothing."""


_ENGINES: Final = f',role=~"{"|".join(ENGINE_ROLES)}"'


def without_collector_group(options: Options = DEFAULTS) -> dict[str, Any]:
    """The group of what a collector would expose; no rule of it reads the result of another."""
    collectors = options.common.collector_labels
    up = _scraped(SCRAPED_UP, options)
    # What answers and is not understood is up, as in Prometheus.
    failed = _scraped("servescope_probe_failed", options, f',reason="{NOT_UNDERSTOOD}"')
    not_understood = f"max without (reason) ({failed})"
    success = _scraped("servescope_probe_success", options)
    # `up` is about the translator: where it does not answer, its series of the target are stale, and `up` is 0.
    healthy = f"{not_understood} or {success} or {up}"
    health = _known(healthy, options)
    seconds = (
        f"{_scraped('servescope_probe_duration_seconds', options)} or {_scraped('scrape_duration_seconds', options)}"
    )
    age = SCRAPE_AGE_SERIES + (f"{{{options.scope}}}" if options.scope else "")
    supplied = _scraped("servescope_probe_metrics", options)
    missing = f"max_over_time({supplied}[{_REMEMBERED}]) - {supplied}"
    # While scrapes fail: the age that was recorded last, and the time since then.
    since = once_promql(f"time() - timestamp({up}) and ({healthy}) == 1", collectors, best="min")
    grown = f"({age} + (time() - timestamp({age}))) and {once_promql(up, collectors)}"
    # It is not known to be a replica.
    engines = _known(
        f"({_scraped('servescope_probe_success', options, _ENGINES)} or {_scraped(SCRAPED_UP, options, _ENGINES)}) "
        f"unless {not_understood}",
        options,
    )
    unread = once_promql(not_understood, collectors)
    names = ", ".join((*DEPLOYMENT_LABELS, *options.common.extra_labels))
    reported = f'replica_count_by_status{{derived=""{f",{options.scope}" if options.scope else ""}}}'
    unless = f"unless on ({names}) {reported}"
    members = counted_over(options)
    active, unhealthy = COUNTED_STATUSES
    everybody, any_up = ", ".join((*collectors, *IDENTITY_LABELS)), _scraped(SCRAPED_UP, options.on_all)
    expressions: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("servescope_target_up", health, {}),
        (TARGET_UNDERSTOOD, once_promql(f"{not_understood} - 1 or {success} == 1", collectors), {}),
        (SCRAPE_AGE_SERIES, f"{since} or ({grown})", {}),
        ("servescope_target_scrape_duration_seconds", once_promql(seconds, collectors), {}),
        ("servescope_target_missing_metrics", once_promql(missing, collectors), {}),
        ("servescope_targets", f"count without ({members}) (({health}) == 1 unless ({unread}))", {"health": "up"}),
        ("servescope_targets", f"count without ({members}) ({unread})", {"health": "not_understood"}),
        ("servescope_targets", f"count without ({members}) (({health}) == 0)", {"health": "down"}),
        # Where no autoscaler reports them, as a collector counts its own targets.
        (
            "replica_count_by_status",
            f"sum without ({members}) ({engines}) {unless}",
            {"derived": "true", "status": active},
        ),
        (
            "replica_count_by_status",
            f"sum without ({members}) (1 - ({engines})) {unless}",
            {"derived": "true", "status": unhealthy},
        ),
        # Alerts on targets that left the lists ask whether anything is listed at all.
        *([("servescope_build_info", f"max without ({everybody}) ({any_up} == 1)", {})] if options.fleet else []),
    )
    rules = [
        {"record": name, "expr": options.expression(expression), **({"labels": labels} if labels else {})}
        for name, expression, labels in expressions
    ]
    return {"name": GROUP, "interval": options.evaluation_interval, "rules": rules}


def _known(health: str, options: Options) -> str:
    """The health of targets of which something is known: an agent asks them still, and a translator answers for them.

    Where no translator does, they are called down unless too few are seen: then a page says so of the fleet.
    """
    answered = once_promql(f"({health}) unless ({unanswered(options)})", options.common.collector_labels)
    identity = ", ".join((*IDENTITY_LABELS, *options.common.extra_labels))
    return f"{answered} unless on ({identity}) {lost(options)}"


def _scraped(name: str, options: Options, where: str = "") -> str:
    """A series of each target with an identity, as its scrape adds or returns it."""
    return f'{name}{{deployment_id!=""{where}{f",{options.scope}" if options.scope else ""}}}'
