"""A Compose file read as Docker reads it, and its services started outside containers with the same commands.

Outside, each port becomes a free one of 127.0.0.1, each service's name 127.0.0.1, and each mounted path a place in a
folder: a volume an empty folder, a file a copy in which the same was done. Nothing else is changed. A name, port or
path that the Compose file does not provide stays what it is, and leads nowhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.programs import answers, program
from tests.support.prometheus import free_port
from tests.support.waiting import wait_for


@dataclass(frozen=True, slots=True)
class Mount:
    """One entry of `volumes`: a file or folder of the checkout, or a volume, and where the service sees it."""

    source: str
    target: str
    read_only: bool

    @property
    def is_volume(self) -> bool:
        """Whether the source is a volume's name."""
        return not self.source.startswith(".")


@dataclass(frozen=True, slots=True)
class Service:
    """One service, and what the file says of it."""

    name: str
    said: Mapping[str, Any]

    def __str__(self) -> str:
        return self.name

    @property
    def mounts(self) -> list[Mount]:
        """Its mounts, in the short syntax `SOURCE:TARGET[:ro]`."""
        fields = [each.split(":") for each in self.said.get("volumes", [])]
        return [Mount(source, target, options == ["ro"]) for source, target, *options in fields]

    @property
    def health_url(self) -> str:
        """The URL that its health check asks."""
        (url,) = re.findall(r"http://[^'\"\s]+", " ".join(self.said["healthcheck"]["test"]))
        return str(url)

    @property
    def port(self) -> int:
        """The port it listens on inside its container: the one its health check asks, else the first it exposes."""
        if "expose" in self.said:
            return int(self.said["expose"][0])
        (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/", self.health_url)
        return int(port)


class Composition:
    """A Compose file: its services in the order they are started in, which their `depends_on` says."""

    def __init__(self, said: Mapping[str, Any], root: Path) -> None:
        self.said = said
        self.root = root
        self.services = {name: Service(name, said["services"][name]) for name in _in_order(said["services"])}

    def named_by(self, service: Service) -> list[Service]:
        """The services that this one's command or mounted files call by name and port."""
        texts = [*service.said.get("command", []), *self._mounted_texts(service)]
        return [
            other
            for other in self.services.values()
            if other is not service and any(re.search(rf"\b{other.name}:{other.port}\b", text) for text in texts)
        ]

    def _mounted_texts(self, service: Service) -> list[str]:
        places = [self.root / mount.source for mount in service.mounts if not mount.is_volume]
        files = [file for place in places for file in ([place] if place.is_file() else place.rglob("*.yml"))]
        return [file.read_text(encoding="utf-8") for file in files]

    def outside(self, folder: Path, *changed: tuple[str, str]) -> Outside:
        """The composition outside containers, with all that its services read and write in this folder.

        `changed` are texts to put in place of others in mounted files and commands, such as intervals not worth waiting
        for.
        """
        return Outside(self, folder, changed)


def read_compose(path: Path) -> Composition:
    """The composition that a file describes."""
    return Composition(yaml.safe_load(path.read_text(encoding="utf-8")), path.parent)


def _in_order(services: Mapping[str, Any]) -> list[str]:
    order: list[str] = []

    def visit(name: str) -> None:
        for needed in services[name].get("depends_on", {}):
            visit(needed)
        if name not in order:
            order.append(name)

    for name in services:
        visit(name)
    return order


class Outside:
    """A composition outside containers; see `Composition.outside`."""

    def __init__(self, composition: Composition, folder: Path, changed: Sequence[tuple[str, str]]) -> None:
        self._composition = composition
        self._folder = folder
        self._changed = changed
        self._ports = {name: free_port() for name in composition.services}
        for service in composition.services.values():
            for mount in service.mounts:
                self._provide(service, mount)

    def path_of(self, service: Service, path: str) -> Path:
        """Where the path of a service lies outside."""
        return Path(self.rewrite(service, path))

    def url_of(self, service: Service, url: str) -> str:
        """A URL as the service knows it, where it leads outside."""
        return self.rewrite(service, url)

    def rewrite(self, service: Service, text: str) -> str:
        """A text of the service with its names, ports and paths as they are outside."""
        for other in self._composition.services.values():
            text = re.sub(rf"\b{other.name}:{other.port}\b", f"127.0.0.1:{self._ports[other.name]}", text)
        own = rf"\b(?:0\.0\.0\.0|127\.0\.0\.1|localhost):{service.port}\b"
        text = re.sub(own, f"127.0.0.1:{self._ports[service.name]}", text)
        targets = sorted((mount.target for mount in service.mounts), key=len, reverse=True)
        places = {mount.target: str(self._place(service, mount)) for mount in service.mounts}
        paths = rf"(?<![\w.])({'|'.join(map(re.escape, targets))})(?![\w.-])"
        return re.sub(paths, lambda found: places[found[1]], text)

    def command(self, service: Service, executable: Path) -> list[str]:
        """The service's command with this executable in place of its image's entry point."""
        said = [str(word) for word in service.said["command"]]
        values = {str(service.port): str(self._ports[service.name]), "0.0.0.0": "127.0.0.1", service.name: "127.0.0.1"}
        # Values of options alone: a command may be called as its service is.
        words = [
            values.get(word, word) if before.startswith("--") else word
            for before, word in zip(["", *said], said, strict=False)
        ]
        return [str(executable), *(self._hasten(self.rewrite(service, word)) for word in words)]

    @contextmanager
    def running(self, executables: Mapping[str, Path]) -> Iterator[None]:
        """The services that have an executable, each started once those it depends on are healthy, as Compose does.

        Raises NotInTimeError, with the end of its log, when one does not become healthy.
        """
        with ExitStack() as stack:
            for service in self._composition.services.values():
                if service.name in executables:
                    stack.enter_context(self._started(service, self.command(service, executables[service.name])))
            yield

    @contextmanager
    def _started(self, service: Service, command: Sequence[str]) -> Iterator[None]:
        log, url = self._folder / f"{service.name}.log", self.url_of(service, service.health_url)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "HOME": str(self._folder)}
        environment.pop("PYTHONPATH", None)
        with program(command, log, environment=environment) as process:
            wait_for(lambda: answers(url), f"{service} to be healthy at {service.health_url}", process=process, log=log)
            yield

    def _place(self, service: Service, mount: Mount) -> Path:
        if mount.is_volume:
            return self._folder / "volumes" / mount.source
        return self._folder / service.name / mount.target.removeprefix("/")

    def _provide(self, service: Service, mount: Mount) -> None:
        place = self._place(service, mount)
        if mount.is_volume:
            place.mkdir(parents=True, exist_ok=True)
            return
        source = self._composition.root / mount.source
        for file in [source] if source.is_file() else [each for each in source.rglob("*") if each.is_file()]:
            copy = place if file == source else place / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(self._hasten(self.rewrite(service, file.read_text(encoding="utf-8"))), encoding="utf-8")

    def _hasten(self, text: str) -> str:
        for old, new in self._changed:
            text = text.replace(old, new)
        return text
