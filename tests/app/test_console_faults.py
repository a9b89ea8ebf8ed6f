"""The console's page of faults: there when an emulator is, and its switches do what they say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")
pytest.importorskip("aiohttp", reason="the emulator's server needs the extra 'emulator'")

from streamlit.testing.v1 import AppTest

from app.cutovers.fault_words import title_of
from servescope.cli import main
from servescope.emulator.deployment.stack import EmulatedStack
from servescope.emulator.faults.faults import Faults
from servescope.emulator.faults.kinds import KINDS
from servescope.emulator.server import server
from servescope.emulator.server.control import Control
from servescope.emulator.server.control_client import EMULATOR_VARIABLE, ControlClient
from tests import pictures
from tests.app.support.contrast import faint_texts
from tests.app.support.cut_texts import cut_texts
from tests.app.support.other_hosts import list_other_hosts
from tests.conftest import ROOT
from tests.support.console_pages import make_view, read
from tests.support.console_store import write_day
from tests.support.waiting import deadline_seconds

pytestmark = pytest.mark.slow

ENTRY = ROOT / "app" / "console.py"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlClient]:
    """The switches of an emulator that runs."""
    stack = EmulatedStack()
    running = server.start(
        tmp_path_factory.mktemp("emulated"),
        warm_up_seconds=5.0,
        stack=stack,
        add_routes=[Control(Faults(stack)).add_routes],
    )
    yield ControlClient(running.url)
    running.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with figures of the demo's deployments."""
    path = tmp_path_factory.mktemp("store") / "day.db"
    write_day(path, hours=0.2, count=2)
    return path


@pytest.fixture
def page(client: ControlClient, store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AppTest]:
    """The page, not yet run; what a test switched on is off after it."""
    monkeypatch.setenv("SERVESCOPE_STORE", str(store))
    monkeypatch.setenv(EMULATOR_VARIABLE, client.url)
    yield make_view("faults")
    client.switch_all_off()


def shown(page: AppTest) -> str:
    """All text of a page."""
    assert not page.exception, page.exception[0].message
    return "\n".join([element.proto.body for element in page.get("html")] + [text.value for text in page.markdown])


def test_page_has_a_switch_for_every_kind(page: AppTest) -> None:
    """Every kind has a switch that is off, with what it does; what v2 cannot have is disabled."""
    page.run()
    assert "No fault is on" in page.info[0].value
    switches = {toggle.label: toggle for toggle in page.toggle}
    assert list(switches) == [title_of(kind) for kind in KINDS]
    assert not any(switch.value for switch in switches.values())
    assert [name for name, switch in switches.items() if switch.disabled] == [
        title_of("kv-transfer-slow"),
        title_of("kv-transfer-stuck"),
        title_of("kv-transfer-skipped"),
    ]
    assert KINDS["engine-frozen"].summary in shown(page)


def test_switch_turns_a_fault_on_and_off(page: AppTest, client: ControlClient) -> None:
    """A switch has the fault at the intensity typed, in v2; it is named with its truths and figures, and ends."""
    page.run()
    page.number_input(key="intensity_draft-misaligned_chat-v2_").set_value(90.0)
    page.toggle(key="switch_draft-misaligned_chat-v2_").set_value(True).run()
    (active,) = client.read()["active"]
    assert (active["kind"], active["intensity"], active["deployment"]) == ("draft-misaligned", 0.9, "chat-v2")
    assert "Draft no longer fits the model at 90 % in chat-v2" in shown(page)
    assert 'href="alerts?alert=ServescopeSpeculationBelowBreakEven"' in shown(page)
    # In the unit of the value beside it.
    assert "Speculation rate: below 40.0 %" in shown(page)
    assert "shows within 90 s, as means over a minute:" in shown(page)
    assert "now chat-v2" in shown(page)
    assert page.toggle(key="switch_draft-misaligned_chat-v2_").value

    page.button(key=f"off_{active['id']}").click().run()
    assert client.read()["active"] == []
    assert not page.toggle(key="switch_draft-misaligned_chat-v2_").value
    assert "No fault is on" in page.info[0].value


