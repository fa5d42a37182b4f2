"""Requests to one server: they wait for it, survive its restarts, and are repeated in one place only.

OpenAI's payloads and answers. A 4xx is never repeated, nor is a request that timed out (the server may still be at work
on it). 429, 500, 502, 503, 504, broken connections and restarts are, up to `max_retries` times, with jitter, honouring
`Retry-After`.
"""

from __future__ import annotations

import random
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from time import time
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import sniffio

from lifecycle.errors import RequestError, RequestRefused, RetriesExhausted
from lifecycle.gate import Gate, Pass

if TYPE_CHECKING:
    import httpx

RETRIED = frozenset((429, 500, 502, 503, 504))
OVERLOAD = frozenset((429, 503))
BACKOFF_INITIAL, BACKOFF_MAX = 0.25, 8.0
"""Seconds; doubled for each further attempt, the upper half of it at random. Not all of it: when a server dies,
hundreds of requests find out before its manager does, and must not spend their attempts on a port that nobody serves.
"""
RETRY_AFTER_MAX = 60.0
"""Seconds. A server that asks for more is not waited for longer than this."""
CONNECT_TIMEOUT = 10.0
KEPT_OF_BODY = 2000
"""Characters of an error answer that an exception carries."""


class Client:
    """Sends requests through a gate. One for each server; close it at the end."""

    def __init__(
        self,
        gate: Gate,
        *,
        api_key: str | None = None,
        request_timeout: float = 600.0,
        max_retries: int = 3,
        roll: Callable[[], float] = random.random,
    ) -> None:
        self._gate = gate
        self._api_key = api_key
        self._timeout = request_timeout
        self._max_retries = max_retries
        self._roll = roll
        self._http: httpx.AsyncClient | None = None
        self.retries = 0
        """Attempts beyond the first, of all requests."""

    async def request(
        self, path: str, payload: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """POST `payload` to `path` (GET without one) and return the JSON answer.

        Args:
            path: such as "/v1/chat/completions".
            payload: the body. A missing `model` is filled in with the server's own.
            timeout: seconds for one attempt, from its first byte sent. Default: `request_timeout`.

        Raises:
            RequestRefused: the server answered 4xx.
            RetriesExhausted: the last attempt that the budget allows has failed.
            RequestError: no answer within the timeout, or an answer that is not JSON.
            Draining: the server is stopping or has stopped.
            StartFailed: the server was given up.
        """

        async def once(leave: Pass) -> dict[str, Any]:
            response = await self._send(leave, path, payload, stream=False)
            content = await response.aread()
            self._raise_for(response, content)
            return _json(content, path)

        answer: dict[str, Any] = await self._retried(once, path, timeout)
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, payload: Mapping[str, Any], *, timeout: float | None = None
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """POST with `stream: true`; the chunks as they come, without the final `[DONE]`.

        Until the answer begins it waits and is repeated like `request`. A stream that breaks later raises
        `RequestError`: what was already read cannot be taken back. `timeout` is for the whole stream.
        """
        from httpx_sse import EventSource

        async def begin(leave: Pass) -> httpx.Response:
            response = await self._send(leave, path, {**payload, "stream": True}, stream=True)
            if response.status_code >= 400:
                self._raise_for(response, await response.aread())
            return response

        response = await self._retried(begin, path, timeout)

        async def chunks() -> AsyncIterator[dict[str, Any]]:
            complete = False
            try:
                async for event in EventSource(response).aiter_sse():
                    self._gate.touch()
                    if event.data == "[DONE]":
                        return
                    chunk = _json(event.data.encode(), path)
                    if chunk.get("error"):  # vLLM and OpenAI tell so of an error after the headers have been sent
                        raise RequestError(f"the stream from {path} broke: the server says {chunk['error']}")
                    complete = complete or _finished(chunk)
                    yield chunk
            except wire_errors() as error:
                raise RequestError(f"the stream from {path} broke: {_said(error)}") from None
            if not complete:
                raise RequestError(f"the stream from {path} ended before its answer was complete: it is cut")

        limit = self._timeout if timeout is None else timeout
        try:
            with anyio.move_on_after(limit) as deadline, anyio.CancelScope() as scope, self._gate.entered(scope):
                yield chunks()
            if deadline.cancelled_caught:
                raise RequestError(f"the stream from {path} was cut: it took longer than request_timeout = {limit:g} s")
            if scope.cancelled_caught:
                raise RequestError(f"the stream from {path} was cut: its server has gone")
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    async def aclose(self) -> None:
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    async def _retried(self, once: Callable[[Pass], Awaitable[Any]], path: str, timeout: float | None) -> Any:
        limit = self._timeout if timeout is None else timeout
        attempt = 0
        while True:
            attempt += 1
            leave = await self._gate.pass_through(again=attempt > 1)
            try:
                return await self._attempt(once, leave, path, limit, attempt)
            except _Again as failed:
                if attempt > self._max_retries:
                    raise RetriesExhausted(
                        f"{path}: {failed} (attempt {attempt} of {attempt}; max_retries = {self._max_retries})",
                        status=failed.status,
                        body=failed.body,
                        attempts=attempt,
                    ) from None
                self.retries += 1
                await self._pause(failed, attempt)

    async def _attempt(
        self, once: Callable[[Pass], Awaitable[Any]], leave: Pass, path: str, limit: float, attempt: int
    ) -> Any:
        import httpx

        with anyio.move_on_after(limit) as deadline, anyio.CancelScope() as scope, self._gate.entered(scope):
            try:
                answer = await once(leave)
            except wire_errors() as error:
                raise _Again(f"no answer: {_said(error)}") from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise RequestError(f"{path}: {_said(error)}", attempts=attempt) from None
            self._gate.served()
            return answer
        if not deadline.cancelled_caught:
            raise _Again("its server has gone")
        raise RequestError(f"{path}: no answer within request_timeout = {limit:g} s", attempts=attempt)

    async def _pause(self, failed: _Again, attempt: int) -> None:
        wait = min(BACKOFF_MAX, BACKOFF_INITIAL * 2.0 ** (attempt - 1)) * (0.5 + 0.5 * self._roll())
        if failed.retry_after is not None:
            wait = min(RETRY_AFTER_MAX, failed.retry_after)
        await self._gate.pause(wait)

    def _raise_for(self, response: httpx.Response, content: bytes) -> None:
        status = response.status_code
        if status < 400:
            return
        body = content[: 4 * KEPT_OF_BODY].decode("utf-8", "replace")[:KEPT_OF_BODY]
        if status in OVERLOAD:
            self._gate.overloaded()
        if status in RETRIED:
            raise _Again(f"HTTP {status}", status=status, body=body, retry_after=retry_after(response.headers))
        if status < 500:
            raise RequestRefused(f"{response.url.path}: HTTP {status}: {body[:300]}", status=status, body=body)
        raise RequestError(f"{response.url.path}: HTTP {status}: {body[:300]}", status=status, body=body)

    async def _send(
        self, leave: Pass, path: str, payload: Mapping[str, Any] | None, *, stream: bool
    ) -> httpx.Response:
        if self._http is None:
            self._http = make_http(self._api_key, tls=leave.url.startswith("https:"))
        url = f"{leave.url}/{path.removeprefix('/')}"
        if payload is None:
            request = self._http.build_request("GET", url)
        else:
            body = payload if "model" in payload or not leave.model else {"model": leave.model, **payload}
            request = self._http.build_request(
                "POST", url, content=msgspec.json.encode(body), headers={"content-type": "application/json"}
            )
        return await self._http.send(request, stream=stream)


def make_http(api_key: str | None, *, tls: bool) -> httpx.AsyncClient:
    """An HTTP client without hidden limits: no proxy from the environment, no cap on connections, no timeout of its own
    but for connecting.

    On asyncio its transport is aiohttp's: several times faster than httpx's own pool at hundreds of connections.
    `tls` False saves reading the certificate store, 20 ms for each client.
    """
    import httpx

    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT)
    context = httpx.create_ssl_context() if tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if sniffio.current_async_library() == "asyncio":
        import aiohttp
        from httpx_aiohttp import AiohttpTransport

        # The session is made here: with `max_connections=None` the transport would fall back to aiohttp's cap of 100.
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=context))
        session._retry_connection = False  # it would send every GET twice (aiohttp 3.10 and later): one retry layer
        transport = AiohttpTransport(verify=context, client=session)
        return httpx.AsyncClient(transport=transport, headers=headers, timeout=timeout, trust_env=False)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(verify=context, limits=limits, headers=headers, timeout=timeout, trust_env=False)


