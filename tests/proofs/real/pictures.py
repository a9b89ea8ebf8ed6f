"""Both engines side by side in the console, as a person sees them: pictures of its pages on the collector's store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlencode

from servescope.errors import ServescopeError
from tests.pictures import THEMES, WIDE, fit_height, open_browser, open_page, serve_console, settle
from tests.proofs.real.claims import Claim
from tests.tools import chromium_binary

FIRST_PAINT_MS = 30_000

# The page, and what is on it once it has painted.
PAGES: Mapping[str, tuple[str, str]] = {
    "fleet": ("?range=15m", "table.fleet tbody tr"),
    "compare": (
        "compare?" + urlencode({"left": "vllm", "right": "dynamo", "range": "15m"}),
        "table.comparison tbody tr",
    ),
    "sources": ("sources", "table.sources tbody tr"),
}


def take_pictures(store: Path, folder: Path, engines: Sequence[str]) -> list[Claim]:
    """Pictures `real-<page>-<theme>.png`; every page names every engine, and none shows an error."""
    chromium = chromium_binary()
    if chromium is None:
        raise ServescopeError("chromium not found on PATH, and none could be installed")
    folder.mkdir(parents=True, exist_ok=True)
    claims = []
    with serve_console(store) as address, open_browser(chromium) as browser:
        for theme in THEMES:
            for name, (path, content) in PAGES.items():
                page = open_page(browser, theme, WIDE)
                page.goto(f"{address}/{path}", wait_until="commit")
                page.locator(content).first.wait_for(timeout=FIRST_PAINT_MS)
                settle(page)
                fit_height(page, WIDE)
                page.screenshot(path=folder / f"real-{name}-{theme}.png")
                text = page.locator("[data-testid=stMain]").inner_text()
                errors = page.locator("[data-testid=stException]").count()
                missing = [engine for engine in engines if engine not in text]
                claims.append(Claim("both", f"errors on {name}, {theme}", float(errors), 0, 0))
                claims.append(
                    Claim("both", f"not named on {name}, {theme}", float(len(missing)), 0, 0, ", ".join(missing))
                )
                page.context.close()
    return claims
