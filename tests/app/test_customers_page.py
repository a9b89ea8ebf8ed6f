"""The page on the export to customers: who is behind, what is missing and withheld, and no secret of anybody."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from streamlit.testing.v1 import AppTest

from app import selection
from app.customers.exports import Destination
from app.selection import TimeRange
from servescope.cli import main
from servescope.console import CURSORS_VARIABLE, CUSTOMERS_VARIABLE
from servescope.contract.identity import Deployment
from servescope.customers.documents.statements import LaneStatus, Statement, remove_customer
from servescope.customers.lanes.cursors import CursorFile, Delivery, Gap, LaneId
from tests.support.answering import Handler, answering
from tests.support.console_pages import html, open_view, read
from tests.support.customer_edges import T0
from tests.support.customer_exports import HOUR_MS, MINUTE_MS, QUERY_TOKEN, TOKEN, write_cursors, write_customers
from tests.support.customer_store import write_store
from tests.support.customers_config import write_customers as write_two_customers

pytestmark = pytest.mark.slow

Open = Callable[..., AppTest]
SPAN = TimeRange(T0 - HOUR_MS, T0, live=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a store with figures at T0, which is now; its configuration and cursors are not there yet."""
    write_store(tmp_path / "store.db")
    monkeypatch.setenv("SERVESCOPE_STORE", str(tmp_path / "store.db"))
    monkeypatch.setenv(CUSTOMERS_VARIABLE, str(tmp_path / "customers.toml"))
    monkeypatch.setenv(CURSORS_VARIABLE, str(tmp_path / "customers.cursors.db"))
    monkeypatch.setattr(selection, "now_ms", lambda: T0)
    return tmp_path


def write_many(folder: Path, count: int = 50) -> None:
    """So many customers, of whom some are late, have a gap, or received nothing."""
    write_customers(folder, [Deployment("llama", f"chat-{place}", "v2") for place in range(count)])
    write_cursors(folder / "customers.cursors.db", count, T0)


def open_page(**parameters: str) -> AppTest:
    """The page, with these parameters in its link."""
    return open_view("customers", **parameters)


def everything(page: AppTest) -> str:
    """All that a page shows."""
    elements = [str(getattr(each, "value", "")) + str(getattr(each, "label", "")) for each in page.main]
    return "\n".join([html(page), *elements])


def listed(page: AppTest) -> list[str]:
    """The customers of the table, in its order."""
    return re.findall(r'class="name"[^>]*>(customer-\d+)<', html(page))


def test_fifty_customers_begin_with_those_that_need_somebody(folder: Path) -> None:
    """Late ones, then one that received nothing, then those with gaps; every customer has its row and its lag."""
    write_many(folder)
    page = open_page(range="1h")
    names, text = listed(page), html(page)

    assert len(names) == 50
    assert names[:6] == ["customer-03", "customer-13", "customer-23", "customer-33", "customer-43", "customer-49"]
    assert names[6:10] == ["customer-05", "customer-14", "customer-32", "customer-41"]
    assert "▲ late" in text
    assert "47 min behind" in text
    assert "15 min in 1 gap" in text
    assert "not accepted for longer than max_age" in text
    assert "503 Service Unavailable: &lt;b&gt;try&lt;/b&gt; later." in text
    assert text.count('<tr class="error">') == 6
    assert text.count("Timeout: no answer within 10 s. It accepted points since.") == 4


def test_a_filter_leaves_what_is_searched(folder: Path) -> None:
    """By words of a name, a host or a problem, and by state; tiles count all of them still."""
    write_many(folder)

    assert listed(open_page(find_customer="503 service")) == [f"customer-{place}3" for place in range(5)]
    assert listed(open_page(find_customer="customer-07.example")) == ["customer-07"]
    assert len(listed(open_page(delivery="trouble"))) == 6
    page = open_page(find_customer="nobody")
    assert page.info[0].value == "No destination matches."
    assert ">50<" in html(page)


def test_no_view_shows_a_secret(folder: Path) -> None:
    """Neither tokens, nor headers, nor the path and query of a URL, which may hold one."""
    write_many(folder, 4)
    for view in ("destinations", "statement", "policy", "offboarding"):
        shown = everything(open_page(export=view, customer="customer-00"))
        assert TOKEN not in shown
        assert QUERY_TOKEN not in shown
        assert "/v1/metrics" not in shown
    assert "https://customer-00.example:4318" in html(open_page())


def test_the_statement_has_hours_and_gaps_in_their_order(folder: Path) -> None:
    """What was received by the hour, with what is missing between; who received nothing reads so."""
    write_many(folder, 7)
    text = html(open_page(export="statement", customer="customer-05", range="3h"))
    rows = re.findall(r'data-label="Received"><div class="upper">(.*?)</div>', text)

    places = [place for place, row in enumerate(rows) if "missing" in row]
    assert len(places) == 1
    assert places[0] > 0
    assert sum("interval" in row for row in rows) == len(rows) - 1 >= 3
    assert ">1,200<" in text
    nothing = open_page(export="statement", customer="customer-06", range="3h")
    assert nothing.info[0].value == "Nothing was delivered of this range."


def test_a_page_that_is_scraped_is_a_destination(folder: Path) -> None:
    """It has its path and how often it may be read, and no token."""
    write_two_customers(folder)
    write_cursors(folder / "customers.cursors.db", 1, T0)
    page = open_page()

    assert "/customers/acme/metrics" in html(page)
    assert "scraped, at most 6 times a minute" in html(page)
    assert "acme-token" not in everything(page)


