"""Rule groups as Mimir takes them: no more than so many rules in each, which any ruler may evaluate at any time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

MOST_RULES: Final = 20
"""The most rules of a group that Mimir takes by default: `ruler_max_rules_per_rule_group`."""

_RECORDED = re.compile(r"[a-zA-Z_]\w*(?::\w+)+")

Group = Mapping[str, Any]
Rule = Mapping[str, Any]


def divide(group: Group, most: int = MOST_RULES) -> list[dict[str, Any]]:
    """The group as groups of at most `most` rules, numbered where there are several.

    A rule that reads what another one records stays in its group, behind it: groups are evaluated by different rulers,
    and in no order. More than `most` of them that belong together stay together.
    """
    parts: list[list[Rule]] = []
    for together in _that_belong_together(group["rules"]):
        part = next((each for each in parts if len(each) + len(together) <= most), None)
        if part is None:
            parts.append(part := [])
        part += together
    if len(parts) == 1:
        return [{**group, "rules": parts[0]}]
    return [{**group, "name": f"{group['name']}-{number}", "rules": rules} for number, rules in enumerate(parts, 1)]


def _that_belong_together(rules: Sequence[Rule]) -> list[list[Rule]]:
    """The rules in sets of which none reads what another one records, each in its order."""
    found: list[tuple[set[str], list[Rule]]] = []
    for rule in rules:
        names, own = {rule.get("record", "")} - {""}, [rule]
        reads = set(_RECORDED.findall(rule["expr"]))
        for each in [each for each in found if each[0] & (reads | names)]:
            found.remove(each)
            names, own = names | each[0], each[1] + own
        found.append((names, own))
    return [own for _, own in found]
