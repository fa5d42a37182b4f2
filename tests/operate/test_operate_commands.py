"""`--metrics` and `--on` of `stoker serve` and `stoker generate`."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.cli.command import Stoker, argv, wait_for

KEEP = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"
"""A hook that appends what it is told to a file."""


def keep(path: Path, what: str = "") -> str:
    return shlex.join([sys.executable, "-c", what or KEEP, str(path)])


def scraped(url: str) -> dict[tuple[str, ...], float]:
    """Samples by name and the values of their labels."""
    text = httpx.get(url, trust_env=False).text
    return {
        (each.name, *(value for _, value in sorted(each.labels.items()))): each.value
        for family in parse(text)
        for each in family.samples
    }


def metrics_url(process: subprocess.Popen[str]) -> str:
    return wait_for(process, "/metrics").split()[-1]


def test_a_server_shows_its_metrics_and_calls_hooks_through_a_crash_until_its_end(stoker: Stoker) -> None:
    told = stoker.folder / "told"
    process = stoker.start(
        "serve", "--backend", "echo", "--name", "mine", "--metrics", "0", "--set", "backoff_initial=0",
        "--on", f"any={keep(told)}", "--on", f"server.Healthy={keep(told)}",
    )  # fmt: skip
    url = metrics_url(process)
    assert url.startswith("http://127.0.0.1:")
    started = wait_for(process, ", pid ")
    wait_for(process, "http://127.0.0.1:")
    pid = int(started.partition(", pid ")[2].partition(",")[0])
    assert scraped(url)["stoker_state", "server", "mine", "Healthy"] == 1.0
    subprocess.run(["kill", "-9", str(pid)], check=True)
    wait_for(process, "http://127.0.0.1:")
    found = scraped(url)
    assert found["stoker_attempts_total", "server", "mine"] == 2.0
    assert found["stoker_transitions_total", "Draining", "Healthy", "server", "Exited", "mine"] == 1.0
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)
    calls = [json.loads(line) for line in told.read_text().splitlines()]
    states = [call["state"] for call in calls]
    assert sorted(set(states)) == [
        "Backoff", "Draining", "Healthy", "Locking", "PortBound", "Starting", "Stopped",
    ]  # fmt: skip
    assert states.count("Healthy") == 4, "two hooks, two times"
    assert {call["server"] for call in calls} == {"mine"}


def test_a_job_that_is_given_up_tells_why_and_waits_for_its_hooks(stoker: Stoker) -> None:
    told = stoker.folder / "told"
    stoker.write("in.jsonl", [{"prompt": "x"}])
    stoker.write("on.toml", ["[on]", f"Failed = {json.dumps([keep(told), keep(told)])}"])
    command = f"{sys.executable} -c 'print(\"error: unrecognized arguments: --x\"); exit(2)' {{port}}"
    ended = stoker.run(
        "generate", "in.jsonl", "--output", "out.jsonl", "--command", command, "--model", "m", "--config", "on.toml"
    )
    assert ended.code == 1, ended.err
    calls = [json.loads(line) for line in told.read_text().splitlines()]
    assert [call["diagnosis"]["cause"] for call in calls] == ["unknown-flag"] * 2


def test_a_job_counts_its_requests_and_a_fleet_its_replicas(stoker: Stoker) -> None:
    stoker.write("in.jsonl", [{"prompt": f"Say {number}"} for number in range(30)])
    process = stoker.start(
        "generate", "in.jsonl", "--output", "out.jsonl", "--backend", "echo", "--name", "job", "--replicas", "2",
        "--min-healthy", "2", "--metrics", "0", "--concurrency", "2", "--set", "latency=0.2", "--max-tokens", "3",
    )  # fmt: skip
    url = metrics_url(process)
    wait_for(process, "2 of 2 replicas serve")
    found = scraped(url)
    assert found["stoker_fleet_replicas", "healthy", "job"] == 2.0
    assert {("stoker_requests_in_flight", f"job-{number}") for number in range(2)} <= set(found)
    assert ("stoker_requests_waiting", "job") in found
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out


def test_a_second_interrupt_does_not_wait_for_a_hook_and_nothing_of_it_is_left(stoker: Stoker) -> None:
    hangs = keep(stoker.folder / "told", "import time; time.sleep(1000)")
    process = stoker.start(
        "serve", "--command", f"{sys.executable} -c 'import time; time.sleep(1000)' {{port}}", "--model", "m",
        "--on", f"Starting={hangs}", "--set", "hook_timeout=900", "--set", "terminate_timeout=0",
    )  # fmt: skip
    wait_for(process, "Starting")
    process.send_signal(signal.SIGINT)
    wait_for(process, "once more ends at once")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=50)
    assert process.returncode == 130, out
    assert "calls were not made to their end" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--on", "Failed"), "--on 'Failed' is not STATE=COMMAND or STATE=URL"),
        (("--on", "Faild=true"), "did you mean 'Failed'"),
        (("--on", "Failed=no-such-program-1"), "there is no program 'no-such-program-1'"),
        (("--metrics", "99999"), "metrics = 99999 must be a port"),
        (("--metrics", "0", "--set", "metrics_host=localhost"), "metrics_host = 'localhost' is not an address"),
        (("--set", "hook_timeout=0"), "hook_timeout = 0.0 must be more than 0"),
        (("--set", "on=Failed"), "on = 'Failed' is not a JSON object"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(
    stoker: Stoker, words: tuple[str, ...], said: str
) -> None:
    ended = stoker.run("serve", "--backend", "echo", *words)
    assert (ended.code, "Traceback" in ended.err) == (2, False)
    assert said in ended.err


def test_a_port_of_metrics_that_is_taken_is_refused_before_anything_is_started(stoker: Stoker) -> None:
    first = stoker.start("serve", "--backend", "echo", "--metrics", "0")
    port = metrics_url(first).rpartition(":")[2].partition("/")[0]
    ended = stoker.run("serve", "--backend", "echo", "--metrics", port)
    assert (ended.code, "Locking" in ended.err) == (2, False)
    assert f"metrics = {port}: 127.0.0.1:{port} cannot be bound" in ended.err
    first.terminate()
    first.communicate(timeout=30)


def test_no_key_is_in_metrics_or_told_to_a_hook(stoker: Stoker) -> None:
    key, told = "sk-very-secret-0123456789", stoker.folder / "told"
    command = f"{sys.executable} -c 'import os; print(os.environ[\"MY_KEY\"]); exit(\"no: \" + os.environ[\"MY_KEY\"])'"
    words = ["serve", "--command", f"{command} {{port}}", "--model", "m", "--api-key-env", "MY_KEY", "--on",
             f"any={keep(told)}", "--set", "max_attempts=1"]  # fmt: skip
    ended = subprocess.run(
        argv(words), cwd=stoker.folder, env={**stoker.environment, "MY_KEY": key}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1
    text = told.read_text()
    assert '"state":"Failed"' in text
    assert key not in text + ended.stdout + ended.stderr
