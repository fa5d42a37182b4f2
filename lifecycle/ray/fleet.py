"""A fleet whose replicas Ray places."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from lifecycle.adapter import Adapter, load_adapter
from lifecycle.config import ServerConfig
from lifecycle.fleet.fleet import Fleet, Make
from lifecycle.fleet.settings import FleetConfig, check_fleet
from lifecycle.ray.cluster import RayCluster
from lifecycle.ray.place import Cluster
from lifecycle.ray.replica import RayReplica
from lifecycle.ray.settings import RayConfig, check_ray, keyed, needs_of, on_node, travelling
from lifecycle.secrets import api_key
from lifecycle.service import Listener, Replica


def ray_fleet(
    config: ServerConfig,
    ray: RayConfig,
    size: FleetConfig,
    *,
    adapter: Adapter | None = None,
    journal: Path | str | None = None,
    listener: Listener | None = None,
) -> Fleet:
    """A `Fleet` on a Ray cluster, used like any other; on asyncio.

    Args:
        config: what each replica runs. What it names (interpreter, model, folders) must be there on every node, and is
            looked for there. The backend must be installed on the nodes, and Stoker in the version that this is.
        ray: where, and what each gets there.
        size: how many.
        adapter, journal, listener: see `Fleet`.

    A key is made up if `config` names none. Variables of this process that begin with HF_, VLLM_ and the like
    (`lifecycle.ray.settings.TRAVEL`) and `config.env` are the replicas'. Raises `ConfigError`.
    """
    adapter = adapter or load_adapter(config.backend)
    own = keyed(config)
    make = on_ray(own, ray, size, adapter, RayCluster(ray.ray), journal)
    return Fleet(
        own, replicas=size.replicas, min_healthy=size.min_healthy, cap=size.replica_concurrency,
        replica_gpus=size.replica_gpus, adapter=adapter, journal=journal, listener=listener, make=make,
    )  # fmt: skip


def behind_router(
    config: ServerConfig, ray: RayConfig, size: FleetConfig, adapter: Adapter, journal: Path | str | None
) -> tuple[ServerConfig, Make]:
    """The replicas of a `lifecycle.fleet.front.Front`: their configuration, and what makes them. They have a key also
    where the router's URL is open to everybody. Raises `ConfigError`."""
    own = keyed(replace(config, allow_exposed=False))
    return own, on_ray(own, ray, size, adapter, RayCluster(ray.ray), journal)


def on_ray(
    config: ServerConfig,
    ray: RayConfig,
    size: FleetConfig,
    adapter: Adapter,
    cluster: Cluster,
    journal: Path | str | None,
) -> Make:
    """Replicas at places of a cluster. Raises `ConfigError`."""
    check_fleet(size)
    check_ray(ray, config, adapter)
    needs, key, variables = needs_of(ray, size, config, adapter), api_key(config), travelling(os.environ)

    def make(number: int, config: ServerConfig, listener: Listener) -> Replica:
        return RayReplica(
            on_node(config, key), cluster, needs, timeout=ray.placement_timeout, variables=variables, key=key,
            journal=journal, listener=listener,
        )  # fmt: skip

    return make
