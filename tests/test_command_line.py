"""What all commands have in common: one form of errors and of exit codes, suggestions, placeholders, the address."""

from __future__ import annotations

import argparse
import errno
import itertools
import socket
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from alerts.__main__ import main as alerts_main
from dashboards.__main__ import main as dashboards_main
from servescope import cli
from servescope.cli import COMMANDS, make_command_parser
from servescope.settings.command_line import FAILED
from tests.support.answering import answering
from tests.support.authorities import Authority
from tests.support.commands import Done, run, run_main


def walk(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parser with its name, and those of its verbs."""
    yield name, parser
    for verb, found in verbs(parser).items():
        yield from walk(f"{name} {verb}", found)


def verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of the verbs, by name."""
    choices = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(choices[0]) if choices else {}


PARSERS = dict(itertools.chain.from_iterable(walk(name, make_command_parser(name)) for name in COMMANDS))

ADDRESSED = {"--from": {"URL", "TIME"}}
"""Options with two meanings: where a past is imported from, and when a span begins."""


def test_an_option_has_one_placeholder() -> None:
    """In the help of every command, and never the option's own name in capitals."""
    placeholders = defaultdict(set)
    for parser in PARSERS.values():
        for action in parser._actions:
            if action.option_strings and action.nargs != 0 and action.choices is None:
                placeholders[action.option_strings[0]].add(action.metavar)

    different = {option: found for option, found in placeholders.items() if len(found) > 1}
    assert different == ADDRESSED
    assert [option for option, found in placeholders.items() if None in found] == []
    assert {option: placeholders[option] for option in ("--store", "--deployment", "--listen")} == {
        "--store": {"PATH"}, "--deployment": {"ID"}, "--listen": {"HOST:PORT"},
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name, parser in PARSERS.items() if verbs(parser)])
def test_a_description_lists_every_verb(name: str) -> None:
    """In the list of commands, which is the description of the command's own help."""
    listed = COMMANDS[name][1].partition(": ")[2].split(", ")

    assert listed == list(verbs(PARSERS[name]))


def test_aliases_are_marked_as_such() -> None:
    """`--port` and `--address` end with the next release, and their help names `--listen`."""
    helps = [
        (action.option_strings[0], action.help)
        for parser in PARSERS.values()
        for action in parser._actions
        if {"--port", "--address"} & set(action.option_strings)
    ]

    assert len(helps) == 5
    assert all(text is not None and text.startswith("alias until the next release") for _, text in helps)


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        (["colect"], "did you mean 'collect'?"),
        (["collect", "--targets", "http://127.0.0.1:1"], "unknown option '--targets'; did you mean '--target'?"),
        (["collect", "--targets=http://127.0.0.1:1"], "unknown option '--targets'; did you mean '--target'?"),
        (["judge", "rn"], "did you mean 'run'?"),
        (["judge", "run", "--plna", "x"], "unknown option '--plna'; did you mean '--plan'?"),
        (["import", "--fromm", "http://127.0.0.1:1"], "unknown option '--fromm'; did you mean '--from'?"),
        (["inspect", "x", "--format", "jsn"], "did you mean 'json'?"),
        (["export", "--format", "parquet", "--out", "x", "--frmat"], "did you mean '--format'?"),
    ],
)
def test_a_wrong_word_is_answered_with_the_nearest(words: list[str], suggested: str) -> None:
    """A command, a verb, an option or a choice, after the usage of the command that it was given to."""
    done = run(*words)

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("servescope: error: ")
    assert done.stderr.endswith(f"{suggested}\n")


def test_a_word_that_is_near_to_nothing_is_answered_without_a_suggestion() -> None:
    """And what follows `--` is no option."""
    assert run("collect", "--zzz").stderr.endswith("servescope: error: unknown option '--zzz'\n")
    assert "unknown option" not in run("inspect", "--", "--zzz").stderr


