"""The client against a real server process: one retry layer, counted at the server; every request ends."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lifecycle import client as client_module
from lifecycle.client import RETRY_AFTER_MAX, Client, retry_after
from lifecycle.diagnosis import Diagnosis
from lifecycle.errors import Draining, RequestError, RequestRefused, RetriesExhausted, StartFailed
from lifecycle.gate import Gate
from lifecycle.server_facts import Facts
from tests.fake import control, fake_argv, stats

pytestmark = pytest.mark.anyio
GUARD = 20.0
KEY = "key-1234567"
CHAT = "/v1/chat/completions"
UNSEEN = (f"prompt {number}" for number in count())
"""Each test asks what nobody has asked before, so that the server's count of a prompt is the count of its attempts."""


@contextmanager
def running(**flags: Any) -> Iterator[str]:
    """The URL of a fake server of its own."""
    env = {**os.environ, "FAKE_KEY": KEY}
    with subprocess.Popen(fake_argv(0, **flags), stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield f"http://{process.stdout.readline().rpartition(' ')[2].strip()}"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """One fake server for all tests of this module."""
    with running() as url:
        yield url


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "BACKOFF_INITIAL", 0.001)


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[tuple[Client, Gate]]:
    """A client whose server is Healthy."""
    gate = Gate("test")
    gate.follow("Healthy", Facts(model="fake"), url)
    client = Client(gate, **options)
    try:
        with anyio.fail_after(GUARD):
            yield client, gate
        assert gate.in_flight == 0
    finally:
        with anyio.CancelScope(shield=True):
            await client.aclose()


def asking(prompt: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}]}


def told(url: str, *rules: dict[str, Any], path: str = CHAT) -> None:
    """Make the server obey each rule once, in this order, and then answer as usual."""
    control(url, "/_routes", {path: [{"first": 1, **rule} for rule in rules]})


def attempts(url: str, prompt: str) -> int:
    asked: dict[str, int] = stats(url)["bodies"]
    return asked.get(json.dumps(asking(prompt)["messages"]), 0)


async def seen(claim: Callable[[], object]) -> None:
    while not claim():  # noqa: ASYNC110 - another process is not an event
        await anyio.sleep(0.01)


def text(answer: dict[str, Any]) -> str:
    said: str = answer["choices"][0]["message"]["content"]
    return said


async def test_an_answer_comes_back_as_the_server_gave_it(url: str) -> None:
    told(url)
    async with connected(url) as (client, _):
        answer = await client.request(CHAT, {**asking("hello"), "max_tokens": 2})
    assert text(answer) == " token0 token1"
    assert answer["usage"]["completion_tokens"] == 2


async def test_without_a_payload_it_is_a_get(url: str) -> None:
    async with connected(url) as (client, _):
        models = await client.request("/v1/models")
    assert [model["id"] for model in models["data"]] == ["fake"]


async def test_a_path_needs_no_slash_in_front(url: str) -> None:
    async with connected(url) as (client, _):
        assert (await client.request("v1/models"))["object"] == "list"


async def test_a_missing_model_is_filled_in_and_one_that_is_given_is_not_touched(url: str) -> None:
    told(url)
    async with connected(url) as (client, _):
        assert (await client.request(CHAT, asking("hello")))["model"] == "fake"
        with pytest.raises(RequestRefused, match="'other' does not exist"):
            await client.request(CHAT, {**asking("hello"), "model": "other"})


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 422])
async def test_a_4xx_is_sent_once(url: str, status: int) -> None:
    prompt = next(UNSEEN)
    told(url, *[{"status": status}] * 9)
    async with connected(url) as (client, _):
        with pytest.raises(RequestRefused, match=f"HTTP {status}") as caught:
            await client.request(CHAT, asking(prompt))
    assert caught.value.status == status
    assert "told so" in caught.value.body
    assert attempts(url, prompt) == caught.value.attempts == 1


