"""`servescope migrate` with drafts: which files it writes, and when it writes none."""

from __future__ import annotations

from pathlib import Path

import pytest

from servescope.judge.arguments import read_plan
from servescope.migrate import DRAFTS
from tests.support.commands import run
from tests.support.migrations import ASKED, MOVED, STAYS, V1, WRONG


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(V1, encoding="utf-8")
    return path


def words_of(folder: Path) -> list[str]:
    """Every draft, into a file of its own."""
    return [word for name in DRAFTS for word in (f"--{name}", str(folder / f"draft.{name}"))]


def test_drafts_are_written_beside_the_report(config: Path) -> None:
    """Each into its file, and the judge reads the plan; the configuration stays as it is."""
    done = run("migrate", str(config), *words_of(config.parent))

    assert done.returncode == 0
    assert f"{config}: v1 → v2\n" in done.stdout
    assert done.stderr == "".join(f"servescope: drafted {config.parent / f'draft.{name}'}\n" for name in DRAFTS)
    assert read_plan(config.parent / "draft.plan").name == "mine-70b"
    assert config.read_text(encoding="utf-8") == V1


def test_a_draft_that_is_there_is_not_replaced(config: Path) -> None:
    """Nor is any other written then: somebody may have edited it."""
    (config.parent / "draft.plan").write_text("mine", encoding="utf-8")
    done = run("migrate", str(config), *words_of(config.parent))

    assert done.returncode == 2
    assert "draft.plan: is there already; nothing was drafted" in done.stderr
    assert sorted(path.name for path in config.parent.iterdir()) == ["config.yaml", "draft.plan"]


@pytest.mark.parametrize(("text", "code"), [(ASKED, 3), (STAYS, 3), (WRONG, 2), (MOVED, 2), ("a: 1\n", 2)])
def test_nothing_is_drafted_of_what_is_not_moved(config: Path, text: str, code: int) -> None:
    """Waiting for an answer, wrong, moved already, or without an engine."""
    config.write_text(text, encoding="utf-8")
    done = run("migrate", str(config), *words_of(config.parent))

    assert done.returncode == code
    assert [path.name for path in config.parent.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--check",), "--plan is there beside --check, which writes nothing"),
        (("--back",), "--plan is there beside --back"),
        (("config.yaml",), "--plan goes with one configuration, found 2"),
    ],
)
def test_what_does_not_go_with_a_draft_is_refused(config: Path, words: tuple[str, ...], message: str) -> None:
    """By its option."""
    done = run("migrate", str(config), *words, "--plan", str(config.parent / "p.toml"))

    assert (done.returncode, message in done.stderr) == (2, True)


def test_a_draft_that_cannot_be_written_is_an_error(config: Path) -> None:
    """With its path and the reason."""
    done = run("migrate", str(config), "--plan", str(config.parent / "missing" / "p.toml"))

    assert done.returncode == 2
    assert "p.toml: cannot be written: No such file or directory" in done.stderr
