"""Every query of every panel asked of a real Prometheus for each engine, and what an empty answer means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any as Json
from typing import Literal

from dashboards.__main__ import BOARDS
from dashboards.options import DEFAULTS
from dashboards.panels.conditions import Compiler
from dashboards.panels.panels import LIMIT, NoData
from dashboards.panels.queries import ALERTS, HISTOGRAMS, SCOPE
from servescope.alerting.alerts import ALERTS as CATALOG
from servescope.alerting.rules.links import HEALTH
from servescope.alerting.rules.promises import objectives_of
from servescope.alerting.rules.records import (
    AdHocExpression,
    All,
    Any,
    BadRatio,
    Condition,
    Count,
    Except,
    FigureRef,
    RequestsEnded,
    Term,
    decisive,
    terms,
)
from servescope.contract.expressions import Expression, Rate, promql
from servescope.contract.figures import FIGURES, RECORDED_HISTOGRAMS, record_buckets
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.objectives import BURN_WINDOWS
from tests.proofs.engines.captures import ENGINES, OLD_NAMES, Engine, Recorded, replay
from tests.proofs.engines.probes import probe, probed
from tests.support.boards import panels, read_board, selectors
from tests.support.filled_prometheus import END_MS, SECONDS, holding, scraped_samples
from tests.support.prometheus import Prometheus
from tests.support.recording_rules import RECORDING_FILES, WITHOUT_COLLECTOR

Found = Literal["data", "partly", "idle", "off", "broken"]
"""A panel's answer: data of all its queries or of some; or empty, as nothing of it happened on the captured engine, as
the engine does not expose it, or for an unknown reason."""

INSTRUMENTS = Engine("chat-v2.*", "our instruments", ())
"""The emulated v2, aggregated and in phases, whose instruments Prometheus reads itself."""

COLUMNS = (*ENGINES, INSTRUMENTS)
_RATE_INTERVAL = "1m"
_RANGE = f"{SECONDS}s"
_RECORDED: Mapping[str, Expression] = {
    **{figure.record(): figure.expression for figure in FIGURES.values()},
    **{record_buckets(name): Rate(f"{name}_bucket") for name in RECORDED_HISTOGRAMS},
    **{
        objective.record(window): objective.bad
        for objective in objectives_of().values()
        for row in BURN_WINDOWS
        for window in (row.short, row.long)
    },
}
_NEVER = "none happened"
"""What the catalog says of a metric that is there from its first use on."""


@dataclass(frozen=True, slots=True)
class Cell:
    """How a panel works on an engine; `missing` are the metrics of the contract that the engine does not expose."""

    found: Found
    missing: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A panel, and how it works on each engine, by the engine's name; `no_data` is what it says of being empty."""

    board: str
    panel: str
    no_data: NoData
    cells: Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class Matrix:
    """All panels and alerts on all engines, and what the collector read of each.

    `alerts` has of each alert on an engine's metrics whether what it reads is there, by the engine's name. `probed` has
    the panels that work in another way through `servescope translate`, without a collector, by the engine's name.
    """

    recorded: Recorded
    lines: tuple[Line, ...]
    alerts: Mapping[str, Mapping[str, Cell]]
    probed: Mapping[str, Sequence[str]]

    def is_elsewhere(self, engine: str, cell: Cell) -> bool:
        """Whether all that is missing is what a process beside the captured ones would supply."""
        return bool(cell.missing) and all(self.recorded.is_elsewhere(engine, each) for each in cell.missing)

    def find(self, board: str, panel: str) -> Line:
        """The line of a panel; raises LookupError."""
        for line in self.lines:
            if (line.board, line.panel) == (board, panel):
                return line
        raise LookupError(f"no panel {panel!r} on {board!r}")

    def reasons(self, engine: Engine, metric: str) -> list[str]:
        """Why an engine does not have the metric."""
        return self.recorded.reasons(engine.name, metric) if engine.targets else [METRICS[metric].absent]

    def undeclared(self) -> list[str]:
        """Cells that are empty for another reason than the panel gives, and those for which there is none."""
        return [
            f"{line.board}, {line.panel!r} on {engine}: {cell.found} ({cell.why or _listed(cell.missing)}), "
            f"but it says {line.no_data.text!r}"
            for line in self.lines
            for engine, cell in line.cells.items()
            if not self._is_declared(line, engine, cell)
        ]

    def _is_declared(self, line: Line, engine: str, cell: Cell) -> bool:
        match cell.found:
            case "data" | "partly":
                return True
            case "idle":
                return line.no_data.absence == "idle" or any(word in line.no_data.text for word in _IDLE_WORDS)
            case "off":
                # What another process supplies is not scraped, which is what such a panel says.
                elsewhere = not cell.missing or self.is_elsewhere(engine, cell)
                return line.no_data.absence == "off" or (line.no_data.absence == "broken" and elsewhere)
            case "broken":
                return False


