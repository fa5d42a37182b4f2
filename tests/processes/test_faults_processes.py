"""Faults that people met with processes left behind, ports, shutdown and output: what a whole `Server` makes of them.

Each test is one kind of fault; its rows, and more of the same kind, are its parameters.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from lifecycle.adapter import CompileCache
from lifecycle.chart import Event
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError, Draining, RequestError, StartFailed
from lifecycle.host import Process, Spawn
from lifecycle.journal import Kind, Record
from lifecycle.resources import compile_lock
from lifecycle.resources import process as process_module
from lifecycle.server import Server
from lifecycle.server_facts import Kill, Shutdown, Stop
from tests.fake import control, fake_command, stats
from tests.processes.trees import GUARD, Box, is_alive, state_of, until

pytestmark = pytest.mark.anyio

LOOPS = ("asyncio", "trio")


def rows(*values: Any) -> list[Any]:
    """The rows of one kind, for `anyio_backend` and what else there is: on the two event loops in turn."""
    return [
        pytest.param(loop, *(value if isinstance(value, tuple) else (value,)), id=f"{loop}-{number}")
        for number, (loop, value) in enumerate(zip(itertools.cycle(LOOPS), values, strict=False))
    ]


HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


def process_of(server: Server) -> Process:
    assert server.activities.process is not None
    return server.activities.process


def kinds(server: Server) -> set[Kind]:
    return {record.kind for record in server.journal.records}


async def healthy(server: Server) -> str:
    with anyio.fail_after(GUARD):
        return await server.healthy()


async def ended(server: Server) -> str:
    with anyio.fail_after(GUARD):
        return await server.ended()


async def ask(url: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Change the fake server, or ask for its counts."""
    return await to_thread.run_sync(partial(control, url, path, body))


def assert_empty(box: Box, server: Server) -> None:
    """Nothing is left, no port either, and everything was released in order."""
    box.ports |= {record.port for record in server.journal.records if record.port}
    assert box.left() == {}
    assert not kinds(server) & {Kind.OVERRUN, Kind.CLEANUP_ERROR}


@pytest.mark.fault(9, 10, 40)
@pytest.mark.parametrize(
    ("anyio_backend", "children", "fault"),
    rows(
        (["same"], {"signal": "SIGKILL"}),  # vLLM's engine core outlives the API server
        (["session", "session,ignore-term"], {"signal": "SIGKILL"}),  # SGLang's workers escape
        (["double,ignore-term", "double,quiet"], {"code": 0}),  # re-parented, and the exit looks like success
        (["same,quiet", "session,quiet"], {"signal": "SIGTERM"}),
        (["same"], {"signal": "SIGABRT"}),
    ),
)
async def test_when_a_server_dies_its_tree_is_gone_before_the_next_attempt(
    box: Box, children: list[str], fault: dict[str, Any]
) -> None:
    left: list[set[int]] = []

    def look(record: Record) -> None:
        if record.kind is Kind.TRANSITION and record.after == "Backoff":
            left.append(box.processes())

    config = box.config(fake_command(child=children, model=box.mark), max_attempts=2)
    async with Server(config, listener=look) as server:
        url = await healthy(server)
        old = box.processes()
        assert len(old) == 2 + len(children)
        first = await state_of(server, "Healthy")
        with pytest.raises(OSError, match=r".*"):  # the answer never comes
            await ask(url, "/_exit", fault)
        await state_of(server, "Healthy", after=first.seq)
        assert left == [set()]
        assert not [pid for pid in old if is_alive(pid)]
        assert (await ask(server.url, "/_stats"))["attempt"] == 2
    assert_empty(box, server)


@pytest.mark.fault(11)
async def test_a_tree_without_its_leader_is_ended_by_a_stop_that_comes_at_once(box: Box) -> None:
    config = box.config(fake_command(child=["session,ignore-term", "double"], model=box.mark))
    async with Server(config) as server:
        await healthy(server)
        os.kill(process_of(server).pid, signal.SIGKILL)
        await server.stop()
    assert server.state in ("Stopped", "Failed")
    assert_empty(box, server)


