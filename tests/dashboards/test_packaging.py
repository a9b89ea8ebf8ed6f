"""Each way into Grafana carries the same dashboards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest

from dashboards.__main__ import render
from dashboards.options import DEFAULTS
from dashboards.packaging import HEADER
from servescope.generating.dashboards import FORMATS
from tests.conftest import ROOT
from tests.support.boards import NAMES, read_board
from tests.support.documents import read_yaml

OPTIONS = replace(DEFAULTS, folder="LLM serving")


@cache
def rendered(format_name: str) -> Mapping[str, str]:
    """All dashboards in a format."""
    return render(OPTIONS, format_name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_config_map_holds_the_dashboard(name: str) -> None:
    """Under the label that the sidecar looks for, in the folder wanted, small enough for `kubectl apply`."""
    text = rendered("configmap")[f"{name}.yaml"]
    document = read_yaml(text)

    assert text.startswith(HEADER)
    assert (document["apiVersion"], document["kind"]) == ("v1", "ConfigMap")
    assert document["metadata"]["name"] == read_board(name)["uid"]
    assert document["metadata"]["labels"] == {"grafana_dashboard": "1"}
    assert document["metadata"]["annotations"] == {"grafana_folder": "LLM serving"}
    assert document["data"] == {f"{name}.json": rendered("json")[f"{name}.json"]}
    assert len(json.dumps(document, ensure_ascii=False).encode()) < 2**18 - 1024


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_operators_resource_holds_the_dashboard(name: str) -> None:
    """As text, which the operator hands to Grafana."""
    document = read_yaml(rendered("grafana-operator")[f"{name}.yaml"])

    assert (document["apiVersion"], document["kind"]) == ("grafana.integreatly.org/v1beta1", "GrafanaDashboard")
    assert document["spec"]["folder"] == "LLM serving"
    assert document["spec"]["json"] == rendered("json")[f"{name}.json"]


def test_provisioning_names_the_folder() -> None:
    """Files carry none."""
    (path,) = (ROOT / "deploy" / "grafana" / "provisioning" / "dashboards").iterdir()
    (provider,) = read_yaml(path.read_text(encoding="utf-8"))["providers"]

    assert provider["folder"] == DEFAULTS.folder
    assert rendered("json") == render()


def test_there_are_three_formats() -> None:
    """The file's own first."""
    assert FORMATS == ("json", "configmap", "grafana-operator")
