"""Whose metric names the engines' pages have: servescope's own, or those of an engine that the emulator copies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from servescope.emulator.deployment.deployment import EmulatedDeployment
    from servescope.emulator.server.server import Pages

OWN: Final = "servescope"
FACES: Final = {OWN: "servescope's own", "vllm": "those of vLLM 0.32"}
"""Each face, and what its names are."""


def make_pages(face: str, deployments: Iterable[EmulatedDeployment]) -> Pages:
    """The pages of a stack's targets with one of the faces."""
    from servescope.emulator.server.server import OwnPages
    from servescope.emulator.server.vllm_names import VllmPages

    return OwnPages() if face == OWN else VllmPages(deployments)
