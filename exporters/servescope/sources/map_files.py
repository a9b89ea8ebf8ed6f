"""Reading the files of source maps, one per engine and range of versions; `docs/sources.md` describes the format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from itertools import product
from types import MappingProxyType
from typing import TypeGuard, cast, get_args

from servescope.contract.metrics import METRICS, PROCESS_RATIOS
from servescope.contract.samples import Labels, make_labels
from servescope.contract.types import Metric
from servescope.errors import ConfigurationError
from servescope.settings.tables import REQUIRED, Setting, Table, parse_document
from servescope.sources.forms import Form, apply_form
from servescope.sources.maps import (
    SUPPLIED,
    Absence,
    Alternative,
    Definition,
    Evidence,
    Fact,
    FamilyGroup,
    FirstUse,
    Flag,
    LabelRule,
    Layer,
    MetricMap,
    Observes,
    ScrapePace,
    Setup,
    Signs,
    Source,
    Status,
    Term,
    VersionRule,
)


def _keys(*names: str) -> tuple[Setting, ...]:
    """The keys of a table; a name that ends in `!` is required."""
    return tuple(Setting(name.rstrip("!"), REQUIRED if name.endswith("!") else "") for name in names)


_MAP = (
    "title", "family", "covers", "evidence", "layer", "prefixes", "model_label", "pace", "identify", "versions",
    "first_use", "setup", "flags", "plugin", "without_plugin", "same_names", "default", "metrics", "ignored", "gated",
    "forms",
)  # fmt: skip
_FORM = _keys(
    "name!", "title!", "covers!", "evidence!", "prefix!", "identify!", "first_use", "drop", "no_sum", "unset", "metrics"
)
_IDENTIFY = _keys("all", "any", "none", "label", "over")
_VERSION = _keys("is!", "present", "evidence")
_FIRST_USE = _keys("when", "like", "labels")
_SETUP = _keys("fact!", "native!", "label", "off")
_FLAG = _keys("flag!", "adds!")
_PACE = _keys("shortest!", "reason!")
_GROUP = _keys("names!", "reason!", "gate")
_TAKEN = _keys(
    "take!", "absent", "zero", "zero_when", "edges", "edges_before", "no_sum", "reason", "definition", "observes"
)  # fmt: skip
_DEFINITION = _keys("kind!", "reason!")
_MISSING = _keys("status!", "reason!")
_ALTERNATIVE = _keys("requires", "unless", "status", "reason")
_SHARED = ("select", "except", "same_across", "drop")
_TERM = _keys(
    "native!", "select", "except", "same_across", "drop", "set", "scale", "optional", "zero", "zero_when"
)  # fmt: skip
_TAKE = (*_ALTERNATIVE, *_keys("from", "native"), *_TERM[1:])
_RULE = _keys("is!", "when")


@lru_cache(maxsize=1)
def load_sources() -> Mapping[str, Source]:
    """Every source map by its name; raises ConfigurationError when a file is wrong."""
    entries = [entry for entry in files(__package__).iterdir() if entry.name.endswith(".toml")]
    sources = [each for entry in entries for each in read_sources(entry.name, entry.read_text("utf-8"))]
    return MappingProxyType({each.name: each for each in sorted(sources, key=lambda source: source.name)})


@lru_cache(maxsize=1)
def load_unmapped() -> Mapping[str, str]:
    """The titles of programs that have no source map, by the prefix of their names."""
    name = "prefixes.toml"
    text = files(__package__).joinpath("unmapped", name).read_text("utf-8")
    return MappingProxyType(Table(parse_document(text, name), name, "").string_map("prefixes"))


@lru_cache(maxsize=1)
def load_common() -> tuple[FamilyGroup, ...]:
    """The families that processes of all kinds expose, which no map has to name."""
    name = "common.toml"
    text = files(__package__).joinpath("unmapped", name).read_text("utf-8")
    return _read_groups(Table(parse_document(text, name), name, ""), "ignored")


def metric_map(source: str, metric: str) -> MetricMap | None:
    """Where a metric comes from in the source map of that name; None where there is no such map."""
    found = load_sources().get(source)
    return None if found is None else found.metrics.get(metric)


def was_only_read(source: str, versions: str) -> bool:
    """Whether nobody has run a release of a source, by its map's name; False where there is no such map."""
    found = load_sources().get(source)
    return found is not None and found.evidence_of(versions) == "read"


