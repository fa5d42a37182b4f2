"""The live page of servers: their state diagrams, starts, load, failures and logs, in a browser on this host.

    page = LivePage(config)
    server = Server(config, listener=page)
    async with page.served(server, 8265) as url, server:
        ...

It only shows. It is bound to loopback, answers GET for this user alone, refuses foreign names of the host and foreign
pages, loads nothing from elsewhere, and masks the secrets that Stoker knows. Runs on asyncio.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import sniffio
from aiohttp import web

from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError
from lifecycle.journal import Record
from lifecycle.resources.log import pieces, tail
from lifecycle.resources.ports import NOBODY_SEEN, holder_of
from lifecycle.secrets import api_key, known_secrets, mask
from lifecycle.ui import static
from lifecycle.ui.board import Board
from lifecycle.ui.guard import Refused, check_peer, check_request
from lifecycle.ui.meters import Meters, Own, Part

ADDRESS = "127.0.0.1"
PAUSE = 0.1
"""Least seconds between two messages to one page."""
BEAT = 10.0
"""Seconds after which a page that was sent nothing is sent something, so that it can tell a quiet server from one that
has gone."""
LOG_LINES = 300
"""Last lines of a log that are shown."""
LOG_LOOK = 0.5
"""Seconds between two looks at a log."""
MOST_STREAMS = 64
"""Open streams: a page has two."""
FILES = {
    "/": ("live.html", "text/html"), "/style.css": ("style.css", "text/css"),
    "/parts.js": ("parts.js", "text/javascript"), "/plots.js": ("plots.js", "text/javascript"),
    "/live.js": ("live.js", "text/javascript"),
}  # fmt: skip
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class LivePage:
    """A journal listener whose page shows what it hears. Raises `ConfigError` if a named key cannot be read.

    Args:
        config: of the server, or of each of the servers.
    """

    def __init__(self, config: ServerConfig, environ: Mapping[str, str] = os.environ) -> None:
        self.board = Board()
        self._label = config.label
        self._secrets = known_secrets(api_key(config), config.env, environ)
        self._turn = anyio.Event()
        self._meters: Meters | None = None
        self._closing = False
        self._streams = 0
        self.board.changed = self._ring

    def __call__(self, record: Record) -> None:
        """Take a record of a journal."""
        self.board(record)

    @asynccontextmanager
    async def served(self, service: Any, port: int = 0) -> AsyncIterator[str]:
        """Show the page while the body runs; gives its URL. Raises `ConfigError` if the port cannot be had.

        Args:
            service: whose load is shown: a `Server`, a `Group`, a `Fleet`, a `Front`.
            port: on 127.0.0.1. 0: any that is free.
        """
        if sniffio.current_async_library() != "asyncio":
            raise ConfigError("the live page needs the event loop of asyncio: run this program with it, or without ui")
        own = Own() if hasattr(service, "client") else None
        if own is not None:
            service.client.observers.append(own)
        meters = self._meters = Meters(self._label, lambda: parts_of(service, self._label), own)
        runner = web.AppRunner(self._app(), handle_signals=False, access_log=None, shutdown_timeout=1.0)
        listening = _listen(port)
        error: Exception | None = None
        try:
            await runner.setup()
            await web.SockSite(runner, listening).start()
            async with anyio.create_task_group() as group:
                group.start_soon(meters.run, time.time, self._ring)
                try:
                    yield f"http://{ADDRESS}:{listening.getsockname()[1]}/"
                except Exception as found:  # to go on as itself, not inside a group
                    error = found
                group.cancel_scope.cancel()
            if error is not None:
                raise error
        finally:
            self._closing = True
            self._ring()
            with anyio.CancelScope(shield=True):
                await runner.cleanup()
            listening.close()
            if own is not None:
                service.client.observers.remove(own)

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[_guarded])
        for path in FILES:
            app.router.add_get(path, _file)
        app.router.add_get("/events", self._events)
        app.router.add_get("/log/{name}", self._log)
        return app

    def _ring(self) -> None:
        self._turn.set()
        self._turn = anyio.Event()

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = _stream_response()
        async with self._stream(request, response) as send:
            seen: dict[str, int] = {}
            samples = list(self._meters.samples) if self._meters else []
            await send("hello", {"label": self._label, "now": time.time(), "samples": samples})
            sampled = samples[-1]["at"] if samples else 0.0
            while True:
                turn = self._turn
                for news in self.board.news(seen):
                    await send("server", news)
                for sample in [one for one in (self._meters.samples if self._meters else ()) if one["at"] > sampled]:
                    sampled = sample["at"]
                    await send("sample", sample)
                if self._closing:
                    await send("end", {})
                    break
                if not await _within(BEAT, turn):
                    await send("beat", {})
                await anyio.sleep(PAUSE)
        return response

    async def _log(self, request: web.Request) -> web.StreamResponse:
        name, response = request.match_info["name"], _stream_response()
        async with self._stream(request, response) as send:
            path, shown, quiet = "", list[str](), 0.0
            sizes: tuple[tuple[int, int], ...] = ()
            while not self._closing:
                now = self.board.log_of(name)
                looks = await anyio.to_thread.run_sync(_sizes, now) if now else ()
                if now != path:
                    path, shown, sizes = now, [], ()
                    await send("reset", {"path": path, "there": bool(looks)})
                if looks != sizes:
                    sizes = looks
                    lines = await anyio.to_thread.run_sync(tail, Path(path), LOG_LINES)
                    new = lines[overlap(shown, lines) :]
                    shown = lines
                    await send("lines", {"lines": new})
                quiet += LOG_LOOK
                if quiet >= BEAT:
                    quiet = 0.0
                    await send("beat", {})
                await anyio.sleep(LOG_LOOK)
            await send("end", {})  # or else the browser would ask again and again
        return response

    @asynccontextmanager
    async def _stream(
        self, request: web.Request, response: web.StreamResponse
    ) -> AsyncIterator[Callable[[str, Any], Any]]:
        """Server-sent events (WHATWG HTML, 9.2) as the answer; what it gives sends one."""
        if self._streams >= MOST_STREAMS:
            raise web.HTTPServiceUnavailable(text="too many pages are open\n")
        self._streams += 1
        try:
            await response.prepare(request)

            async def send(event: str, what: Any) -> None:
                data = msgspec.json.encode(masked(what, self._secrets))
                await response.write(b"event: %b\ndata: %b\n\n" % (event.encode(), data))

            yield send
        except ConnectionResetError:  # whoever looked has gone
            pass
        finally:
            self._streams -= 1


def parts_of(service: Any, label: str) -> dict[str, Part]:
    """The servers behind a service by name: the replicas of a fleet, or of the fleet behind a router; or itself."""
    fleet = getattr(service, "fleet", service)
    if hasattr(fleet, "slots"):
        return {slot.name: slot.replica for slot in fleet.slots}
    return {label: service}


def overlap(before: list[str], now: list[str]) -> int:
    """How many of the lines that are at the end of a log now were there before.

    >>> overlap(["a", "b", "c"], ["b", "c", "d"]), overlap([], ["a"]), overlap(["x"], ["y"])
    (2, 0, 0)
    """
    for size in range(min(len(before), len(now)), 0, -1):
        if before[-size:] == now[:size]:
            return size
    return 0


def masked(value: Any, secrets: tuple[str, ...]) -> Any:
    """A plain value with every secret in its texts masked."""
    if not secrets:
        return value
    if isinstance(value, str):
        return mask(value, secrets)
    if isinstance(value, Mapping):
        return {key: masked(each, secrets) for key, each in value.items()}
    return [masked(each, secrets) for each in value] if isinstance(value, list | tuple) else value


def _sizes(path: str) -> tuple[tuple[int, int], ...]:
    """What changes when something is written to a log."""
    found = []
    for piece in pieces(Path(path)):
        try:
            stat = piece.stat()
        except OSError:
            continue
        found.append((stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def _stream_response() -> web.StreamResponse:
    return web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})


async def _within(seconds: float, turn: anyio.Event) -> bool:
    """Whether something came in time."""
    with anyio.move_on_after(seconds):
        await turn.wait()
        return True
    return False


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((ADDRESS, port))
        listening.listen(64)
    except OSError as error:
        listening.close()
        holder = holder_of(port)
        why = f"{holder} has it" if holder != NOBODY_SEEN else error.strerror
        raise ConfigError(
            f"ui = {port}: {ADDRESS}:{port} cannot be bound ({why}); choose another port with --ui, or --ui without one"
        ) from None
    return listening


@web.middleware
async def _guarded(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
    try:
        check_request(request.method, request.headers.get("Host", ""), request.headers.get("Sec-Fetch-Site", ""))
        peer = request.transport.get_extra_info("peername") if request.transport else None
        here = request.transport.get_extra_info("sockname") if request.transport else None
        if not peer or not here:
            raise Refused(403, "nobody can tell whose connection this is")
        check_peer(peer[1], here[1])
        found: web.StreamResponse = await handler(request)
    except Refused as refused:
        return web.Response(status=refused.status, text=f"{refused}\n", headers=HEADERS)
    except web.HTTPException as error:
        return web.Response(status=error.status, text=f"{error.reason}\n", headers=HEADERS)
    return found


async def _file(request: web.Request) -> web.Response:
    name, kind = FILES[request.path]
    return web.Response(text=static(name), content_type=kind, charset="utf-8", headers=HEADERS)
