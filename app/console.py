"""The console's script: its pages and what they share. Environment variables name what they read."""

from __future__ import annotations

import os
from pathlib import Path

import streamlit as st

from app.access import require_reader, show_reader
from app.cutovers import cutovers
from app.elements.icons import style_icons
from app.frame import show_error
from app.turns import take_turn
from servescope.console import CUSTOMERS_VARIABLE
from servescope.emulator.server.control_client import EMULATOR_VARIABLE
from servescope.errors import ServescopeError

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Set the page up and run the one selected."""
    st.set_page_config(page_title="servescope", page_icon=HERE / "icon.svg", layout="wide")
    st.html(HERE / "style.css")
    st.logo(HERE / "logo.svg", size="medium")
    # Not called pages/: Streamlit routes a directory of that name by itself until st.navigation has run once, and a
    # deep link that is a server's first request would run its page without what is set up here.
    # The first page is at no path, and at its own: links to it stay good when another becomes the first.
    first = "cutover" if cutovers.first_step() is None else "fleet"
    pages = [
        st.Page(
            HERE / "views" / f"{name}.py",
            title=title,
            default=name == first,
            url_path="first" if name == first else None,
        )
        for name, title in (
            ("cutover", "Cutover"),
            ("readiness", "Readiness"),
            ("plan", "Plan"),
            ("decisions", "Decisions"),
            ("self_test", "Self-test"),
            ("fleet", "Fleet"),
            ("deployment", "Deployment"),
            ("compare", "Compare"),
            ("alerts", "Alerts"),
            ("sources", "Sources"),
        )
    ]
    pages.append(st.Page(HERE / "views" / f"{first}.py", title=first.title(), visibility="hidden"))
    if os.environ.get(CUSTOMERS_VARIABLE):
        pages.append(st.Page(HERE / "views" / "customers.py", title="Customers"))
    if os.environ.get(EMULATOR_VARIABLE):
        pages.append(st.Page(HERE / "views" / "faults.py", title="Faults"))
    st.html(style_icons({page.url_path: page.title for page in pages}))
    chosen = st.navigation(pages, position="top")
    reader = require_reader()
    # Drawn before the page, which may end early, as on a store that is empty: nobody could sign out there.
    page = st.container()
    show_reader(reader)
    with page:
        try:
            with take_turn():
                chosen.run()
        except ServescopeError as error:
            show_error(error)


main()
