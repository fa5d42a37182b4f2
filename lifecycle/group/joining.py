"""A host's side of the meeting: find the head, prove who this is, be taken in."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

import anyio
import msgspec

from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.group.link import Link
from lifecycle.group.messages import PROTOCOL, SAME_STOKER, Challenge, Hello, WireError, proof, welcomed
from lifecycle.group.network import Network
from lifecycle.group.roles import Role
from lifecycle.group.settings import GroupConfig

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between two tries to reach the head; doubled each time."""


class Refused(WireError):
    """The head does not take this host in. `final`: nor will it later."""

    def __init__(self, reason: str, *, final: bool) -> None:
        super().__init__(reason)
        self.final = final


async def join(
    network: Network,
    role: Role,
    settings: dict[str, str],
    config: GroupConfig,
    key: bytes,
    instance: str,
    seen: Callable[[str], None] = lambda why: None,
) -> Link | Diagnosis:
    """Try to reach the head for `gather_timeout` s. The connection, or why there is none.

    Args:
        seen: told why, each time that it did not succeed.
    """
    pause, last = FIRST_PAUSE, "nothing was tried"
    with anyio.move_on_after(config.gather_timeout):
        while True:
            try:
                return await _try(network, role, settings, config, key, instance)
            except Refused as refused:
                last = f"it refuses this host: {refused}"
                if refused.final:
                    return _not_joined(role, last)
            except (WireError, OSError) as error:
                last = str(error) or type(error).__name__
            seen(last)
            await anyio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
    return _not_joined(role, f"no success within gather_timeout = {config.gather_timeout:g} s; last seen: {last}")


async def _try(
    network: Network, role: Role, settings: dict[str, str], config: GroupConfig, key: bytes, instance: str
) -> Link:
    with anyio.move_on_after(config.heartbeat_timeout) as limit:
        stream = await network.connect(role.head, role.port)
    if limit.cancelled_caught:
        raise WireError(f"no connection within heartbeat_timeout = {config.heartbeat_timeout:g} s")
    link = Link(stream, interval=config.heartbeat_interval, timeout=config.heartbeat_timeout)
    try:
        challenge = await link.receive()
        if not isinstance(challenge, Challenge):
            raise WireError("what listens there is not the head of a group")
        if challenge.protocol != PROTOCOL:
            said = f"the head speaks version {challenge.protocol} of the protocol, this host {PROTOCOL}: {SAME_STOKER}"
            raise Refused(said, final=True)
        hello = Hello(PROTOCOL, role.rank, role.nodes, settings, socket.gethostname(), instance, secrets.token_hex(16))
        hello = msgspec.structs.replace(hello, proof=proof(key, "host", challenge, hello))
        await link.say(hello)
        refusal = welcomed(key, challenge, hello, await link.receive())
        if refusal is not None:
            raise Refused(refusal.reason, final=refusal.final)
    except BaseException:
        await link.aclose()
        raise
    return link


def _not_joined(role: Role, why: str) -> Diagnosis:
    return Diagnosis(
        "head-missing",
        f"rank {role.rank} has not joined the head at {role.head}, port {role.port}: {why}",
        Verdict.HOPELESS,
        "check that the command runs on the head, that --head and its port are the same everywhere and reach it, and "
        "that the hosts share settings and key",
    )
