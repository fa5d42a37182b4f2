"""A small Slurm: runs batch scripts and their steps as processes of this machine, and ends them as Slurm does.

What is imitated (sbatch(1), srun(1), slurm.conf(5): KillWait, GraceTime, ProctrackType=proctrack/cgroup):

- A script runs from a copy, with its submit folder as working folder; a signal reaches the script's shell, or the tasks
  that srun has started, and none of their children.
- `--signal=B:SIG@N` signals the shell alone, `--signal=SIG@N` the tasks alone.
- The end: SIGCONT, SIGTERM to shell and tasks; after KillWait SIGKILL to every process of the job.
- A preemption with a grace: SIGCONT, SIGTERM to the tasks at once, and the end time moves.
- A job that is queued again runs the same script with SLURM_RESTART_COUNT.

Time passes only where a test says so: the moments of signals are the test's, and so is the end that squeue tells.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.cli.slurm_program import load, save

GUARD = 90.0
"""Seconds after which what has not come fails its test."""
PROGRAMS = Path(__file__).with_name("slurm_program.py")


class Cluster:
    """One for each test; `folder` is where jobs are submitted, `kill_wait` Slurm's setting, in seconds."""

    def __init__(self, folder: Path, environment: dict[str, str], kill_wait: int = 30) -> None:
        self.folder = folder
        self.spool = folder / "slurm"
        self.kill_wait = kill_wait
        self.jobs: list[Job] = []
        programs = folder / "bin"
        for each in (self.spool, programs):
            each.mkdir()
        (self.spool / "KillWait").write_text(str(kill_wait))
        for name in ("sbatch", "srun", "squeue", "scontrol"):
            self._program(programs / name, f'"{sys.executable}" -E -S "{PROGRAMS}" {name} "$@"')
        self._program(programs / "stoker", f'"{sys.executable}" -P -m lifecycle.cli "$@"')
        plain = {name: value for name, value in environment.items() if not name.startswith("SLURM_")}
        self.environment = {**plain, "PATH": f"{programs}:{os.environ['PATH']}", "FAKE_SLURM": str(self.spool)}

    @staticmethod
    def _program(path: Path, line: str) -> None:
        path.write_text(f"#!/bin/sh\nexec {line}\n")
        path.chmod(0o755)

    def submit(self, script: Path, *words: str, options: tuple[str, ...] = ()) -> list[Job]:
        """`sbatch OPTIONS SCRIPT WORDS`, and start what it has queued: one job, or each task of an array."""
        done = subprocess.run(
            ["sbatch", *options, str(script), *words], cwd=self.folder, env=self.environment, capture_output=True,
            text=True, timeout=GUARD,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        number = done.stdout.split()[-1]
        names = sorted(path.stem for path in self.spool.glob(f"{number}*.json"))
        queued = [Job(self, name) for name in names if name.split("_")[0] == number]
        self.jobs += queued
        for job in queued:
            job.start()
        return queued

    def end(self) -> None:
        """Leave nothing, also after a test that has failed."""
        for job in self.jobs:
            job.kill()
            job.process.wait(GUARD)


class Job:
    """A job, or a task of an array."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.restarts = 0

    @property
    def record(self) -> dict[str, Any]:
        return load(self.name, self.cluster.spool)

    def note(self, **what: Any) -> None:
        save({**self.record, **what}, self.cluster.spool)

    def file(self, kind: str) -> Path:
        return self.cluster.spool / f"{self.name}.{kind}"

    @property
    def step(self) -> list[int]:
        """The tasks that srun has started."""
        return [int(pid) for pid in self.file("step").read_text().split()] if self.file("step").exists() else []

    @property
    def log(self) -> Path:
        job = self.record
        pattern = str(job["asked"]["output"] or "slurm-%j.out")
        for mark, value in (("%j", self.name), ("%A", job["array"]), ("%a", job["task"])):
            pattern = pattern.replace(mark, str(value))
        return self.cluster.folder / pattern

    def start(self) -> None:
        job, asked = self.record, self.record["asked"]
        nodes = int(asked["nodes"] or 1)
        end = time.time() + job["limit"]
        own = {
            "SLURM_JOB_ID": str(job["array"]), "SLURM_JOB_END_TIME": str(int(end)), "SLURM_NNODES": str(nodes),
            "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NTASKS": str(nodes * int(asked["ntasks_per_node"] or 1)),
            "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0",
            "SLURM_JOB_NODELIST": ",".join(["localhost"] * nodes), "FAKE_SLURM_JOB": self.name,
        }  # fmt: skip
        if job["task"] is not None:
            # The last task of an array has the array's own number; the others get one of theirs.
            alone = job["array"] if job["task"] == job["tasks"][-1] else job["array"] + 500_000 + job["task"]
            own |= {
                "SLURM_JOB_ID": str(alone), "SLURM_ARRAY_JOB_ID": str(job["array"]),
                "SLURM_ARRAY_TASK_ID": str(job["task"]), "SLURM_ARRAY_TASK_COUNT": str(len(job["tasks"])),
                "SLURM_ARRAY_TASK_MIN": str(job["tasks"][0]), "SLURM_ARRAY_TASK_MAX": str(job["tasks"][-1]),
            }  # fmt: skip
        if self.restarts:
            own["SLURM_RESTART_COUNT"] = str(self.restarts)
        self.mark = f"FAKE_SLURM_LIFE={self.cluster.spool}/{self.name}/{self.restarts}"
        name, _, value = self.mark.partition("=")
        self.note(state="RUNNING", end=end)
        for kind in ("step", "again"):
            self.file(kind).unlink(missing_ok=True)
        with self.log.open("ab" if asked["open_mode"] == "append" else "wb") as log:
            self.process = subprocess.Popen(
                ["bash", job["script"], *job["words"]], cwd=job["folder"], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, env={**self.cluster.environment, **own, name: value}, start_new_session=True,
            )  # fmt: skip
        self.file("batch").write_text(str(self.process.pid))

    def signal(self, *numbers: int, batch: bool, step: bool) -> None:
        targets = [self.process.pid] if batch and self.process.poll() is None else []
        targets += self.step if step else []
        for number in numbers:
            for pid in targets:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue

    def announce(self) -> None:
        """The moment that `--signal` names has come."""
        wanted = str(self.record["asked"]["signal"])
        where, _, rest = wanted.rpartition(":")
        name, _, before = rest.partition("@")
        self.note(end=time.time() + int(before))
        self.signal(signal.Signals[f"SIG{name}"], batch=where == "B", step=where != "B")

    def end(self, state: str = "COMPLETING") -> int:
        """The time limit, `scancel`, or the end of a grace; the script's exit code."""
        self.note(state=state)
        self.signal(signal.SIGCONT, signal.SIGTERM, batch=True, step=True)
        deadline = time.monotonic() + self.cluster.kill_wait
        while time.monotonic() < deadline and self.processes():
            time.sleep(0.02)
        return self.kill()

    def preempt(self, grace: float) -> None:
        """A job that matters more wants the node: this one has so many seconds still."""
        self.note(end=time.time() + grace)
        self.signal(signal.SIGCONT, signal.SIGTERM, batch=False, step=True)

    def kill(self) -> int:
        """SIGKILL to whatever is left; the script's exit code."""
        while found := self.processes():
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.poll()
        return self.process.wait(GUARD)

    def again(self) -> None:
        """Queue it again, and start it at once."""
        self.restarts += 1
        self.start()

    def wait(self) -> int:
        """Until it is over, however often it queues itself again; the script's last exit code."""
        while True:
            code = self.process.wait(GUARD)
            self.kill()
            if not self.file("again").exists():
                self.note(state="GONE")
                return code
            self.again()

    def processes(self) -> list[int]:
        """Every live process of this life of the job: what its cgroup would hold."""
        mark, found = self.mark.encode(), []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except OSError:
                continue
        return found
