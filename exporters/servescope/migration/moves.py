"""A deployment on its way from v1 to v2, as the drafts for its cutover need it: named, hashed, without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from servescope.errors import UsageError
from servescope.migration.fields.masking import hash_configuration, mask_document
from servescope.migration.masked_report import mask_report
from servescope.migration.report import FileReport
from servescope.migration.translation.translation import FieldChange

_UNNAMED: Final = "model"
_LONGEST_NAME: Final = 80


@dataclass(frozen=True, slots=True)
class Move:
    """One deployment before and after: the values of both files with secrets masked, and of the Management API's body.

    `model` is what it serves, by which targets are labelled. `configurations` are the hashes that a plan records, by
    `v1`, `v2`, and `management_api` where the body holds anything.
    """

    origin: str
    model: str
    v1: Mapping[str, Any]
    v2: Mapping[str, Any]
    body: Mapping[str, Any]
    changes: tuple[FieldChange, ...]
    configurations: Mapping[str, str]

    @property
    def slug(self) -> str:
        """The model as part of an id: letters, digits, dots and dashes."""
        return re.sub(r"[^a-z0-9.]+", "-", self.model.lower()).strip("-.") or _UNNAMED

    @property
    def llm_config(self) -> Mapping[str, Any]:
        """The block of the Management API that configures speculation, routing and disaggregation; empty without."""
        return self.body.get("llm_config") or {}

    def removed(self, path: str) -> Any:
        """The value of a field below v1's `trt_llm` that v2 has no place for; None where it was not there."""
        return next((each.value for each in self.changes if each.before == path and not each.after), None)


def read_move(report: FileReport) -> Move:
    """The move that a report is on; raises UsageError where nothing is moved."""
    real = report.unmasked or report
    found = real.translation
    if real.status != "changed" or found is None or found.new is None or found.to != "v2":
        why = {
            "asked": "it waits for an answer", "error": "it has errors", "unchanged": "there is nothing to migrate",
            "changed": "it goes back to v1",
        }[real.status]  # fmt: skip
        raise UsageError(f"{report.name}: nothing can be drafted from it: {why}")
    shown = report if report.unmasked is not None else mask_report(report)
    v1, v2 = mask_document(found.document).value, mask_document(found.new).value
    hashes = {"v1": hash_configuration(found.document.value), "v2": hash_configuration(found.new.value)}
    body: Mapping[str, Any] = {}
    if real.body is not None and real.body.call and shown.body is not None:
        hashes["management_api"], body = hash_configuration(real.body.body), shown.body.body
    return Move(report.name, _name(v2, report.name), v1, v2, body, shown.changes, hashes)


def _name(config: Mapping[str, Any], origin: str) -> str:
    """What a deployment serves: as clients name it, as the file does, as its folder is called."""
    served = ((config.get("trt_llm") or {}).get("runtime") or {}).get("served_model_name")
    folder = origin.rpartition("/")[0].rpartition("/")[2]
    name = str(served or config.get("model_name") or (folder if folder not in ("", ".", "..") else _UNNAMED))
    return "".join(each if each.isprintable() else " " for each in name).strip()[:_LONGEST_NAME] or _UNNAMED
