"""Takes the pictures of the dashboards: `make pictures` writes every one, light and dark, to docs/pictures/.

Each is drawn by Grafana's own components (`renderer/`) of the committed file and of what a real Prometheus answers over
an emulated hour. No Grafana runs. Fails when a panel is blank, or when the browser complains.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PIL import Image

from dashboards.__main__ import GENERATED
from tests import tools
from tests.dashboards.files import NAMES, panels, read_board
from tests.dashboards.hour import END_SECONDS, serving_hour
from tests.pictures import PICTURES, THEMES, open_browser, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Response

WIDE: Final = (1600, 900)
# A flat line across the narrowest of panels has more.
LEAST_PIXELS: Final = 40
MOST_BYTES: Final = 400_000
EMPTY_HERE: Final = frozenset({"CPU", "Memory", "Cache events dropped", "Decisions without the index"})
"""What the emulated hour does not have: these panels say so, and any other must show something."""

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


def take_picture(address: str, browser: Browser, name: str, theme: str) -> tuple[bytes, list[Drawn], list[str]]:
    """A dashboard as a PNG, what became of its panels, and what the browser complains of."""
    page = open_page(browser, theme, WIDE)
    complaints = _listen(page)
    page.goto(f"{address}/user/?board={name}&theme={theme}&end={END_SECONDS}")
    wanted = panels(read_board(name))
    page.wait_for_function(f"Object.keys(window.panels).length >= {len(wanted)}", timeout=_SECONDS * 1000)
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
            problem = "" if title in EMPTY_HERE and found["text"] == declared else "no data in an hour that has some"
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


def write_small(image: bytes, path: Path) -> None:
    """Write a PNG with the 256 colours that come nearest: a quarter of its size, and nobody sees it."""
    with Image.open(io.BytesIO(image)) as full:
        reduced = full.convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        reduced.save(path, optimize=True)


def picture_path(folder: Path, name: str, theme: str) -> Path:
    """Where the picture of a dashboard is."""
    return folder / f"dashboard-{name}-{theme}.png"


def take_pictures(names: Sequence[str], folder: Path, binaries: Mapping[str, Path]) -> Iterator[str]:
    """Write the pictures of dashboards to `folder`; what is wrong with one comes as a line each."""
    with tempfile.TemporaryDirectory() as made:
        page = Path(made) / "page"
        page.mkdir()
        build_page(binaries["components"], page)
        with (
            serving_hour(
                binaries["prometheus"], binaries["promtool"], Path(made) / "hour", f"--web.user-assets={page}"
            ) as server,
            open_browser(binaries["chromium"]) as browser,
        ):
            for name in names:
                for theme in THEMES:
                    image, drawn, complaints = take_picture(f"http://127.0.0.1:{server.port}", browser, name, theme)
                    path = picture_path(folder, name, theme)
                    write_small(image, path)
                    print(f"{path}: {len(drawn)} panels, {path.stat().st_size // 1000} kB")
                    for each in drawn if theme == THEMES[0] else ():
                        print(f"  {each.title}: {each.outcome}")
                    if path.stat().st_size >= MOST_BYTES:
                        yield f"{name} ({theme}): {path.stat().st_size} bytes, expected less than {MOST_BYTES}"
                    yield from (f"{name} ({theme}): {each.title}: {each.problem}" for each in drawn if each.problem)
                    yield from (f"{name} ({theme}): {complaint}" for complaint in complaints)


def main() -> int:
    """Take the pictures; 1 when one of them is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("boards", nargs="*", metavar="BOARD", help=f"which dashboards (default: {', '.join(NAMES)})")
    parser.add_argument("--folder", type=Path, default=PICTURES, help="where the pictures go")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.boards) - set(NAMES))
    if unknown:
        parser.error(f"no dashboard {unknown[0]!r}, there are: {', '.join(NAMES)}")
    tools.prepare(tools.COMPONENTS)
    binaries = {
        "prometheus": tools.prometheus_binary(),
        "promtool": tools.promtool_binary(),
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