def make_matrix(
    prometheus: Path, promtool: Path, captures: Path, folder: Path, columns: Sequence[Engine] = (*COLUMNS, OLD_NAMES)
) -> Matrix:
    """Replay the captures, load what a collector shows of them into a Prometheus, and ask it for every panel."""
    recorded = replay([each for each in columns if each.targets], captures, folder)
    twins = {each.name: probed(each) for each in columns if each.targets}
    pages = probe(tuple(twins.values()), captures, folder / "probed")
    for name, twin in twins.items():
        recorded.coverage[twin.name] = recorded.coverage[name]
    samples = (*recorded.pages, *pages, *scraped_samples())
    with holding(prometheus, promtool, folder, samples, files=(WITHOUT_COLLECTOR, *RECORDING_FILES)) as server:
        asker = _Asker(server, recorded)
        shown = [
            (name, panel)
            for name in dict.fromkeys(board for board, _ in _DECLARED)
            if name != HEALTH
            for panel in panels(read_board(name))
            if _is_of_engines(panel)
        ]
        asked = [panel for _, panel in shown]
        lines = tuple(
            Line(
                name, panel["title"], _declared(name, panel), {each.name: asker.judge(panel, each) for each in columns}
            )
            for name, panel in shown
        )
        alerts = {
            alert.name: {each.name: asker.judge_alert(alert.condition, each) for each in columns}
            for alert in CATALOG.values()
            if needs_of(alert.condition)
        }
        differing = {
            each.name: [
                f"{line.board}: {line.panel}"
                for line, panel in zip(lines, asked, strict=True)
                if asker.judge(panel, twins[each.name]).found != line.cells[each.name].found
            ]
            for each in columns
            if each.targets
        }
    return Matrix(recorded, lines, alerts, differing)


_COMPILER = Compiler(replace(DEFAULTS, figures="raw"), SCOPE)
_WINDOW = "5m"


def needs_of(condition: Condition) -> list[Term]:
    """The terms with series of engines without which a condition cannot hold, over a window that was replayed."""
    # What a count counts are deployments, by what the collector shows of them.
    read = [list(terms(each)) for each in decisive(condition)]
    every = [term for each in read if not any(isinstance(term, Count) for term in each) for term in each]
    return [found for found in map(_of_any_stack, every) if found is not None]


def _of_any_stack(term: Term) -> Term | None:
    """A term that reads an engine's series itself, None for any other."""
    match term:
        case FigureRef(figure, where):
            return FigureRef(figure, tuple(each for each in where if each[0] != "inference_stack"))
        case AdHocExpression():
            return term
        case BadRatio(objective, _):
            return BadRatio(objective, _WINDOW)
        case RequestsEnded():
            return RequestsEnded(_WINDOW)
        case _:
            return None


_IDLE_WORDS = ("nothing happened", "does not hold", "fewer than", _NEVER)
# A comparison with a number or with other series, or `unless`: where an alert holds, or the least traffic for a share.
_COMPARES = re.compile(r"(?:>=|==) \d| [<>] on \(| unless ")


def _declared(board: str, panel: Json) -> NoData:
    return _DECLARED[board, panel["title"]]


_DECLARED = {
    (board.name, panel.title): panel.no_data
    for board in (make(DEFAULTS) for make in BOARDS)
    for row in board.rows
    for panel in row.panels
}


def _is_of_engines(panel: Json) -> bool:
    """Whether it shows metrics of an engine, and not of servescope or Prometheus."""
    read = [each for target in panel["targets"] for each in _raw_selectors(target["expr"])]
    return any(_name(each) in SAMPLE_FAMILIES for each in read)


