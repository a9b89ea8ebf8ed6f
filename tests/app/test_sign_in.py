"""Who reads the console and who decides: a proxy's header is believed of configured peers only, roles are named."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

import streamlit as st
from starlette.types import Message, Receive, Scope, Send
from streamlit.testing.v1 import AppTest

from app import access
from app.door.door import PeerCheck
from servescope.cli import main
from servescope.console import SIGN_IN_VARIABLE
from servescope.errors import UsageError
from servescope.settings.sign_in import SignIn, check_proxies, check_secrets
from tests.support.console_pages import open_view, read

pytestmark = pytest.mark.slow

PROXY = SignIn("proxy", "X-User", ("10.0.0.0/24", "192.0.2.7/32"), ("Anna@example.com",))
SECRETS = """[auth]
redirect_uri = "https://console.example.com/oauth2callback"
cookie_secret = "0123456789abcdef0123456789abcdef"
client_id = "console"
client_secret = "hidden-in-the-file"
server_metadata_url = "https://login.example.com/.well-known/openid-configuration"
"""


def headers_behind(peer: str, *values: str) -> list[str]:
    """What is left of the header's values after the check, when this peer has sent them."""
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(value.decode() for name, value in scope["headers"] if name == b"x-user")

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    headers = [(b"host", b"localhost"), *((b"x-user", value.encode()) for value in values)]
    scope: Scope = {"type": "websocket", "headers": headers, "client": (peer, 4711)}
    asyncio.run(PeerCheck(app, PROXY)(scope, receive, send))
    return seen


def open_page() -> AppTest:
    """The first page of the console."""
    return open_view("cutover")


# --- The header of a proxy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("peer", ["10.0.0.9", "192.0.2.7", "::ffff:10.0.0.9"])
def test_a_configured_proxy_is_believed(peer: str) -> None:
    """The header of a proxy that was named by address or network reaches the pages."""
    assert headers_behind(peer, "anna@example.com") == ["anna@example.com"]


@pytest.mark.parametrize("peer", ["10.0.1.9", "127.0.0.1", "::1", "unix", ""])
def test_nobody_else_is_believed(peer: str) -> None:
    """The header of any other peer is removed, one on this machine included."""
    assert headers_behind(peer, "anna@example.com") == []


def test_a_header_that_is_there_twice_is_not_believed() -> None:
    """A proxy that adds its header to one the client sent vouches for neither."""
    assert headers_behind("10.0.0.9", "mallory@example.com", "anna@example.com") == []


@pytest.mark.parametrize("proxy", ["proxy.example.com", "10.0.0.0/40", "0.0.0.0/0", "::/0"])
def test_a_proxy_is_an_address(proxy: str) -> None:
    """A name, which could be rebound, a malformed network and every address are refused by value."""
    with pytest.raises(UsageError, match="--auth-proxy"):
        check_proxies([proxy])


