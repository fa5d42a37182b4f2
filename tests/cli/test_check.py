"""`stoker check`: a table of what would go wrong, an exit code that says so, and nothing started."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Ended, Stoker
from tests.fake import fake_command

QUIET = {
    "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "", "HF_TOKEN": "", "HTTP_PROXY": "", "HTTPS_PROXY": "",
    "http_proxy": "", "https_proxy": "", "ALL_PROXY": "", "all_proxy": "", "NO_PROXY": "", "no_proxy": "",
}  # fmt: skip
"""No hub and no proxy of whoever runs the tests."""


def check(stoker: Stoker, *words: str, **env: str) -> tuple[dict[str, dict[str, Any]], Ended]:
    """The rows by name, and how the command ended."""
    ended = stoker.run("check", "--json", *words, env={**QUIET, **env})
    assert "Traceback" not in ended.err
    rows = [json.loads(line) for line in ended.out.splitlines()]
    assert all(set(row) == {"name", "status", "found", "advice"} for row in rows)
    return {row["name"]: row for row in rows}, ended


def test_a_server_that_can_start_is_told_so(stoker: Stoker) -> None:
    rows, ended = check(stoker, "--backend", "echo")
    assert ended.code == 0, rows
    assert {row["status"] for row in rows.values()} <= {"ok", "warning"}
    assert {"settings", "command line", "gpus", "memory", "ports", "state folder", "disk", "proxies", "leftovers",
            "open files", "/dev/shm", "temporary folder"} <= set(rows)  # fmt: skip


def test_the_table_says_the_same_in_lines_for_people(stoker: Stoker) -> None:
    ended = stoker.run("check", "--backend", "echo", env=QUIET)
    assert ended.code == 0
    assert "found, and what to do" in ended.out
    assert "\x1b" not in ended.out
    assert ended.out.strip().splitlines()[-1].startswith("nothing stands in the way of a start")


def test_a_custom_command_is_checked_as_well(stoker: Stoker) -> None:
    rows, ended = check(stoker, "--command", fake_command(), "--model", "fake")
    assert ended.code == 0
    assert "fake_server.py" in rows["command line"]["found"]


def test_an_engine_that_is_not_installed_is_a_blocker_with_the_way_out(stoker: Stoker) -> None:
    nowhere = str(stoker.folder)
    rows, ended = check(stoker, "--backend", "llamacpp", "--model", "m.gguf", "--set", f"binary={nowhere}/none")
    assert ended.code == 1
    assert rows["settings"]["status"] == "blocker"
    assert "binary" in rows["settings"]["found"]
    assert rows["ports"]["status"] == "ok"


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_an_interpreter_without_the_engine_is_a_blocker_that_names_it(stoker: Stoker, backend: str) -> None:
    python = shutil.which("python3", path="/usr/bin") or "python3"
    rows, ended = check(stoker, "--backend", backend, "--model", "/none", "--set", f"python={python}")
    assert ended.code == 1
    assert rows["engine"]["status"] == "blocker"
    assert "pip install" in rows["engine"]["found"]
    assert rows["model"]["status"] == "blocker"


def test_a_model_on_a_hub_that_cannot_be_reached_is_a_blocker_and_no_hang(stoker: Stoker) -> None:
    home = str(stoker.folder / "hf")
    rows, ended = check(stoker, "--backend", "vllm", "--model", "user/model", HF_HOME=home)
    assert ended.code == 1
    assert "the hub cannot be asked: http://127.0.0.1:9" in rows["model"]["found"]


def test_a_port_that_is_taken_is_a_blocker_that_names_its_holder(stoker: Stoker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        rows, ended = check(stoker, "--backend", "echo", "--port", str(port))
    assert ended.code == 1
    assert f"port {port} is taken by" in rows["ports"]["found"]
    rows, ended = check(stoker, "--backend", "echo", "--port", str(port))
    assert ended.code == 0


def test_an_endpoint_is_asked(stoker: Stoker) -> None:
    server = stoker.start("serve", "--backend", "echo", "--model", "parrot")
    try:
        assert server.stdout is not None
        url = next(line for line in server.stdout if line.startswith("http")).strip()
        rows, ended = check(stoker, "--base-url", url)
        assert ended.code == 0
        assert rows["model"]["found"] == "it serves 'parrot'"
        rows, ended = check(stoker, "--base-url", f"{url}/v1", "--model", "other")
        assert ended.code == 1
        assert "'parrot', not 'other'" in rows["endpoint"]["found"]
        assert "memory" not in rows
    finally:
        server.terminate()
        server.wait(30)
    rows, ended = check(stoker, "--base-url", url)
    assert ended.code == 1
    assert rows["endpoint"]["status"] == "blocker"


def test_a_proxy_does_not_keep_an_endpoint_on_this_machine_from_being_asked(stoker: Stoker) -> None:
    rows, _ = check(stoker, "--backend", "echo", HTTP_PROXY="http://me:secret-word@127.0.0.1:9")
    assert rows["proxies"]["status"] == "warning"
    assert "secret-word" not in json.dumps(rows)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--backend", "ecko"], "did you mean 'echo'?"),
        ([], "no backend is given"),
        (["--backend", "echo", "--set", "drain_timout=1"], "did you mean 'drain_timeout'?"),
        (["--backend", "echo", "--port", "70000"], "port = 70000"),
        (["--backend", "echo", "--config", "none.toml"], "configuration file none.toml"),
    ],
)
def test_wrong_usage_is_no_row(stoker: Stoker, words: list[str], said: str) -> None:
    ended = stoker.run("check", *words)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


def test_a_long_tmpdir_is_told_and_does_not_block(stoker: Stoker) -> None:
    long = stoker.folder / ("x" * 80)
    long.mkdir()
    rows, ended = check(stoker, "--backend", "echo", TMPDIR=str(long))
    assert ended.code == 0
    assert rows["temporary folder"]["status"] == "warning"


def test_a_check_that_takes_longer_than_a_second_is_named_meanwhile(stoker: Stoker) -> None:
    slow = stoker.folder / "python"
    slow.write_text("#!/bin/sh\nsleep 2.5\nexit 1\n")
    slow.chmod(0o755)
    rows, ended = check(stoker, "--backend", "vllm", "--model", "/none", "--set", f"python={slow}")
    assert "looking at engine" in ended.err
    assert rows["engine"]["status"] == "blocker"


FAKE_ROUTER = {"PYTHONPATH": str(Path(__file__).parents[1] / "fake_router")}
GPUS = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}


def test_the_gpus_of_replicas_and_the_router_before_them_are_looked_for(stoker: Stoker) -> None:
    words = ("--command", fake_command(), "--replicas", "2", "--set", "replica_gpus=2", "--port", "0")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    rows, ended = check(stoker, *words[:-1], port, **GPUS, **FAKE_ROUTER)
    assert rows["replicas"]["found"] == "2, with GPUs 0,1 | 2,3"
    assert rows["router"]["status"] == "ok"
    assert port in rows["router"]["found"]
    assert ended.code == 0, rows


def test_too_few_gpus_for_the_replicas_block_them(stoker: Stoker) -> None:
    rows, ended = check(
        stoker, "--command", fake_command(), "--replicas", "3", "--set", "replica_gpus=2", **GPUS, **FAKE_ROUTER
    )
    assert ended.code == 1
    assert "need 6, and 4 can be used here" in rows["replicas"]["found"]


@pytest.mark.parametrize(("words", "status"), [((), "warning"), (("--port", "free"), "blocker")])
def test_a_router_that_is_not_installed_blocks_what_needs_it(
    stoker: Stoker, words: tuple[str, ...], status: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    given = [port if word == "free" else word for word in words]
    rows, ended = check(
        stoker, "--backend", "echo", "--replicas", "2", "--router-python", "/nowhere/python", *given
    )
    assert (rows["router"]["status"], ended.code) == (status, int(status == "blocker"))
    assert "/nowhere/python" in rows["router"]["found"]


def test_the_router_s_port_may_be_taken(stoker: Stoker) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        rows, ended = check(stoker, "--backend", "echo", "--replicas", "2", "--port", str(port), **FAKE_ROUTER)
    assert ended.code == 1
    assert f"port {port} is taken" in rows["router"]["found"]


def test_a_cluster_that_is_not_there_is_a_blocker(stoker: Stoker) -> None:
    rows, ended = check(stoker, "--backend", "echo", "--replicas", "2", "--ray", "127.0.0.1:1")
    assert ended.code == 1
    assert set(rows) == {"ray", "router"}
    assert rows["ray"]["status"] == "blocker"


def test_nothing_is_left_where_locks_were_tried(stoker: Stoker) -> None:
    check(stoker, "--backend", "echo")
    assert not list(Path(stoker.folder / "state").rglob(".lock-trial"))


def test_a_job_s_words_are_taken_and_its_input_and_output_are_looked_at(stoker: Stoker) -> None:
    (stoker.folder / "in.jsonl").write_text('{"id": "a", "prompt": "x"}\n' * 3)
    words = ("in.jsonl", "--output", "out.jsonl", "--backend", "echo", "--max-tokens", "4", "--param", "top_k=2")
    rows, ended = check(stoker, *words, "--set", "max_retries=2", "--set", "part_size=10")
    assert ended.code == 0, rows
    assert rows["job"]["found"] == "3 records in in.jsonl; answers go to out.jsonl"
    assert not (stoker.folder / "out.jsonl").exists()
    assert stoker.run("generate", *words).code == 0
    before = (stoker.folder / "out.jsonl").read_bytes()
    rows, ended = check(stoker, *words, "--retry-errors")
    assert "3 of them finished" in rows["job"]["found"]
    assert (stoker.folder / "out.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "name", "said"),
    [
        (("none.jsonl", "--output", "out.jsonl"), "input", "none.jsonl"),
        (("cut.jsonl.gz", "--output", "out.jsonl"), "input", "cut.jsonl.gz"),
        (("in.jsonl", "--output", "in.jsonl"), "output", "is the input itself"),
        (("in.jsonl", "--output", "nowhere/out.jsonl"), "output", "nowhere"),
        (("in.jsonl", "--output", "out.jsonl", "--rank", "3", "--world-size", "2"), "job", "rank"),
        (("in.jsonl", "--output", "out.jsonl", "--rollout", "nothing:here"), "job", "nothing"),
        (("in.jsonl", "--output", "out.jsonl", "--template", "none.jinja"), "job", "none.jinja"),
    ],
)
def test_what_would_end_a_job_is_a_blocker(stoker: Stoker, words: tuple[str, ...], name: str, said: str) -> None:
    (stoker.folder / "in.jsonl").write_text('{"id": "a", "prompt": "x"}\n')
    (stoker.folder / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"id": "a", "prompt": "x"}')[:-9])
    rows, ended = check(stoker, *words, "--backend", "echo")
    assert ended.code == 1
    assert rows[name]["status"] == "blocker"
    assert said in rows[name]["found"]
    assert {path.name for path in stoker.folder.iterdir()} <= {"in.jsonl", "cut.jsonl.gz", "state"}


@pytest.mark.parametrize(("words", "missing"), [(("in.jsonl",), "--output"), (("--output", "o.jsonl"), "INPUT")])
def test_half_of_a_job_is_refused(stoker: Stoker, words: tuple[str, ...], missing: str) -> None:
    ended = stoker.run("check", *words, "--backend", "echo")
    assert ended.code == 2
    assert f"{missing} is not" in ended.err