def test_place_decides_what_is_switched(page: AppTest, client: ControlClient) -> None:
    """With a replica chosen the fault is in that one; of traffic it is the whole stack's whatever is chosen."""
    page.query_params["place"], page.query_params["replica"] = "chat-v1", "engine-1"
    page.run()
    page.toggle(key="switch_engine-frozen_chat-v1_engine-1").set_value(True).run()
    page.toggle(key="switch_traffic-surge__").set_value(True).run()
    assert [(each["kind"], each["deployment"], each["replica"]) for each in client.read()["active"]] == [
        ("engine-frozen", "chat-v1", "engine-1"),
        ("traffic-surge", None, None),
    ]
    # A router is a whole deployment's, and v1 has none that hears events.
    assert page.toggle(key="switch_router-deaf__").disabled


def test_fault_switched_on_elsewhere_is_shown(page: AppTest, client: ControlClient) -> None:
    """What the command line switched on is on here as well, with its switch."""
    client.switch_on("error-burst", 0.4, deployment="chat-v2")
    page.run()
    assert page.toggle(key="switch_error-burst_chat-v2_").value
    page.toggle(key="switch_error-burst_chat-v2_").set_value(False).run()
    assert client.read()["active"] == []


def test_emulator_that_went_away_is_said(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an emulator at its address the page says so, in place of a traceback."""
    monkeypatch.setenv(EMULATOR_VARIABLE, "http://127.0.0.1:9")
    page.run()
    assert not page.exception
    assert "cannot ask the emulator at http://127.0.0.1:9" in read(page.error[0].value)


def test_console_refuses_an_address_that_is_none(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    """`--emulator` with something else than a URL ends with code 2 and the value."""
    code = main(["console", "--store", str(store), "--emulator", "here", "--no-browser"])
    assert (code, "emulator 'here' is no address" in capsys.readouterr().err) == (2, True)


@pytest.mark.proof
def test_page_is_whole_in_a_browser(client: ControlClient, store: Path, chromium: Path) -> None:
    """Wide and narrow nothing sticks out sideways, every text has contrast, and what is on is named at the top."""
    pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
    client.switch_on("draft-misaligned", 0.9, deployment="chat-v2")
    errors: list[str] = []
    with pictures.serve_console(store, "--emulator", client.url) as address, pictures.open_browser(chromium) as browser:
        page = pictures.open_page(browser, "light", pictures.WIDE)
        page.on("pageerror", lambda error: errors.append(str(error)))
        elsewhere = list_other_hosts(page, address)
        page.goto(f"{address}/faults", wait_until="commit")
        page.locator(".scope.fault").first.wait_for()
        for size in (pictures.WIDE, pictures.NARROW):
            pictures.check_width(page, size)
        assert cut_texts(page) == []
        assert elsewhere == []
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            pictures.settle(page)
            assert faint_texts(page) == [], theme
        shown = page.locator("[data-testid=stMain]").inner_text()
        page.context.close()
    client.switch_all_off()
    assert errors == []
    assert shown.startswith("Faults")
    assert "Draft no longer fits the model at 90 % in chat-v2" in shown
    assert not {"NaN", "nan", "undefined", "Traceback"} & set(shown.split())


def test_page_is_not_there_without_an_emulator(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A console on a real platform has no page of faults."""
    monkeypatch.setenv("SERVESCOPE_STORE", str(store))
    monkeypatch.delenv(EMULATOR_VARIABLE, raising=False)
    page = AppTest.from_file(str(ENTRY), default_timeout=deadline_seconds()).run()
    assert not page.exception
    with pytest.raises(ValueError, match=r"faults\.py"):
        page.switch_page("views/faults.py")
