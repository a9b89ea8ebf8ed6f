"""What a page of the console asks of another host than the console's: nothing, or it is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def list_other_hosts(page: Page, address: str) -> list[str]:
    """The list that fills with what the page asks of others than `address` from now on.

    What the console's own policy kept the browser from asking is in it, too, as the browser reports it. Nothing is
    routed: the browser finds no other host anyway (`FLAGS` in tests/pictures.py), and with routes it keeps no file.
    """
    asked: list[str] = []
    own = (f"{address}/", "blob:")
    page.on("request", lambda request: None if request.url.startswith(own) else asked.append(request.url))
    page.on("console", lambda said: asked.append(said.text) if "Content Security Policy" in said.text else None)
    return asked
