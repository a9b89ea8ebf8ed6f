"""The backend server's JSON: checked with its place, translated to v2, asked where v2 has no answer."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from docs.migration import list_fields
from servescope.migration.document.document import DocumentError, read_document
from servescope.migration.document.json_document import read_json
from servescope.migration.fields.backend_server import (
    ALGORITHMS,
    BACKEND_SERVER,
    PARSERS,
    check_backend_server,
    find_part,
)
from servescope.migration.fields.config_yaml import check_config
from servescope.migration.report import migration_schema
from servescope.migration.translation.backend_fates import OPTIMISATION_FATES, PIPELINE_FATES
from servescope.migration.translation.backend_translation import BackendAnswers, BackendMigration, translate_backend
from tests.migration.conftest import fill_disk
from tests.support.commands import run

# The documented default configurations, the second one without the comma that makes it no JSON.
OPTIMISATION: dict[str, Any] = {
    "backend": {"name": "auto", "version": "latest", "extra_params": {"enable_torch_compile": True}},
    "warmups": {"enabled": True, "iterations": 5, "sample_input_data": []},
    "model_type": "llm",
    "quantization": "float16",
    "optimisations": {
        "model_type": "llm",
        "attention_caching": {"type": "auto", "enabled": False, "extra_params": {}},
        "speculative_decoding": {"type": "auto", "enabled": False, "extra_params": {}},
    },
    "tensor_parallel_size": 1,
}
PIPELINE: dict[str, Any] = {
    "mode": "chat", "type": "llm", "loras": [],
    "lora_repo": {"path": "", "type": "", "secret": {"type": ""}, "ownership": ""}, "load_lora_dynamic": False,
}  # fmt: skip
CHECKPOINT = ("--checkpoint", "HF:a/b")


def check(text: str) -> list[str]:
    """The findings of a text, as compilers print them."""
    document = read_json(text, "f.json")
    part = find_part(document)
    assert part is not None
    return [
        f"{each.severity}:{each.line}:{each.column}: {each.sentence}" for each in check_backend_server(document, part)
    ]


def translated(config: object, **answers: Any) -> BackendMigration:
    return translate_backend(read_json(json.dumps(config), "f.json"), None, BackendAnswers(**answers))


def speculating(**settings: Any) -> dict[str, Any]:
    """A configuration that speculates."""
    return {"optimisations": {"speculative_decoding": {"enabled": True, "extra_params": settings}}}


def test_the_documented_defaults_are_right() -> None:
    """Both of them, and nothing is said of them."""
    assert check(json.dumps(OPTIMISATION)) == []
    assert check(json.dumps(PIPELINE)) == []


@pytest.mark.reference
def test_the_samples_of_the_seed(reference: Path) -> None:
    """The first is right; the second has a comma that JSON does not have, whose place is named."""
    text = (reference / "reference" / "seeds" / "5-backend-server-options.txt").read_text(encoding="utf-8")
    first, second = re.findall(r"(?ms)^\{$.*?^\}$", text)

    assert json.loads(first) == OPTIMISATION
    assert check(first) == []
    assert json.loads(second.replace("false,\n}", "false\n}")) == PIPELINE
    with pytest.raises(DocumentError, match=r"^f\.json:13:29: not JSON: a comma before '}'"):
        read_json(second, "f.json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"quantization": "int4"}',
         ["error:1:18: quantization is 'int4', expected one of: float16, float8, w4"]),
        ('{"optimizations": {}, "tensor_parallel_size": 1.0}',
         ["warning:1:2: optimizations is an unknown field, did you mean 'optimisations'?",
          "error:1:47: tensor_parallel_size is 1.0, expected a whole number of 1 or more"]),
        ('{"backend": {"name": "v5"}}', ["error:1:22: backend.name is 'v5', expected one of: auto, v3, v4"]),
        ('{"backend": {"name": "v3", "extra_params":\n {"max_total_tokens": 5}}}',
         ["error:2:3: backend.extra_params.max_total_tokens is a parameter of backend v4, and backend.name is v3"]),
        ('{"backend": {"name": "v3", "extra_params":\n {"reasoning_parser": "deepseek-r1"}}}',
         ["error:2:23: backend.extra_params.reasoning_parser is 'deepseek-r1', a parser of backend v4, expected one of "
          "v3: deepseek_r1, qwen3"]),
        ('{"backend": {"name": "v4", "extra_params":\n {"tool_call_parser": "hermes"}}}',
         ["error:2:23: backend.extra_params.tool_call_parser is 'hermes', a parser of backend v3, expected one of "
          "v4: mistral, llama4, llama3, qwen25"]),
        ('{"backend": {"extra_params":\n {"tool_call_parser": "hermes", "max_total_tokens": 5}}}',
         ["error:2:2: backend.extra_params has tool_call_parser 'hermes' of backend v3 beside max_total_tokens of v4: "
          "no backend has both"]),
        ('{"backend": {"extra_params": {"gpu_memory_utilization": 1.01}}}',
         ["error:1:57: backend.extra_params.gpu_memory_utilization is 1.01, expected a number of 0 to 1"]),
        ('{"backend": {"extra_params": {"max_prefill_tokens": null}}}',
         ["error:1:53: backend.extra_params.max_prefill_tokens is null, expected a whole number of 1 or more"]),
        ('{"backend": {"extra_params": {"context_length": null, "torch_compile_max_bs": 8}}}',
         ["warning:1:79: backend.extra_params.torch_compile_max_bs has no effect: enable_torch_compile is false, "
          "which is its default"]),
        ('{"optimisations": {"speculative_decoding": {"extra_params": {"algorithm": "lookahead", "num_steps": 0}}}}',
         ["error:1:75: optimisations.speculative_decoding.extra_params.algorithm is 'lookahead', expected one of: "
          "draft, n-gram, eagle, eagle3, nextn",
          "error:1:101: optimisations.speculative_decoding.extra_params.num_steps is 0, expected a whole number of 1 "
          "or more"]),
        ('{"backend": {}, "mode": "chat"}',
         ["error:1:17: mode belongs into the pipeline configuration, a file of its own"]),
        ('{"mode": "rerank", "loras": [1]}',
         ["error:1:10: mode is 'rerank', expected one of: chat, completion, embedding",
          "error:1:30: loras[0] is 1, expected a mapping"]),
        ('{"loras": [{}], "load_lora_dynamic": true}',
         ["warning:1:38: load_lora_dynamic is true beside one adapter, which is merged into the model instead"]),
    ],
)  # fmt: skip
def test_what_is_wrong_names_its_place(text: str, expected: list[str]) -> None:
    """Types, ranges, choices, what belongs to one backend only, and fields that nobody knows."""
    assert check(text) == expected


def test_the_fields_of_the_samples_become_v2s() -> None:
    """Each in its place; what is null sets nothing."""
    parameters = {"context_length": 32768, "max_running_requests": 64, "max_prefill_tokens": 16384,
                  "gpu_memory_utilization": None}  # fmt: skip
    config = OPTIMISATION | {"backend": {"name": "v4", "extra_params": parameters}, "tensor_parallel_size": 2,
                             "quantization": "float8"}  # fmt: skip
    found = translated(config, checkpoint="HF:a/b", accelerator="H100")

    assert yaml.safe_load(found.text or "") == {
        "resources": {"accelerator": "H100:2"},
        "trt_llm": {
            "inference_stack": "v2",
            "build": {"checkpoint_repository": {"source": "HF", "repo": "a/b"}, "quantization_type": "fp8"},
            "runtime": {"max_seq_len": 32768, "max_batch_size": 64, "max_num_tokens": 16384, "tensor_parallel_size": 2},
        },
    }
    assert found.speculative_config is None


@pytest.mark.parametrize(
    ("settings", "answers", "expected"),
    [
        ({"algorithm": "n-gram", "num_steps": 3, "topk": 2}, {}, {"decoding_type": "NGram"}),
        ({"algorithm": "eagle", "draft_model_path": "/e", "num_steps": 3, "tp_size": 2}, {},
         {"decoding_type": "Eagle", "speculative_model_dir": "/e", "max_draft_len": 3}),
        ({"algorithm": "eagle", "draft_model_path": "/e"}, {},
         {"decoding_type": "Eagle", "speculative_model_dir": "/e", "max_draft_len": 5}),
        ({"algorithm": "eagle", "draft_model_path": None}, {"speculative_model_dir": "/f"},
         {"decoding_type": "Eagle", "speculative_model_dir": "/f", "max_draft_len": 5}),
        ({"algorithm": "eagle3", "draft_model_path": "/e"}, {"eagle3_one_model": False},
         {"decoding_type": "Eagle", "speculative_model_dir": "/e", "max_draft_len": 5, "eagle3_one_model": False}),
        ({"algorithm": "nextn", "num_steps": 1}, {"num_nextn_predict_layers": 1},
         {"decoding_type": "MTP", "num_nextn_predict_layers": 1}),
        ({"algorithm": "draft"}, {"has_speculation": True}, None),
    ],
)  # fmt: skip
def test_speculation_moves_to_the_management_api(
    settings: dict[str, Any], answers: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    """Each algorithm as v2 has it; every value of it is among the changes."""
    found = translated(speculating(**settings), checkpoint="HF:a/b", **answers)

    assert found.text is not None, found.questions
    assert found.speculative_config == expected
    reported = {each.after.rpartition(".")[2]: each.new_value for each in found.changes
                if each.after.startswith("llm_config.speculative_config.")}  # fmt: skip
    assert reported == (expected or {})


@pytest.mark.parametrize(
    ("config", "path", "kind", "flag"),
    [
        ({"quantization": "w4"}, "quantization", "asked", "--quantization-type TYPE"),
        ({"backend": {"extra_params": {"context_length": 1048577}}}, "backend.extra_params.context_length", "asked",
         "--max-seq-len N"),
        ({"backend": {"extra_params": {"max_running_requests": 2049}}}, "backend.extra_params.max_running_requests",
         "asked", "--max-batch-size N"),
        ({"backend": {"extra_params": {"max_prefill_tokens": 64}}}, "backend.extra_params.max_prefill_tokens", "asked",
         "--max-num-tokens N"),
        (speculating(algorithm="draft"), "optimisations.speculative_decoding.extra_params.algorithm", "blocking",
         "--n-gram, or --llm-config FILE"),
        ({"optimisations": {"speculative_decoding": {}}}, "optimisations.speculative_decoding.extra_params.algorithm",
         "blocking", "--n-gram, or --llm-config FILE"),
        (speculating(algorithm="eagle"), "llm_config.speculative_config.speculative_model_dir", "asked",
         "--speculative-model-dir PATH"),
        (speculating(algorithm="eagle3", draft_model_path="/e"), "llm_config.speculative_config.eagle3_one_model",
         "asked", "--eagle3-one-model yes|no"),
        (speculating(algorithm="nextn"), "llm_config.speculative_config.num_nextn_predict_layers", "asked",
         "--num-nextn-predict-layers N"),
        (PIPELINE | {"mode": "embedding"}, "mode", "blocking", ""),
        (PIPELINE | {"loras": [{"id": "x"}]}, "loras", "blocking", ""),
        (PIPELINE | {"load_lora_dynamic": True}, "load_lora_dynamic", "blocking", ""),
    ],
)  # fmt: skip
def test_what_is_asked_or_stops_the_move(config: dict[str, Any], path: str, kind: str, flag: str) -> None:
    """Nothing is translated, and the question names the option that answers it."""
    found = translated(config, checkpoint="HF:a/b")

    assert found.text is None
    assert [(each.path, each.kind, each.flag) for each in found.questions] == [(path, kind, flag)]


def test_a_pipeline_beside_it_stops_the_move() -> None:
    """Its questions and its fields are among those of the optimisation configuration."""
    pipeline = read_json(json.dumps(PIPELINE | {"mode": "embedding"}), "p.json")
    found = translate_backend(read_json(json.dumps(OPTIMISATION), "f.json"), pipeline, BackendAnswers("HF:a/b"))

    assert found.text is None
    assert [each.path for each in found.questions] == ["pipeline.mode"]
    assert "pipeline.lora_repo.secret.type" in {each.before for each in found.changes}


def test_every_field_has_a_fate() -> None:
    """The table of what happens has each field of the table of what a field may be, but for what holds others."""
    for part, fates in (("optimisation", OPTIMISATION_FATES), ("pipeline", PIPELINE_FATES)):
        known = [path for path, _ in list_fields(BACKEND_SERVER[part])]  # type: ignore[index]  # both are parts
        paths = [fate.v1 for fate in fates]
        holding = {path for path in known if any(each.startswith(f"{path}.") for each in known)}
        assert sorted(paths) == sorted(set(known) - holding)
        assert all(bool(fate.v2) == (fate.kind in ("moved", "renamed")) for fate in fates)


SIZES = st.none() | st.integers(1, 3_000_000)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Valid optimisation configurations of any backend."""
    name = draw(st.sampled_from(["auto", "v3", "v4"]))
    parameters: dict[str, Any] = {"context_length": draw(SIZES), "gpu_memory_utilization": draw(st.floats(0, 1))}
    if name != "v3":
        parameters |= {"max_running_requests": draw(SIZES), "max_prefill_tokens": draw(st.integers(1, 200_000))}
    backend = "v4" if name == "auto" else name
    parameters |= {key: draw(st.sampled_from(names[backend])) for key, names in PARSERS.items()}
    settings = {"algorithm": draw(st.sampled_from(ALGORITHMS)), "num_steps": draw(st.integers(1, 9)),
                "draft_model_path": draw(st.none() | st.text(min_size=1, max_size=5))}  # fmt: skip
    config = {
        "backend": {"name": name, "extra_params": parameters},
        "quantization": draw(st.sampled_from(["float16", "float8", "w4"])),
        "optimisations": {"speculative_decoding": {"enabled": draw(st.booleans()), "extra_params": settings}},
        "tensor_parallel_size": draw(st.integers(1, 8)),
    }
    return {key: config[key] for key in draw(st.permutations(sorted(config)))}


