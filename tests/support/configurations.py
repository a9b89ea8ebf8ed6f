"""Configurations of v1 in every style YAML has, for tests that translate them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

# Without `trt_llm`: sections that have to stay as they are.
_AROUND: dict[str, Any] = {
    "model_name": "my-llm",
    "description": "tokens: many, # and no comment",
    "secrets": {"hf_access_token": None},
    "resources": {"cpu": "4", "memory": "16Gi"},
    "requirements": ["torch", "transformers==4.51"],
    "model_metadata": {"tags": ["openai-compatible"], "example_model_input": {"prompt": "äh: [x] {y} # z"}},
    "environment_variables": {"STAGE": "on"},
}


def draw_configuration(random: Random) -> dict[str, Any]:
    """A valid v1 configuration of a decoder, without LoRA and within v2's limits, in an order of its own."""
    tensor = random.choice([1, 2, 4, 8])
    build: dict[str, Any] = {"checkpoint_repository": {"source": "HF", "repo": "Qwen/Qwen3-4B", "revision": "main"}}
    build |= _some(random, {
        "base_model": "decoder",
        "max_seq_len": random.choice([1, 32768, 1048576]),
        "max_batch_size": random.choice([1, 64, 2048]),
        "max_num_tokens": random.choice([65, 8192, 131072]),
        "quantization_type": random.choice(["no_quant", "fp8", "fp8_kv"]),
        "quantization_config": {"calib_size": 128, "calib_max_seq_length": 16384},
        "num_builder_gpus": 2,
        "plugin_configuration": {"paged_kv_cache": True, "use_paged_context_fmha": True},
        "speculator": {"speculative_decoding_mode": "LOOKAHEAD_DECODING", "lookahead_windows_size": 7,
                       "lookahead_ngram_size": 5, "lookahead_verification_set_size": 3},
        "moe_expert_parallel_option": random.choice([-1, 1]),
        "lora_adapters": random.choice([None, {}]),
    })  # fmt: skip
    if tensor > 1 or random.random() < 0.5:
        build["tensor_parallel_count"] = tensor
    runtime = _some(random, {
        "kv_cache_free_gpu_mem_fraction": 0.85,
        "kv_cache_host_memory_bytes": 1000000,
        "enable_chunked_context": random.choice([True, False]),
        "batch_scheduler_policy": "max_utilization",
        "request_default_max_tokens": 100,
        "served_model_name": "qwen",
        "total_token_limit": 500000,
    })  # fmt: skip
    trt_llm: dict[str, Any] = {"build": _shuffled(random, build)}
    if runtime or random.random() < 0.5:
        trt_llm["runtime"] = _shuffled(random, runtime)
    if random.random() < 0.3:
        trt_llm["inference_stack"] = "v1"
    config = _some(random, _AROUND)
    config["resources"] = {"accelerator": "H100" if tensor == 1 else f"H100:{tensor}"}
    return _shuffled(random, {**config, "trt_llm": _shuffled(random, trt_llm)})


def _some(random: Random, values: dict[str, Any]) -> dict[str, Any]:
    share = random.random()
    return {key: value for key, value in values.items() if random.random() < share}


def _shuffled(random: Random, values: dict[str, Any]) -> dict[str, Any]:
    keys = list(values)
    random.shuffle(keys)
    return {key: values[key] for key in keys}


@dataclass
class Style:
    """How a configuration is written: each choice anew at every place, with the chances that are given."""

    random: Random
    flow: float = 0.15
    quotes: float = 0.1
    comments: float = 0.2
    blanks: float = 0.1
    explicit: float = 0.05
    newline: str = "\n"
    comments_written: list[str] = field(default_factory=list)

    def write(self, config: dict[str, Any]) -> str:
        """The text of a configuration, comments in it numbered."""
        lines = self._mapping(config, 0)
        text = "\n".join(lines) + self.random.choice(["\n", "", "\n\n"])
        if self.random.random() < 0.2:
            text = f"---\n{text}"
        return text.replace("\n", self.newline)

    def _comment(self) -> str:
        text = f"# note {len(self.comments_written)}"
        self.comments_written.append(text)
        return text

    def _is(self, chance: float) -> bool:
        return self.random.random() < chance

    def _mapping(self, values: dict[str, Any], indent: int) -> list[str]:
        lines: list[str] = []
        pad = " " * indent
        step = self.random.choice([1, 2, 4])
        for key, value in values.items():
            if self._is(self.blanks):
                lines.append("")
            if self._is(self.comments):
                lines.append(pad + self._comment())
            written = self._scalar(key, plain=True)
            behind = f"  {self._comment()}" if self._is(self.comments) else ""
            if self._is(self.explicit):
                lines.append(f"{pad}? {written}{behind}")
                head, behind = f"{pad}:", ""
            else:
                head = f"{pad}{written}:"
            if isinstance(value, dict) and value and not self._is(self.flow):
                lines += [f"{head}{behind}", *self._mapping(value, indent + step)]
            elif isinstance(value, list) and value and not self._is(self.flow):
                lines += [f"{head}{behind}", *(f"{pad}- {self._scalar(each)}" for each in value)]
            else:
                flow = self._flow(value, indent + step)
                lines += f"{head} {flow}{behind}".split("\n")
        return lines

    def _flow(self, value: Any, indent: int) -> str:
        if isinstance(value, dict):
            parts = [f"{self._scalar(key, plain=True, in_flow=True)}: {self._flow(each, indent + 2)}"
                     for key, each in value.items()]  # fmt: skip
        elif isinstance(value, list):
            parts = [self._flow(each, indent + 2) for each in value]
        else:
            return self._scalar(value, in_flow=True)
        ends = ("{", "}") if isinstance(value, dict) else ("[", "]")
        if not parts:
            return "".join(ends)
        if self._is(0.6):
            inner = self.random.choice(["", " "])
            last = self.random.choice(["", "", ","])
            return f"{ends[0]}{inner}{', '.join(parts)}{last}{inner}{ends[1]}"
        pad = "\n" + " " * indent
        written = ends[0]
        for number, part in enumerate(parts):
            if self._is(self.comments):
                written += pad + self._comment()
            comma = "," if number + 1 < len(parts) or self._is(0.3) else ""
            behind = f" {self._comment()}" if self._is(self.comments) else ""
            written += f"{pad}{part}{comma}{behind}"
        return f"{written}{pad}{ends[1]}"

    def _scalar(self, value: Any, *, plain: bool = False, in_flow: bool = False) -> str:
        if isinstance(value, bool):
            return self.random.choice(["true", "True", "yes"]) if value else self.random.choice(["false", "no"])
        if value is None:
            return self.random.choice(["null", "~"])
        if isinstance(value, int | float):
            return str(value)
        needs = (not plain and any(each in value for each in ":#[]{},")) or value in ("on",)
        quote = self.random.choice(["'", '"']) if needs or self._is(self.quotes) else ""
        return f"{quote}{value}{quote}"
