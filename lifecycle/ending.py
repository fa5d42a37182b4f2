"""How long the end of a server may take: for requests in flight, and until SIGKILL. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from lifecycle.config import ServerConfig
from lifecycle.server_facts import Stop

LADDER_SHARE = 3
"""Of a time that is short, one part in so many is kept for the way from SIGTERM to SIGKILL."""

BEFORE_READY_GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL for a server that never became ready or has failed: while they load, engines defer
SIGTERM or lose it (seen with vLLM 0.32), and there is no request to finish."""
LEAST_GRACE = 1.0
"""Seconds from SIGTERM to SIGKILL that are left when a drain has used up all the time there was."""


@dataclass(frozen=True)
class Limits:
    """Seconds from now."""

    drain: float
    """For requests in flight."""
    kill: float
    """Until SIGKILL, whatever is still running."""


def limits(config: ServerConfig, within: float | None = None) -> Limits:
    """How long a drain and the whole end may take.

    Args:
        within: seconds after which somebody else ends everything (a batch system at the end of a job). None: nobody
            does, and the configuration alone decides. Otherwise that is the limit, whatever the defaults are;
            `drain_timeout` and `terminate_timeout` still are upper limits if they are set.
    """
    if within is None:
        return Limits(config.drain_limit, config.kill_limit)
    ladder = max(0.0, config.kill_limit - config.drain_limit)
    kill = min(max(0.0, within), inf if config.terminate_timeout is None else config.terminate_timeout)
    drain = min(kill - min(ladder, kill / LADDER_SHARE), inf if config.drain_timeout is None else config.drain_timeout)
    return Limits(drain, min(kill, drain + ladder))


def for_work(found: Limits) -> float:
    """Seconds of a drain in which work that takes several requests may go on. A server that is told to end after these,
    within the rest, is through with its own drain when this one is."""
    return max(0.0, found.drain - (LADDER_SHARE - 1) * (found.kill - found.drain))


def stop_within(config: ServerConfig, within: float | None) -> Stop:
    """The event that asks a server to end, by these `limits`; within None: as it is configured."""
    if within is None:
        return Stop()
    found = limits(config, within)
    return Stop(found.drain, found.kill)


class Deadlines(Protocol):
    """Facts of whatever is ended: Unix seconds by which requests in flight, and everything, must have ended; None: as
    configured."""

    @property
    def drain_by(self) -> float | None: ...

    @property
    def kill_by(self) -> float | None: ...


def drain_left(facts: Deadlines, config: ServerConfig, began: float, now: float) -> float:
    """Seconds that requests in flight have left at `now`, in a drain that began at `began` (Unix seconds)."""
    by = began + config.drain_limit if facts.drain_by is None else facts.drain_by
    return max(0.0, by - now)


def kill_left(facts: Deadlines, config: ServerConfig, began: float, now: float) -> float:
    """Seconds until SIGKILL, the same way."""
    by = began + config.kill_limit if facts.kill_by is None else facts.kill_by
    return max(0.0, by - now)
