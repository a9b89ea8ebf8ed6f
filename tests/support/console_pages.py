"""What a page of the console shows, as a test reads it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from app import selection
from app.data import queries
from servescope.store.embedded import Store
from tests.conftest import ROOT
from tests.support.waiting import deadline_seconds

if TYPE_CHECKING:
    import pytest
    from streamlit.testing.v1 import AppTest


def stop_clock(monkeypatch: pytest.MonkeyPatch, now_ms: int) -> None:
    """Have the pages and the store that they read stand at a time: what is later than now is not believed."""
    monkeypatch.setattr(selection, "now_ms", lambda: now_ms)
    monkeypatch.setattr(queries, "open_store", lambda path: Store(path, read_only=True, now_ms=lambda: now_ms))


def make_view(name: str) -> AppTest:
    """A page of the console that is not yet run."""
    return _make_first().switch_page(f"views/{name}.py")


def _make_first() -> AppTest:
    """The page that is opened without a path, not yet run."""
    from streamlit import config
    from streamlit.components.v2 import manifest_scanner
    from streamlit.testing.v1 import AppTest

    # Each client would read the metadata of every installed package anew, in search of components.
    manifest_scanner.scan_component_manifests = lambda max_workers=None: []
    config.set_option("runner.magicEnabled", False)  # as `servescope console` has it
    return AppTest.from_file(str(ROOT / "app" / "console.py"), default_timeout=deadline_seconds())


def open_view(name: str, **parameters: str) -> AppTest:
    """A page of the console that is opened with a link's parameters, and shows no error."""
    page = make_view(name)
    for key, value in parameters.items():
        page.query_params[key] = value
    page.run()
    assert not page.exception, page.exception[0].message
    return page


def open_first() -> AppTest:
    """The page that is opened without a path."""
    page = _make_first()
    page.run()
    assert not page.exception, page.exception[0].message
    return page


def html(page: AppTest) -> str:
    """All tables and tiles of a page, in which nothing reads NaN, None or an infinity, though much may be absent."""
    text = "\n".join(element.proto.body for element in page.get("html"))
    assert not {"nan", "None", "inf"} & set(re.findall(r"[\w.]+", re.sub(r"<[^>]*>", " ", text))), text
    return text


def read(text: str) -> str:
    """What a reader reads of a text of a page, of which Streamlit is given the Markdown."""
    return re.sub(r"\\([!-/:-@\[-_{-~])", r"\1", text.replace("`", "").replace("&#58;", ":"))


def charts(page: AppTest) -> list[dict[str, Any]]:
    """The specifications of a page's charts."""
    # Streamlit has renamed the element between releases.
    drawn = [*page.get("vega_lite_chart"), *page.get("arrow_vega_lite_chart")]
    return [json.loads(element.proto.spec) for element in drawn]
