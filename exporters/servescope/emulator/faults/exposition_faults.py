"""What is wrong with a page of `/metrics`, done to its text: pure functions from the page to what is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping

from servescope.emulator.effects import ExpositionEffects

# A series, its value, and what comes behind: a time of its own, an exemplar.
_SAMPLE = re.compile(
    rb'(?P<name>[A-Za-z_:][\w:]*)(?P<labels>\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})? (?P<value>[^ #]+)'
    rb"(?P<time> [^ #]+)?(?P<exemplar> # .*)?"
)
_COMMENT = re.compile(rb"# (?P<word>HELP|TYPE|UNIT) (?P<name>[A-Za-z_:][\w:]*)(?P<rest>.*)")
_SUFFIXES = (b"", b"_bucket", b"_sum", b"_count", b"_created")
_OPENMETRICS_END = b"# EOF"


def distort(page: bytes, effects: ExpositionEffects, *, now_seconds: float) -> bytes:
    """The page as it is with names, times and repetitions wrong; the same bytes when none of these are.

    Prometheus text or OpenMetrics. `now_seconds` is the wall clock, to which the offset of the samples' times is added.
    """
    if not effects.renamed and effects.clock_offset_seconds is None and not effects.duplicated:
        return page
    names = _sample_names(effects.renamed)
    time = _spell_time(page, effects.clock_offset_seconds, now_seconds)
    copies = 2 if effects.duplicated else 1
    lines: list[bytes] = []
    for line in page.split(b"\n"):
        sample = _SAMPLE.fullmatch(line)
        if sample is not None:
            lines += [_spell_sample(sample, names, time)] * copies
        else:
            lines.append(_rename_comment(line, names))
    return b"\n".join(lines)


def keep_beginning(page: bytes, kept_share: float) -> bytes:
    """So much of the page as arrives before the connection ends; never all of it unless the share is 1."""
    return page if kept_share >= 1 else page[: min(int(len(page) * kept_share), max(len(page) - 1, 0))]


def _spell_sample(sample: re.Match[bytes], names: Mapping[bytes, bytes], time: bytes | None) -> bytes:
    name = _rename(sample["name"], names)
    shown = (sample["time"] or b"") if time is None else b" " + time
    return name + (sample["labels"] or b"") + b" " + sample["value"] + shown + (sample["exemplar"] or b"")


def _rename_comment(line: bytes, names: Mapping[bytes, bytes]) -> bytes:
    comment = _COMMENT.fullmatch(line)
    if comment is None:
        return line
    return b"# " + comment["word"] + b" " + _rename(comment["name"], names) + comment["rest"]


def _rename(name: bytes, names: Mapping[bytes, bytes]) -> bytes:
    """The new name, behind the engine's prefix where there is one, such as `engine:`."""
    prefix, colon, own = name.rpartition(b":")
    return prefix + colon + names.get(own, own)


def _sample_names(renamed: Mapping[str, str]) -> dict[bytes, bytes]:
    return {old.encode() + suffix: new.encode() + suffix for old, new in renamed.items() for suffix in _SUFFIXES}


def _spell_time(page: bytes, offset_seconds: float | None, now_seconds: float) -> bytes | None:
    """The timestamp of the samples: seconds in OpenMetrics, whole milliseconds in Prometheus text."""
    if offset_seconds is None:
        return None
    time = now_seconds + offset_seconds
    if page.rstrip().endswith(_OPENMETRICS_END):
        return f"{time:.3f}".encode()
    return str(round(time * 1000)).encode()
