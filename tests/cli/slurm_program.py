"""sbatch, srun, squeue and scontrol of a cluster that is not there: `slurm_program.py NAME WORDS...`. See
`tests.cli.fake_slurm`.

What is known of jobs lies in the folder FAKE_SLURM: JOB.json, JOB.step (pids of the step's tasks), JOB.batch (pid of
the script's shell), JOB.again (it has been queued again). These programs know the few options that Stoker and its
examples use, and refuse all others.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("FAKE_SLURM", "/nowhere"))
NAMES = (
    "job-name", "output", "nodes", "ntasks", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "mem", "time",
    "open-mode", "signal", "array",
)  # fmt: skip


def options(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, allow_abbrev=False)
    for name in NAMES:
        parser.add_argument(f"--{name}")
    for flag in ("requeue", "exclusive"):
        parser.add_argument(f"--{flag}", action="store_true")
    return parser


def directives(script: str) -> list[str]:
    """The options in a batch script: lines that begin with #SBATCH, before the first command (sbatch(1))."""
    found: list[str] = []
    for line in script.splitlines()[1:]:
        if line.startswith("#SBATCH "):
            found += line.split()[1:]
        elif line.strip() and not line.startswith("#"):
            break
    return found


def seconds(limit: str) -> int:
    """A time limit: MINUTES, MINUTES:SECONDS or HOURS:MINUTES:SECONDS."""
    parts = [int(part) for part in limit.split(":")]
    if len(parts) == 1:
        return 60 * parts[0]
    total = 0
    for part in parts:
        total = 60 * total + part
    return total


def sbatch(words: list[str]) -> int:
    parser = options("sbatch")
    parser.add_argument("script")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    text = Path(given.script).read_text()
    if not text.startswith("#!"):
        print("sbatch: error: This does not look like a batch script.", file=sys.stderr)
        return 1
    asked = vars(options("sbatch").parse_args(directives(text)))
    asked.update({name: value for name, value in vars(given).items() if name in asked and value})
    number = max((int(path.stem.split("_")[0]) for path in FOLDER.glob("*.json")), default=1000 + os.getpid() % 500) + 1
    tasks: list[int | None] = [None]
    if asked["array"]:
        first, _, last = asked["array"].partition("-")
        tasks = list(range(int(first), int(last or first) + 1))
    for task in tasks:
        name = str(number) if task is None else f"{number}_{task}"
        spooled = FOLDER / f"{name}.sh"  # Slurm runs a copy
        spooled.write_text(text)
        job = {
            "id": name, "array": number, "task": task, "tasks": tasks, "asked": asked, "words": given.words,
            "limit": seconds(asked["time"]), "script": str(spooled), "folder": os.getcwd(), "state": "PENDING",
        }  # fmt: skip
        save(job)
    print(f"Submitted batch job {number}")
    return 0


def srun(words: list[str]) -> int:
    """Run the tasks of a step. They are slurmstepd's children, in sessions of their own: no signal to srun reaches one.
    """
    parser = argparse.ArgumentParser(prog="srun", allow_abbrev=False)
    parser.add_argument("--kill-on-bad-exit")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # "does not reliably forward": here, never
    count = int(os.environ["SLURM_NTASKS"])
    nodes = os.environ["SLURM_JOB_NODELIST"]
    step = {
        "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(count), "SLURM_STEP_NUM_NODES": os.environ["SLURM_NNODES"],
        "SLURM_STEP_NODELIST": nodes,
    }  # fmt: skip
    tasks = []
    for rank in range(count):
        own = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank), "SLURM_LOCALID": "0"}
        tasks.append(
            subprocess.Popen(
                given.words, env={**os.environ, **step, **own}, start_new_session=True, preexec_fn=_default_signals
            )
        )
    step_file = FOLDER / f"{os.environ['FAKE_SLURM_JOB']}.step"
    step_file.write_text(" ".join(str(task.pid) for task in tasks))
    codes = [task.wait() for task in tasks]
    return max(128 - code if code < 0 else code for code in codes)


def _default_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def squeue(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="squeue", allow_abbrev=False, add_help=False)
    parser.add_argument("-h", dest="bare", action="store_true")
    parser.add_argument("-j", dest="job", required=True)
    parser.add_argument("-o", dest="format", required=True)
    given = parser.parse_args(words)
    job = load(given.job)
    if not job or job["state"] == "GONE":
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    assert os.environ.get("SLURM_TIME_FORMAT", "standard") == "standard", "another format of times is not known here"
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(job["end"]))
    print(given.format.replace("%T", job["state"]).replace("%e", end))
    return 0


def scontrol(words: list[str]) -> int:
    if words == ["show", "config"]:
        wait = (FOLDER / "KillWait").read_text()
        print(f"Configuration data as of 2026-12-02T18:00:00\nInactiveLimit           = 0 sec\nKillOnBadExit           "
              f"= 0\nKillWait                = {wait} sec\nLaunchParameters        = (null)")  # fmt: skip
        return 0
    if words[:1] == ["requeue"] and len(words) == 2:
        job = load(words[1])
        if not job or not job["asked"]["requeue"]:
            print(f"Requested operation is presently disabled for job {words[1]}", file=sys.stderr)
            return 1
        (FOLDER / f"{job['id']}.again").touch()
        os.kill(int((FOLDER / f"{job['id']}.batch").read_text()), signal.SIGTERM)  # the job that runs is ended first
        return 0
    print(f"scontrol: error: not known here: {words}", file=sys.stderr)
    return 1


def load(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    path = folder / f"{name}.json"
    if not re.fullmatch(r"\d+(_\d+)?", name) or not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def save(job: dict[str, Any], folder: Path = FOLDER) -> None:
    beside = folder / f".{job['id']}.{os.getpid()}"
    beside.write_text(json.dumps(job))
    beside.replace(folder / f"{job['id']}.json")


if __name__ == "__main__":
    programs = {"sbatch": sbatch, "srun": srun, "squeue": squeue, "scontrol": scontrol}
    sys.exit(programs[sys.argv[1]](sys.argv[2:]))
