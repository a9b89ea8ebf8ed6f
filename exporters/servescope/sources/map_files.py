"""Reading the files of source maps, one per engine and range of versions; `docs/sources.md` describes the format."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from itertools import product
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_args

from servescope.contract.metrics import METRICS, PROCESS_RATIOS
from servescope.contract.samples import Labels, make_labels
from servescope.contract.types import Metric
from servescope.errors import ConfigurationError
from servescope.sources.maps import (
    SUPPLIED,
    Absence,
    Alternative,
    FirstUse,
    LabelRule,
    Layer,
    MetricMap,
    Signs,
    Source,
    Status,
    Term,
    Values,
    VersionRule,
)


@lru_cache(maxsize=1)
def load_sources() -> Mapping[str, Source]:
    """Every source map by its name; raises ConfigurationError when a file is wrong."""
    entries = sorted(files(__package__).iterdir(), key=lambda entry: entry.name)
    return MappingProxyType(
        {
            entry.name.removesuffix(".toml"): read_source(entry.name, entry.read_text("utf-8"))
            for entry in entries
            if entry.name.endswith(".toml")
        }
    )


def read_source(file_name: str, text: str) -> Source:
    """The source map in a file's text; raises ConfigurationError naming file, key, value and what was expected."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{file_name}: not TOML: {error}") from error
    table = _Table(document, file_name)
    source = Source(
        name=file_name.removesuffix(".toml"),
        title=table.text("title"),
        covers=table.text("covers"),
        layer=table.choice("layer", get_args(Layer)),
        prefixes=table.texts("prefixes"),
        signs=_read_signs(table.table("identify")),
        versions=tuple(_read_version(each) for each in table.tables("versions")),
        first_use=_read_first_use(table.table("first_use")),
        metrics=_read_metrics(table),
    )
    table.finish()
    return source


def _read_signs(table: _Table) -> Signs:
    signs = Signs(table.texts("all"), table.texts("any"), table.texts("none"), table.text("label", "") or None)
    if not signs.all and not signs.any:
        raise table.error("all", None, "names that identify the source, in 'all' or 'any'")
    table.finish()
    return signs


def _read_version(table: _Table) -> VersionRule:
    rule = VersionRule(table.text("is"), table.texts("present"))
    table.finish()
    return rule


def _read_first_use(table: _Table) -> FirstUse:
    first_use = FirstUse(table.texts("when"), table.text("like", "") or None, table.texts("labels"))
    table.finish()
    return first_use


def _read_metrics(table: _Table) -> Mapping[str, MetricMap]:
    same_names = table.flag("same_names")
    defaults = _read_defaults(table.table("default"))
    given = table.table("metrics")
    metrics = {}
    for name, metric in METRICS.items():
        if name in PROCESS_RATIOS:
            continue
        if name in given:
            metrics[name] = _read_metric(metric, given.table(name))
        elif same_names:
            # Where a process exposes nothing of a component, the default of the component applies.
            default = defaults.get(metric.component, MetricMap(metric))
            metrics[name] = replace(default, metric=metric, alternatives=(Alternative((Term(name),)),))
        elif metric.component in defaults:
            metrics[name] = replace(defaults[metric.component], metric=metric)
        else:
            raise given.error(name, None, "a table: every metric of the contract is mapped, or has a status")
    given.finish()
    return MappingProxyType(metrics)


def _read_defaults(table: _Table) -> dict[str, MetricMap]:
    first = {metric.component: metric for metric in METRICS.values()}
    defaults = {
        component: _read_missing(first[component], table.table(component)) for component in first if component in table
    }
    table.finish()
    return cast("dict[str, MetricMap]", defaults)


def _read_metric(metric: Metric, table: _Table) -> MetricMap:
    if "take" not in table:
        return _read_missing(metric, table)
    absent: Absence = table.choice("absent", get_args(Absence), "unknown")
    result = MetricMap(
        metric,
        tuple(_read_alternative(metric, each) for each in table.tables("take")),
        absent,
        _read_zeros(metric, table.table("zero")),
        table.texts("zero_when"),
        tuple(table.numbers("zero_edges")),
        reason=table.text("reason", "") or None,
    )
    table.finish()
    return result


def _read_missing(metric: Metric, table: _Table) -> MetricMap:
    status: Status = table.choice("status", ("derived", "elsewhere", "impossible"))
    result = MetricMap(metric, status=status, reason=table.text("reason"))
    table.finish()
    return result


def _read_alternative(metric: Metric, table: _Table) -> Alternative:
    status: Status = table.choice("status", SUPPLIED, "present")
    requires, unless, reason = table.texts("requires"), table.texts("unless"), table.text("reason", "") or None
    if "from" in table:
        parts = table.tables("from")
        terms = tuple(_read_term(metric, each) for each in parts)
        for each in parts:
            each.finish()
    else:
        terms = (_read_term(metric, table),)
    table.finish()
    if all(term.optional for term in terms):
        raise table.error("optional", True, "a term that is not optional")
    return Alternative(terms, requires, unless, status, reason)