def test_without_the_header_nothing_is_shown(empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that came around the proxy sees how to come through it, and no page."""
    monkeypatch.setenv(SIGN_IN_VARIABLE, PROXY.to_json())
    page = open_page()

    assert "No X-User header came from a configured proxy" in page.error[0].value
    assert not page.info


@pytest.mark.parametrize(("name", "decides"), [("Anna@example.com", True), ("eve@example.com", False)])
def test_deciders_are_named(empty_store: Path, monkeypatch: pytest.MonkeyPatch, *, name: str, decides: bool) -> None:
    """Who is named may decide; everybody else reads as a viewer, and sees why."""
    monkeypatch.setenv(SIGN_IN_VARIABLE, PROXY.to_json())
    monkeypatch.setattr(access, "_name_by_proxy", lambda chosen: name)
    reader = access.current_reader()

    assert (reader.name, reader.decides) == (name, decides)
    assert ("--decider NAME" in reader.why_not) is not decides
    shown = f"{name} · {'decider' if decides else 'viewer'}"
    assert any(shown in read(caption.value) for caption in open_page().caption)


def test_a_page_that_ends_early_names_its_reader(empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fleet of a store that is empty: who signed in there can sign out."""
    monkeypatch.setenv(SIGN_IN_VARIABLE, PROXY.to_json())
    monkeypatch.setattr(access, "_name_by_proxy", lambda chosen: "Anna@example.com")
    page = open_view("fleet")

    assert "Nothing has been collected" in page.info[0].value
    assert "Anna@example.com · decider" in read(page.caption[-1].value)


@pytest.mark.parametrize(
    ("named", "signed_in"),
    [
        ("sam@example.com", "ſam@example.com"),  # a long s, which casefolds to s
        ("anna@example.com", "Anna@example.com"),
        ("strasse@example.com", "straße@example.com"),
        ("sam@example.com", "ｓam@example.com"),  # full width, which NFKC folds
        ("andré@example.com", "andre\u0301@example.com"),  # composed and decomposed
        ("anna@example.com", "anna@example.com\xa0"),
        ("anna@example.com", "anna@example.com\u200b"),
    ],
)
def test_a_name_is_compared_as_it_is(named: str, signed_in: str) -> None:
    """Names that become equal by case, by Unicode normalisation or without what is invisible are two readers."""
    assert not SignIn("proxy", deciders=(named,)).may_decide(signed_in)
    assert not SignIn("proxy", deciders=(signed_in,)).may_decide(named)
    assert SignIn("proxy", deciders=(signed_in,)).may_decide(signed_in)


@pytest.mark.parametrize("name", ["anna@example.com\xa0", "\u2003anna@example.com"])
def test_the_name_in_a_header_is_not_stripped(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A header whose name ends in a space of Unicode names another reader than the same name without it."""

    class _Context:
        headers: ClassVar = {"X-User": name}

    monkeypatch.setenv(SIGN_IN_VARIABLE, SignIn("proxy", "X-User", deciders=("anna@example.com",)).to_json())
    monkeypatch.setattr(st, "context", _Context())

    assert (access.current_reader().name, access.current_reader().decides) == (name, False)


@pytest.mark.parametrize("is_local", [True, False])
def test_without_a_sign_in_only_this_machine_decides(monkeypatch: pytest.MonkeyPatch, *, is_local: bool) -> None:
    """A console without a sign-in that listens on other addresses writes no decision down."""
    monkeypatch.setenv(SIGN_IN_VARIABLE, SignIn(is_local=is_local).to_json())

    assert access.current_reader().decides is is_local


# --- OpenID Connect ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ({"is_logged_in": True, "email": "anna@example.com", "email_verified": True}, "anna@example.com"),
        ({"is_logged_in": True, "email": "anna@example.com"}, ""),
        *(
            ({"is_logged_in": True, "email": "anna@example.com", "email_verified": claimed}, "")
            for claimed in (False, "false", "true", "True", 1, 1.0, 0, None, [], [True], {"value": True})
        ),
        *(
            ({"is_logged_in": True, "email": email, "email_verified": True}, "")
            for email in (None, "", 7, True, ["anna@example.com"], {"value": "anna@example.com"})
        ),
        ({"is_logged_in": "true", "email": "anna@example.com", "email_verified": True}, ""),
        ({"is_logged_in": False}, ""),
        ({"is_logged_in": True}, ""),
    ],
)
def test_the_provider_vouches_for_the_name(monkeypatch: pytest.MonkeyPatch, user: dict[str, object], name: str) -> None:
    """The reader is the e-mail address of the provider's token, when that says `"email_verified": true` as JSON."""

    class _User:
        def to_dict(self) -> dict[str, object]:
            return user

    monkeypatch.setenv(SIGN_IN_VARIABLE, SignIn("oidc", deciders=("anna@example.com",)).to_json())
    monkeypatch.setattr(st, "user", _User())

    assert (access.current_reader().name, access.current_reader().decides) == (name, bool(name))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("client_id", "kept_id"), "lacks client_id"),
        (("0123456789abcdef0123456789abcdef", "short"), "cookie_secret is too short"),
        (("/oauth2callback", "/"), "redirect_uri does not end with '/oauth2callback'"),
        (("[auth]", "[other]"), "has no table [auth]"),
        (("[auth]", "[auth"), "not TOML: "),
    ],
)
def test_wrong_secrets_are_named_and_not_shown(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    """A file without what the login needs is refused by what is missing, and no secret is in the message."""
    (tmp_path / "secrets.toml").write_text(SECRETS.replace(*change))
    with pytest.raises(UsageError) as refused:
        check_secrets(tmp_path / "secrets.toml")

    assert complaint in str(refused.value)
    assert "hidden-in-the-file" not in str(refused.value)


def test_complete_secrets_pass(tmp_path: Path) -> None:
    """A file with all that the login needs is accepted."""
    (tmp_path / "secrets.toml").write_text(SECRETS)
    check_secrets(tmp_path / "secrets.toml")


# --- The command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--auth", "proxy"], "--auth proxy needs --auth-proxy ADDRESS"),
        (["--auth", "oidc"], "--auth oidc needs --auth-secrets FILE"),
        (["--auth-proxy", "10.0.0.1"], "--auth-proxy goes with --auth proxy"),
        (["--auth-header", "X-User"], "--auth-header goes with --auth proxy"),
        (["--decider", "anna"], "--decider goes with --auth oidc or --auth proxy"),
        (["--journal", "j.db"], "--journal goes with --plan"),
        (["--plan", "nowhere/plan.toml"], "there is no directory 'nowhere'"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    empty_store: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    """Options that make no sense together end the command with code 2 and what is missing."""
    code = main(["console", "--store", str(empty_store), "--no-browser", *words])

    assert (code, complaint in capsys.readouterr().err) == (2, True)


def test_a_plan_that_is_none_is_refused_at_the_start(empty_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that the parser refuses ends the command with the parser's own error."""
    plan = empty_store.with_name("plan.toml")
    plan.write_text("[arms]\n")
    code = main(["console", "--store", str(empty_store), "--no-browser", "--plan", str(plan)])

    assert (code, "plan.toml" in capsys.readouterr().err) == (2, True)