@pytest.mark.slow
@given(configurations(), st.sampled_from([None, 1]), st.booleans())
def test_any_configuration_is_translated_once_it_is_answered(
    config: dict[str, Any], indent: int | None, is_ascii: bool
) -> None:
    """To a file that is valid, with every value that v2 has room for; the questions are what was missing."""
    document = read_json(json.dumps(config, indent=indent, ensure_ascii=is_ascii), "f.json")
    assert [each for each in check_backend_server(document, "optimisation") if each.severity == "error"] == []
    asked = translate_backend(document)
    assert asked.text is None
    answers = BackendAnswers("HF:a/b", "B200", "fp4", "/e", True, 2, 4096, 128, 8192)
    found = translate_backend(document, None, answers)
    assert {each.path for each in found.questions} == {each.path for each in asked.questions if "--n-gram" in each.flag}
    if found.questions:
        found = translate_backend(document, None, BackendAnswers("HF:a/b", "B200", "fp4", "/e", True, 2, 4096, 128,
                                                                 8192, has_speculation=True))  # fmt: skip

    assert check_config(read_document(found.text or "", "config.yaml")) == []
    runtime = yaml.safe_load(found.text or "")["trt_llm"]["runtime"]
    parameters = config["backend"]["extra_params"]
    for name, limit, answer in (("context_length", 1_048_576, 4096), ("max_running_requests", 2048, 128)):
        size, after = parameters.get(name), {"context_length": "max_seq_len"}.get(name, "max_batch_size")
        assert runtime.get(after) == (size if size is None or size <= limit else answer)
    assert runtime["tensor_parallel_size"] == config["tensor_parallel_size"]


