"""What metrics and labels are called where they are stored: as the code of each backend makes names of OTLP's."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from servescope.contract.figures import FIGURES
from servescope.contract.metrics import METRICS
from servescope.contract.types import Kind
from servescope.customers.points.naming import describe_figure
from servescope.customers.points.points import Descriptor
from servescope.customers.policy.policy import Naming, OtlpBackend, Policy
from servescope.customers.stored_names import TRANSLATIONS, StoredNames
from servescope.exposition.otlp_names import UNITS
from tests.customers.support.otlp_prometheus import stored_name

COLUMNS: tuple[OtlpBackend, ...] = ("prometheus", "mimir", "victoriametrics-prometheus")
POLICY = Policy("acme", frozenset())


def known_names() -> list[list[str]]:
    """Of each metric its name, unit and kind as they are sent, and its name in each of `COLUMNS`.

    Made by the code of Prometheus 3.5 (`UnderscoreEscapingWithSuffixes`, and `UnderscoreEscapingWithoutSuffixes`, which
    is Mimir's default), and by a VictoriaMetrics 1.145 with `-opentelemetry.usePrometheusNaming`.
    """
    text = (Path(__file__).parent / "otlp_names.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("backend", COLUMNS)
def test_names_are_those_of_the_backends_own_code(backend: OtlpBackend) -> None:
    """Units, kinds and dots, prefixes that have a unit's word, and rates, which Prometheus names twice."""
    names = StoredNames(POLICY, TRANSLATIONS[backend])
    wanted = {tuple(row[:3]): row[3 + COLUMNS.index(backend)] for row in known_names()}
    found = {row: names.stored(descriptor(*row)) for row in wanted}  # type: ignore[arg-type]

    assert len(wanted) > 150
    assert found == wanted


def test_the_receiver_of_the_tests_has_them_too() -> None:
    """It stands for the one of a Prometheus that Debian's has not."""
    for name, unit, kind, prometheus, mimir, _ in known_names():
        metric = Metric(name=name, unit=unit)
        getattr(metric, "sum" if kind == "counter" else kind).SetInParent()
        assert stored_name(metric, suffixes=True) == prometheus
        assert stored_name(metric, suffixes=False) == mimir


def descriptor(name: str, unit: str, kind: Kind) -> Descriptor:
    return Descriptor(name, name, unit, "", kind)


@pytest.mark.parametrize(("naming", "backend"), [*product(Naming, [None, *TRANSLATIONS])])
def test_no_two_series_have_one_name(naming: Naming, backend: OtlpBackend | None) -> None:
    """Of all metrics and figures, under each naming, at each backend."""
    names = StoredNames(
        Policy("acme", frozenset(), naming=naming, prefix="acme_" if naming is Naming.PREFIX else ""),
        TRANSLATIONS[backend] if backend else None,
    )
    stored = [names.series(name) for name in METRICS]
    stored += [names.figure(name) for name in FIGURES if describe_figure(POLICY, name).family not in METRICS]

    assert len(set(stored)) == len(stored)


def test_every_unit_of_the_catalog_has_a_name_at_every_backend() -> None:
    """Also one that no metric has yet."""
    for backend, (unit, kind) in product(TRANSLATIONS.values(), product(UNITS.values(), get_args(Kind))):
        assert StoredNames(POLICY, backend).stored(descriptor("x", unit, kind)).startswith("x")


def test_edges_have_the_text_that_histograms_have_there() -> None:
    """With a decimal point in an exposition, without one of whole numbers where OTLP is stored."""
    otlp = StoredNames(POLICY, TRANSLATIONS["prometheus"])

    assert [StoredNames(POLICY).edge(edge) for edge in (2.5, 4.0)] == ["2.5", "4.0"]
    assert [otlp.edge(edge) for edge in (2.5, 4.0, 1e-05)] == ["2.5", "4", "0.00001"]
