"""The type of a playbook: one topic, and what to do about it on each family of engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Family = Literal["vLLM", "SGLang", "TensorRT-LLM", "Dynamo"]

FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
ENGINES: Final[tuple[Family, ...]] = ("vLLM", "SGLang", "TensorRT-LLM")
"""The families whose processes run the model; Dynamo routes requests to workers that are one of them."""


@dataclass(frozen=True, slots=True)
class Playbook:
    """Where each family shows a topic, and the switches it has for it; says so where it has none."""

    topic: str
    vllm: str
    sglang: str
    tensorrt_llm: str
    dynamo: str

    def of(self, family: Family) -> str:
        """The part of one family."""
        parts = {"vLLM": self.vllm, "SGLang": self.sglang, "TensorRT-LLM": self.tensorrt_llm, "Dynamo": self.dynamo}
        return parts[family]
