"""Which targets a configuration and its file_sd files list."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from servescope.collector.discovery.targets import Discovery
from servescope.collector.targets.deployments import ScrapeSettings
from servescope.collector.targets.target import Target
from servescope.collector.targets.target_groups import read_file
from servescope.contract.identity import Identity
from servescope.errors import ConfigurationError
from tests.collector.support.discovered import configure
from tests.support.answering import answering
from tests.support.prometheus import running

DEPLOYMENT = """
[[deployments]]
deployment_id = "chat"
model_name = "llama"
inference_stack = "v2"
"""
FILE_SD = DEPLOYMENT + '[[deployments.file_sd]]\nfiles = ["targets/*.json"]\n'


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
    """A .yml file has the same form; as in Prometheus a value is the text that is there, whatever YAML takes it for."""
    pytest.importorskip("yaml")
    write_targets(
        tmp_path,
        "- targets: ['a:1']\n  labels: &common {replica: 1.10, rack: 12, gpu: true, role: }\n"
        "- targets: [10:20]\n  labels: {<<: *common, replica: no}\n",
        "chat.yml",
    )
    discovery = Discovery(configure(tmp_path, FILE_SD.replace(".json", ".yml")))

    assert listed(discovery) == [
        ("http://a:1/metrics", "1.10", "aggregated"),
        ("http://10:20/metrics", "no", "aggregated"),
    ]


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
    """Looking for changes costs next to nothing: the targets are the same object."""
    write_targets(tmp_path, [{"targets": ["a:1"]}])
    discovery = Discovery(configure(tmp_path, FILE_SD))
    monkeypatch.setattr("servescope.collector.discovery.targets.read_file", lambda *_, **__: pytest.fail("read again"))
    former = discovery.targets
    discovery.refresh()

    assert discovery.targets is former


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
        ([{"targets": ["a:1"], "labels": {**dict.fromkeys("xyz", "1"), "replica": 1}}],
         "group 0: labels {'replica': 1}, expected a mapping of str"),
        ([{"targets": ["http://a:1"]}], "target 'http://a:1': 'http://a:1' is not host:port; a path goes into"),
        ([{"targets": ["a:99999"]}], "target 'a:99999': has no valid host and port: 'a:99999'"),
        ([{"targets": ["a:1"], "labels": {"role": "worker"}}],
         "target 'a:1': unknown role 'worker', supported: aggreg"),
        ([{"targets": ["a:1"], "labels": {"__scheme__": "ftp"}}],
         "target 'a:1': __scheme__ 'ftp', expected http or ht"),
        ([{"targets": ["a:1"], "labels": {"environment": "\ud800"}}],
         r"target 'a:1': identity label 'environment' is '\ud800', expected text that UTF-8 can hold"),
        ([{"targets": ["a:1"], "labels": {"__metrics_path__": "/\ud800"}}], "target 'a:1': 'utf-8' codec can't encode"),
    ],
)  # fmt: skip
def test_a_bad_file_keeps_its_former_targets_and_says_so(tmp_path: Path, content: object, cause: str) -> None:
    """One wrong entry, or no JSON at all: the former targets are kept; once the file is repaired it is applied."""
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


MANY = json.dumps([{"targets": [f"a:{port}" for port in range(1, 10_001)]}])
BOMB = "- targets: &a [x, x, x, x, x, x, x, x, x, x]\n  labels: {}\n" + "".join(
    f"- targets: &{name} [{', '.join([f'*{former}'] * 10)}]\n  labels: {{}}\n"
    for former, name in pairwise("abcdefghij")
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("huge.json", "[" + " " * 16_000_000 + "]", "larger than 16000000 bytes"),
        ("huge.yml", "# " + "x" * 4_000_000, "larger than 4000000 bytes"),
        ("100000.json", json.dumps([{"targets": [f"a:{port}" for port in range(100_000)]}]), "more than 10000 targets"),
        ("groups.json", json.dumps([{}] * 10_001), "10001 groups, at most 10000 in one list"),
        ("two.json", MANY[:-1] + ', {"targets": ["b:1"]}]', "more than 10000 targets in one list"),
        ("labels.json", json.dumps([{"labels": {str(n): "x" for n in range(300)}}]), "group 0: 300 labels, at most"),
        ("shared.yml", "- &g {targets: [" + "x, " * 5_000 + "]}\n" + "- *g\n" * 9_000, "more than 10000 targets"),
        ("bomb.yml", BOMB, "group 1: targets [['x', 'x', 'x', ...], ['x', "),
        ("open.yml", "- targets: [", "line 1: not YAML: "),
        ("month.yml", "- {targets: [a], labels: {build: !!timestamp 2024-13-01}}", "not YAML: month must be in 1..12"),
        ("one.yml", "- {1: x, foo: y}", "group 0: unknown key '1'; known: targets, labels"),
        ("itself.yml", "&a [*a]", "group 0: expected a mapping, got a list"),
        ("deep.yml", "[" * 100_000, "nested too deeply for a list of target groups"),
        ("nul.yml", "- targets: ['a:1\0']", "not YAML: "),
        ("nul.json", r'[{"targets": ["a:1\u0000"]}]', r"target 'a:1\x00': "),
        ("control.json", r'[{"targets": ["a\u0007:1"]}]', r"target 'a\x07:1': is not"),
        ("twice.yml", "- targets: ['b:1']\n  targets: ['c:1']", "line 1: key 'targets' is there twice"),
        ("name.json", r'[{"targets": ["a:1"], "labels": {"replica": "r\u0000"}}]', "target 'a:1': identity label"),
        ("long.json", json.dumps([{"targets": ["x" * 1_000_000]}]), "target 'xxx"),
        ("path.json", json.dumps([{"targets": ["a:1"], "labels": {"__metrics_path__": "x" * 10**6}}]),
         "target 'a:1': has a URL of 1000011 characters, expected at most 8192"),
        ("key.json", json.dumps([{"x" * 1_000_000: 1}]), "group 0: unknown key 'xxx"),
        ("latin.json", b'[{"targets": ["\xfa:1"]}]', "not JSON: 'utf-8' codec can't decode"),
        ("latin.yml", b"- targets: ['\xfa:1']", "not YAML: 'utf-8' codec can't decode"),
        ("number.json", '[{"targets": [1]}]', "group 0: targets [1], expected a list of host:port"),
        ("null.json", '[{"targets": [null]}]', "group 0: targets [None], expected a list of host:port"),
        ("cut.json", '[{"targets": ["a:1"]}', "line 1: not JSON: "),
    ],
)  # fmt: skip
def test_a_hostile_file_is_a_short_problem_of_its_own(
    tmp_path: Path, name: str, content: str | bytes, cause: str
) -> None:
    """Whatever it holds, it costs bounded work, its cause is short, and the other targets stay."""
    (tmp_path / "targets").mkdir()
    body = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "targets" / name).write_bytes(body)
    discovery = Discovery(
        configure(
            tmp_path,
            FILE_SD.replace("*.json", f"*{Path(name).suffix}") + '[[deployments.targets]]\nurl = "http://a:1"\n',
        )
    )

    assert listed(discovery) == [("http://a:1/metrics", "a:1", "aggregated")]
    (problem,) = discovery.problems
    assert problem.startswith(f"{tmp_path / 'targets' / name}: {cause}")
    assert len(problem) < 1_000


def test_a_list_of_doubles_is_one_short_problem(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of targets of one identity, or of deployments of their own, with long paths: logged once, in short."""
    path = f"/{'x' * 1_400}"
    replica = {"replica": "r", "__metrics_path__": path}
    write_targets(tmp_path, [{"targets": [f"a:{port}" for port in range(1, 2_001)], "labels": replica}])
    own = [{"targets": [f"b:{port}"] * 2, "labels": {"deployment_id": f"d{port}"}} for port in range(1, 1_001)]
    write_targets(tmp_path, own, "own.json")
    discovery = Discovery(configure(tmp_path, FILE_SD))
    first = discovery.problems
    write_targets(tmp_path, [{"targets": [f"a:{port}" for port in range(1, 2_000)], "labels": replica}])
    discovery.refresh()

    assert len(discovery.targets) == 1 + 1_000
    for (same, twice), more in ((first, 1_996), (discovery.problems, 1_995)):
        assert same.startswith(
            f"targets 'http://a:1{path[:90]}…' and 'http://a:2{path[:90]}…' have the same identity ("
        )
        assert same.endswith(f"replicas; and {more} more in the same list; the second of each is left out")
        assert len(same) < 2_000
        assert twice.startswith("target 'http://b:1/metrics' is listed twice in deployment 'd1'; target ")
        assert twice.endswith("; and 997 more in the same list; the second of each is left out")
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [*first, discovery.problems[0]]


