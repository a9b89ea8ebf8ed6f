"""Takes the pictures of the console: `make pictures` writes every page, light and dark, wide and at the width of a
telephone, to docs/pictures/.

The first page and the page of faults are those of `servescope demo`; the plan, its decisions, the self-test and the
alerts show a made cutover that is under way; the others show a made day.

`--first-paint` measures instead how long a browser waits for each page's content.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING

from PIL import Image

from app.cutovers.fault_words import title_of
from tests.support.console_store import PLANS, append_now, write_day, write_increments
from tests.support.customer_exports import write_exports
from tests.support.cutover_store import write_cutover
from tests.support.waiting import deadline_seconds
from tests.tools import chromium_binary

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
PAGES = {
    "fleet": "fleet?range=24h",
    "deployment": "deployment?deployment=summarise-v2&range=24h",
    "compare": "compare?left=chat-v1&right=chat-v2&range=24h",
    "sources": "sources",
    "coverage": "sources?view=coverage&target=127.0.0.1:8180",
    "customers": "customers?range=6h",
    "customer": "customers?export=statement&customer=customer-05&range=6h",
    "customer-policy": "customers?export=policy&customer=customer-05",
}
# Of a store in the middle of a cutover, with its plan and its journal.
CUTOVER_PAGES = {
    "cutover": "",
    "readiness": "readiness",
    "plan": "plan",
    "decisions": "decisions",
    "self-test": "self_test",
    "alerts": "alerts",
}
# What a reader came for: the page has painted once this is there.
CONTENT = {
    "fleet": "table.fleet tbody tr:nth-child(20)",
    "deployment": ".tiles .tile:nth-child(9)",
    "compare": "table.comparison tbody tr:nth-child(20)",
    "sources": "table.sources tbody tr:nth-child(20)",
    "coverage": "table.metrics tbody tr:nth-child(20)",
    "customers": "table.exports tbody tr:nth-child(20)",
    "customer": "table.statement tbody tr:nth-child(5)",
    "customer-policy": "table.received tbody tr",
    # A demo that a busy machine cannot follow yet has no data for a moment.
    "cutover": "[data-testid=stMain]:has(.answer.good) table.judged tbody tr:nth-child(6)",
    "readiness": "table.readiness tbody tr:nth-child(8)",
    "plan": "table.runs tbody tr",
    "decisions": "table.decisions tbody tr:nth-child(2)",
    "self-test": "table.self-test tbody tr",
    "alerts": "table.alarms tbody tr",
}
# What is pasted on the readiness page: a made v1 deployment, with a made password in it.
CONFIGURATION = """\
model_name: chat-70b
resources: {accelerator: "H100:2"}
environment_variables: {DB_PASSWORD: correct-horse-9, LOG_LEVEL: info}
trt_llm:
  build:
    base_model: decoder
    checkpoint_repository: {source: HF, repo: meta-llama/Llama-3.3-70B-Instruct}
    quantization_type: fp8_kv
    max_seq_len: 16384
    tensor_parallel_count: 2
    plugin_configuration: {use_fp8_context_fmha: true}
    # tuned in March
    speculator:
      speculative_decoding_mode: LOOKAHEAD_DECODING
      lookahead_windows_size: 7
      lookahead_ngram_size: 5
      lookahead_verification_set_size: 3
  runtime:
    kv_cache_free_gpu_mem_fraction: 0.85
    enable_chunked_context: true
    request_default_max_tokens: 1024
"""
THEMES = ("light", "dark")
FAULTS_PAGE = "faults?place=chat-v2"
# Until a collector's window of one minute is full, and until the fault shows in it.
QUIET_SECONDS, FAULT_SECONDS = 75.0, 95.0
WIDE, NARROW = (1440, 900), (390, 844)
SIZES = MappingProxyType({"": WIDE, "-narrow": NARROW})
"""The sizes of the pictures, by what their files' names end in."""
TALLEST = 1800
# A browser that talks to nobody but the console, and to who signs its readers in.
FLAGS = (
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def serve_console(
    store: Path, *words: str, variables: Mapping[str, str] = MappingProxyType({}), log: Path | None = None
) -> Iterator[str]:
    """`servescope console` on the store and a free port, with more words and variables; gives its address, ends it.

    With `log` what it writes to its standard error goes there.
    """
    command = [
        sys.executable,
        "-m",
        "servescope.cli",
        "console",
        "--store",
        str(store),
        "--listen",
        "127.0.0.1:0",
        "--no-browser",
    ]
    command += words
    with ExitStack() as opened:
        errors = opened.enter_context(log.open("ab")) if log is not None else None
        process = opened.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **variables})
        )
        try:
            assert process.stdout is not None
            announced = process.stdout.readline()
            address = re.search(r"http://\S+?(?=,)", announced)
            if address is None:
                raise RuntimeError(f"the console did not start: {announced!r}")
            yield address.group()
        finally:
            process.terminate()
            process.wait(timeout=deadline_seconds())


