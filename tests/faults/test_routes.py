"""Proxies, address families, URLs that are joined: a request goes where the server is, and nowhere else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lifecycle.config import load_config
from lifecycle.errors import ConfigError
from tests.served import HELLO, counts, fake, healthy, make

pytestmark = pytest.mark.anyio
PROXY_VARIABLES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


class Counting:
    """A listener that nobody must call."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.socket.bind((host, port))
        self.socket.listen()
        self.socket.setblocking(False)
        self.port: int = self.socket.getsockname()[1]

    def was_called(self) -> bool:
        try:
            self.socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def proxy() -> Iterator[Counting]:
    there = Counting()
    yield there
    there.socket.close()


@pytest.mark.fault(81)
@pytest.mark.parametrize(
    "exceptions",
    [
        pytest.param("", id="a corporate proxy"),
        pytest.param("127.0.0.0/8", id="an exception that httpx does not understand"),
        pytest.param("::1", id="an exception for the other family"),
        pytest.param("example.org", id="an exception for others"),
    ],
)
async def test_no_proxy_ever_sees_a_probe_or_a_request(
    tmp_path: Path, proxy: Counting, exceptions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, exceptions)
    async with fake(tmp_path, liveness_interval=0.05) as server:
        await healthy(server)
        await server.chat(HELLO)
        async with server.stream(HELLO) as chunks:
            assert [chunk async for chunk in chunks]
        async with make(tmp_path, "endpoint", base_url=server.url) as endpoint:
            await healthy(endpoint)
            await endpoint.chat(HELLO)
    assert not proxy.was_called()


@pytest.mark.fault(82)
@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "127.0.0.1"), ("127.0.0.2", "127.0.0.2"), ("::1", "[::1]")])
async def test_the_address_that_was_asked_for_is_the_one_that_is_asked(tmp_path: Path, host: str, url: str) -> None:
    async with fake(tmp_path, {"host": host}, host=host) as server:
        await healthy(server)
        assert server.url.startswith(f"http://{url}:")
        await server.chat(HELLO)


@pytest.mark.fault(82)
async def test_whoever_listens_on_the_same_port_of_the_other_family_is_not_asked(tmp_path: Path) -> None:
    other = Counting("::1")
    try:
        async with fake(tmp_path, port=other.port) as server:
            await healthy(server)
            await server.chat(HELLO)
        assert not other.was_called()
    finally:
        other.socket.close()


@pytest.mark.fault(82)
@pytest.mark.parametrize("host", ["localhost", "localhost.evil.example", "127.evil.example", "my-node"])
def test_a_name_is_refused_because_it_can_mean_several_addresses(host: str) -> None:
    with pytest.raises(ConfigError, match="host = ") as caught:
        load_config("echo", host=host, allow_exposed=True)
    assert "address" in str(caught.value)
    assert host in str(caught.value)


@pytest.mark.fault(83)
@pytest.mark.parametrize("end", ["", "/", "//", "/v1", "/v1/", "/v1//", " ", "/v1 "])
async def test_a_base_url_may_end_as_people_write_it(tmp_path: Path, end: str) -> None:
    async with fake(tmp_path) as there:
        await healthy(there)
        before = (await counts(there))["requests"]
        async with make(tmp_path, "endpoint", base_url=there.url + end) as server:
            await healthy(server)
            await server.chat(HELLO)
            await server.complete({"prompt": "hello"})
            await server.request("/v1/models")
        after = (await counts(there))["requests"]
    known = {"/health", "/v1/models", "/v1/chat/completions", "/v1/completions"}
    assert set(before) | set(after) == known


@pytest.mark.fault(83)
async def test_a_base_url_may_have_a_path_of_its_own(tmp_path: Path) -> None:
    """A gateway that serves several: `https://gateway/team-a/v1`."""
    routes = {
        "/team-a/v1/models": {"body": {"data": [{"id": "m"}]}},
        "/team-a/v1/completions": {"body": {"choices": []}},
        "/team-a/v1/chat/completions": {"body": {"choices": [], "from": "team-a"}},
    }
    async with fake(tmp_path, {"routes": routes}) as there:
        await healthy(there)
        async with make(tmp_path, "endpoint", base_url=f"{there.url}/team-a/v1/") as server:
            await healthy(server)
            assert (await server.chat(HELLO))["from"] == "team-a"
            assert server.driver.facts.ready_path == "/v1/models"