@pytest.fixture
def optimisation(tmp_path: Path) -> Path:
    path = tmp_path / "optimization.json"
    path.write_text(json.dumps(OPTIMISATION | speculating(algorithm="n-gram"), indent=2), encoding="utf-8")
    return path


def test_writing_makes_new_files_beside(optimisation: Path) -> None:
    """The configuration and the body; a second time there is nothing to do; another file there is kept."""
    before = optimisation.read_bytes()
    assert run("migrate", str(optimisation), "--check", *CHECKPOINT).returncode == 1
    done = run("migrate", str(optimisation), "--write", *CHECKPOINT)

    made = [optimisation.with_name(name) for name in ("config.yaml", "llm_models.json")]
    assert (done.returncode, done.stderr) == (0, "")
    assert f"written: {made[0]}, {made[1]}; the old file is {optimisation}\n" in done.stdout
    assert optimisation.read_bytes() == before
    assert json.loads(made[1].read_text()) == {"llm_config": {"speculative_config": {"decoding_type": "NGram"}}}
    assert run("migrate", str(made[0]), "--check").returncode == 0
    assert run("migrate", str(made[1]), "--check").returncode == 0
    again = run("migrate", str(optimisation), "--check", *CHECKPOINT)
    assert (again.returncode, again.stdout) == (
        0, f"{optimisation}: config.yaml and llm_models.json are there already: nothing to do\n"
    )  # fmt: skip

    made[0].write_text("model_name: mine\n")
    refused = run("migrate", str(optimisation), "--write", *CHECKPOINT)
    assert (refused.returncode, made[0].read_text()) == (2, "model_name: mine\n")
    assert (
        "config.yaml: is there already, and not what optimization.json becomes; nothing was written" in refused.stdout
    )


