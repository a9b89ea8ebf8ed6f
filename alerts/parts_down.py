"""The annotation of a page on the whole fleet that lists which parts of the monitoring do not answer."""

from __future__ import annotations

from typing import Final

from alerts.options import Options
from servescope.alerting.rules.records import Alert, labels_of
from servescope.contract.expressions import matchers_promql
from servescope.contract.own_metrics import (
    AGENTS_JOB,
    EVALUATOR_JOB,
    PROXY_JOB,
    SCRAPED_UP,
    STORAGE_JOB,
    TRANSLATE_JOB,
)

PARTS_DOWN: Final = "parts_down"
NO_PART: Final = "none that is scraped"
"""What the annotation is where every part answers."""
_REMEMBERED: Final = "1h"
"""How long a part is named that nothing scrapes any more, as a pod that is gone."""


def parts_down(alert: Alert, options: Options) -> dict[str, str]:
    """The annotation as a template of Prometheus: each part with its job; none for alerts on less than the fleet.

    Where labels distinguish clusters, they are those of the alert's.
    """
    if alert.severity != "critical" or labels_of(alert.condition):
        return {}
    jobs = (options.choices.collector_job, AGENTS_JOB, TRANSLATE_JOB, STORAGE_JOB, PROXY_JOB, EVALUATOR_JOB)
    shared = options.common.extra_labels
    own = ",".join(f"{label}=%[{number}]q" for number, label in enumerate(shared, 1))
    part = SCRAPED_UP + matchers_promql((("job", jobs),), own)
    gone = f'label_replace(last_over_time({part}[{_REMEMBERED}]) unless {part}, "gone", "1", "job", ".*")'
    asked = " ".join([f"printf `{part} == 0 or {gone}`", *(f"$labels.{label}" for label in shared)])
    each = (
        "{{ if $number }}, {{ end }}{{ $each.Labels.instance }} ({{ $each.Labels.job }}"
        "{{ if $each.Labels.gone }}, no longer scraped{{ end }})"
    )
    return {
        PARTS_DOWN: f"{{{{ with {asked} | query }}}}{{{{ range $number, $each := . | sortByLabel `instance` }}}}{each}"
        f"{{{{ end }}}}{{{{ else }}}}{NO_PART}{{{{ end }}}}"
    }
