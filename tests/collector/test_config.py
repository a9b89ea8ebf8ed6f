"""The collector's configuration: what a file means, and how a wrong one is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servescope.collector.config import (
    SETTINGS,
    CollectorSettings,
    configure_targets,
    read_configuration,
)
from servescope.collector.targets.deployments import SCRAPE_SETTINGS, ScrapeSettings, check_url, host_and_port
from servescope.collector.targets.relabel import Rule
from servescope.errors import ConfigurationError, UsageError
from servescope.settings.access import ACCESS_SETTINGS, Access, Proxy, Tls
from servescope.settings.values import format_duration, parse_address, parse_duration
from tests.collector.support.discovered import configure

DEPLOYMENT = """
[[deployments]]
deployment_id = "chat-v1"
model_name = "llama-70b"
inference_stack = "v1"
"""
TARGET = """
[[deployments.targets]]
url = "http://127.0.0.1:8101/metrics"
"""
MINIMAL = DEPLOYMENT + TARGET


def test_minimal_file_has_every_default(tmp_path: Path) -> None:
    """A deployment with a target is enough; the rest is as documented, the store beside the file."""
    configuration = configure(tmp_path, MINIMAL)

    (settings,) = configuration.deployments
    assert configuration.collector == CollectorSettings(store=tmp_path / "servescope.db")
    assert settings.deployment.labels() == (
        ("deployment_id", "chat-v1"), ("inference_stack", "v1"), ("model_name", "llama-70b"),
    )  # fmt: skip
    assert settings.targets[0].url == "http://127.0.0.1:8101/metrics"
    assert settings.targets[0].role == "aggregated"


def test_everything_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key of every table is read."""
    monkeypatch.setenv("CHAT_TOKEN", "t0ps3cret")
    (tmp_path / "token").write_text("fr0mfile\n")
    configuration = configure(
        tmp_path,
        """
        [collector]
        listen = "[::1]:9901"
        store = "data/store.db"
        scrape_interval = "5s"
        scrape_timeout = "2s"
        evaluation_interval = "10s"
        discovery_interval = "1s"
        window = "1m"
        retention = "1d12h"
        max_body_bytes = 1000
        max_series = 10
        max_labels = 11
        max_label_bytes = 12
        max_line_bytes = 13
        [[deployments]]
        deployment_id = "chat-v2"
        model_name = "llama-70b"
        inference_stack = "v2"
        environment = "production"
        rollout_phase = "promoting"
        [[deployments.targets]]
        url = "https://frontend.example"
        replica = "frontend"
        role = "router"
        source = "vllm"
        bearer_token_env = "CHAT_TOKEN"
        headers = { X-Team = "inference" }
        headers_from_file = { X-Key = "token" }
        [[deployments.file_sd]]
        files = ["targets/*.json", "/etc/more.yml"]
        role = "decode"
        bearer_token_file = "token"
        """,
    )

    (settings,) = configuration.deployments
    (target,), (files,) = settings.targets, settings.file_sd
    assert configuration.collector == CollectorSettings(
        listen=("::1", 9901), store=tmp_path / "data/store.db", scrape_interval_ms=5000, scrape_timeout_ms=2000,
        evaluation_interval_ms=10_000, discovery_interval_ms=1000, window_ms=60_000, retention_ms=129_600_000,
        max_body_bytes=1000, max_series=10, max_labels=11, max_label_bytes=12, max_line_bytes=13,
    )  # fmt: skip
    assert (settings.deployment.environment, settings.deployment.rollout_phase) == ("production", "promoting")
    assert (target.url, target.replica, target.role, target.source) == (
        "https://frontend.example/metrics", "frontend", "router", "vllm",
    )  # fmt: skip
    assert target.access.request_headers() == {
        "X-Team": "inference", "X-Key": "fr0mfile", "Authorization": "Bearer t0ps3cret",
    }  # fmt: skip
    assert files.files == (str(tmp_path / "targets/*.json"), "/etc/more.yml")
    assert (files.role, files.access.request_headers()) == ("decode", {"Authorization": "Bearer fr0mfile"})


