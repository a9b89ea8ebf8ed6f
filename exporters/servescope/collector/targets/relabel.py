"""Relabelling of targets, with the semantics of Prometheus' `relabel_configs`.

https://prometheus.io/docs/prometheus/latest/configuration/configuration/#relabel_config

Regular expressions are RE2's, as in Prometheus: matched in time linear in the text, whatever the pattern, so neither a
rule nor a label can hold up the collector.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from servescope.errors import ConfigurationError, ServescopeError, how_to_install
from servescope.settings.tables import Setting, Table

DEFAULT_REGEX: Final = "(.*)"
DEFAULT_REPLACEMENT: Final = "$1"
DEFAULT_SEPARATOR: Final = ";"

RELABEL_SETTINGS = (
    Setting("source_labels", "[]"),
    Setting("separator", f'"{DEFAULT_SEPARATOR}"'),
    Setting("regex", f'"{DEFAULT_REGEX}"'),
    Setting("modulus", ""),
    Setting("target_label", '""'),
    Setting("replacement", f'"{DEFAULT_REPLACEMENT}"'),
    Setting("action", '"replace"'),
)
"""The keys of a `relabel` table, in the order of Prometheus' documentation."""

_LONGEST_REGEX = 10_000
_LONGEST_VALUE = 65_536
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
# What may become a label's name once its references are filled in.
_NAME_TEMPLATE = re.compile(r"(?:(?:[a-zA-Z_]|\$(?:\{\w+\}|\w+))+\w*)+")
_REFERENCE = re.compile(r"\$(?:(\$)|\{(\w+)\}|(\w+))")

Labels = dict[str, str]


class RelabelError(ServescopeError):
    """A rule made of a target's labels what no label can hold."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One step of relabelling; raises ServescopeError when its regex cannot be compiled."""

    action: str = "replace"
    source_labels: tuple[str, ...] = ()
    separator: str = DEFAULT_SEPARATOR
    regex: str = DEFAULT_REGEX
    target_label: str = ""
    replacement: str = DEFAULT_REPLACEMENT
    modulus: int = 0
    _pattern: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pattern", _compile(self.regex))

    def apply(self, labels: Labels) -> bool:
        """Change the labels in place; False when the target is dropped."""
        return _ACTIONS[self.action](self, labels)

    def source(self, labels: Mapping[str, str]) -> str:
        """The values of the source labels, joined; a label that is not there is empty."""
        return self.separator.join([labels.get(name, "") for name in self.source_labels])

    def match(self, text: str) -> Any:
        """The match of the whole text, or None."""
        return self._pattern.fullmatch(text)


def relabel(labels: Mapping[str, str], rules: Sequence[Rule]) -> Labels | None:
    """The labels after all rules, None when a rule drops the target; raises RelabelError."""
    changed = {name: value for name, value in labels.items() if value}
    for rule in rules:
        if not rule.apply(changed):
            return None
    return changed


def read_rules(tables: Sequence[Table]) -> tuple[Rule, ...]:
    """The rules of `relabel` tables, in their order; raises ConfigurationError."""
    return tuple(_read_rule(table) for table in tables)


def _read_rule(table: Table) -> Rule:
    action = table.string("action", "replace").lower()
    if action not in ACTIONS:
        raise table.wrong("action", f"one of {', '.join(ACTIONS)}")
    _check_keys_suit(table, action)
    replacement = table.string("replacement", DEFAULT_REPLACEMENT)
    if action == "labelmap" and not _NAME_TEMPLATE.fullmatch(replacement):
        raise table.wrong("replacement", "what makes a label's name")
    source_labels, separator = tuple(table.strings("source_labels", [])), table.string("separator", DEFAULT_SEPARATOR)
    regex, target_label = table.string("regex", DEFAULT_REGEX), table.string("target_label", "")
    modulus = table.whole_number("modulus", 1) if action == "hashmod" else 0
    try:
        return Rule(action, source_labels, separator, regex, target_label, replacement, modulus)
    except ServescopeError as error:
        raise ConfigurationError(f"{table.origin}: {table.key('regex')}: {error}") from None


def _check_keys_suit(table: Table, action: str) -> None:
    """Refuse keys that an action does not look at, and those it lacks, as Prometheus does."""
    allowed, required = _KEYS[action]
    for key in table.values:
        if key not in ("action", *allowed):
            raise ConfigurationError(
                f"{table.origin}: {table.key(key)}: not for action {action!r}, which takes {', '.join(allowed)}"
            )
    for key in required:
        if not table.values.get(key):
            raise ConfigurationError(f"{table.origin}: {table.path}: action {action!r} needs {key!r}")
    target = table.values.get("target_label")
    if isinstance(target, str) and "target_label" in required:
        expected = _NAME_TEMPLATE if action == "replace" and "$" in target else _LABEL_NAME
        if not expected.fullmatch(target):
            raise table.wrong("target_label", "a label's name")


