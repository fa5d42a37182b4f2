"""Stoker: tends LLM inference servers, each an explicit state machine.

The names below are the public API; importing this package imports none of them until they are asked for, so that a
command that needs no server starts at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lifecycle.adapter import Adapter, Capabilities, Command, Launch, NoOptions, Phase
    from lifecycle.chart import Chart, Event, Ignore, Span, State, Transition
    from lifecycle.config import ServerConfig, load_config
    from lifecycle.diagnosis import Diagnosis, Rule, Verdict
    from lifecycle.driver import Activity, Disposition, Driver
    from lifecycle.errors import ConfigError, Draining, RequestError, StartFailed, StokerError
    from lifecycle.fleet import Fleet
    from lifecycle.journal import Journal, Kind, Record
    from lifecycle.server import Server
    from lifecycle.server_chart import SERVER

_HOME = {
    "adapter": ("Adapter", "Capabilities", "Command", "Launch", "NoOptions", "Phase"),
    "chart": ("Chart", "Event", "Ignore", "Span", "State", "Transition"),
    "config": ("ServerConfig", "load_config"),
    "diagnosis": ("Diagnosis", "Rule", "Verdict"),
    "driver": ("Activity", "Disposition", "Driver"),
    "errors": ("ConfigError", "Draining", "RequestError", "StartFailed", "StokerError"),
    "fleet": ("Fleet",),
    "journal": ("Journal", "Kind", "Record"),
    "server": ("Server",),
    "server_chart": ("SERVER",),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "SERVER",
    "Activity",
    "Adapter",
    "Capabilities",
    "Chart",
    "Command",
    "ConfigError",
    "Diagnosis",
    "Disposition",
    "Draining",
    "Driver",
    "Event",
    "Fleet",
    "Ignore",
    "Journal",
    "Kind",
    "Launch",
    "NoOptions",
    "Phase",
    "Record",
    "RequestError",
    "Rule",
    "Server",
    "ServerConfig",
    "Span",
    "StartFailed",
    "State",
    "StokerError",
    "Transition",
    "Verdict",
    "load_config",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'lifecycle' has no attribute {name!r}")
    return getattr(import_module(f"lifecycle.{_MODULE[name]}"), name)
