"""Secrets in a configuration: none is shown, whatever it is and wherever it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from servescope.migration.document.document import DocumentError, read_document
from servescope.migration.document.json_document import read_json
from servescope.migration.document.nodes import make_tree
from servescope.migration.fields.masking import (
    MASK,
    find_secrets,
    hash_configuration,
    mask_document,
    mask_error,
    mask_values,
)
from servescope.migration.masked_report import mask_report
from servescope.migration.translation.translation import translate
from tests.migration.oracle.cases import make_cases
from tests.support.drawing import examples
from tests.support.migrations import report_of

# What a generator of passwords and tokens makes, with what has a meaning in YAML.
SECRETS = st.one_of(
    st.text("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", min_size=10, max_size=40),
    st.text("abcXYZ0189!#%&*@:'\"[]{},-_+/=\\ äß🔑", min_size=10, max_size=30).map(str.strip),
    st.integers(10**9, 10**15),
).filter(lambda secret: len(str(secret)) >= 10)
TOKENS = st.builds(
    str.__add__,
    st.sampled_from(("hf_", "sk-proj-", "ghp_", "glpat-", "AKIA", "xoxb-")),
    st.text("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", min_size=20, max_size=40),
)
NAMES = ("HF_TOKEN", "api_key", "DB_PASSWORD", "awsSecretAccessKey", "Authorization", "WANDB_KEY", "credentials")
STYLES: tuple[dict[str, Any], ...] = (
    {}, {"default_flow_style": True}, {"default_style": '"'}, {"default_style": "'"}, {"default_style": "|"},
    {"width": 20}, {"allow_unicode": True},
)  # fmt: skip


def show(config: object, style: dict[str, Any]) -> str:
    """All that a page could show of a configuration: the masked text, what is read from it, its translation."""
    document = mask_document(read_document(yaml.safe_dump(config, **style), "pasted"))
    found = translate(document)
    return f"{document.text}\n{document.value}\n{found.findings}\n{found.changes}\n{found.text}"


def spellings(secret: object) -> set[str]:
    """How a secret may be written, each by a part that is long enough to be one."""
    text = str(secret)
    return {text, repr(text)[1:-1], text.replace("'", "''"), yaml.safe_dump(text, width=10**6).splitlines()[0]}


@settings(max_examples=examples(60), deadline=None)
@given(SECRETS, st.sampled_from(NAMES), st.sampled_from(STYLES))
def test_no_secret_that_is_named_as_one_is_shown(secret: object, name: str, style: dict[str, Any]) -> None:
    """In `secrets`, in the environment, below any other key, in every style of YAML; the rest is."""
    config = {
        "model_name": "mine",
        "secrets": {"a": secret},
        "environment_variables": {name: secret},
        "model_metadata": {name: {"x": [secret]}},
        "trt_llm": {"build": {"checkpoint_repository": {"source": "HF", "repo": "a/b"}}},
    }
    shown = show(config, style)

    assert not [each for each in spellings(secret) if each in shown]
    assert "checkpoint_repository" in shown


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(TOKENS, st.sampled_from(STYLES))
def test_no_token_of_a_known_form_is_shown_wherever_it_is(token: str, style: dict[str, Any]) -> None:
    """As a name, within a command, in a URL, in a text of its own."""
    config = {
        "description": f"use {token}, please",
        "build_commands": [f"curl -H 'Authorization: Bearer {token}' x", f"login --token {token}"],
        "requirements": [f"--extra-index-url https://me:{token}@host/simple", f"git+https://{token}@host/x.git"],
        "external_data": [{"url": f"https://h/x?sig={token}", "local_data_path": "x"}],
        "environment_variables": {"ANY": token, token: "1"},
        "trt_llm": {"build": {"checkpoint_repository": {"source": "HF", "repo": "a/b", "runtime_secret_name": token}}},
    }

    assert token not in show(config, style)


@settings(max_examples=examples(60), deadline=None)
@given(st.text("abcdefXYZ0123456789.~+!$-", min_size=10, max_size=30))
def test_no_password_of_a_url_or_a_command_is_shown(secret: str) -> None:
    """Also where only the words around it say what it is, in comments as well."""
    text = (
        f"# password: {secret}\nmodel_name: x # api_key={secret}\n"
        f"build_commands:\n- export HF_TOKEN={secret}\n- x --password {secret}\n- wget https://u:{secret}@h/p\n"
        f"environment_variables:\n  DATABASE: postgres://u:{secret}@h/db\n"
    )

    assert secret not in mask_document(read_document(text, "pasted")).text


ASSIGNED = (
    """echo '{{"password": "{}"}}' > x""", r'x "{{\"api_key\": \"{}\"}}"', "x = {{'token': ['{}']}}",
    "export DB_PASS={}", "DATABASE_DSN={}", "SECRET_KEY_BASE={}", "//npm.example.com/:_authToken={}",
    "AccountKey={};EndpointSuffix=core", "curl -H 'Authorization: {}' h", "curl -H 'Cookie: a=b; sid={}' h",
    "curl --cookie sid={} h", "<password>{}</password>", "password => {}", "machine h login me password {}",
    "aws configure set aws_secret_access_key {}", "ENV HF_TOKEN {}", "curl -ume:{} h", "curl --proxy-user me:{} h",
    "sshpass -p {} ssh h", "docker login -u me -p {} h", "mysql -uroot -p{} db", "redis-cli -h x -a {} ping",
    "openssl enc -pass pass:{} -in x", "curl https://hooks.slack.com/services/T0/B0/{}",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\n{}\n-----END PGP PRIVATE KEY BLOCK-----",
)  # fmt: skip


@pytest.mark.parametrize("command", ASSIGNED)
def test_what_a_command_assigns_to_a_name_is_not_shown(command: str) -> None:
    """In JSON within it, under each name that hides a key of the file, and to options that are called by a letter."""
    text = yaml.safe_dump({"build_commands": [command.format("Wq3.x7/Lk9+a=")]})
    comment = "".join(f"# {line}\n" for line in command.format("Wq3.x7/Lk9+a=").splitlines())

    assert "7/Lk" not in mask_document(read_document(text, "pasted")).text
    assert "7/Lk" not in mask_document(read_document(f"{comment}model_name: x\n", "pasted")).text
    removed = comment.replace("# ", "    # ")
    text = f"trt_llm:\n  build:\n{removed}    max_beam_width: 1\n    checkpoint_repository: {{source: HF, repo: a/b}}\n"
    shown = mask_report(report_of(text)).translation
    assert shown is not None
    assert "7/Lk" not in f"{shown.changes}{shown.document.text}{shown.new}"


@pytest.mark.parametrize(
    "command",
    ["mkdir -p /app/x", "pip install -U git+https://host/x", "docker login --password-stdin reg", "max_tokens=512",
     "serve --eos-token-id 2 --token-file /run/x", "tokenizer: meta/llama", "git clone https://host/a.git",
     "python -m keyring", "set-tokens 5"],
)  # fmt: skip
def test_a_harmless_command_is_shown(command: str) -> None:
    """Options and names that only look like those of secrets."""
    text = f"build_commands:\n- {command}\n" if ": " not in command else f"# {command}\na: 1\n"

    assert mask_document(read_document(text, "pasted")).text == text


@pytest.mark.slow
@pytest.mark.parametrize("part", ["https://", "https://a@", "https://?", "login ", 'key "', "-u a"])
def test_masking_takes_no_longer_than_the_text(part: str) -> None:
    """A page masks whatever somebody pastes: in time that grows with the square, this would take many minutes."""
    text = part * 100_000

    assert len(mask_values({"build_commands": [text]})["build_commands"][0]) <= len(text)


@settings(max_examples=examples(40), deadline=None)
@given(SECRETS)
def test_an_error_of_reading_quotes_nothing(secret: object) -> None:
    """A file that is no YAML is not shown, and its error only says where it is broken."""
    text = f"secrets:\n  a: !!int '{secret}'\n  {secret!r}: 1\n  {secret!r}: 2\n"
    try:
        read_document(text, "pasted")
    except DocumentError as error:
        shown = mask_error(error)
        assert str(secret) not in shown
        assert shown.startswith("pasted:")
    else:
        assume(False)


@pytest.mark.slow
def test_what_is_masked_changes_nothing_of_the_answer() -> None:
    """The configurations that are compared with the vendor's tool: the same findings, changes and questions."""
    for name, text in make_cases().items():
        try:
            document = read_document(text, name)
        except DocumentError:
            continue
        answers = [
            (
                [(each.path, each.severity) for each in found.findings],
                [each.before for each in found.changes],
                [each.flag for each in found.questions],
            )
            for found in (translate(document), translate(mask_document(document)))
        ]
        assert answers[0] == answers[1], name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *(
            (piece * 60_000, piece * 60_000)
            for piece in (
                "7", "_", "-", "1-", "token-", "pwd", "--token", "key ", " -u", "://", "://a:", "eyJ.", "-----BEGIN A",
            )
        ),
        ("eyJ-" * 60_000, MASK),
        (f"{'://a:' * 60_000}@b", f"://{MASK}@b"),
        (f"{'7' * 60_000}_password=hunter2", f"{'7' * 60_000}_password={MASK}"),
        ("http://a/?b" * 60_000, f"http://a/?{MASK}"),
        ("x--my-token is hunter2", f"x--my-token is {MASK}"),
    ],
    ids=lambda text: text[:8],
)  # fmt: skip
def test_a_text_is_read_once(text: str, shown: str) -> None:
    """Whatever run of characters is in it: a pasted one that is read again from each of its characters takes hours."""
    # Of JSON, as PyYAML takes as long to read a text as all of this.
    document = read_json(json.dumps({"a": text}), "pasted.json")

    assert mask_document(document).value == {"a": shown}


