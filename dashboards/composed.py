"""Queries composed of several expressions: traffic floors, spread between replicas, objectives, time at a limit."""

from __future__ import annotations

from dashboards.conditions import Compiler
from dashboards.options import Options
from dashboards.queries import compile_expression, compile_figure, compile_own
from servescope.alerting.records import Badness
from servescope.contract.expressions import Expression, level, rate
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.types import Objective


def above_floor(expression: str, traffic: Expression, floor: float, options: Options) -> str:
    """An expression per deployment, absent where a deployment has less traffic than the floor."""
    enough = f"{compile_expression(traffic, options, by=DEPLOYMENT_LABELS)} >= {floor!r}"
    return f"{expression} and on ({_deployment(options)}) ({enough})"


def acceptance_length(options: Options) -> str:
    """Output tokens per draft and verification step: one, plus the accepted draft tokens.

    The contract does not count drafts; each is assumed to have as many positions as have accepted tokens.
    """
    positions = compile_figure("spec_decode_accepted_tokens_per_second", options)
    share = compile_figure("speculation_rate", options)
    labels = _deployment(options)
    return f"1 + ({share}) * on ({labels}) count by ({labels}) ({positions})"


def replica_share(above: str, below: str, floor: float, options: Options) -> str:
    """A counter's rate ÷ another's at each replica, absent at those where the other is below the floor."""
    over, under = _by_replica(above, options), _by_replica(below, options)
    return f"{over} / ({under} >= {floor!r})"


def replica_spread(above: str, below: str, floor: float, options: Options) -> str:
    """The standard deviation of the replicas' shares, weighted by their denominators; none below the floor."""
    over, under = _by_replica(above, options), f"({_by_replica(below, options)} >= {floor!r})"
    by = f"sum by ({_deployment(options)})"
    mean = f"({by} ({over} * ({under} > bool 0)) / {by} ({under}))"
    squares = f"{by} ({over} ^ 2 / {under}) / {by} ({under})"
    # Rounding can give a value slightly below 0.
    return f"sqrt(clamp_min({squares} - {mean} ^ 2, 0))"


def attainment(objective: Objective, window: str, options: Options) -> str:
    """The share of requests that met an objective, over a window."""
    return f"1 - ({Compiler(options).term(Badness(objective, window))})"


def budget_left(objective: Objective, options: Options) -> str:
    """The rest of the 30-day error budget: 1 untouched, 0 spent, below 0 overdrawn; every 10 minutes count the same."""
    spent = f"avg_over_time(({Compiler(options).term(Badness(objective, '1h'))})[30d:10m])"
    return f"1 - {spent} / {objective.budget!r}"


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
