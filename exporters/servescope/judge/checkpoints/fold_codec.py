"""Folded blocks as bytes, the same for the same blocks, and blocks of bytes: for the file that keeps those of a run.

A table in JSON, then the arrays, at the places that it has of them. Whatever fields a fold has are written, by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from servescope.contract.samples import Series
from servescope.cutover.evidence import folding
from servescope.cutover.evidence.folding import ArmArrays, ArmFold, BucketCounts, MeasuredLayer, ReplicaSums

_KINDS: Final[Mapping[str, type]] = {
    each.__name__: each for each in (ArmArrays, ArmFold, ReplicaSums, BucketCounts, MeasuredLayer)
}
_NUMBERS: Final = frozenset({"|u1", "<u2", "<f4", "<f8", "<i8", "|b1"})


@cache
def folding_rules() -> str:
    """The identity of the code that folds: blocks that were folded by other code are folded again."""
    used = {getattr(each, "__module__", "") for each in vars(folding).values()} | {folding.__name__}
    ours = sorted(name for name in used if isinstance(name, str) and name.startswith("servescope."))
    digest = sha256()
    for name in ours:
        digest.update(Path(str(sys.modules[name].__file__)).read_bytes())
    return digest.hexdigest()


def encode(folded: ArmArrays) -> bytes:
    """The blocks as bytes."""
    arrays: list[bytes] = []
    text = json.dumps(_plain(folded, arrays), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    return b"".join((len(text).to_bytes(8, "little"), text, *arrays))


def decode(body: bytes) -> ArmArrays:
    """The blocks that `encode` wrote; raises ValueError for bytes that it did not."""
    try:
        size = int.from_bytes(body[:8], "little")
        found = _made(json.loads(body[8 : 8 + size]), memoryview(body)[8 + size :])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"these are no folded blocks: {error!r}") from error
    arms = [getattr(found, name, None) for name in ("v1", "v2")]
    if not isinstance(found, ArmArrays) or not all(isinstance(each, ArmFold) for each in arms):
        raise ValueError("these are no folded blocks")
    return found


def _plain(value: Any, arrays: list[bytes]) -> Any:
    if isinstance(value, np.ndarray):
        one = value.size > 1 and not any(value.strides)
        begin = sum(map(len, arrays))
        arrays.append(_bytes_of(value.reshape(-1)[:1] if one else value))
        return {"array": [value.dtype.str, list(value.shape), one, begin]}
    if isinstance(value, Series):
        return {"series": [value.name, [list(each) for each in value.labels]]}
    if isinstance(value, MeasuredLayer):
        return {"MeasuredLayer": {name: _plain(each, arrays) for name, each in value._asdict().items()}}
    if is_dataclass(value):
        return {type(value).__name__: {each.name: _plain(getattr(value, each.name), arrays) for each in fields(value)}}
    if isinstance(value, Mapping):
        return {"mapping": {name: _plain(value[name], arrays) for name in sorted(value)}}
    if isinstance(value, frozenset):
        return {"set": [_plain(each, arrays) for each in sorted(value)]}
    if isinstance(value, tuple):
        return [_plain(each, arrays) for each in value]
    return value


def _bytes_of(values: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()


def _made(value: Any, body: memoryview) -> Any:
    if isinstance(value, list):
        return tuple(_made(each, body) for each in value)
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "array":
        return _array(held, body)
    if kind == "series":
        return Series(held[0], tuple((name, label) for name, label in held[1]))
    if kind == "set":
        return frozenset(_made(each, body) for each in held)
    made = {name: _made(each, body) for name, each in held.items()}
    return made if kind == "mapping" else _KINDS[kind](**made)


def _array(held: list[Any], body: memoryview) -> NDArray[Any]:
    kind, shape, one, begin = held
    if kind not in _NUMBERS:
        raise ValueError(f"an array of {kind!r}")
    size = 1 if one else int(np.prod(shape))
    values = np.frombuffer(body, kind, size, begin)
    return np.broadcast_to(values[0], shape) if one else values.reshape(shape)
