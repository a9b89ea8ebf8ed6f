"""The settings of a plugin, from environment variables: the identity of its series, and where its page is served.

An engine loads a plugin by name and passes it none of our settings, so they are read from the environment.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from servescope.contract.identity import ENGINE_ROLES, IDENTITY_LABELS, ROLLOUT_PHASES, Identity
from servescope.errors import ConfigurationError, IdentityError

PREFIX = "SERVESCOPE_"
SWITCH = "SERVESCOPE_PLUGIN"
ADDRESS = "SERVESCOPE_ADDRESS"
PORT = "SERVESCOPE_PORT"
IDENTITY = {label: PREFIX + label.upper() for label in IDENTITY_LABELS}
"""The variable of each identity label, such as SERVESCOPE_MODEL_NAME."""

VARIABLES = (SWITCH, ADDRESS, PORT, *IDENTITY.values())

_SWITCH_VALUES = ("on", "off")


@dataclass(frozen=True, slots=True)
class Settings:
    """The identity of the page and where it is served; port 0 is a free one."""

    identity: Identity
    address: str
    port: int

    def of_process(self, rank: int, count: int) -> Settings:
        """The settings of one of `count` processes that serve one engine: a replica and a port of its own each.

        Raises ConfigurationError when there is no such port.
        """
        if count <= 1:
            return self
        identity = replace(self.identity, replica=f"{self.identity.replica}-api{rank}")
        return Settings(identity, self.address, _checked_port(self.port + rank) if self.port else 0)


def is_switched_off(environ: Mapping[str, str]) -> bool:
    """Whether the plugin is disabled. Raises ConfigurationError for neither on nor off."""
    switch = environ.get(SWITCH, "").strip().lower() or "on"
    if switch not in _SWITCH_VALUES:
        raise ConfigurationError(f"{SWITCH} is {environ[SWITCH]!r}, supported: {', '.join(_SWITCH_VALUES)}")
    return switch == "off"


def read_settings(environ: Mapping[str, str], defaults: Mapping[str, str]) -> Settings:
    """The settings of this environment; `defaults` are the identity labels of variables that are not set.

    An empty variable counts as not set. Raises ConfigurationError, which names the variable.
    """
    labels = {label: environ.get(variable, "").strip() for label, variable in IDENTITY.items()}
    labels = {label: value or defaults.get(label, "") for label, value in labels.items()}
    labels["deployment_id"] = labels["deployment_id"] or labels["model_name"]
    if not labels["model_name"]:
        raise ConfigurationError(f"{IDENTITY['model_name']} is not set and the engine does not name its model")
    _require_one_of("role", labels["role"] or "aggregated", ENGINE_ROLES)
    _require_one_of("rollout_phase", labels["rollout_phase"], ROLLOUT_PHASES)
    labels["role"] = labels["role"] or "aggregated"
    try:
        identity = Identity(**labels)
    except IdentityError as error:
        raise ConfigurationError(f"{PREFIX}*: {error}") from error
    return Settings(identity, environ.get(ADDRESS, "").strip() or "127.0.0.1", _read_port(environ))


def warn_of_misspelt(environ: Iterable[str], logger: logging.Logger) -> None:
    """Warn of misspelt variables, such as SERVESCOPE_MODELNAME."""
    for variable in environ:
        if variable.startswith(PREFIX) and variable not in VARIABLES:
            near = difflib.get_close_matches(variable, VARIABLES, n=1, cutoff=0.8)
            if near:
                logger.warning("servescope: unknown variable %s is not read, did you mean %s?", variable, near[0])


def _require_one_of(label: str, value: str, supported: tuple[str, ...]) -> None:
    if value not in supported:
        named = ", ".join(name for name in supported if name)
        raise ConfigurationError(f"{IDENTITY[label]} is {value!r}, supported: {named}")


def _read_port(environ: Mapping[str, str]) -> int:
    text = environ.get(PORT, "").strip() or "0"
    if not (text.isascii() and text.isdigit()):
        raise ConfigurationError(f"{PORT} is {text!r}, expected a port from 0 to 65535, 0 for a free one")
    return _checked_port(int(text[:9]))


def _checked_port(port: int) -> int:
    if port > 65535:
        raise ConfigurationError(f"{PORT} leads to port {port}, expected one from 0 to 65535, 0 for a free one")
    return port