@pytest.mark.parametrize("writes", [0, 1])
def test_a_write_that_fails_leaves_nothing(optimisation: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Neither of the two files."""
    fill_disk(monkeypatch, after=writes)
    done = run("migrate", str(optimisation), "--write", *CHECKPOINT)

    assert (done.returncode, done.stdout) == (2, f"{optimisation}: cannot be written: No space left on device\n")
    assert [each.name for each in optimisation.parent.iterdir()] == ["optimization.json"]


@pytest.mark.parametrize(
    ("text", "words", "code", "expected"),
    [
        (json.dumps(OPTIMISATION), [], 3, "answer with --checkpoint SOURCE:REPO"),
        (json.dumps(OPTIMISATION), [*CHECKPOINT], 0, "+    tensor_parallel_size: 1"),
        (json.dumps(OPTIMISATION | {"quantization": "w4"}), [*CHECKPOINT, "--quantization-type", "fp4",
                                                             "--accelerator", "H100"], 2,
         "its translation would not be valid: trt_llm.build.quantization_type is fp4, which requires B200 or newer"),
        (json.dumps(speculating(algorithm="draft")), [*CHECKPOINT], 3, "answer with --n-gram, or --llm-config FILE"),
        (json.dumps(speculating(algorithm="draft")), [*CHECKPOINT, "--n-gram"], 0, '"decoding_type": "NGram"'),
        (json.dumps(PIPELINE), [], 0, "a pipeline configuration of the backend server, for --pipeline"),
        (json.dumps(OPTIMISATION), ["--back"], 2, "expected a configuration of v2 for --back"),
        (json.dumps(OPTIMISATION | {"x": 1}), ["--strict", *CHECKPOINT], 2, "error: "),
        ('{"mode": "chat",}', [], 2, ":1:16: not JSON: a comma before '}'"),
        ('{"foo": 1}', [], 2, ":1:1: is no configuration that is known, expected a Truss configuration (trt_llm)"),
        ("[]", [], 2, "is no configuration that is known"),
        ('{"llm_config": {}}', [], 0, "a body of the Management API: nothing to migrate"),
        ('{"model_name": "x"}', [], 0, "no trt_llm block: nothing to migrate"),
    ],
)  # fmt: skip
def test_a_json_file_is_recognised_by_its_keys(
    tmp_path: Path, text: str, words: list[str], code: int, expected: str
) -> None:
    """The backend server's, a body of the Management API, a Truss configuration; or an error says what it may be."""
    path = tmp_path / "f.json"
    path.write_text(text, encoding="utf-8")
    done = run("migrate", str(path), *words)

    assert done.returncode == code, done.stdout
    assert expected in done.stdout
    assert [each.name for each in tmp_path.iterdir()] == ["f.json"]


def test_a_name_without_json_is_refused(tmp_path: Path) -> None:
    """YAML reads it in another way."""
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(OPTIMISATION), encoding="utf-8")
    done = run("migrate", str(path), *CHECKPOINT)

    assert done.returncode == 2
    assert "is the backend server's by its keys, which is JSON: name it with .json" in done.stdout


