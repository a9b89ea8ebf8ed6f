"""The parts of tables and tiles: HTML elements, rows, cells and pictures, for `st.html`."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from urllib.parse import urlencode

from app.elements.plain import escape


def element(tag: str, content: str, classes: str = "", **attributes: str | None) -> str:
    """An HTML element around content that is already HTML; an attribute that is None is left out."""
    given = {"class": classes or None, **{name.replace("_", "-"): value for name, value in attributes.items()}}
    written = "".join(f' {name}="{escape(value)}"' for name, value in given.items() if value is not None)
    return f"<{tag}{written}>{content}</{tag}>"


def link(page: str, text: str, parameters: Mapping[str, str], classes: str = "") -> str:
    """A link to a page of the console."""
    return element("a", escape(text), classes, href=f"{page}?{urlencode(parameters)}", target="_self")


def image(svg: str, classes: str, alt: str) -> str:
    """A drawing, with `alt` for who cannot see it; "" where the text beside it says the same."""
    # Streamlit's sanitiser keeps images and drops inline SVG.
    source = base64.b64encode(svg.encode()).decode()
    return f'<img class="{classes}" alt="{escape(alt)}" src="data:image/svg+xml;base64,{source}">'


def heading(*lines: str, tip: str | None = None, numeric: bool = False) -> str:
    """The head of a column: its name, smaller lines below, and what it means on hover."""
    shown = "".join(element("span", escape(line), "sub" if place else "") for place, line in enumerate(lines) if line)
    return element("th", shown, "number" if numeric else "", scope="col", data_tip=tip)


def chip(text: str) -> str:
    """A short text with a border."""
    return element("span", escape(text), "chip")


def cell(label: str, upper: str, lower: str = "", classes: str = "") -> str:
    """A cell of two lines of HTML; `label` names it where the window is narrow and rows are cards."""
    below = element("div", lower, "lower") if lower else ""
    return element("td", element("div", upper, "upper") + below, classes, data_label=label)


def grid(name: str, head: Iterable[str], rows: Iterable[str]) -> str:
    """A table of this kind, by its heads and rows."""
    header = element("thead", element("tr", "".join(head)))
    return element("div", element("table", header + element("tbody", "".join(rows)), name), "scope")


def draw_tiles(tiles: Iterable[tuple[str, str, str]], when: str = "") -> str:
    """A strip of tiles: title, value and a line below; the value and the line are HTML. `when` the values are of is
    beside each title.
    """
    moment = element("span", escape(f" · {when}"), "when") if when else ""
    drawn = (
        element(
            "div",
            element("div", escape(title) + moment, "title")
            + element("div", value, "figure")
            + element("div", below, "below"),
            "tile",
        )
        for title, value, below in tiles
    )
    return element("div", "".join(drawn), "tiles scope")


def draw_lines(lines: Iterable[str]) -> str:
    """Texts, each on a line of its own."""
    return "".join(element("div", escape(line)) for line in lines)
