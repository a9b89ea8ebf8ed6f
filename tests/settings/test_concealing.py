"""Secrets that a server sends back: none is shown, however it is written, and texts without one stay readable."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.settings.access import Access, AccessError, Proxy
from servescope.settings.concealing import MOST_CHARACTERS, conceal
from tests.support.drawing import examples
from tests.support.echoes import CASES, SPELLINGS, sent_back

PRINTABLE = "".join(map(chr, range(33, 127)))
SECRETS = st.one_of(
    st.text("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", min_size=4, max_size=60),
    st.text(PRINTABLE, min_size=4, max_size=60),
    st.text(PRINTABLE + " ", min_size=6, max_size=60)
    .map(str.strip)
    .filter(lambda each: len(each.replace(" ", "")) > 3),
)
TEXTS = ("{}", "not known: '{}'", 'x "{}" y', "<p>{}</p>", "key={}&more=1", "({}):")


@settings(max_examples=examples(150), deadline=None)
@given(SECRETS, st.sampled_from(sorted(SPELLINGS)), st.sampled_from(CASES), st.sampled_from(TEXTS))
def test_no_spelling_of_a_token_is_shown(secret: str, spelling: str, case: Callable[[str], str], text: str) -> None:
    """Whatever the encoding, the case and the words around it."""
    spelled = case(SPELLINGS[spelling](secret))

    shown = conceal(text.format(spelled), [f"Bearer {secret}"])

    assert "[secret]" in shown
    assert not sent_back(spelled, shown)
    assert not sent_back(secret, shown)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.text(PRINTABLE.replace(":", ""), min_size=1, max_size=9), SECRETS, st.sampled_from(sorted(SPELLINGS)),
    st.sampled_from(CASES),
)  # fmt: skip
def test_no_spelling_of_a_password_is_shown(user: str, secret: str, spelling: str, case: Callable[[str], str]) -> None:
    """Of basic authentication: the password, the pair as it was decoded, and the header."""
    header = f"Basic {base64.b64encode(f'{user}:{secret}'.encode()).decode()}"
    for each in (secret, f"{user}:{secret}", header, header.removeprefix("Basic ")):
        spelled = case(SPELLINGS[spelling](each))
        assert not sent_back(spelled, conceal(f"no user {spelled}!", [header]))


@settings(max_examples=examples(100), deadline=None)
@given(SECRETS, st.binary(max_size=20), st.binary(max_size=20), st.booleans())
def test_base64_of_more_than_the_secret_does_not_show_it(secret: str, before: bytes, after: bytes, url: bool) -> None:
    """At each of the three alignments nothing of it is left that could be decoded."""
    encode = base64.urlsafe_b64encode if url else base64.b64encode
    shown = conceal(f"got {encode(before + secret.encode() + after).decode()}", [secret])

    left = shown.removeprefix("got ").split("[secret]")
    decoded = [
        base64.urlsafe_b64decode(f"{each.rstrip('=').replace('+', '-').replace('/', '_')[: len(each) // 4 * 4]}")
        for each in left[:1]
    ]
    assert len(left) > 1
    assert not any(secret.encode() in each for each in decoded)
    assert decoded[0] in before + b"\0" * 3 or before.startswith(decoded[0])


@settings(max_examples=examples(100), deadline=None)
@given(
    st.text("abcdefghjkmnpqrstuvwxyz23456789", min_size=8, max_size=40), st.integers(4, 39),
    st.sampled_from(("…", "...")),
    st.sampled_from(("as it is", "percent, small", "unicode escapes", "html hex", "hex")),
)  # fmt: skip
def test_the_beginning_of_a_secret_that_was_cut_is_not_shown(secret: str, size: int, cut: str, spelling: str) -> None:
    """Whoever cut it: within an escape as well. No more than three characters are left."""
    spelled = SPELLINGS[spelling](secret)
    each = len(SPELLINGS[spelling]("a"))
    for end in range(each * size, each * (size + 1)):
        shown = conceal(f"no key {spelled[:end]}{cut}", [f"Bearer {secret}"])
        assert SPELLINGS[spelling](secret[:4]) not in shown


@given(st.text("abcdefghjkmnpqrstuvwxyz23456789", min_size=8, max_size=40), st.data())
def test_no_long_part_of_a_secret_is_shown(secret: str, data: st.DataObject) -> None:
    """Of a part from its middle no more is left than half of it, or seven characters."""
    start = data.draw(st.integers(0, len(secret) - 1))
    part = secret[start : data.draw(st.integers(start, len(secret)))]

    assert (part in conceal(f"?{part}?", [secret])) == (len(part) <= min(7, len(secret) // 2))


@pytest.mark.parametrize("spelling", sorted(SPELLINGS))
def test_a_token_of_a_thousand_characters_is_concealed(spelling: str) -> None:
    """As those that Kubernetes issues: whole, and in parts, of which no more than fifteen characters are left."""
    token = ".".join(hashlib.sha512(str(each).encode()).hexdigest() for each in range(8))
    for start, end in ((0, 1031), (200, 900), (77, 177)):
        shown = conceal(f"no {SPELLINGS[spelling](token[start:end])}!", [f"Bearer {token}"], most=20_000)
        assert not [at for at in range(len(token) - 15) if sent_back(SPELLINGS[spelling](token[at : at + 16]), shown)]


def test_a_long_answer_is_cut_before_it_is_searched() -> None:
    """Its end is cut as any text is, and what is beyond is neither searched nor shown."""
    secret = "s3cr3t-of-acme"

    assert conceal(" " * 1990 + secret, [secret]).strip() == "[secret]…"
    assert len(conceal("%25%32%35&amp;\\\\x5c=3D41" * 5000, [f"Bearer {secret}"])) == MOST_CHARACTERS + 1


@pytest.mark.parametrize(
    "text",
    [
        "HTTP status 401 Unauthorized: the token is wrong", "cannot connect: Connection refused",
        "no such user: an error of the authentication", "expected label=\"value\" at 'x'",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "value", ["Bearer a", "Bearer abc", "Basic YTpi", "Basic dXNlcjp4", "x", "e", "Token the", "Bearer ", "a=b; c=d"]
)
def test_a_short_secret_makes_no_text_unreadable(text: str, value: str) -> None:
    """One of fewer than four characters is concealed with its scheme or its user only."""
    assert conceal(text, [value]) == text
    assert conceal(f"sent '{value.strip()}'", ["Bearer abc", "Basic YTpi", value]).count("[secret]") == (len(value) > 3)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("session=0123456789abcdef; theme=dark-blue", "0123456789abcdef"),
        ('Digest username="joe", response="6629fae49393a053"', "6629fae49393a053"),
        ("Api-Token dt0c01.ST2EY72KQ", "dt0c01.ST2EY72KQ"),
        ('Token token="0123456789"', "0123456789"),
    ],
)  # fmt: skip
def test_parts_of_a_header_are_secrets(value: str, shown: str) -> None:
    """In a cookie, and behind the scheme of any authentication."""
    assert conceal(f"what is {shown}?", [value]) == "what is [secret]?"


def test_a_secret_that_was_exchanged_is_still_concealed(tmp_path: Path) -> None:
    """The answer to what was sent comes later than the new secret, or when there is none any more."""
    token = tmp_path / "token"
    access = Access(bearer_token_file=str(token))
    for secret in ("the-first-secret", "the-other-secret"):
        token.write_text(secret)
        access.request_headers()
    token.unlink()

    with pytest.raises(AccessError):
        access.request_headers()
    assert access.conceal("the-first-secret, THE-OTHER-SECRET") == "[secret], [secret]"
    # As after a reload, which makes another one of the same settings.
    assert Access(bearer_token_file=str(token)).conceal("the-first-secret") == "[secret]"


def test_credentials_of_proxies_are_concealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the configured one, and of one that the environment names."""
    (tmp_path / "password").write_text("pr0xy-password")
    monkeypatch.setenv("https_proxy", "http://joe:0f-the%2Fenvironment@proxy.example:3128")
    access = Access(proxy=Proxy("http://proxy.example", "ann", str(tmp_path / "password")))

    assert access.conceal("ann:pr0xy-password") == "[secret]"
    assert access.conceal("joe 0f-the/environment, 0F-THE%2FENVIRONMENT") == "joe [secret], [secret]"
    monkeypatch.setenv("https_proxy", "http://joe:n0-utf8-\udcff@proxy.example:3128")
    assert access.conceal("ann:pr0xy-password n0-utf8-") == "[secret] [secret]"
