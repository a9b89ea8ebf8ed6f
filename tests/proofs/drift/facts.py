"""The content of generated files and of the catalog as facts, which are compared one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.boards import elements
from tests.support.promql import Binary, Call, Node, Number, Selector, parse, read_expression, walk

Key = tuple[str, str]
Facts = dict[Key, object]

RULES = "alerts/generated"
BOARDS = "dashboards/generated"
PAGE = "docs/metrics.md"

_STATUS = {"🟢 good": "good", "🟡 warning": "warning", "🔴 critical": "critical"}
_COLORS = {"green": "good", "yellow": "quiet warning", "orange": "warning", "red": "critical"}
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
# What bears digits and is no number: stacks, percentiles, the API's version, what a share is one part of.
_NO_NUMBERS = re.compile(r"\b1/(?=\d)|\]\([^)]*\)|\bv\d+\b|\b\d+th percentile|/api/v\d|\{\{.*?\}\}")


def read_files(root: Path) -> Facts:
    """All facts of the generated files below `root` about metrics, figures, bands, bounds and objectives."""
    return {
        **dict(_page(root)),
        **dict(_recording_rules(root)),
        **dict(_alert_rules(root)),
        **dict(_runbooks(root)),
        **dict(_panels(root)),
    }


# --- The page of metrics ----------------------------------------------------------------------------------------------


def _page(root: Path) -> Iterator[tuple[Key, object]]:
    text = (root / PAGE).read_text(encoding="utf-8")
    metrics, figures, bands, edges = (
        _section(text, title) for title in ("Metrics", "Figures", "Bands", "Histogram edges")
    )
    for component, part in _headed(metrics, "###"):
        for name, kind, unit, labels, meaning, missing in _rows(part):
            metric = (component.lower(), kind, unit, _labels(labels), meaning, missing)
            yield (PAGE, f"metric {name.strip('`')}"), metric
    for group, part in _headed(figures, "###"):
        for name, figure in _headed(part, "####"):
            yield (PAGE, f"figure {name.strip('`')}"), _figure(group, figure)
    for title, part in _headed(bands, "###"):
        yield (PAGE, f"band {title.removesuffix(' band')}"), _band(part)
    for names, values in re.findall(r"(?m)^((?:`\w+`(?:, )?)+):\n([\d. ·]+)$", edges):
        for name in re.findall(r"`(\w+)`", names):
            yield (PAGE, f"edges {name}"), tuple(map(float, values.split(" · ")))


def _section(text: str, title: str) -> str:
    found = re.search(rf"(?ms)^## {title}\n(.*?)(?=^## |\Z)", text)
    return found[1] if found else ""


def _headed(text: str, level: str) -> list[tuple[str, str]]:
    return re.findall(rf"(?ms)^{level} (.+?)\n(.*?)(?=^{level} |\Z)", text)


def _rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def _labels(cell: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    parts = [re.findall(r"`([^`]+)`", part) for part in cell.split("<br>") if part != "–"]
    return tuple((label, tuple(values)) for label, *values in parts)


def _figure(group: str, text: str) -> tuple[object, ...]:
    title, meaning = re.search(r"\*\*(.+?)\.\*\* (.+)", text).groups()  # type: ignore[union-attr]
    formula = re.search(r"```promql\n(.+)\n```", text)[1]  # type: ignore[index]
    read = read_expression(formula.replace("…", "deployment"))
    unit, *facts = re.search(r"(?m)^(.+ · recorded as `.+`)$", text)[1].split(" · ")  # type: ignore[index]
    return (
        group, title, meaning, unit, read.expression, read.by[1:], tuple(sorted(read.windows)),
        tuple(sorted(fact for fact in facts if not fact.startswith("[band]"))),
    )  # fmt: skip


def _band(text: str) -> tuple[object, ...]:
    """Steps from the lowest up: where each starts, whether it includes that, and the verdict."""
    found: list[object] = []
    for value, judgement, reading, advice in reversed(_rows(text)):
        start = re.match(r"(from|above) (−?[\d.]+)", value)
        edge = (_number(start[2]), start[1] == "from") if start else None
        found.append((edge, _STATUS[judgement], reading, advice))
    return tuple(found)


def _number(text: str) -> float:
    return float(text.replace("−", "-"))


# --- Rules ------------------------------------------------------------------------------------------------------------


def _rule_file(root: Path, name: str) -> list[dict[str, Any]]:
    document = yaml.load((root / RULES / name).read_text(encoding="utf-8"), yaml.CSafeLoader)
    return [rule for group in document["groups"] for rule in group["rules"]]


def _recording_rules(root: Path) -> Iterator[tuple[Key, object]]:
    for path in sorted((root / RULES).glob("*.rules.yml")):
        for rule in _rule_file(root, path.name):
            # In place of a collector's own series there are rules of scrapes, which are in no catalog.
            if "record" in rule and ":" in rule["record"]:
                # What is made of recorded series is no expression of the catalog.
                is_raw = "deployment:" not in rule["expr"]
                yield (path.name, rule["record"]), read_expression(rule["expr"]) if is_raw else parse(rule["expr"])


def _alert_rules(root: Path) -> Iterator[tuple[Key, object]]:
    for rule in _rule_file(root, "alerting.rules.yml"):
        node = parse(rule["expr"])
        about = f"alert {rule['alert']}"
        yield ("alerting.rules.yml", f"{about}, compared"), numbers_of(node)
        yield ("alerting.rules.yml", f"{about}, reads"), names_of(node)
        yield ("alerting.rules.yml", f"{about}, labels"), tuple(sorted(rule["labels"].items()))
        yield ("alerting.rules.yml", f"{about}, waits and keeps"), (rule.get("for"), rule.get("keep_firing_for"))


def numbers_of(node: Node) -> tuple[tuple[str, float], ...]:
    """The numbers that a condition compares with, multiplies by or adds, each with its operator, sorted."""
    return tuple(sorted(_numbers(node)))


def _numbers(node: Node) -> Iterator[tuple[str, float]]:
    match node:
        # The guard of a division is how a ratio is written, not what is compared.
        case Binary("/", left, Binary(">", right, Number(0.0))):
            yield from _numbers(left)
            yield from _numbers(right)
        case Binary(operator, left, Number(value)):
            yield operator, value
            yield from _numbers(left)
        case Binary(operator, Number(value), right):
            yield operator, value
            yield from _numbers(right)
        case Binary(_, left, right):
            yield from _numbers(left)
            yield from _numbers(right)
        case Call(_, arguments):
            for each in arguments:
                yield from _numbers(each)


def names_of(node: Node) -> tuple[str, ...]:
    """The series a condition reads, sorted."""
    return tuple(sorted({each.name for each in walk(node) if isinstance(each, Selector)}))


# --- Runbooks ---------------------------------------------------------------------------------------------------------


def _runbooks(root: Path) -> Iterator[tuple[Key, object]]:
    rules = {rule["alert"]: rule for rule in _rule_file(root, "alerting.rules.yml")}
    for path in sorted((root / RULES / "runbooks").glob("*.md")):
        if path.stem == "README":
            continue
        text = path.read_text(encoding="utf-8")
        rule = rules.get(path.stem, {"expr": "none", "annotations": {"description": ""}, "labels": {}})
        header = re.search(r"Severity (\w+)\. Fires when this holds(?: for (\w+))?:\n\n```promql\n(.+)\n```", text)
        yield (path.name, "says the rule's own expression"), bool(header and parse(header[3]) == parse(rule["expr"]))
        yield (path.name, "severity and wait"), (header[1], header[2]) if header else None
        prose = re.sub(r"(?s)```.*?```", "", text).replace(header[0].partition("\n")[0], "") if header else text
        yield (path.name, "numbers in prose"), _prose_numbers(prose)
        yield (
            ("alerting.rules.yml", f"description of {path.stem}, numbers"),
            _prose_numbers(rule["annotations"]["description"]),
        )


def _prose_numbers(text: str) -> frozenset[str]:
    """The numbers in a text, `0.4` for 40 %, and durations as PromQL has them, `30m` for 30 minutes."""
    units = r" ?%|[smhd]\b| (?:minute|hour|day)s?\b"
    found = re.findall(rf"(?<![\w.])([−+-]?\d+(?:\.\d+)?)({units})?", _NO_NUMBERS.sub("", text))
    return frozenset(_said(number, suffix) for number, suffix in found)


def _said(number: str, suffix: str) -> str:
    unit = suffix.strip()[:1]
    if unit == "%":
        return f"{round(_number(number) / 100, 9):g}"
    return f"{number}{unit}" if unit else f"{_number(number):g}"


# --- Panels -----------------------------------------------------------------------------------------------------------


# A table has units of its own for each column, a heatmap none for its buckets.
_OF_MANY = ("table", "heatmap")


def _panels(root: Path) -> Iterator[tuple[Key, object]]:
    for path in sorted((root / BOARDS).glob("*.json")):
        for panel in elements(json.loads(path.read_text(encoding="utf-8"))):
            if panel["type"] in ("row", *_OF_MANY):
                continue
            defaults = panel["fieldConfig"]["defaults"]
            steps = defaults["thresholds"]["steps"]
            yield (path.name, f"numbers in steps of {panel['title']}"), frozenset(step["value"] for step in steps)
            shown = _shown(_parse_query(panel["targets"][0]["expr"]))
            if shown is not None and shown.name.startswith("deployment:"):
                about = f"{panel['title']}, of {shown.name}"
                yield (path.name, f"unit of {about}"), defaults["unit"]
                yield (path.name, f"steps of {about}"), _steps(steps)


def _shown(node: Node) -> Selector | None:
    """The series whose values a panel shows as they are: of a condition those that it is about."""
    match node:
        case Selector(_, _, ""):
            return node
        case Call("topk", (_, ranked)):
            return _shown(ranked)
        case Binary("and" | "unless" | "<" | "<=" | ">" | ">=" | "==" | "!=", left, _):
            return _shown(left)
        case _:
            return None


def shown_series(root: Path) -> frozenset[str]:
    """The names of all series that a panel of some dashboard reads."""
    boards = [json.loads(path.read_text(encoding="utf-8")) for path in (root / BOARDS).glob("*.json")]
    texts = [target["expr"] for board in boards for panel in elements(board) for target in panel.get("targets", ())]
    return frozenset(each.name for text in texts for each in _selectors(text))


def _selectors(expression: str) -> list[Selector]:
    return [each for each in walk(_parse_query(expression)) if isinstance(each, Selector)]


def _parse_query(expression: str) -> Node:
    return parse(expression.replace("$__rate_interval", "1m"))


def _steps(steps: list[dict[str, Any]]) -> tuple[tuple[float | None, str], ...]:
    return tuple((step["value"], _COLORS.get(step["color"], step["color"])) for step in steps)


def differences(files: Mapping[Key, object], catalog: Mapping[Key, object]) -> list[str]:
    """Each fact that only one side has, or that differs."""
    found = []
    for key in sorted({*files, *catalog}):
        said, meant = files.get(key, "nothing"), catalog.get(key, "nothing")
        if said != meant:
            found.append(f"{key[0]}: {key[1]}: the file has {_listed(said)}, the catalog {_listed(meant)}")
    return found


def _listed(value: object) -> str:
    return repr(sorted(value, key=str)) if isinstance(value, frozenset) else repr(value)
