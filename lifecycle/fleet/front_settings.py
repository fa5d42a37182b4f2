"""What can be said about the URL before a fleet besides what is said about the fleet and its servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lifecycle.config import ServerConfig, load_config

LOOPBACK = "127.0.0.1"
SHARED = (
    "host", "port", "allow_exposed", "api_key_env", "api_key_file", "request_timeout", "drain_timeout",
    "terminate_timeout", "log_dir", "log_limit", "state_dir", "cache_dir",
)  # fmt: skip
"""Settings of the servers that are the router's as well: with `stoker serve --replicas`, outsiders see it alone."""


@dataclass(frozen=True)
class FrontConfig:
    """Which router stands before a fleet, and how it chooses."""

    router: str = "router"
    """Name of an installed backend that is a router."""
    router_policy: str = ""
    """How it chooses a replica for a request. Default: the router's own."""
    router_python: str = ""
    """Interpreter that the router is installed in. Default: Stoker's own, or that of the router's command on PATH."""
    router_settings: Mapping[str, Any] = field(default_factory=dict)
    """Any other settings of the router as a server, and its own flags in `engine_args`."""


def router_config(front: FrontConfig, config: ServerConfig) -> ServerConfig:
    """The router's configuration: the outsiders' address and key are those that `config` gives the servers. Raises
    `ConfigError`."""
    given: dict[str, Any] = {key: getattr(config, key) for key in SHARED}
    given["name"] = f"{config.label}-router"
    if front.router_policy:
        given["policy"] = front.router_policy
    if front.router_python:
        given["python"] = front.router_python
    found, _ = load_config(front.router, **{**given, **front.router_settings})
    return found


def replica_config(config: ServerConfig) -> ServerConfig:
    """The configuration of the servers behind a router: at addresses of their own that nobody else can reach."""
    return replace(config, host=LOOPBACK, port=None)
