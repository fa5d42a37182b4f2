"""The live page on a real socket: what it answers, to whom, and what it never says."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from lifecycle import ServerConfig
from lifecycle.errors import ConfigError
from lifecycle.journal import Record
from lifecycle.ui.live import FILES, LivePage
from tests.trace.journals import crash

KEY = "sk-this-is-a-secret-0123"
GUARD = 30.0
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """aiohttp's server runs on asyncio only."""
    return "asyncio"


class Nobody:
    """A service that says nothing of its work."""

    async def load(self) -> None:
        return None


def page_of(*records: Record, environ: dict[str, str] | None = None) -> LivePage:
    page = LivePage(ServerConfig("echo", name="mine"), environ or {})
    for record in records:
        page(record)
    return page


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        with anyio.fail_after(GUARD):
            yield session


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """(event, data) of a stream."""
    name = ""
    async for line in answer.content:
        key, _, value = line.decode().rstrip("\n").partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            yield name, json.loads(value)


async def first(answer: aiohttp.ClientResponse, wanted: str) -> Any:
    async for name, data in events(answer):
        if name == wanted:
            return data
    raise AssertionError(f"the stream ended without {wanted!r}")


async def test_the_page_and_its_parts_are_there_and_may_load_nothing_from_elsewhere() -> None:
    async with page_of().served(Nobody()) as url, client() as web:
        for path in FILES:
            async with web.get(url + path[1:]) as answer:
                assert answer.status == 200
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                assert "Access-Control-Allow-Origin" not in answer.headers
                assert not re.search(r"(?:src|href)=\W?http|url\(|@import|import\(|fetch\(", await answer.text())
        async with web.get(url + "nothing") as answer:
            assert answer.status == 404


@pytest.mark.parametrize("path", ["", "events", "log/mine", "nothing"])
async def test_foreign_names_of_the_host_and_whatever_is_no_look_are_refused_everywhere(path: str) -> None:
    async with page_of(*crash()).served(Nobody()) as url, client() as web:
        async with web.get(url + path, headers={"Host": "evil.example"}) as answer:
            assert answer.status == 403
            assert "Healthy" not in await answer.text()
        async with web.get(url + path, headers={"Sec-Fetch-Site": "cross-site"}) as answer:
            assert answer.status == 403
        async with web.post(url + path) as answer:
            assert answer.status == 405


async def test_it_can_be_reached_on_loopback_only() -> None:
    async with page_of().served(Nobody()) as url:
        port = int(url.rsplit(":", 1)[1].strip("/"))
        others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)}
        for address in others - {"127.0.0.1"}:
            if str(address).startswith("127."):
                continue
            with pytest.raises(OSError, match=r"refused|unreachable"):
                await asyncio.open_connection(str(address), port)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()


async def test_a_page_sees_what_happens_as_it_happens_and_is_told_of_the_end() -> None:
    records = list(crash())
    page = page_of(*records[:4])
    async with client() as web:
        async with page.served(Nobody()) as url:
            answer = await web.get(url + "events")
            stream = events(answer)
            assert (await anext(stream))[0] == "hello"
            name, data = await anext(stream)
            assert (name, data["state"]) == ("server", "Starting")
            page(records[4])
            name, data = await anext(stream)
            assert (name, data["state"]) == ("server", "Healthy")
        rest = [name async for name, _ in stream]
        assert rest[-1] == "end"


async def test_a_log_is_followed_from_one_attempt_to_the_next(tmp_path: Path) -> None:
    def of(attempt: int, *records: Record) -> list[Record]:
        found = []
        for record in records:
            log = str(tmp_path / f"{attempt}.log") if record.log else None
            object.__setattr__(record, "log", log)
            found.append(record)
        return found

    records = list(crash())
    (tmp_path / "1.log").write_text("one\ntwo\n")
    page = page_of(*of(1, *records[:5]))
    async with page.served(Nobody()) as url, client() as web:
        answer = await web.get(url + "log/mine")
        stream = events(answer)
        assert await anext(stream) == ("reset", {"path": str(tmp_path / "1.log"), "there": True})
        assert await anext(stream) == ("lines", {"lines": ["one", "two"]})
        with (tmp_path / "1.log").open("a") as log:
            log.write("three\n")
        assert await anext(stream) == ("lines", {"lines": ["three"]})
        (tmp_path / "2.log").write_text("again\n")
        for record in of(2, *records[5:10]):
            page(record)
        assert await anext(stream) == ("reset", {"path": str(tmp_path / "2.log"), "there": True})
        assert await anext(stream) == ("lines", {"lines": ["again"]})


async def test_no_secret_that_is_known_leaves_in_states_or_logs(tmp_path: Path) -> None:
    records = list(crash())[:6]
    (tmp_path / "1.log").write_text(f"using {KEY}\n")
    object.__setattr__(records[3], "log", str(tmp_path / "1.log"))
    object.__setattr__(records[5], "detail", {"diagnosis": {"cause": "x", "summary": f"said {KEY}", "tail": [KEY]}})
    page = page_of(*records, environ={"MY_API_KEY": KEY})
    async with page.served(Nobody()) as url, client() as web:
        async with web.get(url + "events") as answer:
            told = await first(answer, "server")
        assert told["attempts"][0]["found"]["summary"] == "said ***"
        assert KEY not in json.dumps(told)
        async with web.get(url + "log/mine") as answer:
            assert await first(answer, "lines") == {"lines": ["using ***"]}


async def test_only_logs_of_servers_can_be_read() -> None:
    async with page_of(*crash()).served(Nobody()) as url, client() as web:
        for name in ("..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd", "other"):
            answer = await web.get(f"{url}log/{name}")
            if answer.status == 200:
                with pytest.raises(TimeoutError), anyio.fail_after(0.2):
                    await first(answer, "lines")
            answer.close()


async def test_a_port_that_is_taken_is_named_with_its_holder_and_the_way_out() -> None:
    async with page_of().served(Nobody()) as url:
        port = int(url.rsplit(":", 1)[1].strip("/"))
        with pytest.raises(ConfigError, match=rf"ui = {port}: 127\.0\.0\.1:{port} cannot be bound .*--ui"):
            async with page_of().served(Nobody(), port):
                pass


async def test_an_error_inside_goes_on_as_itself() -> None:
    with pytest.raises(KeyError):
        async with page_of().served(Nobody()):
            raise KeyError("mine")


def test_on_another_event_loop_it_says_which_one_it_needs() -> None:
    async def body() -> None:
        async with page_of().served(Nobody()):
            pass

    with pytest.raises(ConfigError, match="asyncio"):
        anyio.run(body, backend="trio")
