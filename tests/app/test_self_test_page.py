"""The self-test page: what it measured on this deployment's own history, and how far that is what was promised."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from streamlit.testing.v1 import AppTest

from app.cutovers import plans, self_tests
from servescope.console import JOURNAL_VARIABLE, PLAN_VARIABLE
from servescope.cutover.forecast.duration import MetricForecast, StageForecast
from servescope.cutover.forecast.self_test import SelfTest, SelfTestShare, clopper_pearson
from tests.support.console_pages import html, make_view
from tests.support.cutover_plans import LEAST_PLAN

pytestmark = pytest.mark.slow

HARM = {
    "time_to_first_token_seconds": 0.12,
    "request_error_share": 1.4,
    "request_duration_seconds": None,
    "tps_per_request": 0.0004,
}


def share_of(splits: int, alarms: int) -> SelfTestShare:
    """A share of which so many splits raised an alarm."""
    low, high = clopper_pearson(alarms, splits)
    return SelfTestShare(0.25, 3, splits, alarms, low, high, splits // 2, HARM)


@pytest.fixture
def page(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """The page on a plan whose v1 has no past."""
    (tmp_path / "plan.toml").write_text(LEAST_PLAN)
    monkeypatch.setenv(PLAN_VARIABLE, str(tmp_path / "plan.toml"))
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "journal.db"))
    return make_view("self_test")


def test_a_young_deployment_says_what_it_needs(page: AppTest) -> None:
    """Where v1 has no past to divide, the button answers with what is missing, and no rate."""
    page.run()
    assert not page.exception
    page.button[0].click().run()

    assert "cannot be tested on this past" in page.info[0].value
    assert "self-test" not in html(page)


@pytest.mark.parametrize(
    ("splits", "alarms", "word"), [(500, 5, "✓ below 5 %"), (20, 0, "? may be above 5 %"), (200, 40, "✕ above 5 %")]
)
def test_the_rate_is_read_by_its_interval(splits: int, alarms: int, word: str) -> None:
    """A rate is below what is promised only where its whole interval is; few splits prove nothing."""
    assert word in self_tests.describe_rate(share_of(splits, alarms))[0]


def test_the_result_names_rate_and_smallest_harm() -> None:
    """The tables have the count, the rate with its interval, and by metric the smallest harm a day shows."""
    test = SelfTest(24.0, (share_of(200, 4),))
    text = self_tests.draw_shares(test) + self_tests.draw_detectable(test)

    for part in (">25 %<", "25 % on v2", "2.0 %", "0.55 % – 5.0 %", "12 % worse", "2.4 ×", "none", "under 0.1 % worse"):
        assert part in text, part


def test_fewer_splits_than_asked_for_are_explained() -> None:
    """Their number is beside the one that was chosen."""
    assert self_tests.describe_extent(SelfTest(24.0, (share_of(20, 0),), wanted=20)) == (
        "20 splits of v1, each watched for 1 d"
    )
    assert self_tests.describe_extent(SelfTest(24.0, (share_of(18, 0),), wanted=20)) == (
        "18 splits of v1 of the 20 asked for, as its replicas divide in no other way, each watched for 1 d"
    )


def test_few_splits_of_each_share_are_read_together() -> None:
    """Where no share has enough splits for itself, the row of all of them says whether the promise is kept."""
    (first, second) = self_tests.draw_shares(SelfTest(24.0, (share_of(66, 0), share_of(66, 0)))).split("All shares")

    assert "✓" not in first
    assert "132" in second
    assert "✓ below 5 %" in second


def test_a_forecast_says_how_long_and_what_never() -> None:
    """A stage has the time of its slowest required metric, and of what never settles the reason."""
    settled = MetricForecast("time_to_first_token_seconds", "Time to first token", True, 0.1, 5400.0, 0.2)
    never = MetricForecast("request_error_share", "Errors", True, 1.0, None, None, "errors are too rare")
    stages = (
        StageForecast(0, 0.25, 3, 36_000.0, 1_800.0, (settled,)),
        StageForecast(1, 0.01, 1, 36_000.0, 1_800.0, (settled, never)),
    )
    text = plans.draw_forecast(stages)

    assert "about 1 h 30 min" in text
    assert "longest for Time to first token" in text
    assert "3 replicas" in text
    assert "1 replica<" in text
    assert "finds 20 % worse" in text
    assert "never" in text
    assert "errors are too rare" in text
