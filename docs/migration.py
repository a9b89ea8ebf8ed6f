"""The tables of fields on the page of migration: every field of both stacks, of `config.yaml` and of `llm_config`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from docs.markdown import table
from servescope.migration.document.shapes import FieldShape, ListShape, NamedShape, TableShape, ValueShape
from servescope.migration.fields.backend_server import BACKEND_SERVER, PARSERS, V4_ONLY
from servescope.migration.fields.body import BODY
from servescope.migration.fields.config_yaml import CONFIG
from servescope.migration.fields.llm_config import AUTOSCALING_SETTINGS, LLM_CONFIG
from servescope.migration.fields.trt_llm import TRT_LLM
from servescope.migration.translation.backend_fates import OPTIMISATION_FATES, PIPELINE_FATES
from servescope.migration.translation.fates import FATES, FieldFate, meaning


def list_fields(table: TableShape, prefix: str = "") -> Iterator[tuple[str, FieldShape]]:
    """Every field of a table by its path, those within it included; `[]` is an item of a list, `*` any name."""
    for name, field in table.keys.items():
        if field.elsewhere:
            continue
        yield f"{prefix}{name}", field
        yield from _list_within(field.shape, f"{prefix}{name}")


def _list_within(shape: ValueShape, path: str) -> Iterator[tuple[str, FieldShape]]:
    if isinstance(shape, TableShape):
        yield from list_fields(shape, f"{path}.")
    elif isinstance(shape, ListShape):
        yield from _list_within(shape.item, f"{path}[]")
    elif isinstance(shape, NamedShape):
        yield from _list_within(shape.item, f"{path}.*")


def _moved_rows() -> Iterator[tuple[str, ...]]:
    fields = {**dict(list_fields(TRT_LLM["v1"])), **{path: field for path, field in list_fields(TRT_LLM["v2"])
                                                    if path.startswith("runtime.")}}  # fmt: skip
    fates = {fate.v1: fate for fate in FATES}
    sources = {fate.v2: fate for fate in FATES}
    for path, field in fields.items():
        if path in ("build", "runtime"):
            continue
        fate = _find(fates, path)
        if fate is None:
            before = sources.get(path)
            came = f"is `{before.v1}` of v1" if before is not None else "new in v2"
            yield "–", f"`{path}`", field.shape.text, _default(field), came, field.source
            continue
        onto = f"`{fate.v2}{path.removeprefix(fate.v1)}`" if fate.v2 else "–"
        is_within = path != fate.v1
        happens = f"as `{fate.v1}`" if is_within else f"{meaning(fate.kind)}. {fate.why} {fate.todo}".strip()
        source = fate.source if fate.source == field.source else f"{fate.source}, {field.source}"
        yield f"`{path}`", onto, field.shape.text, _default(field), happens, source


def _kept_rows() -> Iterator[tuple[str, ...]]:
    for path, field in list_fields(CONFIG):
        if path == "trt_llm":
            continue
        happens = f"kept; a warning: {field.note}" if field.note else "kept as it is"
        yield f"`{path}`", field.shape.text, _default(field), happens, field.source


def _body_rows() -> Iterator[tuple[str, ...]]:
    named = {"decoding_type": "lookahead, nearest to NGram", "target_in_flight_tokens": "`concurrency_target`"}
    tables = {"llm_config.": LLM_CONFIG, "autoscaling_settings.": AUTOSCALING_SETTINGS}
    beside = [(path, field) for path, field in list_fields(BODY) if f"{path}." not in tables]
    for path, field in (*(each for prefix, shape in tables.items() for each in list_fields(shape, prefix)), *beside):
        v1 = named.get(path.rpartition(".")[2], "–")
        yield f"`{path}`", field.shape.text, _default(field), v1, field.source


def _find(fates: Mapping[str, FieldFate], path: str) -> FieldFate | None:
    """The fate of a field, or of the one it is within."""
    while path and path not in fates:
        path = path.rpartition(".")[0]
    return fates.get(path)


def _default(field: FieldShape) -> str:
    if field.is_required:
        return "required"
    if field.default is None:
        return "–"
    default = field.default
    if default == "":
        return '`""`'
    return f"`{str(default).lower() if isinstance(default, bool) else list(default) if default == () else default}`"


def _backend_rows() -> Iterator[tuple[str, ...]]:
    fates = {fate.v1: fate for fate in (*OPTIMISATION_FATES, *PIPELINE_FATES)}
    for path, field in (each for shape in BACKEND_SERVER.values() for each in list_fields(shape)):
        if (fate := fates.get(path)) is None:
            continue  # a mapping whose fields have rows of their own
        kind = "stops the move where it is set" if fate.kind == "blocking" else meaning(fate.kind)
        onto = f"`{fate.v2}`" if fate.v2 else "–"
        source = ", ".join(dict.fromkeys((field.source, fate.source)))
        for backend, text in _list_backends(path, field):
            happens = f"{kind}. {fate.why} {fate.todo}".strip()
            yield f"`{path}`", backend, text, _default(field), onto, happens, source


def _list_backends(path: str, field: FieldShape) -> Iterator[tuple[str, str]]:
    """The backends that have a field, and what it may be there."""
    name = path.rpartition(".")[2]
    if name in PARSERS:
        yield from ((backend, f"one of: {', '.join(names)}") for backend, names in PARSERS[name].items())
    else:
        yield ("v4" if path.startswith("backend.extra_params.") and name in V4_ONLY else "v3, v4"), field.shape.text


FIELD_TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "fields": lambda: table(("v1", "v2", "value", "default", "what happens", "source"), _moved_rows()),
    "config": lambda: table(("field", "value", "default", "what happens", "source"), _kept_rows()),
    "body": lambda: table(("field", "value", "default", "v1", "source"), _body_rows()),
    "backend": lambda: table(("field", "backend", "type", "default", "v2", "what happens", "source"), _backend_rows()),
}
"""The tables of docs/migration.md by their names there."""
