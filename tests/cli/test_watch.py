"""What a person is told while a server takes its time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from lifecycle.cli.watch import Narrator, attended
from lifecycle.errors import ConfigError
from lifecycle.journal import Kind, Record
from lifecycle.testing import Life, run_virtual
from tests.simulation.world import World


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_state_that_lasts_is_told_of_less_and_less_often_with_what_it_waits_for(backend: str) -> None:
    async def body() -> list[str]:
        said: list[str] = []
        world = World(Life(listens=None, ready=None), startup_timeout=100, no_progress_timeout=100, max_attempts=1)
        async with world.server as server, attended(server, anyio.Event(), said.append):
            await server.ended()
        return said

    said = run_virtual(body, backend=backend)
    assert [line.split("…")[1] for line in said if "Starting" in line] == [
        f" for {seconds} s: nothing listens" for seconds in (10, 30, 70)
    ]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("life", "missing"),
    [(Life(deaf=0.0), "no answer yet at /health"), (Life(wedged=0.0), "no first token yet")],
    ids=["deaf", "wedged"],
)
def test_what_is_missing_is_told_while_it_is_waited_for(backend: str, life: Life, missing: str) -> None:
    async def body() -> tuple[list[str], str]:
        said: list[str] = []
        world = World(life, startup_timeout=100, no_progress_timeout=100, probe_timeout=500, warmup_timeout=500,
                      max_attempts=1)  # fmt: skip
        async with world.server as server, attended(server, anyio.Event(), said.append):
            await server.ended()
        assert server.diagnosis is not None
        return said, server.diagnosis.summary

    said, summary = run_virtual(body, backend=backend)
    told = [line.split(": ")[1] for line in said if "Starting" in line]
    assert told == [missing] * 3
    assert summary.endswith(f"last seen: {missing}")


@pytest.mark.parametrize(("left", "words"), [(0, "drained; its"), (3, "not drained in time, 3 requests are cut off")])
def test_a_drain_is_said_to_be_over_only_where_nothing_was_left(left: int, words: str) -> None:
    said: list[str] = []
    detail = {"phase": "drained", "left": left}
    Narrator(said.append, said.append)(Record(0, 0.0, "a", 1, Kind.PHASE, after="Draining", detail=detail))
    assert words in said[0]


def test_a_part_that_nobody_can_ask_is_not_said_to_serve() -> None:
    said: list[str] = []
    Narrator(said.append, said.append)(Record(0, 0.0, "a", 1, Kind.TRANSITION, event="Launched", after="Healthy"))
    assert "nobody can ask" in said[0]
    assert "serving" not in said[0]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_healthy_server_is_left_alone(backend: str) -> None:
    async def body() -> list[str]:
        said: list[str] = []
        world = World(Life())
        async with world.server as server, attended(server, anyio.Event(), said.append):
            await server.healthy()
            await anyio.sleep(1000)
        return said

    assert run_virtual(body, backend=backend) == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("error", [ConfigError("the folder is somebody else's"), OSError(28, "no space left")])
def test_where_no_desk_can_be_made_the_server_does_without(
    backend: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Path:
        raise error

    monkeypatch.setattr("lifecycle.resources.desk.desks_dir", refuse)

    async def body() -> str:
        world = World(Life())
        async with attended(world.server, anyio.Event(), lambda text: None), world.server as server:
            await server.healthy()
            await server.stop()
            return await server.ended()

    assert run_virtual(body, backend=backend) == "Stopped"


def test_each_attempt_of_what_nobody_can_ask_is_timed_from_its_own_beginning() -> None:
    """Such a part is never Starting."""
    said: list[str] = []
    narrator = Narrator(said.append, said.append)
    for at, state in ((0.0, "Locking"), (1.0, "Healthy"), (60.0, "Draining"), (70.0, "Locking"), (72.5, "Healthy")):
        narrator(Record(0, at, "a", 1, Kind.TRANSITION, after=state))
    assert [line.split()[2] for line in said if "Healthy" in line] == ["1.00", "2.50"]


def test_a_restart_shows_the_line_that_shows_the_cause_and_shows_it_once() -> None:
    async def body() -> list[Record]:
        world = World(Life(exits=5.0), Life(exits=50.0, code=2), Life(), max_attempts=5)
        async with world.server as server:
            for _ in range(3):
                await server.driver.wait("Healthy", after=server.journal.seq)
        return list(server.journal.records)

    said: list[str] = []
    narrator = Narrator(said.append, said.append)
    for record in run_virtual(body, backend="asyncio"):
        found = record.detail.get("diagnosis")
        narrator(replace(record, detail={"diagnosis": {**found, "evidence": "the line"}}) if found else record)
    assert [text.strip() for text in said if "the line" in text] == ["shown by: the line"]
    assert len([text for text in said if text.startswith("  Backoff")]) == 2