@contextmanager
def run_demo() -> Iterator[str]:
    """`servescope demo`, as a newcomer has it; gives the console's address and ends it."""
    command = [sys.executable, "-m", "servescope.cli", "demo", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(
                (found.group() for line in process.stdout if (found := re.search(r"http://\S+", line))), None
            )
            if address is None:
                raise RuntimeError("the demo did not start")
            yield address
        finally:
            process.terminate()
            process.wait(timeout=deadline_seconds())


@contextmanager
def keep_writing(store: Path) -> Iterator[None]:
    """Go on writing as a collector does, so that the pages show a running platform."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(5.0):
            append_now(store)

    append_now(store)
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


@contextmanager
def open_browser(chromium: Path) -> Iterator[Browser]:
    """A headless Chromium with an empty profile of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser: Browser, theme: str, size: tuple[int, int]) -> Page:
    """An empty tab of this size that prefers this theme."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if theme == "dark" else "light",
        timezone_id="Europe/Berlin",
    )
    context.set_default_timeout(1000 * deadline_seconds())
    return context.new_page()


def load(page: Page, address: str, name: str) -> None:
    """Go to a page of the console and wait for its content; what has to be started for it is started once."""
    page.goto(f"{address}/{(PAGES | CUTOVER_PAGES)[name]}", wait_until="commit")
    if name == "readiness":
        paste(page, CONFIGURATION)
    if name == "self-test":
        _test_once(page)
    page.locator(CONTENT[name]).first.wait_for()


def paste(page: Page, text: str) -> None:
    """Have the readiness page read a configuration."""
    page.get_by_label("Configuration", exact=True).fill(text)
    page.get_by_role("button", name="Read what is pasted").click()


def _test_once(page: Page) -> None:
    """Have the self-test run with the fewest splits, unless the console has its result already."""
    button = page.get_by_role("button", name="Run the self-test")
    button.wait_for()
    settle(page)
    if not page.locator(CONTENT["self-test"]).count():
        page.get_by_label("Splits", exact=False).first.click()
        page.get_by_role("option", name="20", exact=True).click()
        settle(page)
        button.click()


def settle(page: Page) -> None:
    """Wait until the script has run and every chart is drawn."""
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')
    charts = page.locator("[data-testid=stVegaLiteChart]")
    for place in range(charts.count()):
        charts.nth(place).locator("canvas, svg").first.wait_for()
    page.wait_for_timeout(700)


def check_width(page: Page, size: tuple[int, int]) -> None:
    """Show the page in a window of this size: nothing sticks out sideways."""
    page.set_viewport_size({"width": size[0], "height": size[1]})
    settle(page)
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth") <= size[0], size


def fit_height(page: Page, size: tuple[int, int]) -> None:
    """Make the window as high as the page, so that a picture shows all of it."""
    # A picture of a long page shows its beginning.
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": size[0], "height": min(max(int(height), size[1]), TALLEST)})
    settle(page)


def write_small(image: bytes, path: Path) -> None:
    """Write a PNG with 256 colours, a third of its size; none is far from its own, however small what has it."""
    with Image.open(io.BytesIO(image)) as full:
        reduced = full.convert("RGB").quantize(
            256, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE
        )
        reduced.save(path, optimize=True)


def take_pictures(
    address: str,
    browser: Browser,
    folder: Path,
    *,
    names: Iterable[str] = tuple(PAGES),
) -> list[Path]:
    """A picture of every page in each theme and size; whole pages."""
    taken = []
    for theme in THEMES:
        for label, size in SIZES.items():
            for name in names:
                page = open_page(browser, theme, size)
                load(page, address, name)
                taken.append(take_picture(page, size, folder / f"{name}-{theme}{label}.png"))
    return taken


def take_picture(page: Page, size: tuple[int, int], path: Path) -> Path:
    """A picture of all of a page, which is closed then."""
    settle(page)
    fit_height(page, size)
    write_small(page.screenshot(), path)
    page.context.close()
    return path


def take_fault_pictures(address: str, browser: Browser, folder: Path) -> list[Path]:
    """The demo's page of faults, with one switched on by its switch and seen in the figures."""
    page = open_page(browser, "light", WIDE)
    page.goto(f"{address}/{FAULTS_PAGE}", wait_until="commit")
    switch = page.locator("label", has_text=title_of("draft-misaligned"))
    switch.wait_for()
    time.sleep(QUIET_SECONDS)
    switch.click()
    page.locator(".scope.fault").wait_for()
    page.context.close()
    time.sleep(FAULT_SECONDS)
    taken = []
    for theme in THEMES:
        for label, size in SIZES.items():
            page = open_page(browser, theme, size)
            page.goto(f"{address}/{FAULTS_PAGE}", wait_until="commit")
            page.locator(".scope.fault").wait_for()
            taken.append(take_picture(page, size, folder / f"faults-{theme}{label}.png"))
    return taken


