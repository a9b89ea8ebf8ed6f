"""What a customer scrapes: its own page, in both formats, by its own token and within its own rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import Metric
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from servescope.customers.lanes.listener import PullAccess, make_pull_application
from servescope.customers.lanes.telemetry import CustomersTelemetry
from servescope.customers.points.points import HistogramValue
from servescope.customers.policy.policy import Pull
from servescope.customers.transports.page import CustomerPage
from servescope.exposition.negotiation import OPENMETRICS, TEXT
from servescope.settings.clock import ProgramClock
from tests.customers.support.customer_points import MINUTE, REQUESTS, T0, TTFT, kind_of_each, point, stream
from tests.support.loopback import running

parse_text: Callable[[str], Iterable[Metric]] = text_parser.text_string_to_metric_families
parse_openmetrics: Callable[[str], Iterable[Metric]] = openmetrics_parser.text_string_to_metric_families

EDGE = T0 + MINUTE
TOKENS = {"acme": "token-of-acme", "umbrella": "token-of-umbrella"}


@dataclass(slots=True)
class Served:
    """Two customers' pages as they are served, at a time that is set by hand."""

    pages: dict[str, CustomerPage]
    base: str
    session: aiohttp.ClientSession
    clock: dict[str, float]
    telemetry: CustomersTelemetry
    accesses: dict[str, PullAccess]

    def counted(self, name: str) -> dict[str, float]:
        """A series of the export's own, by the values of its labels."""
        return {
            " ".join(sample.labels.values()): sample.value
            for family in self.telemetry.collect()
            for sample in family.samples
            if sample.name == name
        }

    async def get(self, name: str, token: str | None = None, **headers: str) -> tuple[int, str, dict[str, str]]:
        """Status, text and headers of a page; with the customer's own token unless another is given."""
        shown = {"Authorization": f"Bearer {token or TOKENS[name]}", **headers}
        async with self.session.get(f"{self.base}/customers/{name}/metrics", headers=shown) as response:
            return response.status, await response.text(), dict(response.headers)


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[Served]:
    clock = {"now_ms": float(EDGE), "monotonic": 0.0}
    with ThreadPoolExecutor(1) as executor:
        accesses = {}
        for name, token in TOKENS.items():
            path = tmp_path / name
            path.write_text(f"{token}\n")
            page = CustomerPage(3 * MINUTE, executor, lambda: int(clock["now_ms"]))
            accesses[name] = PullAccess.of(page, Pull(str(path), requests_per_minute=6))
        telemetry = CustomersTelemetry(ProgramClock())
        application = make_pull_application(accesses, telemetry, lambda: clock["monotonic"])
        async with running(application) as base, aiohttp.ClientSession() as session:
            pages = {name: access.page for name, access in accesses.items()}
            yield Served(pages, base, session, clock, telemetry, accesses)


async def test_a_page_of_the_future_is_not_served(tmp_path: Path) -> None:
    """A clock that was ahead was set right: what it shows would be the same until then."""
    async with serving(tmp_path) as served:
        await served.pages["acme"].send(kind_of_each())
        assert (await served.get("acme"))[0] == 200
        served.clock["now_ms"] = EDGE - 4 * MINUTE
        assert (await served.get("acme"))[0] == 503


async def test_the_page_has_the_points_of_the_latest_edge(tmp_path: Path) -> None:
    """In the text format and in OpenMetrics, which have the same samples."""
    expected = {
        ("requests_total", None): 7.0,
        ("busy_seconds_total", None): 1.25,
        ("requests_waiting", None): 3.0,
        ("time_to_first_token_seconds_bucket", "0.1"): 2.0,
        ("time_to_first_token_seconds_bucket", "1.0"): 3.0,
        ("time_to_first_token_seconds_bucket", "+Inf"): 4.0,
        ("time_to_first_token_seconds_sum", None): 4.5,
        ("time_to_first_token_seconds_count", None): 4.0,
    }
    async with serving(tmp_path) as served:
        await served.pages["acme"].send(kind_of_each())
        status, text, headers = await served.get("acme")
        assert (status, headers["Content-Type"]) == (200, TEXT)
        status, openmetrics, headers = await served.get("acme", Accept="application/openmetrics-text")
        assert (status, headers["Content-Type"]) == (200, OPENMETRICS)
        for families in (list(parse_text(text)), list(parse_openmetrics(openmetrics))):
            samples = [sample for family in families for sample in family.samples]
            assert {sample.labels["deployment_id"] for sample in samples} == {"chat"}
            assert {(sample.name, sample.labels.get("le")): sample.value for sample in samples} == expected
        units = {family.name: family.unit for family in parse_openmetrics(openmetrics)}
        assert units["busy_seconds"] == units["time_to_first_token_seconds"] == "seconds"


async def test_a_page_that_ends_answers_nobody_any_more(tmp_path: Path) -> None:
    """Not even whoever had asked before: the connection is aborted."""
    async with serving(tmp_path) as served:
        asked, answered = asyncio.Event(), asyncio.Event()

        async def read(_: str) -> bytes:
            asked.set()
            await answered.wait()
            return b"secret_of_acme 1\n"

        served.pages["acme"].read = read  # type: ignore[assignment, method-assign]
        asking = asyncio.create_task(served.get("acme"))
        await asked.wait()
        served.accesses.pop("acme").close()
        answered.set()
        with suppress(aiohttp.ClientError):  # a client may ask again, and has no access any more
            status, text, _ = await asking
            assert (status, "secret_of_acme" in text) == (401, False)


