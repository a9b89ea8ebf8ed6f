"""Alertmanager's receivers: one per severity, each of a kind that the operator chooses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from servescope.settings.tables import Setting, Table

RECEIVERS: Final = MappingProxyType({"critical": "page", "warning": "ticket", "info": "chat", "none": "watchdog"})
"""The receiver of each severity; information goes to a chat channel and pages nobody."""

TEMPLATES_FOLDER: Final = "/etc/alertmanager/templates"
HEADLINE: Final = '{{ template "servescope.headline" . }}'
TEXT: Final = '{{ template "servescope.text" . }}'
_RUNBOOK: Final = '{{ template "servescope.runbook" . }}'

RECEIVER_SETTINGS: Final = (
    Setting("kind", "required"),
    Setting("url", ""),
    Setting("channel", ""),
    Setting("to", ""),
    Setting("from", ""),
    Setting("smarthost", ""),
    Setting("username", ""),
)
"""The keys of [alerts.receivers.NAME]."""

_URL = re.compile(r"https?://[^\s/?#]+\S*\Z")
_ADDRESS = re.compile(r"[^\s@]+@[^\s@]+\Z")
_HOST = re.compile(r"[\w.-]+:\d{1,5}\Z")
_FORMS: Mapping[str, tuple[re.Pattern[str], str]] = MappingProxyType(
    {
        "url": (_URL, "a URL such as 'https://tickets.example/hook'"),
        "channel": (re.compile(r"[#@]?[\w.-]+\Z"), "a channel such as '#llm'"),
        "to": (_ADDRESS, "an address such as 'on-call@example.org'"),
        "from": (_ADDRESS, "an address such as 'alerts@example.org'"),
        "smarthost": (_HOST, "a host and port such as 'mail.example.org:587'"),
        "username": (re.compile(r"\S+\Z"), "a user name"),
    }
)


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver: its name, its kind, and the settings of that kind; secrets are in files."""

    name: str
    kind: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def secret(self) -> str:
        """The name of its secret's file, "" for a kind without one."""
        return f"{self.name}_{_KINDS[self.kind].secret}" if _KINDS[self.kind].secret else ""

    def configuration(self, secrets: str) -> dict[str, Any]:
        """The receiver in Alertmanager's configuration."""
        kind = _KINDS[self.kind]
        if kind.section is None or kind.make is None:
            return {"name": self.name}
        # A service that expects the Watchdog needs repeated notifications, and none that it resolved.
        entry = {"send_resolved": self.name != "watchdog", **kind.make(self.settings, f"{secrets}/{self.secret}")}
        return {"name": self.name, kind.section: [entry]}


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind's required `keys`, the suffix of its secret's file name, its section and its entry."""

    keys: tuple[str, ...] = ()
    secret: str = ""
    section: str | None = None
    make: Callable[[Mapping[str, str], str], dict[str, Any]] | None = None


def _webhook(settings: Mapping[str, str], secret: str) -> dict[str, Any]:
    authorization = {"type": "Bearer", "credentials_file": secret}
    return {"url": settings["url"], "http_config": {"authorization": authorization}}


def _slack(settings: Mapping[str, str], secret: str) -> dict[str, Any]:
    return {
        "api_url_file": secret,
        "channel": settings["channel"],
        "title": HEADLINE,
        "title_link": _RUNBOOK,
        "fallback": HEADLINE,
        "text": TEXT,
    }


def _pagerduty(_: Mapping[str, str], secret: str) -> dict[str, Any]:
    return {
        "routing_key_file": secret,
        "description": HEADLINE,
        "severity": '{{ if eq .CommonLabels.severity "critical" }}critical{{ else }}warning{{ end }}',
        "details": {"alerts": TEXT},
        "links": [{"href": _RUNBOOK, "text": "Runbook"}],
    }


def _email(settings: Mapping[str, str], secret: str) -> dict[str, Any]:
    return {
        "to": settings["to"],
        "from": settings["from"],
        "smarthost": settings["smarthost"],
        "auth_username": settings["username"],
        "auth_password_file": secret,
        "headers": {"Subject": HEADLINE},
        "html": "",
        "text": TEXT,
    }


_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "none": _Kind(),
        "webhook": _Kind(("url",), "token", "webhook_configs", _webhook),
        "slack": _Kind(("channel",), "slack_url", "slack_configs", _slack),
        "pagerduty": _Kind((), "routing_key", "pagerduty_configs", _pagerduty),
        "email": _Kind(("to", "from", "smarthost", "username"), "password", "email_configs", _email),
    }
)
KINDS: Final = tuple(_KINDS)
"""`none` notifies nobody; Alertmanager shows the alerts."""

DEFAULT_RECEIVERS: Final = MappingProxyType(
    {
        name: Receiver(name, "webhook", MappingProxyType({"url": f"http://127.0.0.1:9095/{name}"}))
        for name in RECEIVERS.values()
    }
)


def read_receiver(name: str, table: Table) -> Receiver:
    """The receiver that a table describes; raises ConfigurationError naming file, key and value."""
    kind = table.choice("kind", KINDS, "")
    needed = _KINDS[kind].keys
    for key in table.values:
        if key != "kind" and key not in needed:
            expected = f"no such key for the kind {kind!r}" + (f", which has {', '.join(needed)}" if needed else "")
            raise table.wrong(key, expected)
    settings = {}
    for key in needed:
        form, expected = _FORMS[key]
        value = table.string(key, "")
        if not form.match(value):
            raise table.wrong(key, expected)
        settings[key] = value
    return Receiver(name, kind, MappingProxyType(settings))
