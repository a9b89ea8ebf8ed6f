"""What is wrong in a configuration, with its place: types, ranges, choices, and the rules between fields."""

from __future__ import annotations

import json

import pytest

from servescope.migration.document.document import read_document
from servescope.migration.fields.body import check_body, is_management_body, make_body
from servescope.migration.fields.config_yaml import check_config

V1 = "trt_llm:\n  build:\n    checkpoint_repository: {source: HF, repo: a/b}\n"
V2 = "trt_llm:\n  inference_stack: v2\n  runtime: {}\n  build:\n    checkpoint_repository: {source: HF, repo: a/b}\n"
LOOKAHEAD = "speculative_decoding_mode: LOOKAHEAD_DECODING"


def found(text: str, *, severity: str = "error") -> list[str]:
    """The findings of a text, each as `line:column path message`."""
    findings = check_config(read_document(text, "f"))
    return [f"{each.line}:{each.column} {each.path} {each.message}" for each in findings if each.severity == severity]


@pytest.mark.parametrize(
    "text",
    [V1, V2, "model_name: x\n", "", V1 + "    quantization_type: fp8_kv\n",
     V1 + "    base_model: encoder_bert\n  runtime: {webserver_default_route: /predict_tokens}\n"],
)  # fmt: skip
def test_valid_configurations_have_no_findings(text: str) -> None:
    """Neither errors nor warnings."""
    assert check_config(read_document(text, "f")) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("max_seq_len: 0", "max_seq_len is 0, expected a whole number of 1 to 1048576"),
        ("max_seq_len: 1048577", "max_seq_len is 1048577, expected a whole number of 1 to 1048576"),
        ("max_seq_len: '5'", "max_seq_len is '5', expected a whole number of 1 to 1048576"),
        ("max_batch_size: 2049", "max_batch_size is 2049, expected a whole number of 1 to 2048"),
        ("max_batch_size: true", "max_batch_size is true, expected a whole number of 1 to 2048"),
        ("max_batch_size: null", "max_batch_size is null, expected a whole number of 1 to 2048"),
        ("max_num_tokens: 64", "max_num_tokens is 64, expected a whole number of 65 to 1048576"),
        ("max_num_tokens: 1048577", "max_num_tokens is 1048577, expected a whole number of 65 to 1048576"),
        ("max_num_tokens: 8192.0", "max_num_tokens is 8192.0, expected a whole number of 65 to 1048576"),
        ("num_builder_gpus: 0", "num_builder_gpus is 0, expected a whole number of 1 or more"),
        ("base_model: llama", "base_model is 'llama': was renamed to decoder, which detects the architecture"),
        ("base_model: decodr", "base_model is 'decodr', expected one of: decoder, encoder, encoder_bert, did you mean"),
        ("quantization_type: fp16", "quantization_type is 'fp16', expected one of: no_quant, fp8, fp8_kv, fp4"),
        ("quantization_type: weights_int8", "quantization_type is 'weights_int8': is no longer built"),
        ("moe_expert_parallel_option: 0", "is 0, expected a whole number of -1 or more, not 0"),
        ("moe_expert_parallel_option: 2", "is 2, expected -1, or 1 to tensor_parallel_count, which is 1"),
        ("tensor_parallel_count: 2", "tensor_parallel_count is 2, which must equal the number of GPUs in "
                                     "resources.accelerator, which is 1"),
        ("plugin_configuration: {paged_kv_cache: false}", "plugin_configuration use_paged_context_fmha requires"),
        ("lora_adapters: {'a b': {source: HF, repo: a/b}}", "has the name 'a b', expected letters, digits"),
        ("max_beam_width: 2", "max_beam_width is 2, expected 1"),
        ("lora_cache_max_adapter_size: 8", "lora_cache_max_adapter_size must be configured under trt_llm.runtime"),
        (f"speculator: {{{LOOKAHEAD}}}", "lookahead_windows_size is missing: LOOKAHEAD_DECODING requires it"),
        ("speculator: {lookahead_windows_size: 7}", "speculator.speculative_decoding_mode is missing, expected one of"),
        ("speculator: {speculative_decoding_mode: DRAFT_TOKENS_EXTERNAL}", "speculator.speculative_decoding_mode is "
         "'DRAFT_TOKENS_EXTERNAL': is discontinued, expected LOOKAHEAD_DECODING, or no speculator on the way to v2"),
        (f"speculator: {{{LOOKAHEAD}, lookahead_windows_size: 100, lookahead_ngram_size: 100, "
         "lookahead_verification_set_size: 100}", "speculator its sizes draft 19799 tokens, expected at most 2048"),
        (f"speculator: {{{LOOKAHEAD}, lookahead_windows_size: 7, lookahead_ngram_size: 5, "
         "lookahead_verification_set_size: 3, num_draft_tokens: 38}",
         "speculator.num_draft_tokens is 38, less than the 39 its sizes draft"),
    ],
)  # fmt: skip
def test_errors_in_the_build_of_v1(line: str, expected: str) -> None:
    """Each at its line, with what was expected."""
    errors = found(f"{V1}    {line}\n")

    assert errors
    assert errors[0].startswith("4:")
    assert expected in errors[0]


