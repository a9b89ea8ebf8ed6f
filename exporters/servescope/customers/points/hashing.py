"""The names of replicas as a customer receives them: hashed with its key, so that no list of names reverses them."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final

from servescope.settings.access import AccessError
from servescope.settings.signature import Signature, sign_file

LEAST_KEY_CHARACTERS: Final = 32
_HASH_CHARACTERS: Final = 20  # 80 bits: two of a million replicas have the same one once in two million fleets
_ID_CHARACTERS: Final = 8
_MOST_KNOWN: Final = 10_000


class ReplicaHash:
    """The keys of one customer, read again when their file changes.

    The file has one key to a line. The first is in use; those that were in use before may follow, so that the series
    they named can be ended. Raises AccessError, which never shows a key.
    """

    def __init__(self, path: str, customer: str) -> None:
        self._path, self._customer = path, customer
        self._keys: dict[str, bytes] = {}
        self._as_of: Signature | None = None
        self._known: dict[tuple[str, str], str] = {}
        self.refresh()

    def refresh(self) -> str:
        """Read the file if it changed; returns the id of the key in use, which says nothing of the key."""
        try:
            signature = sign_file(self._path)
        except OSError as error:
            raise AccessError(f"key file {self._path!r} cannot be read: {error.strerror}") from None
        if signature != self._as_of:
            self._keys = _read_keys(self._path)
            self._as_of = signature
            self._known.clear()
        return next(iter(self._keys))

    def has(self, key_id: str) -> bool:
        """Whether the file still has this key."""
        return key_id in self._keys

    def name(self, replica: str, key_id: str) -> str:
        """The hashed name of a replica; equal names of two customers have different hashes."""
        known = self._known.get((replica, key_id))
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            text = f"{self._customer}\0{replica}".encode()
            known = hmac.new(self._keys[key_id], text, hashlib.sha256).hexdigest()[:_HASH_CHARACTERS]
            self._known[replica, key_id] = known
        return known


def _read_keys(path: str) -> dict[str, bytes]:
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise AccessError(f"key file {path!r} cannot be read: {reason}") from None
    if not lines:
        raise AccessError(f"key file {path!r} is empty; expected a key of {LEAST_KEY_CHARACTERS} characters or more")
    if min(map(len, lines)) < LEAST_KEY_CHARACTERS:
        raise AccessError(
            f"key file {path!r} has a key of fewer than {LEAST_KEY_CHARACTERS} characters; "
            f"`openssl rand -hex 32` makes one"
        )
    return {_id_of(line.encode()): line.encode() for line in lines}


def _id_of(key: bytes) -> str:
    return hmac.new(key, b"servescope key id", hashlib.sha256).hexdigest()[:_ID_CHARACTERS]
