"""The configurations that both tools judge: documented examples rebuilt, one change of a field each, generated ones."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any, Final

import yaml

from tests.support.configurations import Style, draw_configuration

_CHECKPOINT: Final = {"source": "HF", "repo": "Qwen/Qwen3-4B"}
_LOOKAHEAD: Final = {"speculative_decoding_mode": "LOOKAHEAD_DECODING", "lookahead_windows_size": 7,
                     "lookahead_ngram_size": 5, "lookahead_verification_set_size": 3}  # fmt: skip
_SERVER: Final = {"start_command": "vllm serve x", "readiness_endpoint": "/health", "liveness_endpoint": "/health",
                  "predict_endpoint": "/v1/completions", "server_port": 8000}  # fmt: skip
_GENERATED: Final = 24

# What the vendor's documents show, with the values they show.
_DOCUMENTED: Final[dict[str, Any]] = {
    "a v1 deployment": {"trt_llm": {
        "build": {"base_model": "decoder", "checkpoint_repository": _CHECKPOINT, "max_seq_len": 32768,
                  "max_batch_size": 256, "max_num_tokens": 8192, "quantization_type": "fp8_kv",
                  "tensor_parallel_count": 1, "plugin_configuration": {"paged_kv_cache": True,
                  "use_paged_context_fmha": True, "use_fp8_context_fmha": True}},
        "runtime": {"kv_cache_free_gpu_mem_fraction": 0.9, "enable_chunked_context": True},
    }},
    "a v2 deployment on B200": {
        "resources": {"accelerator": "B200:4", "use_gpu": True},
        "trt_llm": {"inference_stack": "v2", "build": {"checkpoint_repository": {
            "source": "HF", "repo": "nvidia/DeepSeek-V3.1-NVFP4", "runtime_secret_name": "hf_access_token"},
            "quantization_type": "no_quant"}, "runtime": {"max_seq_len": 131072, "max_batch_size": 256,
            "tensor_parallel_size": 4, "enable_chunked_prefill": True, "served_model_name": "deepseek-v3"}},
    },
    "a v2 deployment on H100": {
        "resources": {"accelerator": "H100"},
        "trt_llm": {"inference_stack": "v2",
                    "build": {"checkpoint_repository": _CHECKPOINT, "quantization_type": "fp8"},
                    "runtime": {"max_batch_size": 256, "max_num_tokens": 8192, "tensor_parallel_size": 1}},
    },
    "LoRA adapters": {"trt_llm": {"build": {
        "checkpoint_repository": _CHECKPOINT,
        "lora_adapters": {"my-adapter": {"source": "HF", "repo": "my-org/my-lora-adapter"}},
        "lora_configuration": {"max_lora_rank": 64},
    }}},
    "lookahead": {"trt_llm": {"build": {
        "checkpoint_repository": _CHECKPOINT, "speculator": _LOOKAHEAD, "max_batch_size": 64,
    }}},
    "a v1 runtime": {"trt_llm": {"inference_stack": "v1", "build": {"checkpoint_repository": _CHECKPOINT}, "runtime": {
        "kv_cache_free_gpu_mem_fraction": 0.9, "enable_chunked_context": True,
        "batch_scheduler_policy": "guaranteed_no_evict", "total_token_limit": 500000,
    }}},
    "an encoder": {"trt_llm": {"build": {"base_model": "encoder", "checkpoint_repository": _CHECKPOINT},
                               "runtime": {"webserver_default_route": "/v1/embeddings"}}},
    "a text generation model": {"model_name": "my-llm", "description": "A text generation model.",
                                "requirements": ["torch", "transformers"], "secrets": {"hf_access_token": None},
                                "resources": {"cpu": "4", "memory": "16Gi", "accelerator": "L4"}},
    "packages": {"external_package_dirs": ["../shared_utils/"], "system_packages": ["ffmpeg"],
                 "requirements_file": "./uv.lock", "python_version": "py311"},
    "environment": {"environment_variables": {"ENVIRONMENT": "Staging", "DB_URL": "https://my_database.example.com/"}},
    "metadata": {"model_metadata": {"example_model_input": {"prompt": "What?"}, "vllm_config": {"max_len": 4096}}},
    "an instance type": {"resources": {"instance_type": "A10G:4x16"}},
    "several GPUs": {"resources": {"accelerator": "L4:4", "node_count": 2}},
    "health checks": {"runtime": {"predict_concurrency": 256, "streaming_read_timeout": 120, "health_checks": {
        "startup_threshold_seconds": 2400, "restart_threshold_seconds": 600, "stop_traffic_threshold_seconds": 300}}},
    "websockets": {"runtime": {"transport": {"kind": "websocket", "ping_interval_seconds": 30,
                                             "ping_timeout_seconds": 10}}},
    "a server": {"base_image": {"image": "vllm/vllm-openai:v0.7.3", "python_executable_path": "/usr/bin/python"},
                 "docker_server": _SERVER},
    "a server as it is": {"base_image": {"image": "r/i:latest"}, "docker_server": {
        **{name: value for name, value in _SERVER.items() if name != "start_command"}, "no_build": True}},
    "a private registry by a secret": {"base_image": {"docker_auth": {
        "auth_method": "GCP_SERVICE_ACCOUNT_JSON", "secret_name": "gcp", "registry": "us-east4-docker.pkg.dev"}}},
    "a private registry by IAM": {"base_image": {"docker_auth": {"auth_method": "AWS_IAM", "registry": "r"}},
                                  "secrets": {"aws_access_key_id": None, "aws_secret_access_key": None}},
    "a private registry by OIDC of AWS": {"base_image": {"docker_auth": {
        "auth_method": "AWS_OIDC", "registry": "r", "aws_oidc_role_arn": "arn:x", "aws_oidc_region": "us-east-1"}}},
    "a private registry by OIDC of GCP": {"base_image": {"docker_auth": {
        "auth_method": "GCP_OIDC", "registry": "r", "gcp_oidc_service_account": "a@b",
        "gcp_oidc_workload_id_provider": "projects/1"}}},
    "external data": {"external_data": [{"url": "https://b.s3.amazonaws.com/d.tar.gz", "local_data_path": "d.tar.gz"}]},
    "build commands": {"build_commands": ["git clone https://github.com/comfyanonymous/ComfyUI.git"],
                       "build": {"secret_to_path_mapping": {"my-token": "/root/my-token"}},
                       "secrets": {"my-token": None}},
    "weights": {"weights": [{"source": "hf://meta-llama/Llama-3.1-8B@main", "mount_location": "/models/llama",
                             "allow_patterns": ["*.safetensors", "config.json"]}]},
    "weights by OIDC": {"weights": [{"source": "s3://b/w", "mount_location": "/w", "auth": {
        "auth_method": "AWS_OIDC", "aws_oidc_role_arn": "arn:x", "aws_oidc_region": "us-east-1"}}]},
    "a model cache": {"model_cache": [{"repo_id": "NousResearch/Llama-2-7b-chat-hf", "revision": "main",
                                       "ignore_patterns": ["*.bin"], "use_volume": True, "volume_folder": "llama"}]},
    "training checkpoints": {"training_checkpoints": {"download_folder": "/tmp/training_checkpoints",
        "artifact_references": [{"training_job_id": "tr_abc123", "paths": ["checkpoint-*"]}]}},
}  # fmt: skip

# One value each of a field of v1, of v2 and of the rest, on top of a configuration that is valid.
_V1_BUILD: Final[dict[str, list[Any]]] = {
    "base_model": ["decoder", "encoder_bert", "llama", "whisper", "decodr", None],
    "checkpoint_repository": [
        None, {"source": "HF"}, {"source": "LOCAL", "repo": "x"}, {"source": "GCS", "repo": "gs://b/p"},
        {"source": "HF", "repo": "a/b/c"}, {"source": "HF", "repo": "a--b"}, {"source": "HF", "repo": "x.git"},
        {"source": "HF", "repo": "-a"}, {"source": "BASETEN_TRAINING", "repo": "job"}, {"source": "hf", "repo": "a/b"},
        {"source": "HF", "repo": "a/b", "revision": 1}, {"source": "HF", "repo": "a/b", "runtime_secret_name": None},
    ],
    "max_seq_len": [1, 1048576, 0, 1048577, "5", None, 5.0, True],
    "max_batch_size": [1, 2048, 0, 2049, None],
    "max_num_tokens": [65, 1048576, 64, 1048577],
    "tensor_parallel_count": [1, 0, 2, "1"],
    "quantization_type": ["fp8", "fp8_mlp_only", "weights_int8", "fp16", "FP8"],
    "quantization_config": [{"calib_size": 64}, {"calib_size": 16384}, {"calib_size": 63}, {"calib_size": 100},
                            {"calib_size": 16448}, {"calib_max_seq_length": 32}, {"calib_dataset": 1}, None, {"x": 1}],
    "num_builder_gpus": [1, 0, None, "2"],
    "moe_expert_parallel_option": [-1, 0, 1, 2, -2],
    "plugin_configuration": [{"paged_kv_cache": False}, {"use_paged_context_fmha": False}, None, {"x": True},
                             {"paged_kv_cache": "yes"}],
    "speculator": [
        _LOOKAHEAD, {**_LOOKAHEAD, "lookahead_ngram_size": None}, {"speculative_decoding_mode": "LOOKAHEAD_DECODING"},
        {}, {**_LOOKAHEAD, "num_draft_tokens": 38}, {**_LOOKAHEAD, "num_draft_tokens": 39},
        {**_LOOKAHEAD, "num_draft_tokens": 2049}, {**_LOOKAHEAD, "enable_b10_lookahead": True},
        {**_LOOKAHEAD, "lookahead_windows_size": 100, "lookahead_ngram_size": 100},
        {"speculative_decoding_mode": "DRAFT_TOKENS_EXTERNAL", "num_draft_tokens": 4,
         "checkpoint_repository": _CHECKPOINT},
    ],
    "lora_adapters": [{}, None, {"a b": _CHECKPOINT}, {"a": None}, []],
    "lora_configuration": [None, {"max_lora_rank": "x"}, {"lora_target_modules": "q"}],
    "max_beam_width": [1, 2],
    "pipeline_parallel_count": [1, 2],
    "lora_cache_max_adapter_size": [8],
    "max_sequence_length": [5],
}  # fmt: skip
_V1_RUNTIME: Final[dict[str, list[Any]]] = {
    "kv_cache_free_gpu_mem_fraction": [1, 0.5, "x", None, 1.5, float("nan")],
    "kv_cache_host_memory_bytes": [1, 0, None, 1.5],
    "enable_chunked_context": [False, None, "maybe", 1],
    "batch_scheduler_policy": ["max_utilization", "fifo", None],
    "request_default_max_tokens": [1, 0, None, "10"],
    "served_model_name": ["x", None, 1],
    "total_token_limit": [1, None, "x", 0],
    "webserver_default_route": ["/rerank", "/predict", "/other", None, "/predict_tokens"],
    "lora_cache_gpu_memory_fraction": [0.5, 0, 1.1],
    "max_seq_len": [5],
}
_V2_RUNTIME: Final[dict[str, list[Any]]] = {
    "max_seq_len": [1, 1048577], "max_batch_size": [1, 2049], "max_num_tokens": [65, 131072, 131073, 64],
    "tensor_parallel_size": [1, 0, "1"], "enable_chunked_prefill": [False, None], "served_model_name": ["x", 1],
    "patch_kwargs": [{"a": 1}, {"a": True}, [], None], "enable_chunked_context": [True],
    "kv_cache_free_gpu_mem_fraction": [0.9], "tensor_parallel_count": [1],
}  # fmt: skip
_V2_BUILD: Final[dict[str, list[Any]]] = {
    "base_model": ["decoder", "encoder"], "max_seq_len": [5, None], "max_batch_size": [256, 64],
    "max_num_tokens": [8192, 4096], "tensor_parallel_count": [1, 2],
    "plugin_configuration": [{}, {"paged_kv_cache": True}],
    "speculator": [None, _LOOKAHEAD], "lora_adapters": [None, {}, {"a": _CHECKPOINT}], "num_builder_gpus": [2],
    "moe_expert_parallel_option": [-1, 1], "skip_build_result": [True, "x"], "quantization_type": ["fp4"],
    "quantization_config": [{"calib_size": 128}, {"calib_size": 1}], "unknown_field": [1],
}  # fmt: skip
_REST: Final[dict[str, list[Any]]] = {
    "model_name": [None, 1], "requirements": ["torch", None, [1]], "python_version": ["py38", "py39", "3.11", None],
    "secrets": [None, {"a": 1}, {"a": "x"}], "environment_variables": [{"A": 1}, {"A": True}, None, {"A": [1]}],
    "model_metadata": [None, []], "live_reload": ["yes", None], "foo": [1], "description": [5],
    "requirements_file": ["poetry.lock", "deps/gpu.txt"],
    "resources": [{"cpu": 4}, {"cpu": "500m"}, {"cpu": "x"}, {"cpu": "-1"}, {"cpu": "0"}, {"memory": "16"},
                  {"memory": "2Ti"}, {"memory": "0Gi"}, {"instance_type": "Z9:4x16"},
                  {"memory": "16GB"}, {"memory": "1e3"}, {"memory": "Gi"},
                  {"accelerator": "H1000"}, {"accelerator": "L4:0"}, {"accelerator": "L4:x"}, {"accelerator": None},
                  {"node_count": 0}, {"node_count": "2"}, {"instance_type": 5}, {"x": 1}, None,
                  {"accelerator": "L4:1:2"}],
    "runtime": [{"predict_concurrency": "x"}, {"predict_concurrency": 0}, {"streaming_read_timeout": 1.5},
                {"transport": {"kind": "ftp"}}, {"transport": {}}, {"transport": {"ping_interval_seconds": 3}},
                {"health_checks": {"startup_threshold_seconds": 5}}, {"health_checks": None}, {"num_workers": 2}, None,
                {"health_checks": {"restart_threshold_seconds": "x"}}, {"enable_debug_logs": 5}],
    "docker_server": [{}, {**_SERVER, "server_port": 8080}, {**_SERVER, "server_port": "x"},
                      {**_SERVER, "run_as_user_id": 0}, {**_SERVER, "run_as_user_id": 60000},
                      {**_SERVER, "start_command": None}, None],
    "base_image": [{"python_executable_path": "bin/python"}, {"docker_auth": {"auth_method": "LDAP"}},
                   {"docker_auth": {"auth_method": "GCP_SERVICE_ACCOUNT_JSON"}}, None, {"docker_auth": {}},
                   {"docker_auth": {"auth_method": "aws_oidc", "aws_oidc_role_arn": "x"}},
                   {"docker_auth": {"auth_method": "AWS_OIDC", "aws_oidc_role_arn": "x", "aws_oidc_region": "y",
                                    "secret_name": "z"}}],
    "weights": [[{"source": "x", "mount_location": "/a"}], [{"source": "ftp://x/y", "mount_location": "/a"}],
                [{"source": "hf://a/b", "mount_location": "a"}], [{"source": "s3://a/b@c", "mount_location": "/a"}],
                [{"source": "hf://a/b", "mount_location": "/a"}, {"source": "hf://a/c", "mount_location": "/a"}],
                [{"source": "hf://a/b", "mount_location": "/a", "auth": {"auth_method": "CUSTOM_SECRET"}}],
                [{"source": "hf://a/b", "mount_location": "/a", "auth_secret_name": "x", "auth": {
                    "auth_method": "CUSTOM_SECRET", "auth_secret_name": "x"}}], None, {},
                [{"source": "azure://a/b", "mount_location": "/a"}],
                [{"source": "https://a/b", "mount_location": "/a"}],
                [{"source": "hf:///a", "mount_location": "/a"}], [{"source": "https://", "mount_location": "/a"}]],
    "model_cache": [[{"repo_id": "a/b"}], [{"repo_id": "", "use_volume": False}],
                    [{"repo_id": "a/b", "use_volume": True, "revision": "main"}],
                    [{"repo_id": "a/b", "use_volume": False, "revision": "x"}],
                    [{"repo_id": "a/b", "use_volume": False, "kind": "ftp"}]],
    "external_data": [[{"url": ""}], [{"url": "https://x", "local_data_path": ""}],
                      [{"url": "https://x", "local_data_path": "/x"}],
                      [{"url": "https://x", "local_data_path": "../../etc/passwd"}], None, {}],
    "build": [{"no_cache": True}, {"secret_to_path_mapping": {"a b": "/x"}}, {"secret_to_path_mapping": None},
              {"secret_to_path_mapping": {"..": "/x"}}, None],
    "training_checkpoints": [{"artifact_references": [{}]}, {"artifact_references": None}, None],
    "trt_llm": [None, {}, [], {"build": {}}, {"build": None}, {"inference_stack": "v3", "build": {}},
                {"inference_stack": "v2", "build": {"checkpoint_repository": _CHECKPOINT}},
                {"inference_stack": "v2", "build": {"skip_build_result": True}, "runtime": {}},
                {"inference_stack": "v2", "build": {}, "runtime": {}},
                {"build": {"checkpoint_repository": _CHECKPOINT}, "runtime": None}],
    "version_overrides": [{}],
}  # fmt: skip
_TOGETHER: Final[dict[str, Any]] = {
    "requirements beside requirements_file": {"requirements": ["a"], "requirements_file": "b"},
    "weights beside model_cache": {"weights": [{"source": "hf://a/b", "mount_location": "/a"}],
                                   "model_cache": [{"repo_id": "a/b", "use_volume": False}]},
    **{f"{kind} on {gpu}": {"resources": {"accelerator": gpu}, "trt_llm": {
        "build": {"checkpoint_repository": _CHECKPOINT, "quantization_type": kind}}}
       for kind, gpu in (("fp4", "H100"), ("fp4_kv", "B200"), ("fp8", "A100"), ("fp8_kv", "L4"), ("no_quant", "T4"),
                         ("fp4_mlp_only", "RTX_PRO_6000"), ("fp4", "GB300"), ("no_quant", "V100"), ("fp8", "A10G"))},
    **{f"tensor parallelism of {size} on {gpu}": {"resources": {"accelerator": gpu}, "trt_llm": {
        "build": {"checkpoint_repository": _CHECKPOINT, "tensor_parallel_count": size}}}
       for size, gpu in ((2, "H100"), (2, "H100:2"), (1, "H100:2"), (8, "H100:8"))},
    "tensor parallelism of 2 on an instance type": {
        "resources": {"instance_type": "H100:8x80"},
        "trt_llm": {"build": {"checkpoint_repository": _CHECKPOINT, "tensor_parallel_count": 2}}},
    "a checkpoint at no URL": {"trt_llm": {"build": {"checkpoint_repository": {"source": "REMOTE_URL", "repo": "x"}}}},
    "prompts longer than a pass without chunks": {"trt_llm": {
        "build": {"checkpoint_repository": _CHECKPOINT, "max_seq_len": 32768},
        "runtime": {"enable_chunked_context": False}}},
    "lookahead beyond what is recommended": {"trt_llm": {"build": {
        "checkpoint_repository": _CHECKPOINT, "max_batch_size": 64,
        "speculator": {**_LOOKAHEAD, "lookahead_windows_size": 12}}}},
    "a build where none is made": {"docker_server": {**_SERVER, "no_build": True}, "build_commands": ["a"]},
    "experts beyond tensor parallelism": {"resources": {"accelerator": "H100:2"}, "trt_llm": {"build": {
        "checkpoint_repository": _CHECKPOINT, "tensor_parallel_count": 2, "moe_expert_parallel_option": 3}}},
    "a version of v1 that is no number": {"trt_llm": {"build": {"checkpoint_repository": _CHECKPOINT},
                                                      "version_overrides": {"briton_version": "v1"}}},
    "a version of v2": {"trt_llm": {"inference_stack": "v2", "build": {"checkpoint_repository": _CHECKPOINT},
                                    "runtime": {}, "version_overrides": {"v2_llm_version": "x"}}},
}  # fmt: skip
# What a mutant gets.
_WRONG: Final[tuple[Any, ...]] = (
    None, 0, 1, -1, 2, 64, 65, 1.0, 0.5, "", "x", "1", "H100:2", "L4", "a/b", "v2", True, False, [], {}, ["x"], [1],
    {"a": 1}, _CHECKPOINT, "fp4", "fp8", "/x", "yes", 10**9, 1e30, -5.5, "1e5", "4m", "16Gi", " 4", "1_000", "m", ".",
    "inf", "nan",     "4 ", "H100 ", "H100:01", "H100:", "1.5.5m", "-1", "1e400Gi", "Ki", "5k",
)  # fmt: skip
_TEXTS: Final = {
    "a duplicate key": "model_name: a\nmodel_name: b\n",
    "broken YAML": "a: [1\n",
    "a second document": "a: 1\n---\nb: 2\n",
    "a tag": "model_name: !!python/name:os.system\n",
    "a set": "model_metadata: {x: !!set {a}}\n",
    "a list": "- a\n",
    "nothing": "",
    "a merge": "model_metadata: &m {cpu: '4'}\nresources: {<<: *m}\n",
    "a sexagesimal number": "trt_llm: {build: {checkpoint_repository: {source: HF, repo: a/b}, max_seq_len: 1:30}}\n",
    "an octal number": "trt_llm: {build: {checkpoint_repository: {source: HF, repo: a/b}, max_seq_len: 010}}\n",
}


def make_cases() -> dict[str, str]:
    """Every configuration by its name."""
    cases = {f"documented: {name}": _write(config) for name, config in _DOCUMENTED.items()}
    v1 = {"build": {"checkpoint_repository": _CHECKPOINT}, "runtime": {}}
    v2 = {"inference_stack": "v2", **v1}
    sections = ((v1, "v1", "build", _V1_BUILD), (v1, "v1", "runtime", _V1_RUNTIME),
                (v2, "v2", "build", _V2_BUILD), (v2, "v2", "runtime", _V2_RUNTIME))  # fmt: skip
    for block, stack, section, fields in sections:
        for name, values in fields.items():
            for value in values:
                changed = {**block, section: {**block[section], name: value}}  # type: ignore[dict-item]
                cases[f"{stack} {section}.{name}: {_flow(value)}"] = _write({"trt_llm": changed})
    cases |= {f"{name}: {_flow(value)}": _write({name: value}) for name, values in _REST.items() for value in values}
    cases |= {name: _write(config) for name, config in _TOGETHER.items()} | _TEXTS
    for seed in range(_GENERATED):
        random = Random(seed)
        cases[f"generated {seed}"] = Style(random).write(draw_configuration(random))
    return cases


def make_mutants(seed: int, count: int) -> dict[str, str]:
    """Valid configurations with one or two values changed, lost or added, whatever they are, by their numbers."""
    random = Random(seed)
    valid = [*_DOCUMENTED.values(), *(draw_configuration(Random(number)) for number in range(_GENERATED))]
    names = [name for fields in (_V1_BUILD, _V1_RUNTIME, _V2_BUILD, _V2_RUNTIME, _REST) for name in fields]
    mutants = {}
    for number in range(count):
        config = deepcopy(random.choice(valid))
        for _ in range(random.choice([1, 1, 2])):
            places = list(_places(config))
            if not places:
                break
            holder, key = random.choice(places)
            what = random.random()
            if what < 0.6:
                holder[key] = deepcopy(random.choice(_WRONG))
            elif what < 0.75:
                del holder[key]
            elif isinstance(holder, dict):
                holder[random.choice(names)] = deepcopy(random.choice(_WRONG))
        mutants[str(number)] = _write(config)
    return mutants


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a tree: the mapping or list, and the key."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def _write(config: Any) -> str:
    # A copy of its own each, or PyYAML writes aliases.
    dumper = type("Plain", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    return yaml.dump(config, Dumper=dumper, sort_keys=False)


def _flow(value: Any) -> str:
    dumper = type("Plain", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    text = yaml.dump(value, Dumper=dumper, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