@pytest.mark.parametrize(
    ("size", "expected"),
    [("64", ""), ("16384", ""), ("63", "is 63"), ("0", "is 0"), ("16448", "is 16448"), ("100", "is 100")],
)
@pytest.mark.parametrize("name", ["calib_size", "calib_max_seq_length"])
def test_calibration_is_a_multiple_of_64(name: str, size: str, expected: str) -> None:
    """Between 64 and 16384, both included."""
    errors = found(f"{V1}    quantization_type: fp8\n    quantization_config: {{{name}: {size}}}\n")

    path = f"trt_llm.build.quantization_config.{name}"
    shown = f"5:{29 + len(name)} {path} {expected}, expected a multiple of 64, from 64 to 16384"
    assert errors == ([shown] if expected else [])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("kv_cache_free_gpu_mem_fraction: 1.1", "is 1.1, expected a number above 0 and up to 1"),
        ("kv_cache_free_gpu_mem_fraction: 0", "is 0, expected a number above 0 and up to 1"),
        ("kv_cache_free_gpu_mem_fraction: .nan", "is nan, expected a number above 0 and up to 1"),
        ("kv_cache_host_memory_bytes: 0", "is 0, expected a whole number of 1 or more"),
        ("enable_chunked_context: 'yes'", "is 'yes', expected true or false"),
        ("batch_scheduler_policy: fifo", "is 'fifo', expected one of: guaranteed_no_evict, max_utilization"),
        ("request_default_max_tokens: 0", "is 0, expected a whole number of 1 or more"),
        ("webserver_default_route: /v1/chat", "expected one of: /v1/embeddings, /rerank, /predict, /predict_tokens"),
        ("max_seq_len: 5", "belongs to trt_llm.build in v1; a file of v2 declares inference_stack: v2"),
        ("tensor_parallel_size: 1", "is a field of v2's runtime, and inference_stack is v1"),
        ("lora_cache_gpu_memory_fraction: 0", "is 0, expected a number above 0 and up to 1"),
    ],
)
def test_errors_in_the_runtime_of_v1(line: str, expected: str) -> None:
    """Each at its line, with what was expected."""
    (error,) = found(f"{V1}  runtime:\n    {line}\n")

    assert error.startswith("5:")
    assert error.endswith(expected)


@pytest.mark.parametrize(
    "field",
    ["base_model: decoder", "max_seq_len: 5", "max_batch_size: 256", "max_num_tokens: 8192", "tensor_parallel_count: 1",
     "plugin_configuration: {}", "speculator: null", "lora_adapters: null", "moe_expert_parallel_option: -1"],
)  # fmt: skip
def test_the_documented_message_for_fields_of_v1_in_v2(field: str) -> None:
    """In the words of the vendor's validator, for values at their default as well."""
    name = field.partition(":")[0]

    assert found(f"{V2}    {field}\n") == [
        f"6:5 trt_llm.build.{name} Field trt_llm.build.{name} is not allowed to be set when using v2 inference stack"
    ]


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        ("{max_num_tokens: 131073}", "is 131073, expected a whole number of 65 to 131072"),
        ("{tensor_parallel_count: 1}", "is named tensor_parallel_size in v2"),
        ("{enable_chunked_context: true}", "is a field of v1's runtime: v2 has none of this name"),
        ("{kv_cache_free_gpu_mem_fraction: 0.9}", "is a field of v1's runtime: v2 has none of this name"),
        ("null", "is null, expected a mapping"),
        ("[]", "is a list, expected a mapping"),
        ("{tensor_parallel_size: 0}", "is 0, expected a whole number of 1 or more"),
        ("{patch_kwargs: {a: {max_batch_size: 9}, max_seq_len: 9}}", "trt_llm.runtime.patch_kwargs.max_seq_len is "
         "rejected: it is a field of its own, trt_llm.runtime.max_seq_len"),
    ],
)  # fmt: skip
def test_errors_in_the_runtime_of_v2(runtime: str, expected: str) -> None:
    """v2's own limits, and the names of v1 that it does not have."""
    (error,) = found(V2.replace("{}", runtime))

    assert error.startswith("3:")
    assert error.endswith(expected)


