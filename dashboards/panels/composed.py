"""Queries composed of several expressions: traffic floors, spread between replicas, objectives, time at a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dashboards.options import Options
from dashboards.panels.conditions import Compiler
from dashboards.panels.panels import HARM_AXIS, LIMIT, UNITS, WHO, NoData, Panel, absence, harm_steps, worst
from dashboards.panels.queries import Query, compile_expression, compile_figure, compile_own, legend
from servescope.alerting.rules.records import BadRatio
from servescope.contract.expressions import Expression, Level, level, rate
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.types import Objective


def above_floor(expression: str, traffic: Expression, floor: float, options: Options) -> str:
    """An expression per deployment, absent where a deployment has less traffic than the floor."""
    enough = f"{compile_expression(traffic, options, by=DEPLOYMENT_LABELS)} >= {floor!r}"
    return f"{expression} and on ({_deployment(options)}) ({enough})"


def acceptance_length(options: Options) -> str:
    """Output tokens per draft and verification step: one, plus the accepted draft tokens.

    Where drafts are not counted, each is assumed to have as many positions as have accepted tokens.
    """
    per_draft = compile_figure("spec_decode_accepted_tokens_per_draft", options)
    positions = compile_figure("spec_decode_accepted_tokens_per_second", options)
    share = compile_figure("speculation_rate", options)
    labels = _deployment(options)
    return f"1 + (({per_draft}) or on ({labels}) ({share}) * on ({labels}) count by ({labels}) ({positions}))"


def replica_share(above: str, below: str, floor: float, options: Options) -> str:
    """A counter's rate ÷ another's at each of several replicas, absent at those where the other is below the floor."""
    over, under = _by_replica(above, options), _by_replica(below, options)
    return f"{over} / ({under} >= {floor!r}) {_of_several(under, options)}"


def replica_spread(above: str, below: str, floor: float, options: Options) -> str:
    """The standard deviation of several replicas' shares, weighted by their denominators; none below the floor."""
    reported = _by_replica(below, options)
    over, under = _by_replica(above, options), f"({reported} >= {floor!r})"
    by = f"sum by ({_deployment(options)})"
    mean = f"({by} ({over} * ({under} > bool 0)) / {by} ({under}))"
    squares = f"{by} ({over} ^ 2 / {under}) / {by} ({under})"
    # Rounding can give a value slightly below 0.
    return f"sqrt(clamp_min({squares} - {mean} ^ 2, 0)) {_of_several(reported, options)}"


def _of_several(by_replica: str, options: Options) -> str:
    """Only where several replicas report: a router reports for all its workers as if it were one replica."""
    return f"and on ({_deployment(options)}) (count by ({_deployment(options)}) ({by_replica}) > 1)"


def attainment(objective: Objective, window: str, options: Options) -> str:
    """The share of requests that met an objective, over a window."""
    return f"1 - ({Compiler(options).term(BadRatio(objective, window))})"


def state_number(
    name: str, label: str, states: Sequence[str], options: Options, *, by: tuple[str, ...], is_own: bool = False
) -> str:
    """The number of the state that a set of series with one state each is in: 1 for the first of `states`.

    Of several, such as those of two routers, the last one of `states` counts.
    """
    compiled = compile_own if is_own else compile_expression
    each = (
        f"({compiled(Level(name, 'max', ((label, (state,)),)), options, by=by)} > 0) * 0 + {number}"
        for number, state in enumerate(states, start=1)
    )
    return " or ".join(reversed(tuple(each)))


def beside_old(expression: Expression, options: Options, *, times: float = 1.0, plus: float = 0.0) -> Query:
    """What an expression may be on the new stack: its value on the old one times a number, or more by a number."""
    old = compile_expression(expression, options, by=(), where=(("inference_stack", (options.choices.old_stack,)),))
    return Query(f"({old}) * {times!r} + {plus!r}", f"{options.choices.old_stack} {LIMIT}")


