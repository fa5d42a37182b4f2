"""The real SGLang on the CPU, its kernel package stubbed (`install_sglang.py`): what the tables say, on the real thing.

One server is shared by most tests, which kill it, restart it and stop it, in the order of this file: a start takes 15 s
on two idle cores. `STOKER_SGLANG_PYTHON` names the interpreter that SGLang is installed in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import msgspec
import pytest

from backends.options import Option
from backends.sglang_flags import DERIVED
from lifecycle.adapter import EngineLoad
from lifecycle.client import Client
from lifecycle.config import ServerConfig, load_config
from lifecycle.diagnosis import Verdict
from lifecycle.errors import RequestRefused, StartFailed
from lifecycle.journal import Kind, Record
from lifecycle.resources.ports import hold_ports
from lifecycle.resources.tree import descendants
from lifecycle.server import Server
from tests.processes.trees import is_alive, parent_of, wait_for_end

PYTHON = Path(
    os.environ.get("STOKER_SGLANG_PYTHON") or Path(__file__).parents[2] / ".venv/engines/sglang/bin/python"
)
pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    pytest.mark.skipif(not PYTHON.exists(), reason="SGLang is not installed: tests/engines/install_sglang.py"),
]

KEY = "sk-secret-of-the-test"
TINY = Path(__file__).with_name("tiny_model.py")
CPU: dict[str, Any] = {
    "python": str(PYTHON),
    "device": "cpu",
    "attention_backend": "torch_native",
    "served_name": "tiny",
    "context_length": 4096,
    "env": {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    "engine_args": {"max-total-tokens": 20000},
}
"""What SGLang needs on a machine without a GPU."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    words = [str(PYTHON), str(TINY), str(folder), "--context", "8192", "--shards", "2"]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    return str(folder)


@dataclass
class Home:
    """One server, what its journal has told, and what a stranger at its port has seen."""

    server: Server
    state: Path
    records: list[Record] = field(default_factory=list)
    asked: list[tuple[float, str, int]] = field(default_factory=list)
    """(Unix time, path, status) of each answer to a question that did not come from Stoker, before it was Healthy."""

    def tree(self) -> dict[int, str]:
        """Every process of the server, by what it calls itself."""
        pid = self.server.driver.facts.pid
        assert pid is not None
        return {each: name_of(each) for each in descendants(parent_of(pid))}

    def process(self, name: str) -> int:
        """The process of the server that calls itself so."""
        return next(pid for pid, called in self.tree().items() if name in called)

    async def healthy_again(self, after: int) -> None:
        """Wait until the server is Healthy in a later attempt."""
        while self.server.driver.facts.attempt <= after or self.server.state != "Healthy":
            seen = len(self.records)
            await until(lambda seen=seen: len(self.records) > seen)  # type: ignore[misc]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


async def until(true: Callable[[], bool], seconds: float = 180.0) -> None:
    with anyio.fail_after(seconds):
        while not true():  # noqa: ASYNC110 - what other processes do is no event
            await anyio.sleep(0.05)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what the engine's parser says is kept: it is asked once."""
    return tmp_path_factory.mktemp("cache")


def config(state: Path, cache: Path, **more: Any) -> ServerConfig:
    settings = {**CPU, "state_dir": str(state), "cache_dir": str(cache), "backoff_initial": 0.1, **more}
    found, _ = load_config("sglang", **settings)
    return found


@pytest.fixture(scope="module")
async def home(model: str, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Home]:
    """A Healthy server, with a key, that forgives every crash and looks often for a stall."""
    state = tmp_path_factory.mktemp("state")
    key = state / "key"
    key.write_text(KEY)
    settings = config(
        state, cache, model=model, api_key_file=str(key), attempt_window=0.01, max_retries=5, stall_timeout=8.0,
        liveness_interval=2.0, liveness_timeout=8.0, drain_timeout=60.0,
    )  # fmt: skip
    records: list[Record] = []
    async with Server(settings, listener=records.append) as server:
        home = Home(server, state, records)
        async with anyio.create_task_group() as group:
            group.start_soon(ask_meanwhile, home)
            await server.healthy()
            group.cancel_scope.cancel()
        yield home


async def ask_meanwhile(home: Home) -> None:
    """Ask what the server says of itself, beside Stoker's own probes."""
    async with httpx.AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {KEY}"}) as client:
        while True:
            for path in ("/v1/models", "/ready", "/health"):
                try:
                    answer = await client.get(f"{home.server.url}{path}", timeout=2.0)
                except (httpx.HTTPError, httpx.InvalidURL):
                    continue
                home.asked.append((time.time(), path, answer.status_code))
            await anyio.sleep(0.05)