def read_sources(file_name: str, text: str) -> tuple[Source, ...]:
    """The source map in a file's text, and those of its forms.

    Raises ConfigurationError naming file, key, value and what was expected.
    """
    table = Table(parse_document(text, file_name), file_name, "")
    table.check_keys(_MAP)
    source = _read_map(table, file_name)
    return source, *(apply_form(source, _read_form(each)) for each in table.tables("forms", _FORM))


def read_source(file_name: str, text: str) -> Source:
    """The source map in a file's text, without its forms; raises ConfigurationError as `read_sources` does."""
    return read_sources(file_name, text)[0]


def _read_form(table: Table) -> Form:
    first_use = table.table("first_use", _FIRST_USE)
    metrics = {name: each for name, each in METRICS.items() if name not in PROCESS_RATIOS}
    given = table.table("metrics", _keys(*metrics))
    return Form(
        name=table.string("name", None),
        title=table.string("title", None),
        covers=table.string("covers", None),
        evidence=_read_evidence(table, ""),
        prefix=table.string("prefix", None),
        signs=_read_signs(table.table("identify", _IDENTIFY)),
        first_use=_read_first_use(first_use) if first_use.values else None,
        drop=frozenset(_strings(table, "drop")),
        no_sum=table.string("no_sum", "") or None,
        unset=table.string("unset", "") or None,
        metrics={name: _read_metric(metrics[name], given) for name in given.values},
    )


def _read_map(table: Table, file_name: str) -> Source:
    source = Source(
        name=file_name.removesuffix(".toml"),
        title=table.string("title", None),
        family=table.string("family", table.string("title", None)),
        covers=table.string("covers", None),
        evidence=_read_evidence(table, ""),
        layer=cast("Layer", table.choice("layer", get_args(Layer), "")),
        prefixes=_strings(table, "prefixes"),
        signs=_read_signs(table.table("identify", _IDENTIFY)),
        versions=tuple(
            VersionRule(
                each.string("is", None), _strings(each, "present"), _read_evidence(each, table.string("evidence", None))
            )
            for each in table.tables("versions", _VERSION)
        ),
        first_use=_read_first_use(table.table("first_use", _FIRST_USE)),
        metrics=_read_metrics(table),
        model_label=table.string("model_label", "") or None,
        setup=tuple(map(_read_setup, table.tables("setup", _SETUP))),
        flags=tuple(
            Flag(each.string("flag", None), each.string("adds", None)) for each in table.tables("flags", _FLAG)
        ),
        plugin=table.string("plugin", ""),
        without_plugin=table.string("without_plugin", ""),
        ignored=_read_groups(table, "ignored"),
        gated=_read_groups(table, "gated"),
        pace=_read_pace(table),
    )
    both = source.read_names() & {name for group in source.ignored for name in group.names}
    if both:
        raise ConfigurationError(f"{table.origin}: ignored: the map reads {', '.join(map(repr, sorted(both)))} itself")
    return source


def _strings(table: Table, key: str) -> tuple[str, ...]:
    return tuple(table.strings(key, []))


def _read_evidence(table: Table, default: str) -> Evidence:
    return cast("Evidence", table.choice("evidence", get_args(Evidence), default))