def harm_panel(options: Options, *, limit: int = 0) -> Panel:
    """The share of failed and rejected requests of each deployment, with the lines of its objective."""
    objective = options.objectives["requests"]
    query = Query(Compiler(options).term(BadRatio(objective, "5m")), legend(options, *WHO))
    return Panel(
        title="Failed or rejected",
        kind="timeseries",
        queries=(worst(limit, query) if limit else query,),
        unit=UNITS["ratio"],
        meaning="Requests that failed in the stack or were rejected by it / requests that ended. The dashed lines are "
        f"the objective ({objective.promise}) and what burns its budget fast enough to page.",
        normal="0, or a few in ten thousand.",
        first="compare the replicas: is it one, or all? For rejected requests check the queue and the replica count.",
        no_data=unrecorded(absence(objective.bad, idle=True)),
        thresholds=harm_steps(objective),
        axis=HARM_AXIS,
    )


def harm_column(options: Options) -> str:
    """The same for a table, which joins figures by their labels: without the name of the recorded series."""
    return f"max by ({_deployment(options)}) ({Compiler(options).term(BadRatio(options.objectives['requests'], '5m'))})"


def replicas_column(options: Options, *statuses: str) -> str:
    """How many replicas have one of these statuses, for a table: also of a deployment that has no other figure."""
    counted = compile_figure("replica_count_by_status", options, nameless=True, where=(("status", statuses),))
    return f"sum by ({_deployment(options)}) ({counted})"


def unrecorded(no_data: NoData) -> NoData:
    """Why a panel of an objective can be empty."""
    return replace(no_data, text=f"{no_data.text}; or the recording rules of the objectives are not loaded")


def kept_over_days(objective: Objective, options: Options) -> str:
    """The share of requests over 3 days that met an objective, over all phases of a deployment together."""
    bad = f"({Compiler(options).term(BadRatio(objective, '3d'))})"
    # A phase of a few requests must not count as much as the one before it.
    requests = f"sum_over_time(({compile_figure('request_rate', options)})[3d:10m])"
    weights = f"({requests} and on ({_deployment(options)}) {bad})"
    total = f"sum by ({_phaseless(options)})"
    return f"1 - {total} ({bad} * on ({_deployment(options)}) {weights}) / ({total} ({weights}) > 0)"


def budget_left(objective: Objective, options: Options) -> str:
    """The rest of the 30-day error budget: 1 untouched, 0 spent, below 0 overdrawn.

    Every 10 minutes count the same, and those without a request, or before the deployment began, spend nothing. For an
    hour after a change of phase both phases have a value, and the worse one counts.
    """
    worst = f"max by ({_phaseless(options)}) ({Compiler(options).term(BadRatio(objective, '1h'))})"
    moments = _BUDGET_DAYS * 24 * 60 // _BUDGET_STEP_MINUTES
    spent = f"sum_over_time(({worst})[{_BUDGET_DAYS}d:{_BUDGET_STEP_MINUTES}m]) / {moments}"
    return f"1 - {spent} / {objective.budget!r}"


_BUDGET_DAYS: Final = 30
_BUDGET_STEP_MINUTES: Final = 10


def share_of_time_above(figure: str, other: str, stretch: str, options: Options) -> str:
    """The share of the time in which one figure of a deployment was above another."""
    labels = _deployment(options)
    above = f"{_operand(figure, options)} > bool on ({labels}) {_operand(other, options)}"
    return f"avg_over_time(({above})[{stretch}:{options.scrape_interval}])"


def among_collectors(expression: str, options: Options) -> str:
    """An expression for collectors only, by instance: every scraped program exposes its CPU usage."""
    collectors = compile_own(level("servescope_build_info", "max"), options, by=("instance",))
    return f"({expression}) and on ({', '.join(options.group(('instance',)))}) ({collectors})"


def _operand(figure: str, options: Options) -> str:
    text = compile_figure(figure, options)
    return f"({text})" if options.figures == "raw" else text


def _by_replica(counter: str, options: Options) -> str:
    expression: Expression = rate(counter)
    return compile_expression(expression, options, by=(*DEPLOYMENT_LABELS, "replica"))


def _deployment(options: Options) -> str:
    return ", ".join(options.group(DEPLOYMENT_LABELS))


def _phaseless(options: Options) -> str:
    return ", ".join(options.group(label for label in DEPLOYMENT_LABELS if label != "rollout_phase"))
