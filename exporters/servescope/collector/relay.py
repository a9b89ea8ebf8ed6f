"""Scrapes on their way from a shard to the collector that gathers them: what a shard keeps to hand, and the pages.

A page is one JSON object:

cursor     where a shard's scrapes stand; the next page is what came after it
gap        whether the cursor that was asked for cannot be followed; the page then has a new one and no scrapes
complete   whether there is no more to be had now
now_ms     the shard's clock
until_ms   up to which time the page tells of the past, when that was asked for
listed     the ids of the targets the shard scrapes now
targets    what is known of each target the page tells of: its status, `coverage` by digest, and its pace
coverages  the coverages by digest
scrapes    [place in `targets`, time in milliseconds, digest of the layout or null when the scrape failed]
values     base64 of the deflated values of all scrapes, float64, bytes grouped by place

A layout, the list of a scrape's series, is asked for once by its digest.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import secrets
import zlib
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servescope.collector.store import TargetStatus
from servescope.errors import ServescopeError
from servescope.identity import IDENTITY_LABELS, Identity
from servescope.samples import Series, Snapshot, make_labels

PAGE_VALUES: Final = 1_000_000
"""A page ends with the scrape that brings it to as many values."""

MOST_LAYOUTS: Final = 50
"""The layouts that one request may ask for."""

_LATEST_MS = 1 << 44


class RelayError(ServescopeError):
    """A page cannot be read, or not be had."""


class Relayed(NamedTuple):
    """One scrape of one target; `snapshot` is None when it failed."""

    target_id: str
    time_ms: int
    snapshot: Snapshot | None


class Told(NamedTuple):
    """A target as its shard knows it: how it is, and how often it is scraped, for how long at most."""

    status: TargetStatus
    scrape_interval_ms: int
    scrape_timeout_ms: int


class RelayLog:
    """The last scrapes of a shard, in the order they came, for those who follow it. Not thread safe.

    Holds at most `most_values` values. A cursor belongs to one run of one shard.
    """

    def __init__(self, most_values: int = 16_000_000) -> None:
        self._most_values = most_values
        self._run = secrets.token_hex(6)
        self._entries: deque[tuple[int, Relayed]] = deque()
        self._held_values = 0
        self._next = 0

    @property
    def cursor(self) -> str:
        """Where the log ends now."""
        return f"{self._run}-{self._next}"

    def append(self, scrape: Relayed, *, now_ms: int, hold_ms: int) -> None:
        """Add a scrape that came now, and let go of what came more than `hold_ms` ago."""
        self._entries.append((now_ms, scrape))
        self._held_values += _size(scrape)
        self._next += 1
        while self._entries[0][0] < now_ms - hold_ms or (
            self._held_values > self._most_values and len(self._entries) > 1
        ):
            self._held_values -= _size(self._entries.popleft()[1])

    def after(self, cursor: str) -> tuple[list[Relayed], str, bool]:
        """What came after a cursor, up to the size of a page; the new cursor; whether that was all.

        Raises RelayError when the cursor is of another run, or older than what is held.
        """
        run, _, number = cursor.partition("-")
        if run != self._run or not (number.isascii() and number.isdigit()) or len(number) > 20:
            raise RelayError(f"unknown cursor {cursor!r}; it is of another run of this shard")
        first = int(number) - (self._next - len(self._entries))
        if not 0 <= first <= len(self._entries):
            raise RelayError(f"cursor {cursor!r} is older than what is held; ask by time")
        taken, size = [], 0
        for place in range(first, len(self._entries)):
            if size >= PAGE_VALUES:
                break
            taken.append(self._entries[place][1])
            size += _size(taken[-1])
        return taken, f"{run}-{int(number) + len(taken)}", first + len(taken) == len(self._entries)

    def between(self, since_ms: int, until_ms: int) -> list[Relayed]:
        """The scrapes held that began after `since_ms` and not after `until_ms`."""
        return [scrape for _, scrape in self._entries if since_ms < scrape.time_ms <= until_ms]


class Layouts:
    """The layouts a shard has told the digests of, the latest ones at least. Not thread safe."""

    def __init__(self, least: int = 256) -> None:
        self._least = least
        self._digests: dict[str, tuple[tuple[Series, ...], str]] = {}
        self._known: OrderedDict[str, tuple[Series, ...]] = OrderedDict()

    def digest(self, target_id: str, series: tuple[Series, ...]) -> str:
        """The digest of a target's layout, by which it can be had for a good while."""
        former = self._digests.get(target_id)
        if former is None or former[0] is not series:
            former = self._digests[target_id] = (series, digest_text(_layout_text(series)))
        digest = former[1]
        self._known[digest] = series
        self._known.move_to_end(digest)
        while len(self._known) > max(self._least, 3 * len(self._digests)):
            self._known.popitem(last=False)
        return digest

    def forget_others(self, target_ids: Iterable[str]) -> None:
        """Keep what belongs to these targets, and a while what was told of others."""
        kept = set(target_ids)
        self._digests = {name: each for name, each in self._digests.items() if name in kept}

    def find(self, digests: Iterable[str]) -> dict[str, object]:
        """Those of the layouts that are known, as they go over the wire."""
        return {digest: _shape_layout(self._known[digest]) for digest in digests if digest in self._known}


