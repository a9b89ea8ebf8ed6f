"""The annotation of a page that lists what else fires of its deployment: causes that have tickets, and what it mutes.

A message holds the alerts of its receiver alone, and who is woken wants to see cause and symptom in one.
"""

from __future__ import annotations

from typing import Final

from alerts.options import Options
from servescope.alerting.rules.records import ALSO_FIRING, Alert, labels_of

_OF_MODEL: Final = ("model_name", "environment")


def also_firing(alert: Alert, options: Options) -> dict[str, str]:
    """The annotation of a page on a deployment or a model, as a template of Prometheus; none for others."""
    labels = labels_of(alert.condition)
    if alert.severity != "critical" or not {*_OF_MODEL} <= {*labels}:
        return {}
    own = f'alertname=~"Servescope.+",alertname!="{alert.name}",severity!="none"'
    shared, deployment = options.common.group(_OF_MODEL), options.label("deployment_id")
    model = ",".join(f"{label}=%[{number}]q" for number, label in enumerate(shared, 1))
    values = [f"$labels.{label}" for label in shared]
    series = f"ALERTS{{{own},{model}}}"
    if "deployment_id" in labels:
        # What is of no deployment is of the whole model.
        values.append(f"$labels.{deployment}")
        series = f'ALERTS{{{own},{model},{deployment}=%[{len(values)}]q}} or ALERTS{{{own},{model},{deployment}=""}}'
    query = f"count by (alertname, alertstate) ({series})"
    return {
        ALSO_FIRING: f"{{{{ range $number, $each := printf `{query}` {' '.join(values)} | query "
        "| sortByLabel `alertname` }}{{ if $number }}, {{ end }}{{ $each.Labels.alertname }}"
        "{{ if eq $each.Labels.alertstate `pending` }} (pending){{ end }}{{ end }}"
    }
