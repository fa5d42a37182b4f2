"""What asks a command to end: signals in any order are one drain, and its limit is the time that is left.

Rows 87 and 88 of the faults that people met: SIGKILL follows 30 s after Slurm's SIGTERM, so the limit of a drain must
come from the time that remains; and a notice says "soon", not "now": no new work is begun, the server ends after that.
"""

from __future__ import annotations

import signal
import time
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.cli.notice import Notice
from lifecycle.cli.signals import ENDS, TIME_UP, WORK_LEFT, at_once, exit_code_of
from lifecycle.ending import limits
from lifecycle.errors import Draining
from lifecycle.journal import Kind
from lifecycle.resources import slurm
from lifecycle.resources.slurm import KILL_WAIT, RUNNING, SlurmJob, asked, job_of, seconds_left, usable, with_kill_wait
from lifecycle.testing import Life, run_virtual
from tests.simulation.world import World

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
HELLO: dict[str, Any] = {"messages": []}
SLOW = 20.0
NOTICES = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, TIME_UP)
moments = st.floats(0, 10)
signals = st.lists(st.tuples(moments, st.sampled_from((*NOTICES, signal.SIGINT))), min_size=1, max_size=6)


def drained(came: list[tuple[float, int]], backend: str, *, work_first: bool, **settings: Any) -> tuple[World, bool]:
    """A server with a request in flight that takes `SLOW`, and the signals that come to it meanwhile, each so many
    seconds after the last; whether the request was answered."""

    async def body() -> tuple[World, bool]:
        world = World(Life(reply=SLOW), **{"drain_timeout": 500.0, **settings})
        answered = False
        async with world.server as server, anyio.create_task_group() as group:
            notice = Notice(server, anyio.Event(), work_first=work_first)
            await server.healthy()

            async def ask() -> None:
                nonlocal answered
                try:
                    await server.chat(HELLO)
                    answered = True
                except Draining:
                    pass
                await server.stop()  # the work is through

            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            for pause, number in came:
                await anyio.sleep(pause)
                notice.take(number, group)
            await server.ended()
            group.cancel_scope.cancel()
        world.check_end()
        return world, answered

    return run_virtual(body, backend=backend, limit=1e6)


@given(signals, st.sampled_from(["asyncio", "trio"]), st.booleans())
def test_notices_in_any_order_and_number_are_one_drain_and_only_a_second_ctrl_c_ends_at_once(
    came: list[tuple[float, int]], backend: str, work_first: bool
) -> None:
    world, answered = drained(came, backend, work_first=work_first)
    twice = next((n for n in range(len(came)) if at_once([number for _, number in came[: n + 1]])), None)
    now = twice is not None
    in_time = twice is not None and sum(pause for pause, _ in came[: twice + 1]) < SLOW
    assert world.server.state == "Stopped"
    assert [after for _, after in world.transitions()].count("Stopped") == 1
    assert answered or in_time
    assert any(record.event == "Kill" for record in world.records) <= now


@pytest.mark.fault(88)
@both
@pytest.mark.parametrize("first", NOTICES)
def test_no_notice_ends_a_request_that_is_in_flight(backend: str, first: int) -> None:
    world, answered = drained([(1, first), (0, signal.SIGTERM), (0.001, signal.SIGTERM)], backend, work_first=False)
    assert answered
    assert len(world.host.processes) == 1


@pytest.mark.parametrize(
    ("came", "code"),
    [
        ([signal.SIGTERM], 143),
        ([signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1], 143),
        ([signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM], WORK_LEFT),
        ([TIME_UP, signal.SIGTERM], WORK_LEFT),
        ([signal.SIGHUP, signal.SIGHUP], 129),
        ([signal.SIGINT], 130),
        ([signal.SIGTERM, signal.SIGINT], 143),
        ([signal.SIGUSR2, signal.SIGINT, signal.SIGINT], 130),
    ],
)
def test_the_exit_code_tells_want_of_time_from_an_order_to_end(came: list[int], code: int) -> None:
    assert exit_code_of(came) == code


def test_what_resumes_a_stopped_process_is_no_notice() -> None:
    """A job that was suspended, or a command that was stopped by Ctrl-Z, goes on after SIGCONT."""
    assert signal.SIGCONT not in ENDS


NOW = 1_800_000_000.0
times = st.floats(-1e5, 1e5)
jobs = st.builds(
    SlurmJob,
    id=st.just("1"),
    end=st.none() | times.map(lambda t: NOW + t),
    kill_wait=st.floats(0, 600),
    state=st.sampled_from(["", RUNNING, "COMPLETING", "TIMEOUT", "PREEMPTED"]),
)


