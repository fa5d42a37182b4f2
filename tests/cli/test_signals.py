"""Signals to the real command, in every order and from its first moment on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lifecycle.cli.signals import ENDS, WORK_LEFT, exit_code_of
from lifecycle.journal import Kind, read_journal
from tests.cli.command import LIMIT, Stoker, argv, wait_for
from tests.effort import TIMES

PROMPTS = [{"prompt": f"Say {number}", "number": number} for number in range(40)]
SENT = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGCONT, signal.SIGINT)
ORDERS = 4 * TIMES


def generate(*more: str) -> list[str]:
    slow = ["--set", "latency=0.4", "--concurrency", "4", "--set", "progress_interval=0.1"]
    return ["generate", "in.jsonl", "--output", "out.jsonl", "--backend", "echo", "--max-tokens", "3", *slow, *more]


def drained(stoker: Stoker) -> list[int]:
    """Requests that each drain has cut off."""
    found = [each.detail for each in read_journal(stoker.folder / "out.jsonl.journal.jsonl") if each.kind is Kind.PHASE]
    return [int(detail["left"]) for detail in found if detail.get("phase") == "drained"]


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal: proc(5), SigCgt in status."""
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def wait_until_caught(process: subprocess.Popen[str], number: int) -> None:
    """A handler that is set is no event, so it is polled."""
    deadline = time.monotonic() + LIMIT
    while not catches(process.pid, number):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("seed", range(ORDERS))
def test_in_whatever_order_they_come_it_is_one_drain_and_what_is_in_flight_is_written(
    stoker: Stoker, seed: int
) -> None:
    roll = random.Random(seed)
    order = roll.sample((*SENT, signal.SIGTERM, signal.SIGUSR1), roll.randrange(1, 7))  # one Ctrl-C at most
    ends = [number for number in order if number != signal.SIGCONT]
    stoker.write("in.jsonl", PROMPTS)
    process = stoker.start(*generate())
    wait_for(process, "4 in flight")
    for number in order:
        process.send_signal(number)
    out, _ = process.communicate(timeout=LIMIT)
    # Signals that wait at the same time are delivered by their numbers, so any of them may have been the first.
    assert process.returncode in ({exit_code_of([number]) for number in ends} or {0}), (order, out)
    assert drained(stoker) == [0]
    assert stoker.run(*generate()).code == 0
    assert sorted(line["number"] for line in stoker.lines("out.jsonl")) == list(range(len(PROMPTS)))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_notice_that_the_time_is_nearly_over_ends_with_the_code_for_work_left(
    stoker: Stoker, number: signal.Signals
) -> None:
    stoker.write("in.jsonl", PROMPTS)
    process = stoker.start(*generate())
    wait_for(process, "4 in flight")
    process.send_signal(number)
    out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == WORK_LEFT
    assert f"{number.name}: draining; Ctrl-C twice ends at once" in out
    assert "are left: run the same command again" in out


def test_a_notice_after_the_last_record_was_begun_ends_a_job_that_is_through_with_zero(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS[:4])
    process = stoker.start(*generate())
    wait_for(process, "4 in flight")
    process.send_signal(signal.SIGTERM)
    assert (process.communicate(timeout=LIMIT), process.returncode)[1] == 0


@pytest.mark.parametrize("number", ENDS)
def test_a_signal_while_the_input_is_being_looked_at_ends_with_a_word_and_its_code(
    stoker: Stoker, number: signal.Signals
) -> None:
    """`generate -` reads the whole of standard input first, and here that does not end."""
    process = subprocess.Popen(
        argv(["generate", "-", "--output", "out.jsonl", "--backend", "echo"]), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=stoker.folder, env=stoker.environment,
    )  # fmt: skip
    wait_for(process, "looking at every record of -")
    process.send_signal(number)
    out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == exit_code_of([number])
    assert f"{number.name}: nothing had been begun" in out


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM])
def test_signals_are_caught_before_anything_else_is_done(stoker: Stoker, number: signal.Signals) -> None:
    os.mkfifo(stoker.folder / "in.jsonl")  # who opens it waits for a writer
    process = stoker.start(*generate())
    wait_until_caught(process, number)
    process.send_signal(number)
    process.communicate(timeout=LIMIT)
    assert process.returncode == exit_code_of([number])


def test_a_server_is_drained_by_any_notice_and_its_command_ends_with_zero(stoker: Stoker) -> None:
    process = stoker.start("serve", "--backend", "echo")
    wait_for(process, "http://127.0.0.1:")
    for number in (signal.SIGCONT, signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
        process.send_signal(number)
    out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out
    assert "Stopped" in out


def test_a_command_that_was_stopped_and_goes_on_is_not_drained(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS[:8])
    process = stoker.start(*generate())
    wait_for(process, "4 in flight")
    for number in (signal.SIGSTOP, signal.SIGCONT):
        process.send_signal(number)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 0
