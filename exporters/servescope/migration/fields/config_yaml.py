"""The whole of a Truss `config.yaml` but its `trt_llm` block: what its fields may be, and the rules between them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from servescope.migration.document.document import Document
from servescope.migration.document.nodes import DocumentNode
from servescope.migration.document.shapes import (
    ANYTHING,
    ChoiceShape,
    ConfigurationFinding,
    FieldShape,
    ListShape,
    NamedShape,
    NumberShape,
    Severity,
    SwitchShape,
    TableShape,
    TextShape,
    ValueShape,
    WholeShape,
    each_entry,
    join,
    show,
    wrong,
)
from servescope.migration.fields.masking import find_secrets
from servescope.migration.fields.trt_llm import TRUSS, check_trt_llm

ACCELERATORS: Final = (
    "T4", "L4", "A10G", "V100", "A100", "A100_40GB", "H100", "H200", "H100_40GB", "B200", "L40S", "RTX_PRO_6000",
    "B300", "GB300",
)  # fmt: skip
_UNCHECKED: Final = "is not in the documented reference: kept as it is, and not checked"
_RESERVED_PORT: Final = 8080
_BUILT: Final = ("requirements", "requirements_file", "system_packages", "build_commands", "live_reload")
"""What is installed when an image is built, and the development mode, which changes one."""
_ACCESS: Final = "hf_access_token"
"""The secret that checkpoints are read with by default: the documents show it without its declaration."""
_API_TAGS: Final = ("openai-compatible", "force-legacy-api-non-openai-compatible")
_TEXTS: Final = ListShape(item=TextShape())
_ARN: Final = ("aws_oidc_role_arn", "aws_oidc_region")
_GCP: Final = ("gcp_oidc_service_account", "gcp_oidc_workload_id_provider")
_IAM: Final = ("aws_access_key_id", "aws_secret_access_key")
"""The secrets of AWS_IAM, by the names they have unless others are given."""
_ASSUME: Final = ("aws_assume_role_arn", "aws_assume_role_region")
_AUTH_FIELDS: Final = (*_ARN, *_GCP, *_ASSUME)


@dataclass(frozen=True, slots=True)
class _Scalar(ValueShape):
    """A text, a number or true or false: what becomes a text in the environment."""

    @property
    def text(self) -> str:
        return "a text"

    def check(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        """Null is no error: it is taken, but as a text."""
        if node.value is None:
            message = "is null, which the environment gets as the text None: give it a text, or remove it"
            yield ConfigurationFinding("warning", path, node.line, node.column, message)
        else:
            yield from self._check(node, path)

    def _check(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        if node.kind != "scalar":
            yield wrong(node, path, f"is a {node.kind}, expected a text")


@dataclass(frozen=True, slots=True)
class _Placeholder(ValueShape):
    """null, as the value of a secret is kept elsewhere; a value that is there is not shown."""

    @property
    def text(self) -> str:
        return "null"

    def _check(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        if not isinstance(node.value, str):
            yield wrong(node, path, "has a value that is no text, expected null")
        else:
            yield ConfigurationFinding("warning", path, node.line, node.column,
                          "has a value: never store a secret here, expected null")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Within(TextShape):
    """A path below a directory: relative, and not out of it."""

    def _check(self, node: DocumentNode, path: str) -> Iterator[ConfigurationFinding]:
        value = posixpath.normpath(node.value) if isinstance(node.value, str) else "."
        if value in (".", "..") or value.startswith(("/", "../")):
            yield wrong(node, path, f"is {show(node.value)}, expected {self.text}")


def _auth(methods: tuple[str, ...], **more: FieldShape) -> TableShape:
    return TableShape(is_nullable=True, keys=MappingProxyType({
        "auth_method": FieldShape(ChoiceShape(values=methods, any_case=True), is_required=True),
        **{name: FieldShape(TextShape(is_nullable=True)) for name in (*_ARN, *_GCP)},
        **{name: FieldShape(TextShape(is_nullable=True), source=TRUSS) for name in _ASSUME},
        **more,
    }))  # fmt: skip


_DOCKER_AUTH: Final = _auth(
    ("GCP_SERVICE_ACCOUNT_JSON", "AWS_IAM", "AWS_OIDC", "GCP_OIDC", "REGISTRY_SECRET", "AWS_ASSUME_ROLE"),
    registry=FieldShape(TextShape(is_nullable=True)),
    secret_name=FieldShape(TextShape(is_nullable=True)),
    **{f"{name}_secret_name": FieldShape(TextShape(is_nullable=True), default=name) for name in _IAM},
)
_WEIGHTS_AUTH: Final = _auth(
    ("CUSTOM_SECRET", "AWS_OIDC", "GCP_OIDC", "AWS_ASSUME_ROLE"),
    auth_secret_name=FieldShape(TextShape(is_nullable=True)),
)

RESOURCES: Final = TableShape(keys=MappingProxyType({
    "cpu": FieldShape(TextShape(pattern=r"(?=.*[1-9])(?:\d+(?:\.\d*)?|\.\d+|\d+m)",
                    what="a text such as '4' or '500m', above 0"), default="1"),
    "memory": FieldShape(TextShape(pattern=r"(?=.*[1-9])(?:\d+(?:\.\d*)?|\.\d+)[GM]i?",
                       what="a text such as '16Gi', with Gi, G, Mi or M, above 0"), default="2Gi"),
    "accelerator": FieldShape(TextShape(
        pattern=rf"(?:{'|'.join(ACCELERATORS)})(?::0*[1-9]\d{{0,3}})?", is_nullable=True,
        what=f"one of {', '.join(ACCELERATORS)}, with ':' and the number of GPUs where it is more than one",
    )),
    "instance_type": FieldShape(TextShape(
        is_nullable=True, pattern=rf"(?:CPU|{'|'.join(ACCELERATORS)}):[1-9]\d*x[1-9]\d*(?:x[1-9]\d*)?",
        what=f"a SKU such as 'L4:4x16', of CPU or one of {', '.join(ACCELERATORS)}",
    )),
    "node_count": FieldShape(WholeShape(low=1, is_nullable=True)),
    "use_gpu": FieldShape(SwitchShape(), source="S2"),
    "fabric": FieldShape(source=TRUSS, note=_UNCHECKED),
}))  # fmt: skip

RUNTIME: Final = TableShape(keys=MappingProxyType({
    "predict_concurrency": FieldShape(WholeShape(low=1), default=1),
    "streaming_read_timeout": FieldShape(WholeShape(low=1), default=60),
    "enable_tracing_data": FieldShape(SwitchShape(), default=False),
    "enable_debug_logs": FieldShape(SwitchShape(), default=False),
    "transport": FieldShape(TableShape(keys=MappingProxyType({
        "kind": FieldShape(ChoiceShape(values=("http", "websocket", "grpc")), default="http"),
        "ping_interval_seconds": FieldShape(NumberShape(low=0, is_nullable=True)),
        "ping_timeout_seconds": FieldShape(NumberShape(low=0, is_nullable=True)),
    }))),
    "health_checks": FieldShape(TableShape(keys=MappingProxyType({
        "startup_threshold_seconds": FieldShape(WholeShape(low=10, high=3000, is_nullable=True), default=1800),
        "stop_traffic_threshold_seconds": FieldShape(WholeShape(low=0, is_nullable=True), default=1800),
        "restart_threshold_seconds": FieldShape(WholeShape(low=0, is_nullable=True), default=1800),
        "restart_check_delay_seconds": FieldShape(
            WholeShape(low=0, is_nullable=True), note="is deprecated, expected startup_threshold_seconds"
        ),
    }))),
    **{name: FieldShape(source=TRUSS, note=_UNCHECKED)
       for name in ("oidc", "remote_ssh", "egress_restrictions", "truss_server_version_override",
                    "is_websocket_endpoint")},
    "num_workers": FieldShape(WholeShape(low=1, high=1), source=TRUSS),
}))  # fmt: skip

_DOCKER_SERVER: Final = TableShape(is_nullable=True, keys=MappingProxyType({
    "start_command": FieldShape(TextShape(is_nullable=True)),
    "server_port": FieldShape(WholeShape(low=1, high=65535, excluded=(_RESERVED_PORT,)), is_required=True),
    **{name: FieldShape(TextShape(), is_required=True)
       for name in ("predict_endpoint", "readiness_endpoint", "liveness_endpoint")},
    "run_as_user_id": FieldShape(WholeShape(low=1, excluded=(60000,), is_nullable=True)),
    "no_build": FieldShape(SwitchShape(is_nullable=True)),
}))  # fmt: skip

_WEIGHTS: Final = TableShape(keys=MappingProxyType({
    "source": FieldShape(TextShape(
        pattern=r"hf://[^/].*|(?:s3|gs|r2)://[^/@][^@]*",
        what="a URI of hf://, s3://, gs:// or r2://, a revision (@) with hf:// only",
    ), is_required=True),
    "mount_location": FieldShape(TextShape(pattern=r"/.*", what="an absolute path"), is_required=True),
    "auth_secret_name": FieldShape(TextShape(is_nullable=True)),
    "auth": FieldShape(_WEIGHTS_AUTH),
    "allow_patterns": FieldShape(ListShape(item=TextShape(), is_nullable=True)),
    "ignore_patterns": FieldShape(ListShape(item=TextShape(), is_nullable=True)),
}))  # fmt: skip

_MODEL_CACHE: Final = TableShape(keys=MappingProxyType({
    "repo_id": FieldShape(TextShape(pattern=r"(?s).+", what="a repository"), is_required=True),
    "kind": FieldShape(ChoiceShape(values=("hf", "gcs", "s3", "azure")), default="hf"),
    "revision": FieldShape(TextShape(pattern=r"|(?s:..+)", what="a revision of two characters or more"), default=""),
    "use_volume": FieldShape(SwitchShape(), is_required=True),
    "volume_folder": FieldShape(TextShape(pattern=r"(?s).+", what="a folder", is_nullable=True)),
    "allow_patterns": FieldShape(ListShape(item=TextShape(), is_nullable=True)),
    "ignore_patterns": FieldShape(ListShape(item=TextShape(), is_nullable=True)),
    "runtime_secret_name": FieldShape(TextShape(), default=_ACCESS),
}))  # fmt: skip

CONFIG: Final = TableShape(keys=MappingProxyType({
    "model_name": FieldShape(TextShape(is_nullable=True)),
    "description": FieldShape(TextShape(is_nullable=True)),
    "model_class_name": FieldShape(TextShape(), default="Model"),
    "model_module_dir": FieldShape(TextShape(), default="model"),
    "data_dir": FieldShape(TextShape(), default="data"),
    "bundled_packages_dir": FieldShape(TextShape(), default="packages"),
    "external_package_dirs": FieldShape(_TEXTS, default=()),
    "environment_variables": FieldShape(NamedShape(item=_Scalar())),
    "model_metadata": FieldShape(NamedShape()),
    "requirements_file": FieldShape(TextShape(
        is_nullable=True, pattern=r"|(?:(?s:.*)/)?(?:[^/]*\.txt|pyproject\.toml|uv\.lock)",
        what="requirements.txt, pyproject.toml or uv.lock",
    )),
    "requirements": FieldShape(_TEXTS, default=()),
    "system_packages": FieldShape(_TEXTS, default=()),
    "python_version": FieldShape(
        ChoiceShape(values=("py39", "py310", "py311", "py312", "py313", "py314")), default="py39"
    ),
    "secrets": FieldShape(NamedShape(item=_Placeholder(is_nullable=True))),
    "examples_filename": FieldShape(TextShape(), default="examples.yaml"),
    "live_reload": FieldShape(SwitchShape(), default=False),
    "apply_library_patches": FieldShape(SwitchShape(), default=True),
    "resources": FieldShape(RESOURCES),
    "runtime": FieldShape(RUNTIME),
    "base_image": FieldShape(TableShape(is_nullable=True, keys=MappingProxyType({
        "image": FieldShape(TextShape()),
        "python_executable_path": FieldShape(TextShape(pattern=r"|/.*", what="an absolute path")),
        "docker_auth": FieldShape(_DOCKER_AUTH),
    }))),
    "docker_server": FieldShape(_DOCKER_SERVER),
    "external_data": FieldShape(ListShape(is_nullable=True, item=TableShape(keys=MappingProxyType({
        "url": FieldShape(TextShape(pattern=r"(?s).+", what="a URL"), is_required=True),
        "local_data_path": FieldShape(
            _Within(what="a path relative to the data directory, and within it"), is_required=True
        ),
        "name": FieldShape(TextShape(is_nullable=True)),
        "backend": FieldShape(TextShape(), default="http_public"),
    })))),
    "build_commands": FieldShape(_TEXTS, default=()),
    "build": FieldShape(TableShape(keys=MappingProxyType({
        "secret_to_path_mapping": FieldShape(NamedShape(
            item=TextShape(), pattern=r"(?!\.{1,2}$)[-._a-zA-Z0-9]{1,253}|DOCKER_REGISTRY_.{0,237}",
            what="a name of letters, digits, '-', '.' and '_'",
        )),
        **{name: FieldShape(source=TRUSS, note=_UNCHECKED) for name in ("model_server", "arguments")},
        "no_cache": FieldShape(elsewhere="is an option of the command line: --no-cache", source=TRUSS),
    }))),
    "weights": FieldShape(ListShape(item=_WEIGHTS)),
    "model_cache": FieldShape(ListShape(item=_MODEL_CACHE), note="is deprecated, expected weights"),
    "training_checkpoints": FieldShape(TableShape(is_nullable=True, keys=MappingProxyType({
        "download_folder": FieldShape(TextShape(), default="/tmp/training_checkpoints"),  # noqa: S108 - the vendor's default
        "artifact_references": FieldShape(ListShape(item=TableShape(keys=MappingProxyType({
            "training_job_id": FieldShape(TextShape(), is_required=True),
            "paths": FieldShape(_TEXTS, default=()),
        })))),
        "loops_checkpoint_ids": FieldShape(source=TRUSS, note=_UNCHECKED),
    }))),
    "trt_llm": FieldShape(ANYTHING),
    **{name: FieldShape(source=TRUSS, note=_UNCHECKED)
       for name in ("bdn", "bis_llm", "input_type", "model_framework", "model_type", "model_class_filename",
                    "use_local_src", "cache_internal", "spec_version", "hf_cache")},
}))  # fmt: skip


def check_config(document: Document, folder: Path | None = None) -> list[ConfigurationFinding]:
    """The findings of a `config.yaml`, `trt_llm` included, in the order of the text.

    `folder` is where the file is, None where it is none: what it names beside it is looked for there.
    """
    root = document.root
    if root is None:
        return []
    found = list(CONFIG.check(root, ""))
    if root.kind == "mapping":
        found += _check_rules(root)
        found += _check_lock(root, folder) if folder is not None else ()
        trt_llm = root.find("trt_llm")
        if trt_llm is not None and trt_llm.value is not None:
            kind, count = _accelerator(root)
            nodes = root.find("resources", "node_count")
            found += check_trt_llm(
                trt_llm, kind, count, nodes.value if nodes and isinstance(nodes.value, int) else None
            )
    return sorted(found, key=lambda each: (each.line, each.column))


def _accelerator(root: DocumentNode) -> tuple[str | None, int]:
    """The kind of accelerator, and how many of it a node has; 1 where nothing says so."""
    node = root.find("resources", "accelerator")
    instance = root.find("resources", "instance_type")
    if node is not None and isinstance(node.value, str):
        kind, _, count = node.value.partition(":")
        return kind, int(count) if re.fullmatch(r"\d{1,6}", count) else 1
    if instance is not None and isinstance(instance.value, str):
        kind = instance.value.partition(":")[0]
        return (kind if kind in ACCELERATORS else None), 1
    return None, 1


def _check_rules(root: DocumentNode) -> Iterator[ConfigurationFinding]:
    requirements, file = root.find("requirements"), root.find("requirements_file")
    if requirements is not None and requirements.value and file is not None and file.value:
        yield wrong(file, "requirements_file", "is there beside requirements, expected one of both")
    cache, weights = root.find("model_cache"), root.find("weights")
    if cache is not None and cache.value and weights is not None and weights.value:
        yield wrong(weights, "weights", "is there beside model_cache, expected one of both")
    auth = root.find("base_image", "docker_auth")
    if auth is not None:
        yield from _check_auth(auth, "base_image.docker_auth", {"GCP_SERVICE_ACCOUNT_JSON": ("secret_name",)},
                               forbidden={"AWS_OIDC": ("secret_name",), "GCP_OIDC": ("secret_name",),
                                          "AWS_ASSUME_ROLE": ("secret_name",)})  # fmt: skip
        yield from _check_registry(root, auth)
    yield from _check_server(root)
    yield from _check_image(root)
    yield from _check_secrets(root)
    yield from _check_declared(root)
    yield from _check_weights(root)
    yield from _check_cache(root)
    yield from _check_instance(root)
    yield from _check_transport(root)
    yield from _check_tags(root)


def _check_server(root: DocumentNode) -> Iterator[ConfigurationFinding]:
    server = root.find("docker_server")
    if server is None or server.kind != "mapping":
        return
    no_build, command = server.find("no_build"), server.find("start_command")
    if (no_build is None or no_build.value is not True) and (command is None or command.value is None):
        yield wrong(server, "docker_server.start_command", "is missing: it is required unless no_build is true")
    has_image = bool(root.value_of("base_image", "image"))
    if no_build is not None and no_build.value is True:
        if not has_image:
            yield wrong(server, "base_image.image", "is missing: docker_server.no_build deploys it as it is")
        what = "is true, which the vendor's support has to enable for your organization"
        yield ConfigurationFinding("warning", "docker_server.no_build", no_build.line, no_build.column, what)
        for name in _BUILT:
            unused = root.find(name)
            if unused is not None and unused.value:
                what = "has no effect: docker_server.no_build is true, so that the image stays as it is"
                yield ConfigurationFinding("warning", name, unused.line, unused.column, what)
    elif not has_image:
        what = "is there without base_image.image, expected the image that has the server"
        yield ConfigurationFinding("warning", "docker_server", server.line, server.column, what)


def _check_image(root: DocumentNode) -> Iterator[ConfigurationFinding]:
    image = root.find("base_image", "image")
    if image is not None and isinstance(image.value, str) and image.value.endswith(":latest"):
        what = f"is {show(image.value)}: a cached copy may be used, expected a version or a digest (@sha256:…)"
        yield ConfigurationFinding("warning", "base_image.image", image.line, image.column, what)


def _check_lock(root: DocumentNode, folder: Path) -> Iterator[ConfigurationFinding]:
    """A lock of uv needs its project in the same directory; where neither is, the file may have been copied alone."""
    node = root.find("requirements_file")
    if node is None or not isinstance(node.value, str) or posixpath.basename(node.value) != "uv.lock":
        return
    lock = folder / node.value
    if not lock.with_name("pyproject.toml").exists():
        what = f"is {show(node.value)}, which needs a pyproject.toml in the same directory: there is none"
        severity: Severity = "error" if lock.exists() else "warning"
        yield ConfigurationFinding(severity, "requirements_file", node.line, node.column, what)


def _check_registry(root: DocumentNode, auth: DocumentNode) -> Iterator[ConfigurationFinding]:
    """The secrets of a private registry have to be among those of the deployment."""
    method, declared = auth.find("auth_method"), root.find("secrets")
    kind = method.value.upper() if method is not None and isinstance(method.value, str) else ""
    known = declared.value if declared is not None and isinstance(declared.value, dict) else {}
    path = "base_image.docker_auth"
    wanted = {"secret_name": ""} if kind == "GCP_SERVICE_ACCOUNT_JSON" else {}
    for name in _IAM:
        field = auth.find(f"{name}_secret_name")
        if kind == "AWS_IAM":
            wanted[f"{name}_secret_name"] = name
        elif field is not None and field.value:
            what = "has no effect: it is for auth_method AWS_IAM"
            yield ConfigurationFinding("warning", f"{path}.{name}_secret_name", field.line, field.column, what)
    for name, default in wanted.items():
        field = auth.find(name)
        secret = default if field is None else field.value
        if isinstance(secret, str) and secret and secret not in known:
            at = field or auth
            what = f"is {secret!r}, which is not among secrets"
            yield ConfigurationFinding("warning", f"{path}.{name}", at.line, at.column, what)


def _check_secrets(root: DocumentNode) -> Iterator[ConfigurationFinding]:
    for path, node in find_secrets(root):
        what = "has a secret in it: never store one here, expected it in secrets"
        yield ConfigurationFinding("warning", path, node.line, node.column, what)


def _check_declared(root: DocumentNode) -> Iterator[ConfigurationFinding]:
    """The secrets that are referred to have to be among those of the deployment."""
    declared = root.value_of("secrets")
    known = declared if isinstance(declared, dict) else {}
    mapping = root.find("build", "secret_to_path_mapping")
    for key, _ in each_entry(mapping) if mapping is not None and mapping.kind == "mapping" else ():
        if key.value not in known:
            path = join("build.secret_to_path_mapping", key.value)
            yield ConfigurationFinding("warning", path, key.line, key.column, "is not among secrets")
    for path, node in _each_reference(root):
        if isinstance(node.value, str) and node.value and node.value not in known:
            what = f"is {show(node.value)}, which is not among secrets"
            yield ConfigurationFinding("warning", path, node.line, node.column, what)


def _each_reference(root: DocumentNode) -> Iterator[tuple[str, DocumentNode]]:
    """Every field that names a secret, those of a private registry aside; a default that is written out is none."""
    places: list[tuple[str, DocumentNode]] = []
    for section, keys in (("weights", (("auth_secret_name",), ("auth", "auth_secret_name"))),
                          ("model_cache", (("runtime_secret_name",),))):  # fmt: skip
        listed = root.find(section)
        for number, each in enumerate(listed.real.items if listed is not None else ()):
            places += [(f"{section}[{number}].{'.'.join(key)}", node) for key in keys if (node := each.find(*key))]
    adapters = root.find("trt_llm", "build", "lora_adapters")
    checkpoints = [("checkpoint_repository", root.find("trt_llm", "build", "checkpoint_repository"))]
    if adapters is not None and adapters.kind == "mapping":
        checkpoints += [(join("lora_adapters", key.value), each) for key, each in each_entry(adapters)]
    for name, checkpoint in checkpoints:
        if checkpoint is not None and (node := checkpoint.find("runtime_secret_name")):
            places.append((f"trt_llm.build.{name}.runtime_secret_name", node))
    for path, node in places:
        if not (path.endswith(".runtime_secret_name") and node.value == _ACCESS):
            yield path, node


def _check_weights(root: DocumentNode) -> Iterator[ConfigurationFinding]:
    weights = root.find("weights")
    seen: dict[object, int] = {}
    for number, each in enumerate(weights.real.items if weights is not None else ()):
        path = f"weights[{number}]"
        mount = each.find("mount_location")
        if mount is not None and isinstance(mount.value, str):
            if mount.value in seen:
                what = f"is {mount.value!r}, which weights[{seen[mount.value]}] has already"
                yield wrong(mount, f"{path}.mount_location", what)
            seen.setdefault(mount.value, number)
        auth, name = each.find("auth"), each.find("auth_secret_name")
        if auth is not None:
            yield from _check_auth(auth, f"{path}.auth", {"CUSTOM_SECRET": ("auth_secret_name",)},
                                   forbidden={"AWS_OIDC": ("auth_secret_name",), "GCP_OIDC": ("auth_secret_name",),
                                              "AWS_ASSUME_ROLE": ("auth_secret_name",)})  # fmt: skip
        inner = each.find("auth", "auth_secret_name")
        if name is not None and name.value and inner is not None and inner.value:
            yield wrong(name, f"{path}.auth_secret_name", "is there, and in auth as well, expected one of both")


_REQUIRED_AUTH: Final = MappingProxyType({"AWS_OIDC": _ARN, "GCP_OIDC": _GCP, "AWS_ASSUME_ROLE": _ASSUME})
_STRICT_AUTH: Final = ("AWS_OIDC", "GCP_OIDC", "AWS_ASSUME_ROLE", "CUSTOM_SECRET", "GCP_SERVICE_ACCOUNT_JSON")


def _check_auth(
    node: DocumentNode, path: str, required: dict[str, tuple[str, ...]], *, forbidden: dict[str, tuple[str, ...]]
) -> Iterator[ConfigurationFinding]:
    method = node.find("auth_method")
    if method is None or not isinstance(method.value, str):
        return
    name = method.value.upper()
    needed = (*_REQUIRED_AUTH.get(name, ()), *required.get(name, ()))
    refused = [*forbidden.get(name, ())]
    if name in _STRICT_AUTH:
        refused += [each for each in _AUTH_FIELDS if each not in needed]
    for field in needed:
        if (value := node.find(field)) is None or value.value in (None, ""):
            yield wrong(value or node, join(path, field), f"is missing: auth_method {name} requires it")
    for field in refused:
        if (value := node.find(field)) is not None and value.value not in (None, ""):
            yield wrong(value, join(path, field), f"cannot be there when auth_method is {name}")


def _check_cache(root: DocumentNode) -> Iterator[ConfigurationFinding]:
    cache = root.find("model_cache")
    for number, each in enumerate(cache.real.items if cache is not None else ()):
        path = f"model_cache[{number}]"
        volume = each.find("use_volume")
        if volume is not None and volume.value is False:
            what = "is false, recommended is true"
            yield ConfigurationFinding("warning", f"{path}.use_volume", volume.line, volume.column, what)
        if volume is None or volume.value is not True:
            continue
        folder, revision, kind = each.find("volume_folder"), each.find("revision"), each.find("kind")
        if folder is None or not folder.value:
            yield wrong(each, f"{path}.volume_folder", "is missing: use_volume: true requires it")
        if (kind is None or kind.value == "hf") and (revision is None or not revision.value):
            yield wrong(each, f"{path}.revision", "is missing: use_volume: true requires it for Hugging Face")


def _check_instance(root: DocumentNode) -> Iterator[ConfigurationFinding]:
    resources = root.find("resources")
    if resources is None or resources.kind != "mapping":
        return
    instance = resources.find("instance_type")
    if instance is None or not instance.value:
        return
    for key, _ in each_entry(resources):
        if key.value in ("cpu", "memory", "accelerator"):
            what = "is ignored: instance_type says it all"
            yield ConfigurationFinding("warning", f"resources.{key.value}", key.line, key.column, what)


def _check_transport(root: DocumentNode) -> Iterator[ConfigurationFinding]:
    transport = root.find("runtime", "transport")
    if transport is None or transport.kind != "mapping":
        return
    kind = transport.find("kind")
    if kind is None and transport.real.entries:
        yield wrong(transport, "runtime.transport.kind", "is missing, expected one of: http, websocket, grpc")
    if kind is not None and kind.value != "websocket":
        for key, _ in each_entry(transport):
            if key.value in ("ping_interval_seconds", "ping_timeout_seconds"):
                what = f"has no effect with kind {kind.value}"
                yield ConfigurationFinding("warning", f"runtime.transport.{key.value}", key.line, key.column, what)


def _check_tags(root: DocumentNode) -> Iterator[ConfigurationFinding]:
    tags = root.find("model_metadata", "tags")
    if tags is None:
        return
    yield from _TEXTS.check(tags, "model_metadata.tags")
    if isinstance(tags.value, list) and {*_API_TAGS} <= {each for each in tags.value if isinstance(each, str)}:
        yield wrong(tags, "model_metadata.tags", f"has {' and '.join(_API_TAGS)}, expected one of both")