def test_every_way_of_access_and_pace_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets and lists have the same keys; a list's URL has its own."""
    monkeypatch.setenv("PASSWORD", "t0ps3cret")
    configuration = configure(
        tmp_path,
        DEPLOYMENT
        + """
        [[deployments.targets]]
        url = "https://frontend.example/metrics?a=1"
        params = { part = ["engine", "router"] }
        scrape_interval = "1m"
        max_scrapes_per_minute = 6
        basic_auth_username = "joe"
        basic_auth_password_env = "PASSWORD"
        tls_server_name = "engine.example"
        tls_insecure_skip_verify = true
        proxy_url = "http://proxy.example:3128/"
        proxy_username = "jim"
        proxy_password_env = "PASSWORD"
        no_proxy = ["10.0.0.0/8"]
        [[deployments.http_sd]]
        url = "http://inventory.example"
        refresh_interval = "30s"
        list_access = { bearer_token_env = "PASSWORD" }
        scheme = "https"
        metrics_path = "/engine"
        scrape_interval = "5s"
        proxy_from_environment = true
        [[deployments.http_sd.relabel]]
        action = "labeldrop"
        regex = "team"
        """,
    )

    (settings,) = configuration.deployments
    (target,), (remote,) = settings.targets, settings.http_sd
    assert target.url == "https://frontend.example/metrics?a=1&part=engine&part=router"
    assert target.scraping == ScrapeSettings(60_000, 10_000, max_scrapes_per_minute=6)
    assert target.access.tls == Tls(server_name="engine.example", insecure_skip_verify=True)
    assert target.access.proxy == Proxy(
        "http://proxy.example:3128", "jim", password_env="PASSWORD", no_proxy=("10.0.0.0/8",)
    )
    assert target.access.request_headers() == {"Authorization": "Basic am9lOnQwcHMzY3JldA=="}
    assert (remote.url, remote.refresh_interval_ms) == ("http://inventory.example/", 30_000)
    assert remote.list_access.request_headers() == {"Authorization": "Bearer t0ps3cret"}
    assert remote.access == Access(proxy=Proxy(from_environment=True), directory=str(tmp_path))
    assert (remote.scheme, remote.metrics_path, remote.relabel) == (
        "https",
        "/engine",
        (Rule("labeldrop", regex="team"),),
    )
    assert (remote.scraping.interval_ms, remote.scraping.timeout_ms) == (5_000, 5_000)
    assert "t0ps3cret" not in repr(configuration)


@pytest.mark.parametrize(
    ("text", "size"), [("", None), ("16MB", 16_000_000), ("1.5GB", 1_500_000_000), ("2TB", 2_000_000_000_000)]
)
def test_the_store_may_be_limited_in_size(tmp_path: Path, text: str, size: int | None) -> None:
    """In powers of 1000; without the key it may grow as retention lets it."""
    key = f'retention_size = "{text}"' if text else ""

    assert configure(tmp_path, f"[collector]\n{key}\n" + MINIMAL).collector.retention_bytes == size


