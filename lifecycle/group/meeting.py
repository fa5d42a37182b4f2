"""The head's side of the meeting: hosts come, prove who they are, and are heard until they go."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio
from anyio.abc import ByteStream

from lifecycle.group.link import FLUSH, Link
from lifecycle.group.messages import (
    PROTOCOL,
    Challenge,
    Dismiss,
    Hello,
    Message,
    Refusal,
    Welcome,
    WireError,
    proof,
    refusal,
)
from lifecycle.group.network import Network
from lifecycle.group.settings import GroupConfig


@dataclass(eq=False)
class Guest:
    """A host that is there."""

    hello: Hello
    link: Link

    @property
    def name(self) -> str:
        return f"rank {self.hello.rank} ({self.hello.host})"


class Meeting:
    """Who of the other hosts is there.

    Args:
        nodes: how many hosts there are, with the head.
        settings: hashes of what all must have alike (`lifecycle.group.messages.digests`).
        key: what all share; empty for none.
        note: told, in words, who comes, goes, and is refused.
    """

    def __init__(
        self,
        nodes: int,
        settings: Mapping[str, str],
        config: GroupConfig,
        key: bytes,
        network: Network,
        note: Callable[[str], None],
    ) -> None:
        self.nodes = nodes
        self.present: dict[int, Guest] = {}
        """By rank."""
        self.joined: Callable[[int, Guest], None] = lambda rank, guest: None
        self.left: Callable[[int, Guest, str], None] = lambda rank, guest, why: None
        """Told the reason."""
        self.heard: Callable[[int, Message], None] = lambda rank, message: None
        self._settings = dict(settings)
        self._config = config
        self._key = key
        self._network = network
        self._note = note
        self._refused: dict[str, str] = {}
        self._turn = anyio.Event()

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that are not there."""
        return tuple(rank for rank in range(1, self.nodes) if rank not in self.present)

    @property
    def refused(self) -> str:
        """Who came and was not taken in, and why, in words; empty if nobody."""
        return "; ".join(self._refused.values())

    async def complete(self) -> None:
        """Return when every host is there."""
        while self.missing:
            await self._turn.wait()

    def send(self, rank: int, message: Message) -> None:
        """Say something to a host; lost if it has gone."""
        guest = self.present.get(rank)
        if guest is not None:
            guest.link.send(message)

    async def hold(self, host: str, port: int) -> None:
        """Take in hosts that come to `port` of `host`, until cancelled. Raises `ConfigError` if that cannot be had."""
        await self._network.listen(host, port, self._receive)

    async def end(self, dismissal: Dismiss) -> None:
        """Tell everybody that the group has ended, and wait for a moment until they have gone."""
        for guest in self.present.values():
            guest.link.send(dismissal)
        with anyio.move_on_after(FLUSH):
            while self.present:
                await self._turn.wait()

    async def _receive(self, stream: ByteStream) -> None:
        config = self._config
        link = Link(stream, interval=config.heartbeat_interval, timeout=config.heartbeat_timeout)
        try:
            try:
                guest = await self._admit(link)
            except WireError as error:
                self._note(f"somebody at {link.remote_address} connected, and {error}")
                return
            if guest is not None:
                await self._attend(guest)
        finally:
            await link.aclose()

    async def _admit(self, link: Link) -> Guest | None:
        challenge = Challenge(PROTOCOL, secrets.token_hex(16))
        await link.say(challenge)
        hello = await link.receive()
        if not isinstance(hello, Hello):
            raise WireError(f"says {type(hello).__name__} where Hello was due")
        variable = self._config.group_key_env or "group_key_env"
        refused = refusal(self._key, variable, self.nodes, self._settings, challenge, hello) or self._taken(hello)
        if refused is not None:
            told = f"{hello.host} ({link.remote_address}), rank {hello.rank}, was refused: {refused.reason}"
            if self._refused.get(hello.instance) != told:
                self._note(told)
            self._refused[hello.instance] = told
            await link.say(refused)
            return None
        await link.say(Welcome(proof(self._key, "head", challenge, hello)))
        return Guest(hello, link)

    def _taken(self, hello: Hello) -> Refusal | None:
        """Two hosts cannot have one rank. One that comes back may find its old connection still there."""
        there = self.present.get(hello.rank)
        if there is None or there.hello.instance == hello.instance:
            return None
        return Refusal(f"rank {hello.rank} is {there.hello.host} already: give each host its own rank", final=False)

    async def _attend(self, guest: Guest) -> None:
        rank = guest.hello.rank
        before = self.present.get(rank)
        if before is not None:
            self._leave(rank, before, "it has come back")
        self._refused.pop(guest.hello.instance, None)
        self.present[rank] = guest
        self._note(f"{guest.name} is there")
        self.joined(rank, guest)
        self._ring()
        why = "the head has ended"
        try:
            why = await guest.link.run(lambda message: self._hear(guest, message))
        finally:
            self._leave(rank, guest, why)

    def _hear(self, guest: Guest, message: Message) -> None:
        if self.present.get(guest.hello.rank) is guest:
            self.heard(guest.hello.rank, message)

    def _leave(self, rank: int, guest: Guest, why: str) -> None:
        if self.present.get(rank) is guest:
            del self.present[rank]
            self._note(f"{guest.name} has gone: {why}")
            self.left(rank, guest, why)
            self._ring()

    def _ring(self) -> None:
        self._turn.set()
        self._turn = anyio.Event()