class _Asker:
    """Asks for panels as Grafana does, within the deployment of one engine."""

    def __init__(self, server: Prometheus, recorded: Recorded) -> None:
        self._server, self._recorded = server, recorded
        self._known: dict[str, bool] = {}

    def judge(self, panel: Json, engine: Engine) -> Cell:
        """The panel's cell; raises AssertionError when Prometheus refuses a query or warns."""
        # Series that an alert compares with, such as the past or another stack, are not the engine's.
        # Native histograms come from a Prometheus that makes them, not from the engine's text.
        own = [
            target
            for target in panel["targets"]
            if not target["legendFormat"].endswith(f" {LIMIT}") and f"${HISTOGRAMS} * -" not in target["expr"]
        ]
        answers = [self._judge_query(target["expr"], engine) for target in own]
        empty = [each for each in answers if each.found != "data"]
        if not empty:
            return Cell("data")
        missing = tuple(dict.fromkeys(name for each in empty for name in each.missing))
        worst = max(empty, key=lambda each: _WORSE.index(each.found))
        if worst.found == "broken" or len(empty) == len(answers):
            return Cell(worst.found, missing, worst.why)
        return Cell("partly", missing, worst.why)

    def judge_alert(self, condition: Condition, engine: Engine) -> Cell:
        """Whether the series that the condition needs are there, so that it could hold."""
        match condition:
            case All(conditions):
                return self._worst([self.judge_alert(each, engine) for each in conditions])
            case Any(conditions):
                return min((self.judge_alert(each, engine) for each in conditions), key=_badness_of)
            case Except(first, _):
                return self.judge_alert(first, engine)
            case _:
                return self._worst([self._judge_query(_COMPILER.term(each), engine) for each in needs_of(condition)])

    @staticmethod
    def _worst(cells: Sequence[Cell]) -> Cell:
        if not cells:
            return Cell("data")
        worst = max(cells, key=_badness_of)
        missing = dict.fromkeys(name for each in cells for name in each.missing)
        return Cell(worst.found, tuple(missing), worst.why)

    def _judge_query(self, expression: str, engine: Engine) -> Cell:
        if self._finds(_choose(expression, engine)):
            return Cell("data")
        if ALERTS in (name for name, _ in selectors(expression)):
            return Cell("idle", (), "no alert fires")
        # What follows `unless` may be missing.
        read = [_choose(each, engine) for each in _raw_selectors(expression.partition(" unless ")[0])]
        absent = [each for each in read if not self._finds(f"count(count_over_time({each}[{_RANGE}]))")]
        if absent:
            return self._explain_absent(absent, engine)
        counters = [each for each in read if _is_counter(_name(each))]
        still = [each for each in counters if not self._finds(f"sum(increase({each}[{_RANGE}])) > 0")]
        if still:
            return Cell("idle", (), f"{_listed(map(_name, still))} did not rise")
        if _COMPARES.search(expression):
            return Cell("idle", (), "what it asks for does not hold, or there is less traffic than it asks for")
        return Cell("broken", (), f"{_listed(map(_name, read))} are there, and the query finds nothing")

    def _explain_absent(self, absent: Sequence[str], engine: Engine) -> Cell:
        names = list(dict.fromkeys(map(_name, absent)))
        metrics = dict.fromkeys(SAMPLE_FAMILIES[name] for name in names if name in SAMPLE_FAMILIES)
        missing = tuple(each for each in metrics if not self._supplies(engine, each))
        if missing:
            return Cell("off", missing)
        if any(not self._finds(f"count(count_over_time({_whole(each)}[{_RANGE}]))") for each in absent):
            if all(METRICS[each].absent == _NEVER for each in metrics):
                return Cell("idle", (), f"{_listed(names)} has not happened yet")
            return Cell("broken", (), f"{_listed(names)} is not there, though it is read")
        asked = [(label, value) for each in absent for label, value in _fixed_labels(each)]
        edges = [value for label, value in asked if label == "le"]
        if edges:
            return Cell("off", (), f"no bucket of {_listed(names)} ends at {edges[0]} s")
        kinds = [f'`{label}="{value}"`' for label, value in asked if label in IDENTITY_LABELS]
        if kinds:
            return Cell("off", (), f"no series has {', '.join(dict.fromkeys(kinds))}")
        return Cell("idle", (), f"{_listed(names)} has not happened in the way asked for")

    def _supplies(self, engine: Engine, metric: str) -> bool:
        if engine.targets:
            return self._recorded.supplies(engine.name, metric)
        # Our instruments can have everything; what the emulated ones lack is what the catalog calls absent.
        return METRICS[metric].absent in ("not observed", _NEVER)

    def _finds(self, query: str) -> bool:
        if query not in self._known:
            answer = self._server.answer("/api/v1/query", query=query, time=str(END_MS / 1000))
            assert answer["status"] == "success", f"{query}: {answer}"
            assert not answer.get("warnings"), f"{query}: {answer['warnings']}"
            self._known[query] = bool(answer["data"]["result"])
        return self._known[query]


def _badness_of(cell: Cell) -> int:
    return _WORSE.index(cell.found)


_WORSE = ("data", "partly", "idle", "off", "broken")


def _choose(expression: str, engine: Engine) -> str:
    """The expression as Grafana sends it when the engine's deployment is chosen and everything of the rest."""
    chosen = {"deployment": engine.name, "__rate_interval": _RATE_INTERVAL, HISTOGRAMS: "1"}
    return re.sub(r"\$(\w+)", lambda found: chosen.get(found[1], ".*"), expression)


def _raw_selectors(expression: str) -> list[str]:
    """The selectors of contract series that an expression reads, including those behind recorded series."""
    found: list[str] = []
    for name, matchers in selectors(expression):
        recorded = _RECORDED.get(name)
        if recorded is None:
            found.append(f"{name}{{{matchers}}}")
        else:
            found += _raw_selectors(promql(recorded, window="5m", by=("deployment_id",), scope=matchers))
    return list(dict.fromkeys(found))


def _name(selector: str) -> str:
    return selector.partition("{")[0]


def _whole(selector: str) -> str:
    """The selector of the same metric and deployment, whatever its other labels are."""
    deployment = re.search(r'deployment_id=~"[^"]*"', selector)
    return f"{_name(selector)}{{{deployment[0] if deployment else ''}}}"


def _fixed_labels(selector: str) -> list[tuple[str, str]]:
    """The labels of which the selector asks for certain values, whatever is chosen on the dashboard, with these."""
    found = re.findall(r'(\w+)=~?"(?!\.[*+])([^"]*)"', selector)
    return [(label, value) for label, value in found if label != "deployment_id"]


def _is_counter(name: str) -> bool:
    family = SAMPLE_FAMILIES.get(name)
    return family is not None and METRICS[family].kind != "gauge"


def _listed(names: Iterator[str] | Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))