async def test_the_page_has_what_is_there_now(tmp_path: Path) -> None:
    """Not the point of a reset before the edge, not a stream that ended, and nothing of the edge before."""
    requests = stream(REQUESTS, result="ok")
    ended, gone = stream(REQUESTS, result="error"), stream(REQUESTS, result="gone")
    async with serving(tmp_path) as served:
        page = served.pages["acme"]
        await page.send([point(gone, 9), point(ended, 3), point(requests, 1)])
        edge = EDGE + MINUTE
        await page.send([
            point(requests, 5, at_ms=edge - 30_000),
            point(requests, 2, at_ms=edge, start_ms=edge - 30_000),
            point(ended, None, at_ms=edge),
        ])  # fmt: skip
        _, text, _ = await served.get("acme")
        assert [line for line in text.splitlines() if line[0] != "#"] == [
            'requests_total{deployment_id="chat",result="ok"} 2.0'
        ]


HOSTILE = ('a"b', "line\nbreak", "back\\slash", "{}", "é\u2028", '"} 1\nforged 2')


@pytest.mark.parametrize("value", HOSTILE)
async def test_a_label_value_cannot_leave_its_quotes(tmp_path: Path, value: str) -> None:
    """Whatever it is, a scraper reads it back."""
    histogram = HistogramValue((0.1,), (1, 2), 3.0)
    batch = [
        point(stream(REQUESTS, result=value), 1),
        point(stream(TTFT, role=value), histogram),
    ]
    async with serving(tmp_path) as served:
        await served.pages["acme"].send(batch)
        _, text, _ = await served.get("acme")
        _, openmetrics, _ = await served.get("acme", Accept="application/openmetrics-text")
        for families in (list(parse_text(text)), list(parse_openmetrics(openmetrics))):
            samples = [sample for family in families for sample in family.samples]
            assert len(samples) == 5
            assert {sample.labels.get("result", sample.labels.get("role")) for sample in samples} == {value}


async def test_a_page_is_for_the_customer_whose_token_is_shown(tmp_path: Path) -> None:
    """Another's token, none and a name that does not exist get the same answer, which holds nothing of anybody."""
    async with serving(tmp_path) as served:
        for name, page in served.pages.items():
            await page.send([point(stream(REQUESTS, customer=name), 1)])
        answers = [
            await served.get("acme", TOKENS["umbrella"]),
            await served.get("acme", "wrong"),
            await served.get("nobody", TOKENS["acme"]),
            await served.get("acme", Authorization=TOKENS["acme"]),
            await served.get("acme", Authorization=f"Basic {TOKENS['acme']}"),
        ]
        assert {(status, text) for status, text, _ in answers} == {(401, answers[0][1])}
        assert all(headers["WWW-Authenticate"].startswith("Bearer") for _, _, headers in answers)
        assert not any(name in answers[0][1] for name in TOKENS)
        _, text, _ = await served.get("umbrella")
        assert 'customer="umbrella"' in text
        assert "acme" not in text


async def test_requests_are_limited_for_each_customer(tmp_path: Path) -> None:
    """Six within a minute; what is refused for its token counts for nobody, and nobody else waits."""
    async with serving(tmp_path) as served:
        await served.pages["acme"].send(kind_of_each())
        await served.pages["umbrella"].send(kind_of_each())
        for _ in range(9):
            assert (await served.get("acme", "wrong"))[0] == 401
        for second in range(6):
            served.clock["monotonic"] = second
            assert (await served.get("acme"))[0] == 200
        served.clock["monotonic"] = 20.5
        status, text, headers = await served.get("acme")
        assert (status, headers["Retry-After"]) == (429, "40")
        assert "at most 6 requests a minute" in text
        assert (await served.get("umbrella"))[0] == 200
        counted = served.counted("servescope_customer_scrapes_total")
        assert counted == {"acme 200": 6.0, "acme 429": 1.0, "umbrella 200": 1.0}
        assert served.counted("servescope_api_refused_total")["token"] == 9.0
        served.clock["monotonic"] = 60.0
        assert [(await served.get("acme"))[0] for _ in range(2)] == [200, 429]


async def test_an_old_page_is_no_answer(tmp_path: Path) -> None:
    """Before the first edge, and when no edge came for three intervals."""
    async with serving(tmp_path) as served:
        assert (await served.get("acme"))[0] == 503
        await served.pages["acme"].send(kind_of_each())
        served.clock["now_ms"] += 3 * MINUTE
        assert (await served.get("acme"))[0] == 200
        served.clock["now_ms"] += 1
        status, text, headers = await served.get("acme")
        assert (status, headers["Retry-After"]) == (503, "60")
        assert "no current figures" in text


async def test_a_token_may_rotate(tmp_path: Path) -> None:
    """Both are accepted while both are in the file."""
    async with serving(tmp_path) as served:
        await served.pages["acme"].send(kind_of_each())
        file = tmp_path / "acme"
        file.write_text("token-of-acme\nnew-token-of-acme\n")
        both = [(await served.get("acme", token))[0] for token in ("token-of-acme", "new-token-of-acme")]
        file.write_text("new-token-of-acme\n")
        one = [(await served.get("acme", token))[0] for token in ("token-of-acme", "new-token-of-acme")]
        assert (both, one) == ([200, 200], [401, 200])
        file.write_text("new-token-of-acme\ntoken-of-umbrella\n")  # another's, by mistake, opens neither page
        assert [(await served.get(name, "token-of-umbrella"))[0] for name in TOKENS] == [401, 401]
        assert (await served.get("acme", "new-token-of-acme"))[0] == 200
