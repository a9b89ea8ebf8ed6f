"""`servescope migrate --write`: whose a file is stays as it was, and no kill, link or full disk leaves half of one."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.migration.conftest import names_in
from tests.support.commands import run
from tests.support.waiting import deadline_seconds

V1 = """\
trt_llm:
  build:
    checkpoint_repository: {source: HF, repo: a/b}
    max_num_tokens: 8192
"""
BACKEND = '{"quantization": "float8"}'
LEFT = ".servescope-migrate-0123456789abcdef"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "config.yaml"
    path.parent.mkdir()
    path.write_text(V1, encoding="utf-8")
    return path


def is_v2(path: Path) -> bool:
    """Whether the whole file was translated."""
    return "inference_stack: v2" in path.read_text(encoding="utf-8") and path.read_text(encoding="utf-8")[-1:] == "\n"


@as_root
def test_owner_mode_and_attributes_stay(config: Path) -> None:
    """Of the file, and of the copy of the old one, which keeps its time as well."""
    config.chmod(0o640)
    os.chown(config, 12345, 23456)
    os.utime(config, (1_700_000_000, 1_700_000_000))
    with suppress(OSError):  # where the file system has none
        os.setxattr(config, "user.team", b"acme")
    before = {name: os.getxattr(config, name) for name in os.listxattr(config)}

    assert run("migrate", str(config), "--write").returncode == 0
    kept = config.with_name("config.yaml.v1")
    for path in (config, kept):
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 23456, 0o640)
        assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == before
    assert is_v2(config)
    assert kept.stat().st_mtime == 1_700_000_000 < config.stat().st_mtime


@as_root
def test_a_file_of_somebody_else_is_left(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where we may write it, and may not give the new one to its owner."""
    os.chown(config, 12345, 23456)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    done = run("migrate", str(config), "--write")

    assert (done.returncode, done.stdout) == (
        2,
        f"{config}: belongs to user 12345 and group 23456, and only root can give a new file to them; nothing was "
        "written\n",
    )
    assert names_in(config.parent) == ["config.yaml"]
    assert config.read_text(encoding="utf-8") == V1


def test_a_read_only_file_is_left(config: Path) -> None:
    """Though its folder would have it replaced, and root may write it all the same."""
    config.chmod(0o444)
    done = run("migrate", str(config), "--write")

    assert (done.returncode, done.stdout) == (2, f"{config}: is read-only; nothing was written\n")
    assert (names_in(config.parent), config.read_text(encoding="utf-8")) == (["config.yaml"], V1)


def test_a_file_with_other_names_is_left(config: Path) -> None:
    """They would keep the old content."""
    os.link(config, config.with_name("same.yaml"))
    done = run("migrate", str(config), "--write")

    assert done.returncode == 2
    assert "is one of 2 names of a file (hard links), of which the others would keep the old content" in done.stdout
    assert (names_in(config.parent), config.read_text(encoding="utf-8")) == (["config.yaml", "same.yaml"], V1)
    assert run("migrate", str(config), "--check").returncode == 1


