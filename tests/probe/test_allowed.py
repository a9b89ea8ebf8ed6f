"""Where the names of targets may lead."""

from __future__ import annotations

import ipaddress

import pytest

from servescope.probe.allowed import permits


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
