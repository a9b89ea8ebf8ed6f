"""The recording rules on the fleet as a whole: targets that nothing asks any more, and windows that are not full.

Of a dead agent's targets there is no `up`, and of a dead collector's no series at all, as of targets that left the
lists. They differ in how they ended: a list that no longer has a target ends its series from one scrape to the next, by
a stale marker, and what dies leaves its last samples to age.
"""

from __future__ import annotations

from typing import Any, Final

from alerts.options import DEFAULTS, Options
from servescope.alerting.monitoring.blindness import FLEET_UNSEEN
from servescope.contract.expressions import COLLECTOR_LABELS, Matchers, matchers_promql
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.own_metrics import (
    AGENTS_JOB,
    CLOCK_OFFSET_SERIES,
    CLOCK_SERIES,
    COVERAGE_SERIES,
    MOST_SCRAPES_SERIES,
    PROBED_JOB,
    SCRAPE_AGE_SERIES,
    SCRAPED_UP,
    UNSEEN_SERIES,
)

UNASKED_SECONDS: Final = 90
"""A target that was asked last longer ago is asked by nobody: every window of rules has to hold four scrapes."""

_REMEMBERED: Final = "1h"
"""How long a target is missed that nobody asks any more, if no part of the monitoring is known to be down."""
_CARRIED: Final = "15m"
"""Over how long a gap of evaluations a target is still missed: longer than a restart of Prometheus takes."""
_USUAL: Final = "6h"
"""How far back the usual number of scrapes is looked for: longer than agents keep what they could not send."""

_AGENT_TIME: Final = "prometheus_remote_storage_highest_timestamp_in_seconds"
"""The time of what a Prometheus agent scraped last, by its own clock."""

_OF_TARGETS: Final = 'deployment_id!=""'
_PROBED: Final[Matchers] = (("job", (PROBED_JOB,)),)


def fleet_rules(options: Options = DEFAULTS) -> list[dict[str, Any]]:
    """The rules, to be evaluated before those of the figures that they are about, in the same group."""
    gone = {
        "translator": f"1 - max without ({_apart(options)}) ({_asked(options, _PROBED)}) == 1",
        "agent": _missed("agent", _ended_with_agent(options), options),
        "collector": _missed("collector", _ended_with_collector(options), options),
    }
    expressions: tuple[tuple[str, str, dict[str, str]], ...] = (
        *((UNSEEN_SERIES, expression, {"why": why}) for why, expression in gone.items()),
        ("servescope_targets", _counted_unseen(options), {"health": "unseen"}),
        (MOST_SCRAPES_SERIES, f"max without ({_apart(options, 'replica')}) ({_scrapes(options)})", {}),
        (COVERAGE_SERIES, _coverage(options), {}),
        *([(CLOCK_OFFSET_SERIES, _clock_offsets(options.on_all), {})] if options.fleet else []),
    )
    return [
        {"record": name, "expr": options.expression(expression), **({"labels": labels} if labels else {})}
        for name, expression, labels in expressions
    ]


def unanswered(options: Options) -> str:
    """The targets that no translator answers for while too few are seen: whether they are up is not known."""
    return f"{_asked(options, _PROBED)} == 0 and on ({_fleet(options)}) {_blind()}"


def counted_over(options: Options, *labels: str) -> str:
    """The labels over which the targets of a deployment are counted: `labels`, or `replica` and `role`.

    Those of where a target is scraped are among them too, or each target would be a deployment of its own.
    """
    kept = {*options.common.collector_labels, *options.common.labels.values()}
    return ", ".join((*(each for each in COLLECTOR_LABELS if each not in kept), *(labels or ("replica", "role"))))


def lost(options: Options) -> str:
    """The targets whose last samples are there, and which nothing asks any more."""
    return _series(UNSEEN_SERIES, options, (("why", ("agent",)),))


# --- Targets that nothing asks any more -------------------------------------------------------------------------------


def _missed(why: str, ended: str, options: Options) -> str:
    """The targets that ended with what asked them, and are asked by nobody now."""
    before = f"max without (why) (last_over_time({_series(UNSEEN_SERIES, options, (('why', (why,)),))}[{_CARRIED}]))"
    jobs = matchers_promql((("job", (options.choices.collector_job, AGENTS_JOB)),))
    # As long as a part is down: longer than the ends of series are looked for.
    carried = f"{before} and on ({_fleet(options)}) ({SCRAPED_UP}{jobs} == 0)"
    identity = ", ".join((*IDENTITY_LABELS, *options.common.extra_labels))
    asked = f"({_waited(options)} <= {UNASKED_SECONDS}) or {_on_page(SCRAPE_AGE_SERIES, options)}"
    return f"(group without ({_apart(options)}) ({ended}) or ({carried})) unless on ({identity}) ({asked})"


