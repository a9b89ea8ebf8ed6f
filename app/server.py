"""The console's server, for `streamlit run`: the pages, behind the door."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.types import ASGIApp
from streamlit.starlette import App

from servescope.console import HOSTS_VARIABLE, SIGN_IN_VARIABLE
from servescope.generating.packages import register
from servescope.settings.sign_in import SignIn

HERE = Path(__file__).resolve().parent


def guard(app: ASGIApp) -> ASGIApp:
    """The app behind the door, as the environment variables configure it."""
    # In a wheel this directory is `servescope/_app`.
    register("app", HERE)
    # Only now, when `app` can be imported.
    from app.door.door import HeaderGuard, HostCheck, OriginCheck, PeerCheck, SignInCheck
    from app.door.messages import MessageCheck
    from app.door.refusals import Refusals, limit_logs

    limit_logs()
    names = frozenset(os.environ.get(HOSTS_VARIABLE, "").split())
    sign_in, refusals = SignIn.from_json(os.environ.get(SIGN_IN_VARIABLE, "")), Refusals()
    inside = PeerCheck(SignInCheck(MessageCheck(app, refusals), sign_in), sign_in)
    return HeaderGuard(HostCheck(OriginCheck(inside, refusals), names))


# `streamlit run` finds the server by this line. Around all of it, its own error pages included, is the door.
app: ASGIApp = App(HERE / "console.py")
app = guard(app)
