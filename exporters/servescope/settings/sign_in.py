"""Who may read a console and who may decide: by nobody's sign-in, by OpenID Connect, or by a proxy in front of it."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from servescope.errors import UsageError
from servescope.settings.tables import parse_document

SignInKind = Literal["none", "oidc", "proxy"]
SIGN_INS: Final[tuple[SignInKind, ...]] = ("none", "oidc", "proxy")
DEFAULT_HEADER: Final = "X-Forwarded-Email"

_OF_OIDC: Final = ("redirect_uri", "cookie_secret")
_OF_PROVIDER: Final = ("client_id", "client_secret", "server_metadata_url")
_LEAST_COOKIE_SECRET: Final = 32
_CALLBACK: Final = "/oauth2callback"


@dataclass(frozen=True, slots=True)
class SignIn:
    """How readers of the console sign in, and who of them may decide.

    `header` has the reader's name in requests of `proxies`, which are addresses or networks, and is believed of these
    peers only. `deciders` are names; without a sign-in whoever reaches the console decides while it `is_local`, which
    is to say that it listens on this machine alone.
    """

    kind: SignInKind = "none"
    header: str = DEFAULT_HEADER
    proxies: tuple[str, ...] = ()
    deciders: tuple[str, ...] = ()
    is_local: bool = True

    def believes(self, peer: str) -> bool:
        """Whether a header is believed that comes from this address."""
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in ipaddress.ip_network(each) for each in self.proxies)

    def may_decide(self, name: str) -> bool:
        """Whether the reader of this name may decide; names are compared as they are, capitals and accents included."""
        return name in self.deciders

    def to_json(self) -> str:
        """All of it as text, for the pages' process; there are no secrets in it."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str) -> SignIn:
        """What `to_json` wrote; without a text the default."""
        values: dict[str, Any] = json.loads(text) if text else {}
        for name in ("proxies", "deciders"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)


def name_by_claims(claims: Mapping[str, object]) -> str:
    """The e-mail address that a provider's token vouches for; "" where it vouches for none."""
    email = claims.get("email")
    # A boolean by OpenID Connect Core, section 5.1: the text "false", which some providers send, is true to Python.
    return email if claims.get("email_verified") is True and isinstance(email, str) else ""


def check_proxies(proxies: Sequence[str]) -> tuple[str, ...]:
    """Addresses and networks in their canonical form; raises UsageError for what is neither."""
    checked = []
    for each in proxies:
        try:
            network = ipaddress.ip_network(each)
        except ValueError as error:
            raise UsageError(
                f"--auth-proxy {each!r} is no address and no network, expected one like '10.0.0.5' or '10.0.0.0/24'"
            ) from error
        if not network.prefixlen:
            raise UsageError(f"--auth-proxy {each!r} is every address: then anybody could send the header")
        checked.append(str(network))
    return tuple(checked)


def check_secrets(path: Path) -> None:
    """Raise UsageError unless a file has the secrets of Streamlit's login; what they are is never shown."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read --auth-secrets {str(path)!r}: {getattr(error, 'strerror', error)}") from error
    # The parser's message quotes nothing of the file, but for a key.
    auth = parse_document(text, f"--auth-secrets {str(path)!r}").get("auth")
    if not isinstance(auth, dict):
        raise UsageError(f"--auth-secrets {str(path)!r} has no table [auth]")
    missing = [key for key in (*_OF_OIDC, *_OF_PROVIDER) if not isinstance(auth.get(key), str) or not auth[key]]
    if missing:
        raise UsageError(f"--auth-secrets {str(path)!r}: [auth] lacks {', '.join(missing)}")
    if len(auth["cookie_secret"]) < _LEAST_COOKIE_SECRET:
        raise UsageError(
            f"--auth-secrets {str(path)!r}: cookie_secret is too short, expected at least {_LEAST_COOKIE_SECRET} "
            "random characters"
        )
    if not auth["redirect_uri"].endswith(_CALLBACK):
        raise UsageError(f"--auth-secrets {str(path)!r}: redirect_uri does not end with {_CALLBACK!r}")
