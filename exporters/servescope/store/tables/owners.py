"""The owners of rows: deployments, and targets with their latest status."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from servescope.contract.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS, Deployment, Identity
from servescope.store.records import RefusedError, StoreError, TargetStatus
from servescope.store.schema import FIGURES, INCREMENTS, LAST_OWNER, SCRAPES, TIME_BITS, decode, digest, write_text

_DELETE_UNUSED_TARGETS = f"""
DELETE FROM targets WHERE NOT listed
AND NOT EXISTS (SELECT 1 FROM runs WHERE kind IN ({SCRAPES}, {INCREMENTS}) AND owner = targets.id)
AND NOT EXISTS (
    SELECT 1 FROM recent_scrapes
    WHERE recent_scrapes.id BETWEEN targets.id << {TIME_BITS} AND ((targets.id + 1) << {TIME_BITS}) - 1
)
AND NOT EXISTS (
    SELECT 1 FROM recent_increments
    WHERE recent_increments.id BETWEEN targets.id << {TIME_BITS} AND ((targets.id + 1) << {TIME_BITS}) - 1
)
"""  # noqa: S608  constants
_DELETE_UNUSED_DEPLOYMENTS = f"""
DELETE FROM deployments WHERE NOT EXISTS (SELECT 1 FROM targets WHERE deployment = deployments.id)
AND NOT EXISTS (SELECT 1 FROM runs WHERE kind = {FIGURES} AND owner = deployments.id)
AND NOT EXISTS (
    SELECT 1 FROM recent_figures
    WHERE recent_figures.id BETWEEN deployments.id << {TIME_BITS} AND ((deployments.id + 1) << {TIME_BITS}) - 1
)
"""  # noqa: S608  constants
_DELETE_UNUSED = (
    _DELETE_UNUSED_TARGETS,
    "DELETE FROM statuses WHERE target NOT IN (SELECT id FROM targets)",
    "DELETE FROM coverages WHERE id NOT IN (SELECT coverage FROM statuses)",
    _DELETE_UNUSED_DEPLOYMENTS,
)
_TABLES = {SCRAPES: "targets", FIGURES: "deployments", INCREMENTS: "targets"}


class Owners:
    """The targets, which own scrapes, and the deployments, which own figures, by their rows. Not thread safe."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self._forget()

    def _forget(self) -> None:
        self._deployments: dict[Deployment, int] = {}
        self._targets: dict[str, int] = {}
        self._coverage: dict[str, Mapping[str, Mapping[str, str | None]]] = {}

    # --- Writing ------------------------------------------------------------------------------------------------------

    def keep_deployment(self, deployment: Deployment) -> int:
        """The row of a deployment, made when it is new."""
        if deployment not in self._deployments:
            labels = _labels_text(deployment)
            self._connection.execute("INSERT OR IGNORE INTO deployments (labels) VALUES (?)", (labels,))
            (row,) = self._connection.execute("SELECT id FROM deployments WHERE labels = ?", (labels,)).fetchone()
            self._check_row(row)
            self._deployments[deployment] = row
        return self._deployments[deployment]

    def known_target(self, target_id: str) -> int:
        """The row of a target that was kept; raises RefusedError for another."""
        if target_id not in self._targets:
            found = self.find_target(target_id)
            if found is None:
                raise RefusedError(f"store {self._path}: unknown target {target_id!r}; set_target comes first")
            self._targets[target_id] = found
        return self._targets[target_id]

    def keep_target(self, status: TargetStatus) -> None:
        """Keep the latest status of a target, in place of its former one."""
        deployment = self.keep_deployment(status.identity.deployment())
        (target,) = self._connection.execute(
            "INSERT INTO targets (target_id, deployment, listed) VALUES (?, ?, 1) "
            "ON CONFLICT (target_id) DO UPDATE SET deployment = excluded.deployment, listed = 1 RETURNING id",
            (status.target_id, deployment),
        ).fetchone()
        self._check_row(target)
        self._connection.execute(
            "INSERT INTO statuses VALUES (?, ?, 0) ON CONFLICT (target) DO UPDATE SET status = excluded.status",
            (target, _status_fields(status)),
        )
        if self._coverage.get(status.target_id) != status.coverage:
            coverage = self._coverage_row(write_text(status.coverage))
            self._connection.execute("UPDATE statuses SET coverage = ? WHERE target = ?", (coverage, target))
            self._coverage[status.target_id] = status.coverage

    def forget_after(self, time_ms: int, last_scrape_ms: Callable[[int], int | None]) -> None:
        """Have no status be of later than an instant: its target was last scraped when its last scrape is from."""
        rows = self._connection.execute(
            "SELECT targets.id, target_id, status FROM targets JOIN statuses ON target = targets.id"
        ).fetchall()
        for target, target_id, stored in rows:
            try:
                status = self._status(target_id, stored, {})
            except StoreError:
                continue  # a damaged one: nobody can read it, and the target's next status replaces it
            if status.is_later_than(time_ms):
                known = _status_fields(status.known_at(time_ms, last_scrape_ms(target)))
                self._connection.execute("UPDATE statuses SET status = ? WHERE target = ?", (known, target))

    def unlist(self, keep: Iterable[str]) -> list[str]:
        """Have only the targets of `keep` listed; returns those that no longer are."""
        kept = set(keep)
        gone = [
            name
            for (name,) in self._connection.execute("SELECT target_id FROM targets WHERE listed")
            if name not in kept
        ]
        self._connection.executemany("UPDATE targets SET listed = 0 WHERE target_id = ?", [(name,) for name in gone])
        return gone

    def delete_unused(self) -> None:
        """Delete the targets and deployments that nothing refers to any more."""
        if sum(self._connection.execute(statement).rowcount for statement in _DELETE_UNUSED):
            self._forget()

    def _coverage_row(self, text: str) -> int:
        name = digest(text)
        self._connection.execute("INSERT OR IGNORE INTO coverages (digest, text) VALUES (?, ?)", (name, text))
        (row,) = self._connection.execute("SELECT id FROM coverages WHERE digest = ?", (name,)).fetchone()
        return int(row)

    def _check_row(self, row: int) -> None:
        if row > LAST_OWNER:
            raise RefusedError(f"store {self._path}: it holds {row} targets or deployments, of at most {LAST_OWNER}")

    # --- Reading ------------------------------------------------------------------------------------------------------

    def rows(self, kind: int) -> list[int]:
        """The rows of all that may own rows of a kind."""
        return [row for (row,) in self._connection.execute(f"SELECT id FROM {_TABLES[kind]}").fetchall()]  # noqa: S608  constants

    def deployments(self) -> list[tuple[int, Deployment]]:
        """Every deployment, with its row."""
        rows = self._connection.execute("SELECT id, labels FROM deployments").fetchall()
        return [
            (row, decode(labels, lambda stored: Deployment(**stored), self._path, f"row {row} of deployments"))
            for row, labels in rows
        ]

    def find_deployment(self, deployment: Deployment) -> int | None:
        """The row of a deployment, None when it is unknown."""
        return self._find("SELECT id FROM deployments WHERE labels = ?", _labels_text(deployment))

    def find_target(self, target_id: str) -> int | None:
        """The row of a target, None when it is unknown."""
        return self._find("SELECT id FROM targets WHERE target_id = ?", target_id)

    def targets_of(self, deployment: int | None) -> list[int]:
        """The rows of a deployment's targets, by target id."""
        rows = self._connection.execute("SELECT id FROM targets WHERE deployment = ? ORDER BY target_id", (deployment,))
        return [row for (row,) in rows.fetchall()]

    def status(self, target: int) -> TargetStatus:
        """The latest status of a target, without its coverage."""
        target_id, status = self._connection.execute(
            "SELECT target_id, status FROM targets JOIN statuses ON target = targets.id WHERE targets.id = ?", (target,)
        ).fetchone()
        return self._status(target_id, status, {})

    def statuses_of(self, deployment: int | None) -> list[tuple[int, TargetStatus]]:
        """The rows of a deployment's targets with their latest status, without their coverage, by target id."""
        rows = self._connection.execute(
            "SELECT targets.id, target_id, status FROM targets JOIN statuses ON target = targets.id "
            "WHERE deployment = ? ORDER BY target_id",
            (deployment,),
        ).fetchall()
        return [(row, self._status(target_id, status, {})) for row, target_id, status in rows]

    def statuses(self) -> list[TargetStatus]:
        """The latest status of every target that is listed, by target id."""
        rows = self._connection.execute(
            "SELECT target_id, status, text FROM targets JOIN statuses ON target = targets.id "
            "LEFT JOIN coverages ON coverages.id = coverage WHERE listed ORDER BY target_id"
        ).fetchall()
        # Most targets share one coverage.
        shared = {text: target_id for target_id, _, text in rows}
        coverages = {text: self._coverage_of(target_id, text) for text, target_id in shared.items()}
        return [self._status(target_id, status, coverages[text]) for target_id, status, text in rows]

    def _coverage_of(self, target_id: str, text: str | None) -> dict[str, Any]:
        what = f"the status of target {target_id!r}"
        return {} if text is None else decode(text, dict, self._path, what)

    def _status(self, target_id: str, status: str, covered: dict[str, Any]) -> TargetStatus:
        what = f"the status of target {target_id!r}"
        return decode(status, lambda stored: _make_status(target_id, stored, covered), self._path, what)

    def _find(self, query: str, name: str) -> int | None:
        found = self._connection.execute(query, (name,)).fetchone()
        return None if found is None else int(found[0])


