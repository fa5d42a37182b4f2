"""The wire on trio, and wherever an httpx client is at hand.

httpx's own pool looks at every connection for every request: at 256 in flight it is ten times slower than a transport
for each connection, which is what is used here.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from lifecycle.wire import CONNECT_TIMEOUT, JSON, KEEP_IDLE, Answer, Broken, Stream, Unsendable

PORT_MAX = 65535
FRESH = "fresh"
"""An extension of a request: it wants a connection that nobody has used."""


class HttpxWire:
    """Sends with a client that it closes at the end."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def send(self, url: str, content: bytes | None, *, fresh: bool = False) -> Answer:
        response = await self._begin(url, content, fresh)
        try:
            return Answer(response.status_code, response.headers, await response.aread())
        except (httpx.HTTPError, OSError) as error:
            raise Broken(error) from None

    async def open(self, url: str, content: bytes | None, *, fresh: bool = False) -> Stream:
        response = await self._begin(url, content, fresh)
        return Stream(response.status_code, response.headers, _pieces(response), response.aclose)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _begin(self, url: str, content: bytes | None, fresh: bool) -> httpx.Response:
        reused = True

        async def trace(event: str, info: object) -> None:
            nonlocal reused
            reused = reused and event != "connection.connect_tcp.started"

        method = "GET" if content is None else "POST"
        headers = None if content is None else {"content-type": JSON}
        extensions = {FRESH: fresh, "trace": trace}
        try:
            request = self._http.build_request(method, url, content=content, headers=headers, extensions=extensions)
            if (request.url.port or 0) > PORT_MAX:
                raise Unsendable(f"{url}: there is no port {request.url.port}")
            return await self._http.send(request, stream=True)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise Unsendable(str(error)) from None
        except (httpx.HTTPError, OSError) as error:
            raise Broken(error, stale=reused and not isinstance(error, httpx.ConnectError)) from None
        except ValueError as error:
            raise Unsendable(str(error)) from None


async def _pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in response.aiter_bytes():
            yield piece
    except (httpx.HTTPError, OSError) as error:
        raise Broken(error) from None


def make_http(headers: Mapping[str, str], context: ssl.SSLContext) -> httpx.AsyncClient:
    """A client without hidden limits: no proxy from the environment, no cap on connections, no timeout of its own but
    for connecting."""
    return httpx.AsyncClient(
        transport=_Each(context),
        headers=headers,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
        trust_env=False,
    )


class _Each(httpx.AsyncBaseTransport):
    """A transport for each connection; one that is idle serves the next request, the last one used first."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._idle: list[httpx.AsyncHTTPTransport] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._idle and not request.extensions.get(FRESH):
            transport = self._idle.pop()
        else:
            limits = httpx.Limits(max_connections=1, keepalive_expiry=KEEP_IDLE)
            transport = httpx.AsyncHTTPTransport(verify=self._context, limits=limits, trust_env=False)
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            self._idle.append(transport)  # without a connection: httpcore has closed it
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Returned(response.stream, transport, self._idle)
        return response

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().aclose()


class _Returned(httpx.AsyncByteStream):
    """A body that gives its transport back when it is closed."""

    def __init__(
        self, body: httpx.AsyncByteStream, transport: httpx.AsyncHTTPTransport, idle: list[httpx.AsyncHTTPTransport]
    ) -> None:
        self._body = body
        self._transport = transport
        self._idle = idle

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            yield piece

    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        finally:
            self._idle.append(self._transport)