def _read_groups(table: Table, key: str) -> tuple[FamilyGroup, ...]:
    groups = []
    for each in table.tables(key, _GROUP):
        names = tuple(each.strings("names"))
        if any(name == "*" or "*" in name[:-1] for name in names):
            raise each.wrong("names", "names of families, or how they begin and a '*'")
        groups.append(FamilyGroup(names, each.string("reason", None), each.string("gate", "") or None))
    return tuple(groups)


def _read_signs(table: Table) -> Signs:
    signs = Signs(
        all=_strings(table, "all"),
        any=_strings(table, "any"),
        none=_strings(table, "none"),
        label=table.string("label", "") or None,
        over=_strings(table, "over"),
    )
    if not signs.all and not signs.any:
        raise ConfigurationError(
            f"{table.origin}: identify: expected names that identify the source, in 'all' or 'any'"
        )
    return signs


def _read_first_use(table: Table) -> FirstUse:
    first_use = FirstUse(_strings(table, "when"), table.string("like", "") or None, _strings(table, "labels"))
    if first_use.labels and first_use.like is None:
        raise table.wrong("like", "the series that has these labels from the start")
    return first_use


def _read_setup(table: Table) -> Setup:
    return Setup(
        cast("Fact", table.choice("fact", get_args(Fact), "")),
        table.string("native", None),
        table.string("label", "") or None,
        _strings(table, "off"),
    )


def _read_pace(table: Table) -> ScrapePace | None:
    if "pace" not in table.values:
        return None
    pace = table.table("pace", _PACE)
    return ScrapePace(pace.duration("shortest", 0), pace.string("reason", None))


def _read_metrics(table: Table) -> Mapping[str, MetricMap]:
    mapped = {name: metric for name, metric in METRICS.items() if name not in PROCESS_RATIOS}
    same_names = table.boolean("same_names", default=False)
    defaults = _read_defaults(table)
    given = table.table("metrics", _keys(*mapped))
    metrics = {}
    for name, metric in mapped.items():
        if name in given.values:
            metrics[name] = _read_metric(metric, given)
        elif same_names:
            # Where a process exposes nothing of a component, the default of the component applies.
            default = defaults.get(metric.component, MetricMap(metric))
            metrics[name] = replace(
                default, metric=metric, alternatives=(Alternative((Term(name),)),), edges=metric.edges or ()
            )
        elif metric.component in defaults:
            metrics[name] = replace(defaults[metric.component], metric=metric)
        else:
            raise ConfigurationError(
                f"{table.origin}: {given.key(name)} is missing: every metric of the contract is mapped, or has a status"
            )
    return MappingProxyType(metrics)


def _read_defaults(table: Table) -> dict[str, MetricMap]:
    first = {metric.component: metric for metric in METRICS.values()}
    default = table.table("default", _keys(*first))
    return {
        component: _read_missing(metric, default.table(component, _MISSING))
        for component, metric in first.items()
        if component in default.values
    }


def _read_metric(metric: Metric, given: Table) -> MetricMap:
    values = given.values[metric.name]
    if not isinstance(values, dict) or "take" not in values:
        return _read_missing(metric, given.table(metric.name, _MISSING))
    table = given.table(metric.name, _TAKEN)
    if not table.values["take"]:
        raise table.wrong("take", "one alternative or more, or 'status' and 'reason' in its place")
    if "zero" in table.values and table.values.get("absent") != "zero":
        raise table.wrong("absent", "'zero', as 'zero' lists what is 0")
    alternatives = tuple(_read_alternative(metric, each) for each in table.tables("take", _TAKE))
    own = any(term.zeros for each in alternatives for term in each.terms)
    if table.values.get("absent") == "zero" and metric.labels and not own and "zero" not in table.values:
        labels = ", ".join(metric.labels)
        raise table.wrong("zero", f"the values of {labels} that are 0, as a zero without {labels} is of no series")
    return MetricMap(
        metric,
        alternatives,
        cast("Absence", table.choice("absent", get_args(Absence), "unknown")),
        _read_zeros(metric, table.table("zero", _keys(*metric.labels))),
        _strings(table, "zero_when"),
        _read_edges(table, "edges"),
        _read_edges(table, "edges_before"),
        no_sum=table.string("no_sum", "") or None,
        reason=table.string("reason", "") or None,
        definition=_read_definition(table),
        observes=_read_observes(table),
    )


