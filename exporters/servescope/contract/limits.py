"""What a metric of a cutover has to stay within, as people read it: in the console, on the command line and in JSON."""

from __future__ import annotations

from typing import Literal

from servescope.contract.judged import JUDGED

Better = Literal["higher", "lower"] | None


def describe_worse(name: str, change: float, better: Better) -> str:
    """A change to the worse: `3 ×` of events, else `10 % worse`; `10 % more or less` where either way harms."""
    if JUDGED[name].kind == "events":
        return f"{format_number(1.0 + change)} ×"
    return f"{format_number(100.0 * change)} % {'more or less' if better is None else 'worse'}"


def describe_band(low: float | None, high: float | None, unit: str) -> str:
    """A band of levels: `at least 40 %`, `50 000 to 150 000 tokens`; `anything` without an end."""
    if low is not None and high is not None:
        return f"{format_level(low, unit).removesuffix(f' {unit}')} to {format_level(high, unit)}"
    if low is not None:
        return f"at least {format_level(low, unit)}"
    return f"at most {format_level(high, unit)}" if high is not None else "anything"


def format_level(value: float, unit: str) -> str:
    """A level with its unit; of a ratio in percent, without what is below a hundredth of one."""
    # Adding 0 takes the sign of what was rounded to it.
    text = f"{format_number(round(100.0 * value, 2) + 0.0)} %" if unit == "ratio" else f"{format_number(value)} {unit}"
    return text.replace("-", "\N{MINUS SIGN}")


def format_number(value: float) -> str:
    """A number in three digits, from a thousand on whole and in groups of three that no line breaks."""
    return f"{value:,.0f}".replace(",", "\N{NO-BREAK SPACE}") if abs(value) >= 999.5 else f"{value:.3g}"
