"""Whose metric names the pages have: servescope's own, or those of the programs whose source maps are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from servescope.emulator.deployment.deployment import EmulatedDeployment, EmulatedTarget
from servescope.emulator.faces.native_pages import FrontendPages, engine_samples
from servescope.emulator.faces.pages import OwnPages, Pages
from servescope.emulator.faces.vllm_names import VllmPages
from servescope.errors import UsageError, suggest
from servescope.exposition.rendering import render
from servescope.sources.inversion import NativePage
from servescope.sources.map_files import load_sources
from servescope.sources.maps import Source

OWN: Final = "servescope"
VLLM: Final = "vllm"

_Render = Callable[[EmulatedTarget], bytes]


class Face:
    """The pages of a deployment in other names: its engines', that of its frontend, or both.

    What has no page in these names is not listed for scrapers, and is in the contract's names at its path.
    """

    def __init__(self, deployment: EmulatedDeployment, sources: Iterable[Source]) -> None:
        self._deployment = deployment
        self._engines: _Render | None = None
        self._frontend: _Render | None = None
        for source in sources:
            if source.layer == "frontend":
                self._frontend = FrontendPages(source, deployment).render
            # With what no map reads and vLLM's own tools do.
            elif source.name == VLLM:
                self._engines = VllmPages(deployment).render
            else:
                self._engines = partial(_render_engine, NativePage(source, deployment.plan.identity.model_name))

    def lists(self, target: EmulatedTarget) -> bool:
        """Whether a target is listed for scrapers."""
        return self._find(target) is not None

    def render(self, target: EmulatedTarget) -> bytes:
        """The page of a target."""
        found = self._find(target)
        return render(target.instruments) if found is None else found(target)

    def _find(self, target: EmulatedTarget) -> _Render | None:
        if target.engine is not None:
            return self._engines
        # Of several routers the first is in its place.
        return self._frontend if target.identity.replica == next(iter(self._deployment.router.processes)) else None


def _render_engine(page: NativePage, target: EmulatedTarget) -> bytes:
    assert target.engine is not None  # noqa: S101 - asked by the caller
    return page.render(engine_samples(target.engine))


class Faces:
    """The pages of a stack, each deployment's with its own face."""

    def __init__(self, by_deployment: Mapping[str, Pages]) -> None:
        self._by_deployment = by_deployment

    def lists(self, target: EmulatedTarget) -> bool:
        """Whether a target is listed for scrapers."""
        return self._by_deployment[target.identity.deployment_id].lists(target)

    def render(self, target: EmulatedTarget) -> bytes:
        """The page of a target."""
        return self._by_deployment[target.identity.deployment_id].render(target)


def make_pages(chosen: Sequence[str], deployments: Sequence[EmulatedDeployment]) -> Pages:
    """The pages of a stack's targets with the chosen faces, each `[DEPLOYMENT=]NAME[,NAME]`.

    Names are those of source maps, of an engine, of a frontend, or one of each; a face without a deployment is that of
    all that have none of their own. Raises UsageError.
    """
    names = [deployment.plan.identity.deployment_id for deployment in deployments]
    faces: dict[str, list[Source]] = {}
    for text in chosen:
        deployment, separator, named = text.rpartition("=")
        if separator and deployment not in names:
            raise UsageError(f"--metrics {text!r}: {_unknown('deployment', deployment, names)}")
        if deployment in faces:
            raise UsageError(f"--metrics {text!r}: {deployment or 'every deployment'} has a face already")
        faces[deployment] = _read_face(text, named.split(","))
    pages: dict[str, Pages] = {}
    for name, emulated in zip(names, deployments, strict=True):
        sources = faces.get(name, faces.get("", []))
        pages[name] = Face(emulated, sources) if sources else OwnPages()
    return Faces(pages)


def _read_face(text: str, names: Sequence[str]) -> list[Source]:
    """The sources of a face, none of servescope's own."""
    sources = {name: source for name, source in load_sources().items() if source.layer != "around"}
    for name in names:
        if name not in sources:
            raise UsageError(f"--metrics {text!r}: {_unknown('face', name, sources)}")
    named = [sources[name] for name in names]
    layers = [source.layer for source in named]
    if len(set(layers)) < len(layers) or (OWN in names and len(names) > 1):
        raise UsageError(f"--metrics {text!r}: expected one engine, one frontend, or one of each")
    return [source for source in named if source.name != OWN]


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = suggest(name, known)
    return f"unknown {what} {name!r}{f', {near}' if near else ''}; supported: {', '.join(known)}"
