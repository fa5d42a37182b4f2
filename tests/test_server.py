"""What `async with Server(config)` promises, with real processes; and that an embedder's own parts fit in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import psutil
import pytest

from lifecycle import (
    Activity,
    Capabilities,
    Chart,
    Command,
    ConfigError,
    Disposition,
    Draining,
    Driver,
    Event,
    Journal,
    Launch,
    NoOptions,
    Phase,
    Rule,
    Server,
    ServerConfig,
    Span,
    StartFailed,
    State,
    StokerError,
    Transition,
    Verdict,
    load_config,
)
from lifecycle.journal import read_journal, replay
from lifecycle.resources.log import tail
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import EVENTS, Facts
from tests.fake import fake_argv
from tests.served import GUARD, HELLO, QUICK, fake, given_up, healthy, make, path_of, starts, until

pytestmark = pytest.mark.anyio


def is_released(server: Server, state: Path) -> bool:
    """Nothing lives that was started, and no server is on record."""
    pids = [int(str(record.pid)) for record in starts(server)]
    return not any(psutil.pid_exists(pid) for pid in pids) and not list((state / "state" / "servers").glob("*.json"))


async def test_a_server_that_was_not_entered_says_so_instead_of_waiting_for_ever(tmp_path: Path) -> None:
    server = fake(tmp_path)
    for ask in (server.healthy(), server.chat({}), server.complete({}), server.request("/v1/models")):
        with pytest.raises(StokerError, match=r"was not started: use it inside `async with Server\(\.\.\.\)`"):
            await ask


async def test_entering_returns_before_anything_is_started(tmp_path: Path) -> None:
    async with fake(tmp_path, {"bind_after": 3600}) as server:
        assert server.state == "Idle"
        assert starts(server) == []
    assert await server.ended() == "Stopped"
    assert is_released(server, tmp_path)


async def test_healthy_gives_the_base_url_and_a_request_needs_not_even_that(tmp_path: Path) -> None:
    async with fake(tmp_path) as server:
        assert (await server.chat(HELLO))["object"] == "fake"
        assert await server.healthy() == server.url
        assert server.url.startswith("http://127.0.0.1:")
        assert (await server.complete({"prompt": "hello"}))["choices"][0]["text"]
        assert (await server.request("/v1/models"))["data"][0]["id"] == "fake"
        async with server.stream(HELLO) as chunks:
            assert len([chunk async for chunk in chunks]) == 5
    with pytest.raises(Draining, match="custom"):
        await server.chat(HELLO)
    with pytest.raises(Draining):
        await server.healthy()


class Interrupt(BaseException):
    """Like KeyboardInterrupt, without ending the test run."""


@pytest.mark.parametrize("error", [RuntimeError("the body's own"), Interrupt("Ctrl-C"), SystemExit(3)])
@pytest.mark.parametrize("state", ["Starting", "Healthy"])
async def test_an_error_of_the_body_comes_out_as_it_is_after_everything_is_released(
    tmp_path: Path, error: BaseException, state: str
) -> None:
    server = fake(tmp_path, {} if state == "Healthy" else {"no_bind": True})

    async def body() -> None:
        async with server:
            with anyio.fail_after(GUARD):
                await server.driver.wait(state)
            raise error

    with pytest.raises(type(error)) as caught:
        await body()
    assert caught.value is error
    assert server.state == "Stopped"
    assert is_released(server, tmp_path)


@pytest.mark.parametrize("state", ["Starting", "Healthy"])
async def test_cancelled_from_outside_it_drains_and_releases(tmp_path: Path, state: str) -> None:
    server = fake(tmp_path, {"on_term": "drain"} if state == "Healthy" else {"no_bind": True})
    async with anyio.create_task_group() as group:

        async def body() -> None:
            async with server:
                await anyio.sleep_forever()

        group.start_soon(body)
        with anyio.fail_after(GUARD):
            await server.driver.wait(state)
        group.cancel_scope.cancel()
    assert server.state == "Stopped"
    assert is_released(server, tmp_path)


async def test_a_request_in_flight_gets_its_answer_although_the_body_has_ended(tmp_path: Path) -> None:
    answers: list[dict[str, Any]] = []

    async def ask(server: Server) -> None:
        answers.append(await server.chat(HELLO))

    server = fake(tmp_path, {"reply_delay": 0.3, "on_term": "drain"})
    async with anyio.create_task_group() as group, server:
        await healthy(server)
        group.start_soon(ask, server)
        await until(lambda found: found["in_flight"] == 1, server)
    assert len(answers) == 1


SCRIPT = """
import sys, {loop}
from pathlib import Path
from tests.served import fake, healthy
async def main():
    async with fake(Path(sys.argv[1])) as server:
        await healthy(server)
        print(server.driver.facts.pid, flush=True)
        await {loop}.{forever}
{loop}.run({main})
"""


@pytest.mark.parametrize(
    ("loop", "forever", "main"), [("asyncio", "sleep(3600)", "main()"), ("trio", "sleep_forever()", "main")]
)
def test_an_interrupt_of_the_program_leaves_nothing_behind(tmp_path: Path, loop: str, forever: str, main: str) -> None:
    program = SCRIPT.format(loop=loop, forever=forever, main=main)
    root = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=root, env={**os.environ, "PYTHONPATH": root},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=GUARD)
    assert "KeyboardInterrupt" in errors
    assert not psutil.pid_exists(pid)


async def test_start_failed_carries_the_diagnosis_and_shows_all_that_helps(tmp_path: Path) -> None:
    flags = {"say": ["loading", "wrong shape"], "exit_before_bind": True, "exit_code": 7}
    server = fake(tmp_path, flags, max_attempts=1, name="my-model")
    error = await given_up(server)
    found = error.diagnosis
    assert (found.cause, found.exit_code, found.tail[-1]) == ("exited", 7, "wrong shape")
    for words in ("'my-model'", "exited with code 7", "| wrong shape", f"whole log: {found.log}"):
        assert words in str(error)
    assert server.diagnosis == found
    assert tail(Path(found.log), 9) == ["loading", "wrong shape"]
    with pytest.raises(StartFailed):
        await server.chat(HELLO)


async def test_what_waits_for_a_server_that_is_given_up_is_told(tmp_path: Path) -> None:
    refused = []

    async def wait(ask: Callable[[], Awaitable[Any]]) -> None:
        with pytest.raises(StartFailed):
            await ask()
        refused.append(1)

    server = fake(tmp_path, {"bind_after": 0.2, "exit_before_bind": True}, max_attempts=1)
    async with server, anyio.create_task_group() as group:
        for ask in (server.healthy, lambda: server.chat(HELLO), lambda: server.request("/v1/models")):
            group.start_soon(wait, ask)
    assert len(refused) == 3


async def test_stop_three_times_at_once_is_one_stop(tmp_path: Path) -> None:
    found = []

    async def stop(server: Server) -> None:
        found.append(await server.stop())

    async with fake(tmp_path) as server:
        await healthy(server)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(stop, server)
        assert await server.ended() == "Stopped"
        assert await server.stop() in (Disposition.LATE, Disposition.IGNORED)
    assert set(found) <= {Disposition.TAKEN, Disposition.LATE, Disposition.IGNORED}
    assert path_of(server) == ["Locking", "PortBound", "Starting", "Healthy", "Draining", "Stopped"]


async def test_kill_cuts_a_drain_short(tmp_path: Path) -> None:
    server = fake(tmp_path, {"on_term": "ignore"}, drain_timeout=900, terminate_timeout=1800)
    async with server:
        await healthy(server)
        with server.gate.entered(anyio.CancelScope()):
            assert await server.stop() is Disposition.TAKEN
            assert server.state == "Draining"
            assert await server.kill() is Disposition.TAKEN
            with anyio.fail_after(GUARD):
                assert await server.ended() == "Stopped"
    assert is_released(server, tmp_path)


async def test_the_journal_on_disk_replays_to_where_the_server_stands(tmp_path: Path) -> None:
    server = make(tmp_path, "echo", journal=tmp_path / "journal")
    async with server:
        await healthy(server)
    (stand,) = replay(read_journal(tmp_path / "journal"), SERVER, EVENTS, Facts).values()
    assert stand == server.snapshot() or replace(stand, seq=0) == replace(server.snapshot(), seq=0)


async def test_a_configuration_that_cannot_be_is_refused_before_there_is_a_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="drain_timeout = 30"):
        Server(ServerConfig("echo", drain_timeout=30, terminate_timeout=5))


# An embedder's own adapter.


class Mine:
    """All that a backend needs."""

    name = "mine"
    capabilities = Capabilities(ready_paths=("/health",))
    options = NoOptions
    rules = (Rule("no-fuel", "out of fuel", Verdict.HOPELESS, "add fuel"),)

    def command(self, launch: Launch) -> Command:
        words = {"say": launch.config.env.get("SAY", "phase loading"), "exit_before_bind": "SAY" in launch.config.env}
        return Command(tuple(fake_argv(launch.port, model=launch.config.model, **words)))

    def phase(self, line: str) -> Phase | None:
        return Phase(line.removeprefix("phase ")) if line.startswith("phase ") else None


async def test_an_adapter_of_one_s_own_works(tmp_path: Path) -> None:
    config = ServerConfig("mine", model="m", state_dir=str(tmp_path / "state"), **QUICK)
    async with Server(config, adapter=Mine()) as server:
        await healthy(server)
        assert (await server.chat(HELLO))["model"] == "m"
        assert any(record.detail.get("phase") == "loading" for record in server.journal.records)


async def test_an_adapter_s_own_rule_names_its_own_failure(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"env": {"SAY": "engine: out of fuel"}, "state_dir": str(tmp_path / "state"), **QUICK}
    error = await given_up(Server(ServerConfig("mine", model="m", **settings), adapter=Mine()))
    assert error.diagnosis.cause == "no-fuel"
    assert "add fuel" in str(error)


def test_a_backend_of_a_third_party_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "third_party.py").write_text("from tests.test_server import Mine\nadapter = Mine()\nnothing = 1\n")
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[stoker.backends]\nthird = third_party:adapter\nbroken = third_party:nothing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config, adapter = load_config("third", model="m")
    assert (adapter.name, config.backend) == ("mine", "third")
    with pytest.raises(ConfigError, match=r"'broken' \(third_party:nothing\) has no name"):
        load_config("broken")
    with pytest.raises(ConfigError, match="did you mean 'third'"):
        load_config("thrid")


# An embedder's own chart.


@dataclass(frozen=True, slots=True)
class Lit(Event):
    at: int


@dataclass(frozen=True, slots=True)
class Enough(Event):
    pass


@dataclass(frozen=True, slots=True)
class Begin(Event):
    pass


@dataclass(frozen=True)
class Kettle:
    degrees: int = 0


def hot(kettle: Kettle) -> bool:
    return kettle.degrees >= 100


def warmed(kettle: Kettle, event: Event, at: float) -> Kettle:
    return replace(kettle, degrees=event.at) if isinstance(event, Lit) else kettle


KETTLE: Chart[Kettle] = Chart(
    name="kettle",
    states=(
        State("Empty", "nothing to heat"),
        State("Cold", "not hot yet"),
        State("Boiling", "hot"),
        State("Off", "done", final=True),
    ),
    transitions=(
        Transition((Begin,), ("Empty",), "Cold"),
        Transition((Lit,), ("Cold",), "Boiling", ("hot",)),
        Transition((Lit,), ("Cold",), None, ("not hot",)),
        Transition((Enough,), ("Cold", "Boiling"), "Off"),
    ),
    reduce=warmed,
    guards={"hot": hot},
    spans=(Span("burn", ("Cold",), (), (Lit,)),),
)


async def test_a_chart_of_one_s_own_runs_on_the_same_driver() -> None:
    ended = []

    async def burn(act: Activity[Kettle]) -> None:
        try:
            for degrees in range(0, 200, 20):
                act.post(Lit(degrees))
                await anyio.lowlevel.checkpoint()
            await anyio.sleep_forever()
        finally:
            ended.append(act.facts.degrees)

    assert KETTLE.lint() == []
    journal = Journal("kettle")
    driver: Driver[Kettle] = Driver(KETTLE, Kettle(), {"burn": burn}, journal)
    async with anyio.create_task_group() as group:
        group.start_soon(driver.run)
        driver.post(Begin())
        with anyio.fail_after(GUARD):
            record = await driver.wait("Boiling")
            assert (record.before, ended) == ("Cold", [100])
            assert await driver.send(Enough()) is Disposition.TAKEN
            await driver.ended()
    assert driver.state == "Off"
    stand = replay(journal.records, KETTLE, {"Begin": Begin, "Lit": Lit, "Enough": Enough}, Kettle)
    assert stand["kettle"].facts == Kettle(100)
