"""Who is told by Alertmanager, and how: one receiver per severity, each of a kind that the operator chooses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from servescope.settings.tables import Setting, Table

RECEIVERS: Final = MappingProxyType({"critical": "page", "warning": "ticket", "info": "chat", "none": "watchdog"})
"""The receiver of each severity; information calls nobody and goes to a channel one may read."""

TEMPLATES_FOLDER: Final = "/etc/alertmanager/templates"
HEADLINE: Final = '{{ template "servescope.headline" . }}'
TEXT: Final = '{{ template "servescope.text" . }}'
_RUNBOOK: Final = "{{ .CommonAnnotations.runbook_url }}"

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
    """A receiver: its name, its kind, and what that kind needs to know; secrets are in files."""

    name: str
    kind: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def secret(self) -> str:
        """The file with its secret, "" for a kind that has none."""
        return f"{self.name}_{_KINDS[self.kind].secret}" if _KINDS[self.kind].secret else ""

    def configuration(self, secrets: str) -> dict[str, Any]:
        """The receiver in Alertmanager's configuration."""
        kind = _KINDS[self.kind]
        if kind.section is None or kind.make is None:
            return {"name": self.name}
        # Who expects the Watchdog wants to hear that it is there, over and over, and not that it was.
        entry = {"send_resolved": self.name != "watchdog", **kind.make(self.settings, f"{secrets}/{self.secret}")}
        return {"name": self.name, kind.section: [entry]}


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a kind needs (`keys`), the end of its secret's file name, and its section and entry."""

    keys: tuple[str, ...] = ()
    secret: str = ""
    section: str | None = None
    make: Callable[[Mapping[str, str], str], dict[str, Any]] | None = None


def _webhook(said: Mapping[str, str], secret: str) -> dict[str, Any]:
    authorization = {"type": "Bearer", "credentials_file": secret}
    return {"url": said["url"], "http_config": {"authorization": authorization}}


def _slack(said: Mapping[str, str], secret: str) -> dict[str, Any]:
    return {
        "api_url_file": secret,
        "channel": said["channel"],
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


def _email(said: Mapping[str, str], secret: str) -> dict[str, Any]:
    return {
        "to": said["to"],
        "from": said["from"],
        "smarthost": said["smarthost"],
        "auth_username": said["username"],
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
"""`none` tells nobody: Alertmanager shows what it would have told."""

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