def test_short_interval_lowers_the_default_timeout(tmp_path: Path) -> None:
    """An interval below the default timeout needs no timeout beside it."""
    settings = configure(tmp_path, '[collector]\nscrape_interval = "2s"\n' + MINIMAL).collector

    assert settings.scrape_timeout_ms == 2000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no deployments; expected at least one [[deployments]] table"),
        ("deployments = 3", "deployments: 3 is wrong, expected tables [[deployments]]"),
        ("[collector", "not TOML: "),
        ("[colector]\n" + MINIMAL, "unknown key 'colector'; did you mean 'collector'?"),
        ('[collector]\nscrape_intervall = "15s"' + MINIMAL,
         "unknown key 'collector.scrape_intervall'; did you mean 'scrape_interval'?"),
        ('[collector]\nzebra = "15s"' + MINIMAL, "unknown key 'collector.zebra'; known: listen, store, "),
        ("[collector]\nscrape_interval = 15" + MINIMAL,
         "collector.scrape_interval: 15 is wrong, expected a duration above 0 such as '15s', '5m', '1h30m', '7d'"),
        ('[collector]\nwindow = "5 minutes"' + MINIMAL, "collector.window: '5 minutes' is wrong, expected a duration"),
        ('[collector]\nretention = "9999999999999w"' + MINIMAL, "collector.retention: '9999999999999w' is wrong"),
        ("[collector]\nmax_series = " + "1" * 5000 + MINIMAL, "not TOML: Exceeds the limit"),
        ('[collector]\nwindow = "0s"' + MINIMAL, "collector.window: '0s' is wrong, expected a duration above 0"),
        ('[collector]\nwindow = "20s"' + MINIMAL,
         "window: '20s' is wrong, expected at least twice scrape_interval (15s)"),
        ('[collector]\nscrape_timeout = "20s"' + MINIMAL,
         "collector.scrape_timeout: '20s' is wrong, expected at most scrape_interval (15s)"),
        ('[collector]\nretention = "1m"' + MINIMAL, "retention: '1m' is wrong, expected at least window (5m)"),
        ('[collector]\nretention_size = "3GiB"' + MINIMAL,
         "retention_size: '3GiB' is wrong, expected a size of at least 16MB such as '500MB', '3GB'"),
        ('[collector]\nretention_size = "15MB"' + MINIMAL, "retention_size: '15MB' is wrong, expected a size of"),
        ("[collector]\nretention_size = 3000000000" + MINIMAL, "retention_size: 3000000000 is wrong, expected a size"),
        ('[collector]\nlisten = "9900"' + MINIMAL, "collector.listen: '9900' is wrong, expected host:port such as"),
        ('[collector]\nlisten = "a:99000"' + MINIMAL, "collector.listen: 'a:99000' is wrong"),
        ("[collector]\nmax_series = 0" + MINIMAL, "collector.max_series: 0 is wrong, expected a whole number above 0"),
        ("[collector]\nmax_series = true" + MINIMAL, "max_series: True is wrong, expected a whole number above 0"),
        ("[collector]\nstore = 3" + MINIMAL, "collector.store: 3 is wrong, expected a string"),
        (DEPLOYMENT, "deployments[0]: deployment 'chat-v1' has no targets; expected [[deployments.targets]], "),
        ('[[deployments]]\ndeployment_id = "a"\n', "deployments[0]: 'inference_stack' is missing"),
        (MINIMAL.replace('"v1"', '""'),
         "deployments[0].inference_stack: '' is wrong, expected a string that is not empty"),
        (DEPLOYMENT + 'rollout_phase = "canary"\n' + TARGET,
         "deployments[0]: unknown rollout_phase 'canary', supported: '', 'promoting', 'stable'"),
        (MINIMAL + MINIMAL, "deployment 'chat-v1' is listed twice with the same labels"),
        (MINIMAL + 'role = "worker"',
         "deployments[0].targets[0].role: 'worker' is wrong, expected one of aggregated, prefill, decode, router"),
        (MINIMAL + 'source = "vlm"',
         "deployments[0].targets[0].source: 'vlm' is wrong, expected one of baseten, cadvisor, dcgm"),
        (MINIMAL + 'source = "baseten"\nscrape_interval = "9s"',
         "deployments[0].targets[0].scrape_interval: 9s is too short for Baseten export, at least 10s: it answers an "
         "organisation six times a minute"),
        (MINIMAL.replace("http://", ""),
         "deployments[0].targets[0].url: '127.0.0.1:8101/metrics' is not a URL, expected one such as 'http://127.0"),
        (MINIMAL + "[[deployments.targets]]\nrole = 'router'", "deployments[0].targets[1]: 'url' is missing"),
        (MINIMAL + 'bearer_token = "x"',
         "unknown key 'deployments[0].targets[0].bearer_token'; did you mean 'bearer_to"),
        (MINIMAL + 'bearer_token_env = "NO_SUCH_TOKEN"',
         "deployments[0].targets[0]: environment variable 'NO_SUCH_TOKEN' is not set"),
        (MINIMAL + 'bearer_token_file = "nowhere"',
         "deployments[0].targets[0]: secret file 'nowhere' cannot be read: No such file or directory"),
        (MINIMAL + 'bearer_token_file = "a"\nbearer_token_env = "b"',
         "bearer_token_env and bearer_token_file are both set"),
        (MINIMAL + 'headers = {"X Y" = "1"}', "deployments[0].targets[0].headers: 'X Y' is not a header name"),
        (MINIMAL + 'headers = {X-A = "1", x-a = "2"}', "deployments[0].targets[0]: header 'x-a' is set twice"),
        (MINIMAL + 'basic_auth_username = "joe"', "targets[0]: basic_auth_username is set without a password; expec"),
        (MINIMAL + 'basic_auth_password_env = "HOME"', "basic_auth_password is set without basic_auth_username"),
        (MINIMAL + 'basic_auth_username = "j:o"\nbasic_auth_password_env = "HOME"', "basic_auth_username holds a col"),
        (MINIMAL + 'basic_auth_username = "joe"\nbasic_auth_password_env = "HOME"\nbearer_token_env = "HOME"',
         "header 'authorization' is set twice"),
        (MINIMAL + 'tls_ca_file = "nowhere"',
         "targets[0]: tls_ca_file 'nowhere' cannot be used: No such file or directory"),
        (MINIMAL + 'tls_cert_file = "servescope.toml"',
         "targets[0]: tls_cert_file 'servescope.toml' with tls_key_file None cannot be used: no certificate or key in"),
        (MINIMAL + 'tls_key_file = "nowhere"', "targets[0]: tls_key_file is set without tls_cert_file"),
        (MINIMAL + 'tls_insecure_skip_verify = "yes"',
         "tls_insecure_skip_verify: 'yes' is wrong, expected true or false"),
        (MINIMAL + 'proxy_url = "proxy:3128"',
         "targets[0].proxy_url: 'proxy:3128' is wrong, expected a URL such as 'http://proxy.example:3128'"),
        (MINIMAL + 'proxy_url = "http://p"\nproxy_from_environment = true',
         "proxy_url and proxy_from_environment are both set"),
        (MINIMAL + 'no_proxy = ["a"]', "proxy_username and no_proxy need proxy_url; the environment has its own"),
        (MINIMAL + 'scrape_interval = "3m"',
         "targets[0].scrape_interval: '3m' is wrong, expected at most half of collector.window (150s)"),
        (MINIMAL + 'scrape_interval = "1m"\nscrape_timeout = "2m"',
         "targets[0].scrape_timeout: '2m' is wrong, expected at most scrape_interval (1m)"),
        (MINIMAL + "max_scrapes_per_minute = 0", "targets[0].max_scrapes_per_minute: 0 is wrong, expected a whole"),
        (MINIMAL + "params = { a = 1 }", "targets[0].params.a: 1 is wrong, expected a string, or a list of strings"),
        (DEPLOYMENT + "[[deployments.http_sd]]\nurl = 'inventory'",
         "deployments[0].http_sd[0].url: 'inventory' is not a URL"),
        (DEPLOYMENT + "[[deployments.http_sd]]\nurl = 'http://a'\nrefresh_interval = '10ms'",
         "http_sd[0].refresh_interval: '10ms' is wrong, expected at least 1s"),
        (DEPLOYMENT + "[[deployments.http_sd]]\nurl = 'http://a'\nscheme = 'ftp'",
         "http_sd[0].scheme: 'ftp' is wrong, expected one of http, https"),
        (DEPLOYMENT + "[[deployments.http_sd]]\nurl = 'http://a'\nmetrics_path = 'metrics'",
         "http_sd[0].metrics_path: 'metrics' is wrong, expected a path that begins with /"),
        (DEPLOYMENT + "[[deployments.http_sd]]\nurl = 'http://a'\nlist_access = {bearer_token_env = 'NO_SUCH_TOKEN'}",
         "deployments[0].http_sd[0].list_access: environment variable 'NO_SUCH_TOKEN' is not set"),
        (DEPLOYMENT + "[[deployments.http_sd]]\nurl = 'http://a'\n[[deployments.http_sd.relabel]]\naction = 'kep'",
         "deployments[0].http_sd[0].relabel[0].action: 'kep' is wrong, expected one of replace, keep"),
        (MINIMAL + "[[deployments.relabel]]\naction = 'kep'", "deployments[0].relabel[0].action: 'kep' is wrong"),
        (DEPLOYMENT + "[[deployments.file_sd]]\nfiles = []",
         "file_sd[0].files: [] is wrong, expected a list of strings"),
        (DEPLOYMENT + "[[deployments.file_sd]]\nfiles = ['a.txt']",
         "deployments[0].file_sd[0].files: 'a.txt' does not end in .json, .yml or .yaml"),
    ],
)  # fmt: skip
def test_wrong_file_is_refused_by_file_key_and_value(tmp_path: Path, text: str, message: str) -> None:
    """The error names the file, the key, the value found and what was expected."""
    with pytest.raises(ConfigurationError) as refused:
        configure(tmp_path, text)

    assert str(refused.value).startswith(f"{tmp_path / 'servescope.toml'}: ")
    assert message in str(refused.value)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    """As editors on Windows begin a text with one."""
    (tmp_path / "servescope.toml").write_text(MINIMAL, encoding="utf-8-sig")
    read_configuration(tmp_path / "servescope.toml")


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    """A store, given by mistake, and a directory are named in words."""
    (tmp_path / "x.db").write_bytes(b"SQLite format 3\0\xff")
    with pytest.raises(ConfigurationError, match=r"x\.db: cannot be read: is not UTF-8 text$"):
        read_configuration(tmp_path / "x.db")
    with pytest.raises(ConfigurationError, match=rf"^{tmp_path}: cannot be read: is a directory$"):
        read_configuration(tmp_path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(ConfigurationError, match=r"no configuration file '.*nowhere\.toml'"):
        read_configuration(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    "line",
    [
        'proxy_url = "http://joe:12345678@proxy"', "headers = { X-Key = 12345678 }",
        'headers = { X-Key = "12345678\\n9" }', 'url = "http://joe:12345678@host/metrics"',
        'url = "http://joe:12345678/9@host/metrics"',
    ],
)  # fmt: skip
def test_secrets_are_not_shown_in_errors(tmp_path: Path, line: str) -> None:
    """A header's value and a URL's password never appear, whatever is wrong with them."""
    text = MINIMAL + line if not line.startswith("url") else DEPLOYMENT + "[[deployments.targets]]\n" + line
    with pytest.raises(ConfigurationError) as refused:
        configure(tmp_path, text)

    assert "12345678" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DEPLOYMENT + TARGET.replace("[[", "[").replace("]]", "]") + 'headers = { X-Key = "12345678" }',
         "deployments[0].targets: a table is wrong, expected tables [[deployments.targets]]"),
        (MINIMAL.replace("[[deployments]]", "[deployments]") + 'headers = { X-Key = "12345678" }',
         "deployments: a table is wrong, expected tables [[deployments]]"),
        (DEPLOYMENT + '[[deployments.http_sd]]\nurl = "http://a"\nlist_access = [{ headers = { X-Key = "12345678" } }]',
         "list_access: a list of tables is wrong, expected a table"),
    ],
)  # fmt: skip
def test_a_table_in_the_wrong_place_keeps_its_secrets(tmp_path: Path, text: str, message: str) -> None:
    """Single brackets instead of double ones do not put a target's headers into the log."""
    with pytest.raises(ConfigurationError) as refused:
        configure(tmp_path, text)

    assert message in str(refused.value)
    assert "12345678" not in str(refused.value)