@pytest.mark.parametrize(
    "rule", [{"status": 429}, {"status": 500}, {"status": 502}, {"status": 503}, {"status": 504}, {"do": "reset"}]
)
@pytest.mark.parametrize("retries", [0, 3])
async def test_what_may_pass_is_sent_again_as_often_as_is_allowed_and_no_more(
    url: str, rule: dict[str, Any], retries: int
) -> None:
    prompt = next(UNSEEN)
    told(url, *[rule] * 9)
    async with connected(url, max_retries=retries) as (client, _):
        with pytest.raises(RetriesExhausted, match=f"max_retries = {retries}") as caught:
            await client.request(CHAT, asking(prompt))
    assert attempts(url, prompt) == caught.value.attempts == 1 + retries
    assert caught.value.status == rule.get("status")


async def test_a_get_is_not_sent_more_often_than_is_allowed(url: str) -> None:
    """Transports repeat what is idempotent by themselves, when a connection that they kept turns out to be dead."""
    async with connected(url, max_retries=2) as (client, _):
        await client.request("/v1/models")
        told(url, *[{"do": "reset"}] * 9, path="/v1/models")
        before = stats(url)["requests"]["/v1/models"]
        with pytest.raises(RetriesExhausted):
            await client.request("/v1/models")
        sent = stats(url)["requests"]["/v1/models"] - before
        told(url, path="/v1/models")
        assert client.resent == 1  # the first reset came on a connection that had served before
        assert sent == 3 + client.resent


@pytest.mark.fault(27)
@pytest.mark.parametrize("rule", [{"do": "hang"}, {"do": "headers"}, {"do": "stall"}, {"delay": 5}])
async def test_a_request_that_timed_out_is_not_repeated_and_says_which_limit(url: str, rule: dict[str, Any]) -> None:
    prompt = next(UNSEEN)
    told(url, rule)
    async with connected(url, request_timeout=0.2) as (client, _):
        with pytest.raises(RequestError, match=r"request_timeout = 0\.2 s"):
            await client.request(CHAT, asking(prompt))
    assert attempts(url, prompt) == 1


async def test_the_timeout_of_one_request_wins_over_that_of_the_client(url: str) -> None:
    told(url, {"do": "hang"}, {"delay": 0.3})
    async with connected(url, request_timeout=0.1) as (client, _):
        with pytest.raises(RequestError, match=r"0\.2 s"):
            await client.request(CHAT, asking("hello"), timeout=0.2)
        assert text(await client.request(CHAT, asking("hello"), timeout=GUARD))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\0\xff" * 100,
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\noops",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
)  # fmt: skip
async def test_whatever_answers_instead_of_a_server_is_a_named_error(content: bytes) -> None:
    with answering(content) as url:
        async with connected(url, max_retries=1) as (client, _):
            with pytest.raises(RequestError, match=r"/v1/chat/completions: .*\w"):
                await client.request(CHAT, asking("hello"))
            with pytest.raises(RequestError, match=r"/v1/chat/completions"):
                await collect(client, asking("hello"))


async def test_a_server_that_is_not_there_is_a_named_error() -> None:
    with answering(b"") as url:
        pass
    async with connected(url, max_retries=1) as (client, _):
        with pytest.raises(RetriesExhausted, match="no answer"):
            await client.request(CHAT, asking("hello"))


@pytest.mark.parametrize("body", ["no json", "[1]", "", '{"a": '])
async def test_an_answer_that_is_no_json_object_is_a_named_error(url: str, body: str) -> None:
    told(url, {"body": body})
    async with connected(url) as (client, _):
        with pytest.raises(RequestError, match=r"/v1/chat/completions: .*JSON"):
            await client.request(CHAT, asking("hello"))


@pytest.mark.fault(32)
async def test_a_request_that_is_cancelled_closes_its_connection_and_frees_its_place(url: str) -> None:
    told(url, {"do": "hang"})
    async with connected(url) as (client, gate):
        gone = stats(url)["disconnects"]
        async with anyio.create_task_group() as group:
            group.start_soon(client.request, CHAT, asking("hello"))
            await seen(lambda: stats(url)["in_flight"])
            assert gate.in_flight == 1
            group.cancel_scope.cancel()
        assert gate.in_flight == 0
        await seen(lambda: stats(url)["disconnects"] > gone)
        assert text(await client.request(CHAT, asking("hello")))


