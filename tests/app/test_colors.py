"""The console's colours: what WCAG AA asks of text and of graphics, in the light theme and in the dark one alike."""

from __future__ import annotations

import re
import tomllib

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from app.elements import colors
from tests.conftest import ROOT

TEXT, GRAPHICS = 4.5, 3.0
STYLE = (ROOT / "app" / "style.css").read_text(encoding="utf-8")
THEMES = ("light", "dark")
CONFIGURED = tomllib.loads((ROOT / "app" / ".streamlit" / "config.toml").read_text(encoding="utf-8"))["theme"]
VARIABLES = {
    name: dict(zip(THEMES, (light, dark), strict=True))
    for name, light, dark in re.findall(r"--([a-z-]+): light-dark\((#\w+), (#\w+)\)", STYLE)
}


def contrast(color: str, other: str) -> float:
    """The contrast of two colours by WCAG, 1 … 21."""
    bright, dim = sorted((_luminance(color), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def _luminance(color: str) -> float:
    shares = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def grounds(theme: str) -> list[str]:
    """What text is written on: the page, tiles, fields, and a row under the pointer."""
    page = [CONFIGURED[theme][name] for name in ("backgroundColor", "secondaryBackgroundColor")]
    return [*page, VARIABLES["surface"][theme], VARIABLES["hover"][theme]]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["quiet", "good", "warning", "critical", "derived"])
def test_text_has_contrast(theme: str, name: str) -> None:
    """Every colour of a text has it on every background of the page, and a status on its own soft one."""
    own = VARIABLES.get(f"{name}-soft")
    for ground in [*grounds(theme), *([own[theme]] if own else [])]:
        assert contrast(VARIABLES[name][theme], ground) >= TEXT, (name, ground)


@pytest.mark.parametrize("name", ["quiet", "good", "warning", "critical", "derived"])
def test_dark_has_the_contrast_of_light(name: str) -> None:
    """A text is no harder to read in the dark theme than in the light one."""
    light, dark = (contrast(VARIABLES[name][theme], CONFIGURED[theme]["backgroundColor"]) for theme in THEMES)

    assert dark >= light


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(
    "color",
    [
        *colors.color_stacks(("vllm-0.32", "dynamo-1.6", "sglang", "trtllm")).values(),
        *colors.HARM_COLORS.values(), *colors.TUNING_COLORS.values(), *colors.REPLICA_COLORS.values(),
        colors.ROLLOUT, colors.NEUTRAL,
    ],
)  # fmt: skip
def test_graphics_have_contrast(theme: str, color: str) -> None:
    """Every line and mark of a chart is distinguishable from every background in both themes."""
    for ground in grounds(theme):
        assert contrast(color, ground) >= GRAPHICS, ground


@pytest.mark.parametrize("theme", THEMES)
def test_coverage_bars_have_contrast(theme: str) -> None:
    """Each part of a coverage bar is distinguishable from the page."""
    found = re.findall(r"\.scope \.part\.(\w+) \{[^}]*?(#\w{6})", STYLE)

    assert len(found) == 5
    for status, color in found:
        assert contrast(color, CONFIGURED[theme]["backgroundColor"]) >= GRAPHICS, status


def test_no_state_has_the_hue_of_a_stack() -> None:
    """A colour means one stack or one state: none is both, and no two stacks of an ordinary fleet share one."""
    stacks = colors.color_stacks(("vllm-0.32", "dynamo-1.6", "sglang-0.5", "trtllm-1.3"))
    states = {*colors.HARM_COLORS.values(), *colors.TUNING_COLORS.values(), *colors.REPLICA_COLORS.values()}

    assert len(set(stacks.values())) == len(stacks) == 6
    assert not states & set(stacks.values())


def test_style_sheet_names_its_text_colours_once() -> None:
    """Every colour of a text is one of the variables that are checked, or ink on a background of its own."""
    own = {"light-dark(#ffffff, #0b1720)", "light-dark(#f5f8fa, #121820)"}
    written = set(re.findall(r"(?<![-\w])color: (light-dark\([^)]*\)|#\w+)", STYLE))

    assert written <= own
