"""What Slurm says of the job that this process is a part of, and how long it leaves it. Asks `squeue` and `scontrol`.

How Slurm ends a job (slurm.conf(5), KillWait, GraceTime; sbatch(1), --signal; scancel(1)):

- `--signal=[B:]USR1@120` sends a signal of the user's choice so many seconds before the time limit: to the processes of
  the steps, or with B: to the batch script alone.
- At the time limit, and by `scancel`: SIGCONT and SIGTERM, and SIGKILL after KillWait (30 s by default).
- A job that is preempted with a GraceTime is told so at once by SIGCONT and SIGTERM, and its end time becomes now plus
  the grace; then the same comes again as at the time limit.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from lifecycle.errors import LaunchError
from lifecycle.resources.ask import ask

KILL_WAIT = 30.0
"""Seconds: Slurm's default of KillWait."""
ASK_TIMEOUT = 5.0
"""Seconds for an answer. A busy slurmctld may take longer; then what is known already must do."""
MARGIN, MARGIN_SHARE = 5.0, 10
"""Seconds kept for the last results and the summary: so many, or one part in so many of a time that is short."""
RUNNING = "RUNNING"

Run = Callable[..., Awaitable[str]]


@dataclass(frozen=True)
class SlurmJob:
    """The job, as far as it is known."""

    id: str
    """As `squeue -j` takes it: 4711, or 4711_3 for a task of an array."""
    restarts: int = 0
    """How often Slurm has started it again (SLURM_RESTART_COUNT)."""
    end: float | None = None
    """Unix seconds of its end; None if that is not known."""
    kill_wait: float = KILL_WAIT
    state: str = ""
    """Slurm's word for it, such as RUNNING or COMPLETING, if it has been asked since the last signal came."""

    def text(self) -> str:
        """For people."""
        again = f", started again {self.restarts} times" if self.restarts > 1 else ""
        again = ", started again once" if self.restarts == 1 else again
        return f"Slurm job {self.id}{again}"


def job_of(environ: Mapping[str, str]) -> SlurmJob | None:
    """The job that these variables tell of (sbatch(1), OUTPUT ENVIRONMENT VARIABLES); None outside of Slurm."""
    number = environ.get("SLURM_JOB_ID")
    if not number:
        return None
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return SlurmJob(
        f"{array}_{task}" if array and task else number,
        int(_number(environ.get("SLURM_RESTART_COUNT")) or 0),
        _number(environ.get("SLURM_JOB_END_TIME")),
    )


def seconds_left(number: int, now: float, job: SlurmJob) -> float | None:
    """Seconds until SIGKILL, after that signal came now. None: nothing tells.

    Args:
        number: the signal; 0 for none.
        now: Unix seconds.
        job: what is known of it. Its state says what a SIGTERM means: a job that still runs has until its end (the
            signal told of a preemption with grace, or was somebody's own); any other, and one whose state is not
            known, has KillWait.
    """
    if number == signal.SIGTERM and job.state != RUNNING:
        return job.kill_wait
    if job.end is None:
        return None
    return job.end - now if job.end > now else job.kill_wait


def usable(seconds: float) -> float:
    """What of a time can be used to end a server: the rest is for what comes after that."""
    return seconds - min(MARGIN, seconds / MARGIN_SHARE)


async def asked(job: SlurmJob, run: Run = ask) -> SlurmJob:
    """The job with its state and its end as Slurm tells them now. What it does not tell stays as it was."""
    said = await _answer(("squeue", "-h", "-j", job.id, "-o", "%T %e"), run)
    state, end = parse_queue(said)
    return replace(job, state=state or job.state, end=job.end if end is None else end)


async def with_kill_wait(job: SlurmJob, run: Run = ask) -> SlurmJob:
    """The job with the KillWait of this cluster."""
    said = await _answer(("scontrol", "show", "config"), run)
    found = re.search(r"^KillWait\s*=\s*(\d+)", said, re.MULTILINE)
    return replace(job, kill_wait=float(found[1])) if found else job


async def _answer(argv: Sequence[str], run: Run) -> str:
    """What a program of Slurm's says; nothing if it is not there (in a container), fails, or takes too long."""
    try:
        return await run(argv, env={"SLURM_TIME_FORMAT": "standard"}, timeout=ASK_TIMEOUT)
    except LaunchError:
        return ""


def parse_queue(said: str) -> tuple[str, float | None]:
    """State and end (Unix seconds; None: it does not say) from the first line of `squeue -o "%T %e"`; times are local.

    >>> parse_queue("COMPLETING N/A\\n")
    ('COMPLETING', None)
    """
    state, _, end = said.partition("\n")[0].strip().partition(" ")
    try:
        return state, datetime.fromisoformat(end.strip()).timestamp()
    except ValueError:  # N/A, NONE, Unknown
        return state, None


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
