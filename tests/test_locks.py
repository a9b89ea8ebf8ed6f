"""The locks against pyproject.toml: each declared dependency in them, within its bounds, with hashes and no host."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

LOCKS = ("requirements.lock", "requirements-dev.lock")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("linux", "darwin")


def locked(name: str) -> list[tuple[Requirement, list[str]]]:
    """What a lock pins, and the hashes of each."""
    text = (ROOT / name).read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\w)", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").strip())
    return [(Requirement(entry.split("--hash")[0]), re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry))
            for entry in entries]  # fmt: skip


def declared() -> Mapping[str, list[Requirement]]:
    """The dependencies of pyproject.toml, by the lock they have to be in."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = pyproject["project"]["optional-dependencies"]
    (all_of_them,) = (Requirement(line) for line in extras["all"])
    assert all_of_them.extras == extras.keys() - {"all"}
    lines = [*pyproject["project"]["dependencies"], *(line for name in all_of_them.extras for line in extras[name])]
    development = [*pyproject["dependency-groups"]["dev"], *pyproject["build-system"]["requires"]]
    return {LOCKS[0]: [Requirement(line) for line in lines], LOCKS[1]: [Requirement(line) for line in development]}


def find_missing(wanted: Iterable[Requirement], pinned: Iterable[Requirement], python: str, platform: str) -> list[str]:
    """The dependencies that are not pinned exactly once, within their bounds, on this Python and platform."""
    environment = {**default_environment(), "python_version": python, "sys_platform": platform, "os_name": "posix"}
    environment["python_full_version"] = f"{python}.0"
    there = [pin for pin in pinned if pin.marker is None or pin.marker.evaluate(environment)]  # type: ignore[arg-type]
    found = {}
    for need in wanted:
        same = [pin for pin in there if canonicalize_name(pin.name) == canonicalize_name(need.name)]
        versions = [str(pin.specifier).removeprefix("==") for pin in same]
        found[str(need)] = len(versions) == 1 and need.specifier.contains(versions[0])
    return [need for need, is_met in found.items() if not is_met]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_satisfies_what_is_declared(name: str, python: str, platform: str) -> None:
    """On every supported Python and platform each dependency is pinned once, to a version within its bounds."""
    assert not find_missing(declared()[name], [pin for pin, _ in locked(name)], python, platform)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_versions_by_their_hashes(name: str) -> None:
    """Each is an exact version with at least one SHA-256."""
    for pin, hashes in locked(name):
        assert re.fullmatch(r"==[\w.+!]+", str(pin.specifier)), pin
        assert hashes, pin


def test_the_development_lock_has_the_versions_of_the_first() -> None:
    """`make test` runs the versions that `make demo` and the image run."""
    first, second = ({str(pin).replace('"', "'") for pin, _ in locked(name)} for name in LOCKS)
    names = {Requirement(pin).name for pin in first}
    versions = {re.split("[ ;]", pin)[0] for pin in first}

    assert {
        pin for pin in second if Requirement(pin).name in names and re.split("[ ;]", pin)[0] not in versions
    } == set()


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_host_and_no_path(name: str) -> None:
    """The index is the machine's own."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()

    assert not [line for line in lines if re.search(r"://|index|find-links|\w/\w|^\s*#\s*/", line)]
