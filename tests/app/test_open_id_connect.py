"""Signing in by OpenID Connect, in a browser, at a provider that follows the protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")
pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")

from servescope.store.embedded import Store
from tests import pictures
from tests.support.programs import answers, program
from tests.support.prometheus import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.proof

ANNA: dict[str, object] = {"sub": "anna", "email": "anna@example.com", "email_verified": True}
BERT: dict[str, object] = {"sub": "bert", "email": "bert@example.com", "email_verified": True}
# Each claims Anna's address, and the provider vouches for none of them.
PRETENDERS: list[dict[str, object]] = [
    {"sub": "eve", "email": "anna@example.com", "email_verified": False},
    {"sub": "mallory", "email": "anna@example.com", "email_verified": "false"},
    {"sub": "trudy", "email": "anna@example.com"},
]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console for those who sign in at the provider; Anna decides."""
    folder = tmp_path_factory.mktemp("oidc")
    Store(folder / "empty.db").close()
    port, provider_port = free_port(), free_port()
    secrets = folder / "secrets.toml"
    secrets.write_text(
        "[auth]\n"
        f'redirect_uri = "http://localhost:{port}/oauth2callback"\n'
        'cookie_secret = "0123456789abcdef0123456789abcdef"\n'
        'client_id = "console"\nclient_secret = "hidden-in-the-file"\n'
        f'server_metadata_url = "http://localhost:{provider_port}/.well-known/openid-configuration"\n'
    )
    words = (
        "--auth",
        "oidc",
        "--auth-secrets",
        str(secrets),
        "--decider",
        "anna@example.com",
        "--listen",
        f"127.0.0.1:{port}",
    )
    with run_provider(provider_port, folder), pictures.serve_console(folder / "empty.db", *words):
        yield f"http://localhost:{port}"


@contextmanager
def run_provider(port: int, folder: Path) -> Iterator[None]:
    """A provider with these people, on loopback."""
    people = [word for each in (ANNA, BERT, *PRETENDERS) for word in ("--user-claims", json.dumps(each))]
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), *people]
    log = folder / "provider.log"
    with program(command, log) as process:
        known = f"http://localhost:{port}/.well-known/openid-configuration"
        wait_for(lambda: answers(known), "the provider", process=process, log=log)
        yield


def sign_in(browser: Browser, console: str, subject: str) -> Page:
    """The console's first page after signing in as this person."""
    page = pictures.open_page(browser, "light", pictures.WIDE)
    page.goto(console)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/oauth2/authorize**")
    page.locator(f"button[name=sub][value={subject}]").click()
    page.wait_for_url(f"{console}/**")
    return page


def test_nothing_is_read_before_signing_in(browser: Browser, console: str) -> None:
    """Whoever has not signed in sees the button, and no page's content."""
    page = pictures.open_page(browser, "light", pictures.WIDE)
    page.goto(console)
    page.get_by_role("button", name="Sign in").wait_for()
    shown = page.locator("[data-testid=stMain]").inner_text()
    metrics = page.request.get(f"{console}/_stcore/metrics")
    page.context.close()

    assert metrics.status == 401
    assert "This console is for people who have signed in." in shown
    assert "cutover" not in shown.lower()


@pytest.mark.parametrize(("subject", "role"), [("anna", "decider"), ("bert", "viewer")])
def test_the_provider_names_the_reader(browser: Browser, console: str, subject: str, role: str) -> None:
    """A reader is who the provider says, in the role of that name, until they sign out."""
    page = sign_in(browser, console, subject)
    page.get_by_text(f"{subject}@example.com · {role}").wait_for()
    assert page.request.get(f"{console}/_stcore/metrics").status == 200
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/oauth2/end_session**")  # the provider asks whether to sign out there, too
    page.goto(console)
    page.get_by_role("button", name="Sign in").wait_for()
    page.context.close()


@pytest.mark.parametrize("subject", [str(each["sub"]) for each in PRETENDERS])
def test_an_address_that_is_not_verified_is_nobodys(browser: Browser, console: str, subject: str) -> None:
    """An e-mail address that the provider did not verify gives neither the name nor the role of its owner."""
    page = sign_in(browser, console, subject)
    page.get_by_text("names nobody here").wait_for()
    shown = page.locator("[data-testid=stMain]").inner_text()
    metrics = page.request.get(f"{console}/_stcore/metrics")
    page.context.close()

    assert metrics.status == 401

    assert "anna@example.com" not in shown
