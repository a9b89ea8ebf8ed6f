"""The files that a customer's table names: which of them are secret, and whether others may read those."""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from servescope.customers.policy.policy import Policy

_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP

_logger = logging.getLogger(__name__)


def files_of(policy: Policy) -> set[Path]:
    """All files of a customer: keys, tokens, and the secrets and certificates of its destinations."""
    certificates = {Path(path) for push in policy.push for path in push.access.certificate_files()}
    return secrets_of(policy) | certificates


def secrets_of(policy: Policy) -> set[Path]:
    """Those of them that nobody else may know: what is not, is a certificate."""
    own = [policy.key.path if policy.key else "", policy.pull.token_file if policy.pull else ""]
    accesses = [push.access for push in policy.push]
    named = [path for each in accesses for path in each.secret_files()]
    keys = [Path(each.directory) / each.tls.key_file for each in accesses if each.tls.key_file]
    return {*(Path(path) for path in (*own, *named) if path), *keys}


def warn_of_loose_files(policies: Iterable[Policy]) -> None:
    """Log each secret file that any user of this machine may read, or that another one may write.

    It is used all the same: in containers secrets are often mounted so, where nobody else is.
    """
    for policy in policies:
        for path in sorted(secrets_of(policy)):
            try:
                mode = stat.S_IMODE(path.stat().st_mode)
            except OSError:
                continue  # it is reported where it is read
            if mode & _OTHERS:
                _logger.warning(
                    "customer %s: %s has mode %04o, so that other users of this machine can read or write it; "
                    "`chmod g-w,o= %s` keeps it from them", policy.name, path, mode, path,
                )  # fmt: skip
