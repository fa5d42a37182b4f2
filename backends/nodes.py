"""One model on several hosts: what the backends of all engines check, and how engines are told which way to talk."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from ipaddress import ip_address

import psutil

from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""What says which network interface a library talks through. By default each chooses by itself, and on a host with
several of them not always the one whose address the other hosts were given."""
END_GRACE = 1.0
"""Seconds from SIGTERM to SIGKILL for a part that is not the head: it has no requests of its own. vLLM 0.32 and SGLang
0.5.23 ignore SIGTERM there, and live on when the head has gone."""


def refuse_rank(config: ServerConfig) -> None:
    """Raises `ConfigError` for a rank that none of the nodes can have."""
    if config.node_rank >= config.nodes:
        raise ConfigError(
            f"node_rank = {config.node_rank}, but there are nodes = {config.nodes}: the ranks are 0 to "
            f"{config.nodes - 1}; a server on one host needs neither"
        )


def refuse_undivided(config: ServerConfig, what: str, size: int) -> None:
    """Raises `ConfigError` if the nodes cannot have equal shares of `size`, which is called `what`."""
    if size % config.nodes:
        raise ConfigError(
            f"nodes = {config.nodes} must divide {what} = {size}: each host has an equal share of the GPUs; "
            "change either"
        )


def refuse_homeless(config: ServerConfig) -> None:
    """Raises `ConfigError` if it is not known where the parts meet, or this host does not have the address that it is
    to be reached at."""
    for key in ("node_address", "head_address", "head_port"):
        if not getattr(config, key):
            raise ConfigError(
                f"nodes = {config.nodes}, but {key} is not set: its parts could not find each other; set it, or let "
                "the batch system's variables do so"
            )
    if interface_of(config.node_address) is None:
        have = ", ".join(sorted({address for _, address in _addresses()}))
        raise ConfigError(f"node_address = {config.node_address!r} is no address of this host, which has {have}")


def meeting_point(config: ServerConfig) -> str:
    """Where the parts meet, as engines write it."""
    host = f"[{config.head_address}]" if ":" in config.head_address else config.head_address
    return f"{host}:{config.head_port}"


def interface_of(address: str) -> str | None:
    """The network interface of this host that has `address`; None if none has."""
    if is_loopback(address):  # all of 127.0.0.0/8 is there, and only 127.0.0.1 is listed
        return next((name for name, known in _addresses() if is_loopback(known)), None)
    return next((name for name, known in _addresses() if known == address), None)


def is_loopback(address: str) -> bool:
    """Whether an address means this host and no other. A name means nothing here."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def _addresses() -> list[tuple[str, str]]:
    """Interfaces and their addresses, without the zone that a link-local one ends with."""
    return [
        (name, entry.address.partition("%")[0])
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    ]


def interface_env(config: ServerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that name the interface of `node_address`, without those that `environ` has already."""
    interface = interface_of(config.node_address) if config.node_address else None
    return {} if interface is None else {name: interface for name in INTERFACE_VARIABLES if name not in environ}
