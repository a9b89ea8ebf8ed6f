"""A console whose every text from outside tries to be more than a text: names, labels, errors, decisions, links."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from servescope.alerting.alerts import ALERTS
from servescope.contract.events import Event
from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import make_labels
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.plan.files import parse_plan
from servescope.cutover.plan.plan import FrozenPlan
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import start_run, write_decision
from servescope.settings.tables import parse_document
from servescope.settings.toml_text import quote
from servescope.store.embedded import Store
from servescope.store.records import KeptAlert, TargetStatus
from tests import pictures
from tests.support.answering import Handler, answering
from tests.support.customer_exports import write_exports

LINK: Final = "[Sign in again](http://evil.invalid/a)"
HOSTILE: Final = (
    f"{LINK}![i](http://evil.invalid/i.png)<img src=http://evil.invalid/h.png> www.evil.invalid eve@evil.invalid "
    "**b** :smile: :material/home: $x^2$ \u202e\u200b=1+1"
)
"""A name, an error, a reason: a link, pictures, an address, marks, an icon, a formula, and what cannot be seen."""
LONG: Final = "w" * 200
"""A word that no window is wide enough for."""
SHOWN: Final = HOSTILE.replace("\u202e\u200b", r"\u202e\u200b")
"""What a reader reads of it."""

FIGURES = {"request_rate": 5.0, "time_to_first_token_p95": 0.4, "request_error_share": 0.001, "tps_per_request": 60.0}


@contextmanager
def serve_hostile(folder: Path) -> Iterator[str]:
    """The address of the console, on a store, a plan, a journal, customers and an Alertmanager that are hostile."""
    deployments = [
        Deployment(f"model {HOSTILE}", f"{stack} {HOSTILE} {LONG}", stack, HOSTILE, "") for stack in ("v1", "v2")
    ]
    _write_store(folder / "hostile.db", deployments)
    _write_plan(folder, deployments)
    words = ["--plan", str(folder / "plan.toml"), *write_exports(folder, deployments)]
    with answering(_answer_silences) as alertmanager, answering(_fail) as broken:
        alerting = "".join(f'[[alerting.alertmanagers]]\nurl = "{url}"\n' for url in (alertmanager, broken))
        (folder / "alerting.toml").write_text(alerting, encoding="utf-8")
        words += ["--alertmanagers", str(folder / "alerting.toml")]
        with pictures.serve_console(folder / "hostile.db", *words) as address:
            yield address


def _write_store(path: Path, deployments: list[Deployment]) -> None:
    now_ms = time.time_ns() // 1_000_000
    with Store(path) as store:
        for number, deployment in enumerate(deployments):
            for time_ms in range(now_ms - 1_800_000, now_ms, 15_000):
                store.append_figures(deployment, time_ms, FIGURES)
            identity = replace(Identity(**dict(deployment.labels())), replica=HOSTILE, role="aggregated")
            store.set_target(
                TargetStatus(
                    f"{number} {HOSTILE}",
                    f"http://127.0.0.1:9/{HOSTILE}",
                    identity,
                    source=HOSTILE,
                    versions=HOSTILE,
                    last_scrape_ms=now_ms,
                    error=HOSTILE,
                    warnings=[HOSTILE],
                    missing_metrics={HOSTILE: HOSTILE},
                )
            )
            labels = make_labels(dict(deployment.labels()))
            store.append_events([Event(now_ms - 600_000, "deploy", labels, HOSTILE, make_labels({"by": HOSTILE}))])
            store.write_alerts([KeptAlert(next(iter(ALERTS)), labels, now_ms - 900_000, now_ms - 800_000, None, None)])


def _write_plan(folder: Path, deployments: list[Deployment]) -> None:
    v1, v2 = (quote(each.deployment_id) for each in deployments)
    text = (
        f"name = {quote(HOSTILE)}\nchecklist = [{quote(HOSTILE)}]\n[arms]\nv1 = {{ deployment_id = {v1} }}\n"
        f"v2 = {{ deployment_id = {v2} }}\n[[stages]]\nshare = 0.25\n"
    )
    (folder / "plan.toml").write_text(text, encoding="utf-8")
    plan = parse_plan(parse_document(text, "plan.toml"), "plan.toml")
    now_ms = time.time_ns() // 1_000_000
    with CutoverJournal(folder / "plan.journal.db") as journal:
        run = start_run(journal, FrozenPlan(plan, now_ms, {}), by=HOSTILE, reason=HOSTILE)
        write_decision(journal, run, Decision("rollback", now_ms, HOSTILE, HOSTILE))


def _answer_silences(request: Handler) -> None:
    silence = {
        "id": HOSTILE, "status": {"state": "active"}, "startsAt": "2020-01-01T00:00:00Z",
        "endsAt": "2090-01-01T00:00:00Z", "createdBy": HOSTILE, "comment": HOSTILE,
        "matchers": [{"name": HOSTILE, "value": HOSTILE, "isRegex": False, "isEqual": True}],
    }  # fmt: skip
    request.reply(200, json.dumps([silence]))


def _fail(request: Handler) -> None:
    request.reply(500, LINK)
