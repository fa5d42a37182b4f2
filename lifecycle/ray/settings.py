"""What can be said about replicas on a Ray cluster besides what is said about a fleet and its servers. No Ray here."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from lifecycle.adapter import Adapter
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError
from lifecycle.fleet.settings import FleetConfig
from lifecycle.fleet.shares import each_needs
from lifecycle.resources.gpus import VISIBLE

KEY_VARIABLE = "STOKER_RAY_KEY"
"""Holds the key of the replicas, here and in their actors, where the configuration names no variable of its own."""
TRAVEL = ("HF_", "HUGGING_FACE_", "TRANSFORMERS_", "VLLM_", "SGLANG_", "NCCL_")
"""Beginnings of the names of variables that replicas get as they are set here. Ray passes none on: a job that was told
to stay offline would go online on the nodes."""
STAY = ("VLLM_HOST_IP", "VLLM_PORT", "NCCL_SOCKET_IFNAME")
"""Variables among these that are about one host."""
CLIENT = "ray://"


@dataclass(frozen=True)
class RayConfig:
    """Where the replicas of a fleet run if not on this host, and what each of them gets there."""

    ray: str = ""
    """HOST:PORT of a Ray cluster's head (its GCS). The replicas become actors there. Default: they run on this host."""
    ray_cpus: float = 1.0
    """CPUs of each replica, as Ray counts them."""
    ray_resources: Mapping[str, float] = field(default_factory=dict)
    """Further resources of each, by the names that the cluster's nodes declare: {"H100": 1}."""
    placement_timeout: float = 600.0
    """Longest wait for GPUs and CPUs, and for the actor to start on them."""


RAY_KEYS = tuple(each.name for each in fields(RayConfig))


def check_ray(ray: RayConfig, config: ServerConfig, adapter: Adapter) -> None:
    """Refuse what cannot be on a cluster. Raises `ConfigError`."""
    address_of(ray.ray)
    if not ray.placement_timeout > 0:
        raise ConfigError(f"placement_timeout = {ray.placement_timeout} must be more than 0")
    if not ray.ray_cpus >= 0:
        raise ConfigError(f"ray_cpus = {ray.ray_cpus} must not be negative")
    for name, amount in ray.ray_resources.items():
        if name in ("CPU", "GPU") or not amount > 0:
            raise ConfigError(
                f"ray_resources = {{{name!r}: {amount}}} cannot be: CPUs are ray_cpus, GPUs replica_gpus, and every "
                "other amount is more than 0"
            )
    if not adapter.capabilities.local:
        raise ConfigError(f"backend {adapter.name!r} starts no server, so there is nothing to place: leave ray out")
    if config.nodes > 1:
        raise ConfigError(f"nodes = {config.nodes}: a replica on Ray is on one node; leave nodes or ray out")
    if config.port is not None:
        raise ConfigError(f"port = {config.port}: replicas share nodes, each finds a port of its own; leave port out")
    if config.host != ServerConfig("").host:
        raise ConfigError(f"host = {config.host!r}: each replica binds the address of its own node; leave host out")
    if VISIBLE in config.env:
        raise ConfigError(f"env sets {VISIBLE}, which Ray sets for each replica: say replica_gpus instead")


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`. Raises `ConfigError` for anything else, with the reason for `ray://` and `auto`."""
    if text.startswith(CLIENT):
        raise ConfigError(
            f"ray = {text!r}: Ray Client passes every call through a proxy that ends the replicas when one connection "
            "breaks; run on a node of the cluster and give its head's address, HOST:PORT without ray://"
        )
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        more = "; \"auto\" could be somebody else's cluster on this machine" if text == "auto" else ""
        raise ConfigError(f"ray = {text!r} is not HOST:PORT of a cluster's head, such as 10.0.0.1:6379{more}")
    return host, int(port)


def needs_of(ray: RayConfig, size: FleetConfig, config: ServerConfig, adapter: Adapter) -> dict[str, float]:
    """The resources of one replica, by Ray's names. Raises `ConfigError` if it would hold none."""
    needs = {"CPU": ray.ray_cpus, "GPU": float(each_needs(size, config, adapter)), **ray.ray_resources}
    needs = {name: amount for name, amount in needs.items() if amount}
    if not needs:
        raise ConfigError("ray_cpus = 0 and no GPU: the replica would hold nothing, and Ray puts any number of such "
                          "on one node; raise ray_cpus or say replica_gpus")  # fmt: skip
    return needs


def keyed(config: ServerConfig) -> ServerConfig:
    """The configuration with a key, made up if it names none and is not `allow_exposed`: replicas are reached over the
    network. A key that is made up is in a variable of this process, and nowhere else."""
    if config.api_key_env or config.api_key_file or config.allow_exposed:
        return config
    os.environ.setdefault(KEY_VARIABLE, secrets.token_urlsafe(32))
    return replace(config, api_key_env=KEY_VARIABLE)


def on_node(config: ServerConfig, key: str | None) -> ServerConfig:
    """The configuration that travels: with the name of a variable that the actor sets to the key, and no path of a file
    that is here."""
    return replace(config, api_key_env="" if key is None else config.api_key_env or KEY_VARIABLE, api_key_file="")


def travelling(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process that its replicas get, over those of their nodes.

    >>> travelling({"HF_HUB_OFFLINE": "1", "HOME": "/root"})
    {'HF_HUB_OFFLINE': '1'}
    """
    return {name: value for name, value in environ.items() if name.startswith(TRAVEL) and name not in STAY}
