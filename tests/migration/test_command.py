"""`servescope migrate`: what it prints, writes and returns."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from servescope.migration.document.document import LARGEST_BYTES
from servescope.migration.report import migration_schema
from tests.migration.conftest import fill_disk, names_in
from tests.support.commands import Done, run

V1 = """\
model_name: mine
trt_llm:
  build:
    # the engine
    base_model: decoder
    checkpoint_repository: {source: HF, repo: a/b}
    max_num_tokens: 8192
    speculator:
      speculative_decoding_mode: LOOKAHEAD_DECODING
      lookahead_windows_size: 7
      lookahead_ngram_size: 5
      lookahead_verification_set_size: 3
    max_batch_size: 32
  runtime:
    request_default_max_tokens: 100
    webserver_default_route: /predict
"""
V2 = """\
model_name: mine
trt_llm:
  inference_stack: v2
  build:
    checkpoint_repository: {source: HF, repo: a/b}
  runtime:
    max_num_tokens: 8192
    max_batch_size: 32
"""
BIG = V1.replace("8192", "200000")
LORA = V1.replace("base_model: decoder", "lora_adapters: {x: {source: HF, repo: a/c}}")
WRONG = V1.replace("8192", "1")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(V1, encoding="utf-8")
    return path


def read_json(done: Done) -> Any:
    """The report of a command, which has to be as the schema describes it."""
    report = json.loads(done.stdout)
    jsonschema.Draft202012Validator(migration_schema()).validate(report)
    return report


def test_the_report_says_what_changes_and_why(config: Path) -> None:
    """Every field with its line, what clients see, and the diff; nothing is written."""
    done = run("migrate", str(config))

    assert done.returncode == 0
    assert f"{config}: v1 → v2\n" in done.stdout
    assert "  line 7  build.max_num_tokens: 8192 → runtime.max_num_tokens: 8192  (moved)\n" in done.stdout
    assert "removed with it, line 4: # the engine\n" in done.stdout
    assert "Clients: Requests without max_tokens no longer stop at 100 tokens" in done.stdout
    assert "Clients: No default route: requests without a path no longer reach /predict." in done.stdout
    assert "Speculation: Lookahead (7, 5, 3) is gone" in done.stdout
    assert (
        "Tier: Eagle, MTP, KV-aware routing and disaggregated serving need the vendor's Enterprise tier." in done.stdout
    )
    assert "\n-    base_model: decoder\n" in done.stdout
    assert "api.baseten.co" not in done.stdout
    assert config.read_text(encoding="utf-8") == V1
    assert names_in(config.parent) == ["config.yaml"]


def test_writing_keeps_the_old_file(config: Path) -> None:
    """Beside it, with its mode; a second time there is nothing to do."""
    config.chmod(0o640)
    done = run("migrate", str(config), "--write")

    kept = config.with_name("config.yaml.v1")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"written: {config}; the old file is {kept}\n" in done.stdout
    assert (config.read_text(encoding="utf-8"), kept.read_text(encoding="utf-8")) == (V2, V1)
    assert config.stat().st_mode & 0o777 == 0o640
    assert names_in(config.parent) == ["config.yaml", "config.yaml.v1"]
    again = run("migrate", str(config), "--write")
    assert (again.returncode, again.stdout) == (0, f"{config}: declares v2 already: nothing to do\n")


def test_on_the_way_back_v1_is_what_has_no_place(config: Path) -> None:
    """For a field that is dropped; and a version of v2's image is named, as one of v1's is on the way there."""
    kept = V2.replace("  build:", "  version_overrides: {v2_llm_version: x-1}\n  build:")
    config.write_text(f"{kept}    patch_kwargs: {{a: 1}}\n", encoding="utf-8")
    shown = run("migrate", str(config), "--back").stdout

    assert "runtime.patch_kwargs: a mapping  (dropped, as v1 has no equivalent)" in shown
    assert "Ignored: version_overrides.v2_llm_version x-1 is of an image of v2. [truss 0.18.35]" in shown


def test_writing_back_restores_v1(config: Path) -> None:
    """With what v1 has of it; the v2 file is kept."""
    config.write_text(V2, encoding="utf-8")
    done = run("migrate", str(config), "--write", "--back")

    assert done.returncode == 0
    assert "Memory: What only v1 has returns at its default: kv_cache_free_gpu_mem_fraction 0.9" in done.stdout
    assert (
        "Speculation: Speculation, KV-aware routing and disaggregation of the Management API have no place"
        in done.stdout
    )
    assert "Autoscaling: v1 scales on requests: set concurrency_target" in done.stdout
    assert config.with_name("config.yaml.v2").read_text(encoding="utf-8") == V2
    assert config.read_text(encoding="utf-8") == (
        "model_name: mine\ntrt_llm:\n  inference_stack: v1\n  build:\n    max_num_tokens: 8192\n"
        "    max_batch_size: 32\n    checkpoint_repository: {source: HF, repo: a/b}\n  runtime: {}\n"
    )


def test_a_link_is_followed(tmp_path: Path) -> None:
    """The file it leads to is written, and it stays a link."""
    target, link = tmp_path / "real.yaml", tmp_path / "config.yaml"
    target.write_text(V1, encoding="utf-8")
    link.symlink_to(target)

    assert run("migrate", str(link), "--write").returncode == 0
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == V2


@pytest.mark.parametrize("writes", [0, 1])
def test_a_write_that_fails_leaves_the_file(config: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Whole, and no other file beside it; the error names it: the copy's write fails, or the file's own."""
    fill_disk(monkeypatch, after=writes)
    done = run("migrate", str(config), "--write")

    assert done.returncode == 2
    assert done.stdout == f"{config}: cannot be written: No space left on device\n"
    assert config.read_text(encoding="utf-8") == V1
    assert names_in(config.parent) == ["config.yaml"]


