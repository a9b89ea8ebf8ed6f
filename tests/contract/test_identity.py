"""What an identity may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from servescope.cli import main
from servescope.contract.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS, MOST_LABEL_BYTES, Identity
from servescope.errors import IdentityError

NAMES = {"model_name": "llama-70b", "deployment_id": "chat-v2", "inference_stack": "v2"}


@pytest.mark.parametrize("label", [label for label in IDENTITY_LABELS if label not in ("role", "rollout_phase")])
@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("a" * (MOST_LABEL_BYTES + 1), f"is '{'a' * 56}... of 1025 bytes, expected at most 1024"),
        ("é" * MOST_LABEL_BYTES, f"is '{'é' * 56}... of 2048 bytes, expected at most 1024"),
        ("a\0b", "is 'a\\x00b', expected text without control characters"),
        ("a\n", "is 'a\\n', expected text without control characters"),
        ("a\x7f", "is 'a\\x7f', expected text without control characters"),
        ("a\x85", "is 'a\\x85', expected text without control characters"),
        ("a\ud800", "is 'a\\ud800', expected text that UTF-8 can hold"),
        (3, "is 3, expected a string"),
        (b"a" * 100_000, f"is b'{'a' * 55}..., expected a string"),
    ],
    ids=["long", "long in bytes", "NUL", "line end", "DEL", "C1", "half a character", "number", "bytes"],
)
def test_a_label_that_no_series_should_carry_is_refused(label: str, value: object, cause: str) -> None:
    """The error names the label and what was expected, and is short."""
    with pytest.raises(IdentityError) as refused:
        Identity(**{**NAMES, label: value})  # type: ignore[arg-type]

    assert str(refused.value) == f"identity label {label!r} {cause}"


def test_a_label_of_the_greatest_length_is_kept() -> None:
    """In any script; quotes, backslashes and spaces are kept too."""
    assert Identity(**{**NAMES, "replica": 'engine "0"\\ a'}).replica == 'engine "0"\\ a'
    assert Identity(**{**NAMES, "replica": "é" * (MOST_LABEL_BYTES // 2)}).replica.endswith("é")


@pytest.mark.parametrize("label", [label for label in DEPLOYMENT_LABELS if label in NAMES])
def test_a_required_label_is_not_empty(label: str) -> None:
    """The error names it."""
    with pytest.raises(IdentityError, match=f"identity label '{label}' is empty, expected a name"):
        Identity(**{**NAMES, label: ""})


def test_a_configuration_with_such_a_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is scraped."""
    file = tmp_path / "servescope.toml"
    file.write_text(
        f"""[[deployments]]
deployment_id = "{"x" * 100_000}"
model_name = "llama-70b"
inference_stack = "v2"
targets = [{{ url = "http://127.0.0.1:1" }}]
"""
    )

    assert main(["collect", "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert "deployments[0]: identity label 'deployment_id' is 'xxx" in error
    assert "xxx... of 100000 bytes, expected at most 1024" in error
    assert len(error) < 1000