def test_what_v2_requires() -> None:
    """A runtime and a checkpoint, the latter unless the build is skipped."""
    no_runtime = V2.replace("  runtime: {}\n", "")
    assert found(no_runtime) == ["2:3 trt_llm.runtime is missing, expected a mapping"]
    bare = "trt_llm: {inference_stack: v2, runtime: {}, build: {%s}}"
    assert found(bare % "") == [
        "1:52 trt_llm.build.checkpoint_repository is missing: it is required unless skip_build_result is true"
    ]
    assert found(bare % "skip_build_result: true") == []


@pytest.mark.parametrize(
    ("accelerator", "kind", "refused"),
    [("H100", "fp4", True), ("B200", "fp4", False), ("B300", "fp4_kv", False), ("A100", "fp8", True),
     ("A10G", "fp8_kv", True), ("L4", "fp8", False), ("H200", "fp4_mlp_only", True), ("T4", "no_quant", True)],
)  # fmt: skip
@pytest.mark.parametrize("block", [V1, V2])
def test_quantisation_needs_its_accelerator(block: str, accelerator: str, kind: str, refused: bool) -> None:
    """fp4 B200 or newer, fp8 L4 or newer, TensorRT-LLM itself A100 or newer."""
    text = f"{block}    quantization_type: {kind}\nresources: {{accelerator: {accelerator}}}\n"

    assert bool(found(text)) == refused


def test_tensor_parallelism_against_the_accelerators() -> None:
    """Equal in v1; at most as many in v2, where idle ones are a warning; on every node."""
    assert found(f"{V1}    tensor_parallel_count: 4\nresources: {{accelerator: 'H100:4'}}\n") == []
    assert found(f"{V1}resources: {{accelerator: 'H100:2'}}\n") == [
        "3:5 trt_llm.build.tensor_parallel_count is 1, which must equal the number of GPUs in resources.accelerator, "
        "which is 2"
    ]
    four = V2.replace("{}", "{tensor_parallel_size: 4}")
    assert found(f"{four}resources: {{accelerator: 'H100:2'}}\n") == [
        "3:35 trt_llm.runtime.tensor_parallel_size is 4, but resources.accelerator has 2"
    ]
    assert found(f"{four}resources: {{accelerator: 'H100:2', node_count: 2}}\n") == []
    assert found(f"{four}resources: {{accelerator: 'H100:8'}}\n", severity="warning") == [
        "3:35 trt_llm.runtime.tensor_parallel_size is 4, so 4 of 8 GPUs stay idle"
    ]


def test_experts_that_do_not_divide_are_a_warning() -> None:
    """3 experts on 4 GPUs are slow, not wrong."""
    text = (
        f"{V1}    tensor_parallel_count: 4\n    moe_expert_parallel_option: 3\nresources: {{accelerator: 'H100:4'}}\n"
    )

    assert found(text) == []
    assert "does not divide tensor_parallel_count, 4" in found(text, severity="warning")[0]


def test_unknown_fields_name_the_nearest_known_one() -> None:
    """As warnings, at every level."""
    text = f"{V1}    quantisation_type: fp8\n  runtme: {{}}\nresource: {{}}\nfoo: 1\n"

    assert found(text, severity="warning") == [
        "4:5 trt_llm.build.quantisation_type is an unknown field, did you mean 'quantization_type'?",
        "5:3 trt_llm.runtme is an unknown field, did you mean 'runtime'?",
        "6:1 resource is an unknown field, did you mean 'resources'?",
        "7:1 foo is an unknown field",
    ]


