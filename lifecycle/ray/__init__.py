"""Replicas of a fleet as Ray actors: each hosts a `Server` on the node that Ray puts it on.

Nothing here imports Ray before a replica is placed; it is an extra (`pip install 'stoker[ray]'`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lifecycle.ray.fleet import ray_fleet
    from lifecycle.ray.settings import RayConfig

_HOME = {"ray_fleet": "fleet", "RayConfig": "settings"}

__all__ = ["RayConfig", "ray_fleet"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lifecycle.ray' has no attribute {name!r}")
    return getattr(import_module(f"lifecycle.ray.{_HOME[name]}"), name)
