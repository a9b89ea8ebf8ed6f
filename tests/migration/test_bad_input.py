"""`servescope migrate` in hostile hands: an error with its place, no traceback, nothing run, nothing half-written."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.migration import files, report
from servescope.migration.command import configure
from tests.support.commands import run
from tests.support.configurations import Style, draw_configuration
from tests.support.drawing import examples

V1 = """\
trt_llm:
  build:
    checkpoint_repository: {source: HF, repo: a/b}
    max_num_tokens: 8192
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(V1, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        (V1.replace("8192", "0x" + "F" * 5000), 2, ":4:21: … cannot be read as int"),
        (V1 + "? 0x" + "F" * 5000 + "\n: 1\n", 2, ":5:3: … cannot be read as int"),
        (V1.replace("8192", ":".join(["59"] * 3000)), 2, "cannot be read as int"),
        (V1 + 'description: "\\ud800 \\ud83d\\ude00"\n', 0, "v1 → v2"),
        (V1.replace("a/b", '"\\ud800"'), 2, "repo is '\\ud800', expected a Hugging Face name"),
        (V1 + '"\\e[31mred\\nline\\u202e": 1\n', 0, ":5:1: \\x1b[31mred\\nline\\u202e is an unknown field"),
        (V1 + "#\n" * 5 + "? " + "a" * 100_000 + "\n: 1\n", 0, "a… is an unknown field"),
        (V1 + "a: !" + "x" * 100_000 + " 1\n", 2, ":5:4: tag …, expected none"),
        ("%TAG ! tag:yaml.org,2002:python/\n---\na: !object/apply:os.system [x]\n", 2,
         ":3:4: tag !!python/object/apply:os.system, expected none"),
        ("%YAML 2.0\n---\na: 1\n", 2, ":1:1: not YAML: found incompatible YAML document"),
        (V1 + ".nan: 1\n!!binary aGk=: 2\n2024-01-01: 3\n~: 4\n", 0, "b'hi' is an unknown field"),
        ("trt_llm: {build: 3, runtime: [1], inference_stack: {}}\nresources: 5\nsecrets: x\n", 2, "5 errors"),
        ("3\n", 2, "is 3, expected a mapping"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("output", ["text", "json"])
def test_hostile_values(config: Path, text: str, code: int, expected: str, output: str) -> None:
    """Numbers that Python cannot write, halves of characters, what a terminal acts on, tags that would run code."""
    config.write_text(text, encoding="utf-8")
    done = run("migrate", str(config), "--format", output)

    assert (done.returncode, done.stderr) == (code, "")
    assert output == "json" or expected in done.stdout
    assert "\x1b" not in done.stdout
    assert len(done.stdout) < 20_000
    (done.stdout + done.stderr).encode()
    assert output == "text" or json.loads(done.stdout)["files"]


@pytest.mark.slow
@pytest.mark.parametrize("between", ["", "        x: 1\n"])
def test_comments_by_the_thousand(config: Path, between: str) -> None:
    """Of a block that is removed: they are listed in a time that grows with the file, not with its square."""
    plugin = "    plugin_configuration:\n        paged_kv_cache: true\n"
    count = 4_000 if between else 40_000
    lines = "".join(f"        # c {number}\n{between.replace('x', f'x{number}')}" for number in range(count))
    config.write_text(V1 + plugin + lines, encoding="utf-8")
    done = run("migrate", str(config), "--write")

    assert done.returncode == 0
    assert done.stdout.count("removed with it") == count
    assert config.read_text(encoding="utf-8").count("\n") == 6


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    """A pipe would be waited for, and a device has no end; links that lead nowhere have an error as well."""
    os.mkfifo(tmp_path / "config.yaml")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    for path, expected in (
        (Path("/dev/zero"), "is no regular file"),  # first: a pipe that were opened would hang the test
        (tmp_path / "config.yaml", "is no regular file"),
        (tmp_path, "is no regular file"),
        (tmp_path / "loop", "cannot be read: Too many levels of symbolic links"),
        (tmp_path / "gone", "cannot be read: No such file or directory"),
        (tmp_path / ("a" * 300), "cannot be read: File name too long"),
    ):
        done = run("migrate", str(path), "--write")
        assert (done.returncode, done.stderr) == (2, "")
        assert expected in done.stdout


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """It is escaped in every output, and its file is migrated."""
    name = os.fsdecode(b"\xff\x1b")
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.yaml").write_text(V1, encoding="utf-8")
    for words in ((), ("--format", "diff"), ("--format", "json"), ("--write",)):
        done = run("migrate", str(folder), *words)
        assert done.returncode == 0
        assert "\\udcff" in done.stdout
        assert name not in done.stdout
        done.stdout.encode()
    assert (folder / "config.yaml.v1").exists()


def test_a_folder_that_cannot_be_read_ends_no_other(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error of its own, by its name, in every format."""
    locked, last = tmp_path / "locked", tmp_path / "z" / "config.yaml"
    locked.mkdir()
    last.parent.mkdir()
    last.write_text(V1, encoding="utf-8")
    scan = os.scandir

    def refuse(path: Any) -> Iterator[os.DirEntry[str]]:
        if Path(path) == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = json.loads(run("migrate", str(tmp_path), "--format", "json").stdout)["files"]
    assert {each["file"]: (each["status"], each["error"]) for each in found} == {
        str(config): ("changed", None), str(last): ("changed", None),
        str(locked): ("error", f"{locked}: cannot be read: Permission denied"),
    }  # fmt: skip
    done = run("migrate", str(tmp_path), "--write")
    assert (done.returncode, done.stderr) == (2, "")
    assert f"\n{locked}: cannot be read: Permission denied\n" in done.stdout
    assert done.stdout.endswith("3 files: 2 to change, 1 with errors\n")
    assert all("inference_stack: v2" in path.read_text(encoding="utf-8") for path in (config, last))
    alone = run("migrate", str(locked))
    assert (alone.returncode, alone.stdout) == (2, f"{locked}: cannot be read: Permission denied\n")


def test_a_folder_without_a_configuration_is_refused_before_anything_is_written(tmp_path: Path, config: Path) -> None:
    """It may be the wrong one."""
    empty = tmp_path / "empty"
    empty.mkdir()

    assert "empty: has no config.yaml or config.yml in it" in run("migrate", str(config), str(empty), "--write").stderr
    assert config.read_text(encoding="utf-8") == V1


@pytest.mark.parametrize("name", ["config.yaml", "f.json"])
def test_a_file_that_changes_meanwhile_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As somebody else wrote it."""
    path = tmp_path / name
    path.write_text(V1 if name == "config.yaml" else '{"quantization": "float8"}', encoding="utf-8")
    read_again = files.report_document

    def edited(*arguments: Any) -> report.FileReport:
        path.write_text("mine", encoding="utf-8")
        return read_again(*arguments)

    monkeypatch.setattr(files, "report_document", edited)
    done = run("migrate", str(path), "--write", "--checkpoint", "HF:a/b")

    assert (done.returncode, done.stdout) == (2, f"{path}: changed while it was migrated; nothing was written\n")
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert path.read_text(encoding="utf-8") == "mine"


def test_an_interrupt_leaves_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, without a part of a new one beside it."""

    def interrupt(_: int) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)

    assert run("migrate", str(config), "--write").returncode == 130
    assert {path.name: path.read_text(encoding="utf-8") for path in config.parent.iterdir()} == {"config.yaml": V1}


def options_of(*words: str) -> files.MigrationOptions:
    """Options as a user gives them."""
    parser = argparse.ArgumentParser()
    configure(parser)
    return files.read_options(parser.parse_args(["f", *words]))


BACKEND = json.dumps({
    "backend": {"name": "v4", "extra_params": {"context_length": 9, "tool_call_parser": "qwen25"}}, "warmups": {},
    "optimisations": {"speculative_decoding": {"extra_params": {"algorithm": "eagle3", "num_steps": 3}}},
    "quantization": "float8", "tensor_parallel_size": 2,
}).encode()  # fmt: skip
PIECES = (
    b"", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\r", b"\t", b"{", b"}", b"[", b",", b'"', b"\\",
    b"&a ", b"*a", b"<<: ", b"!!int ", b"? ", b"- ", b": ", b"#", b"null", b"1e999", b"0x", b"\\ud800", b"\xef\xbb\xbf",
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(
    st.sampled_from(["config.yaml", "f.json"]),
    st.integers(0, 2**32),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 8), st.sampled_from(PIECES) | st.binary(max_size=6)),
             max_size=5),
)  # fmt: skip
def test_any_bytes_are_migrated_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, damages: list[tuple[int, int, bytes]]
) -> None:
    """Every output can be printed; a file is as it was, or as the report says, which is then found to be done."""
    random = Random(seed)
    data = BACKEND if name == "f.json" else Style(random).write(draw_configuration(random)).encode()
    for at, deleted, inserted in damages:
        at %= len(data) + 1
        data = data[:at] + inserted + data[at + deleted :]
    path = tmp_path_factory.mktemp("fuzz") / name
    path.write_bytes(data)
    answers = ("--checkpoint", "HF:a/b", "--eagle3-one-model", "yes", "--speculative-model-dir", "/e", "--write")
    for words in (answers, ("--back",), ("--strict",)):
        found = files.migrate_file(path, options_of(*words))
        json.dumps(report.to_json([found]), allow_nan=False)
        (report.describe(found) + report.diff(found)).encode()
        if words is answers and found.written:
            again = files.migrate_file(path, options_of(*answers))
            assert (again.status, again.error) == ("unchanged", "")
            assert name == "f.json" or path.with_name("config.yaml.v1").read_bytes() == data
        elif words is answers:
            assert [each.name for each in path.parent.iterdir()] == [name]
            assert path.read_bytes() == data