@pytest.fixture
def locked_url() -> Iterator[str]:
    """A server that wants a key."""
    with running(need_key="FAKE_KEY") as url:
        yield url


async def test_a_key_is_sent_with_every_request(locked_url: str) -> None:
    async with connected(locked_url, api_key=KEY) as (client, _):
        await client.request("/v1/models")
        assert await collect(client, asking("hello"))
    async with connected(locked_url, api_key="not this one") as (client, _):
        with pytest.raises(RequestRefused, match="wrong key") as caught:
            await client.request("/v1/models")
    assert caught.value.status == 401
    assert "not this one" not in str(caught.value)


FAULTS: dict[str, dict[str, Any]] = {
    "200": {},
    "400": {"status": 400},
    "429": {"status": 429, "headers": {"Retry-After": "0"}},
    "500": {"status": 500},
    "503": {"status": 503, "headers": {"Retry-After": "0"}},
    "reset": {"do": "reset"},
    "hang": {"do": "hang"},
    "half": {"do": "stall"},
}
ENDS = {"200": dict, "400": RequestRefused, "hang": RequestError, "half": RequestError}


def expected(faults: list[str], retries: int) -> tuple[type, int, int]:
    """How a request ends that meets these faults one after the other and then none, how often it is sent, and how many
    of these times cost no attempt: one at most, for a reset on a connection that had served before."""
    tried = resent = 0
    served_before = False
    for sent, fault in enumerate([*faults, *["200"] * 9], 1):
        if fault == "reset" and served_before and not resent:
            resent = 1
            continue
        tried += 1
        if fault in ENDS or tried > retries:
            return ENDS.get(fault, RetriesExhausted), sent, resent
        served_before = fault != "reset"
    raise AssertionError("every request ends")


@given(faults=st.lists(st.sampled_from(sorted(FAULTS)), max_size=6), retries=st.integers(0, 4))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(faults=["500", "reset", "500", "reset"], retries=2)
async def test_every_request_ends_with_an_answer_or_a_named_error_within_its_budget(
    url: str, faults: list[str], retries: int
) -> None:
    prompt = next(UNSEEN)
    told(url, *(FAULTS[fault] for fault in faults))
    outcome = expected(faults, retries)
    limit = 0.5 if outcome[0] is RequestError else GUARD
    async with connected(url, max_retries=retries, request_timeout=limit) as (client, _):
        try:
            ended: type = type(await client.request(CHAT, asking(prompt)))
        except RequestError as error:
            ended = type(error)
    assert (ended, attempts(url, prompt), client.resent) == outcome