def test_a_field_in_another_section_is_named_with_its_own() -> None:
    """Of both stacks, and directly below `trt_llm`; a name that is near one of another section is known, too."""
    v1 = f"{V1}    enable_chunked_context: false\n    default_max_tokens: 9\n  plugin_configuration: {{}}\n"
    v2 = f"{V2}    enable_chunked_prefill: false\n"

    assert [each.partition(" trt_llm.")[2] for each in found(v1, severity="warning")] == [
        "build.enable_chunked_context is an unknown field here: it belongs to trt_llm.runtime",
        "build.default_max_tokens is an unknown field, did you mean 'request_default_max_tokens'?",
        "plugin_configuration is an unknown field here: it belongs to trt_llm.build",
    ]
    assert [each.partition(" trt_llm.")[2] for each in found(v2, severity="warning")] == [
        "build.enable_chunked_prefill is an unknown field here: it belongs to trt_llm.runtime",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python_version: py38", "1:17 python_version is 'py38', expected one of: py39, py310"),
        ("resources: {cpu: 4}", "1:18 resources.cpu is 4, expected a text such as '4' or '500m'"),
        ("resources: {memory: 16GB}", "1:21 resources.memory is '16GB', expected a text such as '16Gi'"),
        ("resources: {accelerator: H1000}", "1:26 resources.accelerator is 'H1000', expected one of T4, L4"),
        ("resources: {accelerator: 'L4:0'}", "1:26 resources.accelerator is 'L4:0', expected one of T4, L4"),
        ("resources: {instance_type: L4}", "1:28 resources.instance_type is 'L4', expected a SKU such as 'L4:4x16'"),
        ("resources: {node_count: 0}", "1:25 resources.node_count is 0, expected a whole number of 1 or more"),
        ("runtime: {health_checks: {startup_threshold_seconds: 5}}", "is 5, expected a whole number of 10 to 3000"),
        ("runtime: {transport: {kind: ftp}}", "is 'ftp', expected one of: http, websocket, grpc"),
        ("requirements: torch", "1:15 requirements is 'torch', expected a list"),
        ("requirements: [1]", "1:16 requirements[0] is 1, expected a text"),
        ("requirements: [a]\nrequirements_file: b", "2:20 requirements_file is there beside requirements"),
        ("docker_server: {server_port: 8080, start_command: x, predict_endpoint: /, readiness_endpoint: /, "
         "liveness_endpoint: /}", "is 8080, expected a whole number of 1 to 65535, not 8080"),
        ("docker_server: {server_port: 80, predict_endpoint: /, readiness_endpoint: /, liveness_endpoint: /}",
         "docker_server.start_command is missing: it is required unless no_build is true"),
        ("docker_server: {server_port: 80, start_command: x, run_as_user_id: 60000, predict_endpoint: /, "
         "readiness_endpoint: /, liveness_endpoint: /}", "is 60000, expected a whole number of 1 or more, not 60000"),
        ("weights: [{source: 'ftp://x', mount_location: /a}]", "weights[0].source is 'ftp://x', expected a URI"),
        ("weights: [{source: 'hf://a/b', mount_location: a}]", "mount_location is 'a', expected an absolute"),
        ("weights: [{source: 'hf://a/b', mount_location: /a}, {source: 'hf://a/c', mount_location: /a}]",
         "weights[1].mount_location is '/a', which weights[0] has already"),
        ("weights: [{source: 's3://a/b', mount_location: /a, auth: {auth_method: AWS_OIDC}}]",
         "weights[0].auth.aws_oidc_role_arn is missing: auth_method AWS_OIDC requires it"),
        ("base_image: {docker_auth: {auth_method: GCP_SERVICE_ACCOUNT_JSON, registry: r}}",
         "base_image.docker_auth.secret_name is missing: auth_method GCP_SERVICE_ACCOUNT_JSON requires it"),
        ("model_cache: [{repo_id: a/b, use_volume: true, revision: main}]",
         "model_cache[0].volume_folder is missing: use_volume: true requires it"),
        ("model_cache: [{repo_id: a/b}]", "model_cache[0].use_volume is missing, expected true or false"),
        ("training_checkpoints: {artifact_references: [{paths: []}]}", "[0].training_job_id is missing"),
        ("external_data: [{url: 'https://x'}]", "external_data[0].local_data_path is missing, expected a path"),
        ("external_data: [{url: 'https://x', local_data_path: /a}]",
         "local_data_path is '/a', expected a path relative to the data directory"),
        ("trt_llm: {build: {checkpoint_repository: {source: REMOTE_URL, repo: 'ftp://secret'}}}",
         "checkpoint_repository.repo is no HTTP URL, which source REMOTE_URL requires"),
        ("build: {no_cache: true}", "build.no_cache is an option of the command line: --no-cache"),
        ("environment_variables: {A: [1]}", "environment_variables.A is a sequence, expected a text"),
        ("secrets:", "1:9 secrets is null, expected a mapping"),
        ("- a", "1:1  is a list, expected a mapping"),
        ("trt_llm: {build: {checkpoint_repository: {source: HF, repo: 'a/b/c'}}}",
         "trt_llm.build.checkpoint_repository.repo is 'a/b/c', expected a Hugging Face name"),
        ("trt_llm: {build: {checkpoint_repository: {source: BASETEN_TRAINING, repo: j}}}",
         "checkpoint_repository.revision is missing: source BASETEN_TRAINING requires it"),
    ],
)  # fmt: skip
def test_errors_in_the_rest_of_the_configuration(text: str, expected: str) -> None:
    """Every section is checked, with its place."""
    assert any(expected in error for error in found(text)), found(text)


