"""JSON as a command prints it."""

from __future__ import annotations

import json
import sys
from typing import Any


def print_json(document: Any) -> None:
    """Print a document to standard output; raises ValueError for a number that is not finite."""
    json.dump(document, sys.stdout, allow_nan=False, ensure_ascii=False, indent=1)
    sys.stdout.write("\n")
