"""The configuration of a translator: what the page and the example say of it."""

from __future__ import annotations

import re

from servescope.settings.access import ACCESS_SETTINGS
from servescope.settings.addresses import read_address
from servescope.translate.config import SETTINGS, read_probe_configuration
from tests.conftest import ROOT


def test_the_page_lists_every_key_with_its_default() -> None:
    """One row per key in the section of its table; those of access are on the collector's pages."""
    text = (ROOT / "docs" / "translate.md").read_text(encoding="utf-8")
    for table, settings in SETTINGS.items():
        heading = f"`[{table}]`" if table in ("translate", "api") else f"`[[{table}]]`"
        section = re.search(rf"^### {re.escape(heading)}\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
        assert section, heading
        documented = [
            (key, "" if default in ("none", "required") else default.strip("`"))
            for key, default in re.findall(r"^\| `(\w+)` \| (.*?) \|", section[1], re.MULTILINE)
        ]
        assert documented == [
            (key, "" if default == "required" else default)
            for key, default in settings
            if table != "api" and (key, default) not in ACCESS_SETTINGS
        ]


def test_the_example_is_read() -> None:
    """It allows private networks and a cluster's names, and nothing of this machine."""
    configuration = read_probe_configuration(ROOT / "deploy" / "translate.toml")
    allowed = {
        target: configuration.rule_for(read_address(target)) is not None
        for target in ("10.1.2.3:8000", "vllm-0.engines.svc:8000", "127.0.0.1:8000", "10.1.2.3:22", "203.0.113.7:8000")
    }
    assert allowed == {
        "10.1.2.3:8000": True, "vllm-0.engines.svc:8000": True, "127.0.0.1:8000": False, "10.1.2.3:22": False,
        "203.0.113.7:8000": False,
    }  # fmt: skip
