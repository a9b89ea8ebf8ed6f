"""`servescope customers check`: what each customer would receive, what not and why, and what a change would change."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from servescope.customers.config import find_policy, read_policies
from servescope.customers.documents import explaining
from servescope.customers.lanes.claimed_past import claim_past
from servescope.customers.lanes.prometheus_past import warn_of_prometheus
from servescope.customers.points.quotas import most_series
from servescope.customers.policy.policy import Policy
from servescope.customers.policy.secrecy import warn_of_loose_files
from servescope.settings.json_text import print_json
from servescope.settings.values import format_duration, format_instant
from servescope.store.history import History
from servescope.store.opening import open_history, read_time


def check(arguments: argparse.Namespace) -> int:
    """Print what the policies export of what was stored last; raises ConfigurationError for a wrong configuration."""
    policies: Sequence[Policy] = read_policies(arguments.config)
    if arguments.customer is not None:
        policies = [find_policy(policies, arguments.customer)]
    warn_of_loose_files(policies)
    former = read_policies(arguments.diff) if arguments.diff is not None else ()
    with open_history(arguments) as history:
        history = claim_past(history, arguments.config, policies)
        warn_of_prometheus(history, policies)
        time_ms = _newest(history, read_time("--at", arguments.at))
        explained = [explaining.explain_policy(policy, history, time_ms) for policy in policies]
        if arguments.diff is None:
            _print_explanations(arguments, policies, explained)
        else:
            old = [each for each in former if arguments.customer in (None, each.name)]
            changes = explaining.compare_explanations(
                [explaining.explain_policy(each, history, time_ms) for each in old], explained
            )
            _print_changes(arguments, changes)
    return 0


def _newest(history: History, time_ms: int) -> int:
    """The time of the last figures, if that is before: a past that was copied is of its own time."""
    spanned = history.time_range()
    return time_ms if spanned is None else min(time_ms, spanned[1])


def _print_explanations(
    arguments: argparse.Namespace, policies: Sequence[Policy], explained: Sequence[explaining.Explanation]
) -> None:
    if arguments.format == "json":
        print_json([_to_json(each) for each in explained])
        return
    for policy, explanation in zip(policies, explained, strict=True):
        sys.stdout.writelines(f"{line}\n" for line in describe_policy(policy))
        lines = summarize(explanation) if arguments.summary else describe_explanation(explanation)
        sys.stdout.writelines(f"{line}\n" for line in (*lines, f"  {explaining.GEN_AI}", ""))


def _print_changes(arguments: argparse.Namespace, changes: Sequence[explaining.PolicyChange]) -> None:
    if arguments.format == "json":
        print_json([asdict(each) for each in changes])
        return
    if not changes:
        sys.stdout.write("every customer would receive what it receives now\n")
    for change in changes:
        sys.stdout.write(f"customer {change.customer}: {len(change.added)} added, {len(change.removed)} removed\n")
        for sign, listed in (("-", change.removed), ("+", change.added)):
            sys.stdout.writelines(f"{sign} {each.text}\n" for each in listed)


def describe_policy(policy: Policy) -> Iterator[str]:
    """The policy in a few lines."""
    yield f"customer {policy.name}"
    ids = sorted({f"{each.deployment_id} ({each.inference_stack})" for each in policy.deployments})
    yield f"  deployments: {', '.join(ids)}"
    quota = most_series(policy)
    limit = "" if quota is None else f", at most {quota} series"
    yield f"  a point of each {policy.resolution} every {format_duration(policy.interval_ms)}{limit}"
    for push in policy.push:
        yield f"  push {push.name}: {push.protocol}, {push.temporality}, {push.place}"
    if policy.pull is not None:
        yield f"  pull: /customers/{policy.name}/metrics, at most {policy.pull.requests_per_minute} requests a minute"


def describe_explanation(explanation: explaining.Explanation) -> Iterator[str]:
    """Every series that is received, and every one that is withheld, with its reason."""
    yield _head(explanation)
    for each in explanation.received:
        notes = [f"{each.series} series"] if each.series > 1 else []
        notes += [f"of {each.sources} series"] if each.sources > 1 else []
        yield f"    {each.text}" + (f"  ({', '.join(notes)})" if notes else "")
    yield f"  withheld, {len(explanation.withheld)}:"
    for withheld in explanation.withheld:
        yield f"    {withheld.text}: {withheld.reason}"
    yield from _labels(explanation)


def summarize(explanation: explaining.Explanation) -> Iterator[str]:
    """How many series are received of each metric, and withheld for each reason."""
    yield _head(explanation)
    by_name: Counter[str] = Counter()
    for each in explanation.received:
        by_name[_name(each.text)] += each.series
    for name, count in sorted(by_name.items()):
        yield f"    {name}: {count}"
    yield f"  withheld, {len(explanation.withheld)}:"
    reasons = Counter((_name(each.text), each.reason) for each in explanation.withheld)
    for (name, reason), count in sorted(reasons.items()):
        yield f"    {name}: {count}: {reason}"
    yield from _labels(explanation)


def _head(explanation: explaining.Explanation) -> str:
    time = format_instant(explanation.time_ms)
    rate = f"{explanation.samples_per_minute:g}"
    return f"  receives {explanation.series} series, {rate} samples a minute, as of {time}:"


def _labels(explanation: explaining.Explanation) -> Iterator[str]:
    if explanation.labels:
        yield "  labels that are not exported:"
        yield from (f"    {name}: {reason}" for name, reason in explanation.labels)


def _name(text: str) -> str:
    return text.partition("{")[0]


def _to_json(explanation: explaining.Explanation) -> dict[str, Any]:
    return {
        **asdict(explanation),
        "labels": dict(explanation.labels),
        "series": explanation.series,
        "samples_per_minute": explanation.samples_per_minute,
        "gen_ai": explaining.GEN_AI,
    }
