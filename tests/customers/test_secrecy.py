"""Files with secrets: those that others may read or write are reported, and used all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from servescope.customers.config import read_policies
from servescope.customers.policy.secrecy import files_of, secrets_of
from servescope.customers.running import read_startable
from tests.support.customers_config import write_customers

SECRETS = ("acme.key", "acme.token", "datadog.key")


@pytest.mark.parametrize(("mode", "is_reported"), [(0o600, False), (0o640, False), (0o644, True), (0o660, True)])
def test_a_secret_that_others_may_read_or_write_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, is_reported: bool
) -> None:
    """Each by its name and mode, never by its content; a group may read it, as in Kubernetes."""
    path = write_customers(tmp_path)
    for name in SECRETS:
        (tmp_path / name).chmod(mode)
    policies, _ = read_startable(path)

    assert [policy.name for policy in policies] == ["acme", "globex"]
    for name in SECRETS:
        assert (f"customer acme: {tmp_path / name} has mode {mode:04o}" in caplog.text) == is_reported
        assert (tmp_path / name).read_text() not in caplog.text


def test_every_secret_of_a_customer_is_known(tmp_path: Path) -> None:
    """Its key, its token and those of its destinations."""
    acme, globex = read_policies(write_customers(tmp_path))
    assert {path.name for path in secrets_of(acme)} == {path.name for path in files_of(acme)} == set(SECRETS)
    assert files_of(globex) == set()
