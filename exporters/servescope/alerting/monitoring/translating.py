"""The alerts on what scrapes the targets without a collector: agents, and translators (`servescope translate`)."""

from __future__ import annotations

from typing import Final

from servescope.alerting.rules.choices import bound, waited
from servescope.alerting.rules.records import (
    PERCENT,
    Alert,
    Compare,
    FirstCheck,
    Quotient,
    Runbook,
    SelfMetric,
)
from servescope.contract.bounds import FAILED_PROBES
from servescope.contract.expressions import Matchers, Pattern
from servescope.contract.own_metrics import AGENTS_JOB, SCRAPED_UP, TRANSLATE_JOB

_PROCESS: Final = ("instance", "job")
_AGENTS: Final = SelfMetric(SCRAPED_UP, _PROCESS, (("job", (AGENTS_JOB,)),))
_TRANSLATORS: Final = SelfMetric(SCRAPED_UP, _PROCESS, (("job", (TRANSLATE_JOB,)),))
_REFUSED: Final = SelfMetric("servescope_probe_refused_total", ("instance", "reason"), increase_over="10m")
_PROBES = "servescope_probe_requests_total"
# `ok` alone of all outcomes begins so.
_NOT_OK: Final[Matchers] = (("outcome", (Pattern("[^o].*"),)),)
_FAILED: Final = Quotient(
    SelfMetric(_PROBES, ("instance",), _NOT_OK, increase_over="10m"),
    SelfMetric(_PROBES, ("instance",), increase_over="10m"),
)
_MOST: Final = bound(FAILED_PROBES)

TRANSLATE_ALERTS: Final = (
    Alert(
        "ServescopeAgentDown", "warning", "translate", "servescope",
        Compare(_AGENTS, "==", 0.0),
        "An agent that scrapes targets is down.",
        "Scrapes of the agent {{ $labels.instance }} itself fail: its part of the targets is most likely not scraped.",
        Runbook(
            "A Prometheus agent or a vmagent does not answer. The targets that it alone scrapes have no new samples: "
            "five minutes later they are missing from every figure, as if they were no longer listed.",
            "Nothing by itself. Sums over a deployment are too low, ratios and latencies are those of the other "
            "replicas, and nobody is notified of the targets that are not scraped.",
            "Does its process run, and does its log have an error? A part of the configuration that was refused shows "
            "at its start.",
            "Start it again: it continues with the same targets, and sends what its log on disk still holds. If its "
            "machine is lost, start one with the same number elsewhere.",
            "An agent that was removed and is still listed.",
            FirstCheck(_AGENTS, "an agent stays at 0.", "none is at 0: it was restarted."),
            (),
            "Do not change how many agents there are meanwhile: each would get other targets.",
            "Whoever runs the agents: now if each target has one agent, in the morning if it has two.",
            "The agent answers, and the panel Targets of each deployment shows as many as before.",
        ),
        "health", SCRAPED_UP, for_="5m", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeTranslatorDown", "warning", "translate", "servescope",
        Compare(_TRANSLATORS, "==", 0.0),
        "A translator is down.",
        "Scrapes of the translator {{ $labels.instance }} itself fail.",
        Runbook(
            "A process of `servescope translate` does not answer. Targets that are probed through it alone count as "
            "down.",
            "Nothing by itself. With several translators behind one name the others answer; without, the targets are "
            "missing from every figure.",
            "Does its process run? Its log has the reason when it ended; without one it was killed, such as for "
            "memory.",
            "Start it: it keeps nothing, and answers at once. If it was killed for memory, give it more, or run more "
            "of them.",
            "A translator that was removed and is still listed.",
            FirstCheck(_TRANSLATORS, "a translator stays at 0.", "none is at 0: it was restarted."),
            (),
            "Do not remove the targets that count as down from their lists.",
            "Whoever runs the translators: now if it is the only one, in the morning if others answer.",
            "It answers, and its targets are up.",
        ),
        "health", SCRAPED_UP, for_="5m", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeProbesFail", "warning", "translate", "servescope",
        Compare(_FAILED, ">", _MOST),
        "Most probes of a translator fail.",
        f"{PERCENT} of the probes of the translator {{{{ $labels.instance }}}} fail.",
        Runbook(
            f"More than {_MOST:%} of what this translator was asked for failed within 10 minutes. Single targets that "
            "are down do not do that: it is the translator, its network, its credentials or its certificate.",
            "Nothing by itself. The targets count as down, and are missing from every figure.",
            "Compare with the other translators: if theirs fail alike, it is what all targets share. `servescope_probe_"
            "requests_total` by `outcome` names the error; `servescope_probe_failed` of a target does, too.",
            "`unreachable`, `dns`, `proxy`: the network, or a network policy. `tls`, `credentials`: its configuration. "
            "`timeout`: more CPU, or more translators. `unknown_source`: no map reads the targets. "
            "`busy`: targets that hang take all slots; more translators, or a higher `max_probes`. `translator`: a "
            "bug, its log has a traceback; start the previous version.",
            "Few targets, most of which are down.",
            FirstCheck(_FAILED, "one translator is far above the others.", "all are low."),
            (),
            "Do not restart engines before one of them is known not to answer.",
            "Whoever runs the translators: now if deployments count as down.",
            "Most probes succeed.",
        ),
        "health", _PROBES, for_="5m", keep_firing_for="5m",
    ),
    Alert(
        "ServescopeProbesRefused", "warning", "translate", "servescope",
        Compare(_REFUSED, ">", 0.0),
        "A translator refuses probes.",
        "The translator {{ $labels.instance }} refuses requests because of their {{ $labels.reason }}, within each 10 "
        f"minutes of the last {waited()}.",
        Runbook(
            "Requests for probes are answered with an error: the `target` is not among those that the configuration "
            "allows, it may not `claim` the deployment whose labels it is listed with, there is no such `source` or "
            "`behind`, or another `parameter` is wrong.",
            "Nothing by itself. The targets of these requests count as down. If nobody listed them, somebody tries to "
            "reach other machines through the translator.",
            "Ask `/probe` with the address and parameters of the target: the answer says what is wrong and what was "
            "expected. The targets page of Prometheus shows those whose scrapes are answered so. Do all translators "
            "have the same configuration?",
            "Add the addresses to `targets` in the translators' configuration, or correct the lists of targets. A "
            "`claim`, which the translator's log names, is a list with the labels of another deployment, or an address "
            "that is missing in `[deployments.claims]`. If the requests come from elsewhere, give the translators "
            "tokens and a network policy.",
            "Requests of somebody who tries out addresses by hand, for longer than the alert waits.",
            FirstCheck(_REFUSED, "a reason stays above 0, on all translators.", "0 again."),
            (),
            "Do not allow all addresses: the translator would be a proxy to your network.",
            "Whoever owns the lists of targets, in the morning; now if a deployment counts as down.",
            "10 minutes pass without a refusal.",
        ),
        "health", "servescope_probe_refused_total", for_="15m",
    ),
)  # fmt: skip
