"""What a scraper asks for decides what it gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.exposition.negotiation import wants_gzip, wants_openmetrics

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("text/*", False),
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
        ("application/openmetrics-text", True),
        ("APPLICATION/OpenMetrics-Text ; Version=1.0.0", True),
        ('application/openmetrics-text; version="1.0.0"', True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;version=2.0.0, text/plain;q=0.1", False),
        ("text/plain, application/openmetrics-text", True),
        ("text/plain, application/openmetrics-text;q=0.9", False),
        ("application/openmetrics-text;q=0, */*", False),
        ("application/*", True),
        ("application/*;q=0.2, text/plain;q=0.1", True),
        ("image/png", False),
        ("application/openmetrics-text;q=2, text/plain;q=0.1", False),
        ("application/openmetrics-text;q=nan, text/plain", False),
        ('x/y;a="application/openmetrics-text, text/plain"', False),
        (";;;,,,", False),
    ],
)
def test_openmetrics_is_given_to_those_who_prefer_it(accept: str | None, openmetrics: bool) -> None:
    """The narrowest range counts, then its q; who names neither, or has a q that is none, gets text."""
    assert wants_openmetrics(accept) is openmetrics


@pytest.mark.parametrize(
    ("accepted", "gzip"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("GZIP;q=0.5, deflate", True),
        ("x-gzip", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("identity, gzip;q=0.5", False),
        ("gzip;q=1.0, identity; q=0.5", True),
        ("br, deflate", False),
        ("gzip;q=yes", False),
    ],
)
def test_gzip_is_given_to_those_who_accept_it(accepted: str | None, gzip: bool) -> None:
    """By name or by `*`, unless q is 0 or the page as it is is preferred."""
    assert wants_gzip(accepted) is gzip


def test_a_header_is_read_up_to_a_bound() -> None:
    """Finding quotes that do not end takes the square of a header's length: what comes after 1024 characters is cut."""
    assert wants_openmetrics("x/y," * 240 + "application/openmetrics-text")
    assert not wants_openmetrics("x/y," * 256 + "application/openmetrics-text")
    assert not wants_openmetrics('"\\' * 50_000 + ",application/openmetrics-text")
    assert not wants_gzip("br," * 400 + "gzip")


@given(st.text(st.sampled_from('ab*/;,=q01." \\\t'), max_size=60) | st.text(max_size=20))
def test_no_header_is_too_strange(header: str) -> None:
    """Whatever a client sends, it gets one of the pages."""
    assert wants_openmetrics(header) in (True, False)
    assert wants_gzip(header) in (True, False)
