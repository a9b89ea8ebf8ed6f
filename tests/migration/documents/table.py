"""Reads the rows of the tables, and says what each of their inputs comes to."""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, NamedTuple

import yaml

from servescope import migrate
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import METRICS
from servescope.errors import UsageError
from servescope.migration.document.document import read_document
from servescope.migration.document.json_document import read_json
from servescope.migration.document.shapes import ConfigurationFinding
from servescope.migration.fields.backend_server import BackendPart, check_backend_server
from servescope.migration.fields.body import check_body
from servescope.migration.fields.config_yaml import check_config
from servescope.migration.translation.checklist import make_checklist
from tests.support.migrations import V1, move_of

DOCUMENTS: Final = {
    "S1": "1-migrate-from-v1.txt",
    "S2": "2-bis-llm-overview.txt",
    "S3": "3-advanced-features.txt",
    "S4": "4-config-yaml-reference.txt",
    "S5": "5-backend-server-options.txt",
}
"""The documents by their marks, and what their files are called in the reference."""

_DROP: Final = "~drop"
_CHECKPOINT: Final = {"source": "HF", "repo": "a/b"}
_LOOKAHEAD: Final = {
    "speculative_decoding_mode": "LOOKAHEAD_DECODING", "lookahead_windows_size": 7, "lookahead_ngram_size": 5,
    "lookahead_verification_set_size": 3,
}  # fmt: skip
_SPECULATING: Final = {"checkpoint_repository": _CHECKPOINT, "max_batch_size": 64}
_SERVER: Final = {"start_command": "serve", "server_port": 8000, "predict_endpoint": "/", "readiness_endpoint": "/",
                  "liveness_endpoint": "/"}  # fmt: skip
_CACHE: Final = {"repo_id": "a/b", "use_volume": True, "revision": "main", "volume_folder": "f"}
_MOVED: Final[Mapping[str, Any]] = {
    "v1": {"build": {"checkpoint_repository": _CHECKPOINT}},
    "lookahead": {"build": {**_SPECULATING, "speculator": _LOOKAHEAD}},
    "tag": {"build": {"checkpoint_repository": _CHECKPOINT}},
}


class DocumentCase(NamedTuple):
    """One row: the lines of a document from `first` to `last`, a case, what is given, and what is wanted."""

    document: str
    first: int
    last: int
    what: str
    given: str
    verdict: str

    @property
    def name(self) -> str:
        """The document, the line, the case and its input."""
        return f"{self.document}:{self.first} {self.what}: {self.given}"


def read_table(document: str) -> list[DocumentCase]:
    """The rows of one document, in the order of its table."""
    rows: list[DocumentCase] = []
    for line in (Path(__file__).parent / f"{document}.table").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        lines, what, given, verdict = re.split(r" ?\| ", line, maxsplit=3)
        first, _, last = lines.partition("-")
        rows.append(
            DocumentCase(document, int(first), int(last or first), what or rows[-1].what, given, verdict.strip())
        )
    return rows


def find_mistake(case: DocumentCase, folder: Path) -> str:
    """Why a case is not as its verdict wants it, "" where it is; files that it needs are written into the folder."""
    kind, _, text = case.verdict.partition(" ")
    text = text.replace("\\n", "\n")
    scope, _, given = case.given.rpartition(" > ") if " > " in case.given else ("", "", case.given)
    if scope == "metric":
        return "" if {given} & (METRICS.keys() | FIGURES.keys()) else "is no metric"
    if scope == "figure":
        return _judge_figure(given, case.verdict)
    if scope == "move":
        return _judge_move(*_move(given, folder), kind, text)
    if scope == "watch":
        config = json.dumps(yaml.safe_load(given))
        move = move_of(V1, llm_config=config)
        return _judge_text("\n".join(make_checklist(move.changes, move.llm_config).lines()), kind, text)
    return _judge_findings(list(_check(scope, given)), kind, text)


def _judge_findings(findings: Iterable[ConfigurationFinding], kind: str, text: str) -> str:
    found = {(each.severity, each.sentence) for each in findings}
    errors = [sentence for severity, sentence in found if severity == "error"]
    sentences = [sentence for severity, sentence in found if severity == kind]
    if kind == "ok":
        return f"is not accepted: {found}" if found else ""
    if kind == "lacks":
        return _judge_text(str(found), kind, text) or (f"has errors: {errors}" if errors else "")
    if kind == "warning" and errors:
        return f"has errors: {errors}"
    return "" if any(text in each for each in sentences) else f"is not said, but {found or 'nothing'}"


def _judge_text(shown: str, kind: str, text: str) -> str:
    return "" if (text in shown) == (kind == "says") else f"{kind} is wrong of: {shown}"


def _judge_move(shown: str, new: str, kind: str, text: str) -> str:
    if kind == "becomes":
        path, _, value = text.partition(": ")
        tree = yaml.safe_load(new)
        for key in path.split("."):
            tree = tree[key]
        return "" if tree == yaml.safe_load(value) else f"is {tree!r}"
    if kind == "without":
        return f"is in: {new}" if text in new else ""
    if kind == "error":
        return _judge_text(shown.partition("\0")[2], "says", text)
    return _judge_text(f"{shown}\n{new}", kind, text)


def _judge_figure(given: str, wanted: str) -> str:
    name, value = given.split()
    band = FIGURES[name].band
    status = band.judge(float(value)).status if band is not None else "none"
    return "" if status == wanted else f"is {status}"


