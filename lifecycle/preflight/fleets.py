"""What is to be seen before several servers are started: their GPUs, the router before them, the cluster under them."""

from __future__ import annotations

import os

from lifecycle.adapter import Adapter
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError, PortTaken
from lifecycle.fleet.front_settings import FrontConfig, router_config
from lifecycle.fleet.settings import FleetConfig
from lifecycle.fleet.shares import environments
from lifecycle.preflight import Check, blocker, ok, warning
from lifecycle.ray.missing import missing
from lifecycle.ray.place import NoPlace
from lifecycle.ray.settings import RayConfig, check_ray, needs_of
from lifecycle.resources.gpus import VISIBLE
from lifecycle.resources.local import lease_dir
from lifecycle.resources.ports import hold_ports

FOR_SERVE = "`stoker serve` needs it; `stoker generate` does not"


def replicas_row(fleet: FleetConfig, config: ServerConfig, adapter: Adapter) -> Check:
    """The GPUs of each replica. Looks at the machine."""
    name = "replicas"
    try:
        given = environments(fleet, config, adapter, os.environ)
    except ConfigError as error:
        return blocker(name, str(error), "")
    shares = [each[VISIBLE] for each in given if VISIBLE in each]
    if not shares:
        return ok(name, f"{fleet.replicas}, with no GPU of its own for each")
    return ok(name, f"{fleet.replicas}, with GPUs " + " | ".join(shares))


def router_row(front: FrontConfig, config: ServerConfig) -> Check:
    """The router before the replicas. It is wanted for certain only where `config` has a port for it. Looks for it."""
    name = "router"
    try:
        router = router_config(front, config)
    except ConfigError as error:
        return blocker(name, str(error), "") if config.port is not None else warning(name, str(error), FOR_SERVE)
    if router.port is None:
        return ok(name, f"backend {router.backend!r}, at a free port of {router.host}")
    try:
        hold_ports(router.host, router.port, 1, lease_dir()).release()
    except PortTaken as error:
        return blocker(name, str(error), "")
    return ok(name, f"backend {router.backend!r}; port {router.port} of {router.host} is free")


async def ray_row(ray: RayConfig, fleet: FleetConfig, config: ServerConfig, adapter: Adapter) -> Check:
    """The cluster, and how many of the replicas its nodes could have. Connects to it."""
    name = "ray"
    try:
        from lifecycle.ray.cluster import RayCluster

        check_ray(ray, config, adapter)
        needs = needs_of(ray, fleet, config, adapter)
        cluster = RayCluster(ray.ray)
        async with cluster.joined():
            stock = await cluster.stock()
    except ConfigError as error:
        return blocker(name, str(error), "")
    except NoPlace as error:
        return blocker(name, error.diagnosis.summary, error.diagnosis.advice)
    each = " and ".join(f"{amount:g} {kind}" for kind, amount in needs.items())
    places, free = stock.places(needs), stock.free_places(needs)
    found = f"{ray.ray}: {len(stock.nodes)} nodes alive, room for {places} replicas of {each}, {free} of them free now"
    if places == 0:
        return blocker(name, f"{ray.ray}: {missing(needs, stock)}", "add nodes, or lower what a replica needs")
    if places < fleet.min_healthy:
        return blocker(name, f"{found}; min_healthy = {fleet.min_healthy}", "add nodes, or lower min_healthy")
    if free < fleet.replicas:
        return warning(name, found, f"some of the {fleet.replicas} would wait for placement_timeout")
    return ok(name, found)