def _read_term(metric: Metric, table: _Table) -> Term:
    rules = table.table("set")
    term = Term(
        table.text("native"),
        table.values("select"),
        table.values("except"),
        frozenset(table.texts("drop")),
        tuple((label, _read_rules(metric, label, rules)) for label in rules),
        table.number("scale", 1.0),
        table.flag("optional"),
    )
    rules.finish()
    return term


def _read_rules(metric: Metric, label: str, table: _Table) -> tuple[LabelRule, ...]:
    if label not in metric.labels:
        raise table.error(label, None, f"a label of {metric.name}: {', '.join(metric.labels) or 'it has none'}")
    rules = []
    for each in table.tables(label):
        value = each.text("is")
        allowed = metric.label_values.get(label)
        if allowed is not None and value not in allowed:
            raise each.error("is", value, f"one of {', '.join(allowed)}")
        rules.append(LabelRule(value, each.values("when")))
        each.finish()
    return tuple(rules)


def _read_zeros(metric: Metric, table: _Table) -> tuple[Labels, ...]:
    for label in table:
        unknown = set(table.texts(label)) - set(metric.label_values.get(label, ()))
        if unknown:
            raise table.error(label, sorted(unknown)[0], f"one of {', '.join(metric.label_values.get(label, ()))}")
    choices = [[(label, value) for value in table.texts(label)] for label in table]
    table.finish()
    return tuple(make_labels(pairs) for pairs in product(*choices))


T = TypeVar("T")
_MISSING = object()


class _Table:
    """A TOML table that is read key by key; `finish` refuses keys that were not read."""

    def __init__(self, content: object, file_name: str, path: str = "") -> None:
        self._file_name, self._path = file_name, path
        if not isinstance(content, dict):
            raise ConfigurationError(f"{file_name}: {path} is {content!r}, expected a table")
        self._content = cast("dict[str, object]", content)
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def error(self, key: str, value: object, expected: str) -> ConfigurationError:
        where = f"{self._path}.{key}" if self._path else key
        found = "missing" if value is None else repr(value)
        return ConfigurationError(f"{self._file_name}: {where} is {found}, expected {expected}")

    def finish(self) -> None:
        unknown = sorted(set(self._content) - self._read)
        if unknown:
            known = ", ".join(sorted(self._read)) or "nothing"
            raise self.error(unknown[0], self._content[unknown[0]], f"no such key, only {known}")

    def text(self, key: str, default: object = _MISSING) -> str:
        found: str = self._checked(key, default, "a string", lambda value: isinstance(value, str))
        return found

    def flag(self, key: str) -> bool:
        found: bool = self._checked(key, False, "true or false", lambda value: isinstance(value, bool))
        return found

    def number(self, key: str, default: float) -> float:
        return float(self._checked(key, default, "a number above 0", lambda value: _is_number(value) and value > 0))

    def numbers(self, key: str) -> tuple[float, ...]:
        found = self._checked(key, [], "a list of numbers", lambda value: _is_list(value, _is_number))
        return tuple(map(float, found))

    def texts(self, key: str) -> tuple[str, ...]:
        found = self._checked(
            key, [], "a list of strings", lambda value: _is_list(value, lambda each: type(each) is str)
        )
        return tuple(found)

    def choice(self, key: str, choices: tuple[T, ...], default: object = _MISSING) -> T:
        expected = f"one of {', '.join(map(str, choices))}"
        return cast("T", self._checked(key, default, expected, lambda value: value in choices))

    def values(self, key: str) -> Values:
        """Labels with one text or several each."""
        table = self.table(key)
        found = []
        for label in table:
            value = table._content[label]
            found.append((label, (value,) if isinstance(value, str) else table.texts(label)))
            table._read.add(label)
        return tuple(found)

    def table(self, key: str) -> _Table:
        self._read.add(key)
        return _Table(self._content.get(key, {}), self._file_name, f"{self._path}.{key}" if self._path else key)

    def tables(self, key: str) -> tuple[_Table, ...]:
        found = self._checked(key, [], "a list of tables", lambda value: isinstance(value, list))
        where = f"{self._path}.{key}" if self._path else key
        return tuple(_Table(each, self._file_name, f"{where}[{index}]") for index, each in enumerate(found))

    def _checked(self, key: str, default: object, expected: str, allowed: Callable[[Any], bool]) -> Any:
        self._read.add(key)
        value = self._content.get(key, default)
        if value is _MISSING:
            raise self.error(key, None, expected)
        if value is not default and not allowed(value):
            raise self.error(key, value, expected)
        return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: object, allowed: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(allowed(each) for each in value)
