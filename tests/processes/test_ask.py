"""A short process that is asked something: its words, its failure, its deadline, and that nothing of it is left."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from lifecycle.errors import LaunchError
from lifecycle.resources.ask import ask
from tests.processes.trees import is_alive

pytestmark = pytest.mark.anyio

CHILD_TOO = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"])
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1], sys.argv[2])
time.sleep(1000)
"""


async def test_what_it_prints_is_the_answer_whatever_else_it_says() -> None:
    code = "import sys; print('noise', file=sys.stderr); print('one'); print('two')"
    assert await ask((sys.executable, "-c", code), env={}, timeout=60) == "one\ntwo\n"


async def test_it_is_given_variables_besides_ours() -> None:
    code = "import os; print(os.environ['A'], 'PATH' in os.environ)"
    assert await ask((sys.executable, "-c", code), env={"A": "b"}, timeout=60) == "b True\n"


async def test_more_than_a_pipe_holds_on_both_streams_is_no_deadlock() -> None:
    code = "import sys; sys.stderr.write('e' * 10**6); sys.stdout.write('o' * 10**6)"
    assert await ask((sys.executable, "-c", code), env={}, timeout=60) == "o" * 10**6


async def test_a_failure_carries_its_last_words() -> None:
    with pytest.raises(LaunchError, match=r"ended with code 1: .*ZeroDivisionError"):
        await ask((sys.executable, "-c", "1/0"), env={}, timeout=60)


async def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(LaunchError, match=r"/no/such/program cannot be run: No such file"):
        await ask(("/no/such/program",), env={}, timeout=60)


async def started(folder: Path) -> list[int]:
    """The pids that `CHILD_TOO` writes, once it has."""
    pids = anyio.Path(folder / "pids")
    while not await pids.exists():  # noqa: ASYNC110 - a file of another process is not an event
        await anyio.sleep(0.01)
    return [int(word) for word in (await pids.read_text()).split()]


@pytest.mark.parametrize("way", ["deadline", "cancelled"])
async def test_one_that_is_not_waited_for_is_ended_with_its_children(tmp_path: Path, way: str) -> None:
    argv = (sys.executable, "-c", CHILD_TOO, str(tmp_path / "new"), str(tmp_path / "pids"))
    if way == "deadline":
        async with anyio.create_task_group() as group:
            group.start_soon(_expect_overdue, argv)
            pids = await started(tmp_path)
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: ask(argv, env={}, timeout=60))
            pids = await started(tmp_path)
            group.cancel_scope.cancel()
    with anyio.fail_after(10):
        while any(map(is_alive, pids)):  # noqa: ASYNC110 - a process is not an event
            await anyio.sleep(0.01)
    assert os.getpid() not in pids


async def _expect_overdue(argv: tuple[str, ...]) -> None:
    with pytest.raises(LaunchError, match="has not answered within 2 s"):
        await ask(argv, env={}, timeout=2)
