"""Takes the pictures of the dashboards: `make pictures` writes every one, light and dark, to docs/pictures/.

Each is drawn by Grafana's own components (`renderer/`) of the committed file and of what a real Prometheus answers over
an emulated hour; that of the monitoring itself, over some minutes in which it runs. No Grafana runs. Fails when a panel
is blank, or when the browser complains.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dashboards.__main__ import GENERATED
from servescope.alerting.rules.links import OF_MONITORING
from tests import tools
from tests.dashboards.support.emulated_hour import END_SECONDS, serving_hour
from tests.dashboards.support.monitoring import running_monitoring
from tests.pictures import PICTURES, THEMES, open_browser, open_page, write_small
from tests.support.boards import NAMES, panels, read_board

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Response

WIDE: Final = (1600, 900)
# A flat line across the narrowest of panels has more.
LEAST_PIXELS: Final = 40
MOST_BYTES: Final = 500_000
EMPTY_HERE: Final = frozenset(
    {
        # Engines are held to the time per output token, which all of the emulated ones report.
        "Inter-token latency: attainment", "Inter-token latency: bad share",
        # Nothing of the kind happens in that hour.
        "Up but not serving", "Autoscaler inactive", "GPU gone",
        # Another program than the emulated ones counts errors of GPUs.
        "GPU errors", "Last GPU error",
        # One collector, which pages nobody, whose lists lose nothing and whose targets it can read.
        "Dropped samples", "Samples dropped",
        "Notifications of the collector", "Notifications", "Phase down", "Notifications fail",
        # And no client of it is refused.
        "API requests refused", "Firing alerts on the monitoring",
        # A collector scrapes, and no agent or translator.
        "Agent down", "Translator down", "Translators", "Probes fail", "Probes refused",
        # Of the customers' backends one does not answer, and the other refuses nothing.
        "Points dropped",
    }
)  # fmt: skip
"""Panels that have nothing to show of what is pictured: they say so, and any other must show something."""

MINUTES: Final = 2
"""How long what watches has run in the pictures of the dashboards about it."""

_RENDERER = Path(__file__).parent / "renderer"
_SECONDS = 60
_BUNDLE = (
    "--bundle", "--jsx=automatic", "--format=iife", "--target=chrome120", "--log-level=warning",
    '--define:process.env.NODE_ENV="production"', "--loader:.ttf=file",
)  # fmt: skip
_FONTS = {"Inter-Regular": "400", "Inter-Medium": "500"}
_NONSENSE = ("NaN", "undefined", "[object")


@dataclass(frozen=True, slots=True)
class Drawn:
    """What became of one panel: how it ended, and what is wrong with that, "" for nothing."""

    board: str
    title: str
    outcome: str
    problem: str = ""


def build_page(modules: Path, folder: Path) -> None:
    """Write the page that shows a dashboard to `folder`, with the dashboards, and the fonts and icons of Grafana."""
    subprocess.run(
        [str(modules / ".bin" / "esbuild"), str(_RENDERER / "page.jsx"), f"--outfile={folder / 'page.js'}", *_BUNDLE],
        env={"NODE_PATH": str(modules), "PATH": str(Path(shutil.which("node") or "node").parent)},
        check=True,
        timeout=_SECONDS,
    )
    shutil.copy(_RENDERER / "index.html", folder)
    shutil.copytree(GENERATED, folder / "boards")
    # Where Grafana's components look for them.
    shutil.copytree(modules / "@grafana" / "ui" / "dist" / "public" / "img", folder / "public" / "build" / "img")
    fonts = folder / "public" / "fonts" / "inter"
    fonts.mkdir(parents=True)
    for name, weight in _FONTS.items():
        shutil.copy(
            modules / "@fontsource" / "inter" / "files" / f"inter-latin-{weight}-normal.woff2", fonts / f"{name}.woff2"
        )


@dataclass(frozen=True, slots=True)
class View:
    """Where a page is served, and what it shows: so many minutes up to `end_seconds`, or as many as the file says."""

    port: int
    end_seconds: int
    minutes: int | None = None

    def address(self, name: str, theme: str, *, opened: bool) -> str:
        """The page of a dashboard, with every row `opened` or as it opens."""
        minutes = "" if self.minutes is None else f"&minutes={self.minutes}"
        rows = "&opened" if opened else ""
        return f"http://127.0.0.1:{self.port}/user/?board={name}&theme={theme}&end={self.end_seconds}{minutes}{rows}"


# A table measures itself before it shows its rows.
_ALL_SHOWN = """
Object.keys(window.panels).filter(id => window.panels[id].state === "drawn").every(
    id => window.drawn[id] !== undefined || document.querySelector(`[data-content="${id}"]`)?.innerText)
