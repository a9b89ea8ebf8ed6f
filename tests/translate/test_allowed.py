"""Where the names of targets may lead."""

from __future__ import annotations

import ipaddress

import pytest

from servescope.translate.allowed import permits


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
        # IPv6 addresses by which tunnels and translators reach IPv4 ones: 6to4, Teredo, NAT64, ISATAP, compatible ones.
        ("vllm.example", "2002:a9fe:a9fe::1", False),
        ("vllm.example", "2002:a83f:8110::1", False),
        ("vllm.example", "2002:7f00:1::1", False),
        ("vllm.example", "2002:a00:7::1", False),
        ("vllm.example", "2002:808:808::1", True),
        ("vllm.example", "2001:0:808:808:0:ffff:5601:5601", False),
        ("vllm.example", "2001:0:a9fe:a9fe:0:ffff:f7f7:f7f7", False),
        ("vllm.example", "2001:0:808:808:0:ffff:f7f7:f7f7", True),
        ("vllm.example", "64:ff9b::169.254.169.254", False),
        ("vllm.example", "64:ff9b::10.0.0.7", False),
        ("vllm.example", "64:ff9b::8.8.8.8", False),
        ("vllm.example", "64:ff9b:1:a9fe:a9:fe00::", False),
        ("vllm.example", "::169.254.169.254", False),
        ("vllm.example", "::7f00:1", False),
        ("vllm.example", "::ffff:0:169.254.169.254", False),
        ("vllm.example", "2a00:1450::5efe:169.254.169.254", False),
        ("vllm.example", "2a00:1450::200:5efe:10.0.0.7", False),
        ("vllm.example", "2a00:1450::7", True),
        # Names of a cluster stay in it.
        ("vllm.svc", "8.8.8.8", False),
        ("vllm.chat.svc.cluster.local", "8.8.8.8", False),
        ("vllm.chat.cluster.local", "8.8.8.8", False),
        ("vllm.local", "8.8.8.8", False),
        ("vllm.corp.internal", "8.8.8.8", False),
        ("vllm.svc", "2a00:1450::7", False),
        ("vllm.svc", "::ffff:8.8.8.8", False),
        ("vllm.svc", "100.64.0.7", True),
        ("vllm.svc", "fd00::7", True),
        ("vllm.svc.example", "8.8.8.8", True),
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
    assert permits((ipaddress.ip_network("8.8.8.0/24"),), "vllm.svc", "8.8.8.8")
    assert permits((ipaddress.ip_network("2002::/16"),), "vllm.svc", "2002:a00:7::1")
    networks = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("127.0.0.0/8"))
    assert permits(networks, "vllm.svc", "10.0.0.7")
    assert permits(networks, "vllm.svc", "127.0.0.1")
    assert not permits(networks, "vllm.svc", "192.168.0.7")
