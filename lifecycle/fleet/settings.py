"""What can be said about a fleet besides what is said about each of its servers."""

from __future__ import annotations

from dataclasses import dataclass

from lifecycle.adapter import Adapter
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError


@dataclass(frozen=True)
class FleetConfig:
    """How many servers, and how many of them are needed."""

    replicas: int = 1
    """Equal servers behind one client on this host. GPUs are shared out between them."""
    min_healthy: int = 1
    """Replicas that must serve for the fleet to be Healthy; when fewer than these can be had any more, it is given up.
    """
    replica_concurrency: int | None = None
    """Most requests in flight at one replica. None: as many as it takes."""
    replica_gpus: int | None = None
    """GPUs of each replica. None: tensor_parallel x pipeline_parallel x data_parallel for an engine that has these, and
    no share at all for a backend that has not, or on a machine without GPUs."""

    @property
    def single(self) -> bool:
        """Whether one server, and no fleet, is what was asked for."""
        return self.replicas == 1 and self.replica_concurrency is None


def check_fleet(fleet: FleetConfig) -> None:
    """Refuse numbers that cannot be. Raises `ConfigError`."""
    for key in ("replicas", "min_healthy", "replica_concurrency", "replica_gpus"):
        value = getattr(fleet, key)
        if value is not None and value < 1:
            raise ConfigError(f"{key} = {value} must be at least 1")
    if fleet.min_healthy > fleet.replicas:
        raise ConfigError(
            f"min_healthy = {fleet.min_healthy} is more than replicas = {fleet.replicas}: "
            "the fleet would never be Healthy; lower the one or raise the other"
        )


def refuse_rest(config: ServerConfig) -> None:
    """Refuse what is for a server alone. Raises `ConfigError`."""
    for key in ("idle_timeout", "keep_for"):
        value = getattr(config, key)
        if value:
            raise ConfigError(
                f"{key} = {value:g} is for one server, and this is one of several: a fleet puts none to rest and "
                "attaches to none; leave it out"
            )


def check_local(fleet: FleetConfig, config: ServerConfig, adapter: Adapter) -> None:
    """Refuse what only one server on a host can have. Raises `ConfigError`."""
    if fleet.replicas == 1:
        return
    if config.port is not None:
        raise ConfigError(
            f"port = {config.port} can be one server's only, and replicas = {fleet.replicas}: leave port out, each "
            "replica finds its own"
        )
    if not adapter.capabilities.local:
        raise ConfigError(
            f"replicas = {fleet.replicas} of backend {adapter.name!r}, which starts no server: they would all be the "
            "one at base_url; leave replicas out"
        )