@dataclass(frozen=True, slots=True)
class Page:
    """What a shard answers, read; `scrapes` name their layout by digest, and hold the values of its series."""

    cursor: str
    complete: bool
    now_ms: int
    until_ms: int | None
    gap: bool
    listed: frozenset[str]
    targets: Mapping[str, Told]
    scrapes: Sequence[tuple[str, int, str | None, NDArray[np.float64]]] = field(default=(), repr=False)


def write_page(
    *,
    cursor: str,
    complete: bool,
    now_ms: int,
    listed: Iterable[str],
    targets: Sequence[Told],
    scrapes: Sequence[tuple[Relayed, str | None]],
    until_ms: int | None = None,
    gap: bool = False,
) -> bytes:
    """The text of a page; `scrapes` come with the digests of their layouts, and are of these targets."""
    places = {told.status.target_id: place for place, told in enumerate(targets)}
    coverages: dict[str, object] = {}
    shapes = [_shape_target(told, coverages) for told in targets]
    document = {
        "cursor": cursor,
        "gap": gap,
        "complete": complete,
        "now_ms": now_ms,
        "until_ms": until_ms,
        "listed": sorted(listed),
        "targets": shapes,
        "coverages": coverages,
        "scrapes": [[places[scrape.target_id], scrape.time_ms, digest, _size(scrape)] for scrape, digest in scrapes],
        "values": _pack([scrape.snapshot.values for scrape, _ in scrapes if scrape.snapshot is not None]),
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def read_page(body: bytes) -> Page:
    """The page in a shard's answer; raises RelayError saying what is wrong with it."""
    try:
        document = json.loads(body)
        targets = [_read_target(each, document["coverages"]) for each in document["targets"]]
        until_ms = document["until_ms"]
        return Page(
            cursor=str(document["cursor"]),
            complete=document["complete"] is True,
            now_ms=_time(document["now_ms"]),
            gap=document["gap"] is True,
            until_ms=None if until_ms is None else _time(until_ms),
            listed=frozenset(str(each) for each in document["listed"]),
            targets={told.status.target_id: told for told in targets},
            scrapes=_read_scrapes(document["scrapes"], document["values"], targets),
        )
    except RelayError:
        raise
    except (ServescopeError, LookupError, TypeError, ValueError, AttributeError, RecursionError, zlib.error) as error:
        raise RelayError(f"not a page of scrapes: {type(error).__name__}: {error}") from error


def read_layouts(body: bytes) -> dict[str, tuple[Series, ...]]:
    """The layouts in a shard's answer by digest; raises RelayError, also when one is not what its digest says."""
    try:
        layouts = {str(digest): _read_layout(shape) for digest, shape in json.loads(body)["layouts"].items()}
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RelayError(f"not a list of layouts: {type(error).__name__}: {error}") from error
    for digest, series in layouts.items():
        if digest_text(_layout_text(series)) != digest:
            raise RelayError(f"layout {digest!r} is not what its digest says")
    return layouts


def digest_text(text: str) -> str:
    """The name of a text by its content."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _size(scrape: Relayed) -> int:
    return 0 if scrape.snapshot is None else len(scrape.snapshot.series)


def _time(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < _LATEST_MS:
        raise RelayError(f"{value!r} is no time in milliseconds")
    return value


# --- Targets ----------------------------------------------------------------------------------------------------------

_STATUS_FIELDS = tuple(each.name for each in fields(TargetStatus) if each.name not in ("identity", "coverage"))


def _shape_target(told: Told, coverages: dict[str, object]) -> dict[str, object]:
    """The fields of a target; its coverage, which many have in common, goes to the others."""
    status, interval_ms, timeout_ms = told
    digest = digest_text(json.dumps(status.coverage, separators=(",", ":"), sort_keys=True))
    coverages[digest] = status.coverage
    shape: dict[str, object] = {name: getattr(status, name) for name in _STATUS_FIELDS}
    shape["identity"] = {name: getattr(status.identity, name) for name in IDENTITY_LABELS}
    return {**shape, "coverage": digest, "scrape_interval_ms": interval_ms, "scrape_timeout_ms": timeout_ms}


def _read_target(shape: Mapping[str, Any], coverages: Mapping[str, Any]) -> Told:
    values = {name: shape[name] for name in _STATUS_FIELDS}
    status = TargetStatus(**values, identity=Identity(**shape["identity"]), coverage=dict(coverages[shape["coverage"]]))
    return Told(status, _time(shape["scrape_interval_ms"]), _time(shape["scrape_timeout_ms"]))


# --- Layouts ----------------------------------------------------------------------------------------------------------


def _layout_text(series: tuple[Series, ...]) -> str:
    return json.dumps(series, separators=(",", ":"), ensure_ascii=False)


def _shape_layout(series: tuple[Series, ...]) -> dict[str, object]:
    """The series with the labels that all of them share written once; those are most of the text."""
    counts = Counter(pair for each in series for pair in each.labels)
    shared = {pair for pair, count in counts.items() if count == len(series)}
    rest = [[each.name, [pair for pair in each.labels if pair not in shared]] for each in series]
    return {"shared": sorted(shared), "series": rest}


def _read_layout(shape: Mapping[str, Any]) -> tuple[Series, ...]:
    shared = [(str(name), str(value)) for name, value in shape["shared"]]
    return tuple(
        Series(str(name), make_labels([*shared, *((str(label), str(value)) for label, value in labels)]))
        for name, labels in shape["series"]
    )


# --- Values -----------------------------------------------------------------------------------------------------------


def _pack(arrays: Sequence[NDArray[np.float64]]) -> str:
    """Neighbours XORed, which zeroes repeated buckets; bytes grouped by place; deflated."""
    values = np.concatenate([np.zeros(0), *arrays]).astype("<f8", copy=False)
    bits = values.view("<u8").copy()
    bits[1:] ^= values.view("<u8")[:-1]
    planes = bits.view(np.uint8).reshape(len(values), 8).T.tobytes()
    return base64.b64encode(zlib.compress(planes, 1)).decode()


def _unpack(text: str, count: int) -> NDArray[np.float64]:
    try:
        packed = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise RelayError(f"its values are not base64: {error}") from error
    # One byte more than is due tells that there is too much, whatever the text would expand to.
    planes = zlib.decompressobj().decompress(packed, 8 * count + 1)
    if len(planes) != 8 * count:
        raise RelayError(f"its values are not the {count} its scrapes need")
    bits = np.ascontiguousarray(np.frombuffer(planes, dtype=np.uint8).reshape(8, count).T).view("<u8").ravel()
    values = np.bitwise_xor.accumulate(bits).view("<f8").astype(np.float64, copy=False)
    if not np.isfinite(values).all():
        raise RelayError("a value is not finite; absent values are left out instead")
    return values


def _read_scrapes(
    scrapes: Sequence[Sequence[Any]], text: str, targets: Sequence[Told]
) -> list[tuple[str, int, str | None, NDArray[np.float64]]]:
    sizes = [int(size) for *_, size in scrapes]
    if any(size < 0 for size in sizes) or sum(sizes) > 64 * PAGE_VALUES:
        raise RelayError(f"it has {sum(sizes)} values")
    values = _unpack(text, sum(sizes))
    parts = np.split(values, np.cumsum(sizes)[:-1]) if scrapes else []
    return [
        (targets[place].status.target_id, _time(time_ms), None if digest is None else str(digest), part)
        for (place, time_ms, digest, _), part in zip(scrapes, parts, strict=True)
    ]
