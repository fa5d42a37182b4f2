"""The settings of a group, beside those of its servers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from lifecycle.errors import ConfigError

BEATS = 5
"""Heartbeats that may go missing before the other side counts as lost."""
SHORTEST_KEY = 16
"""Characters. A key that is shorter can be guessed."""


@dataclass(frozen=True)
class GroupConfig:
    """How the hosts of a group meet. Times are seconds. A setting is set like any other, by TOML or `--set`."""

    head: str = ""
    """HOST or HOST:PORT at which the head, rank 0, is reached; the same on every host. Default: what Slurm's or
    torchrun's variables say; port 29417, under Slurm one that comes from the job's number."""
    gather_timeout: float = 600.0
    """How long the head waits for hosts that are not there, and a host for its head: at the beginning, and again after
    each attempt."""
    heartbeat_timeout: float = 15.0
    """A host that has not been heard of for so long is lost."""
    group_key_env: str = "STOKER_GROUP_KEY"
    """Name of the environment variable that holds the key which all hosts share. Without one, whoever reaches the
    head's port and knows the configuration can join."""

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats."""
        return self.heartbeat_timeout / BEATS


DEFAULTS = GroupConfig()


def check(config: GroupConfig) -> None:
    """Raises `ConfigError` for values that cannot be."""
    for name in ("gather_timeout", "heartbeat_timeout"):
        if not getattr(config, name) > 0:
            raise ConfigError(f"{name} = {getattr(config, name)} must be more than 0")


def group_key(config: GroupConfig, environ: Mapping[str, str] = os.environ) -> bytes:
    """The key that all hosts share; empty if the variable is not set. Raises `ConfigError` if it is too short."""
    text = environ.get(config.group_key_env, "").strip() if config.group_key_env else ""
    if text and len(text) < SHORTEST_KEY:
        raise ConfigError(
            f"the key in {config.group_key_env} has {len(text)} characters, and one of fewer than {SHORTEST_KEY} can "
            "be guessed: make one with `openssl rand -hex 32`, the same on every host"
        )
    return text.encode()