@pytest.mark.parametrize(
    ("command", "is_found"),
    [
        ("proxy --api-key /secrets/api_key --target x", False),  # where the platform mounts it
        ("export API_KEY=$(cat /secrets/api_key | tr -d x) && run", False),
        ("curl https://example.com/encodings/p50k_base.tiktoken -o /opt/x", False),
        ("run --api_key abcdef123 --port 80", True),
        ("cat /secrets/api_key; run --api-key=abcdef123", True),
        ("curl https://example.com/api_key=abcdef123", True),
    ],
)
def test_the_file_of_a_secret_is_none(command: str, is_found: bool) -> None:
    """Nor is the word behind it."""
    assert bool(list(find_secrets(make_tree({"docker_server": {"start_command": command}})))) == is_found


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["--token", "token='$ ", '--api-key "$', "key=<", "a='", "://a:"])
def test_a_command_is_read_once(piece: str) -> None:
    """In search of a secret as well; what is assigned from elsewhere is none."""
    assert list(find_secrets(make_tree({"build_commands": [piece * 60_000]}))) == []


def test_what_is_harmless_is_shown() -> None:
    """Numbers, switches, paths and words of the environment, and names of secrets."""
    text = (
        "secrets: {hf_access_token: null}\n"
        "environment_variables: {LEVEL: info, N: 5, ON: true, HOME: /app/x, V: 12.4.1, KEY_FILE: /run/key}\n"
        "weights: [{source: hf://a/b@main, mount_location: /x, auth_secret_name: hf_access_token}]\n"
        "base_image: {docker_auth: {auth_method: REGISTRY_SECRET, secret_name: docker}}\n"
        "trt_llm: {build: {speculator: {num_draft_tokens: 4}}, runtime: {total_token_limit: 5}}\n"
        "autoscaling_settings: {target_in_flight_tokens: 80000}\neos_token_id: 2\n"
    )

    assert mask_document(read_document(text, "pasted")).text == text