def test_secrets_are_not_shown_in_repr(tmp_path: Path) -> None:
    """A configuration can be logged without giving its headers away."""
    configuration = configure(tmp_path, MINIMAL + 'headers = { X-Key = "12345678" }')

    assert "12345678" not in repr(configuration)


def test_targets_of_the_command_line_are_deployments() -> None:
    """One deployment per name, its stack called like it; per host and port without a name."""
    configuration = configure_targets(["v1=http://a:1/metrics", "v1=http://b:2", "localhost:8000", "https://c"])

    shown = [
        (each.deployment.deployment_id, each.deployment.inference_stack, [target.url for target in each.targets])
        for each in configuration.deployments
    ]
    assert shown == [
        ("v1", "v1", ["http://a:1/metrics", "http://b:2/metrics"]),
        ("localhost:8000", "localhost:8000", ["http://localhost:8000/metrics"]),
        ("c:443", "c:443", ["https://c/metrics"]),
    ]


@pytest.mark.parametrize("argument", ["", "a b", "v1=", "v1=ftp://x", "v1=http://x:99999/"])
def test_wrong_targets_of_the_command_line_are_refused(argument: str) -> None:
    """An argument that is no [NAME=]URL is a usage error."""
    with pytest.raises(UsageError, match="target"):
        configure_targets([argument])


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("15s", 15_000), ("500ms", 500), ("1h30m", 5_400_000), ("7d", 604_800_000), ("2w", 1_209_600_000)]
)  # fmt: skip
def test_durations_are_prometheus_durations(text: str, milliseconds: int) -> None:
    """Durations are read as Prometheus reads them."""
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "15", "s", "1.5s", "-1s", "5 m", "5m "])
def test_other_texts_are_no_durations(text: str) -> None:
    """A duration has whole numbers, each with a unit."""
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(300_000, "5m"), (90_000, "90s"), (1500, "1500ms"), (86_400_000, "1d")]
)
def test_window_label_is_the_shortest_single_unit(milliseconds: int, text: str) -> None:
    """The `window` label of five minutes is 5m."""
    assert format_duration(milliseconds) == text
    assert parse_duration(text) == milliseconds


