"""What several tests share: where the reference data is, and the rule that CI skips nothing that can be had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of reference captures and traces; without it the test is skipped by name."""
    folder = Path(os.environ.get("SERVESCOPE_REFERENCE", ROOT.parent / "shared"))
    if not (folder / "captures").is_dir():
        pytest.skip(f"reference data not found in {folder}: set SERVESCOPE_REFERENCE")
    return folder
