"""Addresses of targets, and patterns of them: what each matches, which have targets in common, and what is near."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.settings.addresses import read_address, read_pattern
from servescope.settings.values import is_loopback


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
        "", "[fe80::1%eth0]:80", "10.0.0.0/8", "10.0.0.1/8:80", "10.0.0.0/33:80", "a:90-80", "a:0", "a:80-", "a b:80",
        "http://a:80",
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """Host bits behind a network too: they are a mistake."""
    with pytest.raises(ValueError, match=r"is not HOST:PORT|has host bits set|does not appear to be"):
        read_pattern(pattern)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("10.0.0.0/8:8000", "10.1.0.0/16:8000", True),
        ("10.0.0.0/8:8000", "10.1.0.0/16:8001", False),
        ("10.0.0.0/8:8000-8010", "10.0.0.7:8010-9000", True),
        ("10.0.0.0/9:8000", "10.128.0.0/9:8000", False),
        ("10.0.0.0/8:*", "[fd00::/8]:*", False),
        ("0.0.0.0/0:*", "[::/0]:*", False),
        ("chat-0.svc:8000", "chat-0.svc:8000", True),
        ("chat-*.svc:8000", "*-0.svc:8000", True),
        ("chat-*.svc:8000", "search-*.svc:8000", False),
        ("*:8000", "a.b.c:8000", True),
        # A name may lead to the address; that is another check.
        ("*:8000", "0.0.0.0/0:8000", False),
    ],
)
def test_patterns_that_allow_a_target_in_common_overlap(one: str, other: str, overlap: bool) -> None:
    """By hosts and by ports, whichever is compared with which."""
    first, second = read_pattern(one), read_pattern(other)
    assert (first.overlaps(second), second.overlaps(first)) == (overlap, overlap)


_NAMES = st.text("ab*", min_size=1, max_size=5)


@given(one=_NAMES, other=_NAMES, name=st.text("ab", min_size=1, max_size=6))
def test_names_that_both_patterns_match_make_them_overlap(one: str, other: str, name: str) -> None:
    """However many `*` they have."""
    if fnmatchcase(name, one) and fnmatchcase(name, other):
        assert read_pattern(f"{one}:1").overlaps(read_pattern(f"{other}:1"))


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("[::1]", True), ("::ffff:127.0.0.1", True),
        ("localhost", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("::ffff:10.0.0.1", False),
        ("", False), ("localhost.example", False), ("fe80::1%eth0", False), ("127.0.0.1%x", False),
    ],
)  # fmt: skip
def test_loopback_is_distinguished_from_other_addresses(host: str, is_here: bool) -> None:
    """By address; a name that is not localhost may be anywhere."""
    assert is_loopback(host) is is_here