def test_an_abbreviation_is_no_unknown_option() -> None:
    """argparse completes it."""
    assert "unknown option" not in run("inspect", "nofile", "--sour", "vllm").stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["inspect", "nofile"], "cannot read 'nofile': no such file or directory"),
        (["inspect", "."], "cannot read '.': is a directory"),
        (["collect", "--config", "nofile"], "no configuration file 'nofile'"),
        (["collect", "--config", "."], ".: cannot be read: is a directory"),
        (["translate", "--config", "nofile"], "no configuration file 'nofile'"),
        (["customers", "check", "--config", "nofile"], "no customers' configuration file 'nofile'"),
        (["console", "--plan", "nowhere/nofile"], "plan 'nowhere/nofile': there is no directory 'nowhere'"),
        (["emulate", "--scenario", "nofile"], "no scenario file 'nofile'"),
        (["replay", "nofile"], "cannot read trace 'nofile': No such file or directory"),
        (["judge", "plan", "--plan", "p", "--store", "nofile"], "no plan file 'p'"),
        (["judge", "verify", "--journal", "nofile"], "no journal at 'nofile'"),
        (["export", "--format", "openmetrics", "--out", "x", "--store", "nofile"], "no store at 'nofile'"),
        (["export", "--format", "openmetrics", "--out", "x", "--store", "."], "store '.' is a directory"),
        (["export", "--format", "openmetrics", "--out", "x", "--store", "text"], "file is not a database"),
    ],
)
def test_a_file_that_is_missing_or_wrong_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], problem: str
) -> None:
    """Code 2 and one line that names it, whatever the command."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("no database, and long enough for its head to be read\n" * 100)
    done = run(*words)

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("servescope: error: ")
    assert problem in line


def test_an_output_that_is_not_written_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """Though a verdict would end with its own code: nobody has read what it is of."""
    with patch("sys.stdout.flush", side_effect=OSError(errno.ENOSPC, "No space left on device")):
        assert cli.main(["faults", "kinds"]) == FAILED
    assert capsys.readouterr().err == "servescope: error: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("main", [alerts_main, dashboards_main])
def test_the_generators_report_errors_as_the_commands_do(main: object, tmp_path: Path) -> None:
    """A file of options that is missing, a folder that cannot be written, and a wrong option."""
    assert callable(main)
    (tmp_path / "file").write_text("")

    assert run_main(main, "--output", str(tmp_path), "--options", "nofile") == Done(
        2, "", "servescope: error: no options file 'nofile'\n"
    )
    folder = str(tmp_path / "file" / "below")
    assert run_main(main, "--output", folder) == Done(
        2, "", f"servescope: error: --output {folder!r} cannot be written: Not a directory\n"
    )
    assert run_main(main, "--chek").stderr.endswith("unknown option '--chek'; did you mean '--check'?\n")


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "{}/metrics"],
        ["import", "--from", "{}", "--store", "new.db"],
        ["console", "--prometheus", "{}", "--no-browser"],
        ["faults", "list", "--url", "{}"],
    ],
)
def test_tls_to_a_server_of_plain_http_says_to_use_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """With code 1, whichever client the command has."""
    monkeypatch.chdir(tmp_path)
    with answering(lambda request: request.reply(200, "")) as url:
        done = run(*(word.format(url.replace("http:", "https:")) for word in words))

    assert done.returncode == 1
    assert done.stderr.endswith(": TLS failed: wrong version number; the server speaks plain HTTP: use http://\n")


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "{}/metrics"],
        ["import", "--from", "{}", "--store", "new.db"],
        ["console", "--prometheus", "{}", "--no-browser"],
    ],
)
@pytest.mark.parametrize("answers", ["cuts off", "400"])
def test_plain_http_to_a_server_of_tls_says_to_try_https(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], answers: str
) -> None:
    """Servers cut such a request off, or answer with 400."""
    monkeypatch.chdir(tmp_path)
    tls = Authority(tmp_path).server("127.0.0.1") if answers == "cuts off" else None
    with answering(lambda request: request.reply(400, "a request in plain HTTP"), tls) as url:
        done = run(*(word.format(url) for word in words))

    assert done.returncode == 1
    assert done.stderr.startswith("servescope: error: ")
    assert done.stderr.endswith("; where the server speaks TLS, use https://\n")


def test_what_is_no_past_is_named_without_its_page(tmp_path: Path) -> None:
    """An engine asked for a past: what it is to be asked by, and a page of HTML by its title."""
    page = "<!DOCTYPE html>\n<html><head><title>Not here</title></head><body>a lot of text</body></html>"
    with answering(lambda request: request.reply(404, page)) as url:
        done = run("import", "--from", url, "--store", str(tmp_path / "new.db"))

    assert done.returncode == 1
    assert "not Prometheus' JSON (an HTML page, 'Not here')" in done.stderr
    assert "`servescope collect --target URL` scrapes it" in done.stderr
    assert "<" not in done.stderr
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["collect", "--target", "a=http://127.0.0.1:1", "--store", "new.db", "--listen", "{0}"],
        ["translate", "--config", "translate.toml", "--listen", "{0}"],
        ["emulate", "--listen", "{0}"],
        ["emulate", "--port", "{1}"],
        ["demo", "--listen", "{0}", "--no-browser"],
    ],
)
def test_a_port_in_use_names_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """With code 1 and the same words from every command: the console's and the judge's tests have theirs."""
    monkeypatch.chdir(tmp_path)
    Path("translate.toml").write_text('[translate]\ntargets = ["127.0.0.1:1"]\n')
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run(*(word.format(f"127.0.0.1:{port}", port) for word in words))

    assert (done.returncode, done.stderr) == (
        1,
        f"servescope: error: cannot listen on 127.0.0.1:{port}: Address already in use; name another address with "
        "--listen HOST:PORT\n",
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--listen", "9800"], "--listen '9800' is not HOST:PORT, such as 127.0.0.1:"),
        (["--listen", "127.0.0.1:9", "--port", "8"], "--listen is given beside --port or --address, its aliases"),
        (["--listen", "127.0.0.1:9", "--address", "::1"], "--listen is given beside --port or --address, its aliases"),
        (["--port", "70000"], "port 70000 is not within 0 … 65535"),
    ],
)
@pytest.mark.parametrize("command", ["emulate", "console"])
def test_an_address_that_is_none_is_wrong_usage(command: str, words: list[str], problem: str) -> None:
    """Or one that is given twice."""
    done = run(command, *words)

    assert done.returncode == 2
    assert problem in done.stderr


def test_a_parser_shows_no_credentials() -> None:
    """Whatever word they are in."""
    done = run("inspect", "a", "b", "http://user:hunter2@a")

    assert done.returncode == 2
    assert "hunter2" not in done.stderr