def test_ignored_labels_are_logged_in_short(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However many there are, and however long their names."""
    caplog.set_level(logging.INFO)
    labels = {"a" * 3_000_000: "x", **{f"b{number:03}": "x" for number in range(200)}}
    write_targets(tmp_path, [{"targets": ["a:1"], "labels": labels}])
    discovery = Discovery(configure(tmp_path, FILE_SD))

    assert listed(discovery) == [("http://a:1/metrics", "a:1", "aggregated")]
    (line,) = (record.message for record in caplog.records if "identity labels" in record.message)
    assert line == (
        f"{tmp_path}/targets/chat.json: labels '{'a' * 100}…', "
        + ", ".join(f"'b{number:03}'" for number in range(9))
        + " and 191 more are not identity labels and are left out"
    )


def test_what_is_no_file_is_a_problem(tmp_path: Path) -> None:
    """A FIFO, a device and a directory are refused, a dangling link is, and a link to a file is followed."""
    folder = tmp_path / "targets"
    folder.mkdir()
    os.mkfifo(folder / "fifo.json")
    (folder / "device.json").symlink_to("/dev/zero")
    (folder / "folder.json").mkdir()
    (folder / "dangling.json").symlink_to(tmp_path / "nothing")
    (tmp_path / "elsewhere").write_text('[{"targets": ["a:1"]}]')
    (folder / "link.json").symlink_to(tmp_path / "elsewhere")
    discovery = Discovery(configure(tmp_path, FILE_SD))

    assert listed(discovery) == [("http://a:1/metrics", "a:1", "aggregated")]
    reported = [problem.removeprefix(f"{folder}/") for problem in discovery.problems]
    assert [problem.split("; ")[0] for problem in reported if "dangling" not in problem] == [
        "device.json: not a regular file",
        "fifo.json: not a regular file",
        f"folder.json: [Errno 21] Is a directory: '{folder}/folder.json'",
    ]


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read in the middle of a write is corrected at the next look."""
    write_targets(tmp_path, [{"targets": ["a:1"]}])
    path = tmp_path / "targets" / "chat.json"

    def read_then_changed(read: Path, meta: Mapping[str, str]) -> object:
        found = read_file(read, meta)
        path.write_text(json.dumps([{"targets": ["a:1", "b:2"]}]))
        return found

    with monkeypatch.context() as patched:
        patched.setattr("servescope.collector.discovery.targets.read_file", read_then_changed)
        discovery = Discovery(configure(tmp_path, FILE_SD))
    first = listed(discovery)
    discovery.refresh()

    assert [url for url, _, _ in first] == ["http://a:1/metrics"]
    assert [url for url, _, _ in listed(discovery)] == ["http://a:1/metrics", "http://b:2/metrics"]


def test_a_file_that_can_be_read_again_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that could not be read keeps its targets, and counts once it can be, though nobody wrote to it."""
    write_targets(tmp_path, [{"targets": ["a:1"]}])
    discovery = Discovery(configure(tmp_path, FILE_SD))
    write_targets(tmp_path, [{"targets": ["a:1", "b:2"]}])
    with monkeypatch.context() as patched:
        patched.setattr("servescope.collector.discovery.targets.read_file", refuse_reading)
        discovery.refresh()
        discovery.refresh()
    kept, problems = discovery.targets, discovery.problems
    discovery.refresh()

    assert len(kept) == 1
    assert "Permission denied; its former 1 targets are kept" in problems[0]
    assert (len(discovery.targets), discovery.problems) == (2, ())


def refuse_reading(*_: object, **__: object) -> str:
    raise PermissionError(13, "Permission denied")


def test_a_pattern_without_files_is_a_problem(tmp_path: Path) -> None:
    """A file that does not exist yet is reported as missing; it is read once it exists."""
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
    """It would count double, whatever the replicas are called; in two deployments it may be listed."""
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


HTTP_SD = DEPLOYMENT + '[[deployments.http_sd]]\nurl = "http://inventory.example/chat"\n'
LIST = "http://inventory.example/chat"


def answer(discovery: Discovery, groups: object) -> None:
    """Let the one http_sd answer this, and apply it."""
    (key,) = discovery.http_lists()
    body = groups if isinstance(groups, bytes) else json.dumps(groups).encode()
    discovery.commit(key, discovery.read_answer(key, body))
    discovery.refresh()


def test_an_http_sd_lists_targets(tmp_path: Path) -> None:
    """Nothing until it answers; then what it lists, and nothing again when its list is empty."""
    discovery = Discovery(configure(tmp_path, HTTP_SD))
    before = (discovery.targets, discovery.problems)
    answer(discovery, [{"targets": ["a:1", "b:2"], "labels": {"role": "decode"}}])
    found = listed(discovery)
    answer(discovery, [])

    assert before == ((), ())
    assert found == [("http://a:1/metrics", "a:1", "decode"), ("http://b:2/metrics", "b:2", "decode")]
    assert (discovery.targets, discovery.problems) == ((), ())


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"<html>sign in</html>", "line 1: not JSON: Expecting value"),
        (b'["\xfa"]', "not JSON: 'utf-8' codec can't decode"),
        (b"[" * 100_000, "nested too deeply for a list of target groups"),
        (b"{}", "expected a list of target groups, got a dict"),
        (b"null", "expected a list of target groups, got nothing"),
        (b'[{"targets": ["http://a:1"]}]', "target 'http://a:1': 'http://a:1' is not host:port; a path goes into"),
        (b'[{"targets": ["a:1"], "labels": {"__scrape_interval__": "4m"}}]',
         "target 'a:1': __scrape_interval__ 4m, expected at most half of the window (5m)"),
        (b'[{"targets": ["a:1"], "labels": {"__scrape_interval__": "x"}}]', "target 'a:1': 'x' is not a duration"),
        (b'[{"targets": ["a:1"], "labels": {"__scrape_timeout__": "20s"}}]',
         "target 'a:1': __scrape_timeout__ is above __scrape_interval__ (15s)"),
        (json.dumps([{"targets": [f"a:{port}" for port in range(1, 10_002)]}]).encode(),
         "more than 10000 targets in one list"),
    ],
)  # fmt: skip
def test_a_bad_answer_keeps_the_former_targets_and_says_so(tmp_path: Path, body: bytes, cause: str) -> None:
    """Whatever is answered, the targets stay; once mended the list counts again, though it is the one before."""
    discovery = Discovery(configure(tmp_path, HTTP_SD))
    answer(discovery, [{"targets": ["a:1"]}])
    answer(discovery, body)
    kept, problems = listed(discovery), discovery.problems
    answer(discovery, [{"targets": ["a:1"]}])

    assert kept == [("http://a:1/metrics", "a:1", "aggregated")]
    (problem,) = problems
    assert problem.startswith(f"http_sd {LIST!r}: {cause}")
    assert problem.endswith("; its former 1 targets are kept")
    assert (listed(discovery), discovery.problems) == (kept, ())


def test_an_http_sd_that_fails_keeps_its_targets(tmp_path: Path) -> None:
    """Its failure is a problem until it answers again."""
    discovery = Discovery(configure(tmp_path, HTTP_SD))
    (key,) = discovery.http_lists()
    discovery.note_failure(key, "cannot connect: Connection refused")
    discovery.refresh()
    never = discovery.problems
    answer(discovery, [{"targets": ["a:1"]}])
    discovery.note_failure(key, "HTTP status 500")
    discovery.refresh()

    failed = discovery.problems
    answer(discovery, [{"targets": ["a:1"]}])

    assert never == (f"http_sd {LIST!r}: cannot connect: Connection refused; it lists no target yet",)
    assert failed == (f"http_sd {LIST!r}: HTTP status 500; its former 1 targets are kept",)
    assert discovery.problems == ()
    assert listed(discovery) == [("http://a:1/metrics", "a:1", "aggregated")]


@pytest.mark.slow
def test_a_real_prometheus_reads_the_same_list(tmp_path: Path, prometheus: Path) -> None:
    """One service, asked by both: the same URLs, and the same labels before the rules."""
    groups = [
        {"targets": ["127.0.0.1:1", "engine.invalid:2"], "labels": {"__meta_pod": "decode-0", "role": "decode"}},
        {"targets": ["127.0.0.1:3"], "labels": {"__scheme__": "https", "__metrics_path__": "/x", "replica": "é"}},
        {"targets": [], "labels": {}},
        {"targets": ["127.0.0.1:4"], "labels": {"__scheme__": "", "__metrics_path__": "", "role": None}},
        {"targets": ["127.0.0.1:5"], "labels": {"__metrics_path__": "/"}},
        {"targets": ["127.0.0.1:6"], "labels": {"__metrics_path__": "/my page#é"}},
    ]
    rules = [{"regex": "__meta_(.+)", "action": "labelmap"}]
    with answering(lambda request: request.reply(200, json.dumps(groups), Content_Type="application/json")) as base:
        url = f"{base}/chat"
        job = {"job_name": "chat", "scheme": "https", "http_sd_configs": [{"url": url}], "relabel_configs": rules}
        with running(prometheus, tmp_path / "prometheus", {"scrape_configs": [job]}) as theirs:
            seen = {each["scrapeUrl"]: each["labels"] for each in theirs.all_targets(6)}
    discovery = Discovery(configure(tmp_path, HTTP_SD.replace(LIST, url) + 'scheme = "https"\n'))
    answer(discovery, groups)

    assert {target.url for target in discovery.targets} == set(seen)
    for target in discovery.targets:
        labels = seen[target.url]
        assert target.identity.role == labels.get("role", "aggregated")
        assert target.identity.replica == labels.get("replica", labels["instance"])
        assert labels["url"] == url


KEEP_READY = """
[[deployments.{table}.relabel]]
source_labels = ["__meta_ready"]
regex = "true"
action = "keep"
"""
NAME_BY_POD = """
[[deployments.relabel]]
source_labels = ["__meta_pod"]
regex = "(.+)"
target_label = "replica"
"""


def test_rules_choose_and_name_targets(tmp_path: Path) -> None:
    """A list's own rules come first, then the deployment's; how many were dropped is reported."""
    discovery = Discovery(configure(tmp_path, HTTP_SD + KEEP_READY.format(table="http_sd") + NAME_BY_POD))
    answer(
        discovery,
        [
            {"targets": ["a:1"], "labels": {"__meta_ready": "true", "__meta_pod": "decode-0"}},
            {"targets": ["b:2", "c:3"], "labels": {"__meta_ready": "false", "__meta_pod": "decode-1"}},
        ],
    )
    (status,) = discovery.lists()

    assert listed(discovery) == [("http://a:1/metrics", "decode-0", "aggregated")]
    assert (status.kind, status.place, status.deployment_id) == ("http_sd", LIST, "chat")
    assert (status.targets, status.dropped, status.problem) == (1, 2, None)


def test_a_lists_rules_come_before_the_deployments(tmp_path: Path) -> None:
    """The deployment's find what the list's own have made."""
    first = """
[[deployments.file_sd.relabel]]
target_label = "__tmp_name"
replacement = "made"
"""
    last = """
[[deployments.relabel]]
source_labels = ["__tmp_name"]
target_label = "replica"
"""
    write_targets(tmp_path, [{"targets": ["a:1"]}])
    discovery = Discovery(configure(tmp_path, FILE_SD + first + last))

    assert [target.identity.replica for target in discovery.targets] == ["made"]


def test_rules_hold_for_targets_of_the_configuration_too(tmp_path: Path) -> None:
    """They see the parts of its URL, and may change them; what they drop is counted."""
    rule = """
[[deployments.relabel]]
source_labels = ["__address__", "__param_part"]
regex = "a:8000;engine"
target_label = "__param_part"
replacement = "all"
[[deployments.relabel]]
source_labels = ["replica"]
regex = "spare"
action = "drop"
"""
    text = DEPLOYMENT + '[[deployments.targets]]\nurl = "https://a:8000/x?part=engine&v=1"\n'
    spare = '[[deployments.targets]]\nurl = "http://b:8000"\nreplica = "spare"\n'
    discovery = Discovery(configure(tmp_path, text + spare + rule))

    assert listed(discovery) == [("https://a:8000/x?part=all&v=1", "a:8000", "aggregated")]
    assert [(each.kind, each.targets, each.dropped) for each in discovery.lists()] == [("targets", 1, 1)]


def test_lists_know_where_they_come_from(tmp_path: Path) -> None:
    """Rules find a file's path and a URL in the labels."""
    rules = """
[[deployments.relabel]]
source_labels = ["__meta_filepath"]
regex = ".*/(.+)[.]json"
target_label = "environment"
[[deployments.relabel]]
source_labels = ["__meta_url"]
regex = "http://(.+)/.*"
target_label = "environment"
"""
    both = FILE_SD + '[[deployments.http_sd]]\nurl = "http://inventory.example/chat"\n' + rules
    write_targets(tmp_path, [{"targets": ["a:1"]}])
    discovery = Discovery(configure(tmp_path, both))
    answer(discovery, [{"targets": ["b:2"]}])

    assert [target.identity.environment for target in discovery.targets] == ["chat", "inventory.example"]


def test_a_list_says_how_its_targets_are_scraped(tmp_path: Path) -> None:
    """Scheme, path, parameters, interval and limits hold for all; a target's labels win."""
    keys = """
scheme = "https"
metrics_path = "/engine/metrics"
params = { "part[]" = ["a", "b"], v = "1" }
scrape_interval = "30s"
scrape_timeout = "20s"
max_series = 5
max_labels = 6
max_label_bytes = 70
max_line_bytes = 800
max_scrapes_per_minute = 6
"""
    write_targets(
        tmp_path,
        [
            {"targets": ["a:1"]},
            {
                "targets": ["b:2"],
                "labels": {
                    "__scheme__": "http", "__metrics_path__": "/x", "__param_v": "2",
                    "__scrape_interval__": "10s",
                },
            },
        ],
    )  # fmt: skip
    first, second = Discovery(configure(tmp_path, FILE_SD + keys)).targets

    assert first.url == "https://a:1/engine/metrics?part%5B%5D=a&part%5B%5D=b&v=1"
    assert second.url == "http://b:2/x?part%5B%5D=a&part%5B%5D=b&v=2"
    assert first.scraping == ScrapeSettings(
        30_000, 20_000, max_series=5, max_scrapes_per_minute=6, max_labels=6, max_label_bytes=70, max_line_bytes=800
    )
    assert (second.scraping.interval_ms, second.scraping.timeout_ms) == (10_000, 10_000)


def test_lists_go_on_under_another_configuration(tmp_path: Path) -> None:
    """What was listed last counts until there is another answer, though a file is broken or a service away."""
    write_targets(tmp_path, [{"targets": ["a:1"], "labels": {"__meta_pod": "decode-0"}}])
    both = FILE_SD + '[[deployments.http_sd]]\nurl = "http://inventory.example/chat"\n'
    former = Discovery(configure(tmp_path, both))
    answer(former, [{"targets": ["b:2"], "labels": {"__meta_pod": "decode-1"}}])
    write_targets(tmp_path, "[")
    same = Discovery(configure(tmp_path, both), former)
    renamed = Discovery(configure(tmp_path, both + NAME_BY_POD), same)
    gone = Discovery(configure(tmp_path, FILE_SD), renamed)

    assert [target.identity.replica for target in same.targets] == ["a:1", "b:2"]
    assert [target.identity.replica for target in renamed.targets] == ["decode-0", "decode-1"]
    assert [target.identity.replica for target in gone.targets] == ["a:1"]
    assert all("its former 1 targets are kept" in each.problems[0] for each in (same, renamed, gone))


def test_an_answer_to_a_list_that_is_gone_is_ignored(tmp_path: Path) -> None:
    """It may come after the configuration changed."""
    former = Discovery(configure(tmp_path, HTTP_SD))
    (key,) = former.http_lists()
    discovery = Discovery(configure(tmp_path, FILE_SD), former)
    discovery.commit(key, discovery.read_answer(key, b'[{"targets": ["a:1"]}]'))
    discovery.refresh()

    assert discovery.targets == ()
