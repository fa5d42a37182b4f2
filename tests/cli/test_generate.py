"""`stoker generate`: every prompt has exactly one line in the end, whatever ends the command on the way."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from lifecycle.journal import Kind, read_journal, replay
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import EVENTS, Facts
from tests.cli.command import Stoker, argv, wait_for
from tests.fake import fake_command
from tests.peer import answer, serving

PROMPTS = [{"prompt": f"Say {number}", "number": number} for number in range(60)]

HANGS = fake_command(any_model=True, routes={"/v1/completions": [{"first": 1}, {"do": "hang"}]})
"""Answers the one-token generation that ends a start, and nothing after that."""


def generate(*more: str, backend: str = "echo") -> list[str]:
    return ["generate", "in.jsonl", "--output", "out.jsonl", "--backend", backend, *more]


def exactly_once(stoker: Stoker, count: int = len(PROMPTS)) -> None:
    assert Counter(line["id"] for line in stoker.lines("out.jsonl")) == Counter(
        f"line-{number + 1}" for number in range(count)
    )


def test_answers_journal_and_picture_are_where_it_says(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    ended = stoker.run(*generate("--max-tokens", "7"))
    assert ended.code == 0, ended.err
    exactly_once(stoker)
    for line in stoker.lines("out.jsonl"):
        assert line["prompt"] == f"Say {line['number']}"
        assert line["generations"][0]["usage"]["completion_tokens"] <= 7
    for state in ("Locking", "PortBound", "Starting", "Healthy", "Draining", "Stopped"):
        assert state in ended.err
    assert "60 of 60 prompts answered" in ended.err
    for name in ("out.jsonl", "out.jsonl.journal.jsonl", "out.jsonl.run.svg"):
        assert name in ended.err
        assert (stoker.folder / name).stat().st_size > 0


def test_parameters_come_from_the_file_flags_and_records_and_the_nearest_wins(stoker: Stoker) -> None:
    (stoker.folder / "job.toml").write_text('max_tokens = 5\n[params]\ntop_k = 1\nmin_p = 0.5\nstop = ["a"]\n')
    stoker.write("in.jsonl", [{"prompt": "x"}, {"prompt": "x", "params": {"top_k": 3, "max_tokens": 6}}])
    flags = ("--param", "top_k=2", "--param", 'stop=["b"]', "--param", "effort=low", "--concurrency", "1")
    with serving(lambda _: answer(b'{"data": [{"id": "m"}], "choices": [{"text": "y"}]}')) as peer:
        given = ("--base-url", peer.url, "--model", "m", "--config", "job.toml")
        ended = stoker.run(*generate(*given, *flags, backend="endpoint"))
    assert ended.code == 0, ended.err
    first, second = (json.loads(one.body) for one in peer.asked if b'"x"' in one.body)
    shared = {"min_p": 0.5, "stop": ["b"], "effort": "low", "prompt": "x"}
    assert first.items() >= {**shared, "max_tokens": 5, "top_k": 2}.items()
    assert second.items() >= {**shared, "max_tokens": 6, "top_k": 3}.items()


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_configuration_may_come_through_a_pipe(stoker: Stoker, replicas: int) -> None:
    """Such as `--config <(make-config)`: it can be read once."""
    stoker.write("in.jsonl", PROMPTS)
    told = f'backend = "echo"\nreplicas = {replicas}\nmax_tokens = 5\n'
    ended = stoker.run("generate", "in.jsonl", "--output", "out.jsonl", "--config", "/dev/stdin", stdin=told)
    assert ended.code == 0, ended.err
    exactly_once(stoker)
    assert all(line["generations"][0]["usage"]["completion_tokens"] <= 5 for line in stoker.lines("out.jsonl"))
    assert any(line.split()[:1] == ["echo-1"] for line in ended.err.splitlines()) is (replicas == 2)


@pytest.mark.parametrize("param", ["top_k", "=3", "stream=true"])
def test_a_parameter_that_cannot_be_is_refused(stoker: Stoker, param: str) -> None:
    stoker.write("in.jsonl", PROMPTS)
    ended = stoker.run(*generate("--param", param))
    assert (ended.code, "Traceback" in ended.err) == (2, False)
    assert param.partition("=")[0] in ended.err


def test_the_journal_of_a_run_replays_to_where_it_ended(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    stoker.run(*generate("--journal", "journal", "--set", "crash_after=20", "--set", "backoff_initial=0.1"))
    records = list(read_journal(stoker.folder / "journal"))
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    starts = [record for record in records if record.kind is Kind.TRANSITION and record.after == "Starting"]
    assert len(starts) == 2
    for record in starts:
        assert record.pid
        assert record.port
        assert record.log
        assert Path(record.log).exists(), "also the log of the attempt that failed"
    assert replay(records, SERVER, EVENTS, Facts)["echo"].state == "Stopped"


def test_a_server_that_dies_in_the_middle_costs_no_prompt(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    ended = stoker.run(*generate("--set", "crash_after=20", "--set", "backoff_initial=0.1", "--concurrency", "16"))
    assert ended.code == 0, ended.err
    assert "the server was started 2 times" in ended.err
    exactly_once(stoker)


def test_killed_at_any_moment_and_run_again_it_goes_on_where_it_stopped(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    words = generate("--set", "latency=0.05", "--concurrency", "4")
    seen: list[str] = []
    for enough in (1, 20, 40):
        process = stoker.start(*words)
        _wait_for_lines(stoker, process, enough)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        before = [line["id"] for line in _whole(stoker)]
        assert before[: len(seen)] == seen, "what was written stays"
        seen = before
    ended = stoker.run(*words)
    assert ended.code == 0, ended.err
    assert f"{len(seen)} were finished before" in ended.err
    exactly_once(stoker)


def _whole(stoker: Stoker) -> list[dict[str, str]]:
    data = (stoker.folder / "out.jsonl").read_bytes()
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def _wait_for_lines(stoker: Stoker, process: subprocess.Popen[str], count: int) -> None:
    """The file is what survives, so nothing else is looked at; a file that grows is no event, so it is polled."""
    path = stoker.folder / "out.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_drains_and_what_is_in_flight_is_written(stoker: Stoker, number: signal.Signals) -> None:
    stoker.write("in.jsonl", PROMPTS)
    process = stoker.start(*generate("--set", "latency=0.3", "--concurrency", "4"))
    _wait_for_lines(stoker, process, 1)
    process.send_signal(number)
    out, _ = process.communicate()
    assert process.returncode == 128 + number
    assert "Stopped" in out
    assert "are left: run the same command again to go on" in out
    assert stoker.run(*generate()).code == 0
    exactly_once(stoker)


def test_a_second_signal_ends_at_once(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    process = stoker.start(*generate("--command", HANGS, "--set", "drain_timeout=500", backend="custom"))
    wait_for(process, "Healthy")
    process.send_signal(signal.SIGINT)
    wait_for(process, "draining; once more ends at once")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_lines_with_errors_are_told_and_the_exit_code_is_three_again_and_again(stoker: Stoker) -> None:
    stoker.write("in.jsonl", [{"prompt": "a"}, "{broken", {"prompt": 3}, {"prompt": "b"}])
    for _ in range(2):
        ended = stoker.run(*generate())
        assert ended.code == 3
        lines = {line["id"]: line for line in stoker.lines("out.jsonl")}
        assert lines["line-2"]["error"]["line"] == 2
        assert "'prompt' is not a text" in lines["line-3"]["error"]["message"]
        assert "generations" in lines["line-4"]
        exactly_once(stoker, 4)


@pytest.mark.parametrize("output", ["out.jsonl", "out/"])
def test_what_could_never_be_started_leaves_nothing_of_its_output(stoker: Stoker, output: str) -> None:
    stoker.write("in.jsonl", [{"prompt": "a"}])
    (stoker.folder / "model").mkdir()
    before = sorted(path.name for path in stoker.folder.iterdir())
    words = ("--backend", "vllm", "--model", "./model", "--python", "/no/such/python")
    ended = stoker.run("generate", "in.jsonl", "--output", output, *words)
    assert ended.code == 2, ended.err
    assert "/no/such/python" in ended.err
    assert sorted({path.name for path in stoker.folder.iterdir()} - {"state"}) == before


@pytest.mark.parametrize(
    ("lines", "output", "said"),
    [
        ([{"prompt": "a"}], "none/out", "none/out cannot be written"),
        ([{"prompt": "a"}], ".", "is a folder with other things in it, such as in.jsonl"),
    ],
)
def test_what_cannot_work_is_refused_before_a_server_is_started(
    stoker: Stoker, lines: list[dict[str, object]], output: str, said: str
) -> None:
    stoker.write("in.jsonl", lines)
    ended = stoker.run("generate", "in.jsonl", "--output", output, "--backend", "echo", "--journal", "journal")
    assert ended.code == 2
    assert said in ended.err
    assert not (stoker.folder / "journal").exists()


@pytest.mark.parametrize(("name", "said"), [("in.jsonl", "holds something else"), ("out.jsonl", "as well")])
def test_a_journal_that_would_spoil_a_file_is_refused(stoker: Stoker, name: str, said: str) -> None:
    stoker.write("in.jsonl", PROMPTS)
    ended = stoker.run(*generate("--journal", name))
    assert ended.code == 2
    assert said in ended.err
    assert stoker.lines("in.jsonl") == PROMPTS


@pytest.mark.parametrize("tokens", ["0", "-3"])
def test_a_limit_that_no_answer_can_keep_is_refused(stoker: Stoker, tokens: str) -> None:
    stoker.write("in.jsonl", PROMPTS)
    ended = stoker.run(*generate("--max-tokens", tokens))
    assert ended.code == 2
    assert f"max_tokens = {tokens} must be at least 1" in ended.err


def test_under_nohup_a_hang_up_means_nothing(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    words = _quoted(generate("--set", "latency=0.1", "--concurrency", "8"))
    process = subprocess.Popen(
        ["bash", "-c", f"trap '' HUP; exec {' '.join(words)}"], cwd=stoker.folder, env=stoker.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    _wait_for_lines(stoker, process, 1)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 0
    exactly_once(stoker)


def test_an_empty_input_is_nothing_to_do(stoker: Stoker) -> None:
    stoker.write("in.jsonl", [""])
    ended = stoker.run(*generate())
    assert ended.code == 0
    assert "in.jsonl has no lines" in ended.err
    assert not (stoker.folder / "out.jsonl.journal.jsonl").exists()


def test_batch_lines_from_standard_input_get_the_batch_output_format(stoker: Stoker) -> None:
    body = '{"model": "echo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}'
    line = '{"custom_id": "%s", "method": "POST", "url": "/v1/chat/completions", "body": ' + body + "}\n"
    ended = stoker.run("generate", "-", "--output", "out.jsonl", "--backend", "echo", stdin=line % "a" + line % "b")
    assert ended.code == 0, ended.err
    lines = {each["custom_id"]: each for each in stoker.lines("out.jsonl")}
    assert set(lines) == {"a", "b"}
    assert lines["a"]["response"]["status_code"] == 200
    assert lines["a"]["response"]["body"]["choices"][0]["message"]["content"]


def test_a_server_that_cannot_start_ends_the_job_with_its_last_words_and_loses_nothing(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    command = fake_command(say=["fake: error: unrecognized arguments: --nonsense"], exit_before_bind=True, exit_code=2)
    ended = stoker.run(*generate("--command", command, backend="custom"))
    assert ended.code == 1
    assert "unrecognized arguments: --nonsense" in ended.err
    assert "[unknown-flag]" in ended.err
    assert "whole log:" in ended.err
    assert "goes on from there" not in ended.err, "nothing was answered"
    assert "Traceback" not in ended.err
    assert stoker.run(*generate()).code == 0
    exactly_once(stoker)


def test_a_url_where_nothing_is_ends_the_job_after_its_probes_and_says_what_was_seen(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        ended = stoker.run(*generate("--base-url", url, "--set", "startup_timeout=1", backend="endpoint"))
    assert ended.code == 1
    assert ended.err.count("Starting") == 1, "it has never been there: one round of probes is enough"
    assert "last seen:" in ended.err
    assert "check that it runs and that base_url is right" in ended.err


def test_a_run_that_asks_otherwise_than_the_first_one_says_so_and_goes_on(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS[:10])
    stoker.run(*generate("--max-tokens", "5", "--param", "top_k=1"))
    stoker.write("in.jsonl", PROMPTS)
    again = stoker.run(*generate("--max-tokens", "6", "--temperature", "0", "--param", "top_k=1"))
    assert "10 records were finished with other settings" in again.err
    assert "max_tokens = 6 (was 5), temperature = 0.0 (was not set)\n" in again.err
    exactly_once(stoker)
    stoker.write("in.jsonl", [*PROMPTS, {"prompt": "x"}])
    same = stoker.run(*generate("--max-tokens", "5", "--param", "top_k=1"))
    assert "other settings" not in same.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--concurrency", "fast"), "concurrency = 'fast' is neither a whole number nor auto"),
        (("--set", "max_tokens=many"), "max_tokens = 'many' cannot be: expected a whole number or nothing, got a text"),
        (("--set", "retry_errors=perhaps"), "retry_errors = 'perhaps' cannot be: expected true or false, got a text"),
        (("--max-num-seqs", "64"), "unrecognized arguments: --max-num-seqs 64; the engine's own flags go after --"),
    ],
)
def test_a_value_that_cannot_be_is_said_in_words(stoker: Stoker, words: tuple[str, str], said: str) -> None:
    stoker.write("in.jsonl", PROMPTS)
    ended = stoker.run(*generate(*words))
    assert ended.code == 2
    assert said in ended.err


def test_two_jobs_into_one_output_the_second_is_refused(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    process = stoker.start(*generate("--command", HANGS, "--set", "drain_timeout=0", backend="custom"))
    wait_for(process, "Healthy")
    ended = stoker.run(*generate())
    process.terminate()
    process.communicate(timeout=30)
    assert ended.code == 2
    assert f"pid {process.pid}" in ended.err, "the holder is named"


@pytest.mark.parametrize("redirection", ["2>&-", ">&- 2>&- <&-", "2>/dev/full", "2> >(head -c 1)"])
def test_a_job_that_nobody_listens_to_is_done_all_the_same(stoker: Stoker, redirection: str) -> None:
    stoker.write("in.jsonl", PROMPTS)
    shell = f"{' '.join(_quoted(generate('--set', 'latency=0.2')))} {redirection}"
    done = subprocess.run(["bash", "-c", shell], cwd=stoker.folder, env=stoker.environment, timeout=60)
    assert done.returncode == 0
    exactly_once(stoker)


def test_a_state_folder_that_cannot_be_used_is_refused_before_anything_starts(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    ended = stoker.run(*generate("--set", "state_dir=/proc/1/state", "--journal", "journal"))
    assert ended.code == 2
    assert "/proc/1/state cannot be used" in ended.err
    assert "set state_dir to another folder" in ended.err


def test_a_full_disk_ends_the_job_and_keeps_every_whole_line(stoker: Stoker) -> None:
    stoker.write("in.jsonl", PROMPTS)
    limited = f"ulimit -f 4; trap '' XFSZ; exec {' '.join(_quoted(generate('--journal', '/dev/null')))}"
    done = subprocess.run(
        ["bash", "-c", limited], cwd=stoker.folder, env=stoker.environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "out.jsonl cannot be written any more: File too large" in done.stderr
    assert 0 < len(stoker.lines("out.jsonl")) < len(PROMPTS)
    assert stoker.run(*generate()).code == 0
    exactly_once(stoker)


def _quoted(words: list[str]) -> list[str]:
    return [shlex.quote(word) for word in argv(words)]
