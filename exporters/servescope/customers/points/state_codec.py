"""The state of a lane as bytes, for its cursor: numbers bit by bit, and each set of series once."""

from __future__ import annotations

import json
import zlib
from dataclasses import astuple
from typing import Final

import numpy as np

from servescope.contract.identity import Identity
from servescope.contract.samples import Series
from servescope.customers.points.reading import FleetState
from servescope.customers.points.tracks import TargetTrack

_SEPARATOR: Final = b"\n"
_LEVEL: Final = 1


def dump_state(state: FleetState) -> bytes:
    """The state, compressed."""
    layouts: dict[tuple[Series, ...], int] = {}
    targets, arrays = [], []
    for track in state.tracks.values():
        layout = layouts.setdefault(track.series, len(layouts))
        targets.append([astuple(track.identity), layout, track.since_ms, track.scrape_ms])
        arrays += [each.tobytes() for each in (track.values, track.counted, track.present, track.scraped)]
    head = json.dumps(
        {"edge_ms": state.boundary_ms, "layouts": list(layouts), "targets": targets}, separators=(",", ":")
    )
    return zlib.compress(b"".join((head.encode(), _SEPARATOR, *arrays)), _LEVEL)


def load_state(stored: bytes) -> FleetState:
    """The state that `dump_state` wrote; raises ValueError for anything else."""
    try:
        head, _, rest = zlib.decompress(stored).partition(_SEPARATOR)
        known, body = json.loads(head), memoryview(rest)
        layouts = [
            tuple(Series(name, tuple((label, value) for label, value in labels)) for name, labels in layout)
            for layout in known["layouts"]
        ]
        tracks = {}
        for named, layout, since_ms, scrape_ms in known["targets"]:
            size = len(layouts[layout])
            values, counted = body[: 8 * size], body[8 * size : 16 * size]
            present, scraped, body = body[16 * size : 17 * size], body[17 * size : 18 * size], body[18 * size :]
            identity = Identity(*named)
            tracks[identity] = TargetTrack(
                identity,
                layouts[layout],
                np.frombuffer(values, dtype=np.float64),
                np.frombuffer(counted, dtype=np.float64),
                np.frombuffer(present, dtype=np.bool_),
                np.frombuffer(scraped, dtype=np.bool_),
                since_ms,
                scrape_ms,
            )
        return FleetState(known["edge_ms"], tracks)
    except (zlib.error, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"is not a state of a lane: {error}") from error
