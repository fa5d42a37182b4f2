"""The example scripts for Slurm, run by a small Slurm of this machine: drains that use the time that is left, jobs that
are queued again and go on, arrays and several nodes, and the signals in the order in which Slurm sends them.

Rows 86, 87 and 88 of the faults that people met are named where they are tested.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lifecycle.journal import Kind, Record, read_journal
from tests.cli.command import Stoker
from tests.cli.fake_slurm import GUARD, Cluster, Job
from tests.cli.slurm_program import directives
from tests.cli.test_generate import HANGS
from tests.fake import fake_command

SCRIPTS = Path(__file__).parents[2] / "examples" / "slurm"
ONE, ARRAY, SEVERAL = (SCRIPTS / f"{name}.sh" for name in ("one-node", "array", "multi-node"))
PROMPTS = [{"prompt": f"Say {number}", "number": number} for number in range(60)]
ECHO = ("--backend", "echo", "--max-tokens", "3")
SLOW = (*ECHO, "--set", "latency=0.4", "--concurrency", "4")
EXAMPLES = pytest.mark.parametrize("script", [ONE, ARRAY, SEVERAL], ids=lambda path: path.stem)


@pytest.fixture
def cluster(stoker: Stoker) -> Iterator[Cluster]:
    cluster = Cluster(stoker.folder, stoker.environment)
    stoker.write("in.jsonl", PROMPTS)
    yield cluster
    cluster.end()


def submit(cluster: Cluster, *more: str, script: Path = ONE, options: tuple[str, ...] = ()) -> list[Job]:
    return cluster.submit(script, "in.jsonl", "--output", "out.jsonl", *(more or ECHO), options=options)


def lines(folder: Path, pattern: str = "out*.jsonl") -> list[dict[str, Any]]:
    """The whole lines of the outputs so far."""
    found = [path.read_bytes() for path in folder.glob(pattern) if ".journal." not in path.name]
    return [json.loads(line) for data in found for line in data[: data.rfind(b"\n") + 1].splitlines()]


def wait_for_lines(job: Job, count: int) -> None:
    """A file that grows is no event, so it is polled."""
    deadline = time.monotonic() + GUARD
    while len(lines(job.cluster.folder)) < count:
        assert job.process.poll() is None, job.log.read_text()
        assert time.monotonic() < deadline, job.log.read_text()
        time.sleep(0.02)


def wait_for_words(job: Job, words: str) -> None:
    deadline = time.monotonic() + GUARD
    while words not in job.log.read_text():
        assert job.process.poll() is None, job.log.read_text()
        assert time.monotonic() < deadline, job.log.read_text()
        time.sleep(0.02)


def every_record_once(folder: Path) -> None:
    found = lines(folder)
    assert Counter(line["number"] for line in found) == Counter(range(len(PROMPTS)))
    assert not [line for line in found if "error" in line]


def records(cluster: Cluster, name: str = "out.jsonl.journal.jsonl") -> list[Record]:
    return list(read_journal(cluster.folder / name))


def left_in_flight(cluster: Cluster) -> list[int]:
    """Requests that each drain has cut off."""
    found = [record.detail for record in records(cluster) if record.kind is Kind.PHASE]
    return [int(detail["left"]) for detail in found if detail.get("phase") == "drained"]


@EXAMPLES
def test_a_script_is_one_that_bash_and_shellcheck_accept(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    if shutil.which("shellcheck"):
        assert subprocess.run(["shellcheck", "--severity=style", str(script)]).returncode == 0


@EXAMPLES
def test_a_script_goes_on_after_a_preemption_and_has_a_notice_before_its_limit(script: Path) -> None:
    asked = directives(script.read_text())
    assert {"--requeue", "--open-mode=append"} <= set(asked)
    assert any(word.startswith("--signal=") and word.endswith("USR1@120") for word in asked)


def test_a_job_that_has_time_enough_does_its_work_and_ends_with_zero(cluster: Cluster) -> None:
    (job,) = submit(cluster)
    assert job.wait() == 0, job.log.read_text()
    every_record_once(cluster.folder)
    assert f"Slurm job {job.name} ends at" in job.log.read_text()
    (said,) = [record.detail for record in records(cluster) if "restarts" in record.detail]
    assert (said["job"], said["restarts"]) == (job.name, 0)


@pytest.mark.fault(88)
def test_row_88_a_notice_before_the_limit_ends_no_request_and_the_job_queues_itself_again(cluster: Cluster) -> None:
    (job,) = submit(cluster, *SLOW)
    wait_for_lines(job, 4)
    job.announce()
    assert job.wait() == 0, job.log.read_text()
    assert job.restarts == 1
    assert left_in_flight(cluster) == [0, 0]
    every_record_once(cluster.folder)
    log = job.log.read_text()
    assert "SIGUSR1: draining" in log
    assert "were finished before" in log, "the log of the first life is kept, and the second goes on"
    assert [record.detail["restarts"] for record in records(cluster) if "restarts" in record.detail] == [0, 1]


@pytest.mark.fault(87)
def test_row_87_at_the_time_limit_what_is_in_flight_has_what_killwait_leaves(cluster: Cluster) -> None:
    cluster.kill_wait = 20
    (cluster.spool / "KillWait").write_text("20")
    (job,) = submit(cluster, *ECHO, "--set", "latency=2", "--concurrency", "4")
    wait_for_lines(job, 4)
    assert job.end() == 143
    assert left_in_flight(cluster) == [0]
    (job_again,) = submit(cluster)
    assert job_again.wait() == 0
    every_record_once(cluster.folder)


@pytest.mark.fault(87)
def test_row_87_a_drain_that_does_not_get_on_is_over_before_slurm_kills(cluster: Cluster) -> None:
    cluster.kill_wait = 9
    (cluster.spool / "KillWait").write_text("9")
    hangs = ("--backend", "custom", "--command", HANGS, "--model", "fake", "--set", "drain_timeout=600")
    (job,) = submit(cluster, *hangs, "--concurrency", "4")
    wait_for_words(job, "Healthy")
    assert job.end() == 143, job.log.read_text()
    assert left_in_flight(cluster) == [4]
    assert records(cluster)[-1].after == "Stopped", "it had the time to say so"


def test_a_preempted_job_is_started_again_and_every_record_is_there_once(cluster: Cluster) -> None:
    (job,) = submit(cluster, *SLOW)
    wait_for_lines(job, 4)
    job.end("PREEMPTED")
    assert 0 < len(lines(cluster.folder)) < len(PROMPTS)
    job.again()
    assert job.wait() == 0, job.log.read_text()
    every_record_once(cluster.folder)


def test_the_lock_of_a_life_that_was_killed_does_not_stop_the_next(cluster: Cluster) -> None:
    """The node is lost: nobody has had a word."""
    (job,) = submit(cluster, *SLOW)
    wait_for_lines(job, 4)
    job.kill()
    job.again()
    assert job.wait() == 0, job.log.read_text()
    every_record_once(cluster.folder)


def test_before_the_end_of_a_job_nothing_new_is_begun_without_any_signal(cluster: Cluster) -> None:
    (job,) = submit(cluster, *ECHO, "--set", "latency=1", "--concurrency", "4", options=("--time=0:12",))
    assert job.wait() == 0, job.log.read_text()
    assert job.restarts >= 1
    assert "the time is nearly over: draining" in job.log.read_text()
    assert set(left_in_flight(cluster)) == {0}
    every_record_once(cluster.folder)


def test_the_tasks_of_an_array_share_the_input_and_one_queues_only_itself_again(cluster: Cluster) -> None:
    jobs = submit(cluster, *SLOW, script=ARRAY, options=("--array=0-2",))
    assert len(jobs) == 3
    last = jobs[-1]
    wait_for_lines(last, 6)
    last.announce()
    assert [job.wait() for job in jobs] == [0, 0, 0], [job.log.read_text() for job in jobs]
    assert [job.restarts for job in jobs] == [0, 0, 1]
    every_record_once(cluster.folder)
    assert len(list(cluster.folder.glob("out.rank-*-of-00003.jsonl"))) == 3


@pytest.mark.fault(86)
def test_row_86_a_signal_to_srun_reaches_no_task_and_one_to_the_step_does(cluster: Cluster) -> None:
    script = cluster.folder / "step.sh"
    script.write_text("#!/bin/bash\n#SBATCH --ntasks=1\n#SBATCH --time=60\nsrun stoker generate \"$@\"\n")
    (job,) = submit(cluster, *SLOW, script=script)
    wait_for_lines(job, 4)
    (srun,) = [
        pid for pid in job.processes() if b"slurm_program.py\0srun" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    subprocess.run(["kill", "-TERM", str(srun)], check=True)
    before = len(lines(cluster.folder))
    wait_for_lines(job, before + 8)  # nobody has heard it
    job.signal(signal.SIGTERM, batch=False, step=True)  # as `scancel --signal=TERM` does
    assert job.wait() == 143
    assert left_in_flight(cluster) == [0]
    assert "SIGTERM: draining" in job.log.read_text()


def test_a_preemption_with_grace_gives_the_drain_that_grace_and_not_killwait(cluster: Cluster) -> None:
    script = cluster.folder / "step.sh"
    script.write_text("#!/bin/bash\n#SBATCH --ntasks=1\n#SBATCH --time=60\nsrun stoker generate \"$@\"\n")
    slower = (*SLOW, "--set", "latency=3")  # so that Slurm has answered before what is in flight has
    (job,) = submit(cluster, *slower, script=script)
    wait_for_lines(job, 4)
    job.preempt(600)
    assert job.wait() == 143
    said = [record.detail["kill"] for record in records(cluster) if record.event == "Stop"]
    assert max(kill or 0 for kill in said) > 500, (said, job.log.read_text())
    assert left_in_flight(cluster) == [0]


def test_a_job_that_is_cancelled_drains_and_does_not_queue_itself_again(cluster: Cluster) -> None:
    (job,) = submit(cluster, *SLOW)
    wait_for_lines(job, 4)
    assert job.end() == 143
    assert not job.file("again").exists()
    assert left_in_flight(cluster) == [0]


def test_several_nodes_serve_one_model_and_go_on_after_a_notice(cluster: Cluster) -> None:
    fake = ("--backend", "custom", "--command", fake_command(), "--model", "fake", "--set", "backoff_initial=0")
    slow = (*fake, "--rollout", "slow.py:slow", "--concurrency", "4")
    (cluster.folder / "slow.py").write_text(
        "import anyio\nasync def slow(record, generate):\n"
        "    await anyio.sleep(0.4)\n    answer = await generate(record['prompt'])\n    return answer['choices']\n"
    )
    (job,) = submit(cluster, *slow, script=SEVERAL)
    wait_for_lines(job, 4)
    assert len(job.step) == 2
    job.announce()
    assert job.wait() == 0, job.log.read_text()
    assert job.restarts == 1
    every_record_once(cluster.folder)
