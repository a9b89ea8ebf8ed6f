"""The configuration of customers: what it means, and how wrong ones are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servescope.contract.identity import Deployment
from servescope.customers.config import CUSTOMERS_SETTINGS, read_policies
from servescope.customers.policy.policy import HashKey, Pull
from servescope.customers.policy.presets import PRESETS
from servescope.customers.running import read_startable
from servescope.errors import ConfigurationError
from servescope.settings.access import ACCESS_SETTINGS
from tests.support.customers_config import COLLECTOR, CUSTOMERS, write_customers


def test_a_policy_has_what_is_listed_and_nothing_else(tmp_path: Path) -> None:
    """Groups are resolved, a deployment is theirs in every phase of a rollout, paths are relative to the file."""
    acme, globex = read_policies(write_customers(tmp_path))

    assert acme.deployments == {
        Deployment("llama", "chat", "v2", "prod", phase) for phase in ("", "promoting", "stable")
    }
    assert "time_to_first_token_seconds" in acme.metrics
    assert "kv_cache_eligible_tokens_total" in acme.metrics
    assert "kv_cache_reused_tokens_total" not in acme.metrics
    assert "speculation_rate" not in acme.metrics  # a ratio of one process, which is not collected
    assert "time_to_first_token_p95" in acme.figures
    assert acme.key == HashKey(str(tmp_path / "acme.key"))
    assert acme.pull == Pull(str(tmp_path / "acme.token"))
    assert (globex.metrics, globex.figures, globex.labels) == (("requests_total",), (), ())


def test_a_deployment_may_have_been_the_customers_before(tmp_path: Path) -> None:
    """From the time that its table has, in every phase of a rollout; without one the policy says nothing of it."""
    acme, globex = read_policies(
        write_customers(tmp_path, CUSTOMERS.replace(_SEARCH, f'{_SEARCH}since = "2026-11-20T14:00:00Z"\n'))
    )
    assert acme.since_ms == {}
    assert globex.since_ms == {Deployment("llama", "search", "v2").group: 1_795_183_200_000}


def test_a_preset_has_protocol_temporality_and_headers(tmp_path: Path) -> None:
    """What the table says itself wins; without a preset points are cumulative."""
    acme, globex = read_policies(write_customers(tmp_path))
    (datadog,), (plain,) = acme.push, globex.push

    assert (datadog.protocol, datadog.temporality, datadog.name) == ("otlp-http", "delta", "push")
    assert datadog.access.request_headers() == {
        "dd-otel-metric-config": '{"resource_attributes_as_tags": true}', "dd-api-key": "0123456789abcdef",
    }  # fmt: skip
    assert (plain.protocol, plain.temporality, plain.url) == (
        "otlp-http",
        "cumulative",
        "http://127.0.0.1:4318/v1/metrics",
    )


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_used_as_its_address_is_shown(tmp_path: Path, name: str) -> None:
    """With the header it needs."""
    preset = PRESETS[name]
    needs = f'headers_from_file = {{ {preset.needs} = "datadog.key" }}' if preset.needs else ""
    text = CUSTOMERS.replace(
        'protocol = "otlp-http"\nurl = "http://127.0.0.1:4318"', f'preset = "{name}"\nurl = "{preset.url}"\n{needs}'
    )
    _, globex = read_policies(write_customers(tmp_path, text))

    assert (globex.push[0].protocol, globex.push[0].temporality) == (preset.protocol, preset.temporality)
    assert globex.push[0].url == preset.url


_SEARCH = 'deployment_id = "search"\nmodel_name = "llama"\ninference_stack = "v2"\n'
_CHAT = _SEARCH.replace("search", "chat") + 'environment = "prod"\n'

WRONG = {
    "nothing": ('metrics = ["requests_total"]', "", r"customers\[1\]: customer 'globex' is to receive nothing"),
    "metric": ('"requests_total"', '"request_total"',
               r"customers\[1\]\.metrics: unknown metric 'request_total'; did you mean 'req"),
    "figure as metric": ('"requests_total"', '"request_rate"', r"'request_rate' is no metric; list it under figures"),
    "metric as figure": ('"latency"', '"requests_total"',
                         r"figures: 'requests_total' is no figure; list it under metrics"),
    "process ratio": ('"requests_total"', '"kv_cache_hit_rate"', r"is a ratio of one process.*list it under figures"),
    "ratio": ('"requests_total"', '"kv_cache_usage"',
              r"'kv_cache_usage' is a ratio, .*list 'kv_cache_usage' under figures"),
    "repeated": ('"latency"', '"concurrent_requests"', r"figure 'concurrent_requests' has the name of a metric"),
    "label": ('"outcome"', '"engine"', r"customers\[0\]\.labels: .*'engine' is none"),
    "renamed label": ("renames = { deployment_id", "renames = { environment", r"renames\.environment: is not exported"),
    "rename": ('"service"', '"__name__"', r"renames\.deployment_id: '__name__' is wrong"),
    "dots": ('"service"', '"service.name"', r"renames\.deployment_id: 'service.name' is wrong, expected a name"),
    "service": (
        'metrics = ["requests_total"]',
        'metrics = ["requests_total"]\nlabels = ["model_name"]\nrenames = { model_name = "service.name" }',
        r"customers\[1\]\.renames\.model_name: 'service.name' is wrong, expected a name that OTLP .* no other use for",
    ),
    "escaped service": (
        'metrics = ["requests_total"]',
        'metrics = ["requests_total"]\nlabels = ["deployment_id"]\nrenames = { deployment_id = "service_name" }',
        r"renames\.deployment_id: 'service_name' is wrong",
    ),
    "scope": ('metrics = ["requests_total"]',
              'metrics = ["requests_total"]\nlabels = ["outcome"]\nrenames = { outcome = "scope.name" }',
              r"renames\.outcome: 'scope.name' is wrong"),
    "two signs": ('metrics = ["requests_total"]',
                  'metrics = ["requests_total"]\nlabels = ["outcome"]\nrenames = { outcome = "a._b" }',
                  r"renames\.outcome: 'a._b' is wrong, expected .*no two signs in a row"),
    "one escaped name": (
        'metrics = ["requests_total"]',
        'metrics = ["requests_total"]\nlabels = ["outcome", "model_name"]\n'
        'renames = { outcome = "a.b", model_name = "a_b" }',
        r"renames: 'outcome' and 'model_name' are both called",
    ),
    "names of remote write": ('protocol = "otlp-http"', 'protocol = "remote-write"\nstores_names_as = "prometheus"',
                              r"push\[0\]\.stores_names_as: 'prometheus' is wrong, expected no such key"),
    "names of another backend": ('preset = "datadog"', 'preset = "datadog"\nstores_names_as = "prometheus"',
                                 r'stores_names_as: .*"other": Datadog answers no PromQL'),
    "one name": ('"service"', '"pod"', r"renames: 'deployment_id' and 'replica' are both called 'pod'"),
    "key": ("[customers.pull]", "[customers.pul]", r"unknown key 'customers\[0\]\.pul'; did you mean 'pull'"),
    "same name": ('"globex"', '"acme"', r"customers\[1\]\.name: 'acme' is wrong"),
    "unknown deployment": ('deployment_id = "search"', 'deployment_id = "Search"',
                           r"deployment_id='Search'.* is not under .* of .*servescope\.toml"),
    "since": (_SEARCH, f'{_SEARCH}since = "yesterday"\n',
              r"deployments\[0\]\.since: 'yesterday' is wrong, expected a time"),
    "since without quotes": (_SEARCH, f"{_SEARCH}since = 2026-11-20T14:00:00Z\n",
              r"deployments\[0\]\.since: 2026-.* is wrong, expected a time in quotes"),
    "loose deployment": ('deployment_id = "search"', 'deployment_id = "loose"',
                         r"deployment_id='loose'.*set fixed_labels = true"),
    "no key": ('replica_key_file = "acme.key"\n', "", r"'replica_key_file' is missing"),
    "short key": ('replica_key_file = "acme.key"', 'replica_key_file = "acme.token"',
                  r"replica_key_file: key file '.*acme\.token' has a key of fewer"),
    "unneeded key": ('name = "globex"', 'name = "globex"\nreplica_key_file = "globex.key"',
                     r"customers\[1\]\.replica_key_file: .*no replica is exported hashed"),
    "replica": ('"outcome", "replica"]', '"outcome"]', r"labels: .*expected 'replica' among them"),
    "unverified": ('preset = "datadog"', 'preset = "datadog"\ntls_insecure_skip_verify = true',
                   r"tls_insecure_skip_verify: True is wrong"),
    "in the clear": ('"https://otlp.datadoghq.com/v1/metrics"', '"http://otlp.datadoghq.com/v1/metrics"',
                     r"push\[0\]\.url: .*in the clear"),
    "password": ('"https://otlp.datadoghq.com/v1/metrics"', '"https://user:hunter2@otlp.datadoghq.com/"',
                 r"push\[0\]\.url: the value carries credentials"),
    "written out in the clear": (
        'url = "http://127.0.0.1:4318"',
        'url = "http://otlp.example"\nheaders = { authorization = "Bearer hunter2" }',
        r"push\[0\]\.url: 'http://otlp\.example' is wrong, expected https://, as header 'authorization' would be",
    ),
    "query in the clear": (
        'url = "http://127.0.0.1:4318"',
        'url = "http://otlp.example/?db=x&api-token=hunter2"',
        r"'http://otlp\.example/\?…' is wrong, expected https://, as parameter 'api-token' would be sent in the clear",
    ),
    "proxy in the clear": (
        'url = "http://127.0.0.1:4318"',
        'url = "http://127.0.0.1:4318"\nproxy_url = "http://proxy.example"\nheaders = { api-key = "hunter2" }',
        r"expected https://, as header 'api-key' would be sent in the clear",
    ),
    "query of no URL": ('url = "http://127.0.0.1:4318"', 'url = "otlp.example/?api-token=hunter2"',
                        r"push\[0\]\.url: 'otlp\.example/\?…' is wrong, expected a URL"),
    "no protocol": ('protocol = "otlp-http"\n', "", r"push\[0\]: 'protocol' is missing"),
    "protocol": ('"otlp-http"', '"otlp"', r"push\[0\]\.protocol: 'otlp' is wrong, expected one of otlp-http"),
    "temporality": ('preset = "datadog"', 'preset = "datadog"\ntemporality = "cumulative"',
                    r'"delta": Datadog takes no other'),
    "delta": ('protocol = "otlp-http"', 'protocol = "remote-write"\ntemporality = "delta"',
              r"remote write has no other"),
    "header": ('headers_from_file = { dd-api-key = "datadog.key" }', "", r"Datadog needs the header 'dd-api-key'"),
    "naming": ('name = "acme"', 'name = "acme"\nnaming = "otel"', r"naming: 'otel' is wrong"),
    "prefix": ('name = "acme"', 'name = "acme"\nprefix = "acme_"', r"prefix: 'acme_' is wrong, expected none"),
    "interval": ('name = "acme"', 'name = "acme"\ninterval = "1s"',
                 r"interval: '1s' is wrong, expected a duration from 10s to 1h"),
    "same deployment": (_SEARCH, _CHAT, r"customers\[1\]\.deployments: .*='chat'.* is a deployment of customer 'acme'"),
    "name of the page": ('protocol = "otlp-http"', 'name = "pull"\nprotocol = "otlp-http"',
                         r"push\[0\]\.name: 'pull' is wrong, .* and not 'pull'"),
    "grpc proxy": ('otlp-http"', 'otlp-grpc"\nproxy_url = "https://proxy.example:3128"',
                   r"proxy_url: .* is wrong, expected an http URL"),
    "grpc path": ('otlp-http"\nurl = "http://127.0.0.1:4318"', 'otlp-grpc"\nurl = "http://127.0.0.1:4317/v1/metrics"',
                  r"a URL without a path"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_configuration_is_refused_with_file_key_and_value(tmp_path: Path, case: str) -> None:
    """And with what was expected."""
    former, text, message = WRONG[case]
    assert former in CUSTOMERS

    with pytest.raises(ConfigurationError, match=message) as error:
        read_policies(write_customers(tmp_path, CUSTOMERS.replace(former, text)))
    assert str(tmp_path / "customers.toml") in str(error.value)
    assert not any(secret in str(error.value) for secret in ("aaaaaa", "acme-token", "0123456789abcdef", "hunter2"))


@pytest.mark.parametrize(
    "header", ["Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "DD-API-KEY", "x-honeycomb-team", "X-Any"]
)
def test_a_header_that_is_written_out_is_a_credential(tmp_path: Path, header: str) -> None:
    """Over plain HTTP it stays on this machine; what is known to be none goes anywhere."""
    there, here = 'url = "http://otlp.example"', 'url = "http://127.0.0.1:4318"'
    sent = f'\nheaders = {{ {header} = "hunter2", X-Scope-OrgID = "acme" }}'
    with pytest.raises(ConfigurationError, match=f"as header '{header}' would be sent in the clear") as refused:
        read_policies(write_customers(tmp_path, CUSTOMERS.replace(here, there + sent)))
    assert "hunter2" not in str(refused.value)

    for text in (here + sent, there + sent.replace(header, "Tenant-ID"), there.replace("http:", "https:") + sent):
        assert len(read_policies(write_customers(tmp_path, CUSTOMERS.replace(here, text)))) == 2


def test_deployments_that_labels_do_not_distinguish_are_refused(tmp_path: Path) -> None:
    """Their series would be mixed."""
    two = f"{_SEARCH}\n[[customers.deployments]]\n{_CHAT}"
    text = CUSTOMERS.partition("[[customers]]")[0] + "[[customers]]" + CUSTOMERS.rpartition("[[customers]]")[2]

    with pytest.raises(
        ConfigurationError, match=r"labels is missing, expected 'deployment_id' or 'environment' .*would be mixed"
    ):
        read_policies(write_customers(tmp_path, text.replace(_SEARCH, two)))
    text = text.replace('name = "globex"', 'name = "globex"\nlabels = ["environment"]')
    assert len(read_policies(write_customers(tmp_path, text.replace(_SEARCH, two)))) == 1


def test_deployments_that_are_one_service_are_refused_where_series_have_nothing_else_of_them(tmp_path: Path) -> None:
    """As in a Prometheus by OTLP; not where the other labels are on series, or each has a service.name of its own."""
    twin = _SEARCH.replace('"v2"', '"v1"')
    two = f"{_SEARCH}\n[[customers.deployments]]\n{twin}"
    labelled = 'name = "globex"\nlabels = ["deployment_id", "inference_stack"]'
    text = CUSTOMERS.replace(_SEARCH, two).replace('name = "globex"', labelled)
    collected = (
        f'{COLLECTOR}\n[[deployments]]\n{twin}fixed_labels = true\ntargets = [{{ url = "http://127.0.0.1:11" }}]'
    )

    def read(changed: str) -> int:
        path = write_customers(tmp_path, changed)
        (tmp_path / "servescope.toml").write_text(collected, encoding="utf-8")
        return len(read_policies(path))

    with pytest.raises(ConfigurationError, match=r"destination 'push': 2 deployments have the service.name 'search'"):
        read(text)
    otlp = 'protocol = "otlp-http"'
    for changed in (
        text.replace(otlp, f'{otlp}\nstores_names_as = "victoriametrics"'),
        text.replace(otlp, f'{otlp}\nstores_names_as = "other"'),
        text.replace(otlp, 'protocol = "remote-write"'),
        text.replace(labelled, 'name = "globex"\nlabels = ["inference_stack"]'),
    ):
        assert read(changed) == 2


@pytest.mark.parametrize("kind", ["key", "token"])
def test_a_secret_that_two_customers_have_is_refused(tmp_path: Path, kind: str) -> None:
    """Whatever its file is called."""
    text = CUSTOMERS.replace(
        'name = "globex"\nmetrics = ["requests_total"]',
        'name = "globex"\nmetrics = ["requests_total"]\nlabels = ["replica"]\nresolution = "replica"\n'
        'replica_key_file = "globex.key"',
    )
    path = write_customers(tmp_path, f'{text}\n[customers.pull]\ntoken_file = "globex.token"\n')
    assert len(read_policies(path)) == 2
    (tmp_path / f"globex.{kind}").write_text((tmp_path / f"acme.{kind}").read_text())

    with pytest.raises(ConfigurationError, match=f"has a {kind} of customer 'acme'"):
        read_policies(path)


def test_one_customers_missing_token_keeps_no_other_from_being_delivered_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out and named in the log, without a secret; `check` refuses the file."""
    path = write_customers(tmp_path)
    (tmp_path / "datadog.key").unlink()

    policies, left_out = read_startable(path)
    assert ([policy.name for policy in policies], left_out) == (["globex"], ("acme",))
    assert "customers[0].push[0]: secret file 'datadog.key' cannot be read" in caplog.text
    with pytest.raises(ConfigurationError, match=r"secret file 'datadog\.key' cannot be read"):
        read_policies(path)


