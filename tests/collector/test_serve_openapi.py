"""The description of the API is true: schemathesis tries it against a collector with stored data."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from servescope.collector.api.openapi import describe
from servescope.web.settings import ApiSettings
from tests.collector.support.api_door import LIMITS, door, fill
from tests.conftest import ROOT

TOKEN = "0penapi-t0ken"  # the tests' own


@pytest.mark.slow
@pytest.mark.parametrize("examples", [5, pytest.param(40, marks=pytest.mark.proof)])
async def test_schemathesis_finds_nothing(tmp_path: Path, examples: int) -> None:
    """Statuses, types, schemas, headers, wrong data, unknown methods, missing tokens: all as described."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    (tmp_path / "schemathesis.toml").write_text('[parameters]\ndeployment_id = "v1"\n')
    async with door(tmp_path, LIMITS, ApiSettings(bearer_token_file=tokens)) as opened:
        await fill(opened.scene)
        run = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{opened.port}/api/v1/openapi.json",
            "--header", f"Authorization: Bearer {TOKEN}", "--phases", "coverage,fuzzing", "--checks", "all",
            "--max-examples", str(examples), "--generation-deterministic", "--continue-on-failure", "--no-color",
            cwd=tmp_path,
            env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.collector.support.schemathesis_hooks",
                 "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(120):
                written, _ = await run.communicate()
        finally:
            if run.returncode is None:
                run.kill()
        code, output = run.returncode, written.decode()
    assert code == 0, output
    assert "No issues found" in output


@pytest.mark.slow
def test_the_description_is_valid_openapi() -> None:
    """By the schema of OpenAPI 3.1; every reference in it leads somewhere."""
    import schemathesis  # where it is needed alone: every worker collects this file

    document = describe()
    schemathesis.openapi.from_dict(document).validate()
    names = set(re.findall(r'"\$ref": "#/components/(\w+)/(\w+)"', json.dumps(document)))

    assert len(names) > 10
    assert {(kind, name) for kind, name in names if name not in document["components"][kind]} == set()
    operations = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(operations) == len(set(operations))


@pytest.mark.slow
async def test_every_answer_fits_its_schema(tmp_path: Path) -> None:
    """With stored data, targets that fail and figures that are absent; nothing is in it that is not described."""
    document = describe()
    asked = {
        "/api/v1/deployments": "", "/api/v1/figures": "?deployment_id=v1", "/api/v1/targets": "", "/api/v1/catalog": "",
        "/api/v1/samples": "?deployment_id=v1&name=output_tokens_per_request&name=queued_requests",
        "/api/v1/status": "", "/api/v1/alerts": "", "/api/v1/openapi.json": "",
    }  # fmt: skip
    async with door(tmp_path, LIMITS) as opened:
        await fill(opened.scene)
        answers = {path: (await opened.ask(f"{path}{query}"))[1] for path, query in asked.items()}
    for path, answer in answers.items():
        schema = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        Draft202012Validator({**schema, "components": document["components"]}).validate(answer)
    assert answers["/api/v1/openapi.json"] == json.loads(json.dumps(document))
    assert len(answers["/api/v1/samples"]["deployments"][0]["series"]) == 2 * 5
    assert answers["/api/v1/status"]["targets"] == {"up": 3, "down": 1, "not_understood": 0, "unknown": 0}
    assert answers["/api/v1/status"]["store"]["bytes"] > 0


async def test_samples_are_those_that_were_scraped(tmp_path: Path) -> None:
    """A row per native series with its times and values; a scrape that failed leaves a gap, not a zero."""
    async with door(tmp_path, LIMITS) as opened:
        await fill(opened.scene, 4)
        opened.scene.pages.texts["v1-0"] = None
        await opened.scene.step()
        await fill(opened.scene, 2)
        (shown,) = (await opened.ask("/api/v1/samples?deployment_id=v1&name=requests_total"))[1]["deployments"]
    one = next(row for row in shown["series"] if row["labels"]["replica"] == "v1-0")
    start = 1_800_000_000_000
    assert one["name"] == "requests_total"
    assert one["labels"]["outcome"] == "ok"
    assert one["times_ms"] == [start + 15_000 * step for step in (1, 2, 3, 4, 6, 7)]
    assert one["values"] == [0, 3, 6, 9, 0, 3]


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/api/v2/figures", 404, "no page '/api/v2/figures', supported: /, /-/healthy, "),
        ("DELETE", "/api/v1/targets", 405,
         "method 'DELETE' is not supported at '/api/v1/targets', supported: GET, HEAD"),
    ],
)  # fmt: skip
async def test_what_is_not_there_is_answered_in_json(
    tmp_path: Path, method: str, path: str, status: int, error: str
) -> None:
    """404 and 405 name what there is."""
    async with door(tmp_path, LIMITS) as opened:
        reader, writer = await opened.send(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = (await reader.read(-1)).decode().partition("\r\n\r\n")
        writer.close()
        answered = int(head.split()[1])
    assert (answered, json.loads(body)["error"][: len(error)]) == (status, error)
    assert "Content-Type: application/json" in head
    assert ("Allow: GET, HEAD" in head) == (status == 405)
