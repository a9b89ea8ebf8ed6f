"""Pages written from source maps: every native series that a map takes in a range of versions, after some requests.

No engine has served them. They show that a map is read as it is written, and give the programs around it something to
read; whether an engine is as its map says is shown by captures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from servescope.contract.samples import format_edge, format_series, make_labels
from servescope.contract.types import Metric
from servescope.sources.map_files import load_sources
from servescope.sources.maps import Alternative, Source, Term

FOLDER: Final = Path(__file__).parent
REQUESTS: Final = 40.0
"""Requests that were ok: of each histogram so many observations."""
COUNTED: Final = 384.0
"""What other counters have: as many as vLLM's reference capture has tokens, for tests that read either."""
BEGAN_SECONDS: Final = 1.7e9
"""When processes began."""
_EDGES: Final = (0.1, 1.0, 10.0, 100.0, 1000.0)
_PARTS: Final = ("_sum", "_count")


@dataclass(frozen=True, slots=True)
class Written:
    """A page to write: its name, the source map and the versions it is written for, and families these do not have."""

    name: str
    source: str
    versions: str
    without: tuple[str, ...] = ()

    def text(self) -> str:
        """The page."""
        return _Page(load_sources()[self.source], self.versions, self.without).text()


_SINCE_0_8: Final = (
    "vllm:gpu_prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:request_decode_time_seconds",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
)
_SINCE_0_10: Final = (
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
)
_SINCE_0_13: Final = (
    # Of llm-d's simulator alone, as below.
    "vllm:max_num_generation_tokens",
    "vllm:request_time_per_output_token_seconds",
    "vllm:admission_rejections_total",
    "vllm:prompt_tokens_cached_total",
    "vllm:prompt_tokens_by_source_total",
    "vllm:num_requests_waiting_by_reason",
)
_BEFORE_0_13: Final = (
    "vllm:max_num_generation_tokens",
    "vllm:num_requests_swapped",
    "vllm:gpu_cache_usage_perc",
    "vllm:gpu_prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:time_per_output_token_seconds",
)

WRITTEN: Final = (
    Written("vllm-0.32.0-1", "vllm", "newer than 0.13, read up to 0.32", _BEFORE_0_13),
    Written("vllm-0.13era-1", "vllm", "about 0.13", _BEFORE_0_13),
    Written("vllm-0.10era-1", "vllm", "about 0.10 to 0.12", (*_SINCE_0_13, "vllm:num_requests_swapped")),
    Written("vllm-0.8era-1", "vllm", "0.8 to about 0.10", (*_SINCE_0_13, *_SINCE_0_10, "vllm:num_requests_swapped")),
    Written("vllm-0.5.0-1", "vllm", "0.5 to 0.9 (V0 engine)", (*_SINCE_0_13, *_SINCE_0_10, *_SINCE_0_8)),
    Written(
        "vllm-on-ray-0.32.0-1",
        "vllm-on-ray",
        "newer than 0.13, read up to 0.32",
        ("ray_vllm:max_num_generation_tokens",),
    ),
    Written("sglang-on-ray-0.5.23-1", "sglang-on-ray", "newer than 0.5.12, read up to 0.5.23"),
    Written("sglang-0.5.7era-1", "sglang", "0.5.7 to about 0.5.9"),
    Written("sglang-0.4.x-1", "sglang", "before 0.4.5"),
    Written("dynamo-frontend-1.6.1-1", "dynamo-frontend", "1.6"),
    Written("dynamo-frontend-0.8dev-1", "dynamo-frontend", "before 1.6 (about 0.8)"),
    Written("dynamo-mocker-1.6.1-1", "dynamo-mocker", "1.6"),
    Written("tgi-3.3.7-1", "tgi", "3, read at 3.3.7"),
    Written("nim-1-1", "nim", "1, read in November 2026"),
    Written("triton-trtllm-1.0.0-1", "trtllm-on-triton", "1, read in November 2026"),
    Written("llmd-epp-0.10.0-1-goldens", "epp", "llm-d router 0.9 or newer, read up to 0.10"),
    Written("trtllm-1.3-1", "trtllm", "1.3 with cached tokens, read in November 2026"),
)

UNMAPPED: Final = {
    "dcgm-exporter-4.x-1": ("DCGM_FI_DEV_MEM_CLOCK",),
}
"""Pages of what no source map reads, by their names: a few series that show which program it is."""


@dataclass(slots=True)
class _Family:
    """A native family: its type, the edges of a histogram, and its series as labels with how much each counted."""

    kind: str
    edges: tuple[float, ...] = ()
    series: dict[str, tuple[Mapping[str, str], float]] = field(default_factory=dict)


