"""What the collector costs, stage by stage beside its peers, and then whole beside a real Prometheus."""

from __future__ import annotations

import argparse

from benchmarks import _against_prometheus, _alerting, _deriving, _fetching, _probing, _reading, _storing


def run(_: argparse.Namespace) -> None:
    """Print the collector's ratios, a table a part."""
    for part in (_fetching, _reading, _probing, _deriving, _alerting, _storing, _against_prometheus):
        part.run()
        print()
