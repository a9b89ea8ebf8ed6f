"""Which label of a target's series is the segment: configured per target or list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servescope.collector.config import read_configuration
from servescope.collector.discovery.targets import Discovery
from servescope.errors import ConfigurationError

TEXT = """
[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v2"
[[deployments.targets]]
url = "http://a:1/metrics"
segment_label = "priority"
[[deployments.targets]]
url = "http://b:1/metrics"
[[deployments.file_sd]]
files = ["chat.json"]
segment_label = "tenant"
"""


def discover(folder: Path, text: str) -> Discovery:
    (folder / "chat.json").write_text(json.dumps([{"targets": ["c:1"]}]), encoding="utf-8")
    path = folder / "servescope.toml"
    path.write_text(text, encoding="utf-8")
    return Discovery(read_configuration(path))


def test_each_target_and_list_may_have_a_label_of_its_own(tmp_path: Path) -> None:
    found = {target.identity.replica: target.segment_label for target in discover(tmp_path, TEXT).targets}

    assert found == {"a:1": "priority", "b:1": "segment", "c:1": "tenant"}


@pytest.mark.parametrize("label", ["", "a-b", "replica", "le"])
def test_a_label_that_no_segment_can_be_is_refused(tmp_path: Path, label: str) -> None:
    """It is named, with what was expected."""
    with pytest.raises(ConfigurationError, match=rf"segment_label.*'{label}'.*expected a label of the target's series"):
        discover(tmp_path, TEXT.replace('"priority"', f'"{label}"'))