class _Page:
    def __init__(self, source: Source, versions: str, without: tuple[str, ...]) -> None:
        self._source, self._versions = source, versions
        before = [rule for rule in source.versions if rule.versions != versions]
        (rule,) = [rule for rule in source.versions if rule.versions == versions]
        self._signs = {*source.signs.all, *rule.present, *([] if source.signs.all else source.signs.any[:1])}
        earlier = before[: source.versions.index(rule)]
        self._foreign = {name for each in earlier for name in each.present} - self._signs | {
            *source.signs.none,
            *without,
        }
        self._families: dict[str, _Family] = {}
        for metric in source.metrics.values():
            # Of a renamed series both names, as engines have them for a while.
            for term in (each for one in metric.alternatives if self._is_usable(one) for each in one.terms):
                if _family_of(term.native) not in self._foreign:
                    self._add(term, metric.metric, metric.edges or metric.metric.edges or _EDGES)
        for name in sorted(self._signs - self._families.keys()):
            self._families[name] = _Family("counter" if name.endswith("_total") else "gauge")
            self._families[name].series[""] = (self._labels(), 1.0)

    def text(self) -> str:
        """The exposition; its first line says what it is."""
        head = (
            f"# Written by `python -m tests.pages` from the source map {self._source.name!r} for {self._versions!r}: "
            "no engine has served it.\n"
        )
        return head + "".join(line for name, family in self._families.items() for line in _lines(name, family))

    def _is_usable(self, alternative: Alternative) -> bool:
        needed = {*alternative.requires, *(term.native for term in alternative.terms if not term.optional)}
        return not {*needed, *map(_family_of, needed)} & self._foreign and not {*alternative.unless} & self._signs

    def _labels(self) -> dict[str, str]:
        return dict.fromkeys(filter(None, [self._source.model_label, self._source.signs.label]), "tiny")

    def _add(self, term: Term, metric: Metric, edges: tuple[float, ...]) -> None:
        name, kind = term.native, str(metric.kind)
        edges = tuple(edge / term.scale for edge in edges)
        if kind == "counter" and _family_of(name) != name:
            name, kind = _family_of(name), "histogram"
        family = self._families.setdefault(name, _Family(kind, edges if kind == "histogram" else ()))
        if term.native == name and kind == "histogram":
            family.edges = edges
        # Labels of the contract that no rule sets are the native series' own.
        own = {
            each: metric.label_values.get(each, ("0",))[0] for each in metric.labels if each not in dict(term.labels)
        }
        # Those that are ok have stopped.
        counted = 0.0 if metric.name == "answers_truncated_total" else COUNTED if kind == "counter" else REQUESTS
        for place, labels in enumerate(own | each for each in self._series(term)):
            key = format_series("", make_labels(labels.items()))
            family.series.setdefault(key, (labels, 0.0 if place else counted))
        if name.startswith(("http_", "process_")) or "request" in name:
            # What counts requests counts those that histograms have.
            family.series = {key: (labels, min(value, REQUESTS)) for key, (labels, value) in family.series.items()}

    def _series(self, term: Term) -> Iterator[dict[str, str]]:
        """The labels of its series: what is selected, and by each rule of a label what makes the rule hold."""
        chosen = self._labels() | {label: next(filter(None, values), "") for label, values in term.select}
        rules = [rule for _, rules in term.labels for rule in rules]
        if not rules:
            yield chosen
        for rule in rules:
            if rule.when:
                yield chosen | {label: next(filter(None, values), "") for label, values in rule.when}
            else:
                yield chosen | {label: "other" for each in rules for label, _ in each.when}


def texts() -> dict[str, str]:
    """Every written page by its name."""
    head = "# Written by `python -m tests.pages`: no program has served it.\n"
    return {page.name: page.text() for page in WRITTEN} | {
        name: head + "".join(f"{each} 1.0\n" for each in series) for name, series in UNMAPPED.items()
    }


def _family_of(name: str) -> str:
    """The histogram that a series is a part of, or the name itself."""
    return name.rpartition("_")[0] if name.endswith(_PARTS) else name


def _lines(name: str, family: _Family) -> Iterator[str]:
    yield f"# TYPE {name} {family.kind}\n"
    for labels, value in family.series.values():
        shown = {label: each for label, each in labels.items() if each}
        if family.kind != "histogram":
            gauge = BEGAN_SECONDS if name.endswith("start_time_seconds") else 0.5 if "usage" in name else 1.0
            yield _line(name, shown, value if family.kind == "counter" else gauge)
            continue
        # All of one size, in the middle.
        middle = family.edges[len(family.edges) // 2]
        for edge in family.edges:
            yield _line(f"{name}_bucket", shown | {"le": format_edge(edge)}, value if edge >= middle else 0.0)
        yield _line(f"{name}_bucket", shown | {"le": "+Inf"}, value)
        yield _line(f"{name}_sum", shown, value * middle)
        yield _line(f"{name}_count", shown, value)


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    return f"{format_series(name, make_labels(labels.items()))} {value}\n"