def test_what_is_withheld_has_its_reason(folder: Path) -> None:
    """The series of the store that the policy exports, and by reason those that it does not."""
    write_two_customers(folder)
    write_cursors(folder / "customers.cursors.db", 1, T0)
    page = open_page(export="policy", customer="globex")
    text = html(page)

    assert re.search(r"<code>requests_total</code></th>.*?>1<", text)
    assert "The metric is not listed under metrics." in text
    assert "The figure is not listed under figures." in text
    assert "queued_requests" in text
    assert "gen_ai.*" in read(page.caption[-1].value)


def test_on_a_prometheus_the_page_withholds_what_the_export_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it needs to know what may claim the customer's deployment."""
    write_two_customers(folder)
    write_cursors(folder / "customers.cursors.db", 1, T0)

    def answer(handler: Handler) -> None:
        kind = "matrix" if "query_range" in handler.path else "vector"
        data: object = {"resultType": kind, "result": []} if "query" in handler.path else []
        handler.reply(200, json.dumps({"status": "success", "data": data}))

    with answering(answer) as url:
        monkeypatch.setenv("SERVESCOPE_PROMETHEUS", json.dumps({"url": url}))
        page = open_page(export="policy", customer="globex")

    assert "of customer 'globex' has no [deployments.claims]" in read(page.error[0].value)


def test_before_the_first_delivery_the_page_says_how_to_begin(folder: Path) -> None:
    """Without a file of cursors there is the command that makes it."""
    write_two_customers(folder)
    page = open_page()

    assert page.info[0].value == "Nothing was delivered to any customer yet."
    assert page.code[0].value.startswith(f"servescope customers run --config {folder / 'customers.toml'}")


def test_a_wrong_configuration_is_named_and_deliveries_are_shown(folder: Path) -> None:
    """An operator in the middle of an edit still sees who is behind."""
    write_many(folder, 12)
    (folder / "customers.toml").write_text('collector = "servescope.toml"\n[[customers]]\nname = "A"\n')
    page = open_page()

    assert "customers[0]: 'deployments' is missing" in read(page.error[0].value)
    assert len(listed(page)) == 11
    assert "not configured" in html(page)


def test_a_past_range_does_not_change_how_a_destination_is(folder: Path) -> None:
    """Lag is that of now, whatever range is looked at; points are those of the range."""
    write_many(folder, 5)
    ends = {"from": "2020-01-01T00:00:00Z", "to": "2020-01-01T01:00:00Z"}
    text = html(open_page(**ends))

    assert "47 min behind" in text
    assert "0 requests" in text


def test_a_damaged_file_of_cursors_is_named(folder: Path) -> None:
    """In place of the content."""
    write_two_customers(folder)
    (folder / "customers.cursors.db").write_bytes(b"no database" * 400)

    assert "customers.cursors.db" in open_page().error[0].value


def test_offboarding_ticks_off_what_is_done(folder: Path) -> None:
    """The command while a customer is there; afterwards what is left, until nothing is."""
    write_two_customers(folder)
    cursors = folder / "customers.cursors.db"
    with CursorFile(cursors, deliver=True) as opened:
        opened.set_problem(LaneId("acme", "push"), T0, "refused")
    before = open_page(export="offboarding", customer="acme")
    assert "servescope customers remove acme" in before.code[0].value
    assert "1 row left" in html(before)
    assert html(before).count("✓ done") == 0

    with CursorFile(cursors) as opened:
        remove_customer(opened, "acme", [folder / "acme.key"], T0)
    after = open_page(export="offboarding", customer="acme")
    assert "**acme** was removed" in after.markdown[0].value
    assert "acme.key" in after.error[0].value
    assert html(after).count("✓ done") == 2
    assert not after.code

    text = (folder / "customers.toml").read_text()
    (folder / "customers.toml").write_text(
        text[: text.index("[[customers]]")] + text[text.rindex('[[customers]]\nname = "globex"') :]
    )
    assert html(open_page(export="offboarding", customer="acme")).count("✓ done") == 3


def test_gaps_that_overlap_count_once() -> None:
    """Two gaps of one time are that time; what is outside of the range is not counted."""
    lane = LaneId("acme", "push")
    gaps = (
        Gap(T0 - 2 * HOUR_MS, T0 - 50 * MINUTE_MS, "age"), Gap(T0 - 55 * MINUTE_MS, T0 - 40 * MINUTE_MS, "refused"),
    )  # fmt: skip
    statement = Statement(lane, SPAN.start_ms, SPAN.end_ms, (Delivery(T0 - HOUR_MS, T0, 60, 10, 0, 60),), gaps)
    one = Destination(LaneStatus(lane, T0, 1.0, 2, None), statement, None, None)

    assert one.gap_seconds == 20 * 60


def test_the_command_refuses_a_wrong_configuration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At the start, with file and key; `--cursors` alone as well."""
    (folder / "customers.toml").write_text('collector = "servescope.toml"\n')
    console = ["console", "--store", str(folder / "store.db"), "--no-browser"]

    assert main([*console, "--customers", str(folder / "customers.toml")]) == 2
    assert "customers.toml: no customers; expected" in capsys.readouterr().err
    assert main([*console, "--cursors", "x.db"]) == 2
    assert "--cursors goes with --customers" in capsys.readouterr().err