def test_the_report_is_as_the_schema_says_and_shows_no_secrets(tmp_path: Path, optimisation: Path) -> None:
    """What is within lists, mappings and unknown fields is in none of the reports."""
    pipeline = tmp_path / "pipeline.json"
    secret = {"type": "hf", "token": "hf_topsecret"}
    pipeline.write_text(json.dumps(PIPELINE | {"lora_repo": {"secret": secret}}), encoding="utf-8")
    config = json.loads(optimisation.read_text()) | {"warmups": {"sample_input_data": [{"prompt": "topsecret"}]}}
    optimisation.write_text(json.dumps(config), encoding="utf-8")
    words = ("migrate", str(optimisation), "--pipeline", str(pipeline), *CHECKPOINT)
    report = json.loads(run(*words, "--format", "json").stdout)
    jsonschema.Draft202012Validator(migration_schema()).validate(report)
    (file,) = report["files"]

    assert (file["status"], file["from"], file["to"]) == ("changed", "backend-server", "v2")
    assert [Path(each).name for each in file["new_files"]] == ["config.yaml", "llm_models.json"]
    assert file["management_api"]["body"] == {"llm_config": {"speculative_config": {"decoding_type": "NGram"}}}
    assert "topsecret" not in json.dumps(report) + run(*words).stdout + run("migrate", str(pipeline)).stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--quantization-type", "w4"], "--quantization-type is 'w4', expected one of: no_quant, fp8"),
        (["--max-batch-size", "2049"], "--max-batch-size is 2049, expected a whole number of 1 to 2048"),
        (["--num-nextn-predict-layers", "0"], "--num-nextn-predict-layers is 0, expected a whole number of 1 or more"),
        (["--accelerator", "H1000"], "--accelerator is 'H1000', expected one of: T4"),
        (["--checkpoint", "a/b"], "--checkpoint is 'a/b', expected SOURCE:REPO"),
        (["--pipeline", "f.json"], "f.json: is no pipeline configuration in JSON"),
        (["--pipeline", "p.json"], "p.json:1:10: mode is 'x', expected one of: chat, completion, embedding"),
    ],
)
def test_wrong_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str) -> None:
    """Exit code 2, and what was expected."""
    monkeypatch.chdir(tmp_path)
    Path("f.json").write_text(json.dumps(OPTIMISATION), encoding="utf-8")
    Path("p.json").write_text('{"mode": "x"}', encoding="utf-8")
    done = run("migrate", "f.json", *words)

    assert done.returncode == 2
    assert expected in done.stderr


def test_a_plan_is_drafted_of_it(optimisation: Path) -> None:
    """With the hashes of both configurations and of the body, as of a config.yaml."""
    plan = optimisation.with_name("plan.toml")
    done = run("migrate", str(optimisation), "--plan", str(plan), *CHECKPOINT)
    (file,) = json.loads(run("migrate", str(optimisation), "--format", "json", *CHECKPOINT).stdout)["files"]

    assert done.returncode == 0
    hashes = tomllib.loads(plan.read_text(encoding="utf-8"))["configurations"]
    assert (hashes["v1"], hashes["v2"]) == (file["hash"], file["new_hash"])
    assert "management_api" in hashes
