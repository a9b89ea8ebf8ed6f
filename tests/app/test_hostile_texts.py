"""Whatever is in a link or in the store, a page shows it as text: no link, no picture, nothing that cannot be seen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")
pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")

from app.elements.plain import visible
from tests import pictures
from tests.app.support import plain_page
from tests.app.support.hostile_console import HOSTILE, SHOWN, serve_hostile
from tests.conftest import ROOT
from tests.support.programs import answers, program
from tests.support.prometheus import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

# Every parameter of every page.
PARAMETERS = (
    "range", "from", "to", "deployment", "left", "right", "alert", "stack", "sort", "find", "state", "view", "target",
    "customer", "export", "place", "replica",
)  # fmt: skip
# What a page shows of it: of the link, which it cannot follow, and of what it has read.
PAGES = {
    "plan": ["HOSTILE"],
    "decisions": ["HOSTILE"],
    "self_test": [],
    "fleet": ["unknown range", "HOSTILE"],
    "deployment": ["unknown deployment", "HOSTILE"],
    "compare": ["unknown left", "unknown right", "HOSTILE"],
    "alerts": ["unknown alert", "HOSTILE"],
    "sources": ["unknown view", "HOSTILE"],
    "sources?view=coverage": ["unknown target", "HOSTILE"],
    "customers": ["unknown export"],
    "customers?export=policy": ["unknown customer"],
    "readiness": [],
}

# What the frontend would make of it: elements that lead elsewhere or load something, formulas and coloured text.
MADE_OF_A_TEXT = """
[...document.querySelectorAll('a[href], img[src], .katex, [data-testid=stMain] .stMarkdownColoredText')]
    .filter(each => !(each.href || each.src) || !['127.0.0.1', ''].includes(new URL(each.href || each.src).hostname))
    .map(each => each.outerHTML)
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console with hostile texts in all that it reads."""
    with serve_hostile(tmp_path_factory.mktemp("hostile")) as served:
        yield served


@pytest.fixture(scope="module")
def page(browser: Browser) -> Page:
    """One page of the browser, which has Streamlit's frontend from its first address on."""
    return pictures.open_page(browser, "light", pictures.WIDE)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_hostile_texts_as_they_are(address: str, page: Page, name: str) -> None:
    """In the link and in what the page reads: each is read in full, does nothing, and stays in the window."""
    asked: list[str] = []
    page.on("request", note := lambda request: asked.append(request.url))
    given = {parameter: HOSTILE for parameter in PARAMETERS if f"{parameter}=" not in name}
    page.goto(f"{address}/{name}{'&' if '?' in name else '?'}{urlencode(given)}", wait_until="commit")
    pictures.settle(page)
    shown = read(page)
    found = page.evaluate(MADE_OF_A_TEXT)
    page.remove_listener("request", note)

    assert found == []
    assert [url for url in asked if "evil" in url.removeprefix(address).split("?")[0]] == []
    assert not {"\u202e", "\u200b"} & set(shown)
    for words in PAGES[name]:
        assert words.replace("HOSTILE", squeeze(SHOWN)) in shown
    for size in (pictures.NARROW, pictures.WIDE):
        pictures.check_width(page, size)


# What each text has been made of, by its number.
READ_TEXTS = """
Object.fromEntries([...document.querySelectorAll('[class*=st-key-text_]')].map(each => [
    [...each.classList].find(name => name.startsWith('st-key-text_')).slice(12),
    [each.textContent, each.querySelectorAll(
        'a, img, em, del, h1, h2, h3, h4, h5, h6, ul, ol, table, pre, blockquote, hr, sup, .katex, ' +
        '.stMarkdownColoredText'
    ).length],
]))
"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page with drawn texts, by Streamlit alone."""
    port, log = free_port(), tmp_path_factory.mktemp("drawn") / "streamlit.log"
    command = [
        sys.executable, "-m", "streamlit", "run", str(ROOT / "tests" / "support" / "plain_page.py"), "--server.port",
        str(port), "--server.address", "127.0.0.1", "--browser.serverAddress", "127.0.0.1", "--server.headless", "true",
        "--browser.gatherUsageStats", "false", "--server.fileWatcherType", "none",
    ]  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    with program(command, log, environment={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        wait_for(lambda: answers(f"{address}/_stcore/health"), "streamlit", process=process, log=log)
        yield address


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(8))
def test_the_frontend_makes_nothing_of_a_plain_text(drawn: str, browser: Browser, seed: int) -> None:
    """Whatever signs are in it, in whatever order, the frontend of the installed Streamlit shows the text alone."""
    page = pictures.open_page(browser, "light", pictures.WIDE)
    page.goto(f"{drawn}/?seed={seed}", wait_until="commit")
    page.locator(f".st-key-text_{plain_page.COUNT - 1}").wait_for()
    pictures.settle(page)
    shown = page.evaluate(READ_TEXTS)
    page.context.close()

    for number, (place, text) in enumerate(plain_page.draw_texts(seed)):
        wanted = visible(text).replace("\n", r"\n" if place == "code" else "")
        content, made = shown[str(number)]
        assert ("".join(content.removeprefix("⛔").split()), made) == ("".join(wanted.split()), 0), (place, text)


def read(page: Page) -> str:
    """All that the page shows, hints included, without differences of space."""
    script = (
        "[document.body.innerText, ...[...document.querySelectorAll('[data-tip]')].map(e => e.dataset.tip)].join('\\n')"
    )
    return squeeze(page.evaluate(script))


def squeeze(text: str) -> str:
    """A text with single spaces."""
    return " ".join(text.split())
