"""Which members a group has, on which hosts, and in which order they start. Pure.

An adapter may say so for a configuration, by a function `members(config) -> tuple[Member, ...]`. Without one, each host
runs one member, the further hosts' first and the head's last: so the member that takes requests starts when the others
run already, and is Healthy only when all of them work together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lifecycle.adapter import Adapter
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError


@dataclass(frozen=True)
class Member:
    """One server of a group."""

    name: str
    """Short, and of this member alone: it becomes a part of the server's name."""
    rank: int
    """The host that runs it."""
    config: ServerConfig
    """Addresses are filled in when it starts."""
    serves: bool = False
    """It takes the group's requests. Exactly one does, on the head."""
    needs_next: bool = False
    """It is Healthy only together with the next one, which therefore begins as soon as this one has begun."""


@dataclass(frozen=True)
class Place:
    """What is known of the hosts when a member starts."""

    node_address: str
    """Of the member's own host."""
    head_address: str
    head_port: int


def members_of(config: ServerConfig, adapter: Adapter) -> tuple[Member, ...]:
    """The members that `config` needs, in the order of their start. Raises `ConfigError` for a plan that cannot be."""
    own = getattr(adapter, "members", None)
    found: tuple[Member, ...] = own(config) if own else one_each(config)
    if [(member.rank, member.serves) for member in found if member.serves] != [(0, True)]:
        raise ConfigError(f"backend {config.backend!r}: exactly one member must take requests, and the head runs it")
    if len({member.name for member in found}) < len(found):
        raise ConfigError(f"backend {config.backend!r}: two members have the same name")
    return found


def one_each(config: ServerConfig, *, needs_head: bool = False) -> tuple[Member, ...]:
    """One member a host: ranks 1, 2, ... and then the head.

    Args:
        needs_head: those of the further hosts are Healthy only when the head has joined them.
    """
    further = (
        Member(f"rank-{rank}", rank, replace(config, node_rank=rank), needs_next=needs_head)
        for rank in range(1, config.nodes)
    )
    return (*further, Member("rank-0", 0, replace(config, node_rank=0), serves=True))


def placed(member: Member, place: Place, label: str) -> ServerConfig:
    """The configuration of one attempt of a member: it has one attempt only, the group has more."""
    return replace(
        member.config,
        name=f"{label}-{member.name}",
        node_address=place.node_address,
        head_address=place.head_address,
        head_port=place.head_port,
        max_attempts=1,
    )
