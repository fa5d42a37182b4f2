"""Servers that start in order and fail together, on one host or several: Erlang's one_for_all.

Every host runs the same command. The head, rank 0, runs a `Group`; each other host a `Worker`, which meets the head
over TCP and does with its own members what the head says.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lifecycle.group.group import Group
    from lifecycle.group.plan import Member
    from lifecycle.group.roles import Role, role_of
    from lifecycle.group.settings import GroupConfig
    from lifecycle.group.worker import Worker

_HOME = {
    "Group": "group", "GroupConfig": "settings", "Member": "plan", "Role": "roles", "Worker": "worker",
    "role_of": "roles",
}  # fmt: skip

__all__ = ["Group", "GroupConfig", "Member", "Role", "Worker", "role_of"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lifecycle.group' has no attribute {name!r}")
    return getattr(import_module(f"lifecycle.group.{_HOME[name]}"), name)