def _read_observes(table: Table) -> Observes | None:
    return cast("Observes", table.choice("observes", get_args(Observes), "")) if "observes" in table.values else None


def _read_definition(table: Table) -> Definition | None:
    if "definition" not in table.values:
        return None
    definition = table.table("definition", _DEFINITION)
    return Definition(definition.string("kind", None), definition.string("reason", None))


def _read_missing(metric: Metric, table: Table) -> MetricMap:
    status = table.choice("status", ("derived", "elsewhere", "impossible"), "")
    return MetricMap(metric, status=cast("Status", status), reason=table.string("reason", None))


def _read_alternative(metric: Metric, table: Table) -> Alternative:
    if "from" in table.values:
        table.check_keys(["from", *_SHARED, *(setting.key for setting in _ALTERNATIVE)])
        shared = {key: table.values[key] for key in _SHARED if key in table.values}
        terms = tuple(
            _read_term(metric, Table({**shared, **each.values}, each.origin, each.path))
            for each in table.tables("from", _TERM)
        )
    else:
        terms = (_read_term(metric, table),)
    if not terms:
        raise table.wrong("from", "one term or more")
    if all(term.optional for term in terms):
        raise table.wrong("optional", "a term that is not optional")
    status = table.choice("status", SUPPLIED, "present")
    if status != "present" and "reason" not in table.values:
        raise table.wrong("reason", f"why it is {status}")
    return Alternative(
        terms,
        _strings(table, "requires"),
        _strings(table, "unless"),
        cast("Status", status),
        table.string("reason", "") or None,
    )


def _read_term(metric: Metric, table: Table) -> Term:
    rules = table.table("set", _keys(*metric.labels))
    return Term(
        table.string("native", None),
        table.string_lists("select"),
        table.string_lists("except"),
        frozenset(table.strings("same_across", [])),
        frozenset(table.strings("drop", [])),
        tuple((label, _read_rules(metric, label, rules)) for label in rules.values),
        _read_scale(table),
        table.boolean("optional", default=False),
        _products(table.string_lists("zero")) if "zero" in table.values else (),
        _strings(table, "zero_when"),
    )


def _read_rules(metric: Metric, label: str, table: Table) -> tuple[LabelRule, ...]:
    allowed = metric.label_values.get(label)
    return tuple(
        LabelRule(
            each.choice("is", allowed, "") if allowed is not None else each.string("is", None),
            each.string_lists("when"),
        )
        for each in table.tables(label, _RULE)
    )


def _read_zeros(metric: Metric, table: Table) -> tuple[Labels, ...]:
    for label in table.values:
        allowed = metric.label_values.get(label, ())
        if not set(table.strings(label, [])) <= set(allowed):
            raise table.wrong(label, f"some of {', '.join(allowed)}")
    return _products((label, tuple(table.strings(label, []))) for label in table.values)


def _products(values: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[Labels, ...]:
    """The labels that have one of these values each, in every combination."""
    return tuple(make_labels(pairs) for pairs in product(*([(label, each) for each in some] for label, some in values)))


def _read_scale(table: Table) -> float:
    value = table.values.get("scale", 1.0)
    if not _is_number(value) or value <= 0:
        raise table.wrong("scale", "a number above 0")
    return float(value)


def _read_edges(table: Table, key: str) -> tuple[float, ...]:
    values = table.values.get(key, [])
    if not isinstance(values, list) or not all(map(_is_number, values)):
        raise table.wrong(key, "a list of numbers")
    if sorted(set(values)) != values:
        raise table.wrong(key, "numbers of which each is above the one before")
    return tuple(map(float, values))


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
