"""The frame of the package: what the wheel holds, what importing it costs, what its commands answer."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from servescope.cli import COMMANDS
from tests.conftest import ROOT
from tests.support.commands import run
from tests.support.installed import build_wheel, install_wheel
from tests.support.waiting import deadline_seconds

THIRD_PARTY = {"numpy", "prometheus_client", "aiohttp", "streamlit", "pandas", "altair", "pynvml", "opentelemetry"}


def servescope(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "servescope.cli", *words],
        capture_output=True,
        text=True,
        timeout=deadline_seconds(),
        check=False,
    )


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the tree."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_wheel_installs_one_name(wheel: Path) -> None:
    """The wheel installs `servescope` and nothing beside it."""
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}

    assert {name for name in names if not name.endswith(".dist-info")} == {"servescope"}


@pytest.mark.slow
def test_wheel_carries_what_its_commands_read(wheel: Path) -> None:
    """The console's pages, the source maps and the typing marker travel with the wheel."""
    names = set(zipfile.ZipFile(wheel).namelist())

    assert {"servescope/_app/console.py", "servescope/sources/vllm.toml", "servescope/py.typed"} <= names


@pytest.mark.slow
def test_wheel_names_the_plugins(wheel: Path) -> None:
    """vLLM and SGLang find the plugin by the entry point they look for."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        declared = archive.read(name).decode()

    assert "[vllm.stat_logger_plugins]\nservescope = servescope.plugins.vllm:ServescopeStatLogger\n" in declared
    assert "[sglang.srt.plugins]\nservescope = servescope.plugins.sglang:register\n" in declared


@pytest.mark.slow
def test_the_wheel_writes_what_is_committed(wheel: Path, tmp_path: Path) -> None:
    """Where nothing of the checkout is, not even from a folder with modules of the same names."""
    variables = install_wheel(wheel, tmp_path / "environment")
    place = tmp_path / "place"
    place.mkdir()
    for name in ("alerts", "dashboards"):
        (place / f"{name}.py").write_text("raise ImportError('somebody else is called so')", encoding="utf-8")

    def run_installed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["servescope", *words], cwd=place, env=variables, capture_output=True, text=True, check=False,
            timeout=deadline_seconds(),
        )  # fmt: skip

    for command, package in (("dashboards", "dashboards"), ("rules", "alerts")):
        written = run_installed(command, "--output", command)
        assert (written.returncode, written.stdout, written.stderr) == (0, "", "")
        assert files_of(place / command) == files_of(ROOT / package / "generated")
    bundle = ROOT / "deploy/kubernetes/rules/rules.yaml"
    assert run_installed("rules", "--format", "prometheusrule").stdout == bundle.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["dashboards", "rules"])
def test_what_is_written_is_checked_where_it_was_written(tmp_path: Path, command: str) -> None:
    """Unlike in the checkout, a folder has to be named: a file that is out of date is named below it."""
    folder = tmp_path / command
    assert run(command, "--output", str(folder)).returncode == 0
    stale = folder / min(files_of(folder))
    stale.write_text("", encoding="utf-8")
    checked = run(command, "--output", str(folder), "--check")
    nowhere = run(command)

    assert (checked.returncode, checked.stderr.count("\n")) == (1, 1)
    assert f"{stale} is out of date" in checked.stderr
    assert nowhere.returncode == 2
    assert "--output" in nowhere.stderr


def files_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "statement",
    [
        "import servescope",
        "from servescope import AutoscalerInstruments, EngineInstruments, Identity, RouterInstruments, serve",
        "import servescope.instruments.processes",
        "import servescope.exposition.web",
    ],
)
def test_import_is_light(statement: str) -> None:
    """Importing the package or an instrument loads no third party, so an engine's start is not slowed."""
    assert {name.split(".")[0] for name in loaded_by(statement)} & THIRD_PARTY == set()


def test_importing_the_package_loads_nothing_but_itself() -> None:
    """Neither a module of ours nor a costly one of the standard library, until a name is used."""
    loaded = loaded_by("import servescope")

    assert {name for name in loaded if name.startswith("servescope")} == {"servescope"}
    assert not {"typing", "importlib.metadata", "dataclasses"} & (loaded - loaded_by("pass"))


def loaded_by(statement: str) -> set[str]:
    """The names of the modules that a fresh interpreter has loaded after the statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=deadline_seconds())
    return set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command: str) -> None:
    """Each command prints its usage."""
    answer = run(command, "--help")

    assert answer.returncode == 0
    assert f"usage: servescope {command}" in answer.stdout


def test_unknown_command_lists_the_alternatives() -> None:
    """An unknown command is refused by name, beside those there are, with code 2 and no traceback."""
    answer = servescope("colect")

    assert answer.returncode == 2
    assert "colect" in answer.stderr
    assert "collect" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_no_command_prints_the_list() -> None:
    """Without a command the list is printed, with code 2."""
    answer = servescope()

    assert answer.returncode == 2
    assert all(command in answer.stdout + answer.stderr for command in COMMANDS)


def test_version_is_the_wheels() -> None:
    """`servescope --version` prints the version in pyproject.toml."""
    import servescope as package

    assert servescope("--version").stdout == f"servescope {package.__version__}\n"