# Looks at every frame whether the content is there, and keeps when the frame after it began: that is its paint.
_WATCH = """
window.contentPainted = null;
const look = () => document.querySelector(%s)
    ? requestAnimationFrame(() => { window.contentPainted = performance.now() / 1000; })
    : requestAnimationFrame(look);
requestAnimationFrame(look);
"""


def measure_first_paint(address: str, browser: Browser, *, rounds: int) -> dict[str, list[float]]:
    """Seconds from asking for a page until the browser has painted its content, each time with an empty cache."""
    seconds: dict[str, list[float]] = {name: [] for name in PAGES}
    for _ in range(rounds):
        for name in seconds:
            page = open_page(browser, "light", WIDE)
            page.add_init_script(_WATCH % json.dumps(CONTENT[name]))
            load(page, address, name)
            page.wait_for_function("window.contentPainted !== null")
            seconds[name].append(page.evaluate("window.contentPainted"))
            page.context.close()
    return seconds


def main() -> int:
    """Take the pictures, or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first-paint", action="store_true", help="measure instead of taking pictures")
    parser.add_argument("--rounds", type=int, default=5, help="how often each page is measured (default: 5)")
    parser.add_argument("--folder", type=Path, default=PICTURES, help="where the pictures go")
    parser.add_argument("--store", type=Path, help="an existing store instead of a made day of 20 deployments")
    arguments = parser.parse_args()
    chromium = chromium_binary()
    if chromium is None:
        print("chromium not found on PATH, and none could be installed", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as made:
        store = arguments.store or Path(made) / "day.db"
        if arguments.store is None:
            write_day(store)
            write_increments(store, ("chat-v1", "chat-v2"))
        words = write_exports(Path(made), [plan.deployment for plan in PLANS])
        with keep_writing(store), serve_console(store, *words) as address, open_browser(chromium) as browser:
            if arguments.first_paint:
                for name, seconds in measure_first_paint(address, browser, rounds=arguments.rounds).items():
                    print(
                        f"{name:<11} first {seconds[0]:.2f} s  median {median(seconds):.2f} s  max {max(seconds):.2f} s"
                    )
                return 0
            arguments.folder.mkdir(parents=True, exist_ok=True)
            for path in take_pictures(address, browser, arguments.folder):
                print(path)
        cutover = write_cutover(Path(made) / "cutover")
        with (
            serve_console(cutover.store, *cutover.words(), variables=cutover.clock(time.time())) as address,
            open_browser(chromium) as browser,
        ):
            made_pages = [name for name in CUTOVER_PAGES if name != "cutover"]
            for path in take_pictures(address, browser, arguments.folder, names=made_pages):
                print(path)
        if arguments.store is None:
            with run_demo() as address, open_browser(chromium) as browser:
                for path in take_pictures(address, browser, arguments.folder, names=("cutover",)):
                    print(path)
                for path in take_fault_pictures(address, browser, arguments.folder):
                    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