def _ended_with_agent(options: Options) -> str:
    """The targets whose samples aged within the hour, and did not end."""
    waited = _waited(options)
    return f"(({waited}) or last_over_time(({waited})[{_REMEMBERED}:1m])) > {UNASKED_SECONDS}"


def _ended_with_collector(options: Options) -> str:
    """The targets that were on the last page of their collector within the hour, that of now included."""
    target, page = (
        f"last_over_time(timestamp({_on_page(name, of)})[{_REMEMBERED}:1m])"
        for name, of in ((SCRAPE_AGE_SERIES, options), ("servescope_build_info", options.on_all))
    )
    by = ", ".join(("instance", *options.common.extra_labels))
    return f"{target} == on ({by}) group_left () max without (version) ({page})"


def _waited(options: Options) -> str:
    """How long ago each target was last asked, in seconds; for five minutes after the last time."""
    return f"time() - timestamp({_asked(options)})"


def _counted_unseen(options: Options) -> str:
    """How many targets of each deployment are counted neither as up nor as down."""
    ended = _series(UNSEEN_SERIES, options, (("why", ("agent", "collector")),))
    silent = f"{_series(UNSEEN_SERIES, options, (('why', ('translator',)),))} and on ({_fleet(options)}) {_blind()}"
    return f"count without ({counted_over(options)}) (group without (why) ({ended} or {silent}))"


def _blind() -> str:
    """Whether too few targets are seen: the page's alert is pending, or fires."""
    return f"ALERTS{matchers_promql((('alertname', (FLEET_UNSEEN,)),))}"


# --- Clocks -----------------------------------------------------------------------------------------------------------


def _clock_offsets(options: Options) -> str:
    """How far each clock is ahead of Prometheus': of collectors and agents, and of whose samples are all late.

    With an agent's own, targets that it scrapes add nothing. Of samples that end, the last is late for ten minutes.
    """
    collectors = _on_page(CLOCK_SERIES, options)
    agents = _AGENT_TIME + matchers_promql((("job", (AGENTS_JOB,)),))
    by = f"by ({', '.join(('job', 'instance', *options.common.extra_labels))})"
    own = f"max {by} ({collectors} - timestamp({collectors}) or {agents} - timestamp({agents}))"
    asked = _asked(options)
    # What is more than five minutes behind is not looked back to.
    newest = f"(timestamp({asked}) or timestamp({asked} offset 5m))"
    behind = f"0 - max {by} (time() - {newest} > {UNASKED_SECONDS})"
    off = f"abs({agents} - timestamp({agents})) > {UNASKED_SECONDS}"
    return f"{own} or ({behind} unless on ({_fleet(options)}) ({off}))"


# --- Windows that are not full ----------------------------------------------------------------------------------------


def _coverage(options: Options) -> str:
    """The scrapes that the window of a deployment's targets has, of those that it would have as usual."""
    fleet = f"{_asked(options)} or {_on_page(SCRAPE_AGE_SERIES, options)}"
    targets = f"group without ({_apart(options, 'why')}) ({fleet} or {_series(UNSEEN_SERIES, options)})"
    scrapes = f"max without ({_apart(options)}) ({_scrapes(options)}) and {targets}"
    usual = f"max_over_time({_series(MOST_SCRAPES_SERIES, options)}[{_USUAL}])"
    had = f"sum without ({counted_over(options)}) ({scrapes})"
    return f"{had} / sum without ({counted_over(options, 'role')}) (count without (replica) ({targets}) * {usual})"


def _scrapes(options: Options) -> str:
    """How many scrapes of each target a window has, whether they found it up or down."""
    found = (
        _series("servescope_probe_success", options, (), _OF_TARGETS),
        _asked(options, (), f'job!="{PROBED_JOB}"'),
        _on_page("servescope_target_up", options),
    )
    return " or ".join(f"count_over_time({each}[{options.common.window}])" for each in found)


# --- Selectors --------------------------------------------------------------------------------------------------------


def _asked(options: Options, where: Matchers = (), more: str = "") -> str:
    """`up` of the targets that Prometheus scrapes, or an agent of its."""
    return _series(SCRAPED_UP, options, where, ",".join(each for each in (_OF_TARGETS, more) if each))


def _on_page(name: str, options: Options) -> str:
    return _series(name, options, (("job", (options.choices.collector_job,)),))


def _series(name: str, options: Options, where: Matchers = (), more: str = "") -> str:
    return name + matchers_promql(where, ",".join(each for each in (more, options.scope) if each))


def _apart(options: Options, *others: str) -> str:
    """The labels in which the series of several that scrape a target differ, which may be none, and others."""
    return ", ".join((*options.common.collector_labels, *others))


def _fleet(options: Options) -> str:
    return ", ".join(options.common.extra_labels)
