"""An output on a network file system, locked by a run on another host: one that lives is never followed, one that was
killed with its node is, without anybody who would try again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LEASE = ("2", "0.2")
"""Seconds: its duration, and its heartbeat."""


@contextmanager
def run_on(host: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.batch.lock_holder", str(folder), host, *LEASE], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.fault(60)
def test_a_run_that_was_killed_with_its_node_is_followed_when_its_lease_has_run_out(tmp_path: Path) -> None:
    with run_on("one", tmp_path) as first:
        assert said(first) == "held"
        first.send_signal(signal.SIGKILL)
        first.wait()
        with run_on("two", tmp_path) as second:
            assert said(second) == "held"


def test_a_run_that_beats_is_not_followed_and_is_named(tmp_path: Path) -> None:
    with run_on("one", tmp_path) as first:
        assert said(first) == "held"
        with run_on("two", tmp_path) as second:
            assert f"another run (pid {first.pid} on one, since " in said(second)


def test_a_run_that_shows_no_life_is_followed_as_well(tmp_path: Path) -> None:
    with run_on("one", tmp_path) as first:
        assert said(first) == "held"
        first.send_signal(signal.SIGSTOP)  # as a node that is cut off from the network
        with run_on("two", tmp_path) as second:
            assert said(second) == "held"