SIZES = "lookahead_windows_size: {}, lookahead_ngram_size: {}, lookahead_verification_set_size: {}"
SERVER = (
    "base_image: {image: a}\n"
    "docker_server: {server_port: 80, predict_endpoint: /, readiness_endpoint: /, liveness_endpoint: /, "
)
REGISTRY = "base_image: {{docker_auth: {{registry: r, auth_method: {}}}}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{V1}    max_seq_len: 32768\n  runtime: {{enable_chunked_context: false}}", [
         "trt_llm.build.max_seq_len is 32768, but without enable_chunked_context max_num_tokens, which is 8192, "
         "limits the context"]),
        ("environment_variables: {A: null, B: ''}", [
         "environment_variables.A is null, which the environment gets as the text None: give it a text, or remove it"]),
        (f"{V1}    max_seq_len: 32768", []),
        (f"{V1}    max_seq_len: 8192\n  runtime: {{enable_chunked_context: false}}", []),
        (f"{V1}    base_model: encoder\n    max_seq_len: 32768", [
         "trt_llm.build.max_seq_len is 32768, but of an encoder max_num_tokens, which is 8192, limits the context"]),
        (V2.replace("{}", "{max_seq_len: 4096, max_num_tokens: 2048, enable_chunked_prefill: false}"),
         ["trt_llm.runtime.max_seq_len is 4096, but without enable_chunked_prefill max_num_tokens, which is 2048, "
          "limits the context"]),
        (f"{V1}    base_model: encoder\n  runtime: {{total_token_limit: 5, served_model_name: x}}", [
         "trt_llm.runtime.total_token_limit has no effect: it is for generative models, and base_model is encoder",
         "trt_llm.runtime.served_model_name has no effect: it is for generative models, and base_model is encoder"]),
        (V1.replace("a/b", "Qwen/Qwen2.5-7B") + "    quantization_type: fp8_kv", ["trt_llm.build.quantization_type is "
         "fp8_kv, which is not compatible with models that use bias=True, such as Qwen 2.5"]),
        (V1.replace("a/b", "Qwen/Qwen2.5-7B") + "    quantization_type: fp8", []),
        (f"{V1}    max_batch_size: 64\n    speculator: {{{LOOKAHEAD}, {SIZES.format(9, 2, 5)}}}", [
         "trt_llm.build.speculator.lookahead_windows_size is 9, recommended are 5 to 8",
         "trt_llm.build.speculator.lookahead_ngram_size is 2, recommended are 3 to 5"]),
        (f"{V1}    max_batch_size: 64\n    speculator: {{{LOOKAHEAD}, {SIZES.format(8, 5, 3)}}}", []),
        (f"{V1}    max_batch_size: 64\n    speculator: {{{LOOKAHEAD}, {SIZES.format(32, 1, 1)}, num_draft_tokens: 31, "
         "enable_b10_lookahead: true}", []),
        (SERVER + "no_build: true}\nbuild_commands: [a]\nrequirements: [b]\nsystem_packages: []", [
         "docker_server.no_build is true, which the vendor's support has to enable for your organization",
         "build_commands has no effect: docker_server.no_build is true, so that the image stays as it is",
         "requirements has no effect: docker_server.no_build is true, so that the image stays as it is"]),
        (SERVER + "start_command: x}\nbuild_commands: [a]", []),
        (REGISTRY.format("GCP_SERVICE_ACCOUNT_JSON, secret_name: gcp"),
         ["base_image.docker_auth.secret_name is 'gcp', which is not among secrets"]),
        (REGISTRY.format("GCP_SERVICE_ACCOUNT_JSON, secret_name: gcp") + "\nsecrets: {gcp: null}", []),
        (REGISTRY.format("AWS_IAM, aws_access_key_id_secret_name: mine") + "\nsecrets: {aws_secret_access_key: null}",
         ["base_image.docker_auth.aws_access_key_id_secret_name is 'mine', which is not among secrets"]),
        (REGISTRY.format("GCP_SERVICE_ACCOUNT_JSON, secret_name: a, aws_access_key_id_secret_name: b")
         + "\nsecrets: {a: null}", ["base_image.docker_auth.aws_access_key_id_secret_name has no effect: it is for "
                                    "auth_method AWS_IAM"]),
        ("environment_variables: {A: 'https://u:hunter2@db/x', B: hf_abcdefghijklmnopqrst, C: 'https://db/?mode=ro'}", [
         "environment_variables.A has a secret in it: never store one here, expected it in secrets",
         "environment_variables.B has a secret in it: never store one here, expected it in secrets"]),
    ],
)  # fmt: skip
def test_what_has_no_effect_or_is_not_recommended_is_a_warning(text: str, expected: list[str]) -> None:
    """Each documented rule, and what keeps to it."""
    assert sorted(each.partition(" ")[2] for each in found(text, severity="warning")) == sorted(expected)