def test_urls_get_a_path_and_show_their_host_and_port() -> None:
    """A URL without a path means /metrics; the replica is named after host and port."""
    assert check_url("http://a") == "http://a/metrics"
    assert check_url("http://a:1/x?y=1") == "http://a:1/x?y=1"
    assert check_url("http://[::1]:80?y=1") == "http://[::1]:80/metrics?y=1"
    assert host_and_port("https://a/metrics") == "a:443"
    assert host_and_port("http://[::1]/metrics") == "[::1]:80"
    assert host_and_port("http://a:8000/metrics") == "a:8000"
    assert parse_address("[::1]:80") == ("::1", 80)


def test_reference_lists_every_key_with_its_default() -> None:
    """The docs have one row per key in the section of its table, with the default the code has."""
    docs = Path(__file__).parent.parent.parent / "docs"
    text = "".join((docs / name).read_text(encoding="utf-8") for name in ("collector.md", "discovery.md"))
    shared = {*SCRAPE_SETTINGS, *ACCESS_SETTINGS}
    sections = {"Scraping keys": SCRAPE_SETTINGS, "Access keys": ACCESS_SETTINGS}
    for table, settings in SETTINGS.items():
        single = ("collector", "api", "alerting", "deployments.claims")
        heading = f"`[{table}]`" if table in single else f"`[[{table}]]`"
        sections[heading] = tuple(each for each in settings if table == "api" or each not in shared)
    for heading, settings in sections.items():
        found = re.findall(rf"^### {re.escape(heading)}\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
        assert found, f"no heading ### {heading} in docs/collector.md or docs/discovery.md"
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", "".join(found), re.MULTILINE)
        documented = [(key, default.strip("`")) for key, default in rows]
        assert documented == [(key, default or "none") for key, default in settings], heading
