"""The alerts on what requests are answered with: other lengths of answers, and requests refused as invalid."""

from __future__ import annotations

from typing import Final

from servescope.alerting.playbooks.failures import ERRORS
from servescope.alerting.rules import records
from servescope.alerting.rules.choices import bound
from servescope.contract import bounds

_LENGTH: Final = records.FigureRef("output_tokens_per_request")
_WRITTEN: Final = records.FigureRef("output_tokens_per_second")
_RATE: Final = records.FigureRef("request_rate")
_KEPT: Final = bound(bounds.ANSWERS_KEPT)
_SAME: Final = bound(bounds.SAME_TRAFFIC)
_INVALID: Final = records.FigureRef("client_error_share")
_MORE: Final = bound(bounds.CLIENT_ERRORS_MORE)
_FLOOR: Final = bound(bounds.ANSWERS_TRAFFIC)


def _lately(shown: records.FigureRef) -> records.OverTime:
    """Its average over the last minutes; those of the rate included they are 13."""
    return records.OverTime("avg", shown, "8m")


def _by_themselves(rate: records.Term, cut: records.Term) -> records.Product:
    """Of so many requests a second, those whose answers do not end at a limit."""
    return records.Product(rate, records.Shifted(records.Scaled(cut, -1.0), 1.0))


_CUT: Final = records.FigureRef("answer_truncated_share")
_GROWN: Final = bound(bounds.ANSWERS_GROWN)
_CUT_MORE: Final = bound(bounds.ANSWERS_CUT)
_USUAL: Final = records.OverTime("avg", _RATE, "3h")
_SHORT: Final = records.All((
    # The shortest of the last minutes: between bursts nothing is answered.
    records.Compare(records.OverTime("min", _LENGTH, "10m"), "<", records.Scaled(records.an_hour_ago(_LENGTH), _KEPT)),
    # By all requests of some bursts, as those between them are probes, which are answered with a token.
    records.Compare(
        records.Quotient(_lately(_WRITTEN), _lately(_RATE)), "<", records.Scaled(records.an_hour_ago(_LENGTH), _KEPT)
    ),
    # Another mix of requests has other answers, and either fewer requests or as many tokens as before.
    records.Compare(_lately(_WRITTEN), "<", records.Scaled(records.an_hour_ago(_WRITTEN), _SAME)),
    records.Compare(_lately(_RATE), ">=", records.Scaled(_USUAL, _SAME)),
    records.Compare(_lately(_RATE), ">=", _FLOOR),
))  # fmt: skip
_LONG: Final = records.All((
    records.Compare(_LENGTH, ">", records.Scaled(records.an_hour_ago(_LENGTH), _GROWN)),
    # Long texts end by themselves, and those who want few tokens get short ones.
    records.Compare(_CUT, ">", records.Shifted(records.an_hour_ago(_CUT), _CUT_MORE)),
    # Beside others that are cut on purpose, as by a load test, as many end by themselves as before.
    records.Compare(
        _by_themselves(_RATE, _CUT),
        "<",
        records.Scaled(_by_themselves(records.an_hour_ago(_RATE), records.an_hour_ago(_CUT)), _SAME),
    ),
    # Where requests become fewer, those that are left may be long; the rate must not lag behind their length.
    records.Compare(_RATE, ">=", records.Scaled(_USUAL, _SAME)),
    records.Compare(_RATE, ">=", _FLOOR),
))  # fmt: skip

