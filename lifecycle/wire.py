"""How one request travels: aiohttp's own session on asyncio, httpx on trio, behind one small seam.

Neither repeats anything, follows a redirect, takes a proxy from the environment, keeps cookies, or limits how many
connections there are or how long an answer takes; connecting alone has a limit. Compressed bodies are decoded.

aiohttp is used directly because httpx's pool is quadratic in connections: at 256 in flight it is some twenty times
slower, and `httpx-aiohttp` three times.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
import sniffio

if TYPE_CHECKING:
    from lifecycle.wire_httpx import HttpxWire

CONNECT_TIMEOUT = 10.0
"""Seconds."""
KEEP_IDLE = 4.0
"""Seconds for which an idle connection is kept. uvicorn, which vLLM and SGLang serve with, and llama.cpp close it after
5 s of their own: whoever uses it at that moment is told that it broke."""
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """All of an answer. The names of its headers may be asked for in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer whose body comes in pieces. `aclose` must be called: it closes the connection if the body is not
    through."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]
    aclose: Callable[[], Awaitable[None]]


class Broken(Exception):
    """There was no answer, or one that is cut or is no HTTP.

    Attributes:
        stale: it broke before any answer, on a connection that had served before: most likely the server closed it, as
            it may when it is idle, while the request was on its way. Another connection is worth a try at once.
    """

    def __init__(self, error: Exception, *, stale: bool = False) -> None:
        said = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        super().__init__(str(said)[:300] or type(said).__name__)
        self.stale = stale


class Unsendable(Exception):
    """No request can be made of this URL."""


class Wire(Protocol):
    """Sends requests: POST with a JSON body, GET without one. Raises `Broken` and `Unsendable`.

    A request that is cancelled closes its connection. `fresh` asks for a connection that nobody has used.
    """

    async def send(self, url: str, content: bytes | None, *, fresh: bool = False) -> Answer: ...

    async def open(self, url: str, content: bytes | None, *, fresh: bool = False) -> Stream: ...

    async def aclose(self) -> None: ...


def make_wire(api_key: str | None, *, tls: bool) -> AiohttpWire | HttpxWire:
    """The wire of the event loop that runs here.

    Args:
        api_key: sent with every request as a bearer token.
        tls: False saves reading the certificate store, 20 ms for each wire.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    if tls:
        import httpx

        context = httpx.create_ssl_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if sniffio.current_async_library() == "asyncio":
        return AiohttpWire(headers, context)
    from lifecycle.wire_httpx import HttpxWire, make_http

    return HttpxWire(make_http(headers, context))


_connected: ContextVar[bool] = ContextVar("connected", default=False)
"""Whether the request at hand has made its own connection."""


class _Connector(aiohttp.TCPConnector):
    async def _create_connection(self, *args: Any) -> Any:
        _connected.set(True)
        return await super()._create_connection(*args)


class AiohttpWire:
    """On asyncio."""

    def __init__(self, headers: Mapping[str, str], context: ssl.SSLContext) -> None:
        self._headers = headers
        self._context = context
        self._kept = _session(headers, _Connector(limit=0, ssl=context, keepalive_timeout=KEEP_IDLE))
        self._fresh: aiohttp.ClientSession | None = None

    async def send(self, url: str, content: bytes | None, *, fresh: bool = False) -> Answer:
        response = await self._begin(url, content, fresh)
        try:
            return Answer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(error) from None

    async def open(self, url: str, content: bytes | None, *, fresh: bool = False) -> Stream:
        response = await self._begin(url, content, fresh)

        async def aclose() -> None:
            response.close()

        return Stream(response.status, response.headers, _pieces(response), aclose)

    async def aclose(self) -> None:
        await self._kept.close()
        if self._fresh is not None:
            await self._fresh.close()

    async def _begin(self, url: str, content: bytes | None, fresh: bool) -> aiohttp.ClientResponse:
        session = self._unused() if fresh else self._kept
        if _connected.get():
            _connected.set(False)
        try:
            if content is None:
                return await session.request("GET", url, allow_redirects=False)
            body = aiohttp.BytesPayload(content, content_type=JSON)
            return await session.request("POST", url, data=body, allow_redirects=False)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise Unsendable(f"{error}: no http or https URL") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(error, stale=not _connected.get()) from None
        except ValueError as error:
            raise Unsendable(str(error)) from None

    def _unused(self) -> aiohttp.ClientSession:
        """Opens a connection for each request and closes it afterwards."""
        if self._fresh is None:
            self._fresh = _session(self._headers, _Connector(limit=0, ssl=self._context, force_close=True))
        return self._fresh


def _session(headers: Mapping[str, str], connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    session = aiohttp.ClientSession(
        headers=headers,
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
    )
    session._retry_connection = False  # it would send every GET twice (aiohttp 3.10 and later)
    return session


async def _pieces(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for piece in response.content.iter_any():
            yield piece
    except (aiohttp.ClientError, OSError) as error:
        raise Broken(error) from None
