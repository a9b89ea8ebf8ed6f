"""A TOML table read key by key: every error names the file, the key, the value and what was expected."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from servescope.errors import ConfigurationError, UsageError, suggest
from servescope.settings.values import LONGEST_DURATION_MS, parse_duration, parse_size

REQUIRED: Final = "required"

LARGEST_TEXT: Final = 4 << 20
"""Most characters of a TOML document."""
DEEPEST: Final = 32
"""Most brackets within each other, and most parts of a dotted key."""
_LONGEST_SHOWN: Final = 300
# First what nests nothing: strings, which need no end where the parser will miss it, and comments.
_TOKEN: Final = re.compile(
    r"""
    \"{3} (?:\\.|(?!\"{3}).)* \"{0,5} | '{3} (?:(?!'{3}).)* '{0,5} | \"(?:\\.|[^\"\\\n])*\"? | '[^'\n]*'? | \#[^\n]*
    | [\[\]{}.=,\n]
    """,
    re.DOTALL | re.VERBOSE,
)

T = TypeVar("T")


def read_document(path: Path, what: str) -> dict[str, object]:
    """The TOML document in a file, which an error calls `what`; raises ConfigurationError."""
    try:
        # Editors on Windows begin a text with a byte order mark.
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(LARGEST_TEXT + 1)
    except FileNotFoundError:
        raise ConfigurationError(f"no {what} file {str(path)!r}") from None
    except OSError as error:
        reason = "is a directory" if path.is_dir() else error.strerror
        raise ConfigurationError(f"{path}: cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: cannot be read: is not UTF-8 text") from error
    return parse_document(text, str(path))


def parse_document(text: str, origin: str) -> dict[str, object]:
    """The TOML document in a text, which errors call `origin`; raises ConfigurationError, also beyond its limits."""
    _check_limits(text, origin)
    try:
        document = tomllib.loads(text)
    except ValueError as error:  # a number of thousands of digits is no TOMLDecodeError
        raise ConfigurationError(f"{origin}: not TOML: {_shorten(str(error))}") from error
    _check_integers(document, origin, "")
    return document


def _check_limits(text: str, origin: str) -> None:
    """Refuse what the parser would recurse into until it fails, or take minutes for."""
    if len(text) > LARGEST_TEXT:
        raise ConfigurationError(f"{origin}: more than {LARGEST_TEXT} characters")
    depth = parts = 0
    for token in _TOKEN.finditer(text):
        match token.group():
            case "[" | "{":
                depth, parts = depth + 1, 0
            case "]" | "}":
                depth, parts = depth - 1, 0
            case ".":
                parts += 1
            case "=" | "," | "\n":
                parts = 0
        if depth > DEEPEST or parts >= DEEPEST:
            line = text.count("\n", 0, token.start()) + 1
            raise ConfigurationError(f"{origin}: nested deeper than {DEEPEST} (at line {line})")


def _check_integers(value: object, origin: str, key: str) -> None:
    """Refuse what TOML has no integers for: of thousands of digits, as hexadecimal ones may have, none can be shown."""
    match value:
        case dict():
            for name, each in value.items():
                _check_integers(each, origin, f"{key}.{name}" if key else name)
        case list():
            for each in value:
                _check_integers(each, origin, key)
        case int() if not -(1 << 63) <= value < 1 << 63:
            raise ConfigurationError(f"{origin}: {_shorten(key)}: an integer of more than 64 bits")


@contextmanager
def located(place: str) -> Iterator[None]:
    """Raise a UsageError within as a ConfigurationError that begins with the place; one that is that already stays."""
    try:
        yield
    except ConfigurationError:
        raise
    except UsageError as error:
        raise ConfigurationError(f"{place}: {error}") from error


class Setting(NamedTuple):
    """One key of the configuration and its default as TOML; "" where there is none."""

    key: str
    default: str


class Table:
    """A TOML table with its file (`origin`) and its place in it (`path`), which every error names."""

    def __init__(self, values: Mapping[str, object], origin: str, path: str) -> None:
        self.values = values
        self.origin = origin
        self.path = path

    def key(self, key: str) -> str:
        """The full name of a key, as `deployments[0].targets`."""
        return f"{self.path}.{key}" if self.path else key

    def wrong(self, key: str, expected: str) -> ConfigurationError:
        """The error for the value of a key."""
        fault = f": {_show(self.values[key])} is wrong" if key in self.values else " is missing"
        return ConfigurationError(f"{self.origin}: {self.key(key)}{fault}, expected {expected}")

    def check_keys(self, known: Sequence[str]) -> None:
        """Refuse keys that are not known, with the nearest that is."""
        for key in self.values:
            if key not in known:
                hint = suggest(key, known) or f"known: {', '.join(known) or 'none'}"
                raise ConfigurationError(f"{self.origin}: unknown key {self.key(key)!r}; {hint}")

    def table(self, key: str, settings: Sequence[Setting]) -> Table:
        """The table at a key, empty where there is none."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, f"a table [{self.key(key)}]")
        return self._checked(value, self.key(key), settings)

    def tables(self, key: str, settings: Sequence[Setting]) -> list[Table]:
        """The tables listed at a key."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            spelled = re.sub(r"\[\d+\]", "", self.key(key))
            raise self.wrong(key, f"tables [[{spelled}]]")
        return [self._checked(each, f"{self.key(key)}[{index}]", settings) for index, each in enumerate(value)]

    def _checked(self, values: Mapping[str, object], path: str, settings: Sequence[Setting]) -> Table:
        table = Table(values, self.origin, path)
        table.check_keys([setting.key for setting in settings])
        for setting in settings:
            if setting.default == REQUIRED and setting.key not in values:
                raise ConfigurationError(f"{self.origin}: {path}: {setting.key!r} is missing")
        return table

    def string(self, key: str, default: str | None) -> str:
        """The string at a key; with `default` None it must be there and not empty."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self.wrong(key, "a string" if default is not None else "a string that is not empty")
        return value

    def strings(self, key: str, default: Sequence[str] | None = None) -> list[str]:
        """The strings listed at a key, none of them empty; with `default` None it must list one."""
        value = self.values.get(key, default)
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            raise self.wrong(key, "a list of strings")
        if not value and default is None:
            raise self.wrong(key, "a list of strings")
        return list(value)

    def boolean(self, key: str, *, default: bool) -> bool:
        """The truth value at a key."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def string_map(self, key: str) -> dict[str, str]:
        """Names with a string each, which no error shows."""
        value = self.values.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            # Values of headers may be secrets: no error shows them.
            raise ConfigurationError(f"{self.origin}: {self.key(key)}: expected a table of strings")
        return dict(value)

    def string_lists(self, key: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Names with one string or a list of strings each."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "a table of strings, or of lists of strings")
        listed = {name: each if isinstance(each, list) else [each] for name, each in value.items()}
        for name, values in listed.items():
            if not all(isinstance(each, str) for each in values):
                raise Table(value, self.origin, self.key(key)).wrong(name, "a string, or a list of strings")
        return tuple((name, tuple(values)) for name, values in listed.items())

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """One of the choices."""
        value = self.values.get(key, default)
        if value not in choices:
            raise self.wrong(key, f"one of {', '.join(choices)}")
        return str(value)

    def whole_number(self, key: str, default: int) -> int:
        """The whole number at a key, above 0."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, "a whole number above 0")
        return value

    def size(self, key: str, least: int) -> int | None:
        """Bytes of the size at a key, None where there is none."""
        expected = f"a size of at least {least // 1_000_000}MB such as '500MB', '3GB'"
        size = self.parsed(key, parse_size, 0, expected)
        if key in self.values and size < least:
            raise self.wrong(key, expected)
        return size or None

    def duration(self, key: str, default: int) -> int:
        """Milliseconds of the duration at a key, above 0 and at most ten years."""
        expected = "a duration above 0 such as '15s', '5m', '1h30m', '7d', at most ten years"
        milliseconds = self.parsed(key, parse_duration, default, expected)
        if not 0 < milliseconds <= LONGEST_DURATION_MS:
            raise self.wrong(key, expected)
        return milliseconds

    def parsed(self, key: str, parse: Callable[[str], T], default: T, expected: str) -> T:
        """What `parse` makes of the string at a key."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, expected)
        try:
            return parse(value)
        except ValueError:
            raise self.wrong(key, expected) from None


def _show(value: object) -> str:
    """The value of a key as an error shows it; a table, which may have headers, without its content."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return "a list of tables"
    if isinstance(value, date):
        return value.isoformat()
    return _shorten(repr(value))


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
