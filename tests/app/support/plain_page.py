"""A page for `streamlit run` with drawn texts, each where Streamlit reads Markdown; `?seed=` draws others."""

from __future__ import annotations

import random

import streamlit as st

from app.elements.plain import code, plain

COUNT = 300
PIECES = (
    "[", "]", "(", ")", "!", "*", "**", "_", "__", "~", "~~", "`", "``", "<", ">", "<b>", "<img src=x>", "&amp;",
    "&#58;",
    "#", "# ", "- ", "+ ", "1. ", "1) ", "> ", "=", "---", "|", "$", "$$", "\\", "{", "}", ":", ":red[x]", ":smile:",
    ":material/home:", ":material_home:", ":streamlit:", ":100:", ":+1:", "http://evil.invalid", "www.evil.invalid",
    "a@evil.invalid", "[a](http://evil.invalid)", "![i](http://evil.invalid/i.png)", "[^1]", "[a]: http://evil.invalid",
    " ", "  ", "\n", "\n\n", "    ", "\t", "word", "a_b_c", "12:30:45", "->", " -> ", " -- ", "<-", ">=", "~=",
    "\u202e",
    "\u200b", "\u00a0", "é", "日本", "😄", "^", "@", ".", "'", '"', ";", "::note[x]", "\n:::note\n",
    "javascript:alert(1)",
    "\n| a | b |\n|---|---|\n| 1 | 2 |", ":blue-background[x]", "$x^2$", "<!-- x -->", "<http://evil.invalid>", "x",
)  # fmt: skip
PLACES = ("caption", "markdown", "error", "label", "strong", "code")


def draw_texts(seed: int) -> list[tuple[str, str]]:
    """So many texts, each with the place that it is shown in; none is blank."""
    draw = random.Random(seed)
    texts = ("x" + "".join(draw.choice(PIECES) for _ in range(draw.randint(1, 9))) for _ in range(COUNT))
    return [(draw.choice(PLACES), text[draw.randint(0, 1) :] if text[1:].strip() else text) for text in texts]


def show(place: str, text: str) -> None:
    """A text in a place."""
    match place:
        case "caption":
            st.caption(plain(text))
        case "markdown":
            st.markdown(plain(text))
        case "error":
            st.error(plain(text), icon="⛔")
        case "label":
            st.checkbox(plain(text), key=text)
        case "strong":
            st.markdown(f"**{plain(text)}**")
        case _:
            st.markdown(code(text))


if __name__ == "__main__":
    for number, (where, drawn) in enumerate(draw_texts(int(st.query_params["seed"]))):
        with st.container(key=f"text_{number}"):
            show(where, drawn)