async def collect(client: Client, payload: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    async with client.stream(CHAT, payload, **options) as chunks:
        return [chunk async for chunk in chunks]


async def read(client: Client, use: Callable[[dict[str, Any]], None]) -> None:
    async with client.stream(CHAT, asking("hello")) as chunks:
        async for chunk in chunks:
            use(chunk)


async def test_a_stream_gives_chunks_as_they_come_without_the_end_mark(url: str) -> None:
    told(url)
    async with connected(url) as (client, gate):
        seen = ""
        async with client.stream(CHAT, asking("hello")) as chunks:
            assert gate.in_flight == 1
            async for chunk in chunks:
                seen += chunk["choices"][0]["delta"]["content"]
    assert seen == " token0 token1 token2 token3 token4"


@pytest.mark.parametrize("rule", [{"status": 500}, {"status": 429}, {"do": "reset"}])
async def test_a_stream_that_has_not_begun_is_repeated_like_any_request(url: str, rule: dict[str, Any]) -> None:
    prompt = next(UNSEEN)
    told(url, rule, rule)
    async with connected(url) as (client, _):
        assert len(await collect(client, asking(prompt))) == 5
    assert attempts(url, prompt) == 3


async def test_a_stream_that_is_refused_says_why(url: str) -> None:
    told(url, {"status": 400})
    async with connected(url) as (client, _):
        with pytest.raises(RequestRefused, match="told so: 400"):
            await collect(client, asking("hello"))


SOME = b'data: {"choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": null}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + f"{len(SOME):x}\r\n".encode() + SOME + b"\r\n"
ERROR = b'data: {"error": {"message": "EngineDeadError: the engine died", "code": 500}}\n\n'
END = b"data: [DONE]\n\n"
BROKEN = {
    "the connection closes": (CHUNKED, "broke"),
    "the connection closes where nothing says how long it is": (HEAD + b"Connection: close\r\n\r\n" + SOME, "ended"),
    "it ends in good order and without the end mark": (CHUNKED + b"0\r\n\r\n", "ended"),
    "the server sends an error instead": (HEAD + b"Connection: close\r\n\r\n" + SOME + ERROR + END, "EngineDeadError"),
    "a chunk is no JSON": (HEAD + b"Connection: close\r\n\r\n" + SOME + b"data: {\n\n" + END, "JSON"),
}


def _take_request(there: socket.socket) -> None:
    """All of it: what is left unread when a socket is closed turns its end into a reset."""
    head = b""
    while b"\r\n\r\n" not in head:
        head += there.recv(65536)
    head, _, body = head.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head.lower())
    while len(body) < (int(found[1]) if found else 0):
        body += there.recv(65536)


@contextmanager
def answering(content: bytes, *, silent: bool = False) -> Iterator[str]:
    """A server that answers every connection with these bytes, one after the other, and closes it; or falls silent
    until the client closes it."""

    def serve() -> None:
        while True:
            try:
                there, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError), there:
                _take_request(there)
                there.sendall(content)
                if not silent:
                    there.shutdown(socket.SHUT_WR)
                while there.recv(65536):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(("content", "words"), BROKEN.values(), ids=BROKEN)
async def test_a_stream_that_breaks_raises_after_what_has_come(content: bytes, words: str) -> None:
    """An answer that is cut must never look like one that is complete."""
    seen: list[dict[str, Any]] = []
    with answering(content) as url:
        async with connected(url, max_retries=3) as (client, _):
            with pytest.raises(RequestError, match=words):
                await read(client, seen.append)
    assert [chunk["choices"][0]["delta"]["content"] for chunk in seen] == ["half"]


async def test_a_stream_that_says_why_it_ends_needs_no_end_mark() -> None:
    last = SOME.replace(b"null", b'"stop"')
    with answering(HEAD + b"Connection: close\r\n\r\n" + SOME + last) as url:
        async with connected(url) as (client, _):
            assert len(await collect(client, asking("hello"))) == 2


async def test_a_stream_that_takes_too_long_is_cut_and_says_which_limit() -> None:
    with answering(CHUNKED, silent=True) as url:
        async with connected(url) as (client, _):
            with pytest.raises(RequestError, match=r"request_timeout = 0\.2 s"):
                await collect(client, asking("hello"), timeout=0.2)


async def test_a_stream_whose_server_goes_says_so() -> None:
    with answering(CHUNKED, silent=True) as url:
        async with connected(url) as (client, gate):
            with pytest.raises(RequestError, match="its server has gone"):
                await read(client, lambda chunk: gate.cut())


async def test_an_answer_that_is_no_stream_is_a_named_error(url: str) -> None:
    told(url, {"body": {"choices": []}})
    async with connected(url) as (client, _):
        with pytest.raises(RequestError, match="text/event-stream"):
            await collect(client, asking("hello"))


async def test_a_reader_that_leaves_early_closes_the_connection_and_frees_its_place(url: str) -> None:
    told(url, {"do": "headers"})
    async with connected(url) as (client, gate):
        gone = stats(url)["disconnects"]
        async with client.stream(CHAT, asking("hello")):
            assert gate.in_flight == 1
        assert gate.in_flight == 0
        await seen(lambda: stats(url)["disconnects"] > gone)


