"""Signals by which batch systems announce the end of a job go to every process of it: they end no keeper and no server.

Row 88 of the faults that people met: a notice that was passed on ended the work that it should have let finish.
"""

from __future__ import annotations

import os
import signal

import anyio
import pytest

from lifecycle.resources.keeper import IGNORED
from lifecycle.resources.process import _start_keeper
from tests.processes.test_process import started
from tests.processes.trees import GUARD, Box, parent_of, tree

pytestmark = pytest.mark.anyio
NOTICES = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


@pytest.mark.fault(88)
async def test_a_notice_to_every_process_of_a_job_ends_none_of_them(box: Box) -> None:
    process = await started(box, *tree(box.mark, "plain", "session"), begins="ready")
    members = process.pids() | {parent_of(process.pid)}
    for number in NOTICES:
        for pid in members:
            os.kill(pid, number)
    with anyio.fail_after(GUARD):
        assert process.pids() == members - {parent_of(process.pid)}
        await process.end(60)
        assert (await process.exited()).code == 0
    assert box.left() == {}


@pytest.mark.parametrize("number", IGNORED)
def test_a_keeper_is_not_ended_by_a_signal_that_comes_before_it_has_begun_to_ignore_it(number: int) -> None:
    line = _start_keeper("early", "early")
    os.kill(line.child.pid, number)
    line.close()  # without a word of what to start, it goes
    assert line.child.wait(GUARD) == 0


def test_whoever_starts_a_server_gets_signals_as_before() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    line = _start_keeper("early", "early")
    line.close()
    line.child.wait(GUARD)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


async def test_a_server_that_wants_a_notice_itself_gets_it(box: Box) -> None:
    script = """if True:
        import signal, sys
        signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit(7))
        print("ready", flush=True)
        signal.pause()
    """
    process = await started(box, *box.script(script), begins="ready")
    os.kill(process.pid, signal.SIGUSR1)
    with anyio.fail_after(GUARD):
        assert (await process.exited()).code == 7
