"""What runs on a node: an actor that hosts one `Server` and tells the driver all that becomes of it.

Ray makes it an asynchronous actor, since its methods are: they run on one event loop beside the server's activities.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio

from lifecycle.adapter import EngineLoad
from lifecycle.config import ServerConfig
from lifecycle.errors import StokerError
from lifecycle.journal import Record
from lifecycle.ray import guard
from lifecycle.ray.settings import KEY_VARIABLE
from lifecycle.server import Server
from lifecycle.server_facts import Facts

OF_RAY = ("PYTHONBREAKPOINT",)
"""Variables that Ray sets in its workers and that are not for the servers."""


@dataclass(frozen=True)
class Welcome:
    """What an actor says of itself, before it is told anything."""

    stoker: str
    """Version of Stoker there."""
    address: str
    """Of the node, as Ray knows it."""
    node_id: str
    host: str
    pid: int
    python: str


@dataclass(frozen=True)
class News:
    """A record of the server's journal, and where the server stood then."""

    number: int
    """Counts from 1."""
    record: Record
    state: str
    facts: Facts
    url: str


class Reporter:
    """Keeps what becomes of a server until the driver has it. `hear` is a listener of the server's journal."""

    def __init__(self) -> None:
        self.server: Server | None = None
        self._news: list[News] = []
        self._told = 0
        self._more: anyio.Event | None = None

    def hear(self, record: Record) -> None:
        server = self.server
        assert server is not None
        self._told += 1
        self._news.append(News(self._told, record, server.state, server.driver.facts, server.url))
        self.wake()

    def wake(self) -> None:
        """Whoever waits for news looks again."""
        if self._more is not None:
            self._more.set()
            self._more = None

    async def after(self, number: int, wait: float) -> list[News]:
        """What has happened since the news with that number, which are dropped; waits so many seconds for it."""
        self._news = [news for news in self._news if news.number > number]
        if not self._news:
            self._more = self._more or anyio.Event()
            with anyio.move_on_after(wait):
                await self._more.wait()
        return list(self._news)


class Hosted:
    """The actor."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._life: asyncio.Task[None] | None = None
        self._reporter = Reporter()
        self._guard = -1

    async def welcome(self) -> Welcome:
        """Who and where this is."""
        return Welcome(own_version(), node_address(), node_id(), socket.gethostname(), os.getpid(), sys.executable)

    async def start(self, config: ServerConfig, variables: Mapping[str, str], key: str | None) -> str:
        """Begin the server's life, on this node's address. What is wrong with the configuration here, or nothing.

        Args:
            config: with `api_key_env` naming the variable that the key is put into.
            variables: set in this process, and so in the server's.
            key: of the server; never in a command line, nor in an argument that Ray writes down.
        """
        for name in OF_RAY:
            os.environ.pop(name, None)
        os.environ.update(variables)
        if key is not None:
            os.environ[config.api_key_env or KEY_VARIABLE] = key
        try:
            server = Server(replace(config, host=node_address()), listener=self._reporter.hear)
            self._guard = guard.begin(server.host.state_dir)
        except (StokerError, OSError) as error:
            return str(error)
        die_by_sigterm()
        self._server = self._reporter.server = server
        self._life = asyncio.create_task(self._live(server))
        return ""

    async def _live(self, server: Server) -> None:
        try:
            async with server:
                await server.ended()
        finally:
            self._reporter.wake()

    async def news(self, after: int, wait: float) -> list[News]:
        """What has happened since the news with that number; waits so many seconds for it. Raises what has ended the
        server's life if its end was none of its own states."""
        if self._life is not None and self._life.done():
            self._life.result()
        return await self._reporter.after(after, wait)

    async def stop(self, within: float | None) -> None:
        """See `Server.stop`."""
        if self._server is not None:
            await self._server.stop(within)

    async def kill(self) -> None:
        """See `Server.kill`."""
        if self._server is not None:
            await self._server.kill()

    async def load(self) -> EngineLoad | None:
        """See `Server.load`."""
        return await self._server.load() if self._server is not None else None

    async def end(self) -> None:
        """End the server now, and return when it has."""
        if self._server is not None and self._life is not None:
            await self._server.kill()
            await asyncio.wait([self._life])


def die_by_sigterm() -> None:
    """SIGTERM ends this process at once, as the guard and the keeper expect of whatever ends it. Ray's own handler
    leaves the process of an asynchronous actor behind, for ever, with nothing at work in it (seen with ray 2.60).

    By the C library, since Python lets nobody but the main thread say what a signal does, and Ray keeps that one.
    """
    c = ctypes.CDLL(None, use_errno=True)
    c.signal.restype, c.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    c.signal(signal.SIGTERM, int(signal.SIG_DFL))


def own_version() -> str:
    """Of the Stoker that this process runs; "unknown" if it was not installed."""
    try:
        return version("stoker")
    except PackageNotFoundError:
        return "unknown"


def node_id() -> str:
    """The id of this node, as its label `ray.io/node-id` has it."""
    ray: Any = import_module("ray")
    return str(ray.get_runtime_context().get_node_id())


def node_address() -> str:
    """The address at which Ray knows this node."""
    util: Any = import_module("ray.util")
    return str(util.get_node_ip_address())
