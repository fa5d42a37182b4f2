"""Requests to one server or to several equal ones: they wait, survive restarts, and are repeated in one place only.

OpenAI's payloads and answers. A 4xx is never repeated, nor is a request that timed out (the server may still be at work
on it). 429, 500, 502, 503, 504, broken connections and restarts are, up to `max_retries` times, with jitter, honouring
`Retry-After`. One that met a connection which its server had closed, as a server may when it is idle, is sent once more
at once, on a new connection (a generation is safe to repeat): that says nothing of the server and is counted apart.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from email.utils import parsedate_to_datetime
from time import time
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import anyio
import msgspec

from lifecycle.decoding import decode
from lifecycle.errors import RequestError, RequestRefused, RetriesExhausted
from lifecycle.gate import Admission, Gate, Pass
from lifecycle.observing import Observer, Request, observed
from lifecycle.wire import Answer, Broken, Stream, Unsendable, Wire, make_wire

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
RETRIED = frozenset((429, 500, 502, 503, 504))
OVERLOAD = frozenset((429, 503))
BACKOFF_INITIAL, BACKOFF_MAX = 0.25, 8.0
"""Seconds; doubled for each further attempt, the upper half of it at random. Not all of it: when a server dies,
hundreds of requests find out before its manager does, and must not spend their attempts on a port that nobody serves.
"""
RETRY_AFTER_MAX = 60.0
"""Seconds. A server that asks for more is not waited for longer than this."""
KEPT_OF_BODY = 2000
"""Characters of an error answer that an exception carries."""


class Client:
    """Sends requests as it is given leave, by the gate of one server or by the dispatch of a fleet. Close it at the
    end."""

    def __init__(
        self,
        admission: Admission,
        *,
        api_key: str | None = None,
        request_timeout: float = 600.0,
        max_retries: int = 3,
        roll: Callable[[], float] = random.random,
    ) -> None:
        self._admission = admission
        self._api_key = api_key
        self._timeout = request_timeout
        self._max_retries = max_retries
        self._roll = roll
        self._http: httpx.AsyncClient | None = None
        """Sends everything if it is there: simulated servers are reached so."""
        self._wire: Wire | None = None
        self.observers: list[Observer] = []
        """Told of each request."""
        self.retries = 0
        """Attempts beyond the first, of all requests."""
        self.resent = 0
        """Requests that were sent once more because their connection had been closed when it was idle."""

    @property
    def sent_again(self) -> int:
        """How often a request was sent once more, whether that cost it an attempt or not."""
        return self.retries + self.resent

    @property
    def in_flight(self) -> int:
        """Requests that a server has now; others wait for one."""
        return self._admission.in_flight

    async def request(
        self, path: str, payload: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """POST `payload` to `path` (GET without one) and return the JSON answer.

        Args:
            path: such as "/v1/chat/completions".
            payload: the body. A missing `model` is filled in with the server's own.
            timeout: seconds for one attempt, from when it is sent: what it waits before, for its server or for room
                there, does not count. Default: `request_timeout`.

        Raises:
            RequestRefused: the server answered 4xx.
            RetriesExhausted: the last attempt that the budget allows has failed.
            RequestError: no answer within the timeout, or an answer that is not JSON.
            Draining: the server is stopping or has stopped.
            StartFailed: the server was given up.
        """
        limit = self._timeout if timeout is None else timeout
        if not self.observers:
            return await self._retried(self._ask, path, payload, limit)
        with observed(self.observers, Request(path, payload)) as seen:
            seen.answer = answer = await self._retried(self._ask, path, payload, limit, seen)
            return answer

    @asynccontextmanager
    async def stream(
        self, path: str, payload: Mapping[str, Any], *, timeout: float | None = None
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """POST with `stream: true`; the chunks as they come, without the final `[DONE]`.

        Until the answer begins it waits and is repeated like `request`. A stream that breaks later raises
        `RequestError`: what was already read cannot be taken back. `timeout` is for the whole stream.
        """
        limit = self._timeout if timeout is None else timeout
        payload = {**payload, "stream": True}
        with observed(self.observers, Request(path, payload)) as seen:
            stream, began, gate = await self._retried(self._begin, path, payload, limit, seen)
            async with _closing(stream):
                with anyio.CancelScope(deadline=began + limit) as scope, gate.entered(scope) as entry:
                    async with aclosing(self._chunks(stream, path, gate, seen)) as chunks:
                        yield chunks
                if entry.cut and scope.cancelled_caught:
                    raise RequestError(f"the stream from {path} was cut: its server has gone")
                if scope.cancelled_caught:
                    why = f"it took longer than request_timeout = {limit:g} s"
                    raise RequestError(f"the stream from {path} was cut: {why}")

    async def _chunks(
        self, stream: Stream, path: str, gate: Gate, seen: Request
    ) -> AsyncGenerator[dict[str, Any]]:
        import httpx
        from httpx_sse import EventSource, SSEError

        # Without its parameters: a stream of events is UTF-8 whatever they say (WHATWG HTML, 9.2.5).
        kind = {"content-type": stream.headers.get("content-type", "").partition(";")[0]}
        complete = False
        try:
            async for event in EventSource(httpx.Response(200, headers=kind, content=stream.pieces)).aiter_sse():
                gate.touch()
                if event.data == "[DONE]":
                    return
                chunk = _json(event.data.encode(), path)
                if chunk.get("error"):  # vLLM and OpenAI tell so of an error after the headers have been sent
                    raise RequestError(f"the stream from {path} broke: the server says {chunk['error']}")
                complete = complete or _finished(chunk)
                seen.chunk(chunk)
                yield chunk
        except (Broken, SSEError) as error:
            raise RequestError(f"the stream from {path} broke: {error}") from None
        if not complete:
            raise RequestError(f"the stream from {path} ended before its answer was complete: it is cut")

    async def aclose(self) -> None:
        if self._wire is not None:
            wire, self._wire = self._wire, None
            await wire.aclose()

    async def _ask(self, leave: Pass, path: str, payload: Mapping[str, Any] | None, fresh: bool) -> dict[str, Any]:
        answer = await self._wire_to(leave).send(_url(leave, path), _body(leave, payload), fresh=fresh)
        if answer.status >= 300:
            self._raise_for(path, answer, leave.gate)
        return _json(answer.content, path)

    async def _begin(
        self, leave: Pass, path: str, payload: Mapping[str, Any] | None, fresh: bool
    ) -> tuple[Stream, float, Gate]:
        """The stream, the event loop's time at which it was asked for, and the gate of the server that sends it."""
        began = leave.gate.now()
        stream = await self._wire_to(leave).open(_url(leave, path), _body(leave, payload), fresh=fresh)
        if stream.status >= 300:
            async with _closing(stream):
                content = b"".join([piece async for piece in stream.pieces])
                self._raise_for(path, Answer(stream.status, stream.headers, content), leave.gate)
        return stream, began, leave.gate

    async def _retried(
        self,
        once: Callable[[Pass, str, Mapping[str, Any] | None, bool], Awaitable[T]],
        path: str,
        payload: Mapping[str, Any] | None,
        limit: float,
        seen: Request | None = None,
    ) -> T:
        tried: list[Gate] = []
        attempt, fresh = 1, False
        while True:
            leave = await self._admission.pass_through(tried)
            gate = leave.gate
            if seen is not None:
                seen.server, seen.attempts = gate.label, attempt
            try:
                with anyio.CancelScope(deadline=gate.now() + limit) as scope, gate.entered(scope) as entry:
                    answer = await once(leave, path, payload, fresh)
                    gate.served()
                    return answer
                if not entry.cut:
                    raise RequestError(f"{path}: no answer within request_timeout = {limit:g} s", attempts=attempt)
                failed = _Again("its server has gone")
            except _Again as again:
                failed = again
                if failed.status not in OVERLOAD:
                    gate.failed()
            except Broken as broken:
                if broken.stale and not fresh:
                    fresh = True
                    self.resent += 1
                    continue
                gate.doubt()
                gate.failed()
                failed = _Again(f"no answer: {broken}")
            except Unsendable as error:
                raise RequestError(f"{path}: {error}", attempts=attempt) from None
            if attempt > self._max_retries:
                raise RetriesExhausted(
                    f"{path}: {failed} (attempt {attempt} of {attempt}; max_retries = {self._max_retries})",
                    status=failed.status,
                    body=failed.body,
                    attempts=attempt,
                )
            self.retries += 1
            tried.append(gate)
            await self._pause(failed, attempt, tried)
            attempt += 1

    async def _pause(self, failed: _Again, attempt: int, tried: Sequence[Gate]) -> None:
        wait = min(BACKOFF_MAX, BACKOFF_INITIAL * 2.0 ** (attempt - 1)) * (0.5 + 0.5 * self._roll())
        if failed.retry_after is not None:
            wait = min(RETRY_AFTER_MAX, failed.retry_after)
        await self._admission.pause(wait, tried)

    def _raise_for(self, path: str, answer: Answer, gate: Gate) -> NoReturn:
        status = answer.status
        body = answer.content[: 4 * KEPT_OF_BODY].decode("utf-8", "replace")[:KEPT_OF_BODY]
        if status in OVERLOAD:
            gate.overloaded()
        if status in RETRIED:
            raise _Again(f"HTTP {status}", status=status, body=body, retry_after=retry_after(answer.headers))
        if 400 <= status < 500:
            raise RequestRefused(f"{path}: HTTP {status}: {body[:300]}", status=status, body=body)
        if status < 400:
            there = answer.headers.get("location", "nowhere")
            raise RequestError(f"{path}: HTTP {status}: it leads to {there}; give that address instead", status=status)
        raise RequestError(f"{path}: HTTP {status}: {body[:300]}", status=status, body=body)

    def _wire_to(self, leave: Pass) -> Wire:
        if self._wire is None:
            if self._http is not None:
                from lifecycle.wire_httpx import HttpxWire

                self._wire = HttpxWire(self._http)
            else:
                self._wire = make_wire(self._api_key, tls=leave.url.startswith("https:"))
        return self._wire


def _url(leave: Pass, path: str) -> str:
    return f"{leave.url}/{path.removeprefix('/')}"


def _body(leave: Pass, payload: Mapping[str, Any] | None) -> bytes | None:
    if payload is None:
        return None
    return msgspec.json.encode(payload if "model" in payload or not leave.model else {"model": leave.model, **payload})


@asynccontextmanager
async def _closing(stream: Stream) -> AsyncIterator[None]:
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await stream.aclose()


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
        answer = decode(content)
    except msgspec.MsgspecError as error:
        answer, why = None, f"JSON ({error})"
    else:
        why = "a JSON object"
    if not isinstance(answer, dict):
        raise RequestError(f"{path}: the answer is not {why}", body=content[:200].decode("utf-8", "replace"))
    return answer
