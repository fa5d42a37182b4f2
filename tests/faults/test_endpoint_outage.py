"""An endpoint that goes away for longer than all retries of a request take costs no request."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.server import Server
from tests.served import GUARD, HELLO, fake, healthy, make, path_of

pytestmark = pytest.mark.anyio
MANY = 30


async def ask(server: Server, answers: list[Any]) -> None:
    answers.append(await server.chat(HELLO))


async def come_back(folder: Path, port: int | None, until: anyio.Event) -> None:
    async with fake(folder, port=port) as again:
        await healthy(again)
        await until.wait()


async def test_requests_wait_for_an_endpoint_that_is_away_and_none_spends_its_retries(tmp_path: Path) -> None:
    """Its own liveness probes are far apart: it is the requests that find out."""
    answers: list[Any] = []
    all_answered = anyio.Event()
    async with fake(tmp_path) as there:
        await healthy(there)
        url, port = there.url, there.driver.facts.port
        rarely: dict[str, Any] = {"liveness_interval": 3600.0, "backoff_initial": 0.1, "max_retries": 1}
        endpoint = make(tmp_path, "endpoint", base_url=url, **rarely)
        async with endpoint as server, anyio.create_task_group() as around:
            await healthy(server)
            await there.kill()
            await there.ended()
            with anyio.fail_after(GUARD):
                async with anyio.create_task_group() as group:
                    for _ in range(MANY):
                        group.start_soon(ask, server, answers)
                    await server.driver.wait("Backoff")
                    assert not answers
                    around.start_soon(come_back, tmp_path, port, all_answered)
            all_answered.set()
    assert len(answers) == MANY
    assert Counter(path_of(server))["Healthy"] == 2


async def test_an_answer_that_is_broken_off_by_a_server_that_is_there_is_tried_again_at_once(tmp_path: Path) -> None:
    routes = {"/v1/chat/completions": [{"first": 1, "do": "reset"}]}
    async with fake(tmp_path, {"routes": routes}, liveness_interval=3600.0) as server:
        await healthy(server)
        with anyio.fail_after(GUARD):
            await server.chat(HELLO)
        assert (server.client.retries, path_of(server).count("Healthy")) == (1, 1)
        assert not server.gate.doubted
