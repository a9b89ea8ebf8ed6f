"""The console's server, for `streamlit run`: the pages, behind the door."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from starlette.types import ASGIApp
from streamlit.starlette import App

from servescope.console import HOSTS_VARIABLE, SIGN_IN_VARIABLE
from servescope.settings.sign_in import SignIn

HERE = Path(__file__).resolve().parent


def register_package() -> None:
    """Let server and pages import `app`, whatever this directory is called: in a wheel it is `servescope/_app`."""
    if "app" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location("app", HERE / "__init__.py", submodule_search_locations=[str(HERE)])
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {HERE}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["app"] = module
    spec.loader.exec_module(module)


def guard(app: ASGIApp) -> ASGIApp:
    """The app behind the door, as the environment variables configure it."""
    register_package()
    # Only now, when `app` can be imported.
    from app.door import HeaderGuard, HostCheck, OriginCheck, PeerCheck, SignInCheck
    from app.messages import MessageCheck
    from app.refusals import Refusals, limit_logs

    limit_logs()
    names = frozenset(os.environ.get(HOSTS_VARIABLE, "").split())
    sign_in, refusals = SignIn.from_json(os.environ.get(SIGN_IN_VARIABLE, "")), Refusals()
    inside = PeerCheck(SignInCheck(MessageCheck(app, refusals), sign_in), sign_in)
    return HeaderGuard(HostCheck(OriginCheck(inside, refusals), names))


# `streamlit run` finds the server by this line. Around all of it, its own error pages included, is the door.
app: ASGIApp = App(HERE / "console.py")
app = guard(app)
