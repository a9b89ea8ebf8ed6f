"""`servescope migrate` prints no secret of a file, in no format and on no error, unless it is asked to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.migration.fields.masking import MASK
from tests.support.commands import Done, run
from tests.support.drawing import examples

TOKEN, SIGNATURE, PASSWORD = "hf_abcdefghijklmnopqrstuvwxyz0123", "0123456789abcdef0123", "hunter2/hunter2"
MOVED = f"""\
model_name: mine
description: the one that used {PASSWORD}
environment_variables:
  ANY: {TOKEN}
  DB_PASSWORD: {PASSWORD}
  PGPASSWORD: zaq1zaq1
  PIN_SECRET: 123456789
secrets: {{db: {PASSWORD}-of-old}}
external_data:
- {{url: "https://bucket.example/x?X-Amz-Signature={SIGNATURE}", local_data_path: x}}
build_commands:
- curl -u joe:{PASSWORD} https://joe:{PASSWORD}@host/x
trt_llm:
  build:
    # the former token: {TOKEN}, the password was {PASSWORD}
    base_model: decoder
    checkpoint_repository: {{source: REMOTE_URL, repo: "https://host/x?sig={SIGNATURE}"}}  # key={SIGNATURE}
    max_num_tokens: 8192
    speculator:
      # api_key: {SIGNATURE}
      speculative_decoding_mode: LOOKAHEAD_DECODING
      lookahead_windows_size: 7
      lookahead_ngram_size: 5
      lookahead_verification_set_size: 3
  runtime:
    request_default_max_tokens: 100 # password={PASSWORD}
"""
ASKED = MOVED.replace("8192", "200000")
STAYS = MOVED.replace("base_model: decoder", f"base_model: encoder\n    # token={TOKEN}")
WRONG = MOVED.replace("model_name: mine", f"model_name: [{TOKEN}]\nfoo: {TOKEN}").replace("8192", "1")
WRONG_VALUES = MOVED.replace("PIN_SECRET: 123456789", f"A_TOKEN: [{PASSWORD}]").replace("REMOTE_URL", "HF")
BACK = f"""\
environment_variables: {{A: {TOKEN}}}
trt_llm:
  inference_stack: v2
  build: {{checkpoint_repository: {{source: HF, repo: a/b}}}}
  runtime: {{patch_kwargs: {{hub_token: {PASSWORD}, url: "https://a:{PASSWORD}@h/x"}}}}
"""
BROKEN = (
    f"secrets: {{a: *{PASSWORD}}}\n", f"secrets: {{a: !{PASSWORD} x}}\n", f"? '{PASSWORD}'\n: 1\n? '{PASSWORD}'\n: 2\n",
    f"a: &x {PASSWORD}\nb: &{PASSWORD} 1\nc: &{PASSWORD} 1\n", f"secrets:\n  a: !!int '{PASSWORD}'\n",
    f"secrets: [{PASSWORD}\nb: {TOKEN}]]\n",
)  # fmt: skip
SECRETS = (TOKEN, SIGNATURE, PASSWORD, "zaq1zaq1", "123456789")


def outputs(*words: str) -> Iterator[Done]:
    """What the command prints in every format."""
    for chosen in ("text", "diff", "json"):
        yield run("migrate", *words, "--format", chosen)


def shown_of(done: Done) -> list[str]:
    """The secrets that can be read in what was printed."""
    text = f"{done.stdout}{done.stderr}"
    return [each for each in SECRETS if each in text or json.dumps(each)[1:-1] in text]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


@pytest.mark.parametrize("words", [(), ("--check",), ("--strict", "--check")])
@pytest.mark.parametrize(
    "text", [MOVED, ASKED, STAYS, WRONG, WRONG_VALUES], ids=["moved", "asked", "stays", "wrong", "values"]
)
def test_no_format_prints_a_secret(config: Path, text: str, words: tuple[str, ...]) -> None:
    """Of context lines, removed comments, signed URLs, values, names and errors; the answer is the same as without."""
    config.write_text(text, encoding="utf-8")
    for masked, unmasked in zip(
        outputs(str(config), *words), outputs(str(config), *words, "--show-secrets"), strict=True
    ):
        assert not shown_of(masked), masked
        assert masked.returncode == unmasked.returncode
        assert len(masked.stdout.splitlines()) == len(unmasked.stdout.splitlines())


def test_what_is_asked_for_is_printed(config: Path) -> None:
    """With the option the diff has every line as it is, and can be applied; without it, it says that it cannot."""
    config.write_text(MOVED, encoding="utf-8")
    masked, unmasked = run("migrate", str(config)), run("migrate", str(config), "--show-secrets")

    assert f"removed with it, line 15: # the former token: {MASK} the password was {MASK}" in masked.stdout
    assert f"removed with it, line 15: # the former token: {TOKEN}, the password was {PASSWORD}" in unmasked.stdout
    assert masked.stderr == (
        f"servescope: secrets are masked ({MASK}), so that not every diff can be applied: see --show-secrets\n"
    )
    assert unmasked.stderr == ""


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("name", ["config.yaml", "config.json"])
def test_an_error_of_reading_prints_nothing_of_the_file(tmp_path: Path, name: str, text: str) -> None:
    """Its place is enough: what is quoted may be a secret."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    for done in outputs(str(tmp_path / name)):
        assert done.returncode == 2
        assert not shown_of(done), done
    for words in (("--llm-config",), ("--pipeline",)):
        done = run("migrate", str(tmp_path / "x.yaml"), *words, str(tmp_path / name))
        assert done.returncode == 2
        assert not shown_of(done), done


