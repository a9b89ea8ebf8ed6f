"""What the entries of a run have to hold: their hashes say that nothing was changed, and not that it makes sense."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

from servescope.cutover.judgement import Verdict
from servescope.cutover.plan.plan import FrozenPlan, PlanChangedError
from servescope.errors import ServescopeError
from servescope.judge.journal.journal import JournalEntry
from servescope.settings.values import format_instant


class BodyError(ServescopeError):
    """An entry does not hold what one of its kind does; the text says what it has instead."""


def read_start(entry: JournalEntry) -> FrozenPlan:
    """The frozen plan of the first entry of a run; raises BodyError, saying what it has instead."""
    if entry.kind != "start":
        raise BodyError(f"run {entry.run} of plan {entry.plan!r} has no start in the journal")
    try:
        frozen = FrozenPlan.from_json(_table(entry.body, "frozen"))
        format_instant(frozen.started_ms)
    except (PlanChangedError, TypeError, OverflowError, OSError, RecursionError) as error:
        raise BodyError(str(error)) from error
    if frozen.plan.name != entry.plan:
        raise BodyError(f"it freezes plan {frozen.plan.name!r}, and is of plan {entry.plan!r}")
    return frozen


def check_body(entry: JournalEntry, frozen: FrozenPlan) -> None:
    """Raise BodyError where an entry of a run does not hold what one of its kind does."""
    body = entry.body
    if entry.kind == "advance" or "stage" in body:
        stages = len(frozen.plan.stages)
        if not _is_number(body.get("stage"), int) or not 0 <= body["stage"] < stages:
            raise BodyError(f"its stage is {body.get('stage')!r}, expected 0 to {stages - 1}")
    if entry.kind == "exclude":
        for name in ("start_ms", "end_ms"):
            if not _is_number(body.get(name), int):
                raise BodyError(f"its {name} is {body.get(name)!r}, expected a time")
            try:
                format_instant(body[name])
            except (ValueError, OverflowError, OSError) as error:
                raise BodyError(f"its {name} is {body[name]!r}, which is no time") from error
    if entry.kind == "judgement":
        _check_verdict(body)
    judgement = body.get("judgement")
    if judgement:
        _check_judgement(_table(body, "judgement"))


def _check_judgement(judgement: Mapping[str, Any]) -> None:
    if "problem" in judgement:
        return
    _check_verdict(judgement)
    metrics = judgement.get("metrics")
    if not isinstance(metrics, Sequence) or isinstance(metrics, str):
        raise BodyError(f"the metrics of its judgement are {metrics!r}, expected a list")
    for metric in metrics:
        if not isinstance(metric, Mapping):
            raise BodyError(f"a metric of its judgement is {metric!r}, expected a table")
        for name, is_right in _METRIC.items():
            if not is_right(metric.get(name)):
                raise BodyError(f"the {name} of a metric of its judgement is {metric.get(name)!r}")


def _check_verdict(values: Mapping[str, Any]) -> None:
    if values.get("verdict") not in get_args(Verdict):
        raise BodyError(f"its verdict is {values.get('verdict')!r}, expected one of {', '.join(get_args(Verdict))}")
    if not isinstance(values.get("reason", ""), str):
        raise BodyError(f"its reason is {values.get('reason')!r}, expected text")


def _table(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = body.get(name)
    if not isinstance(found, Mapping):
        raise BodyError(f"its {name} is {found!r:.60}, expected a table")
    return found


def _is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_figure(value: object) -> bool:
    return value is None or isinstance(value, float) or (_is_number(value, int) and value in _WHOLE)


_WHOLE: Final = range(-(2**53), 2**53)
_METRIC: Final[Mapping[str, Callable[[object], bool]]] = {
    "name": lambda value: isinstance(value, str),
    "required": lambda value: isinstance(value, bool),
    "ratio": _is_figure,
    "low": _is_figure,
    "high": _is_figure,
}
"""What is read of a metric in a judgement that was written down."""
