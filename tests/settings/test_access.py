"""Access to servers: hosts that are reached without the proxy, keys of certificates, concealed secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from servescope.settings.access import Access, AccessError, Tls
from servescope.settings.proxies import bypasses_proxy


@pytest.mark.parametrize(
    ("entry", "host", "port", "past"),
    [
        ("*", "a.example", 80, True),
        ("a.example", "a.example", 80, True),
        ("a.example", "b.a.example", 80, True),
        ("a.example", "ba.example", 80, False),
        (".a.example", "b.a.example", 80, True),
        (".a.example", "a.example", 80, False),
        ("*.a.example", "b.a.example", 80, True),
        ("A.Example", "a.example", 80, True),
        ("a.example:8000", "a.example", 8000, True),
        ("a.example:8000", "a.example", 80, False),
        ("10.0.0.7", "10.0.0.7", 80, True),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "11.1.2.3", 80, False),
        ("10.0.0.0/8", "ten.example", 80, False),
        ("10.0.0.0/99", "10.1.2.3", 80, False),
        ("::1", "[::1]", 80, True),
        ("[::1]:80", "[::1]", 80, True),
        ("[::1]:80", "[::1]", 81, False),
        ("fd00::/8", "fd00::7", 80, True),
        ("", "a.example", 80, False),
        (" a.example ", "a.example", 80, True),
    ],
)
def test_no_proxy_names_hosts_networks_and_ports(entry: str, host: str, port: int, *, past: bool) -> None:
    """An entry matches what it names and nothing else."""
    assert bypasses_proxy([entry], host, port) == past


def test_an_encrypted_key_is_refused_without_asking_the_terminal(tmp_path: Path) -> None:
    """A program without a terminal would otherwise wait for ever."""
    issued = trustme.CA().issue_cert("a.example")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert))
    private = load_pem_private_key(issued.private_key_pem.bytes(), None)
    key.write_bytes(
        private.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"secret"))
    )

    with pytest.raises(AccessError, match="the key is encrypted; expected one without a password"):
        Access(tls=Tls(cert_file=str(cert), key_file=str(key))).make_ssl_context()


@pytest.mark.parametrize(
    ("shown", "concealed"),
    [
        ("line 3: 'Authorization: Bearer t0ps3cret-token'", "line 3: 'Authorization: [secret]'"),
        ("x t0ps3cret-token y", "x [secret] y"),
        ("cut 't0ps3cr…", "cut '[secret]…"),
        ("key it\\'s-a-key", "key [secret]"),
        ("t0p is short, and nothing", "t0p is short, and nothing"),
    ],
)
def test_what_a_server_sends_back_is_concealed(monkeypatch: pytest.MonkeyPatch, shown: str, concealed: str) -> None:
    """With its scheme or without it, escaped or cut short."""
    monkeypatch.setenv("TOKEN", "t0ps3cret-token")
    access = Access(headers=(("X-Key", "it's-a-key"), ("X-Short", "and")), bearer_token_env="TOKEN")

    assert access.conceal(shown) == concealed
