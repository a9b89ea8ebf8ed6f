"""What a page of the console asks of another host than the console's: nothing, or it is refused and named."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


def refuse_other_hosts(page: Page, address: str) -> list[str]:
    """Refuse from now on what the page asks of others than `address`; gives the list that fills with it.

    What the console's own policy kept the browser from asking is in it, too, as the browser reports it.
    """
    asked: list[str] = []

    def decide(route: Route) -> None:
        if route.request.url.startswith(f"{address}/"):
            route.continue_()
        else:
            asked.append(route.request.url)
            route.abort()

    page.route("**/*", decide)
    page.on("console", lambda said: asked.append(said.text) if "Content Security Policy" in said.text else None)
    return asked