def test_a_secret_is_a_warning_that_does_not_show_it() -> None:
    """null is expected; the value appears nowhere."""
    text = "secrets:\n  token: hunter2\n  other: null\n"

    assert found(text) == []
    (warning,) = found(text, severity="warning")
    assert warning == "2:10 secrets.token has a value: never store a secret here, expected null"
    assert "hunter2" not in str(check_config(read_document("secrets: {token: [hunter2]}", "f")))


def test_a_merge_is_checked_as_what_it_brings() -> None:
    """The finding is at the merged key."""
    text = "x: &r {cpu: 4}\nresources: {<<: *r, memory: 2Gi}\n"

    assert found(text) == ["1:13 resources.cpu is 4, expected a text such as '4' or '500m', above 0"]


def body_errors(text: str, *, severity: str = "error") -> list[str]:
    """The findings of a body, each as `line:column path message`."""
    findings = check_body(read_document(text, "f"))
    return [f"{each.line}:{each.column} {each.path} {each.message}" for each in findings if each.severity == severity]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("speculative_config: {decoding_type: nGrAm}", ""),
        ("speculative_config: {decoding_type: Eagle, speculative_model_dir: /m, eagle3_one_model: true}", ""),
        ("is_disaggregated: true\n"
         "b10_disagg_config: {prefill_workers_per_replica: 1, decode_workers_per_replica: 2}", ""),
        ("b10_routing_config: {router_queue_policy: wspt, router_overlap_score_weight: 0, router_temperature: 1}", ""),
        ("speculative_config: {decoding_type: Eagle}", "speculative_model_dir is missing: decoding_type Eagle"),
        ("speculative_config: {decoding_type: mtp}", "num_nextn_predict_layers is missing: decoding_type MTP"),
        ("speculative_config: {}", "speculative_config.decoding_type is missing, expected one of: Eagle, MTP, NGram"),
        ("speculative_config: {decoding_type: medusa}", "is 'medusa', expected one of: Eagle, MTP, NGram"),
        ("speculative_config: {decoding_type: NGram, eagle3_one_model: true}", "is for decoding_type Eagle only"),
        ("speculative_config: {decoding_type: NGram, max_draft_len: 0}", "is 0, expected a whole number of 1 or more"),
        ("b10_disagg_config: {prefill_workers_per_replica: 1, decode_workers_per_replica: 2}",
         "b10_disagg_config needs is_disaggregated to be true, which is false or absent"),
        ("is_disaggregated: true", "b10_disagg_config is missing: is_disaggregated is true"),
        ("is_disaggregated: true\nb10_disagg_config: {prefill_workers_per_replica: 1}",
         "decode_workers_per_replica is missing, expected a whole number of 1 or more"),
        ("is_disaggregated: true\nb10_disagg_config: {prefill_workers_per_replica: 0, decode_workers_per_replica: 1}",
         "prefill_workers_per_replica is 0, expected a whole number of 1 or more"),
        ("b10_routing_config: {router_queue_policy: lifo}", "is 'lifo', expected one of: fcfs, wspt"),
        ("b10_routing_config: {router_temperature: -1}", "is -1, expected a number of 0 or more"),
        ("b10_autoscaling_config: {scale_down_half_life_seconds: 0}", "is 0, expected a number above 0"),
    ],
)  # fmt: skip
def test_rules_of_llm_config(config: str, expected: str) -> None:
    """Alone, and within a body."""
    alone = body_errors(config + "\n")
    within = body_errors("llm_config:\n" + "".join(f"  {line}\n" for line in config.splitlines()))

    assert len(alone) == len(within) == (1 if expected else 0)
    assert all(expected in error for error in (*alone, *within))


