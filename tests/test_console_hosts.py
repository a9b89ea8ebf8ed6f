"""The console's protection against DNS rebinding: under which Host it is served, asked by raw requests."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from servescope.cli import main
from servescope.store.embedded import Store
from tests import pictures
from tests.support.console_requests import STREAM, ask

PATHS = ("/", "/fleet", "/_stcore/health", "/_stcore/host-config", "/static/none.js", "/_stcore/upload_file/a/b")
CONFIGURED = "console.example.com"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a console that has one host name configured."""
    store = tmp_path_factory.mktemp("store") / "servescope.db"
    Store(store).close()
    with pictures.serve_console(store, "--allow-host", CONFIGURED) as address:
        yield int(urlsplit(address).port or 0)


@pytest.mark.slow
@pytest.mark.parametrize("path", [*PATHS, STREAM])
def test_foreign_host_is_refused(port: int, path: str) -> None:
    """A page whose name was rebound to this machine reaches neither pages, files and health nor the stream."""
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example:80", ""):
        answer = ask(port, path, host, headers=f"Origin: http://{host}\r\n")
        assert answer.startswith("HTTP/1.1 421 "), (host, answer[:200])
        assert "servescope console --allow-host NAME" in answer


@pytest.mark.slow
@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST", "127.0.0.1", "[::1]", "192.0.2.7", "[2001:db8::7]", CONFIGURED, "Console.Example.COM"],
)
def test_addresses_and_configured_names_are_served(port: int, host: str) -> None:
    """With and without a port, on the page, the health check and the stream."""
    for named in (host, f"{host}:{port}"):
        assert ask(port, "/", named).startswith("HTTP/1.1 200 ")
        assert ask(port, "/_stcore/health", named).startswith("HTTP/1.1 200 ")
        assert ask(port, STREAM, named, headers=f"Origin: http://{named}\r\n").startswith("HTTP/1.1 101 ")


@pytest.mark.slow
def test_second_host_header_changes_nothing(port: int) -> None:
    """A foreign Host beside a good one is refused, in either order."""
    for hosts in (("localhost", "evil.example"), ("evil.example", "localhost")):
        assert ask(port, "/", *hosts).split()[1] in ("400", "421")


@pytest.mark.parametrize("name", ["a b", "http://console", "console:8501", "*", ""])
def test_what_is_no_host_name_is_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """`--allow-host` with a URL, a port or a pattern ends with code 2 and the value."""
    code = main(["console", "--store", __file__, "--no-browser", "--allow-host", name])
    assert (code, f"--allow-host {name!r} is no host name" in capsys.readouterr().err) == (2, True)
