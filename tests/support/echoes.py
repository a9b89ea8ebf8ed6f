"""Servers that send back what they were sent, in every way that one may write it."""

from __future__ import annotations

import base64
import html
import json
import quopri
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape

from servescope.settings.access import Access

PASSWORD, TOKEN = "hunter2/of-Acme+~", "t0ps3cret-Token_of.acme=="
PAIR = f"joe:{PASSWORD}"
BASIC, BEARER = f"Basic {base64.b64encode(PAIR.encode()).decode()}", f"Bearer {TOKEN}"
"""What is sent as `Authorization`."""
SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "as it is": str,
    "percent": lambda text: quote(text, safe=""),
    "percent, small": lambda text: "".join(f"%{ord(each):02x}" for each in text),
    "form": quote_plus,
    "percent twice": lambda text: quote(quote(text, safe=""), safe=""),
    "json": lambda text: json.dumps(text)[1:-1],
    "json of json": lambda text: json.dumps(json.dumps(text))[1:-1],
    "json with slashes": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "unicode escapes": lambda text: "".join(f"\\u{ord(each):04x}" for each in text),
    "python": repr,
    "octal": lambda text: "".join(f"\\{ord(each):03o}" for each in text),
    "html": html.escape,
    "xml": escape,
    "html numbers": lambda text: "".join(f"&#{ord(each)};" for each in text),
    "html hex": lambda text: "".join(f"&#x{ord(each):x};" for each in text),
    "quoted-printable": lambda text: quopri.encodestring(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "hex with colons": lambda text: text.encode().hex(":"),
    "hex of Go": lambda text: ", ".join(f"0x{each:02x}" for each in text.encode()),
    "bytes of Go": lambda text: str(list(text.encode())).replace(",", ""),
    "bytes of Rust": lambda text: str(list(text.encode())),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 without padding": lambda text: base64.b64encode(text.encode()).decode().rstrip("="),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "base64 in a URL": lambda text: quote(base64.b64encode(text.encode()).decode(), safe=""),
    "base64 of a pair": lambda text: base64.b64encode(f"me:{text}".encode()).decode(),
    "base64 of base64": lambda text: base64.b64encode(base64.b64encode(f"me:{text}".encode())).decode(),
    "mime": lambda text: "\n".join(textwrap.wrap(base64.b64encode(f"joe:{text}, and more".encode()).decode(), 19)),
    "split": lambda text: "\r\n\t".join(textwrap.wrap(text, 5, break_on_hyphens=False)),
    "json of html": lambda text: json.dumps(html.escape(text)),
    "base64 of json": lambda text: base64.b64encode(json.dumps({"x": text}).encode()).decode(),
}
"""How a text may be written, by name."""
CASES: tuple[Callable[[str], str], ...] = (str, str.upper, str.lower, str.swapcase)
"""What becomes of the case of what is sent back."""


def sent_back(spelled: str, shown: str) -> bool:
    """Whether what was sent back can be read, in any case, in what is shown."""
    left = shown.replace("[secret]", "\0")
    return "".join(spelled.casefold().split()) in "".join(left.casefold().split())


def echoes(credentials: str) -> Iterator[str]:
    """Every spelling of the value of an `Authorization`, with and without its scheme, and of the pair that is in it."""
    scheme, _, rest = credentials.partition(" ")
    texts = [credentials, rest, *([base64.b64decode(rest).decode()] if scheme == "Basic" else [])]
    yield from (case(spell(text)) for text in texts for spell in SPELLINGS.values() for case in (str, str.upper))


def shows(shown: str, credentials: str) -> list[str]:
    """The spellings that can be read in what is shown, and the parts of the secret."""
    secret = credentials.partition(" ")[2]
    secret = base64.b64decode(secret).decode().partition(":")[2] if credentials.startswith("Basic ") else secret
    parts = [secret[at : at + 8] for at in range(len(secret) - 7)]
    return [each for each in (*echoes(credentials), *parts) if sent_back(each, shown)]


def write_accesses(folder: Path) -> dict[str, Access]:
    """How each of what is sent as `Authorization` is configured, with its file in the folder."""
    (folder / "password").write_text(PASSWORD)
    (folder / "token").write_text(TOKEN)
    return {
        BASIC: Access(basic_auth_username="joe", basic_auth_password_file="password", directory=str(folder)),
        BEARER: Access(bearer_token_file="token", directory=str(folder)),
    }