def _compile(regex: str) -> Any:
    try:
        import re2
    except ImportError:
        raise ServescopeError(f"relabelling needs google-re2: {how_to_install('collector')}") from None
    if len(regex) > _LONGEST_REGEX:
        raise ServescopeError(f"a regex of {len(regex)} characters, at most {_LONGEST_REGEX}")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options=options)
    except re2.error as error:
        cause = error.args[0]
        raise ServescopeError(
            f"{regex!r} is no RE2 regex: {cause.decode() if isinstance(cause, bytes) else cause}"
        ) from None


def _expand(template: str, match: Any) -> str:
    """The template with `$1`, `${1}`, `${name}` filled in from a match; what the regex does not name is empty."""

    def reference(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        name = found[2] or found[3]
        # RE2 takes 01 for a name, not for a number.
        group: int | str = int(name) if name.isascii() and name.isdigit() and str(int(name)) == name else name
        known = group <= match.re.groups if isinstance(group, int) else group in match.re.groupindex
        return (match.group(group) or "") if known else ""

    return _REFERENCE.sub(reference, template)


def _set(labels: Labels, name: str, value: str) -> None:
    if len(value) > _LONGEST_VALUE:
        raise RelabelError(f"relabelling makes label {name!r} longer than {_LONGEST_VALUE} characters")
    if value:
        labels[name] = value
    else:
        # A label without a value is a label that is not there.
        labels.pop(name, None)


def _keep(rule: Rule, labels: Labels) -> bool:
    return rule.match(rule.source(labels)) is not None


def _drop(rule: Rule, labels: Labels) -> bool:
    return not _keep(rule, labels)


def _keep_equal(rule: Rule, labels: Labels) -> bool:
    return labels.get(rule.target_label, "") == rule.source(labels)


def _drop_equal(rule: Rule, labels: Labels) -> bool:
    return not _keep_equal(rule, labels)


def _replace(rule: Rule, labels: Labels) -> bool:
    match = rule.match(rule.source(labels))
    if match is not None:
        target = _expand(rule.target_label, match)
        if _LABEL_NAME.fullmatch(target):
            _set(labels, target, _expand(rule.replacement, match))
    return True


def _map_names(rule: Rule, labels: Labels) -> bool:
    for name, value in sorted(labels.items()):
        match = rule.match(name)
        target = _expand(rule.replacement, match) if match is not None else ""
        if _LABEL_NAME.fullmatch(target):
            _set(labels, target, value)
    return True


def _drop_labels(rule: Rule, labels: Labels) -> bool:
    for name in [name for name in labels if rule.match(name) is not None]:
        del labels[name]
    return True


def _keep_labels(rule: Rule, labels: Labels) -> bool:
    for name in [name for name in labels if rule.match(name) is None]:
        del labels[name]
    return True


def _hash(rule: Rule, labels: Labels) -> bool:
    digest = hashlib.md5(rule.source(labels).encode(), usedforsecurity=False).digest()
    _set(labels, rule.target_label, str(int.from_bytes(digest[8:], "big") % rule.modulus))
    return True


def _lower(rule: Rule, labels: Labels) -> bool:
    _set(labels, rule.target_label, _letter_by_letter(str.lower, rule.source(labels)))
    return True


def _upper(rule: Rule, labels: Labels) -> bool:
    _set(labels, rule.target_label, _letter_by_letter(str.upper, rule.source(labels)))
    return True


def _letter_by_letter(change: Callable[[str], str], text: str) -> str:
    # Prometheus changes each letter for one other, so a sharp s stays.
    return "".join(changed if len(changed := change(letter)) == 1 else letter for letter in text)


_ACTIONS: Mapping[str, Callable[[Rule, Labels], bool]] = {
    "replace": _replace,
    "keep": _keep,
    "drop": _drop,
    "keepequal": _keep_equal,
    "dropequal": _drop_equal,
    "hashmod": _hash,
    "labelmap": _map_names,
    "labeldrop": _drop_labels,
    "labelkeep": _keep_labels,
    "lowercase": _lower,
    "uppercase": _upper,
}
ACTIONS = tuple(_ACTIONS)
"""What a rule can do."""

_MATCHING = ("source_labels", "separator", "regex")
_KEYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "replace": ((*_MATCHING, "target_label", "replacement"), ("target_label",)),
    "keep": (_MATCHING, ()),
    "drop": (_MATCHING, ()),
    "keepequal": (("source_labels", "target_label"), ("target_label",)),
    "dropequal": (("source_labels", "target_label"), ("target_label",)),
    "hashmod": (("source_labels", "separator", "modulus", "target_label"), ("modulus", "target_label")),
    "labelmap": (("regex", "replacement"), ()),
    "labeldrop": (("regex",), ()),
    "labelkeep": (("regex",), ()),
    "lowercase": (("source_labels", "separator", "target_label"), ("target_label",)),
    "uppercase": (("source_labels", "separator", "target_label"), ("target_label",)),
}
"""The keys each action looks at, and those it cannot do without."""
