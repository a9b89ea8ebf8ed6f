"""`/probe`: the contract's series of one target, by its text alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from servescope import __version__
from servescope.collector.scrapes.scrape import Limits
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import Labels, Series
from servescope.translate.outer import NOTHING, read_outer
from servescope.translate.translation import Translator, Wanted
from tests.pages.writing import COUNTED
from tests.proofs.engines.captures import ENGINES, LAYERED, Captured, Engine, grow, read_capture, replay
from tests.support.filled_prometheus import SECONDS
from tests.support.picker_page import Counted, picker_page
from tests.support.translating import Answered, answers, translating

CAPTURE = Captured("vllm-0.32.0-1")
LIMITS = Limits(10.0, 16_000_000)


@pytest.fixture
def capture(captures: Path) -> str:
    """The text of a vLLM."""
    return read_capture(captures, CAPTURE)


async def test_a_capture_is_answered_in_the_contracts_names(tmp_path: Path, capture: str) -> None:
    """With the target's source and the probe's own word, in both formats, and nothing of the engine's own names."""
    async with translating(tmp_path, {"/metrics": answers(capture)}) as stage:
        text = await stage.probe()
        openmetrics = await stage.probe({"Accept": "application/openmetrics-text;version=1.0.0,*/*;q=0.1"})
    samples = text.samples()
    assert text.status == 200
    assert text.value("output_tokens_total") == COUNTED
    assert samples["servescope_probe_success", ()] == 1.0
    assert samples["servescope_probe_duration_seconds", ()] > 0
    (info,) = [dict(labels) for name, labels in samples if name == "servescope_target_info"]
    assert (info["source"], info["layer"], info["translator"]) == ("vllm", "engine", __version__)
    others = {name for name, _ in samples if SAMPLE_FAMILIES.get(name, name) not in METRICS}
    assert others == {
        "servescope_target_info", "servescope_probe_success", "servescope_probe_duration_seconds",
        "servescope_probe_metrics",
    }  # fmt: skip
    assert openmetrics.headers["Content-Type"].startswith("application/openmetrics-text")
    again = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_openmetrics(openmetrics.text)  # type: ignore[no-untyped-call]
        for sample in family.samples
    }
    del samples["servescope_probe_duration_seconds", ()], again["servescope_probe_duration_seconds", ()]
    assert again == samples


async def test_the_targets_own_series_are_beside_them(tmp_path: Path, capture: str) -> None:
    """Each once and as it was; of a target with our names only what is translated."""
    ours = 'requests_total{deployment_id="x",outcome="ok"} 3.0\nservescope_instrument_errors_total 1.0\nhand_made 5.0\n'
    texts = {"/metrics": answers(capture)}
    async with translating(tmp_path, texts) as stage:
        plain, native = await stage.probe(), await stage.probe(native="1")
    shown = native.samples()
    assert plain.samples().keys() <= shown.keys()
    engine = {series: value for series, value in shown.items() if series[0].startswith(("vllm:", "process_", "http_"))}
    captured = Answered(200, capture, {}).samples()
    assert engine == {
        series: value for series, value in captured.items() if series[0].startswith(("vllm:", "process_", "http_"))
    }
    translated = Translator(1_000_000).translate("one", ours.encode(), Wanted("servescope", NOTHING, (), True), LIMITS)
    assert translated.native is not None
    assert [series.name for series in translated.native.series] == ["hand_made"]


def test_a_probe_selects_the_series_of_one_deployment() -> None:
    """Of a page that measures several, natively too; the layout is one, and no answer is another's."""
    body = picker_page(v1=Counted().answer(0.5, 3), v2=Counted().answer(0.5, 2)).encode()
    translator = Translator(1_000_000)
    for name, answered in (("v1", 3.0), ("v2", 2.0), ("v1", 3.0)):
        wanted = Wanted(None, NOTHING, (), True, ((("target_model_name", (f"llama-{name}",)),),))
        found = translator.translate("one", body, wanted, LIMITS)
        values = dict(zip(found.contract.series, found.contract.values.tolist(), strict=True))
        assert values[Series("requests_total", (("outcome", "ok"),))] == answered
        assert found.native is not None
        assert {dict(each.labels)["target_model_name"] for each in found.native.series} == {f"llama-{name}"}


@pytest.mark.slow
@pytest.mark.parametrize("engine", [*ENGINES, LAYERED], ids=lambda engine: engine.name)
def test_every_series_is_the_collectors(engine: Engine, captures: Path, tmp_path: Path) -> None:
    """Name, labels beside the identity's, and value; of a deployment's layers, each metric from the one it is due."""
    recorded = replay([engine], captures, tmp_path, every=SECONDS // 2)
    collected = _contract(b"".join(line.rpartition(b" ")[0] + b"\n" for line in recorded.pages[-1].splitlines()))
    probed: list[tuple[str, Labels, float]] = []
    for number, target in enumerate(engine.targets):
        outer = read_outer("frontend,router", {}) if number else NOTHING
        body = grow(read_capture(captures, target), 1.0).encode()
        translated = Translator(1_000_000).translate("one", body, Wanted(None, outer, ()), LIMITS)
        series, values = translated.contract.series, translated.contract.values.tolist()
        probed += [(name, labels, value) for (name, labels), value in zip(series, values, strict=True)]
    assert SECONDS == 600
    assert sorted(probed) == sorted(collected)


def _contract(page: bytes) -> list[tuple[str, Labels, float]]:
    """The contract's series on a collector's page as they were scraped, without what is derived, and the identity."""
    found = []
    answered = Answered(200, page.decode(), {})
    for (name, labels), value in answered.samples().items():
        if SAMPLE_FAMILIES.get(name, name) in METRICS and not {"derived", "window"} & set(dict(labels)):
            found.append((name, tuple(pair for pair in labels if pair[0] not in IDENTITY_LABELS), value))
    return found
