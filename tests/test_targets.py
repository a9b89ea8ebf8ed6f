"""Which targets a configuration and its file_sd files list."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from servescope.collector.config import Configuration, read_configuration
from servescope.collector.targets import Discovery, Target
from servescope.errors import ConfigurationError
from servescope.identity import Identity

DEPLOYMENT = """
[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v2"
"""
FILE_SD = DEPLOYMENT + '[[deployments.file_sd]]\nfiles = ["targets/*.json"]\n'


def configure(folder: Path, text: str) -> Configuration:
    path = folder / "servescope.toml"
    path.write_text(text, encoding="utf-8")
    return read_configuration(path)


def write_targets(folder: Path, groups: object, name: str = "chat.json") -> None:
    (folder / "targets").mkdir(exist_ok=True)
    fresh = folder / "targets" / "fresh"
    fresh.write_text(groups if isinstance(groups, str) else json.dumps(groups), encoding="utf-8")
    fresh.replace(folder / "targets" / name)


def listed(discovery: Discovery) -> list[tuple[str, str, str]]:
    return [(target.url, target.identity.replica, target.identity.role) for target in discovery.targets]


def test_static_targets_bear_the_deployments_labels(tmp_path: Path) -> None:
    """A target's replica is its host and port unless it is named."""
    discovery = Discovery(
        configure(
            tmp_path,
            DEPLOYMENT
            + '[[deployments.targets]]\nurl = "http://a:8000/metrics"\n'
            + '[[deployments.targets]]\nurl = "http://b"\nreplica = "r1"\nrole = "router"\n',
        )
    )

    assert [target.identity for target in discovery.targets] == [
        Identity("llama", "chat", "v2", replica="a:8000"),
        Identity("llama", "chat", "v2", replica="r1", role="router"),
    ]
    assert discovery.problems == ()


def test_file_sd_is_read_in_prometheus_format(tmp_path: Path) -> None:
    """Labels set identity, scheme and path; other labels are left out."""
    write_targets(
        tmp_path,
        [
            {"targets": ["a:1", "b:2"], "labels": {"role": "decode", "team": "x", "__meta_node": "n"}},
            {
                "targets": ["c:3"],
                "labels": {
                    "__scheme__": "https", "__metrics_path__": "/replica-0/metrics", "replica": "r0",
                    "rollout_phase": "promoting", "deployment_id": "other",
                },
            },
        ],
    )  # fmt: skip
    discovery = Discovery(configure(tmp_path, FILE_SD))

    assert listed(discovery) == [
        ("http://a:1/metrics", "a:1", "decode"),
        ("http://b:2/metrics", "b:2", "decode"),
        ("https://c:3/replica-0/metrics", "r0", "aggregated"),
    ]
    assert discovery.targets[2].identity == Identity(
        "llama", "other", "v2", rollout_phase="promoting", replica="r0", role="aggregated"
    )


def test_yaml_lists_targets_too(tmp_path: Path) -> None:
    """A .yml file has the same form."""
    pytest.importorskip("yaml")
    write_targets(tmp_path, "- targets: ['a:1']\n  labels: {replica: r0}\n", "chat.yml")
    discovery = Discovery(configure(tmp_path, FILE_SD.replace(".json", ".yml")))

    assert listed(discovery) == [("http://a:1/metrics", "r0", "aggregated")]


def test_a_changed_file_changes_the_targets(tmp_path: Path) -> None:
    """Targets come and go with the file's content, with new files, and with files that vanish."""
    write_targets(tmp_path, [{"targets": ["a:1"]}])
    discovery = Discovery(configure(tmp_path, FILE_SD))
    write_targets(tmp_path, [{"targets": ["a:1", "b:2"]}])
    write_targets(tmp_path, [{"targets": ["c:3"]}], "more.json")
    discovery.refresh()
    grown = [target.url for target in discovery.targets]
    (tmp_path / "targets" / "chat.json").unlink()
    discovery.refresh()

    assert grown == ["http://a:1/metrics", "http://b:2/metrics", "http://c:3/metrics"]
    assert [target.url for target in discovery.targets] == ["http://c:3/metrics"]


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for changes costs no reading."""
    write_targets(tmp_path, [{"targets": ["a:1"]}])
    discovery = Discovery(configure(tmp_path, FILE_SD))
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: pytest.fail("read again"))
    discovery.refresh()

    assert listed(discovery) == [("http://a:1/metrics", "a:1", "aggregated")]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("[{", "line 1: not JSON: Expecting property name"),
        ("", "line 1: not JSON: Expecting value"),
        ("[" * 100_000, "nested too deeply for a list of target groups"),
        ("[" + "1" * 5000 + "]", "not JSON: Exceeds the limit"),
        ({"targets": ["a:1"]}, "expected a list of target groups, got a dict"),
        (["a:1"], "group 0: expected a mapping, got a str"),
        ([{"targets": "a:1"}], "group 0: targets 'a:1', expected a list of host:port"),
        ([{"target": ["a:1"]}], "group 0: unknown key 'target'; known: targets, labels"),
        ([{"targets": ["a:1"], "labels": {"replica": 1}}], "group 0: labels {'replica': 1}, expected a mapping of str"),
        ([{"targets": ["http://a:1"]}], "target 'http://a:1': 'http://a:1' is not host:port; a path goes into"),
        ([{"targets": ["a:99999"]}], "target 'a:99999': 'a:99999' is not host:port"),
        (
            [{"targets": ["a:1"], "labels": {"role": "worker"}}],
            "target 'a:1': unknown role 'worker', supported: aggreg",
        ),
        (
            [{"targets": ["a:1"], "labels": {"__scheme__": "ftp"}}],
            "target 'a:1': __scheme__ 'ftp', expected http or ht",
        ),
        (
            [{"targets": ["a:1"], "labels": {"environment": "\ud800"}}],
            r"target 'a:1': identity label 'environment' is '\ud800', expected text that UTF-8 can hold",
        ),
        ([{"targets": ["a:1"], "labels": {"__metrics_path__": "/\ud800"}}], "target 'a:1': is not a URL"),
    ],
)
def test_a_bad_file_keeps_its_former_targets_and_says_so(tmp_path: Path, content: object, cause: str) -> None:
    """One wrong entry, or no JSON at all: the whole file stays as it was; once mended it counts again."""
    write_targets(tmp_path, [{"targets": ["a:1"]}])
    discovery = Discovery(configure(tmp_path, FILE_SD))
    write_targets(tmp_path, content)
    discovery.refresh()
    kept, problems = listed(discovery), discovery.problems
    write_targets(tmp_path, [{"targets": ["b:2"]}])
    discovery.refresh()

    assert kept == [("http://a:1/metrics", "a:1", "aggregated")]
    (problem,) = problems
    assert problem.startswith(f"{tmp_path / 'targets' / 'chat.json'}: {cause}")
    assert problem.endswith("; its former 1 targets are kept")
    assert listed(discovery) == [("http://b:2/metrics", "b:2", "aggregated")]
    assert discovery.problems == ()


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("- targets: [", "line 1: not YAML: "),
        ("- {targets: ['a:1'], labels: {build: 2024-13-01}}", "not YAML: month must be in 1..12"),
        ("- {1: x, foo: y}", "group 0: unknown key 1; known: targets, labels"),
    ],
)
def test_bad_yaml_is_a_problem_of_its_file_alone(tmp_path: Path, content: str, cause: str) -> None:
    """Whatever PyYAML makes of a file, the other targets stay."""
    write_targets(tmp_path, content, "bad.yml")
    discovery = Discovery(
        configure(tmp_path, FILE_SD.replace("*.json", "*.yml") + '[[deployments.targets]]\nurl = "http://a:1"\n')
    )

    assert listed(discovery) == [("http://a:1/metrics", "a:1", "aggregated")]
    (problem,) = discovery.problems
    assert problem.startswith(f"{tmp_path / 'targets' / 'bad.yml'}: {cause}")


def test_a_problem_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is wrong with a file is logged when it appears, not at every look."""
    write_targets(tmp_path, "[")
    discovery = Discovery(configure(tmp_path, FILE_SD))
    discovery.refresh()

    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == list(
        discovery.problems
    )


def test_a_pattern_without_files_is_a_problem(tmp_path: Path) -> None:
    """A file that is not there yet is said to be missing; it counts when it comes."""
    discovery = Discovery(configure(tmp_path, FILE_SD))
    missing = discovery.problems
    write_targets(tmp_path, [{"targets": ["a:1"]}])
    discovery.refresh()

    assert missing == (f"file_sd of deployment 'chat': no file matches '{tmp_path}/targets/*.json'",)
    assert (len(discovery.targets), discovery.problems) == (1, ())


def test_two_targets_of_one_identity_are_refused(tmp_path: Path) -> None:
    """In the configuration it is an error; in a file the second is left out and reported."""
    double = '[[deployments.targets]]\nurl = "http://{}"\nreplica = "r"\n'
    with pytest.raises(
        ConfigurationError, match=r"'http://a/metrics' and 'http://b/metrics' have the same identity .*replicas$"
    ):
        Discovery(configure(tmp_path, DEPLOYMENT + double.format("a") + double.format("b")))

    write_targets(tmp_path, [{"targets": ["a:1", "b:2"], "labels": {"replica": "r"}}, {"targets": ["c:3"]}])
    discovery = Discovery(configure(tmp_path, FILE_SD))
    assert [target.url for target in discovery.targets] == ["http://a:1/metrics", "http://c:3/metrics"]
    assert discovery.problems == (
        "targets 'http://a:1/metrics' and 'http://b:2/metrics' have the same identity (deployment_id='chat', "
        "inference_stack='v2', model_name='llama', replica='r', role='aggregated'); give them different replicas; "
        "the second is left out",
    )


def test_one_url_twice_in_a_deployment_is_refused(tmp_path: Path) -> None:
    """It would count double, whatever the replicas are called; in two deployments it may stand."""
    target = '[[deployments.targets]]\nurl = "http://a"\nreplica = "{}"\n'
    with pytest.raises(ConfigurationError, match=r"'http://a/metrics' is listed twice in deployment 'chat'$"):
        Discovery(configure(tmp_path, DEPLOYMENT + target.format("r1") + target.format("r2")))

    other = DEPLOYMENT.replace("chat", "code")
    discovery = Discovery(configure(tmp_path, DEPLOYMENT + target.format("r1") + other + target.format("r1")))
    assert len(discovery.targets) == 2


def test_target_ids_tell_identities_apart_and_stay(tmp_path: Path) -> None:
    """The id depends on the identity alone, so that a restart, or a new address, finds the history."""
    former = Target("http://a/metrics", Identity("m", "d", "s", replica="r"))

    assert former.target_id == "d/aggregated/r#562d5cd3"
    assert Target("http://b/metrics", Identity("m", "d", "s", replica="r")).target_id == former.target_id
    assert Target("http://a/metrics", Identity("n", "d", "s", replica="r")).target_id != former.target_id


def test_a_touched_file_is_read_again(tmp_path: Path) -> None:
    """The same size and a new time is a change."""
    write_targets(tmp_path, [{"targets": ["a:1"]}])
    discovery = Discovery(configure(tmp_path, FILE_SD))
    path = tmp_path / "targets" / "chat.json"
    path.write_text(path.read_text().replace("a:1", "b:2"))
    os.utime(path, ns=(1, 1))
    discovery.refresh()

    assert listed(discovery) == [("http://b:2/metrics", "b:2", "aggregated")]
