"""What the commands have in common where the replicas are on a Ray cluster: `--ray HOST:PORT`."""

from __future__ import annotations

import argparse

from lifecycle.adapter import Adapter
from lifecycle.cli.settings import own_settings
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError
from lifecycle.ray.settings import RAY_KEYS, RayConfig, address_of, check_ray


def ray_of(args: argparse.Namespace) -> RayConfig:
    """The settings of the cluster: a flag wins over the file, `--set` over both. Give `RAY_KEYS` to `collect` as keys
    that are no server's. Raises `ConfigError`."""
    found = own_settings(args, RAY_KEYS, RayConfig, tables=("ray_resources",))
    if found.ray:
        address_of(found.ray)
    elif found != RayConfig():
        raise ConfigError("ray_cpus, ray_resources and placement_timeout are for replicas on a Ray cluster: say which "
                          "one with --ray HOST:PORT, or leave them out")  # fmt: skip
    return found


def check_place(ray: RayConfig, config: ServerConfig, adapter: Adapter) -> None:
    """Refuse what cannot be on a cluster, if there is one. Raises `ConfigError`."""
    if ray.ray:
        check_ray(ray, config, adapter)
