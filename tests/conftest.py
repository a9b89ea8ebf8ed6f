"""What several tests share: where the reference data is, and the rule that CI skips nothing that can be had."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import tools
from tests.support.drawing import register_profiles
from tests.support.waiting import timeout_of_a_test
from tests.support.workers import ByFile, importing_alone, is_left_out, is_proof, slow_files_first

if TYPE_CHECKING:
    from streamlit.testing.v1 import AppTest

register_profiles()
# Prometheus, promtool and the others collect garbage a quarter as often, which is a fifth of promtool's CPU.
os.environ.setdefault("GOGC", "400")

ROOT = Path(__file__).parent.parent
_PROGRAM = sys.modules["__main__"]


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads its option
def pytest_configure(config: pytest.Config) -> None:
    """Give each test as long as this machine needs, unless --timeout is given."""
    if config.getoption("timeout") is None:
        config.option.timeout = timeout_of_a_test()


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup() -> None:
    """Be the program again, which a page that a test runs takes for itself: children that are spawned import it."""
    sys.modules["__main__"] = _PROGRAM


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of which `-m` leaves out everything."""
    return is_left_out(collection_path, config.option.markexpr) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among modules and tests, which are there until the end: a sixth of the time they take."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Import a file while no other worker does."""
    if isinstance(collector, pytest.Module):
        with importing_alone(collector.path):
            return (yield)
    return (yield)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is in `tests/proofs`, leave out what reads reference data that is not here, order the files."""
    for item in items:
        if is_proof(item.path):
            item.add_marker(pytest.mark.proof)
    if not _has_reference():
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("reference")])
        items[:] = [item for item in items if not item.get_closest_marker("reference")]
    items[:] = slow_files_first(items)


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist, or with `-p no:xdist`, there is nothing to schedule
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile | None:
    """Spread whole files over the workers, and groups of tests."""
    return ByFile(config, log) if config.getvalue("dist") == "loadgroup" else None


def _reference_folder() -> Path:
    return Path(os.environ.get("SERVESCOPE_REFERENCE", ROOT.parent / "shared"))


def _has_reference() -> bool:
    return REFERENCE.is_dir()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of reference captures and traces, for tests with the mark `reference`: without it none is selected."""
    return _reference_folder()


PAGES = Path(__file__).parent / "pages"
"""Pages of engines that are in the tree, written from their source maps or captured."""
REFERENCE = _reference_folder() / "captures"
"""Captures of real ones, where there are any."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what reads pages of engines once for each folder of them that there is."""
    if "captures" in metafunc.fixturenames:
        folders = [pytest.param(PAGES, id="pages")]
        if _has_reference():
            folders.append(pytest.param(REFERENCE, id="reference", marks=pytest.mark.reference))
        metafunc.parametrize("captures", folders, indirect=True, scope="session")


@pytest.fixture(scope="session")
def captures(request: pytest.FixtureRequest) -> Path:
    """A folder of pages of engines: those in the tree, and captures of real ones where there are any."""
    folder: Path = request.param
    return folder


@pytest.fixture(scope="session")
def any_captures() -> Path:
    """As `captures`, but one of the two, that of real ones where there are any: for what takes long."""
    return REFERENCE if _has_reference() else PAGES


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """The Prometheus server tests run."""
    return _required("prometheus", tools.prometheus_binary())


@pytest.fixture(scope="session")
def prometheus_3() -> Path:
    """A Prometheus 3, where Debian's unstable suite can be reached."""
    return _required("prometheus 3", tools.prometheus_3_binary(), in_ci=False)


@pytest.fixture(scope="session")
def victoria_metrics() -> Path:
    """A VictoriaMetrics, where Debian's unstable suite can be reached."""
    return _required("victoria-metrics", tools.victoria_metrics_binary(), in_ci=False)


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The promtool tests check rules with."""
    return _required("promtool", tools.promtool_binary())


@pytest.fixture(scope="session")
def promtool_3() -> Path:
    """The promtool of a Prometheus 3, where Debian's unstable suite can be reached."""
    return _required("promtool 3", tools.promtool_3_binary(), in_ci=False)


@pytest.fixture(scope="session")
def alertmanager() -> Path:
    """The Alertmanager tests run."""
    return _required("alertmanager", tools.alertmanager_binary())


@pytest.fixture(scope="session")
def amtool() -> Path:
    """The amtool tests check Alertmanager's configuration with."""
    return _required("amtool", tools.amtool_binary())


@pytest.fixture(scope="session")
def compose_schema() -> Path:
    """The JSON schema of the Compose specification."""
    return _required("the Compose specification's schema", tools.compose_schema())


@pytest.fixture(scope="session")
def kustomize() -> Path:
    """The kustomize that renders the manifests, where Debian's unstable suite can be reached."""
    return _required("kustomize", tools.kustomize_binary(), in_ci=False)


@pytest.fixture(scope="session")
def kubernetes_schemas() -> Path:
    """The folder with the schemas of Kubernetes and of the operators' resources."""
    return _required("the schemas of Kubernetes", tools.kubernetes_schemas())


@pytest.fixture(scope="session")
def grafana_schema() -> Path:
    """The JSON schema of a classic dashboard."""
    return _required("the schema of Grafana's dashboards", tools.grafana_schema())


@pytest.fixture(scope="session")
def sglang_wheel() -> Path:
    """The wheel of the SGLang that the plugin is held against, where pip finds one for this machine."""
    return _required("SGLang's wheel", tools.sglang_wheel(), in_ci=False)


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The browser tests look at pages with."""
    return _required("chromium", tools.chromium_binary())


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing below errors is logged: targets that fail, or have no data yet, are what a test is about."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def open_on_prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AppTest]]:
    """Opens a page of the console on the Prometheus at a URL: `open_on_prometheus(name, url, **parameters)`."""
    st = pytest.importorskip("streamlit", reason="the console needs the extra 'console'")
    from tests.support.console_pages import open_view

    def open_(name: str, url: str, **parameters: str) -> AppTest:
        monkeypatch.setenv("SERVESCOPE_PROMETHEUS", json.dumps({"url": url}))
        return open_view(name, **parameters)

    yield open_
    st.cache_resource.clear()


def _required(name: str, found: Path | None, *, in_ci: bool = True) -> Path:
    """What was found; without it the test is skipped, or fails in CI unless it may be missing there."""
    if found is not None:
        return found
    message = f"{name} not found: run `python -m tests.tools`, which prepares it or says why it is not available"
    if in_ci and tools.in_ci():
        pytest.fail(message)
    pytest.skip(message)