def wire_errors() -> tuple[type[Exception], ...]:
    """What a broken connection raises: httpx's errors, and those of aiohttp, most of which come through as they are
    when what answers does not speak HTTP (httpx-aiohttp 0.2)."""
    import httpx

    aiohttp = sys.modules.get("aiohttp")
    return (httpx.TransportError, OSError) if aiohttp is None else (httpx.TransportError, OSError, aiohttp.ClientError)


def _said(error: Exception) -> str:
    return str(error)[:300] or type(error).__name__


def _finished(chunk: Mapping[str, Any]) -> bool:
    """Whether a chunk of a stream says why its answer ends."""
    choices = chunk.get("choices")
    return isinstance(choices, list) and any(isinstance(c, dict) and c.get("finish_reason") for c in choices)


class _Again(Exception):
    """An attempt failed in a way that another one may not."""

    def __init__(
        self, message: str, *, status: int | None = None, body: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.retry_after = retry_after


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a `Retry-After` header asks for (RFC 9110, 10.2.3: a number or a date), or None."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except ValueError:
        return None


def _json(content: bytes, path: str) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(content)
    except msgspec.MsgspecError as error:
        answer, why = None, f"JSON ({error})"
    else:
        why = "a JSON object"
    if not isinstance(answer, dict):
        raise RequestError(f"{path}: the answer is not {why}", body=content[:200].decode("utf-8", "replace"))
    return answer
