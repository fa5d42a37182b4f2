"""Hooks: called once for each transition that they want, in order; nothing that they do reaches the server."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from lifecycle.errors import ConfigError
from lifecycle.journal import Kind, Record
from lifecycle.operate.hook import Call, Hook, call, hooks_of, masked
from lifecycle.operate.hooks import MOST_WAITING, Hooks
from lifecycle.testing import Life, run_virtual
from tests.processes.trees import wait_for_end
from tests.simulation.world import World

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
BAD = Life(ready=None, exits=1.0, code=2, says=((0.5, "error: unrecognized arguments: --x"),))
GUARD = 30.0
TRUE = Hook("any", argv=("true",))


def python(program: str, *words: str) -> str:
    """A command line that runs a program."""
    return shlex.join([sys.executable, "-c", program, *words])


def moved(after: str = "Failed", server: str = "a", **more: Any) -> Record:
    return Record(1, 1.0, server, 1, Kind.TRANSITION, "Ended", "Draining", after, **more)


class Called:
    """Stands for commands and webhooks on virtual time: each takes `seconds`."""

    def __init__(self, seconds: float = 0.0, wrong: str = "") -> None:
        self.seconds = seconds
        self.wrong = wrong
        self.begun: list[tuple[float, Mapping[str, Any]]] = []
        self.over: list[Mapping[str, Any]] = []

    async def __call__(self, hook: Hook, what: Call, timeout: float) -> str:
        self.begun.append((anyio.current_time(), what.payload))
        await anyio.sleep(self.seconds)
        self.over.append(what.payload)
        return self.wrong


def test_a_table_says_when_and_what() -> None:
    found = hooks_of({"Failed": "https://h.example/x", "fleet.Healthy": ["true a 'b c'", "env:HOOK"]}, {"HOOK": "true"})
    assert [(each.state, each.chart, bool(each.url), each.argv) for each in found] == [
        ("Failed", "", True, ()), ("Healthy", "fleet", False, ("true", "a", "b c")),
        ("Healthy", "fleet", False, ("true",)),
    ]  # fmt: skip
    assert found[0].wants("Failed", "server")
    assert not found[0].wants("Stopped", "server")
    assert not found[1].wants("Healthy", "server")
    (every,) = hooks_of({"any": "true"})
    assert every.wants("Locking", "group")
    assert "h.example/x" not in f"{found[0]} {found[0].name}", "a webhook's URL may be a secret"


@pytest.mark.parametrize(
    ("when", "what", "said"),
    [
        ("Faild", "true", "did you mean 'Failed'"),
        ("flet.Failed", "true", "did you mean 'fleet'"),
        ("fleet.Locking", "true", "no state 'Locking'"),
        ("Failed", "no-such-program-1 x", "no program 'no-such-program-1'"),
        ("Failed", "", "say what to do"),
        ("Failed", "true 'x", "cannot be split"),
        ("Failed", "https://", "no host"),
        ("Failed", "env:NO_SUCH_VARIABLE_1", "is not set"),
        ("Failed", "env:https://secret", "not the name of a variable"),
    ],
)
def test_what_cannot_be_called_is_refused_before_anything_is_started(when: str, what: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        hooks_of({when: what})
    assert "secret" not in str(error.value)


@both
def test_the_end_of_a_server_is_told_with_what_went_wrong_before(backend: str) -> None:
    async def body() -> None:
        world, called = World(BAD), Called()
        async with Hooks(hooks_of({"Failed": "true"}), run=called) as hooks:
            world.server.journal.listen(hooks)
            async with world.server as server:
                await server.ended()
        ((_, told),) = called.begun
        assert (told["server"], told["chart"], told["state"], told["before"]) == (
            "simulated", "server", "Failed", "Draining",
        )  # fmt: skip
        assert told["diagnosis"]["cause"] == "unknown-flag"
        assert told["diagnosis"]["exit_code"] == 2
        assert told["text"].startswith("simulated: Draining → Failed: ")
        assert json.loads(Call(told).body) == json.loads(json.dumps(told))

    run_virtual(body, backend=backend)


@both
def test_a_hook_that_takes_for_ever_delays_no_transition_and_is_ended_with_the_rest(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        plain, hooked, called = World(BAD), World(BAD), Called(seconds=1e9)
        async with plain.server as server:
            await server.ended()
        async with Hooks([TRUE], timeout=7.0, run=called) as hooks:
            hooked.server.journal.listen(hooks)
            async with hooked.server as server:
                await server.ended()
            over = anyio.current_time()
        assert [hooked.times(state.name) for state in server.driver.chart.states] == [
            plain.times(state.name) for state in server.driver.chart.states
        ]
        assert anyio.current_time() - over == 7.0, "what is left has the timeout, all together"
        assert (len(called.begun), called.over) == (1, [])

    run_virtual(body, backend=backend)
    assert "5 calls were not made to their end" in caplog.text


@both
def test_calls_of_one_hook_come_in_order_and_another_one_does_not_wait_for_them(backend: str) -> None:
    async def body() -> None:
        slow, quick = Called(seconds=2.0), Called()

        async def run(hook: Hook, what: Call, timeout: float) -> str:
            return await (slow if hook.state == "any" else quick)(hook, what, timeout)

        async with Hooks([TRUE, Hook("Failed", argv=("true",))], run=run) as hooks:
            began = anyio.current_time()
            for number in range(4):
                hooks(moved(server=f"{number}"))
        assert [(at - began, told["server"]) for at, told in slow.begun] == [(2.0 * n, f"{n}") for n in range(4)]
        assert [at - began for at, _ in quick.begun] == [0.0] * 4

    run_virtual(body, backend=backend)


@both
def test_who_is_in_a_hurry_waits_for_none(backend: str) -> None:
    async def body(before: bool) -> None:
        hooks, called = Hooks([TRUE], timeout=7.0, run=Called(seconds=1e9)), anyio.current_time()
        async with anyio.create_task_group() as group:

            async def later() -> None:
                await anyio.sleep(1.0)
                hooks.hurry()

            group.start_soon(later)
            async with hooks:
                hooks(moved())
                await anyio.sleep(3.0 if before else 0.5)
            assert anyio.current_time() - called == (3.0 if before else 1.0)

    run_virtual(body, True, backend=backend)
    run_virtual(body, False, backend=backend)


@both
def test_more_calls_than_can_wait_are_dropped_and_that_is_said(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        called = Called()
        async with Hooks([TRUE], run=called) as hooks:
            for _ in range(MOST_WAITING + 5):
                hooks(moved())
        assert len(called.over) == MOST_WAITING

    run_virtual(body, backend=backend)
    assert len([record for record in caplog.records if "dropped" in record.getMessage()]) == 5


@both
def test_a_hook_that_fails_is_logged_and_called_again_the_next_time(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async def run(hook: Hook, what: Call, timeout: float) -> str:
            if what.payload["server"] == "0":
                raise RuntimeError("a bug")
            return "HTTP 500 of sk-secret-1"

        async with Hooks([TRUE], secrets=("sk-secret-1",), run=run) as hooks:
            hooks(moved(server="0"))
            hooks(moved(server="1"))

    run_virtual(body, backend=backend)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "RuntimeError: a bug" in caplog.text
    assert "HTTP 500 of ***" in caplog.text


def test_no_secret_is_told_wherever_it_stands() -> None:
    secret = "sk-secret-0123456789"
    plain = {"a": f"x {secret}", "b": [{"c": (secret, 1, None, True)}], "d": 2.5}
    assert masked(plain, (secret,)) == {"a": "x ***", "b": [{"c": ["***", 1, None, True]}], "d": 2.5}


@pytest.mark.anyio
async def test_a_command_gets_the_payload_and_a_few_variables(tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = "import os, sys; open(sys.argv[1], 'w').write(sys.stdin.read() + os.environ['STOKER_STATE'])"
    (hook,) = hooks_of({"Failed": python(program, str(out))})
    assert await call(hook, Call({"state": "Failed", "x": "é"}), GUARD) == ""
    assert out.read_text() == '{"state":"Failed","x":"é"}Failed'


@pytest.mark.anyio
async def test_a_command_that_fails_says_how_with_its_last_words() -> None:
    for program, said in (
        ("import sys; print('one'); sys.exit('two')", "it ended with code 1: one | two"),
        ("import os; os.kill(os.getpid(), 9)", "it was killed by signal 9: it said nothing"),
    ):
        (hook,) = hooks_of({"Failed": python(program)})
        assert await call(hook, Call({}), GUARD) == said
    assert "it cannot be run" in await call(Hook("any", argv=("/etc/passwd",)), Call({}), GUARD)


CHILD = "import time; time.sleep(1000)"
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
out = os.open(sys.argv[2], os.O_WRONLY)
os.write(out, f"{os.getpid()} {child.pid}".encode())
os.close(out)
if sys.argv[3] == "stay":
    child.wait()
"""


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["stay", "go"])
async def test_a_command_is_ended_with_its_whole_group_whether_it_hangs_or_leaves_something_behind(
    tmp_path: Path, how: str
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (hook,) = hooks_of({"any": python(PARENT, CHILD, str(pipe), how)})
    async with anyio.create_task_group() as group:
        group.start_soon(call, hook, Call({}), GUARD)
        pids = [int(word) for word in (await anyio.to_thread.run_sync(pipe.read_text)).split()]
        if how == "stay":
            assert all(psutil.pid_exists(pid) for pid in pids)
            group.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(wait_for_end, pids) == set()


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """A URL, and what was POSTed there; a path that ends with a number is answered with that status."""
    posted: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
            self.send_response(int(self.path.rpartition("/")[2]))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", posted
        server.shutdown()


@pytest.mark.anyio
async def test_a_webhook_is_posted_json_and_any_answer_but_2xx_is_a_failure(
    webhook: tuple[str, list[tuple[str, Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    url, posted = webhook
    async with Hooks(hooks_of({"Failed": [f"{url}/secret-path/204", f"{url}/secret-path/500"]})) as hooks:
        hooks(moved())
        hooks(moved("Stopped"))
    assert sorted(path for path, _ in posted) == ["/secret-path/204", "/secret-path/500"]
    assert {body["state"] for _, body in posted} == {"Failed"}
    (told,) = [record.getMessage() for record in caplog.records]
    assert "HTTP 500" in told
    assert "POST to 127.0.0.1" in told
    assert "secret-path" not in told


@pytest.mark.anyio
async def test_a_webhook_that_nobody_answers_is_a_failure_that_does_not_tell_the_url() -> None:
    wrong = await call(Hook("any", url="http://127.0.0.1:1/secret-path"), Call({}), GUARD)
    assert wrong == "ConnectError"