@pytest.mark.parametrize(("anyio_backend", "times"), rows(1, 2))
async def test_a_keeper_that_is_killed_before_its_server_runs_costs_an_attempt_and_no_more(
    box: Box, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    start = process_module._start_keeper
    struck: list[int] = []

    def killed(label: str, server: str) -> Any:
        line = start(label, server)
        if len(struck) < times:
            line.child.kill()
            struck.append(line.child.pid)
        return line

    monkeypatch.setattr(process_module, "_start_keeper", killed)
    async with Server(box.config(fake_command(model=box.mark), max_attempts=times + 1)) as server:
        await healthy(server)
        assert server.driver.facts.attempt == times + 1
        assert server.diagnosis is not None
        assert server.diagnosis.cause == "launch"
        assert "was killed before the server ran" in server.diagnosis.summary
    assert_empty(box, server)


@pytest.mark.fault(14)
@pytest.mark.parametrize(
    ("number", "phase"), [(signal.SIGTERM, "Starting"), (signal.SIGINT, "Healthy"), (signal.SIGHUP, "Starting")]
)
def test_a_signal_to_the_command_leaves_nothing(box: Box, number: signal.Signals, phase: str) -> None:
    slow: dict[str, Any] = {"bind_after": 60} if phase == "Starting" else {}
    command = fake_command(child=["session,ignore-term", "double"], model=box.mark, **slow)
    settings = {"state_dir": box.state, "name": box.mark, "drain_timeout": 1, "terminate_timeout": 2}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    argv = (sys.executable, "-m", "lifecycle.cli", "serve", "--backend", "custom", "--model", box.mark, "--json")
    with subprocess.Popen((*argv, "--command", command, *words), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if f'"after":"{phase}"'.encode() in line:
                    break
            process.send_signal(number)
            process.stdout.read()
            assert process.wait(GUARD) == 0
        finally:
            process.kill()
    assert box.left() == {}


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    ("anyio_backend", "where"), rows("Locking", "PortBound", "Starting", "Starting", "Healthy", "Backoff")
)
async def test_cancelling_the_program_in_any_state_leaves_nothing(box: Box, where: str) -> None:
    faults: dict[str, dict[str, Any]] = {"Starting": {"bind_after": 60}, "Backoff": {"exit_before_bind": True}}
    flags = faults.get(where, {})
    settings = {"max_attempts": 2, "backoff_initial": 60, "backoff_max": 60} if where == "Backoff" else {}
    command = fake_command(child=["session"], model=box.mark, **flags)
    with anyio.fail_after(GUARD), anyio.CancelScope() as scope:

        def cancel(record: Record) -> None:
            if record.kind is Kind.TRANSITION and record.after == where:
                scope.cancel()

        async with Server(box.config(command, **settings), listener=cancel) as server:
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert server.state == "Stopped"
    assert_empty(box, server)


@pytest.mark.parametrize(("anyio_backend", "order"), rows(Stop, Kill, Shutdown))
async def test_an_order_to_end_that_overtakes_the_news_of_the_launch_leaves_nothing(
    box: Box, monkeypatch: pytest.MonkeyPatch, order: type[Event]
) -> None:
    async with Server(box.config(fake_command(child=["session"], model=box.mark))) as server:
        spawn = server.host.spawn

        async def overtaken(what: Spawn) -> Process:
            process = await spawn(what)
            server.driver.post(order())
            return process

        monkeypatch.setattr(server.host, "spawn", overtaken)
        assert await ended(server) == "Stopped"
    assert "Starting" not in [record.after for record in server.journal.records]
    assert_empty(box, server)


@pytest.mark.fault(15)
async def test_servers_that_start_together_get_ports_of_their_own(box: Box) -> None:
    command = fake_command(model=box.mark, extra_port="{port1}")
    config = box.config(command, options={"ports": 1})
    async with Server(config) as one, Server(config) as two, Server(config) as three, Server(config) as four:
        servers = (one, two, three, four)
        urls = [await healthy(server) for server in servers]
        assert len(set(urls)) == 4
        assert not [server for server in servers if server.driver.facts.attempt != 1]
    assert box.left() == {}


@pytest.mark.fault(16, 18, 19)
@pytest.mark.parametrize(
    "flags", [{}, {"extra_after": 0.2}], ids=["while it starts", "when it is healthy"]
)
async def test_an_inner_port_that_is_taken_costs_a_quick_start_and_no_attempt(
    box: Box, flags: dict[str, Any]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        command = fake_command(attempts=[{"extra_port": taken, **flags}, {}], model=box.mark)
        async with Server(box.config(command, backoff_initial=60, backoff_max=60)) as server:
            await state_of(server, "Backoff")
            assert server.diagnosis is not None
            assert server.diagnosis.cause == "port-taken"
            assert str(taken) in server.diagnosis.evidence
            await healthy(server)
            assert server.driver.facts.failures == 0
    assert_empty(box, server)


@pytest.mark.fault(20)
async def test_a_port_that_was_asked_for_and_is_taken_is_refused_naming_the_holder(box: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with Server(box.config(fake_command(model=box.mark), port=port, max_attempts=3)) as server:
            with pytest.raises(StartFailed, match=f"pid {os.getpid()}"):
                await healthy(server)
            assert server.driver.facts.attempt == 1
    assert_empty(box, server)


@pytest.mark.fault(78)
async def test_a_stranger_that_listens_beside_the_server_is_noticed_and_another_port_taken(box: Box) -> None:
    command = fake_command(attempts=[{"reuse_port": True, "bind_after": 0.2}, {}], model=box.mark)
    with socket.socket() as stranger:
        async with Server(box.config(command, probe_timeout=0.2)) as server:
            started = await state_of(server, "Starting")
            assert started.port is not None
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            stranger.bind(("127.0.0.1", started.port))
            stranger.listen()
            await state_of(server, "Backoff")
            assert server.diagnosis is not None
            assert server.diagnosis.cause == "port-taken"
            url = await healthy(server)
            assert not url.endswith(f":{started.port}")
    assert_empty(box, server)


async def test_a_program_that_sets_no_reuse_can_be_told_of(box: Box) -> None:
    config = box.config(fake_command(model=box.mark, no_reuse=True), options={"holds_port": False})
    async with Server(config) as server:
        await healthy(server)
        assert server.driver.facts.attempt == 1
    assert_empty(box, server)


@pytest.mark.fault(33)
@pytest.mark.parametrize(
    ("anyio_backend", "delay", "limit"), rows((0.2, 10.0), (60, 0.1), (0.1, 5.0))
)
async def test_a_stop_with_requests_in_flight_leaves_none_of_them_hanging(
    box: Box, delay: float, limit: float
) -> None:
    command = fake_command(model=box.mark, routes={"/v1/chat/completions": {"delay": delay}}, on_term="drain")
    results: list[dict[str, Any] | Exception] = []

    async def request(server: Server) -> None:
        try:
            results.append(await server.chat(HELLO))
        except (RequestError, Draining) as error:
            results.append(error)

    with anyio.fail_after(GUARD):
        async with Server(box.config(command, drain_timeout=limit, terminate_timeout=limit)) as server:
            await healthy(server)
            async with anyio.create_task_group() as group:
                for _ in range(10):
                    group.start_soon(request, server)
                await until(lambda: server.gate.in_flight == 10)
                await server.stop()
                with pytest.raises(Draining):
                    await server.chat(HELLO)
    assert len(results) == 10
    assert all(isinstance(result, dict) == (delay < limit) for result in results)
    assert_empty(box, server)


@pytest.mark.fault(36)
@pytest.mark.parametrize(
    ("anyio_backend", "flags"),
    rows(
        {"say_on_term": "shutdown complete", "on_term": "ignore"},  # the log line is no proof of an exit
        {"child": ["same,ignore-term", "session,ignore-term"]},  # the leader obeys, the others do not
        {"child": ["double,ignore-term,quiet"], "on_term": "ignore"},
    ),
)
async def test_a_tree_that_does_not_obey_is_ended_all_the_same(box: Box, flags: dict[str, Any]) -> None:
    config = box.config(fake_command(model=box.mark, **flags), drain_timeout=0.0, terminate_timeout=0.1)
    async with Server(config) as server:
        await healthy(server)
    assert server.state == "Stopped"
    assert_empty(box, server)


@pytest.mark.fault(35)
async def test_a_stream_that_is_still_read_does_not_hold_up_the_end(box: Box) -> None:
    command = fake_command(model=box.mark, on_term="drain", tokens=1000, token_delay=0.02)
    config = box.config(command, drain_timeout=0.1, terminate_timeout=0.3)
    async with Server(config) as server:
        await healthy(server)
        async def read() -> None:
            async with server.stream(HELLO) as chunks:
                async for _ in chunks:
                    if server.state == "Healthy":
                        await server.stop()

        with anyio.fail_after(GUARD), pytest.raises(RequestError):
            await read()
        await ended(server)
    assert_empty(box, server)


async def locking(box: Box, command: str) -> tuple[ServerConfig, Callable[[], None]]:
    held = await compile_lock.acquire(CompileCache("cache"), box.state)
    assert held is not None
    return box.config(command, options={"compile_key": "cache"}), held.release


@pytest.mark.fault(37)
@pytest.mark.parametrize(("anyio_backend", "phase"), rows("Locking", "Starting", "Healthy", "Draining"))
async def test_a_second_order_to_end_ends_now_in_any_phase(box: Box, phase: str) -> None:
    flags: dict[str, Any] = {"bind_after": 60} if phase == "Starting" else {}
    command = fake_command(model=box.mark, child=["session,ignore-term"], on_term="ignore", **flags)
    config = box.config(command, drain_timeout=60, terminate_timeout=90)
    release: Callable[[], Any] = lambda: None  # noqa: E731
    if phase == "Locking":
        config, release = await locking(box, command)
    async with Server(config) as server:
        if phase == "Draining":
            await healthy(server)
        else:
            await state_of(server, phase)
        await server.stop()
        await server.kill()
        assert await ended(server) == "Stopped"
    release()
    assert_empty(box, server)


@pytest.mark.fault(38)
async def test_stop_may_be_said_many_times_at_once(box: Box) -> None:
    command = fake_command(model=box.mark, child=["session"], say_on_term="told to end")
    async with Server(box.config(command)) as server:
        await healthy(server)
        log = process_of(server).log
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(server.stop)
            group.start_soon(server.ended)
        await server.stop()
    assert log.read_text().count("told to end") == 1
    assert server.state == "Stopped"
    assert_empty(box, server)


@pytest.mark.fault(34)
async def test_a_drain_that_the_kill_would_cut_is_refused(box: Box) -> None:
    with pytest.raises(ConfigError, match=r"drain_timeout = 30.*terminate_timeout = 5"):
        box.config(fake_command(), drain_timeout=30.0, terminate_timeout=5.0)


WORDS = "CUDA out of memory; IndexError: list index out of range; Address already in use; unrecognized arguments: --x"
SHARED = "No available shared memory broadcast block found in 60 seconds"


@pytest.mark.fault(50, 52, 53, 54, 55, 56)
@pytest.mark.parametrize(
    ("anyio_backend", "flags"),
    rows(
        {"long_line": 70_000},
        {"long_line": 10_000_000},
        {"flood": 5_000_000},
        {"broken_bytes": True, "say_hex": "e282"},
        {"say_hex": ["ff" * 5000, "00" * 5000, "1b5b", "0d" * 5000]},
        {"progress": 500},
        {"repeat_line": SHARED, "repeat_every": 0.001},
        {"say": WORDS, "say_err": WORDS, "say_ready": WORDS},
        {"no_banner": True},
        {"block_buffered": True, "say": "x" * 100_000},
    ),
)
async def test_no_output_keeps_a_server_from_getting_healthy_or_being_so(box: Box, flags: dict[str, Any]) -> None:
    command = fake_command(model=box.mark, log_prompts=True, **flags)
    async with Server(box.config(command)) as server:
        url = await healthy(server)
        for said in (b"\xe2\x82", b"\xff\0\n", WORDS.encode(), b"y" * 300_000):
            await ask(url, "/_say", {"hex": said.hex()})
        await server.chat({"messages": [{"role": "user", "content": WORDS}]})
        assert (await to_thread.run_sync(stats, url))["attempt"] == 1
    assert [record.after for record in server.journal.records if record.kind is Kind.TRANSITION] == [
        "Locking", "PortBound", "Starting", "Healthy", "Draining", "Stopped",
    ]  # fmt: skip
    assert_empty(box, server)


@pytest.mark.fault(51)
async def test_a_server_that_shouts_while_it_drains_is_not_blocked(box: Box) -> None:
    command = fake_command(model=box.mark, say_on_term=["z" * 10_000] * 30, on_term="exit")
    async with Server(box.config(command, drain_timeout=5, terminate_timeout=60)) as server:
        await healthy(server)
        log = process_of(server).log
    assert log.read_bytes().count(b"z") == 300_000
    assert_empty(box, server)


@pytest.mark.fault(57)
async def test_each_attempt_keeps_its_own_log(box: Box) -> None:
    attempts = [{"say": text, "exit_before_bind": True, "exit_code": 3} for text in ("one failure", "another", "last")]
    config = box.config(fake_command(model=box.mark, attempts=attempts), max_attempts=3)
    async with Server(config) as server:
        with pytest.raises(StartFailed, match="last") as error:
            await healthy(server)
    logs = [Path(record.log) for record in server.journal.records if record.log]
    assert [path.read_text() for path in logs] == ["one failure\n", "another\n", "last\n"]
    assert str(logs[-1]) in str(error.value)
    assert_empty(box, server)


async def test_a_disk_without_room_for_logs_does_not_stop_a_server(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = box.root / "full.log"
    full.symlink_to("/dev/full")
    async with Server(box.config(fake_command(model=box.mark, flood=1_000_000))) as server:
        monkeypatch.setattr(server.host, "attempt_log", lambda label, attempt: full)
        await healthy(server)
        await server.chat(HELLO)
    assert server.state == "Stopped"
    assert_empty(box, server)
