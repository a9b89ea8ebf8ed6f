"""What the vendor's tool says of every case and of every file that we translate, as it is committed."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import install
from servescope.errors import ConfigurationError
from servescope.migration.document.document import read_document
from servescope.migration.fields.config_yaml import check_config
from servescope.migration.fields.trt_llm import TRUSS
from servescope.migration.translation.translation import translate
from tests.conftest import ROOT
from tests.migration.oracle.cases import make_cases

VERDICTS: Final = Path(__file__).parent / "verdicts.json"
PAGE: Final = ROOT / "docs" / "migration.md"
ENVIRONMENT: Final = ROOT / ".cache" / "venvs" / TRUSS.replace(" ", "-")
NOT_ALLOWED: Final = re.compile(r"Field trt_llm\.build\.\w+ is not allowed to be set when using v2 inference stack")
_BEGIN: Final = "<!-- oracle: written by `python -m tests.migration.oracle --write`, do not edit -->\n"
_END: Final = "<!-- end of oracle -->\n"
_LONGEST: Final = 300

Verdicts = dict[str, dict[str, str]]


def read_verdicts() -> Verdicts:
    """The committed verdicts: of `cases` by their names, and of `translated` files by the hash of their text."""
    found: Verdicts = json.loads(VERDICTS.read_text(encoding="utf-8"))
    return found


def ask() -> Verdicts:
    """The verdicts of the tool now."""
    return {"truss": {"version": TRUSS}, "cases": ask_on(make_cases()), "translated": ask_on(translations())}


def ask_on(texts: dict[str, str]) -> dict[str, str]:
    """The tool's verdict on each text; its environment is made where it is missing."""
    if not (ENVIRONMENT / "bin" / "truss").exists():
        install.prepare(ENVIRONMENT).run("install", "--quiet", TRUSS.replace(" ", "=="))
    # Sets in its messages have an order that way.
    done = subprocess.run(
        [str(ENVIRONMENT / "bin" / "python"), str(Path(__file__).parent / "ask.py")],
        input=json.dumps(texts), capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "0"},
    )  # fmt: skip
    return {name: _shorten(verdict) for name, verdict in json.loads(done.stdout).items()}


def translations() -> dict[str, str]:
    """Every case that is translated to v2: the new text, by its hash."""
    found = {}
    for text in make_cases().values():
        try:
            migration = translate(read_document(text, "config.yaml"))
        except ConfigurationError:
            continue
        if migration.text is not None and migration.is_changed:
            found[hash_text(migration.text)] = migration.text
    return found


def hash_text(text: str) -> str:
    """The name of a translated file."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def judge(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Our errors and our warnings on a text."""
    try:
        findings = check_config(read_document(text, "config.yaml"))
    except ConfigurationError as error:
        return (str(error),), ()
    shown = [(each.severity, each.sentence) for each in findings]
    return tuple(text for kind, text in shown if kind == "error"), tuple(
        text for kind, text in shown if kind != "error"
    )


def find_differences(now: Verdicts, committed: Verdicts) -> list[str]:
    """Where the tool accepts what it refused, or the other way; its words may differ by the versions of its parts."""
    return [
        f"{kind} {name!r}: {now[kind].get(name)!r}, committed is {committed[kind].get(name)!r}"
        for kind in ("cases", "translated")
        for name in sorted(now[kind].keys() | committed[kind].keys())
        if _essence(now[kind].get(name)) != _essence(committed[kind].get(name))
    ]


def fill_page() -> str:
    """docs/migration.md with the table of what the tool accepts and we refuse or warn of."""
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{PAGE}: no place for the table of the oracle")
    table = "\n".join(_render())
    return f"{before}{begin}\n{table}\n\n{end}{after}"


def _render() -> Iterator[str]:
    yield "| configuration | what we say |"
    yield "|---|---|"
    verdicts, cases = read_verdicts()["cases"], make_cases()
    for kind in ("refused", "a warning"):
        for name, text in cases.items():
            errors, warnings = judge(text)
            found = errors if kind == "refused" else () if errors else warnings
            if found and not verdicts[name] and not name.startswith("generated"):
                shown = name if len(name) <= 100 else f"{name[:100]}…"
                yield f"| {_cell(shown)} | {kind}: {_cell(found[0])} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _shorten(verdict: str) -> str:
    """A message on one line, without the links of pydantic."""
    text = " ".join(re.sub(r"For further information visit \S+", "", verdict).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _essence(verdict: str | None) -> tuple[bool | None, str]:
    if verdict is None:
        return None, ""
    sentence = NOT_ALLOWED.search(verdict)
    return bool(verdict), sentence.group() if sentence else ""