"""
_SETTLE_MS = 10_000


def take_picture(view: View, browser: Browser, name: str, theme: str) -> tuple[bytes, list[Drawn], list[str]]:
    """A dashboard as a PNG as it opens, what becomes of all its panels, and what the browser complains of."""
    board = read_board(name)
    wanted, first = panels(board), [panel for panel in board["panels"] if panel["type"] != "row"]
    image, drawn, complaints = _draw(view.address(name, theme, opened=False), browser, theme, name, first)
    if len(wanted) > len(first):
        _, drawn, complained = _draw(view.address(name, theme, opened=True), browser, theme, name, wanted)
        complaints += complained
    return image, drawn, complaints


def _draw(
    address: str, browser: Browser, theme: str, name: str, wanted: Sequence[Mapping[str, Any]]
) -> tuple[bytes, list[Drawn], list[str]]:
    """A page with these panels as a PNG, what became of them, and what the browser complains of."""
    from playwright.sync_api import TimeoutError as NotInTime

    page = open_page(browser, theme, WIDE)
    complaints = _listen(page)
    page.goto(address)
    try:
        page.wait_for_function(f"Object.keys(window.panels).length >= {len(wanted)}", timeout=_SECONDS * 1000)
    except NotInTime:
        raise RuntimeError(f"{name}: fewer than {len(wanted)} panels ended; the browser: {complaints}") from None
    # What is below the window is not laid out.
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": WIDE[0], "height": max(height, WIDE[1])})
    # What never shows anything is listed panel by panel.
    with suppress(NotInTime):
        page.wait_for_function(_ALL_SHOWN, timeout=_SETTLE_MS)
    page.wait_for_timeout(500)
    drawn = [_look_at(page, name, panel) for panel in wanted]
    image = page.screenshot(full_page=True)
    page.context.close()
    return image, drawn, complaints


def _listen(page: Page) -> list[str]:
    """What the browser complains of from now on."""
    complaints: list[str] = []

    def log(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(message.text)

    def look(response: Response) -> None:
        if not response.ok:
            complaints.append(f"{response.status} {response.url}")

    page.on("console", log)
    page.on("response", look)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return complaints


def _look_at(page: Page, name: str, panel: Mapping[str, Any]) -> Drawn:
    found = page.evaluate(
        """id => ({...window.panels[id], pixels: window.drawn[id] ?? 0,
                   shown: document.querySelector(`[data-content="${id}"]`)?.innerText ?? ""})""",
        panel["id"],
    )
    title = panel["title"]
    match found["state"]:
        case "no data":
            declared = panel["fieldConfig"]["defaults"]["noValue"]
            problem = "" if title in EMPTY_HERE and found["text"] == declared else "shows no data, though there is some"
            return Drawn(name, title, found["text"], problem)
        case "drawn" if panel["type"] in ("timeseries", "heatmap"):
            problem = "" if found["pixels"] >= LEAST_PIXELS else "no line and no cell to be seen"
            return Drawn(name, title, f"{found['pixels']} pixels of data", problem or _nonsense(found["shown"]))
        case "drawn":
            problem = "" if any(map(str.isdigit, found["shown"])) else "no figure to be seen"
            return Drawn(name, title, " ".join(found["shown"].split())[:60], problem or _nonsense(found["shown"]))
        case _:
            return Drawn(name, title, "failed", found.get("text", "never ended"))


def _nonsense(text: str) -> str:
    return "; ".join(f"shows {word}" for word in _NONSENSE if word in text)


def picture_path(folder: Path, name: str, theme: str) -> Path:
    """Where the picture of a dashboard is."""
    return folder / f"dashboard-{name}-{theme}.png"


def take_pictures(names: Sequence[str], folder: Path, binaries: Mapping[str, Path]) -> Iterator[str]:
    """Write the pictures of dashboards to `folder`; what is wrong with one comes as a line each."""
    of_hour = [name for name in names if name not in OF_MONITORING]
    of_monitoring = [name for name in names if name in OF_MONITORING]
    with tempfile.TemporaryDirectory() as made, open_browser(binaries["chromium"]) as browser, ExitStack() as running:
        page = Path(made) / "page"
        page.mkdir()
        build_page(binaries["components"], page)
        asset = f"--web.user-assets={page}"
        prometheus, promtool, alertmanager = (binaries[name] for name in ("prometheus", "promtool", "alertmanager"))
        if of_monitoring:
            watching = running.enter_context(
                running_monitoring(prometheus, alertmanager, Path(made) / "monitoring", asset)
            )
            since = time.monotonic()
        if of_hour:
            with serving_hour(prometheus, promtool, Path(made) / "hour", asset) as server:
                yield from _take(View(server.port, END_SECONDS), browser, of_hour, folder)
        if of_monitoring:
            time.sleep(max(60 * (MINUTES + 1) - (time.monotonic() - since), 0))
            yield from _take(View(watching.port, int(time.time()), MINUTES), browser, of_monitoring, folder)


def _take(view: View, browser: Browser, names: Sequence[str], folder: Path) -> Iterator[str]:
    for name, theme in product(names, THEMES):
        image, drawn, complaints = take_picture(view, browser, name, theme)
        path = picture_path(folder, name, theme)
        write_small(image, path)
        print(f"{path}: {len(drawn)} panels, {path.stat().st_size // 1000} kB")
        for each in drawn if theme == THEMES[0] else ():
            print(f"  {each.title}: {each.outcome}")
        problems = [f"{each.title}: {each.problem}" for each in drawn if each.problem]
        if path.stat().st_size >= MOST_BYTES:
            problems.append(f"{path.stat().st_size} bytes, expected less than {MOST_BYTES}")
        yield from (f"{name} ({theme}): {problem}" for problem in (*problems, *complaints))


def main() -> int:
    """Take the pictures; 1 when one of them is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("boards", nargs="*", metavar="BOARD", help=f"which dashboards (default: {', '.join(NAMES)})")
    parser.add_argument("--folder", type=Path, default=PICTURES, help="where the pictures go")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.boards) - set(NAMES))
    if unknown:
        parser.error(f"no dashboard {unknown[0]!r}, known: {', '.join(NAMES)}")
    tools.prepare(tools.COMPONENTS)
    binaries = {
        "prometheus": tools.prometheus_binary(),
        "promtool": tools.promtool_binary(),
        "alertmanager": tools.alertmanager_binary(),
        "chromium": tools.chromium_binary(),
        "components": tools.grafana_components(),
    }
    missing = [name for name, found in binaries.items() if found is None]
    if missing:
        print(f"not here: {', '.join(missing)}; `python -m tests.tools` says why", file=sys.stderr)
        return 1
    arguments.folder.mkdir(parents=True, exist_ok=True)
    there = {name: found for name, found in binaries.items() if found is not None}
    problems = list(take_pictures(arguments.boards or NAMES, arguments.folder, there))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
