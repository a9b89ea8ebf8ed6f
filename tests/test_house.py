"""How code is written: a public class has a name of its own; no test imports another or assumes the machine's speed."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator

import pytest

from servescope.sources.map_files import load_sources, load_unmapped
from tests.conftest import ROOT

MODULES = sorted((ROOT / "tests").rglob("test_*.py"))
SOURCES = sorted(
    path
    for folder in ("exporters", "app", "alerts", "dashboards", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)

IDEAS = {
    "the value of a figure": (
        r"case Ratio\(\):|compute\(denominator|- below\) / \(counts\[",
        {"exporters/servescope/increments/program.py"},
    ),
    "whether an alert holds": (
        r"case (records\.)?(All\(conditions\)|Except\()",
        # The walk; the values for which a condition holds; the same as PromQL.
        {
            "exporters/servescope/alerting/rules/records.py",
            "exporters/servescope/alerting/rules/evaluation.py",
            "exporters/servescope/alerting/rules/promql.py",
        },
    ),
    "what a counter gained over a reset": (
        r"\] \+= (\w+\.)?before|np\.where\([^,]+, (\w+), (\2 - |np\.maximum\()",
        {"exporters/servescope/increments/extrapolation.py"},
    ),
    "increments folded to arms or deployments": (
        r"for each in \(\*target\.series, \*target\.gauges\)",
        {"exporters/servescope/increments/batches.py"},
    ),
    # The export to customers reads a Prometheus of which it compares whose series are.
    "the past": (
        r"isinstance\(\w+, (PrometheusHistory|Store|History)\)",
        {"exporters/servescope/customers/lanes/claimed_past.py"},
    ),
    "the outermost layer": (r'"router process"|\bLAYERS\.index', {"exporters/servescope/contract/measured_layers.py"}),
}
"""What is implemented in one place only: an expression that any implementation of it has, and the modules that do."""

NAMING_ENGINES = {
    "exporters/servescope/plugins/vllm.py",  # runs inside a vLLM server
    "exporters/servescope/plugins/sglang.py",  # and inside an SGLang server
    "exporters/servescope/emulator/faces/faces.py",  # which engines the emulator copies, and how each looks
    "exporters/servescope/emulator/faces/vllm_names.py",
}
"""The modules in which code names an engine; all else that is known of one is in its source map."""

_CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns"}
_WAITS = {"join", "wait", "communicate"}


def test_a_test_waits_for_conditions_and_shares_by_support() -> None:
    """What tests share is in `tests/support/`, and so is the one deadline, which grows with the machine's slowness."""
    found = {str(path.relative_to(ROOT)): list(offences(path.read_text(encoding="utf-8"))) for path in MODULES}

    assert {path: offending for path, offending in found.items() if offending} == {}


def test_a_name_is_one_thing() -> None:
    """No two public classes of the package and of the console have one name, in whatever rooms they are."""
    named: dict[str, list[str]] = {}
    for path in sorted(path for room in ("exporters", "app") for path in (ROOT / room).rglob("*.py")):
        for name in re.findall(r"(?m)^class ([^\W_]\w*)", path.read_text(encoding="utf-8")):
            named.setdefault(name, []).append(path.relative_to(ROOT).as_posix())

    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("idea", IDEAS)
def test_an_idea_is_implemented_once(idea: str) -> None:
    """Whatever else needs it imports it from there."""
    implemented, homes = IDEAS[idea]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if re.search(implemented, path.read_text(encoding="utf-8"))
    }

    assert found == homes


def test_no_code_names_an_engine() -> None:
    """No name to compare with, and no series; sentences may advise on an engine."""
    words = {name.partition("-")[0] for name in load_sources()} | {prefix.rstrip(":_") for prefix in load_unmapped()}
    # We, and the vendor whose configuration files are migrated, are no engines.
    engines = "|".join(sorted(words - {"servescope", "baseten"}))
    named = re.compile(rf"(?<![a-z])({engines})(?![a-z])", re.IGNORECASE)
    found = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if not path.is_relative_to(ROOT / "benchmarks")  # which write pages of engines
        for text in texts(path.read_text(encoding="utf-8"), named)
        if named.search(text) and not re.search(r"\s", text.strip())
    }

    assert found == NAMING_ENGINES


def test_no_registry_is_named_in_the_tree() -> None:
    """The clients of the registries know their hosts; pictures and captures of others are not ours to change."""
    # Written so that this line does not match itself.
    hosts = r"registry[.]npmjs|pypi[.]org|python[h]osted|deb[.]debian[.]org|proxy[.]golang"
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    texts = [ROOT / name for name in files if name and not name.endswith((".png", ".parquet", ".gz"))]

    assert not [
        path for path in texts if path.is_file() and re.search(hosts, path.read_text("utf-8", errors="replace"))
    ]


def offences(text: str) -> Iterator[str]:
    """What in a module of tests is not allowed, in the order of its lines."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt | ast.expr)]
    found = [(node.lineno, what) for node in nodes for what in _offences(node)]
    return (f"line {line}: {what}" for line, what in sorted(found))


def texts(source: str, wanted: re.Pattern[str]) -> Iterator[str]:
    """The texts in a module without its docstrings; of one in which nothing wanted is found, none."""
    nodes = list(ast.walk(ast.parse(source if wanted.search(source) else "")))
    alone = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in alone:
            yield node.value


def _offences(node: ast.stmt | ast.expr) -> Iterator[str]:
    match node:
        case ast.ImportFrom(module=str(module)) if _is_test(module):
            yield f"imports {module}"
        case ast.Import(names=names):
            yield from (f"imports {alias.name}" for alias in names if _is_test(alias.name))
        case ast.Call(func=ast.Attribute(attr="sleep"), args=[ast.Constant(value=0)]):
            return
        case ast.Call(func=ast.Attribute(attr="sleep") | ast.Name(id="sleep")):
            yield "sleeps"
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _CLOCKS:
            yield f"reads {name}()"
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="timeout")):
            yield "a time limit of its own"
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=arguments, keywords=keywords):
            deadlines = [keyword.value for keyword in keywords if keyword.arg == "timeout"]
            if any(isinstance(value, ast.Constant) for value in (*deadlines, *(arguments if name in _WAITS else ()))):
                yield f"{name}() with a deadline of its own"


def _is_test(module: str) -> bool:
    return module.startswith("tests.") and module.rpartition(".")[2].startswith("test_")
