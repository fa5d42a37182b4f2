"""Both wires against a server made of sockets: what comes back, which connection carries it, and when it closes."""

from __future__ import annotations

import gc
import gzip
import importlib
import sys
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
import sniffio

from lifecycle.client import Client
from lifecycle.errors import RequestError, RetriesExhausted
from lifecycle.gate import Gate
from lifecycle.server_facts import Facts
from lifecycle.wire import Broken, Unsendable, Wire, make_wire
from tests.peer import Asked, Peer, answer, serving

pytestmark = pytest.mark.anyio
GUARD = 20.0
ASKED = b'{"a": 1}'


@asynccontextmanager
async def wired(api_key: str | None = None) -> AsyncIterator[Wire]:
    wire = make_wire(api_key, tls=False)
    try:
        with anyio.fail_after(GUARD):
            yield wire
    finally:
        with anyio.CancelScope(shield=True):
            await wire.aclose()


@asynccontextmanager
async def connected(url: str, *, max_retries: int = 3) -> AsyncIterator[Client]:
    gate = Gate("test")
    gate.follow("Healthy", Facts(), url)
    client = Client(gate, max_retries=max_retries)
    try:
        with anyio.fail_after(GUARD):
            yield client
    finally:
        with anyio.CancelScope(shield=True):
            await client.aclose()


async def streamed(wire: Wire, url: str) -> bytes:
    stream = await wire.open(url, ASKED)
    try:
        return b"".join([piece async for piece in stream.pieces])
    finally:
        with anyio.CancelScope(shield=True):
            await stream.aclose()


async def test_a_request_goes_as_it_is_and_its_answer_comes_as_it_is() -> None:
    with serving(lambda _: answer(b"\0\xff", "X-Some: thing", status="418 Teapot")) as peer:
        async with wired("key-1") as wire:
            got = await wire.send(f"{peer.url}/a?b=c%20d", ASKED)
            await wire.send(f"{peer.url}/models", None)
    assert (got.status, got.headers["x-some"], got.content) == (418, "thing", b"\0\xff")
    posted, fetched = peer.asked
    assert (posted.line, posted.body) == ("POST /a?b=c%20d HTTP/1.1", ASKED)
    assert posted.headers["content-type"] == "application/json"
    assert (fetched.line, fetched.body) == ("GET /models HTTP/1.1", b"")
    assert {one.headers["authorization"] for one in peer.asked} == {"Bearer key-1"}


def zstd(content: bytes) -> bytes:
    module = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    packed: bytes = module.compress(content)
    return packed


def brotli(content: bytes) -> bytes:
    packed: bytes = importlib.import_module("brotli").compress(content)
    return packed


PACKED: dict[str, Callable[[bytes], bytes]]
PACKED = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd, "br": brotli}


async def test_every_encoding_that_is_offered_is_understood() -> None:
    """Which ones are depends on what is installed beside gzip and deflate."""
    text = b'{"text": "again and again"}' * 1000
    offered: list[str] = []

    def reply(asked: Asked) -> bytes:
        offered[:] = [word.strip() for word in asked.headers["accept-encoding"].split(",")]
        name = asked.line.split()[1].strip("/")
        return answer(PACKED[name](text), f"Content-Encoding: {name}") if name else answer()

    with serving(reply) as peer:
        async with wired() as wire:
            await wire.send(f"{peer.url}/", ASKED)
            assert {"gzip", "deflate"} <= set(offered)
            for name in tuple(offered):
                assert (await wire.send(f"{peer.url}/{name}", ASKED)).content == text
                assert await streamed(wire, f"{peer.url}/{name}") == text


async def test_an_answer_of_ten_megabytes_comes_whole() -> None:
    large = bytes(range(256)) * 40_000
    with serving(lambda _: answer(large)) as peer:
        async with wired() as wire:
            assert (await wire.send(peer.url, ASKED)).content == large
            assert await streamed(wire, peer.url) == large
            packed = gzip.compress(large)
    with serving(lambda _: answer(packed, "Content-Encoding: gzip")) as peer:
        async with wired() as wire:
            assert (await wire.send(peer.url, ASKED)).content == large


async def test_a_body_of_ten_megabytes_arrives_whole() -> None:
    large = b'{"prompt": "' + b"x" * 10_000_000 + b'"}'
    with serving(lambda _: answer()) as peer:
        async with wired() as wire:
            await wire.send(peer.url, large)
    assert peer.asked[0].body == large


async def test_a_connection_serves_one_request_after_the_other() -> None:
    with serving(lambda _: answer()) as peer:
        async with wired() as wire:
            for _ in range(5):
                await wire.send(peer.url, ASKED)
            await streamed(wire, peer.url)
            await wire.send(peer.url, ASKED, fresh=True)
    assert [one.connection for one in peer.asked] == [0] * 6 + [1]