@pytest.mark.parametrize(
    ("text", "words", "code"),
    [
        (V1, [], 0), (V1, ["--check"], 1), (V2, ["--check"], 0), ("model_name: x\n", ["--check"], 0),
        (V2, ["--back", "--check"], 1), (V1, ["--back", "--check"], 0),
        (BIG, [], 3), (BIG, ["--check"], 3), (BIG, ["--write"], 3), (LORA, [], 3), (LORA, ["--format", "json"], 3),
        (BIG, ["--max-num-tokens", "65536"], 0), (BIG, ["--max-num-tokens", "65536", "--check"], 1),
        (WRONG, [], 2), (WRONG, ["--check"], 2), ("a: [", [], 2), (V1 + "foo: 1\n", ["--check"], 1),
        (V1 + "foo: 1\n", ["--strict"], 2), ("llm_config: {}", [], 0), ("llm_config: []", [], 2),
    ],
)  # fmt: skip
def test_exit_codes(config: Path, text: str, words: list[str], code: int) -> None:
    """0 done, 1 would change, 2 an error, 3 an answer is needed; only --write writes, and only what was translated."""
    config.write_text(text, encoding="utf-8")

    assert run("migrate", str(config), *words).returncode == code
    assert config.read_text(encoding="utf-8") == text


def test_questions_name_the_option_that_answers_them(config: Path) -> None:
    """And where in the file they come from."""
    config.write_text(BIG, encoding="utf-8")

    assert (
        "    trt_llm.build.max_num_tokens (line 7) is 200000, above v2's limit of 131072: decide how many tokens a "
        "pass may have; answer with --max-num-tokens N\n"
    ) in run("migrate", str(config)).stdout


def test_errors_have_their_place(config: Path) -> None:
    """File, line and column, as compilers print them."""
    config.write_text(WRONG, encoding="utf-8")

    assert run("migrate", str(config)).stdout == (
        f"{config}: 1 error: nothing was translated\n"
        f"  error: {config}:7:21: trt_llm.build.max_num_tokens is 1, expected a whole number of 65 to 1048576\n"
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a: \xff", ":1:4: byte 0xff, expected UTF-8 text\n"),
        (b"a: 1\na: 2", ":2:1: key 'a' is there a second time, first in line 1\n"),
        (b"[" * 100_000, ":1:51: nested deeper than 50\n"),
        (b"#" * (LARGEST_BYTES + 1), f" has {LARGEST_BYTES + 1} bytes, expected at most {LARGEST_BYTES}\n"),
        (None, " cannot be read: No such file or directory\n"),
    ],
)
def test_bad_files(config: Path, data: bytes | None, expected: str) -> None:
    """An error with its place and exit code 2, and no traceback."""
    config.unlink()
    if data is not None:
        config.write_bytes(data)
    done = run("migrate", str(config))

    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith(f"{config}:")
    assert done.stdout.endswith(expected)


def test_a_folder_at_once(tmp_path: Path) -> None:
    """Every config.yaml in it, hidden folders left out; one bad file stops no other; one summary."""
    for name, text in (("a", V1), ("b/c", V2), ("d", BIG), ("e", WRONG), ("f", V1), ("g", LORA), (".git", V1)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "a" / "other.yaml").write_text("a: [", encoding="utf-8")
    done = run("migrate", str(tmp_path), "--write")

    assert done.returncode == 2
    assert done.stdout.endswith(
        "\n6 files: 2 to change, 1 with nothing to do, 1 waiting for an answer, 1 blocked, 1 with errors\n"
    )
    written = [
        (tmp_path / name / "config.yaml").read_text(encoding="utf-8") for name in ("a", "b/c", "d", "e", "f", ".git")
    ]
    assert written == [V2, V2, BIG, WRONG, V2, V1]
    assert run("migrate", str(tmp_path / "b")).returncode == 0
    assert run("migrate", str(tmp_path / "b" / "c"), str(tmp_path / "f")).stdout.endswith(
        "2 files: 2 with nothing to do\n"
    )


