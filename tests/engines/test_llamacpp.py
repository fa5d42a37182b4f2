"""The real llama.cpp with a real model on the CPU: what the fakes stand for, seen on the real thing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.adapter import load_adapter
from lifecycle.client import Client
from lifecycle.config import ServerConfig, load_config
from lifecycle.diagnosis import Verdict
from lifecycle.errors import RequestRefused, StartFailed
from lifecycle.journal import Kind, Record
from lifecycle.server import Server
from tests.processes.trees import is_alive

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

MODEL = "gemma3-270m"


def config(tmp_path: Path, **more: Any) -> ServerConfig:
    settings = {"ctx_size": 2048, "parallel": 4, "backoff_initial": 0.1, "state_dir": str(tmp_path / "state"), **more}
    found, _ = load_config("llamacpp", **{"model": MODEL, **settings})
    return found


async def test_it_becomes_healthy_generates_text_and_leaves_nothing(tmp_path: Path) -> None:
    async with Server(config(tmp_path)) as server:
        await server.healthy()
        pid = server.driver.facts.pid
        assert pid is not None
        answer = await server.complete({"prompt": "One, two, three,", "max_tokens": 8, "temperature": 0})
        assert "four" in answer["choices"][0]["text"]
        assert answer["usage"]["completion_tokens"] <= 8
        assert server.driver.facts.model == MODEL
    assert server.state == "Stopped"
    assert not is_alive(pid)


async def test_its_phases_are_read_from_its_log(tmp_path: Path) -> None:
    records: list[Record] = []
    async with Server(config(tmp_path), listener=records.append) as server:
        await server.healthy()
    phases = [str(record.detail["phase"]) for record in records if record.kind is Kind.PHASE]
    assert "loading" in phases
    assert phases.index("loading") < phases.index("listening")


async def test_a_stream_comes_in_pieces(tmp_path: Path) -> None:
    async with Server(config(tmp_path)) as server:
        payload = {"prompt": "One, two, three,", "max_tokens": 12, "temperature": 0}
        async with server.stream(payload, path="/v1/completions") as chunks:
            pieces = [chunk["choices"][0]["text"] async for chunk in chunks if chunk["choices"]]
        whole = await server.complete(payload)
    assert len(pieces) > 3
    assert "".join(pieces) == whole["choices"][0]["text"]


async def test_killed_with_requests_in_flight_it_comes_back_and_all_are_answered(tmp_path: Path) -> None:
    answers: list[str] = []
    some = anyio.Event()
    async with Server(config(tmp_path, max_retries=5)) as server:
        await server.healthy()
        first = server.driver.facts.pid
        assert first is not None

        async def ask(number: int) -> None:
            answer = await server.complete({"prompt": f"Number {number} is", "max_tokens": 12})
            answers.append(answer["choices"][0]["text"])
            if len(answers) == 2:
                some.set()

        async with anyio.create_task_group() as group:
            for number in range(16):
                group.start_soon(ask, number)
            await some.wait()
            os.kill(first, signal.SIGKILL)
        assert len(answers) == 16
        assert server.driver.facts.attempt == 2
        assert server.client.retries > 0


async def test_a_drain_lets_a_request_in_flight_finish(tmp_path: Path) -> None:
    async with Server(config(tmp_path)) as server:
        await server.healthy()
        async with anyio.create_task_group() as group:
            answers: list[dict[str, Any]] = []

            async def ask() -> None:
                answers.append(await server.complete({"prompt": "Once upon a time", "max_tokens": 30}))

            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert server.gate.in_flight == 1
            await server.stop()
    assert answers[0]["usage"]["completion_tokens"] > 0
    assert server.state == "Stopped"


async def test_a_request_that_does_not_fit_is_refused_and_not_sent_again(tmp_path: Path) -> None:
    async with Server(config(tmp_path, ctx_size=256, parallel=1)) as server:
        with pytest.raises(RequestRefused) as refused:
            await server.complete({"prompt": "word " * 2000, "max_tokens": 4})
    assert refused.value.status == 400
    assert server.client.retries == 0


async def test_a_wrong_flag_is_named_and_not_tried_again(tmp_path: Path) -> None:
    async with Server(config(tmp_path, engine_args={"no-such-flag": True})) as server:
        with pytest.raises(StartFailed) as failed:
            await server.healthy()
    assert failed.value.diagnosis.cause == "unknown-flag"
    assert failed.value.diagnosis.verdict is Verdict.HOPELESS
    assert "no-such-flag" in failed.value.diagnosis.evidence
    assert server.driver.facts.attempt == 1


async def test_a_broken_model_file_is_named_and_not_tried_again(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model" * 1000)
    async with Server(config(tmp_path, model=str(broken))) as server:
        with pytest.raises(StartFailed) as failed:
            await server.healthy()
    assert failed.value.diagnosis.cause == "bad-gguf", failed.value.diagnosis.text()
    assert server.driver.facts.attempt == 1


async def test_a_key_is_asked_for_and_kept_out_of_argv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-of-the-test")
    async with Server(config(tmp_path, api_key_env="MY_KEY")) as server:
        await server.healthy()
        argv = await anyio.Path(f"/proc/{server.driver.facts.pid}/cmdline").read_bytes()
        await server.complete({"prompt": "Hi", "max_tokens": 1})
        other = Client(server.gate, api_key="sk-wrong")
        with pytest.raises(RequestRefused) as refused:
            await other.request("/v1/completions", {"prompt": "Hi", "max_tokens": 1})
        await other.aclose()
    assert refused.value.status == 401
    assert b"sk-secret" not in argv
    (log,) = (tmp_path / "state" / "logs").iterdir()
    assert "sk-secret" not in log.read_text(errors="replace")


async def test_its_port_is_held_until_it_listens(tmp_path: Path) -> None:
    assert load_adapter("llamacpp").capabilities.holds_port
    servers = [Server(config(tmp_path, name=f"s{number}")) for number in range(2)]
    async with servers[0], servers[1]:
        urls = {await server.healthy() for server in servers}
    assert len(urls) == 2


def test_the_generate_command_writes_real_text(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"{n} plus {n} is"}) + "\n" for n in range(8)))
    words = ["generate", str(source), "--output", str(tmp_path / "out.jsonl"), "--backend", "llamacpp"]
    words += ["--model", MODEL, "--max-tokens", "6", "--set", "ctx_size=1024", "--set", "parallel=4"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lifecycle.cli", *words], capture_output=True, text=True, timeout=120,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(lines) == 8
    assert all(line["generations"][0]["text"] for line in lines)