def _move(given: str, folder: Path) -> tuple[str, str]:
    """What `servescope migrate` prints, an error behind a null, and the file that it writes."""
    what, *words = re.split(r" --(?=[a-z])", given)
    section, _, fields = what.partition(": ")
    block = _MOVED[what] if what in _MOVED else _merge(_MOVED["v1"], {section: yaml.safe_load(fields)})
    tree: dict[str, Any] = {"trt_llm": block}
    if what == "tag":
        tree["model_metadata"] = {"tags": ["force-legacy-api-non-openai-compatible"]}
    folder = Path(mkdtemp(dir=folder))  # a copy that an earlier case left would be in the way
    path = folder / "config.yaml"
    path.write_text(_dump(tree), encoding="utf-8")
    arguments = [str(path), "--write"]
    for word in words:
        name, _, value = word.partition(" ")
        if name == "llm-config":
            (folder / "body.yaml").write_text(value, encoding="utf-8")
            value = str(folder / "body.yaml")
        arguments += [f"--{name}", *([value] if value else [])]
    parser = argparse.ArgumentParser()
    migrate.configure(parser)
    said, error = io.StringIO(), ""
    with redirect_stdout(said), redirect_stderr(said):
        try:
            migrate.run(parser.parse_args(arguments))
        except UsageError as refused:
            error = str(refused)
    return f"{said.getvalue()}\0{error}", path.read_text(encoding="utf-8")


def _check(scope: str, given: str) -> Iterator[ConfigurationFinding]:
    first, *others = re.split(r" ;;\s*", given)
    value = yaml.safe_load(first)
    if scope in ("optimisation", "pipeline", "drafting"):
        if scope == "drafting":
            value = {"optimisations": {"speculative_decoding": {"extra_params": value}}}
        part: BackendPart = "pipeline" if scope == "pipeline" else "optimisation"
        yield from check_backend_server(read_json(json.dumps(value), "f.json"), part)
    elif scope in _BODIES:
        yield from check_body(read_document(_dump(_put(_BODIES[scope], value)), "f"))
    else:
        tree = _put(_CONFIGS[scope], value)
        for other in others:
            tree |= yaml.safe_load(other)
        yield from check_config(read_document(_dump(tree), "config.yaml"))


_HERE: Final = object()
_BODIES: Final[Mapping[str, Any]] = {
    "body": _HERE,
    "llm_config": {"llm_config": _HERE},
    "settings": {"llm_config": {}, "autoscaling_settings": _HERE},
    "speculative": {"llm_config": {"speculative_config": _HERE}},
    "routing": {"llm_config": {"b10_routing_config": _HERE}},
}


def _v2(build: Mapping[str, Any], runtime: Any = None) -> dict[str, Any]:
    checkpoint = {"checkpoint_repository": _CHECKPOINT}
    return {"trt_llm": {"inference_stack": "v2", "build": {**checkpoint, **build}, "runtime": runtime or {}}}


def _v1(build: Mapping[str, Any], runtime: Any = None) -> dict[str, Any]:
    return {"trt_llm": {"build": {"checkpoint_repository": _CHECKPOINT, **build}, "runtime": runtime or {}}}


_CONFIGS: Final[Mapping[str, Any]] = {
    "": _HERE,
    "v1.build": _v1({"": _HERE}),
    "v1.runtime": _v1({}, _HERE),
    "v1.checkpoint": _v1({"checkpoint_repository": {**_CHECKPOINT, "": _HERE}}),
    "v1.calibration": _v1({"quantization_type": "fp8", "quantization_config": _HERE}),
    "v1.speculator": _v1({**_SPECULATING, "speculator": {**_LOOKAHEAD, "": _HERE}}),
    "v2.build": _v2({"": _HERE}),
    "v2.runtime": _v2({}, _HERE),
    "v2.checkpoint": _v2({"checkpoint_repository": {**_CHECKPOINT, "": _HERE}}),
    "resources": {"resources": _HERE},
    "image": {"base_image": {"image": "a:1", "": _HERE}},
    "auth": {"base_image": {"image": "a:1", "docker_auth": {"registry": "r", "": _HERE}}},
    "server": {"base_image": {"image": "a:1"}, "docker_server": {**_SERVER, "": _HERE}},
    "weights": {"weights": [{"source": "hf://a/b", "mount_location": "/m", "": _HERE}]},
    "cache": {"model_cache": [{**_CACHE, "": _HERE}]},
    "data": {"external_data": [{"url": "https://x", "local_data_path": "x", "": _HERE}]},
}
"""What the value of each scope is put into: in place of `_HERE`, and over the fields beside it where its key is ""."""


def _put(template: Any, value: Any) -> Any:
    """A template with a value in its place."""
    if template is _HERE:
        return value
    if isinstance(template, list):
        return [_put(each, value) for each in template]
    if not isinstance(template, dict):
        return template
    made = {key: _put(each, value) for key, each in template.items() if key}
    return _merge(made, value) if "" in template else made


def _merge(fields: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(fields)
    for key, value in over.items():
        is_deeper = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if is_deeper else value
    return {key: value for key, value in merged.items() if value != _DROP}


def _dump(tree: Any) -> str:
    # A copy of its own each, or PyYAML writes aliases.
    dumper = type("Plain", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    return yaml.dump(tree, Dumper=dumper, sort_keys=False)
