"""The annotation of a page that lists what else fires of its deployment: causes that have tickets, and what it mutes.

A message holds the alerts of its receiver alone, and who is woken wants to see cause and symptom in one.
"""

from __future__ import annotations

from typing import Final

from alerts.options import Options
from servescope.alerting.records import ALSO_FIRING, Alert, labels_of

_OF_MODEL: Final = ("model_name", "environment")


def also_firing(alert: Alert, options: Options) -> dict[str, str]:
    """The annotation of a page on a deployment or a model, as a template of Prometheus; none for others."""
    labels = labels_of(alert.condition)
    if alert.severity != "critical" or not {*_OF_MODEL} <= {*labels}:
        return {}
    own = f'alertname=~"Servescope.+",alertname!="{alert.name}",severity!="none"'
    model = f"{options.label('model_name')}=%[1]q,{options.label('environment')}=%[2]q"
    deployment = options.label("deployment_id")
    values = [f"$labels.{options.label(label)}" for label in _OF_MODEL]
    series = f"ALERTS{{{own},{model}}}"
    if "deployment_id" in labels:
        # What is of no deployment is of the whole model.
        series = f'ALERTS{{{own},{model},{deployment}=%[3]q}} or ALERTS{{{own},{model},{deployment}=""}}'
        values.append(f"$labels.{deployment}")
    query = f"count by (alertname, alertstate) ({series})"
    return {
        ALSO_FIRING: f"{{{{ range $number, $each := printf `{query}` {' '.join(values)} | query "
        "| sortByLabel `alertname` }}{{ if $number }}, {{ end }}{{ $each.Labels.alertname }}"
        "{{ if eq $each.Labels.alertstate `pending` }} (pending){{ end }}{{ end }}"
    }