async def test_a_redirect_is_not_followed_and_a_cookie_is_not_kept() -> None:
    with serving(lambda _: answer(b"", "Location: /there", "Set-Cookie: a=b", status="307 There")) as peer:
        async with wired() as wire:
            assert (await wire.send(peer.url, ASKED)).status == 307
            assert (await wire.send(peer.url, ASKED)).headers["location"] == "/there"
        async with connected(peer.url) as client:
            with pytest.raises(RequestError, match="HTTP 307: it leads to /there"):
                await client.request("/v1/completions", {})
    assert not any("cookie" in one.headers for one in peer.asked)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "http:///x", "http://127.0.0.1:99999/x", "nonsense"])
async def test_a_url_to_which_nothing_can_be_sent_is_said_and_not_tried_again(url: str) -> None:
    async with wired() as wire:
        with pytest.raises(Unsendable, match=r"\w"):
            await wire.send(url, ASKED)
    async with connected(url) as client:
        with pytest.raises(RequestError, match=r"^/v1/completions: ") as caught:
            await client.request("/v1/completions", {})
        assert not isinstance(caught.value, RetriesExhausted)


async def closed(peer: Peer, connection: int) -> None:
    """Wait until the server sees that a connection has ended."""
    assert await anyio.to_thread.run_sync(peer.ended[connection].wait, GUARD)


@pytest.mark.parametrize("sent", [b"", answer(b"x" * 100)[:-50]], ids=["before the answer", "inside of it"])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_request_that_is_cancelled_closes_its_connection(sent: bytes, streams: bool) -> None:
    arrived = threading.Event()

    def reply(_: Asked) -> bytes:
        arrived.set()
        return sent

    with serving(reply) as peer:
        async with wired() as wire, anyio.create_task_group() as group:

            async def ask() -> None:
                await (streamed(wire, peer.url) if streams else wire.send(peer.url, ASKED))

            group.start_soon(ask)
            assert await anyio.to_thread.run_sync(arrived.wait, GUARD)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await closed(peer, 0)


async def test_a_stream_that_is_left_early_closes_its_connection() -> None:
    with serving(lambda _: answer(b"x" * 100)[:-50]) as peer:
        async with wired() as wire:
            stream = await wire.open(peer.url, ASKED)
            await stream.aclose()
            await closed(peer, 0)


async def test_an_idle_connection_that_its_server_closed_costs_a_request_nothing() -> None:
    with serving(lambda _: answer(), most=1) as peer:
        async with connected(peer.url, max_retries=0) as client:
            for number in range(4):
                await client.request("/v1/completions", {})
                await closed(peer, number)
    assert len(peer.asked) == 4
    assert client.retries == 0


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-"], ids=["nothing", "half of a head"])
async def test_a_connection_that_its_server_closes_under_a_request_costs_no_attempt(sent: bytes) -> None:
    """The race of keep-alive: the server closes the idle connection while the next request is on its way."""
    with serving(lambda asked: answer() if asked.number == 0 else sent, most=2) as peer:
        async with connected(peer.url, max_retries=0) as client:
            for _ in range(2):
                await client.request("/v1/completions", {})
    assert [(one.connection, one.number) for one in peer.asked] == [(0, 0), (0, 1), (1, 0)]
    assert (client.retries, client.resent) == (0, 1)


async def test_a_stream_that_met_such_a_connection_begins_on_another_one() -> None:
    events = b'data: {"choices": [{"finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    replies = {(0, 0): answer(), (1, 0): answer(events, "Content-Type: text/event-stream")}
    with serving(lambda asked: replies.get((asked.connection, asked.number), b""), most=2) as peer:
        async with connected(peer.url, max_retries=0) as client:
            await client.request("/v1/completions", {})
            async with client.stream("/v1/completions", {}) as chunks:
                assert [chunk async for chunk in chunks] == [{"choices": [{"finish_reason": "stop"}]}]
    assert (len(peer.asked), client.resent) == (3, 1)


async def test_a_new_connection_that_breaks_is_an_attempt_like_any_other() -> None:
    with serving(lambda _: b"", most=1) as peer:
        async with wired() as wire:
            with pytest.raises(Broken) as caught:
                await wire.send(peer.url, ASKED)
            assert not caught.value.stale
        async with connected(peer.url, max_retries=1) as client:
            with pytest.raises(RetriesExhausted):
                await client.request("/v1/completions", {})
    assert len(peer.asked) == 3


async def test_an_answer_that_breaks_in_its_middle_is_an_attempt_like_any_other() -> None:
    """The server was at work on it: to send it again is for the budget to decide."""
    with serving(lambda asked: answer() if asked.number == 0 else answer(b"x" * 100)[:-50], most=2) as peer:
        async with wired() as wire:
            await wire.send(peer.url, ASKED)
            with pytest.raises(Broken) as caught:
                await wire.send(peer.url, ASKED)
    assert not caught.value.stale


async def test_requests_leave_no_cycles_for_the_collector() -> None:
    """That is why `spare_collector` may make it run so seldom."""
    if sniffio.current_async_library() != "asyncio":
        return  # httpx and trio leave some, a few hundred objects for each thousand requests
    with serving(lambda _: answer()) as peer:
        async with connected(peer.url) as client:
            await client.request("/v1/completions", {})
            gc.collect()
            gc.disable()
            try:
                for _ in range(200):
                    await client.request("/v1/completions", {})
                assert gc.collect() < 200
            finally:
                gc.enable()
