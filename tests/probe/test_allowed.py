"""Which targets may be probed: patterns, and where names may lead."""

from __future__ import annotations

import ipaddress

import pytest

from servescope.probe.allowed import permits, read_address, read_pattern


@pytest.mark.parametrize(
    ("pattern", "target", "allowed"),
    [
        ("10.0.0.0/8:8000", "10.1.2.3:8000", True),
        ("10.0.0.0/8:8000", "10.1.2.3:8001", False),
        ("10.0.0.0/8:8000", "11.1.2.3:8000", False),
        ("10.0.0.7:8000-8002", "10.0.0.7:8002", True),
        ("10.0.0.7:8000-8002", "10.0.0.7:8003", False),
        ("10.0.0.0/8:*", "[::ffff:10.0.0.1]:22", True),
        ("0.0.0.0/0:80", "[::ffff:10.0.0.1]:80", True),
        ("[fd00::/8]:8000", "[fd00::7]:8000", True),
        ("[fd00::/8]:8000", "[fe80::7]:8000", False),
        ("*.engines.svc:8000", "VLLM-0.engines.svc.:8000", True),
        ("*.engines.svc:8000", "engines.svc:8000", False),
        ("*.engines.svc:8000", "a.engines.svc.evil.example:8000", False),
        ("*:8000", "anything.example:8000", True),
        # A name never stands for an address, nor the reverse.
        ("*:8000", "127.0.0.1:8000", False),
        ("0.0.0.0/0:8000", "localhost:8000", False),
    ],
)
def test_a_pattern_allows_its_hosts_and_ports(pattern: str, target: str, allowed: bool) -> None:
    """Addresses by networks, names by their labels."""
    assert read_pattern(pattern).matches(read_address(target)) is allowed


@pytest.mark.parametrize(
    "target",
    [
        "", "10.0.0.7", "10.0.0.7:", ":8000", "10.0.0.7:0", "10.0.0.7:65536", "10.0.0.7:80x", "10.0.0.7:8000/metrics",
        "http://10.0.0.7:8000", "user@10.0.0.7:8000", "a b:8000", "*.svc:8000", "fd00::7:8000", "[10.0.0.7:8000",
        "a\r\nHost:8000", "a%00.svc:8000", "ⅰ.svc:8000", "-a.svc:8000", "10.0.0.7#:8000",
        # The system would take these for addresses: 127.0.0.1 all of them.
        "127.1:8000", "2130706433:8000", "0x7f000001:8000", "0x7f.0.0.1:8000", "017700000001:8000", "127.0.0.01:8000",
        # A zone is any text, so that one target would have any number of names.
        "[fe80::1%eth0]:8000", "[fd00::7%a b\n]:8000",
    ],
)  # fmt: skip
def test_what_is_no_host_and_port_is_no_target(target: str) -> None:
    """Neither URLs, nor other spellings of addresses, nor anything that could end up in a request's head."""
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        read_address(target)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "[fe80::1%eth0]:80",
        "10.0.0.0/8",
        "10.0.0.1/8:80",
        "10.0.0.0/33:80",
        "a:90-80",
        "a:0",
        "a:80-",
        "a b:80",
        "http://a:80",
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """Host bits behind a network too: they are a mistake."""
    with pytest.raises(ValueError, match=r"is not HOST:PORT|has host bits set|does not appear to be"):
        read_pattern(pattern)


@pytest.mark.parametrize(
    ("host", "address", "allowed"),
    [
        ("vllm.svc", "10.0.0.7", True),
        ("vllm.svc", "203.0.113.7", True),
        ("vllm.svc", "127.0.0.1", False),
        ("vllm.svc", "::ffff:127.0.0.1", False),
        ("vllm.svc", "169.254.169.254", False),
        ("vllm.svc", "100.100.100.200", False),
        ("vllm.svc", "168.63.129.16", False),
        ("vllm.svc", "fd00:ec2::254", False),
        ("vllm.svc", "fd20:ce::254", False),
        ("vllm.svc", "fd00:ec2::7", True),
        ("vllm.svc", "fe80::1%eth0", False),
        ("vllm.svc", "0.0.0.0", False),
        ("vllm.svc", "224.0.0.1", False),
        ("localhost", "127.0.0.1", True),
        ("localhost", "::1", True),
        ("localhost", "10.0.0.7", False),
    ],
)
def test_a_name_leads_to_no_special_address(host: str, address: str, allowed: bool) -> None:
    """Only `localhost` to this machine, and nothing to a cloud's metadata."""
    assert permits((), host, address) is allowed


def test_networks_say_where_names_may_lead() -> None:
    """To these and no others, special ones included."""
    networks = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("127.0.0.0/8"))
    assert permits(networks, "vllm.svc", "10.0.0.7")
    assert permits(networks, "vllm.svc", "127.0.0.1")
    assert not permits(networks, "vllm.svc", "192.168.0.7")
