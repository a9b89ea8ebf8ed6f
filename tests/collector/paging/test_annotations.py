"""Annotations are rendered as Prometheus renders the same templates."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from alerts.rules import annotations_of
from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.evaluation import Active
from servescope.alerting.rules.links import causes_of
from servescope.alerting.rules.records import LISTED
from servescope.collector.paging.annotations import Links, annotate, list_others, render
from servescope.collector.paging.payloads import AlertPayload
from servescope.collector.paging.states import AlertInstance
from servescope.contract.samples import make_labels
from servescope.errors import UsageError

_QUERY = re.compile(r"{{ with printf .*?{{ end }}{{ else }}.*?{{ end }}")
FORMS = (
    'printf "%.3g" | humanize', 'printf "%.2g" | humanizePercentage', "humanize", "humanizePercentage",
    'humanizePercentage | reReplaceAll "%" " %"', "humanizeDuration",
)  # fmt: skip


def _values() -> list[str]:
    source = random.Random(7)
    chosen = [source.uniform(-1, 1) * 10.0 ** source.randint(-7, 9) for _ in range(60)]
    edges = [0, 1, -1, 0.5, 59.9996, 60, 3600, 86400, 90061, 999.95, 999.96, 1000, 1e6, 0.001, 0.00099996, 12345678]
    return [f"{value:.12f}" for value in (*chosen, *edges)]


@pytest.mark.slow
def test_values_read_as_by_prometheus(promtool: Path, tmp_path: Path) -> None:
    """Prefixes, percentages and durations of small and large, negative and round numbers; labels that are absent."""
    template = (
        " ".join(f"{{{{ $value | {form} }}}}" for form in FORMS)
        + " {{ $labels.n }}{{ $labels.absent }} {{ $labels.n | urlquery }}"
        + " {{ if $labels.n }}n {{ $labels.n }}{{ else }}none{{ end }}"
        + " {{ if $labels.absent }}some{{ else }}none of {{ $labels.n }}{{ end }}"
        + " {{ if eq $labels.n `a b/0?ü&=+~*` }}the first{{ end }}{{ if eq $labels.absent `some` }}no{{ end }}"
    )
    rule = {"alert": "Read", "expr": "x > -Inf", "annotations": {"description": template}}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "read", "rules": [rule]}]}))
    given = {f"a b/{number}?ü&=+~*": value for number, value in enumerate(_values())}
    expected = [
        {"exp_labels": {"n": number}, "exp_annotations": {"description": render(template, {"n": number}, float(value))}}
        for number, value in given.items()
    ]
    test = {
        "input_series": [{"series": f'x{{n="{number}"}}', "values": value} for number, value in given.items()],
        "alert_rule_test": [{"eval_time": "0m", "alertname": "Read", "exp_alerts": expected}],
    }
    document = {"rule_files": ["rules.yml"], "tests": [test]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [str(promtool), "test", "rules", str(tmp_path / "test.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_the_annotations_of_its_rule(name: str) -> None:
    """All placeholders are rendered, also those of links."""
    alert = ALERTS[name]
    cause = next(iter(causes_of(alert)), "")
    labels = {"deployment_id": "chat & more", "model_name": "llama", "cause": cause}
    rendered = annotate(alert, labels, 0.25, Links())
    templates = {key: _QUERY.sub(LISTED, text) for key, text in annotations_of(alert).items()}
    assert rendered == {key: render(text, labels, 0.25) for key, text in templates.items()}
    assert "{{" not in "".join(rendered.values())
    assert "$labels.deployment_id" not in alert.description or "chat & more" in rendered["description"]
    assert " " not in rendered["dashboard_url"]


def test_a_page_lists_what_else_is_active_there() -> None:
    """Firing or pending, of the deployment or of its whole model; nothing of others, and in no ticket."""
    here = {"deployment_id": "chat", "model_name": "llama", "environment": "live"}
    pending, firing = Active(1.0, 0), Active(1.0, 0, fired_ms=1)
    active = [
        AlertInstance(name, make_labels(labels.items()), state, resolved_ms)
        for name, labels, state, resolved_ms in (
            ("ServescopeNoActiveReplica", here, firing, None),
            ("ServescopeReplicasFailed", {**here, "replica": "r0"}, firing, None),
            ("ServescopeReplicasFailed", {**here, "replica": "r1"}, firing, None),
            ("ServescopeTargetDown", here, pending, None),
            ("ServescopeQueueGrowing", here, firing, 5),
            ("ServescopeTrafficSplitNotAsConfigured", {"model_name": "llama", "environment": "live"}, firing, None),
            ("ServescopeCacheChurn", {**here, "deployment_id": "code"}, firing, None),
            ("ServescopeCacheChurn", {**here, "environment": "staging"}, firing, None),
            ("ServescopeStoreBehind", {}, firing, None),
        )
    ]

    assert list_others(ALERTS["ServescopeNoActiveReplica"], here, active) == {
        "also_firing": "ServescopeReplicasFailed, ServescopeTargetDown (pending), ServescopeTrafficSplitNotAsConfigured"
    }
    assert list_others(ALERTS["ServescopeReplicasFailed"], here, active) == {}
    assert list_others(ALERTS["ServescopeCollectorGone"], {}, active) == {}


def test_runbooks_are_pages_of_a_folder_or_a_url_with_the_name() -> None:
    """By default the console's page."""
    for runbooks, expected in (
        (Links().runbooks, "http://localhost:8501/alerts?alert=ServescopeWatchdog"),
        ("https://books.example/llm/", "https://books.example/llm/ServescopeWatchdog.md"),
        ("https://wiki.example/{alert}#now", "https://wiki.example/ServescopeWatchdog#now"),
    ):
        assert annotate(ALERTS["ServescopeWatchdog"], {}, 1.0, Links(runbooks))["runbook_url"] == expected


@pytest.mark.parametrize(
    "template", ["{{ $value }}", "{{ $value | title }}", "{{ printf }}", "{{ $labels.x", "{{$labels.x}}"]
)
def test_other_templates_are_refused(template: str) -> None:
    """Rather than sent to people unrendered."""
    with pytest.raises(UsageError, match="unknown template"):
        render(f"x {template}", {}, 1.0)


def test_a_fingerprint_is_alertmanagers() -> None:
    """That of no labels at all is the offset basis of FNV-1a."""
    assert AlertPayload(("", ()), {}, {}, 0, None).fingerprint == "cbf29ce484222325"
