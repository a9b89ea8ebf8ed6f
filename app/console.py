"""The console's script: its pages and what they share. Environment variables name what they read."""

from __future__ import annotations

import os
from pathlib import Path

import streamlit as st

from app.access import require_reader, show_reader
from app.frame import show_error
from app.icons import style_icons
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
    pages = [
        st.Page(HERE / "views" / "cutover.py", title="Cutover", default=True),
        st.Page(HERE / "views" / "readiness.py", title="Readiness"),
        st.Page(HERE / "views" / "plan.py", title="Plan"),
        st.Page(HERE / "views" / "decisions.py", title="Decisions"),
        st.Page(HERE / "views" / "self_test.py", title="Self-test"),
        st.Page(HERE / "views" / "fleet.py", title="Fleet"),
        st.Page(HERE / "views" / "deployment.py", title="Deployment"),
        st.Page(HERE / "views" / "compare.py", title="Compare"),
        st.Page(HERE / "views" / "alerts.py", title="Alerts"),
        st.Page(HERE / "views" / "sources.py", title="Sources"),
    ]
    if os.environ.get(CUSTOMERS_VARIABLE):
        pages.append(st.Page(HERE / "views" / "customers.py", title="Customers"))
    if os.environ.get(EMULATOR_VARIABLE):
        pages.append(st.Page(HERE / "views" / "faults.py", title="Faults"))
    st.html(style_icons({page.url_path: page.title for page in pages}))
    chosen = st.navigation(pages, position="top")
    reader = require_reader()
    try:
        with take_turn():
            chosen.run()
    except ServescopeError as error:
        show_error(error)
    show_reader(reader)


main()
