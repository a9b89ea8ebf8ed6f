"""Run by the Python that has the vendor's tool: texts as a JSON object in, its verdict on each as JSON out.

A verdict is an empty text for what it accepts, else its message.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path


def main() -> None:
    """Judge every text of the standard input."""
    from truss.base.truss_config import TrussConfig  # type: ignore[import-not-found]

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    verdicts = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        for name, text in json.load(sys.stdin).items():
            path.write_text(text, encoding="utf-8")
            try:
                TrussConfig.from_yaml(path)
            except Exception as error:  # whatever it raises is its verdict
                verdicts[name] = f"{type(error).__name__}: {error}"
            else:
                verdicts[name] = ""
    json.dump(verdicts, sys.stdout)


if __name__ == "__main__":
    main()