def test_a_customer_that_is_left_out_still_owns_its_deployments(tmp_path: Path) -> None:
    """Nobody else receives them meanwhile; nothing starts when no customer can be used."""
    path = write_customers(tmp_path, CUSTOMERS.replace(_SEARCH, _CHAT))
    (tmp_path / "datadog.key").unlink()
    with pytest.raises(ConfigurationError, match=r"is a deployment of customer '(acme|globex)' as well"):
        read_startable(path)

    path = write_customers(tmp_path, CUSTOMERS.replace('"requests_total"', '"nothing_total"'))
    (tmp_path / "datadog.key").unlink()
    with pytest.raises(ConfigurationError, match=r"datadog\.key"):
        read_startable(path)


def test_the_reference_lists_every_key_with_its_default() -> None:
    """In the section of its table; keys of access have a section of their own in docs/discovery.md."""
    text = (Path(__file__).parents[2] / "docs" / "customers.md").read_text(encoding="utf-8")
    headings = {"": "`customers.toml`", "customers": "`[[customers]]`", "customers.quotas": "`[customers.quotas]`"}
    headings |= {f"customers.{name}": f"`[[customers.{name}]]`" for name in ("deployments", "push")}
    headings["customers.pull"] = "`[customers.pull]`"
    assert headings.keys() == CUSTOMERS_SETTINGS.keys()
    for table, heading in headings.items():
        ((section,),) = [re.findall(rf"^### {re.escape(heading)}\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)]
        rows = re.findall(r"^\| `(\w+)` \| (`.*?`) \|", section, re.MULTILINE)
        expected = [setting for setting in CUSTOMERS_SETTINGS[table] if setting not in ACCESS_SETTINGS]
        assert [(key, default.strip("`")) for key, default in rows] == [
            (key, value or "none") for key, value in expected
        ]


def test_the_reference_lists_every_preset() -> None:
    """With its protocol, its temporality, the header it needs, and whose names it stores of OTLP's."""
    text = (Path(__file__).parents[2] / "docs" / "customers.md").read_text(encoding="utf-8")
    for name, preset in PRESETS.items():
        (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", text, re.MULTILINE)
        protocol, temporality, header, stored = row.split(" | ")
        assert stored.strip("`") == ("–" if protocol == "remote-write" else preset.stores_names_as)
        assert (protocol, temporality.partition(",")[0]) == (preset.protocol, preset.temporality)
        assert preset.only == ("," not in temporality)
        assert header.partition(",")[0].strip("`–") == preset.needs