ANSWERS_ALERTS: Final = (
    records.Alert(
        "ServescopeAnswerLengthChanged", "critical", "engine", "serving",
        records.Any((records.Because("short", _SHORT), records.Because("long", _LONG))),
        "Answers are far shorter or longer than before.",
        f"The answers of {records.WHO} have {records.NUMBER} tokens on average, " + records.by_cause({
            "short": f"less than {_KEPT:%} of an hour ago, at about the same request rate.",
            "long": f"more than {_GROWN:g} times as many as an hour ago, and far more of them end only at a limit.",
        }),
        records.Runbook(
            f"`short`: the mean number of output tokens of a request is below {_KEPT:%} of what it was in the hour "
            f"that ended 30 minutes ago, and so are the tokens of the last minutes by their requests; the output "
            f"tokens per second are below {_SAME:%}. `long`: it is more than {_GROWN:g} times that, and the share of "
            f"answers that end at a limit of their length is more than {_CUT_MORE:%} of all answers above what it was, "
            f"and fewer than {_SAME:%} as many as then end by themselves. "
            f"There are at least {_SAME:%} as many requests as on average over three "
            "hours: the same traffic gets other answers. They "
            "count as ok. The alert stays active while answers are as short or as long, for some hours.",
            "`short`: answers are empty, or break off after a few words. `long`: they go on after their end, repeat "
            "themselves or are no text at all, and cost many times the work.",
            "Send the same request to a replica yourself and read the answer. Compare the share of answers that end at "
            "a limit with before. Look at the last change: a chat template, a stop sequence, the tokens that end an "
            "answer, a default limit of tokens, a tokenizer, weights that did not load as a whole.",
            "Roll back the last change of engine, model or configuration, or route the traffic to the other stack.",
            "All clients of a deployment begin to ask for short answers at once, at the same request rate, or for "
            "texts that are cut at a limit.",
            records.FirstCheck(
                _LENGTH,
                "a step within minutes, and level since.",
                "as long as before.",
                records.by_replica("output_tokens_per_request"),
                "A single replica: take it out of routing. All alike: the last change, or what clients ask for.",
                lowest=True,
            ),
            (ERRORS,),
            "Do not add replicas or restart them: the same model would give the same answers.",
            "The owner of the model, now, if a rollback is not yours to do.",
            "Answers are about as long as before.",
        ),
        "requests", "output_tokens_per_request", for_="2m", keep_firing_for="5m",
        waits_less="the tokens of the last 13 minutes fall slowly", panel="Output tokens per request",
        lasts=records.Any((
            records.Because(
                "short",
                records.Compare(_LENGTH, "<", records.Scaled(records.OverTime("max", _LENGTH, "6h"), _KEPT)),
            ),
            records.Because(
                "long",
                records.All((
                    records.Compare(_LENGTH, ">", records.Scaled(records.OverTime("min", _LENGTH, "6h"), _GROWN)),
                    records.Compare(_CUT, ">", records.Shifted(records.OverTime("min", _CUT, "6h"), _CUT_MORE)),
                )),
            ),
        )),
    ),
    records.Alert(
        "ServescopeClientErrorsHigh", "warning", "engine", "serving",
        records.All((
            records.Compare(
                _INVALID, ">", records.Shifted(records.OverTime("avg", _INVALID, "1d", before="1h"), _MORE)
            ),
            records.Compare(_RATE, ">=", _FLOOR),
        )),
        "Many requests are refused as invalid.",
        f"{records.PERCENT} of the requests of {records.WHO} are refused as the client's mistake, far more than over "
        "the day before.",
        records.Runbook(
            f"The share of requests that end as a client's error is more than {_MORE:%} of all requests above its "
            "average over the day before. Such requests are no failures of the stack, and in no objective.",
            "The users of some client get an error instead of an answer.",
            "Which message do they get? A limit of the context or of output tokens, an unknown model name, a parameter "
            "that is no longer accepted, a key. Compare with the last change of the deployment, the gateway and the "
            "client.",
            "If a limit or a check was changed, roll the change back. If a client sends other requests than before, "
            "have its owner correct them.",
            "A client under development that repeats a wrong request.",
            records.FirstCheck(
                _INVALID,
                "up by a step, and level since: a change of a limit, of the gateway or of a client.",
                "a short peak that is over: somebody tried something.",
                records.by_replica("client_error_share"),
                "One replica alone: its configuration differs from that of the others. All: the change, or the client.",
            ),
            (ERRORS,),
            "Do not restart engines for it: they would refuse the same requests again.",
            "Whoever made the last change of limits, in the morning; at once if users complain.",
            "The share is about what it was over the day before.",
        ),
        "requests", "client_error_share", for_="15m", keep_firing_for="10m",
    ),
)  # fmt: skip
