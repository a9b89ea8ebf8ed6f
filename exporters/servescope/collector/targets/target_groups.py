"""Lists of targets in Prometheus' format, from a file or an answer, within bounds.

https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from reprlib import Repr
from typing import Any, Final

from servescope.errors import ServescopeError, how_to_install

MOST_TARGETS: Final = 10_000
"""How many targets, and how many groups, one list may have."""
MOST_LIST_BYTES: Final = 16_000_000
"""How large a list may be."""
_MOST_YAML_BYTES: Final = 4_000_000  # PyYAML needs some 5 s for each million
_MOST_LABELS: Final = 256

# A few bytes of YAML can name lists of lists whose whole text would fill the memory.
_repr = Repr()
_repr.maxlevel, _repr.maxlist, _repr.maxdict, _repr.maxstring, _repr.maxother = 2, 3, 3, 100, 100

Pairs = list[tuple[str, Mapping[str, str]]]
"""Addresses with the labels of their groups."""


class DiscoveryError(ServescopeError):
    """A list of targets cannot be used."""


def read_file(path: Path, meta: Mapping[str, str]) -> Pairs:
    """The addresses in a JSON or YAML file, with `meta` among their labels; raises DiscoveryError or OSError.

    Anything else than a regular file is refused, as reading it might never end.
    """
    with open(path, "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise DiscoveryError("not a regular file")
        limit = MOST_LIST_BYTES if path.suffix == ".json" else _MOST_YAML_BYTES
        body = file.read(limit + 1)
    if len(body) > limit:
        raise DiscoveryError(f"larger than {limit} bytes")
    return _read(body, meta, is_json=path.suffix == ".json")


def read_answer(body: bytes, meta: Mapping[str, str]) -> Pairs:
    """The addresses in an answer of an http_sd, with `meta` among their labels; raises DiscoveryError."""
    return _read(body, meta, is_json=True)


def _open_without_waiting(path: str, flags: int) -> int:
    # Opened otherwise, a FIFO would wait for a writer.
    return os.open(path, flags | os.O_NONBLOCK)


def _read(body: bytes, meta: Mapping[str, str], *, is_json: bool) -> Pairs:
    try:
        groups = _parse_json(body) if is_json else _parse_yaml(body)
    except RecursionError:
        raise DiscoveryError("nested too deeply for a list of target groups") from None
    if not isinstance(groups, list):
        raise DiscoveryError(f"expected a list of target groups, got {_type_name(groups)}")
    if len(groups) > MOST_TARGETS:
        raise DiscoveryError(f"{len(groups)} groups, at most {MOST_TARGETS} in one list")
    pairs: Pairs = []
    for index, group in enumerate(groups):
        addresses, labels = _read_group(index, group)
        if len(pairs) + len(addresses) > MOST_TARGETS:
            raise DiscoveryError(f"more than {MOST_TARGETS} targets in one list")
        if wrong := [each for each in addresses if not isinstance(each, str)]:
            raise DiscoveryError(f"group {index}: targets {_repr.repr(wrong)}, expected a list of host:port")
        shared = {**labels, **meta}
        pairs += [(address, shared) for address in addresses]
    return pairs


def _read_group(index: int, group: object) -> tuple[list[Any], dict[str, str]]:
    """The addresses, which may be too many or no strings, and the labels of a group."""
    if not isinstance(group, Mapping):
        raise DiscoveryError(f"group {index}: expected a mapping, got {_type_name(group)}")
    unknown = next((key for key in group if key not in ("targets", "labels")), None)
    if unknown is not None:
        raise DiscoveryError(f"group {index}: unknown key {_repr.repr(unknown)}; known: targets, labels")
    labels, addresses = group.get("labels") or {}, group.get("targets") or []
    if isinstance(labels, Mapping) and len(labels) > _MOST_LABELS:
        raise DiscoveryError(f"group {index}: {len(labels)} labels, at most {_MOST_LABELS} in one group")
    wrong = labels
    if isinstance(labels, Mapping):
        # A label without a value is a label that is not there.
        labels = {name: value for name, value in labels.items() if value not in ("", None)}
        wrong = {
            name: value for name, value in labels.items() if not isinstance(name, str) or not isinstance(value, str)
        }
    if wrong:
        raise DiscoveryError(f"group {index}: labels {_repr.repr(wrong)}, expected a mapping of strings")
    if not isinstance(addresses, list):
        raise DiscoveryError(f"group {index}: targets {_repr.repr(addresses)}, expected a list of host:port")
    return addresses, labels


def _parse_json(body: bytes) -> object:
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        raise DiscoveryError(f"line {error.lineno}: not JSON: {error.msg}") from error
    except ValueError as error:  # a number with thousands of digits, or no UTF-8
        raise DiscoveryError(f"not JSON: {error}") from error


def _parse_yaml(body: bytes) -> object:
    try:
        import yaml
    except ImportError:
        raise DiscoveryError(f"YAML needs PyYAML: {how_to_install('generate')}; or write JSON") from None

    class Loader(yaml.SafeLoader):
        """Reads a value as it is written, as Prometheus does, so that 1.10 and no are texts, and a key once."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            if twice := [key for key, count in keys.items() if count > 1]:
                raise DiscoveryError(f"line {node.start_mark.line + 1}: key {_repr.repr(twice[0])} is there twice")
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in forms if tag.endswith((":null", ":merge"))]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        return Loader(body.decode("utf-8")).get_single_data()
    except ValueError as error:  # `!!timestamp 2024-13-01`, which PyYAML leaves to Python, or no UTF-8
        raise DiscoveryError(f"not YAML: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise DiscoveryError(f"{line}not YAML: {getattr(error, 'problem', None) or error}") from error


def _type_name(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
