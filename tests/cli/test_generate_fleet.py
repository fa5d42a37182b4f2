"""`stoker generate --replicas`: one job, several servers."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter

import pytest

from lifecycle.journal import Kind, Record, read_journal
from tests.cli.command import Stoker, until

PROMPTS = [{"prompt": f"Say {number}", "number": number} for number in range(800)]


def generate(*more: str) -> list[str]:
    return ["generate", "in.jsonl", "--output", "out.jsonl", "--backend", "echo", "--max-tokens", "3", *more]


def exactly_once(stoker: Stoker) -> None:
    lines = stoker.lines("out.jsonl")
    assert Counter(line["id"] for line in lines) == Counter(f"line-{number + 1}" for number in range(len(PROMPTS)))
    assert not [line for line in lines if "error" in line]


def journal(stoker: Stoker) -> list[Record]:
    return list(read_journal(stoker.folder / "out.jsonl.journal.jsonl"))


def test_a_replica_that_is_killed_costs_no_record_and_each_line_says_whom_it_is_about(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    process = stoker.start(
        *generate("--replicas", "3", "--min-healthy", "2", "--concurrency", "12", "--name", "three", "--set",
                  "latency=0.1", "--set", "progress_interval=0.3", "--summary", "summary.json", "--set",
                  "backoff_initial=0")
    )  # fmt: skip
    lines = list(until(process, lambda line: line.split()[:2] == ["three-1", "Healthy"]))
    lines += until(process, lambda line: "prompts/s" in line and not line.startswith("0/"))
    pid = next(record.pid for record in journal(stoker) if record.server == "three-1" and record.event == "Launched")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    exactly_once(stoker)
    told = {tuple(line.split()[:2]) for line in ("".join(lines) + out).splitlines()}
    assert told >= {("three-0", "Healthy"), ("three-1", "Draining"), ("three-2", "Stopped"), ("three", "Healthy")}
    summary = json.loads((stoker.folder / "summary.json").read_text())
    assert summary["records"]["answered"] == len(PROMPTS)
    assert summary["server"]["starts"] == 4
    assert summary["requests"]["retries"] > 0
    assert {record.server for record in journal(stoker)} == {"three", "three-0", "three-1", "three-2"}
    assert (stoker.folder / "out.jsonl.run.svg").exists()


def test_the_settings_of_a_fleet_come_from_the_file_and_from_set_too(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    (stoker.folder / "job.toml").write_text('backend = "echo"\nreplicas = 5\nmin_healthy = 2\nlatency = 0.01\n')
    ended = stoker.run(*generate("--config", "job.toml", "--replicas", "4", "--set", "replicas=2"))
    assert ended.code == 0, ended.err
    exactly_once(stoker)
    healthy = [record for record in journal(stoker) if record.kind is Kind.TRANSITION and record.after == "Healthy"]
    assert {record.server for record in healthy} == {"echo", "echo-0", "echo-1"}


def test_a_replica_takes_no_more_at_once_than_it_may(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    ended = stoker.run(
        *generate("--replicas", "2", "--concurrency", "64", "--set", "replica_concurrency=3", "--set", "overload_at=4",
                  "--set", "max_retries=0", "--set", "latency=0.01")
    )  # fmt: skip
    assert ended.code == 0, ended.err
    exactly_once(stoker)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--replicas", "2", "--port", "9000"), "port = 9000 can be one server's only"),
        (("--replicas", "2", "--min-healthy", "3"), "min_healthy = 3 is more than replicas = 2"),
        (("--replicas", "0"), "replicas = 0 must be at least 1"),
        (("--set", "replicas=two"), "replicas = 'two' cannot be"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_before_anything_starts(
    stoker: Stoker, words: tuple[str, ...], says: str
) -> None:
    stoker.write("in.jsonl", PROMPTS)
    ended = stoker.run(*generate(*words))
    assert ended.code == 2
    assert says in ended.err
    assert not (stoker.folder / "out.jsonl").exists()


def test_a_fleet_with_too_few_replicas_left_is_given_up_and_says_why(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS[:4])
    ended = stoker.run(
        "generate", "in.jsonl", "--output", "out.jsonl", "--replicas", "2", "--command", "sh -c 'exit 3' {port}",
        "--model", "m", "--set", "backoff_initial=0",
    )  # fmt: skip
    assert ended.code == 1
    assert "stoker: given up: custom-" in ended.err
    assert "0 of 2 replicas left, min_healthy = 1" in ended.err


def test_a_signal_drains_the_whole_fleet_and_the_job_goes_on_later(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    words = generate("--replicas", "2", "--concurrency", "8", "--set", "latency=0.1")
    process = stoker.start(*words, "--set", "progress_interval=0.3")
    list(until(process, lambda line: "prompts/s" in line and not line.startswith("0/")))
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert 0 < len(stoker.lines("out.jsonl")) < len(PROMPTS)
    assert stoker.live_processes() == []
    ended = stoker.run(*words)
    assert ended.code == 0, ended.err
    exactly_once(stoker)