def chat(words: str, tokens: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": words}], "max_tokens": tokens, "ignore_eos": True}


async def test_it_is_not_healthy_before_it_can_serve_although_it_lists_its_model_earlier(home: Home) -> None:
    healthy = next(record.time for record in home.records if record.after == "Healthy")
    listed = next(at for at, path, status in home.asked if (path, status) == ("/v1/models", 200))
    turned_away = [at for at, path, status in home.asked if path in ("/ready", "/health") and status == 503]
    assert turned_away
    assert listed < max(turned_away) < healthy


async def test_its_parser_is_the_one_that_the_quick_tests_check_against(home: Home, cache: Path) -> None:
    (said,) = (cache / "options").glob("sglang-*.json")
    version = home.server.activities.prepared.engine.version
    known = Path(__file__).parent / "options" / f"sglang-{version}.json"
    assert by_name(said) == by_name(known)


def by_name(table: Path) -> dict[tuple[str, ...], Option]:
    """The options in a table, but for choices that are a set, in no order, in the engine's source."""
    options = msgspec.json.decode(table.read_bytes(), type=tuple[Option, ...])
    return {option.names: replace(option, choices=tuple(sorted(option.choices or ()))) for option in options}


async def test_its_phases_are_read_from_its_log(home: Home) -> None:
    phases = [str(record.detail["phase"]) for record in home.records if record.kind is Kind.PHASE]
    of_the_log = [phase for phase in phases if phase in ("loading", "allocating the KV cache", "warming up")]
    assert of_the_log[0] == "loading"
    assert of_the_log[-2:] == ["allocating the KV cache", "warming up"]


async def test_it_answers_chats_completions_and_streams(home: Home) -> None:
    answer = await home.server.chat(chat("What is one times two?", 8))
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["model"] == "tiny"
    whole = await home.server.complete({"prompt": "One, two,", "max_tokens": 12, "ignore_eos": True, "temperature": 0})
    assert whole["usage"]["completion_tokens"] == 12
    async with home.server.stream(chat("Tell me", 12)) as chunks:
        pieces = [chunk["choices"][0]["delta"].get("content") async for chunk in chunks if chunk["choices"]]
    assert len(list(filter(None, pieces))) > 3


async def test_its_key_is_asked_for_and_stands_in_no_command_line_and_no_log(home: Home) -> None:
    other = Client(home.server.gate, api_key="sk-wrong")
    with pytest.raises(RequestRefused) as refused:
        await other.request("/v1/completions", {"prompt": "Hi", "max_tokens": 1})
    await other.aclose()
    assert refused.value.status == 401
    for pid in home.tree():
        assert KEY.encode() not in await anyio.Path(f"/proc/{pid}/cmdline").read_bytes()
    log = await anyio.Path(str(home.server.activities.process.log)).read_text(errors="replace")  # type: ignore[union-attr]
    assert "'api_key': '***'" in log
    assert KEY not in log


async def test_it_says_what_it_works_on_and_its_counters_move_while_it_does(home: Home) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(home.server.chat, chat("Tell me a long story", 600))
        seen: list[EngineLoad | None] = []
        while len({load.progress for load in seen if load and load.running}) < 3:
            seen.append(home.server.adapter.load(await home.server.request("/v1/loads")))  # type: ignore[attr-defined]
    assert all(seen)


VICTIMS = {
    "the HTTP process": "sglang.launch_server",
    "the scheduler": "sglang::sched",
    "the detokenizer": "sglang::deto",
}


@pytest.mark.parametrize("load", ["idle", "under load"])
@pytest.mark.parametrize("victim", VICTIMS)
async def test_killed_it_leaves_nobody_and_comes_back_with_every_answer(home: Home, victim: str, load: str) -> None:
    await home.healthy_again(after=0)
    attempt, tree, server = home.server.driver.facts.attempt, home.tree(), home.server
    answers: list[dict[str, Any]] = []

    async def ask(number: int) -> None:
        answers.append(await server.chat(chat(f"Number {number}", 40 if number < 4 else 400)))

    async with anyio.create_task_group() as group:
        if load == "under load":
            for number in range(12):
                group.start_soon(ask, number)
            await until(lambda: len(answers) >= 2)
        os.kill(home.process(VICTIMS[victim]), signal.SIGKILL)
        await home.healthy_again(after=attempt)
    assert len(answers) == (12 if load == "under load" else 0)
    assert all(answer["usage"]["completion_tokens"] in (40, 400) for answer in answers)
    assert not [name for pid, name in tree.items() if is_alive(pid) and name_of(pid) == name and not is_keeper(name)]


def is_keeper(name: str) -> bool:
    return "keeper.py" in name


async def test_a_stopped_scheduler_is_found_by_its_counters_and_replaced(home: Home) -> None:
    await home.healthy_again(after=0)
    attempt, scheduler = home.server.driver.facts.attempt, home.process("sglang::sched")
    os.kill(scheduler, signal.SIGSTOP)
    answer = await home.server.chat(chat("Are you there?", 8))
    assert answer["usage"]["completion_tokens"] == 8
    assert home.server.driver.facts.attempt == attempt + 1
    stalled = [record for record in home.records if record.event == "Stalled"]
    assert stalled
    assert not is_alive(scheduler)


async def test_a_drain_under_load_loses_no_answer_and_leaves_nobody(home: Home) -> None:
    await home.healthy_again(after=0)
    tree, answers = home.tree(), []

    async def ask(number: int) -> None:
        answers.append(await home.server.chat(chat(f"Number {number}", 300)))

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(ask, number)
        await until(lambda: home.server.gate.in_flight == 8)
        await home.server.stop()
    assert await home.server.ended() == "Stopped"
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [300] * 8
    assert not await anyio.to_thread.run_sync(wait_for_end, tree)
    assert not list((home.state / "servers").glob("*.json"))


TAKE_PORTS = """
import sys
import zmq
from sglang.srt.server_args import PortArgs, prepare_server_args
from torch.distributed import TCPStore

model, port, nccl = sys.argv[1:]
words = ["--model-path", model, "--port", port, "--nccl-port", nccl, "--device", "cpu"]
found = PortArgs.init_new(prepare_server_args([*words, "--tp-size", "2", "--attn-dp-size", "2"]))
places = [value for name, value in vars(found).items() if str(value).startswith("tcp://")]
sockets = [zmq.Context.instance().socket(zmq.PULL) for _ in places]
for socket, place in zip(sockets, places):
    socket.bind(place)
store = TCPStore("127.0.0.1", found.nccl_port, is_master=True, wait_for_workers=False)
print("took", *sorted(int(place.rpartition(":")[2]) for place in places), flush=True)
"""
"""What SGLang does with its ports where attention is divided, by its own code: compute, check, bind."""


def test_the_ports_that_it_derives_are_those_that_are_held_and_it_can_bind_them(model: str, tmp_path: Path) -> None:
    held = hold_ports("127.0.0.1", None, 2, tmp_path, DERIVED)
    try:
        words = [str(PYTHON), "-c", TAKE_PORTS, model, *map(str, held.numbers)]
        env = {**os.environ, **CPU["env"], "SGLANG_WAIT_PORT_TIMEOUT": "1"}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    finally:
        held.release()
    assert done.returncode == 0, done.stderr
    _, *taken = done.stdout.splitlines()[-1].split()
    assert {int(port) - held.numbers[0] for port in taken} == set(DERIVED[1:])  # the first is checked only


async def given_up(settings: ServerConfig) -> StartFailed:
    async with Server(settings) as server:
        with pytest.raises(StartFailed) as failed:
            await server.healthy()
    assert server.driver.facts.attempt == 1
    return failed.value


async def test_a_wrong_flag_is_named_before_anything_is_started(model: str, cache: Path, tmp_path: Path) -> None:
    failed = await given_up(config(tmp_path, cache, model=model, engine_args={"max-total-tokes": 5}))
    assert failed.diagnosis.cause == "unknown-flag"
    assert "max-total-tokes" in failed.diagnosis.summary
    assert "max-total-tokens" in failed.diagnosis.summary
    assert not list((tmp_path / "logs").glob("*"))


async def test_a_missing_model_is_named_and_not_tried_again(cache: Path, tmp_path: Path) -> None:
    failed = await given_up(config(tmp_path, cache, model="nobody/none"))
    assert (failed.diagnosis.cause, failed.diagnosis.verdict) == ("missing-model", Verdict.HOPELESS)


async def test_a_context_that_the_model_was_not_made_for_is_named_and_not_tried_again(
    model: str, cache: Path, tmp_path: Path
) -> None:
    failed = await given_up(config(tmp_path, cache, model=model, context_length=1_000_000))
    assert (failed.diagnosis.cause, failed.diagnosis.verdict) == ("context-too-long", Verdict.HOPELESS)
    assert "8192" in failed.diagnosis.evidence


def test_its_manager_killed_while_it_starts_leaves_nobody(model: str, cache: Path, tmp_path: Path) -> None:
    settings = {**CPU, "state_dir": str(tmp_path), "cache_dir": str(cache)}
    words = [
        f"--set={key}={json.dumps(value) if isinstance(value, dict) else value}" for key, value in settings.items()
    ]
    manager = subprocess.Popen(
        [sys.executable, "-P", "-m", "lifecycle.cli", "serve", "--backend", "sglang", "--model", model, *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        tree: dict[int, str] = {}
        while sum("multiprocessing" in name for name in tree.values()) < 2 and time.monotonic() < deadline:
            tree = {pid: name_of(pid) for pid in descendants(manager.pid)}
            time.sleep(0.02)
        assert sum("multiprocessing" in name for name in tree.values()) >= 2, tree  # scheduler, detokenizer
    finally:
        manager.kill()
        manager.wait()
    assert not wait_for_end(tree)