def test_autoscaling_settings_of_v1_are_refused() -> None:
    """The deployment API wants tokens; values far from the sensible ones are warnings."""
    text = "autoscaling_settings: {concurrency_target: 10, target_in_flight_tokens: 5000}\nllm_config: {}\n"

    assert body_errors(text) == [
        "1:24 autoscaling_settings.concurrency_target is rejected by v2's deployment API, "
        "expected 'target_in_flight_tokens'"
    ]
    assert body_errors(text, severity="warning") == [
        "1:73 autoscaling_settings.target_in_flight_tokens is 5000, outside of the documented 50000 to 150000 tokens"
    ]
    assert (
        "is 3, above max_replica, which is 2"
        in body_errors("llm_config: {}\nautoscaling_settings: {min_replica: 3, max_replica: 2}")[0]
    )


def test_a_body_is_told_from_a_configuration() -> None:
    """By its fields; what is beside llm_config and belongs into it is named."""
    assert is_management_body(read_document('{"llm_config": {}}', "f"))
    assert is_management_body(read_document("speculative_config: {}", "f"))
    assert not is_management_body(read_document("trt_llm: {}", "f"))
    assert body_errors("llm_config: {}\nspeculative_config: {decoding_type: NGram}") == [
        "2:1 speculative_config belongs into llm_config"
    ]


def test_a_body_is_made_of_what_was_decided() -> None:
    """N-gram where nothing else is configured, the token target, and what needs the Enterprise tier."""
    assert make_body(None).call == ""
    made = make_body(None, n_gram=True, target_in_flight_tokens=60000)
    assert made.body == {
        "llm_config": {"speculative_config": {"decoding_type": "NGram"}},
        "autoscaling_settings": {"target_in_flight_tokens": 60000},
    }
    assert made.call.startswith(
        "curl --request POST --url https://api.baseten.co/v1/llm_models \\\n"
        '  --header "Authorization: Api-Key $BASETEN_API_KEY" \\\n'
    )
    data = made.call.partition("--data '")[2].removesuffix("'")
    assert json.loads(data) == made.body
    given = read_document(
        "speculative_config: {decoding_type: mtp, num_nextn_predict_layers: 1}\nis_disaggregated: false", "f"
    )
    own = make_body(given, n_gram=True)
    assert own.body["llm_config"]["speculative_config"]["decoding_type"] == "mtp"
    assert own.enterprise == ("speculation by MTP",)