@pytest.mark.parametrize(
    "words", [(), ("--check",), ("--format", "diff"), ("--write",), ("--write", "--format", "json")]
)
def test_a_link_out_of_the_folder_is_not_followed(config: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Of a file, named or found, it is an error; of a folder it is said; the others are migrated."""
    outside, linked = tmp_path / "outside", config.parent / "a"
    outside.mkdir()
    linked.mkdir()
    (outside / "config.yaml").write_text(f"{V1}# of somebody else\n", encoding="utf-8")
    (linked / "config.yaml").symlink_to(outside / "config.yaml")
    (config.parent / "b").symlink_to(outside, target_is_directory=True)

    done = run("migrate", str(config.parent), *words)
    assert done.returncode == 2
    home = config.parent
    said = done.stdout + done.stderr
    assert f"{linked / 'config.yaml'}: is a link to {outside / 'config.yaml'}, out of {home}: it is not" in said
    assert str(home / "b") in said
    assert f"is a link to {outside}, out of {home}: it is not followed" in said
    assert "of somebody else" not in said
    assert is_v2(config) is ("--write" in words)
    named = run("migrate", str(linked / "config.yaml"), *words)
    assert named.returncode == 2
    assert "is not followed" in named.stdout + named.stderr
    assert (names_in(outside), names_in(linked)) == (["config.yaml"], ["config.yaml"])
    assert (outside / "config.yaml").read_text(encoding="utf-8") == f"{V1}# of somebody else\n"
    assert (linked / "config.yaml").is_symlink()


def test_a_link_within_the_folder_is_followed(config: Path, tmp_path: Path) -> None:
    """Also up to it, and where the folder that is named is a link itself; what it leads to is written."""
    deep = config.parent / "deep"
    deep.mkdir()
    config.rename(config.parent / "real.yaml")
    (deep / "config.yaml").symlink_to(Path("..") / "real.yaml")
    (tmp_path / "link").symlink_to(config.parent, target_is_directory=True)
    done = run("migrate", str(tmp_path / "link"), "--write")

    assert (done.returncode, done.stderr) == (0, "")
    assert is_v2(config.parent / "real.yaml")
    assert names_in(config.parent) == ["deep", "real.yaml", "real.yaml.v1"]
    assert (deep / "config.yaml").is_symlink()


def test_links_in_circles_end_no_other(config: Path) -> None:
    """One of files is an error by its name, one of folders ends nothing."""
    folder = config.parent / "a"
    folder.mkdir()
    (folder / "config.yaml").symlink_to("config.yml")
    (folder / "config.yml").symlink_to("config.yaml")
    (folder / "up").symlink_to("..", target_is_directory=True)
    (folder / "self").symlink_to("self")
    done = run("migrate", str(config.parent), "--write")

    assert done.returncode == 2
    assert done.stdout.count("cannot be read: Too many levels of symbolic links") == 2
    assert done.stdout.endswith("3 files: 1 to change, 2 with errors\n")
    assert is_v2(config)


@pytest.mark.parametrize("kind", ["link", "loop", "folder", "pipe", "other"])
def test_what_is_in_the_place_of_the_copy_stays(config: Path, tmp_path: Path, kind: str) -> None:
    """Whatever it is; nothing is written through it, and a pipe is not waited for."""
    kept, other = config.with_name("config.yaml.v1"), tmp_path / "other"
    other.write_text(V1, encoding="utf-8")
    if kind == "link":
        kept.symlink_to(other)
    elif kind == "loop":
        kept.symlink_to(kept)
    elif kind == "folder":
        kept.mkdir()
    elif kind == "pipe":
        os.mkfifo(kept)
    else:
        kept.write_text("mine", encoding="utf-8")
    done = run("migrate", str(config), "--write")

    assert done.returncode == 2
    assert (
        "would be kept as config.yaml.v1, which is there already: move that away first; nothing was written"
        in done.stdout
    )
    assert (names_in(config.parent), config.read_text(encoding="utf-8")) == (["config.yaml", "config.yaml.v1"], V1)
    assert other.read_text(encoding="utf-8") == V1


def test_new_files_are_written_through_no_link(tmp_path: Path) -> None:
    """One in the place of a new file is not followed, nor is what it leads to shown."""
    source, outside = tmp_path / "models" / "f.json", tmp_path / "outside"
    source.parent.mkdir()
    source.write_text(BACKEND, encoding="utf-8")
    outside.write_text("of somebody else", encoding="utf-8")
    (source.parent / "config.yaml").symlink_to(outside)
    done = run("migrate", str(source), "--write", "--checkpoint", "HF:a/b")

    assert done.returncode == 2
    assert f"config.yaml: is a link to {outside}, out of {source.parent}: it is not followed" in done.stdout
    assert "of somebody else" not in done.stdout
    assert outside.read_text(encoding="utf-8") == "of somebody else"


@pytest.mark.parametrize("name", ["config.yaml", "f.json"])
def test_a_change_at_the_last_moment_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """When the new file is on the disk already, and only its name is missing."""
    path = tmp_path / name
    path.write_text(V1 if name == "config.yaml" else BACKEND, encoding="utf-8")
    monkeypatch.setattr(os, "fsync", lambda _: path.write_text("mine", encoding="utf-8"))
    done = run("migrate", str(path), "--write", "--checkpoint", "HF:a/b")

    assert (done.returncode, done.stdout) == (2, f"{path}: changed while it was migrated; nothing was written\n")
    assert (names_in(tmp_path), path.read_text(encoding="utf-8")) == ([name], "mine")


def test_a_file_that_somebody_makes_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of one that is made."""
    source, made = tmp_path / "f.json", tmp_path / "config.yaml"
    source.write_text(BACKEND, encoding="utf-8")
    monkeypatch.setattr(os, "fsync", lambda _: made.write_text("mine", encoding="utf-8"))
    done = run("migrate", str(source), "--write", "--checkpoint", "HF:a/b", "--n-gram")

    assert done.returncode == 2
    assert "config.yaml: was made meanwhile by somebody else; nothing was written" in done.stdout
    assert (names_in(tmp_path), made.read_text(encoding="utf-8")) == (["config.yaml", "f.json"], "mine")


def test_a_rename_that_fails_leaves_nothing(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a copy, nor a part of a new file."""

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "replace", refuse)
    done = run("migrate", str(config), "--write")

    assert (done.returncode, done.stdout) == (2, f"{config}: cannot be written: Read-only file system\n")
    assert (names_in(config.parent), config.read_text(encoding="utf-8")) == (["config.yaml"], V1)


@pytest.mark.parametrize("is_done", [False, True], ids=["to do", "done"])
def test_what_a_killed_run_left_is_removed_by_the_next(config: Path, *, is_done: bool) -> None:
    """Also where nothing is left to do; only by one that writes, and nothing that is not ours."""
    if is_done:
        assert run("migrate", str(config), "--write").returncode == 0
    others = {".config.yaml.abcd1234", f"{LEFT}0", f"x{LEFT}", LEFT.upper(), LEFT.replace("9", "g"), "x.tmp"}
    for name in (LEFT, *others):
        (config.parent / name).write_text("part", encoding="utf-8")
    (config.parent / LEFT.replace("0", "1")).mkdir()
    (config.parent / LEFT.replace("0", "2")).symlink_to("x.tmp")
    os.mkfifo(config.parent / LEFT.replace("0", "3"))
    before = set(names_in(config.parent))
    run("migrate", str(config), "--check")
    assert set(names_in(config.parent)) == before

    assert run("migrate", str(config), "--write").returncode == 0
    assert before - set(names_in(config.parent)) == {LEFT, LEFT.replace("0", "3")} & before
    assert others <= set(names_in(config.parent))


def test_what_another_run_writes_now_is_not_removed(config: Path) -> None:
    """It holds the lock for as long as it lives."""
    with (config.parent / LEFT).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run("migrate", str(config), "--write").returncode == 0
        assert LEFT in names_in(config.parent)
    assert run("migrate", str(config), "--write").returncode == 0
    assert names_in(config.parent) == ["config.yaml", "config.yaml.v1"]


KILLED = """
import os, signal, sys
from itertools import count
from pathlib import Path
from servescope import cli
import servescope.migration.files, servescope.migration.masked_report

def run(path, moment, words):
    seen = count(1)
    def look(event, arguments):
        if event == "open" and not str(arguments[0]).startswith(str(path.parent)):
            return
        if event in ("open", "fsync", "fcntl.flock", "os.rename", "os.remove", "os.chmod", "os.chown", "os.utime"):
            if next(seen) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
    sync = os.fsync
    os.fsync = lambda handle: (look("fsync", ()), sync(handle))
    sys.addaudithook(look)
    os._exit(cli.main(["migrate", str(path), *words, "--write"]))

root, name, text, *words = sys.argv[1:]
for moment in count(1):
    path = Path(root, str(moment), name)
    path.parent.mkdir()
    path.write_text(text)
    child = os.fork()
    if not child:
        run(path, moment, words)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
        break
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "made"),
    [("config.yaml", V1, ["config.yaml.v1"]), ("f.json", BACKEND, ["config.yaml", "llm_models.json"])],
)
def test_a_kill_at_any_moment_leaves_the_old_or_the_new(tmp_path: Path, name: str, text: str, made: list[str]) -> None:
    """Of every file, whole; the next run does the rest, and removes what the killed one left."""
    words = ("--checkpoint", "HF:a/b", "--n-gram")
    command = [sys.executable, "-c", KILLED, str(tmp_path), name, text, *words]
    subprocess.run(command, capture_output=True, timeout=deadline_seconds(), check=True)

    *killed, done = sorted(tmp_path.iterdir(), key=lambda each: int(each.name))
    final = {each.name: each.read_bytes() for each in done.iterdir()}
    assert sorted(final) == sorted([name, *made])
    assert len(killed) > 10
    left = 0
    for folder in killed:
        there = {each.name: each.read_bytes() for each in folder.iterdir()}
        left += len([each for each in there if each.startswith(".servescope-migrate-")])
        shown = {each: data for each, data in there.items() if not each.startswith(".")}
        assert shown.pop(name) in (text.encode(), final[name])
        assert all(final[each] == data for each, data in shown.items())
        assert run("migrate", str(folder / name), *words, "--write").returncode == 0
        assert {each.name: each.read_bytes() for each in folder.iterdir()} == final
    assert left > 5