async def test_a_request_waits_until_its_server_is_healthy(url: str) -> None:
    told(url)
    gate = Gate("test")
    client = Client(gate)
    answers: list[dict[str, Any]] = []

    async def ask() -> None:
        answers.append(await client.request(CHAT, asking("hello")))

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            for state in ("Idle", "Locking", "PortBound", "Starting"):
                gate.follow(state, Facts(), "http://127.0.0.1:1")
                group.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
            assert (gate.in_flight, answers) == (0, [])
            gate.follow("Healthy", Facts(model="fake"), url)
    assert len(answers) == 4
    await client.aclose()


STOPPING = Facts(stopping=True)
GIVEN_UP = Facts(diagnosis=Diagnosis("exited", "it exited"))


@pytest.mark.parametrize(
    ("state", "facts", "error"),
    [
        ("Draining", STOPPING, Draining), ("Stopped", STOPPING, Draining), ("Failed", Facts(), Draining),
        ("Failed", GIVEN_UP, StartFailed),
    ],
)  # fmt: skip
async def test_once_it_ends_requests_are_refused_by_name(url: str, state: str, facts: Facts, error: type) -> None:
    async with connected(url) as (client, gate):
        gate.follow(state, facts, url)
        with pytest.raises(error):
            await client.request(CHAT, asking("hello"))
        with pytest.raises(error):
            await collect(client, asking("hello"))


@pytest.mark.parametrize("state", ["Draining", "Backoff", "Locking", "Starting"])
async def test_a_request_that_broke_waits_for_the_next_life_of_its_server(url: str, state: str) -> None:
    prompt = next(UNSEEN)
    told(url, {"do": "hang"})
    async with connected(url) as (client, gate):
        answers = []

        async def ask() -> None:
            answers.append(await client.request(CHAT, asking(prompt)))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await seen(lambda: stats(url)["in_flight"])
            gate.follow(state, Facts(diagnosis=Diagnosis("exited", "it exited")), "")
            gate.cut()
            await anyio.wait_all_tasks_blocked()
            assert answers == []
            gate.follow("Healthy", Facts(model="fake"), url)
    assert attempts(url, prompt) == 2
    assert client.retries == 1


@pytest.mark.parametrize("header", ["30", "3600"])
async def test_a_request_that_waits_to_be_sent_again_does_not_outwait_its_server(url: str, header: str) -> None:
    told(url, {"status": 503, "headers": {"Retry-After": header}})
    async with connected(url) as (client, gate), anyio.create_task_group() as group:

        async def ask() -> None:
            with pytest.raises(Draining):
                await client.request(CHAT, asking("hello"))

        group.start_soon(ask)
        await seen(lambda: client.retries)
        gate.follow("Draining", STOPPING, url)


async def test_a_server_that_says_how_long_is_waited_for_that_long(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the header the second attempt would be an hour away."""
    monkeypatch.setattr(client_module, "BACKOFF_INITIAL", 3600.0)
    monkeypatch.setattr(client_module, "BACKOFF_MAX", 3600.0)
    prompt = next(UNSEEN)
    told(url, {"status": 503, "headers": {"Retry-After": "0"}}, {"status": 429, "headers": {"Retry-After": "0.01"}})
    async with connected(url) as (client, _):
        await client.request(CHAT, asking(prompt))
    assert attempts(url, prompt) == 3


@given(st.one_of(st.text(max_size=40), st.floats().map(str), st.integers().map(str), st.datetimes().map(str)))
def test_any_header_is_a_number_of_seconds_or_nothing(value: str) -> None:
    seconds = retry_after({"retry-after": value})
    assert seconds is None or seconds >= 0
    assert min(RETRY_AFTER_MAX, seconds or 0) <= RETRY_AFTER_MAX


@given(st.integers(-100_000, 100_000))
def test_a_date_is_that_many_seconds_from_now(offset: int) -> None:
    then = datetime.now(UTC) + timedelta(seconds=offset)
    seconds = retry_after({"retry-after": format_datetime(then, usegmt=True)})
    assert seconds is not None
    assert abs(seconds - max(0, offset)) < 5