def _labels_text(deployment: Deployment) -> str:
    return write_text({name: getattr(deployment, name) for name in DEPLOYMENT_LABELS})


def _status_fields(status: TargetStatus) -> str:
    return write_text(
        {
            "url": status.url,
            "identity": {name: getattr(status.identity, name) for name in IDENTITY_LABELS},
            "source": status.source,
            "versions": status.versions,
            "layer": status.layer,
            "scrape_interval_ms": status.scrape_interval_ms,
            "healthy": status.healthy,
            "not_understood": status.not_understood,
            "last_scrape_ms": status.last_scrape_ms,
            "last_success_ms": status.last_success_ms,
            "duration_seconds": status.duration_seconds,
            "samples": status.samples,
            "error": status.error,
            "warnings": status.warnings,
            "missing_metrics": status.missing_metrics,
            **({"select": status.select} if status.select else {}),
            **({"starting_since_ms": since_ms} if (since_ms := status.starting_since_ms) is not None else {}),
        }
    )


def _make_status(target_id: str, stored: dict[str, Any], coverage: dict[str, Any]) -> TargetStatus:
    identity = _make_identity(tuple(stored.pop("identity").items()))
    return TargetStatus(target_id=target_id, identity=identity, coverage=coverage, **stored)


@lru_cache(maxsize=4096)
def _make_identity(labels: tuple[tuple[str, Any], ...]) -> Identity:
    """The same one for the same labels: they are read with every status, and their texts take long to check."""
    return Identity(**dict(labels))
