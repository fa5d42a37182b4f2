"""Whatever a server sends as an answer or as a stream, however it is cut: chunks, or an error of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifecycle.client import Client
from lifecycle.errors import RequestError
from lifecycle.gate import Gate
from lifecycle.server_facts import Facts
from lifecycle.wire import Answer, Broken, Stream
from tests.fuzz.damage import CUTS, HARD, NASTY, edits, pieces

SSE = "text/event-stream"
FINISH: dict[str, Any] = {"choices": [{"finish_reason": "stop"}]}
CHUNKS = st.lists(st.fixed_dictionaries({"choices": st.lists(st.fixed_dictionaries({"text": st.text()}), max_size=1)}),
                  max_size=4)  # fmt: skip
KINDS = st.sampled_from(
    [SSE, f"{SSE}; charset=utf-8", f"{SSE}; charset=latin-1", f"{SSE}; charset=utf-16", f"{SSE}; charset=hex",
     f"{SSE}; charset=zlib", f"{SSE}; charset=idna", f"{SSE}; charset=nothing", f'{SSE}; charset="',
     "text/html", "", ";"]
)  # fmt: skip
ENDS = st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"])


class Told:
    """A wire that gives what it is told."""

    def __init__(self, kind: str, data: list[bytes], status: int = 200, breaks: bool = False) -> None:
        self.headers: Mapping[str, str] = {"content-type": kind}
        self.data, self.status, self.breaks, self.closed = data, status, breaks, False

    async def send(self, url: str, content: bytes | None, *, fresh: bool = False) -> Answer:
        return Answer(self.status, self.headers, b"".join(self.data))

    async def open(self, url: str, content: bytes | None, *, fresh: bool = False) -> Stream:
        return Stream(self.status, self.headers, self._pieces(), self.aclose)

    async def _pieces(self) -> AsyncIterator[bytes]:
        for piece in self.data:
            yield piece
        if self.breaks:
            raise Broken(OSError("reset"))

    async def aclose(self) -> None:
        self.closed = True


def run(body: Callable[[Client], Any], wire: Told) -> Any:
    async def whole() -> Any:
        gate = Gate("test")
        gate.follow("Healthy", Facts(model="m"), "http://127.0.0.1:1")
        client = Client(gate, max_retries=0)
        client._wire = wire
        with anyio.fail_after(20):
            return await body(client)

    return anyio.run(whole)


async def read(found: list[dict[str, Any]], client: Client) -> str:
    """What a stream gave is in `found`; the error that ended it, or nothing."""
    try:
        async with client.stream("/v1/x", {}) as chunks:
            async for chunk in chunks:
                found.append(chunk)
    except RequestError as error:
        return str(error)
    return ""


def event(chunk: object, end: str = "\n\n") -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + end.encode()


@HARD
@given(CHUNKS, CUTS, ENDS, KINDS.filter(lambda kind: (kind.startswith(SSE) and "utf-8" in kind) or kind == SSE))
@example([{"choices": [{"text": "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"}]}], [], "\n\n", SSE)
def test_chunks_come_out_as_they_were_sent_however_they_are_cut(
    chunks: list[dict[str, Any]], cuts: list[int], end: str, kind: str
) -> None:
    data = b"".join(event(chunk, end) for chunk in [*chunks, FINISH]) + b"data: [DONE]\n\n"
    found: list[dict[str, Any]] = []
    wire = Told(kind, pieces(data, cuts))
    assert run(partial(read, found), wire) == ""
    assert found == [*chunks, FINISH]
    assert wire.closed


@HARD
@given(st.data(), CHUNKS, CUTS, KINDS, st.booleans())
def test_a_damaged_stream_gives_what_came_before_and_then_a_named_error(
    data: st.DataObject, chunks: list[dict[str, Any]], cuts: list[int], kind: str, breaks: bool
) -> None:
    events = [event(chunk) for chunk in [*chunks, FINISH]]
    whole = b"".join(events) + b"data: [DONE]\n\n"
    damaged, sound = data.draw(edits(whole))
    found: list[dict[str, Any]] = []
    wire = Told(kind, pieces(damaged, cuts), breaks=breaks)
    said = run(partial(read, found), wire)
    assert wire.closed
    if kind == SSE:
        before = sum(1 for number in range(len(events)) if len(b"".join(events[: number + 1])) <= sound)
        assert found[:before] == [*chunks, FINISH][:before]
    assert said or any(chunk for chunk in found) or b"[DONE]" in damaged


@HARD
@given(st.lists(NASTY | st.binary(max_size=40) | st.just(b"data: ") | st.just(b"\n\n"), max_size=8), CUTS, KINDS)
@example([b"data: " + b"[" * 90_000, b"\n\n"], [], SSE)
@example([b"data: ", b'{"a":' * 5000, b"\n\n"], [], SSE)
@example([b"data: [1]\n\n"], [], f"{SSE}; charset=hex")
def test_any_bytes_are_a_stream_or_a_named_error(parts: list[bytes], cuts: list[int], kind: str) -> None:
    found: list[dict[str, Any]] = []
    said = run(partial(read, found), Told(kind, pieces(b"".join(parts), cuts)))
    assert all(isinstance(chunk, dict) for chunk in found)
    assert isinstance(said, str)


@HARD
@given(
    st.lists(NASTY | st.binary(max_size=40), max_size=5).map(b"".join),
    st.sampled_from([200, 204, 302, 400, 404, 500]),
)
@example(b"[" * 90_000, 200)
@example(b'{"a":' * 90_000, 200)
def test_any_answer_is_an_object_or_a_named_error(data: bytes, status: int) -> None:
    async def ask(client: Client) -> object:
        try:
            return await client.request("/v1/x", {})
        except RequestError as error:
            return str(error)

    found = run(ask, Told("application/json", [data], status))
    assert isinstance(found, dict) or found


def test_a_stream_without_damage_is_whole() -> None:
    found: list[dict[str, Any]] = []
    assert run(partial(read, found), Told(SSE, [event(FINISH)])) == ""
    assert found == [FINISH]
    with pytest.raises(AssertionError):
        assert run(partial(read, found), Told(SSE, [event({})])) == ""
