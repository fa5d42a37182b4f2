"""Equal replicas behind one client, and, for outsiders, behind one URL."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lifecycle.fleet.fleet import Fleet
    from lifecycle.fleet.front import Front
    from lifecycle.fleet.front_settings import FrontConfig
    from lifecycle.fleet.settings import FleetConfig

_HOME = {"Fleet": "fleet", "FleetConfig": "settings", "Front": "front", "FrontConfig": "front_settings"}

__all__ = ["Fleet", "FleetConfig", "Front", "FrontConfig"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lifecycle.fleet' has no attribute {name!r}")
    return getattr(import_module(f"lifecycle.fleet.{_HOME[name]}"), name)
