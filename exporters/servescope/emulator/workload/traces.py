"""Recorded traces of requests, read line by line: Mooncake's JSON Lines and Azure's CSV.

The whole file is surveyed before anything is replayed, so that what is wrong with it is known at once; neither the
survey nor the reading holds more than a line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple, NoReturn

from servescope.contract.identity import shorten
from servescope.errors import TraceError

Format = Literal["mooncake", "azure"]

MOONCAKE_BLOCK_TOKENS: Final = 512
AZURE_HEADER: Final = "TIMESTAMP,ContextTokens,GeneratedTokens"
# Beyond that a field is not a size of anything, and numbers of blocks would no longer fit their place.
MOST_TOKENS: Final = 100_000_000
MOST_BLOCK_ID: Final = (1 << 40) - 1

_LONGEST_LINE = 16 << 20
_MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}


class TraceRequest(NamedTuple):
    """One request of a trace: its arrival in seconds, its sizes in tokens, and the ids of its prompt's blocks.

    The last block may not be full. `block_ids` is None where a trace does not name them.
    """

    seconds: float
    input_tokens: int
    output_tokens: int
    block_ids: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class TraceSurvey:
    """What a trace holds altogether; sizes in tokens, `seconds` from the first arrival to the last.

    `moments` counts the different arrivals, and `longest_tokens` is prompt and output of the longest request.
    """

    format: Format
    requests: int
    input_tokens: int
    output_tokens: int
    longest_tokens: int
    moments: int
    first_seconds: float
    seconds: float

    @property
    def mean_gap_seconds(self) -> float:
        """Mean time from one arrival to the next different one; 1 where there is only one."""
        return self.seconds / (self.moments - 1) if self.moments > 1 else 1.0

    @property
    def quantum_seconds(self) -> float:
        """What arrivals were rounded to, 0 when they were not: then hardly two have the same."""
        return self.mean_gap_seconds if self.requests >= 2 * self.moments else 0.0


def survey_trace(path: Path) -> TraceSurvey:
    """Read all of a trace; raises TraceError, with the line, when it is not one."""
    lines = _Lines(path)
    requests = input_tokens = output_tokens = longest = moments = 0
    first = last = -math.inf
    for request in lines.requests():
        requests += 1
        input_tokens += request.input_tokens
        output_tokens += request.output_tokens
        longest = max(longest, request.input_tokens + request.output_tokens)
        moments += request.seconds != last
        last = request.seconds
        if requests == 1:
            first = last
    return TraceSurvey(lines.format, requests, input_tokens, output_tokens, longest, moments, first, last - first)


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """The requests of a trace, in the order of the file; raises TraceError at the line that is wrong."""
    return _Lines(path).requests()


class _Lines:
    def __init__(self, path: Path) -> None:
        self.format: Format = "mooncake"
        self._path = path
        self._line = 0

    def requests(self) -> Iterator[TraceRequest]:
        latest = -math.inf
        for request in self._parse():
            if request.seconds < latest:
                self._wrong(f"arrives {latest - request.seconds:g} s before the line above, expected times in order")
            latest = request.seconds
            yield request
        if latest == -math.inf:
            raise TraceError(f"{self._path}: the trace is empty, expected at least one request")

    def _parse(self) -> Iterator[TraceRequest]:
        lines = self._texts()
        first = next(lines, None)
        if first is None:
            return
        if first.lstrip().startswith("{"):
            yield self._parse_mooncake(first)
            parse = self._parse_mooncake
        elif first.replace(" ", "") == AZURE_HEADER:
            self.format = "azure"
            parse = self._parse_azure
        else:
            self._wrong(f"{shorten(first)} is neither a JSON object (Mooncake) nor the header {AZURE_HEADER!r} (Azure)")
        for text in lines:
            yield parse(text)

    def _texts(self) -> Iterator[str]:
        """The lines without their ends, of which CRLF is one; a byte-order mark at the front and empty lines at the
        end of the file mean nothing.
        """
        empty: int | None = None
        for line in self._bytes():
            self._line += 1
            if self._line == 1:
                line = self._check_beginning(line)
            if len(line) > _LONGEST_LINE:
                self._wrong(f"is longer than {_LONGEST_LINE >> 20} MiB, expected one request per line")
            try:
                text = line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                self._wrong(f"is not UTF-8 ({error.reason} at byte {error.start + 1})")
            if not text.strip():
                empty = empty or self._line
                continue
            if empty is not None:
                self._line = empty
                self._wrong("is empty, expected a request")
            yield text

    def _bytes(self) -> Iterator[bytes]:
        if self._path.exists() and not self._path.is_file():
            raise TraceError(f"{self._path}: is not a file; a trace is read twice, so it cannot be a pipe")
        try:
            with self._path.open("rb") as file:
                while line := file.readline(_LONGEST_LINE + 1):
                    yield line
        except OSError as error:
            raise TraceError(f"cannot read trace {str(self._path)!r}: {error.strerror}") from error

    def _check_beginning(self, line: bytes) -> bytes:
        """The first line without its byte-order mark; refuses what is not text."""
        for magic, kind in _COMPRESSED.items():
            if line.startswith(magic):
                raise TraceError(f"{self._path}: is compressed ({kind}), which is not read here: unpack it first")
        if line.startswith((b"\xff\xfe", b"\xfe\xff")):
            self._wrong("is UTF-16, expected UTF-8")
        return line.removeprefix(b"\xef\xbb\xbf")

    def _wrong(self, what: str) -> NoReturn:
        raise TraceError(f"{self._path}:{self._line}: {what}", self._line)

    # --- Mooncake -----------------------------------------------------------------------------------------------------

    def _parse_mooncake(self, text: str) -> TraceRequest:
        """One object; fields beyond the four are not read."""
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            self._wrong(f"is not JSON ({error}), expected an object")
        if not isinstance(record, dict):
            self._wrong(f"{shorten(text)} is not an object, expected one with {', '.join(_MOONCAKE_FIELDS)}")
        for name in _MOONCAKE_FIELDS:
            if name not in record:
                self._wrong(f"{name!r} is missing, expected {', '.join(_MOONCAKE_FIELDS)}")
        milliseconds = record["timestamp"]
        if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float) or not 0 <= milliseconds <= 1e15:
            self._wrong(f"timestamp is {shorten(milliseconds)}, expected milliseconds from 0")
        input_tokens = self._check_tokens("input_length", record["input_length"])
        output_tokens = self._check_tokens("output_length", record["output_length"])
        block_ids = self._check_blocks(record["hash_ids"], input_tokens)
        return TraceRequest(milliseconds / 1000.0, input_tokens, output_tokens, block_ids)

    def _check_tokens(self, name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TOKENS:
            self._wrong(f"{name} is {shorten(value)}, expected a whole number of tokens from 1 to {MOST_TOKENS}")
        return value

    def _check_blocks(self, ids: object, input_tokens: int) -> list[int]:
        if not isinstance(ids, list):
            self._wrong(f"hash_ids is {shorten(ids)}, expected a list of block ids")
        wanted = -(-input_tokens // MOONCAKE_BLOCK_TOKENS)
        if len(ids) != wanted:
            self._wrong(
                f"hash_ids names {len(ids)} blocks, expected {wanted}: "
                f"one for each {MOONCAKE_BLOCK_TOKENS} tokens of input_length {input_tokens}"
            )
        for block in ids:
            if type(block) is not int or not 0 <= block <= MOST_BLOCK_ID:
                self._wrong(f"hash_ids has {shorten(block)}, expected whole numbers from 0 to {MOST_BLOCK_ID}")
        if len(set(ids)) != len(ids):
            self._wrong("hash_ids names a block twice, expected each once: an id covers all that is before it, too")
        return ids

    # --- Azure --------------------------------------------------------------------------------------------------------

    def _parse_azure(self, text: str) -> TraceRequest:
        fields = text.split(",")
        if len(fields) != 3:
            self._wrong(f"has {len(fields)} fields, expected 3: {AZURE_HEADER}")
        seconds = self._parse_time(fields[0].strip())
        input_tokens = self._check_tokens("ContextTokens", _whole(fields[1]))
        return TraceRequest(seconds, input_tokens, self._check_tokens("GeneratedTokens", _whole(fields[2])), None)

    def _parse_time(self, text: str) -> float:
        """Seconds since 2023 of a time in UTC, or at the offset it names; Azure writes seven digits of the second."""
        match = _TIME.fullmatch(text)
        try:
            if match is None:
                raise ValueError
            moment = datetime.fromisoformat(f"{match[1]}{match[3] or '+00:00'}")
        except ValueError:
            self._wrong(f"TIMESTAMP is {shorten(text)}, expected a time such as '2023-11-16 18:17:03.9799600'")
        # From a year near the traces': a float of all seconds since 1970 has no place for the seventh digit.
        return (moment - _EPOCH).total_seconds() + float(match[2] or 0)


_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?")
_EPOCH = datetime(2023, 1, 1, tzinfo=UTC)


def _whole(text: str) -> object:
    """The whole number a field is, else the text, for an error to show."""
    text = text.strip()
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else text
