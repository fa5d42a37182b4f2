"""Observers of requests hear of each one once, of its beginning and of what became of it; they can break none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from lifecycle.errors import Draining, RequestError, RequestRefused, StartFailed
from lifecycle.observing import OUTCOMES, Request
from lifecycle.testing import Life, run_virtual
from tests.served import GUARD, HELLO, fake
from tests.simulation.world import World

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
CHAT = "/v1/chat/completions"


class Heard:
    """An observer that keeps what it was told."""

    def __init__(self) -> None:
        self.begun: list[Request] = []
        self.over: list[Request] = []

    def __call__(self, request: Request) -> Callable[[], None]:
        self.begun.append(request)
        return lambda: self.over.append(request)


@both
def test_a_request_that_lives_through_a_restart_is_told_once_with_its_attempts_and_all_its_time(backend: str) -> None:
    async def body() -> None:
        world, heard = World(Life(ready=1.0, exits=4.0, reply=5.0), Life(ready=1.0, reply=2.0)), Heard()
        world.server.client.observers.append(heard)
        async with world.server as server:
            began = anyio.current_time()
            answer = await server.chat({"messages": []})
            took = anyio.current_time() - began
        (request,) = heard.over
        assert heard.begun == [request]
        assert (request.path, request.outcome, request.attempts, request.server) == (CHAT, "answered", 2, "simulated")
        assert request.answer == answer
        assert request.seconds == took > 4.0

    run_virtual(body, backend=backend, limit=1e5)


@both
def test_each_end_of_a_request_has_its_word(backend: str) -> None:
    async def body() -> None:
        async def ask(world: World, error: type[Exception]) -> str:
            heard = Heard()
            world.server.client.observers.append(heard)
            async with world.server as server:
                with pytest.raises(error):
                    await server.chat({"messages": []})
            return heard.over[0].outcome

        said = [
            await ask(World(Life(status=200, reply=99.0), request_timeout=1.0), RequestError),
            await ask(World(Life(ready=None, exits=0.1), Life(ready=None, exits=0.1)), StartFailed),
        ]
        assert said == ["failed", "given-up"]
        world, heard = World(Life(reply=50.0)), Heard()
        world.server.client.observers.append(heard)
        async with world.server as server:
            await server.healthy()
            with anyio.move_on_after(1.0):
                await server.chat({"messages": []})
            await server.stop()
            with pytest.raises(Draining):
                await server.chat({"messages": []})
        assert [each.outcome for each in heard.over] == ["abandoned", "draining"]
        assert heard.over[0].seconds == 1.0

    run_virtual(body, backend=backend, limit=1e5)


@both
def test_an_observer_that_raises_costs_no_request_its_answer(backend: str) -> None:
    def broken(request: Request) -> Callable[[], None]:
        raise RuntimeError("at the beginning")

    def breaks(request: Request) -> Callable[[], None]:
        def end() -> None:
            raise RuntimeError("at the end")

        return end

    async def body() -> None:
        world, heard = World(Life()), Heard()
        world.server.client.observers += [broken, heard, breaks]
        async with world.server as server:
            assert "choices" in await server.chat({"messages": []})
        assert len(heard.over) == 1

    run_virtual(body, backend=backend)


@pytest.mark.anyio
async def test_a_stream_tells_when_its_first_piece_came_and_what_the_server_has_counted(tmp_path: Path) -> None:
    server, heard = fake(tmp_path), Heard()
    server.client.observers.append(heard)
    async with server:
        with anyio.fail_after(GUARD):
            async with server.stream(HELLO) as chunks:
                count = len([chunk async for chunk in chunks])
            with pytest.raises(RequestRefused):
                await server.chat({**HELLO, "model": "another"})
    stream, refused = heard.over
    assert count > 1
    assert stream.first is not None
    assert 0.0 < stream.first <= stream.seconds
    assert stream.answer is not None
    assert (stream.outcome, refused.outcome, refused.attempts) == ("answered", "refused", 1)
    assert {each.outcome for each in heard.over} < set(OUTCOMES)