def test_a_user_with_a_password_is_not_shown() -> None:
    """A pair looks like a host with its port, which is."""
    variables = {"LOGIN": "admin:hunter2x", "AT": "redis-0:6379", "TAG": "vllm:0.32.0"}

    assert mask_values({"environment_variables": variables}) == {"environment_variables": variables | {"LOGIN": MASK}}


def test_the_hash_is_of_what_a_configuration_says() -> None:
    """Not of its layout, its comments or its secrets."""
    one = read_document("a: 1 # why\nsecrets: {x: first-secret}\nb: [true, null]\n", "one")
    same = read_document('{"b": [true, null], "secrets": {"x": "another-one"}, "a": 1}', "same")
    other = read_document("a: 2\nsecrets: {x: first-secret}\nb: [true, null]\n", "other")

    assert (
        hash_configuration(one.value) == hash_configuration(same.value) == hash_configuration(mask_document(one).value)
    )
    assert hash_configuration(other.value) != hash_configuration(one.value)
    assert len(hash_configuration(one.value)) == 64


def test_what_repeats_a_secret_is_masked_as_well() -> None:
    """By an alias, or written out again in a comment."""
    text = "environment_variables:\n  A_TOKEN: &t hunter2hunter2\n  B: *t\n# it was hunter2hunter2 before\n"
    shown = mask_document(read_document(text, "pasted"))

    assert "hunter2" not in f"{shown.text}{shown.value}"
    assert shown.value["environment_variables"] == {"A_TOKEN": MASK, "B": MASK}