def test_no_secret_of_other_files_is_printed(tmp_path: Path, config: Path) -> None:
    """Of the Management API's body, wrong or right, and of the backend server's JSON with its pipeline."""
    config.write_text(MOVED, encoding="utf-8")
    body, wrong = tmp_path / "body.json", tmp_path / "wrong.json"
    body.write_text(json.dumps({"llm_config": {}, "name": "x", "model_metadata": {"api_token": PASSWORD}}))
    wrong.write_text(json.dumps({"llm_config": {"speculative_config": {"decoding_type": f"https://a:{PASSWORD}@h"}}}))
    for words in ((str(config), "--llm-config", str(body)), (str(body),), (str(wrong),)):
        for done in outputs(*words):
            assert not shown_of(done), done
    assert PASSWORD in run("migrate", str(config), "--llm-config", str(body), "--show-secrets").stdout
    assert not shown_of(run("migrate", str(config), "--llm-config", str(wrong)))

    backend, pipeline = tmp_path / "optimization.json", tmp_path / "pipeline.json"
    backend.write_text(json.dumps({
        "backend": {"type": "v4", "extra_params": {"api_key": PASSWORD}}, "optimisations": {},
        "model": f"https://a:{PASSWORD}@h/x?sig={SIGNATURE}",
    }))  # fmt: skip
    pipeline.write_text(json.dumps({"mode": f"https://a:{PASSWORD}@h", "lora_repo": {"secret": {"type": PASSWORD}}}))
    for words in ((str(backend),), (str(pipeline),), (str(backend), "--pipeline", str(pipeline))):
        for done in outputs(*words):
            assert not shown_of(done), done


def test_the_way_back_prints_no_secret(config: Path) -> None:
    """What has no place in v1 is reported with its value, masked."""
    config.write_text(BACK, encoding="utf-8")
    for done in outputs(str(config), "--back"):
        assert not shown_of(done), done
    changes = json.loads(run("migrate", str(config), "--back", "--format", "json").stdout)["files"][0]["changes"]
    assert {"hub_token": MASK, "url": f"https://{MASK}@h/x"} in [each["value"] for each in changes]


def test_what_is_written_has_every_secret(config: Path) -> None:
    """Masks are of what is printed: the file, its copy, its hash and what is asked of it are those of the file."""
    config.write_text(MOVED, encoding="utf-8")
    hashes = [
        [json.loads(run("migrate", str(config), "--format", "json", *words).stdout)["files"][0][name]
         for name in ("hash", "new_hash")]
        for words in ((), ("--show-secrets",))
    ]  # fmt: skip
    done = run("migrate", str(config), "--write")

    assert done.returncode == 0
    assert not shown_of(done)
    assert hashes[0] == hashes[1]
    written = yaml.safe_load(config.read_text(encoding="utf-8"))
    before = yaml.safe_load(MOVED)
    assert config.with_name("config.yaml.v1").read_text(encoding="utf-8") == MOVED
    assert {key: written[key] for key in before if key != "trt_llm"} == {
        key: before[key] for key in before if key != "trt_llm"
    }
    assert written["trt_llm"]["build"]["checkpoint_repository"]["repo"].endswith(SIGNATURE)


def test_names_that_are_tokens_are_masked(config: Path) -> None:
    """Also two of them, which are the same in what is shown; the draft of such a file is refused."""
    other = TOKEN.replace("abc", "xyz")
    text = MOVED.replace("base_model: decoder", f"base_model: decoder\n    {TOKEN}: 1\n    {other}: 2")
    config.write_text(text.replace("  ANY:", f"  {TOKEN}: x\n  {other}: y\n  ANY:"), encoding="utf-8")
    for done in outputs(str(config), "--check"):
        assert done.returncode == 1
        assert not shown_of(done)
        assert other not in done.stdout

    drafted = run("migrate", str(config), "--plan", str(config.with_name("plan.toml")))
    assert drafted.returncode == 2
    assert "cannot be shown with its secrets masked" in drafted.stderr
    assert not shown_of(drafted)


NAMES = ("HF_TOKEN", "api_key", "DB_PASSWORD", "awsSecretAccessKey", "PGPASSWORD", "credentials")
STYLES: tuple[dict[str, object], ...] = ({}, {"default_flow_style": True}, {"default_style": '"'}, {"width": 20})


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(
    st.text("abcXYZ0189!#%&*@:'\"[]{},-_+/=\\ äß🔑", min_size=10, max_size=90).map(str.strip)
    .filter(lambda each: len(each) > 9 and sum(map(str.isalnum, each)) > 5),
    st.sampled_from(NAMES), st.sampled_from(STYLES), st.sampled_from(("text", "diff", "json")),
)  # fmt: skip
def test_no_generated_secret_is_printed(
    tmp_path_factory: pytest.TempPathFactory, secret: str, name: str, style: dict[str, object], chosen: str
) -> None:
    """Wherever a key is called like one, in every style of YAML, and where the file is wrong."""
    config = yaml.safe_load(MOVED)
    config["environment_variables"][name] = config["secrets"][name] = secret
    config["model_metadata"] = {name: {"x": [secret]}, "tags": [secret] if len(secret) % 2 else []}
    config["trt_llm"]["runtime"][name] = secret
    path = tmp_path_factory.getbasetemp() / "generated.yaml"
    path.write_text(yaml.safe_dump(config, **style), encoding="utf-8")  # type: ignore[call-overload]
    done = run("migrate", str(path), "--format", chosen)

    printed = f"{done.stdout}{done.stderr}"
    spelled = {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1],
               yaml.safe_dump(secret, width=10**6).splitlines()[0]}  # fmt: skip
    assert not [each for each in spelled if each in printed], printed