@pytest.mark.fault(87)
@given(jobs, st.sampled_from([*ENDS, TIME_UP]))
def test_row_87_the_time_for_a_drain_comes_from_what_is_left_and_never_reaches_beyond_the_kill(
    job: SlurmJob, number: int
) -> None:
    left = seconds_left(number, NOW, job)
    if left is None:
        assert job.end is None
        return
    assert left >= 0
    sigterm_kills_at = job.kill_wait if number == signal.SIGTERM and job.state != RUNNING else float("inf")
    end = float("inf") if job.end is None else max(job.end - NOW, job.kill_wait if job.end <= NOW else 0)
    assert left <= min(sigterm_kills_at, max(end, job.kill_wait))
    assert usable(left) <= left


@pytest.mark.parametrize(
    ("number", "end", "state", "left"),
    [
        pytest.param(signal.SIGTERM, -1, "TIMEOUT", 30, id="the time limit: KillWait"),
        pytest.param(signal.SIGTERM, 9000, "COMPLETING", 30, id="scancel: KillWait"),
        pytest.param(signal.SIGTERM, 9000, "", 30, id="not known yet why: KillWait"),
        pytest.param(signal.SIGTERM, 600, RUNNING, 600, id="preemption with a grace of 600 s: the end has moved"),
        pytest.param(signal.SIGTERM, None, "", 30, id="nothing is known but that it is Slurm"),
        pytest.param(signal.SIGUSR1, 120, "", 120, id="--signal=USR1@120"),
        pytest.param(signal.SIGUSR1, None, "", None, id="a notice without a time"),
        pytest.param(signal.SIGUSR1, -5, "", 30, id="the limit is over and the job was let run on"),
    ],
)
def test_what_slurm_leaves_after_a_signal(number: int, end: float | None, state: str, left: float | None) -> None:
    job = SlurmJob("1", end=None if end is None else NOW + end, state=state)
    assert seconds_left(number, NOW, job) == left


@both
def test_row_87_a_drain_in_a_job_takes_what_killwait_leaves_not_what_is_configured(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")

    async def body() -> float:
        world = World(Life(reply=1e6), drain_timeout=500.0)
        async with world.server as server, anyio.create_task_group() as group:
            notice = Notice(server, anyio.Event(), work_first=False)
            await server.healthy()
            group.start_soon(_refused, server)
            await anyio.wait_all_tasks_blocked()
            notice._set(signal.SIGTERM)  # without asking Slurm, which is not here: time is virtual
            began = anyio.current_time()
            await notice._tell_server()
            await server.ended()
            gone = anyio.current_time() - began
        (drained,) = [r.time for r in world.records if r.kind is Kind.PHASE and r.detail.get("phase") == "drained"]
        asked = next(r.time for r in world.records if r.event == "Stop")
        assert drained - asked == pytest.approx(limits(server.config, usable(KILL_WAIT)).drain, abs=0.5)
        return gone

    assert run_virtual(body, backend=backend, limit=1e6) < KILL_WAIT


async def _refused(server: Any) -> None:
    with pytest.raises(Draining):
        await server.chat(HELLO)


def test_the_job_is_what_the_variables_say() -> None:
    assert job_of({}) is None
    plain = job_of({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1800000000", "SLURM_RESTART_COUNT": "2"})
    assert plain == SlurmJob("7", restarts=2, end=1_800_000_000.0)
    task = job_of({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"})
    assert task == SlurmJob("7_3"), "the number of an array alone means all of its tasks"


@pytest.mark.anyio
async def test_slurm_is_asked_with_its_own_programs_and_what_it_does_not_say_stays() -> None:
    seen: list[list[str]] = []

    async def run(argv: Any, *, env: Any, timeout: float) -> str:
        seen.append(list(argv))
        return {"squeue": "COMPLETING N/A\n", "scontrol": "Epilog = (null)\nKillWait      = 90 sec\n"}[argv[0]]

    job = SlurmJob("7_3", end=NOW)
    job = await with_kill_wait(await asked(job, run), run)
    assert job == SlurmJob("7_3", end=NOW, kill_wait=90, state="COMPLETING")
    assert seen == [["squeue", "-h", "-j", "7_3", "-o", "%T %e"], ["scontrol", "show", "config"]]


@pytest.mark.anyio
async def test_without_slurms_programs_what_is_known_must_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    job = SlurmJob("7", end=NOW)
    assert await with_kill_wait(await asked(job)) == job


def test_a_time_is_local() -> None:
    state, end = slurm.parse_queue("RUNNING 2026-12-02T18:00:00\n")
    assert state == RUNNING
    assert end is not None
    assert time.strftime("%H:%M", time.localtime(end)) == "18:00"
