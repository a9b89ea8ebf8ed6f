"""The answer in HTML: what to do and why, which alerts page, what is waited for, and who decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Final

from app.cutovers.verdicts import verdict_chip
from app.elements import display
from app.elements.markup import element, image
from app.elements.plain import escape
from servescope.cutover.judgement import Advice, Decided, Efficiency, Judgement
from servescope.cutover.plan.plan import Stage

_ADVICE_STATUS: Final[Mapping[Advice, str]] = {"go on": "good", "hold": "warning", "roll back": "critical"}
# Triangle, two bars, a turn: the signs of a player, which need no language.
_ADVICE_PATHS: Final[Mapping[Advice, str]] = {
    "go on": '<path d="M9 5v22l18-11z"/>',
    "hold": '<path d="M7 5h7v22H7zM18 5h7v22h-7z"/>',
    "roll back": '<path d="M16 5v22L2 16zM30 5v22L16 16z"/>',
}
_ADVICE_COLORS: Final = {"good": "#1f8a53", "warning": "#b87a07", "critical": "#c93541", "unknown": "#6f7b88"}


def draw_answer(judgement: Judgement, zone: tzinfo, stages: Sequence[Stage] = ()) -> str:
    """Whether to go on, hold or roll back, the verdict and its reason: what is read in five seconds.

    `stages` are those of the plan, of which the next one's share is named.
    """
    advice: Advice = "roll back" if judgement.rolled_back else judgement.advice
    status = "unknown" if judgement.rolled_back else _ADVICE_STATUS[advice]
    sign = image(
        '<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32" viewBox="0 0 32 32" '
        f'fill="{_ADVICE_COLORS[status]}">{_ADVICE_PATHS[advice]}</svg>',
        "sign", "",
    )  # fmt: skip
    said = "Rolled back" if judgement.rolled_back else advice.capitalize()
    call = element("div", escape(said), "advice") + element("div", escape(_where(judgement, stages)), "where")
    severity = element("span", escape(judgement.severity), "severity") if judgement.severity else ""
    reason = element("div", escape(display.as_sentence(_local(judgement.reason, judgement, zone))), "reason")
    lines = [element("div", verdict_chip(judgement.verdict) + severity, "heads"), *_alerts(judgement, zone), reason]
    if judgement.waits_for:
        lines.append(element("div", escape(display.as_sentence(f"Waits for {judgement.waits_for}")), "waits"))
    lines += [*_decided(judgement, zone), *_latched(judgement, zone), *_excluded_harm(judgement, zone)]
    lines += [_efficiency(each) for each in judgement.efficiency[:1]]
    text = element("div", "".join(lines), "said")
    return element("div", element("div", sign + element("div", call), "call") + text, f"scope answer {status}",
                   role="status")  # fmt: skip


def _local(text: str, judgement: Judgement, zone: tzinfo) -> str:
    return display.in_zone(text, judgement.at_ms, zone)


def _where(judgement: Judgement, stages: Sequence[Stage]) -> str:
    planned = display.format_planned(judgement.stage.share)
    if judgement.rolled_back:
        return f"from {planned} on v2"
    if judgement.advice != "go on":
        return f"{'at' if judgement.advice == 'hold' else 'from'} {planned} on v2"
    if judgement.stage.index + 1 < len(stages):
        return f"to {display.format_planned(stages[judgement.stage.index + 1].share)} on v2"
    return f"{planned} on v2 is the last stage"


def _alerts(judgement: Judgement, zone: tzinfo) -> list[str]:
    """The alerts that page somebody, each in a line."""
    return [
        element(
            "div",
            element("b", "! ", aria_hidden="true")
            + escape(
                f"{each.name} fires on {each.arm}{f', {each.replica},' if each.replica else ''} since "
                f"{display.format_time(each.since_ms, zone)}: {each.summary}"
            ),
            "alert",
        )
        for each in judgement.alerts
    ]


def _decided(judgement: Judgement, zone: tzinfo) -> list[str]:
    """Who ended the run, or acknowledged what was proven, and why."""
    lines = []
    if judgement.rolled_back:
        lines.append(f"Rolled back {_by(judgement.rolled_back, zone)}")
    if judgement.acknowledged and judgement.latched_since_ms is None:
        lines.append(f"The harm that was proven was acknowledged {_by(judgement.acknowledged, zone)}")
    return [element("div", escape(display.as_sentence(line)), "decided") for line in lines]


def _by(decided: Decided, zone: tzinfo) -> str:
    who = f"by {decided.by} " if decided.by else ""
    return f"{who}at {display.format_time(decided.at_ms, zone)}" + (f": {decided.reason}" if decided.reason else "")


def _latched(judgement: Judgement, zone: tzinfo) -> list[str]:
    if judgement.latched_since_ms is None:
        return []
    since = display.format_time(judgement.latched_since_ms, zone)
    if judgement.rolled_back:
        return [element("div", escape(f"Harm was proven at {since}."), "quiet")]
    # Where the harm goes on, an acknowledgement would change nothing.
    differs = judgement.live not in (None, judgement.verdict)
    live = f"; without it the verdict would be {judgement.live}" if differs else ""
    return [element("div", escape(f"Harm was proven at {since} and nobody has acknowledged it{live}."), "quiet")]


def _excluded_harm(judgement: Judgement, zone: tzinfo) -> list[str]:
    found = []
    for each in judgement.excluded_harm:
        begin, end, at = (display.format_time(time, zone) for time in (each.start_ms, each.end_ms, each.at_ms))
        said = f"Harm was proven, and {each.by} excluded {begin} – {end} at {at}: {each.reason}"
        found.append(element("div", escape(display.as_sentence(said)), "decided"))
    return found


def _efficiency(efficiency: Efficiency) -> str:
    sentence = escape(f"{efficiency.sentence.rstrip('.')} ")
    return element("div", sentence + element("span", "(reported, never decides)", "quiet"), "efficiency")
