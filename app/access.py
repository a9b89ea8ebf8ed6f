"""Who reads the pages, and whether they may decide."""

from __future__ import annotations

import os
from dataclasses import dataclass

import streamlit as st

from app.elements.plain import Markdown, plain
from servescope.console import SIGN_IN_VARIABLE
from servescope.settings.sign_in import SignIn, name_by_claims

_NOT_OPEN = Markdown(
    "This console is open to others without a sign-in, so it writes down no decision: use `servescope judge decide`, "
    "or start the console with `--auth`."
)
_NO_ROLE = Markdown("You read as a viewer: who starts the console names the deciders with `--decider NAME`.")


@dataclass(frozen=True, slots=True)
class PageReader:
    """Who reads a page: their name, "" where nobody signs in, and whether they may decide.

    `why_not` says, of one who may not decide, what that needs.
    """

    name: str = ""
    decides: bool = True
    why_not: str = ""


def sign_in() -> SignIn:
    """How readers of this console sign in."""
    return SignIn.from_json(os.environ.get(SIGN_IN_VARIABLE, ""))


def current_reader() -> PageReader:
    """The reader of this session; one who has to sign in and did not may read nothing (see `require_reader`)."""
    chosen = sign_in()
    if chosen.kind == "none":
        return PageReader() if chosen.is_local else PageReader(decides=False, why_not=_NOT_OPEN)
    name = _name_by_oidc() if chosen.kind == "oidc" else _name_by_proxy(chosen)
    decides = bool(name) and chosen.may_decide(name)
    return PageReader(name, decides, "" if decides else _NO_ROLE)


def require_reader() -> PageReader:
    """The reader; a page that nobody signed in to ends with how to do that."""
    chosen, reader = sign_in(), current_reader()
    if chosen.kind != "none" and not reader.name:
        _ask_to_sign_in(chosen)
        st.stop()
    return reader


def _ask_to_sign_in(chosen: SignIn) -> None:
    st.subheader("Sign in", anchor=False)
    if chosen.kind == "oidc":
        st.markdown("This console is for people who have signed in.")
        if _is_signed_in():
            st.error(
                "The account you signed in with names nobody here: its token lacks an e-mail address that is verified "
                '(`"email_verified": true`). Choose another account, or have the provider verify the address.',
            )
        st.button("Sign in", type="primary", on_click=st.login)
        return
    st.error(
        f"No {plain(chosen.header)} header came from a configured proxy: open the console through the proxy in front "
        "of it, or name that proxy's address with `--auth-proxy`.",
    )


def show_reader(reader: PageReader) -> None:
    """Below the page: who reads it, in which role, and how to sign out."""
    if not reader.name:
        return
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        st.caption(f"{plain(reader.name)} · {'decider' if reader.decides else 'viewer'}")
        if sign_in().kind == "oidc":
            st.button("Sign out", type="tertiary", on_click=st.logout)


def _is_signed_in() -> bool:
    return st.user.to_dict().get("is_logged_in") is True


def _name_by_oidc() -> str:
    """The e-mail address the provider vouches for; "" before signing in, and where it does not vouch for one."""
    return name_by_claims(st.user.to_dict()) if _is_signed_in() else ""


def _name_by_proxy(chosen: SignIn) -> str:
    """What the proxy wrote into its header; the server has removed the header of every other peer."""
    return st.context.headers.get(chosen.header) or ""
