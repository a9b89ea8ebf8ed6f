"""docs/migration.md: every field of the vendor's reference has its row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servescope.migration.document.document import read_document
from servescope.migration.translation.fates import FATES
from servescope.migration.translation.translation import translate
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
ROWS = re.findall(r"(?m)^\|(.*)\|$", PAGE)
LAST_NAMES = {cell.strip(" `").removesuffix("[]").rpartition(".")[2] for row in ROWS for cell in row.split(" | ")[:2]}

# The names of the seeds' references, by their sections.
DOCUMENTED = {
    "config.yaml": """model_name description model_class_name model_module_dir data_dir bundled_packages_dir
        external_package_dirs environment_variables model_metadata requirements_file requirements system_packages
        python_version secrets examples_filename live_reload apply_library_patches cpu memory accelerator instance_type
        node_count predict_concurrency streaming_read_timeout enable_tracing_data enable_debug_logs transport
        health_checks startup_threshold_seconds stop_traffic_threshold_seconds restart_threshold_seconds
        restart_check_delay_seconds image python_executable_path docker_auth auth_method secret_name registry
        aws_access_key_id_secret_name aws_secret_access_key_secret_name start_command server_port predict_endpoint
        readiness_endpoint liveness_endpoint run_as_user_id no_build url local_data_path name backend build_commands
        secret_to_path_mapping source mount_location auth_secret_name auth allow_patterns ignore_patterns repo_id kind
        revision use_volume volume_folder runtime_secret_name download_folder artifact_references training_job_id
        paths""",
    "trt_llm": """inference_stack base_model checkpoint_repository quantization_type tensor_parallel_count max_seq_len
        max_batch_size max_num_tokens num_builder_gpus lora_adapters lora_configuration speculator
        moe_expert_parallel_option source repo revision runtime_secret_name calib_size calib_dataset
        calib_max_seq_length kv_cache_free_gpu_mem_fraction kv_cache_host_memory_bytes enable_chunked_context
        batch_scheduler_policy request_default_max_tokens served_model_name total_token_limit webserver_default_route
        tensor_parallel_size enable_chunked_prefill speculative_decoding_mode lookahead_windows_size
        lookahead_ngram_size lookahead_verification_set_size num_draft_tokens enable_b10_lookahead max_lora_rank
        lora_target_modules plugin_configuration paged_kv_cache use_paged_context_fmha use_fp8_context_fmha
        skip_build_result quantization_config""",
    "llm_config": """router_queue_policy router_overlap_score_weight router_temperature is_disaggregated
        prefill_workers_per_replica decode_workers_per_replica decoding_type speculative_model_dir
        num_nextn_predict_layers max_draft_len eagle3_one_model scale_down_half_life_seconds target_in_flight_tokens""",
}


@pytest.mark.parametrize("section", DOCUMENTED)
def test_every_documented_field_has_a_row(section: str) -> None:
    """By its name, in one of the generated tables."""
    assert [name for name in DOCUMENTED[section].split() if name not in LAST_NAMES] == []


@pytest.mark.reference
def test_every_field_of_the_seeds_has_a_row(reference: Path) -> None:
    """Read from the references themselves: a name, and a type in the line below it."""
    types = r"(?:string|number|boolean|object|integer)(?:\[\])?"
    for seed in ("3-advanced-features.txt", "4-config-yaml-reference.txt"):
        text = (reference / "reference" / "seeds" / seed).read_text(encoding="utf-8")
        names = re.findall(rf"(?m)^([a-z0-9_.]+)\n{types}$", text)
        assert len(names) > 8
        assert [name for name in names if name.rpartition(".")[2] not in LAST_NAMES] == []


BACKEND_ROWS = re.findall(
    r"(?m)^\| `([\w.]+)` \| (v3, v4|v3|v4) \| (.+?) \| (.+?) \|", PAGE.partition("<!-- backend:")[2]
)


# The parameters of the backend server: the backends that have it, the type, the default.
BACKEND_PARAMETERS = {
    ("context_length", "v3, v4"): ("a whole number", "–"),
    ("gpu_memory_utilization", "v3, v4"): ("a number", "–"),
    ("reasoning_parser", "v3"): ("one of: deepseek_r1, qwen3", "–"),
    ("reasoning_parser", "v4"): ("one of: deepseek-r1, qwen3", "–"),
    ("tool_call_parser", "v3"): ("one of: mistral, llama3_json, llama4_json, hermes", "–"),
    ("tool_call_parser", "v4"): ("one of: mistral, llama4, llama3, qwen25", "–"),
    ("max_running_requests", "v4"): ("a whole number", "–"),
    ("max_total_tokens", "v4"): ("a whole number", "–"),
    ("chunked_prefill_size", "v4"): ("a whole number", "–"),
    ("max_prefill_tokens", "v4"): ("a whole number", "`16384`"),
    ("enable_torch_compile", "v4"): ("true or false", "`false`"),
    ("torch_compile_max_bs", "v4"): ("a whole number", "`32`"),
    ("cuda_graph_max_bs", "v4"): ("a whole number", "`32`"),
}


def test_every_parameter_of_the_backends_has_a_row() -> None:
    """With its type and its default."""
    rows = {(row[0].rpartition(".")[2], row[1]): row[2:] for row in BACKEND_ROWS if row[0].count(".") == 2}
    for parameter, (kind, default) in BACKEND_PARAMETERS.items():
        found = rows[parameter]
        assert found[0].startswith(kind), parameter
        assert found[1] == default, parameter


@pytest.mark.reference
def test_every_field_of_the_backend_server_has_a_row(reference: Path) -> None:
    """Those of its tables with backend, type and default; those of its lists and samples by name; and no others."""
    text = (reference / "reference" / "seeds" / "5-backend-server-options.txt").read_text(encoding="utf-8")
    types = {"integer": "a whole number", "float": "a number", "string": "one of", "bool": "true or false"}
    v4, v3 = (
        re.findall(r"(?m)^([a-z_]+)(integer|float|string|bool)(null|false|\d+)[A-Z]", part)
        for part in text.partition("V4 Backend")[2].split("V3 Backend")
    )
    assert (len(v4), len(v3)) == (11, 4)
    for backend, fields in (("v4", v4), ("v3", v3)):
        for name, kind, default in fields:
            (row,) = [row for row in BACKEND_ROWS if row[0] == f"backend.extra_params.{name}" and backend in row[1]]
            assert row[2].startswith(types[kind])
            assert row[3] == ("–" if default == "null" else f"`{default}`")
    listed = set(re.findall(r"(?m)^ +• ([a-z_]+):$", text)) | {"tensor_parallel_size"}
    sampled = set(re.findall(r'"([a-z_]+)": ', text)) - {"chat", "completion", "embedding"}  # the values of mode
    assert {"topk", "draft_model_path", "loras", "mode"} < listed
    assert {part for row in BACKEND_ROWS for part in row[0].split(".")} == listed | sampled | {row[0] for row in v4}


def test_the_page_says_what_the_code_does() -> None:
    """Each field that the table drops is dropped, each that it moves is moved."""
    rows = dict(re.findall(r"(?m)^\| `([\w.]+)` \| (?:`([\w.]+)`|–) \|", PAGE.partition("## Every field")[2]))
    assert all(rows[fate.v1] == fate.v2 for fate in FATES)
    text = "trt_llm:\n  build: {checkpoint_repository: {source: HF, repo: a/b}, base_model: decoder, max_seq_len: 9}\n"
    changes = translate(read_document(text, "f")).changes
    assert all(rows[each.before] == each.after for each in changes if each.before)