def test_json_is_as_the_schema_says(tmp_path: Path) -> None:
    """For every kind of file; with values that JSON does not have."""
    texts = {"a": V1, "b": V2, "c": BIG, "d": WRONG, "e": "a: [", "f": "x: 2024-01-02\n", "g": "llm_config: {}\n"}
    texts["h"] = V2.replace("runtime:", "runtime:\n    patch_kwargs: {a: .inf, '1': 2024-01-02, b: !!binary aGk=}")
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text, encoding="utf-8")
    report = read_json(run("migrate", str(tmp_path), "--format", "json"))
    back = read_json(run("migrate", str(tmp_path), "--format", "json", "--back"))

    assert [each["status"] for each in report["files"]] == [
        "changed", "unchanged", "asked", "error", "error", "unchanged", "unchanged", "unchanged",
    ]  # fmt: skip
    assert report["summary"] == {"changed": 1, "unchanged": 4, "asked": 1, "error": 2}
    assert [each["path"] for each in report["files"][2]["questions"]] == ["trt_llm.build.max_num_tokens"]
    assert report["files"][4]["error"].endswith("expected the node content, but found '<stream end>'")
    (kwargs,) = [each for each in back["files"][7]["changes"] if each["before"] == "runtime.patch_kwargs"]
    assert kwargs["value"] == {"a": "inf", "1": "2024-01-02", "b": "b'hi'"}


def test_the_diff_can_be_applied(tmp_path: Path) -> None:
    """By `patch`, to a file that does not end its last line as well."""
    for text in (V1, V1.rstrip("\n"), V1.replace("\n", "\r\n")):
        path = tmp_path / "config.yaml"
        path.write_bytes(text.encode())
        difference = run("migrate", str(path), "--format", "diff").stdout
        subprocess.run(["patch", "--binary", "-s", str(path)], input=difference.encode(), check=True, cwd=tmp_path)
        run("migrate", str(path), "--check")

        assert run("migrate", str(path), "--check").returncode == 0
        assert path.read_bytes().decode().replace("\r\n", "\n").rstrip("\n") == V2.rstrip("\n")


def test_the_body_for_the_management_api(config: Path, tmp_path: Path) -> None:
    """What was decided, with the call that sends it, and what needs the Enterprise tier."""
    own = tmp_path / "own.json"
    own.write_text('{"is_disaggregated": true, "b10_disagg_config": {"prefill_workers_per_replica": 1, '
                   '"decode_workers_per_replica": 2}}', encoding="utf-8")  # fmt: skip
    words = ("--n-gram", "--concurrency-target", "10", "--tokens-per-request", "5000", "--llm-config", str(own))
    body = read_json(run("migrate", str(config), "--format", "json", *words))["files"][0]["management_api"]

    assert body["body"] == {
        "llm_config": {
            "is_disaggregated": True,
            "b10_disagg_config": {"prefill_workers_per_replica": 1, "decode_workers_per_replica": 2},
            "speculative_config": {"decoding_type": "NGram"},
        },
        "autoscaling_settings": {"target_in_flight_tokens": 50000},
    }
    assert body["enterprise"] == ["disaggregated serving"]
    assert (
        "  The call of the Management API (needs the Enterprise tier: disaggregated serving):\n"
        in run("migrate", str(config), *words).stdout
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max-num-tokens", "131073"], "--max-num-tokens is 131073, expected 65 to 131072"),
        (["--concurrency-target", "10"], "--concurrency-target needs --tokens-per-request beside it"),
        (["--concurrency-target", "10", "--tokens-per-request", "nan"], "--tokens-per-request is nan, expected"),
        (["--target-in-flight-tokens", "9", "--concurrency-target", "10"], "expected one of both"),
        (["--target-in-flight-tokens", "0"], "settings.target_in_flight_tokens is 0, expected"),
        (["--llm-config", "missing.json"], "missing.json: cannot be read: No such file or directory"),
        (["--write", "--check"], "not allowed with argument"),
        (["--check"], "has no config.yaml or config.yml in it"),
        ([], "no CONFIG is given"),
    ],
)  # fmt: skip
def test_wrong_usage(tmp_path: Path, words: list[str], expected: str) -> None:
    """Exit code 2, and what was expected."""
    done = run("migrate", *([str(tmp_path)] if words else []), *words)

    assert done.returncode == 2
    assert expected in done.stderr


def test_an_llm_config_that_is_wrong_names_its_place(config: Path, tmp_path: Path) -> None:
    """In its own file."""
    own = tmp_path / "own.json"
    own.write_text('{"speculative_config":\n {"decoding_type": "Eagle"}}', encoding="utf-8")
    done = run("migrate", str(config), "--llm-config", str(own))

    assert done.returncode == 2
    assert f"{own}:2:2: llm_config.speculative_config.speculative_model_dir is missing" in done.stderr
