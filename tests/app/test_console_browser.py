"""The console in a real browser: every page paints, complete, in light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")
pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")

from tests import pictures
from tests.app.support.contrast import faint_texts
from tests.app.support.cut_texts import cut_texts
from tests.app.support.other_hosts import list_other_hosts
from tests.support.console_store import PLANS, write_day
from tests.support.customer_exports import write_exports

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

_PAGES = sorted(pictures.PAGES, key=lambda name: name != "compare")
"""That with the most charts first."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console on a day of 20 deployments, to which figures are still added, and on as many customers.

    A chart has 73 values of each line: drawing them is most of what these tests cost, and page by page the same.
    """
    folder = tmp_path_factory.mktemp("browser")
    store = folder / "day.db"
    write_day(store, step_seconds=1200.0)
    words = write_exports(folder, [plan.deployment for plan in PLANS])
    with pictures.keep_writing(store), pictures.serve_console(store, *words) as served:
        yield served


@pytest.fixture(scope="module")
def page(browser: Browser) -> Page:
    """One page of the browser, which has Streamlit's frontend from its first address on."""
    return pictures.open_page(browser, "light", pictures.WIDE)


@pytest.mark.parametrize("name", _PAGES)
def test_page_is_whole(address: str, page: Page, name: str) -> None:
    """Wide and light, then on a telephone and dark: nothing sticks out sideways, no chart is blank, no error is shown,
    and no other host is asked for anything; on the telephone no text is cut, and none is over another.

    The first page is asked of a server that has just started: a deep link may be its first request.
    """
    errors: list[str] = []
    elsewhere = list_other_hosts(page, address)
    page.on("pageerror", lambda error: errors.append(str(error)))
    pictures.load(page, address, name)
    for size, theme in ((pictures.WIDE, "light"), (pictures.NARROW, "dark")):
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        pictures.check_width(page, size)
        blank = page.evaluate(
            "[...document.querySelectorAll('[data-testid=stVegaLiteChart]')]"
            ".filter(chart => !chart.querySelector('canvas, svg')).length"
        )
        assert blank == 0
    assert cut_texts(page) == []
    shown = page.locator("[data-testid=stMain]").inner_text()

    assert errors == []
    assert elsewhere == []
    assert "Error" not in shown.replace("Errors", "")
    assert not {"NaN", "nan", "undefined", "Traceback"} & set(shown.split())
    assert "\\" not in shown, "an escape of what is ordinary"


@pytest.mark.proof
@pytest.mark.parametrize("theme", pictures.THEMES)
@pytest.mark.parametrize("name", pictures.PAGES)
def test_every_text_has_contrast(address: str, browser: Browser, name: str, theme: str) -> None:
    """What WCAG AA asks of text, on every page in both themes."""
    page = pictures.open_page(browser, theme, pictures.WIDE)
    pictures.load(page, address, name)
    pictures.settle(page)
    faint = faint_texts(page)
    page.context.close()

    assert faint == []


def test_a_choice_is_kept_on_the_way_back_and_on_to_a_deployment(address: str, page: Page) -> None:
    """One choice is one step of the browser's history, a step back restores what was selected, and a deployment's name
    leads to its page with the range kept.
    """
    page.set_viewport_size({"width": pictures.WIDE[0], "height": pictures.WIDE[1]})
    pictures.load(page, address, "fleet")
    pictures.settle(page)
    page.get_by_text("6h", exact=True).click()
    page.wait_for_url("**range=6h*")
    page.go_back()
    page.wait_for_url("**range=24h*")
    pictures.settle(page)
    chosen = page.locator(
        "[data-testid=stMain] [aria-checked=true], [data-testid=stMain] [kind=segmented_controlActive]"
    )
    text = chosen.first.inner_text()
    page.locator("a.name", has_text="voice-v2").click()
    page.locator(pictures.CONTENT["deployment"]).first.wait_for()
    link = page.url

    assert text == "24h"
    assert "deployment=voice-v2" in link
    assert "range=24h" in link
