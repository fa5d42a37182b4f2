"""The real vLLM on the CPU, with a tiny random model: its life is real, its text is noise.

The interpreter that vLLM is installed in is named by STOKER_VLLM_PYTHON; default: the one that
`tests/engines/install_vllm.py .venv/engines/vllm` makes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
import pytest

from backends import parser_dump
from backends.vllm_flags import serve_words
from lifecycle.config import load_config
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.errors import RequestRefused, StartFailed
from lifecycle.journal import Kind, Record
from lifecycle.resources import shared_memory
from lifecycle.resources.tree import descendants
from lifecycle.server import Server
from tests.backends.test_vllm_command import EVERYTHING, engine
from tests.engines.install_vllm import VERSION
from tests.processes.trees import command_line, is_alive, wait_for_end

REPOSITORY = Path(__file__).parent.parent.parent
PYTHON = Path(os.environ.get("STOKER_VLLM_PYTHON") or REPOSITORY / ".venv/engines/vllm/bin/python")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason="no vLLM: python tests/engines/install_vllm.py .venv/engines/vllm, or name one in STOKER_VLLM_PYTHON",
    ),
]

GUARD = 480.0
"""Seconds after which a wait that should have ended long ago fails the test: a cold start is 48 s on two idle cores."""
ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
NAME = "tiny"
API, CORE, WORKER = "vllm.entrypoints.cli.main", "VLLM::EngineCore", "VLLM::Worker"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The engine knows nothing of event loops, and each start takes half a minute: one is enough."""
    return "asyncio"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with room for streams that last minutes."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    script = Path(__file__).parent / "tiny_model.py"
    subprocess.run([PYTHON, script, folder, "--context", "131072", "--shards", "2"], check=True, capture_output=True)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


Make = Callable[..., Server]


@pytest.fixture(scope="module")
def make(model: str, folder: Path) -> Make:
    """Makes servers that share a state folder and a folder of compile caches."""

    def make(listener: Callable[[Record], None] | None = None, **more: Any) -> Server:
        settings: dict[str, Any] = {
            "model": model, "served_name": NAME, "python": str(PYTHON), "env": ENV, "context_length": 65536,
            "enforce_eager": True, "backoff_initial": 0.1, "drain_timeout": 60.0, "max_attempts": 1,
            "state_dir": str(folder / "state"), "cache_dir": str(folder / "cache"), **more,
        }  # fmt: skip
        config, adapter = load_config("vllm", **settings)
        return Server(config, adapter=adapter, listener=listener)

    return make


@pytest.fixture(scope="module")
async def shared(make: Make) -> AsyncIterator[Server]:
    """One server for all tests that need no more than one that runs; some of them kill it, and it comes back."""
    server = make(
        name="shared", max_attempts=50, max_retries=20, liveness_interval=1.0, stall_timeout=8.0, liveness_timeout=8.0
    )
    async with server:
        yield server


async def ready(server: Server) -> Server:
    with anyio.fail_after(GUARD):
        await server.healthy()
    return server


async def failure(server: Server) -> Diagnosis:
    async with server:
        with anyio.fail_after(GUARD), pytest.raises(StartFailed) as failed:
            await server.healthy()
    return failed.value.diagnosis


def tree_of(server: Server) -> dict[int, str]:
    """The processes of a running server, with their command lines."""
    root = server.driver.facts.pid
    assert root is not None
    return {pid: command_line(pid) for pid in (root, *descendants(root))}


def the(part: str, tree: dict[int, str]) -> int:
    """The one process of a tree that is called so."""
    (pid,) = (pid for pid, line in tree.items() if part in line)
    return pid


def memory_of(tree: Iterable[int]) -> list[Path]:
    """The files in /dev/shm that these processes share."""
    used, _ = shared_memory.used_by(tree, shared_memory.device())
    return [Path(shared_memory.FOLDER, name) for inode, name in shared_memory.present().items() if inode in used]


def phases(records: Sequence[Record]) -> list[str]:
    return [str(record.detail["phase"]) for record in records if record.kind is Kind.PHASE and "phase" in record.detail]


def events(server: Server) -> list[str]:
    return [str(record.event) for record in server.journal.records if record.event]


def causes(server: Server, after: int) -> list[str]:
    """What a server's attempts have failed of since a record of its journal."""
    found = (r for r in server.journal.records if r.seq > after and r.kind is Kind.TRANSITION)
    return [str(r.detail["diagnosis"]["cause"]) for r in found if "diagnosis" in r.detail]


async def ask(server: Server, answers: list[dict[str, Any]], tokens: int) -> None:
    payload = {"prompt": f"{tokens} tokens", "max_tokens": tokens, "ignore_eos": True}
    answers.append(await server.complete(payload, timeout=GUARD))


async def ask_past_stoker(url: str, answers: list[dict[str, Any]], tokens: int) -> None:
    payload = {"model": NAME, "prompt": "past", "max_tokens": tokens, "ignore_eos": True}
    async with httpx.AsyncClient(trust_env=False, timeout=GUARD) as client:
        answer = await client.post(f"{url}/v1/completions", json=payload)
        answers.append(answer.json())


async def running(server: Server) -> None:
    """Wait until the engine works on what it has been sent: a request that came last has got some tokens."""
    payload = {"model": NAME, "prompt": "last", "max_tokens": 10_000, "ignore_eos": True}
    got = 0
    with anyio.fail_after(GUARD):
        async with server.stream(payload, path="/v1/completions") as chunks:
            async for _ in chunks:
                got += 1
                if got == 20:
                    return


# one server, as it is


async def test_a_start_passes_through_its_phases_and_ends_with_a_server_that_answers(shared: Server) -> None:
    await ready(shared)
    seen = phases(shared.journal.records)
    order = [name for name in ("booting", "loading", "allocating the KV cache", "warmed up") if name in seen]
    assert order == ["booting", "loading", "allocating the KV cache", "warmed up"]
    assert [seen.index(name) for name in order] == sorted(seen.index(name) for name in order)
    assert "LockSkipped" in events(shared)
    assert shared.driver.facts.model == NAME


async def test_its_weight_files_are_counted(shared: Server) -> None:
    await ready(shared)
    counted = [r.detail for r in shared.journal.records if r.kind is Kind.PHASE and r.detail.get("total")]
    assert any(detail["phase"] == "loading" and detail["done"] == detail["total"] >= 2 for detail in counted)


async def test_it_chats_and_completes(shared: Server) -> None:
    chat = await shared.chat(HELLO)
    completion = await shared.complete({"prompt": "hello", "max_tokens": 5, "ignore_eos": True})
    assert chat["usage"]["completion_tokens"] == 8
    assert chat["model"] == NAME
    assert completion["usage"]["completion_tokens"] == 5
    load = await shared.load()
    assert load is not None
    assert load.running == 0


async def test_a_stream_comes_in_pieces_and_says_the_same_as_the_whole(shared: Server) -> None:
    payload = {"prompt": "Once", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    async with shared.stream(payload, path="/v1/completions") as chunks:
        pieces = [chunk["choices"][0]["text"] async for chunk in chunks if chunk["choices"]]
    whole = await shared.complete(payload)
    assert len(pieces) > 3
    assert "".join(pieces) == whole["choices"][0]["text"]


async def test_a_request_that_does_not_fit_is_refused_and_not_sent_again(shared: Server) -> None:
    before = shared.client.retries
    with pytest.raises(RequestRefused) as refused:
        await shared.complete({"prompt": "hello", "max_tokens": 70000})
    assert refused.value.status == 400
    assert shared.client.retries == before


async def test_its_http_port_is_open_on_this_machine_only_and_it_opens_no_other_to_the_world(shared: Server) -> None:
    await ready(shared)
    listening = [
        connection.laddr
        for pid in tree_of(shared)
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert shared.driver.facts.port in {address.port for address in listening}
    assert {address.ip for address in listening if address.port == shared.driver.facts.port} == {"127.0.0.1"}
    assert "0.0.0.0" not in {address.ip for address in listening}
    assert "::" not in {address.ip for address in listening}


async def test_a_long_prefill_is_work_and_no_fault(shared: Server) -> None:
    """60,000 tokens in chunks: no token comes for longer than stall_timeout, but the KV cache fills."""
    await ready(shared)
    attempt = shared.driver.facts.attempt
    prompt = [7 + number % 400 for number in range(60_000)]
    answer = await shared.complete({"prompt": prompt, "max_tokens": 2, "ignore_eos": True}, timeout=GUARD)
    assert answer["usage"]["prompt_tokens"] == 60_000
    assert shared.driver.facts.attempt == attempt


@pytest.mark.parametrize("part", [API, CORE, WORKER], ids=["api", "core", "worker"])
@pytest.mark.parametrize("load", [False, True], ids=["idle", "under load"])
async def test_killed_it_leaves_nobody_comes_back_and_answers_all(shared: Server, part: str, load: bool) -> None:
    await ready(shared)
    attempt = shared.driver.facts.attempt
    tree = tree_of(shared)
    memory = memory_of(tree)
    assert memory
    victim = the(part, tree)
    answers: list[dict[str, Any]] = []
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            if load:
                for number in range(12):
                    group.start_soon(ask, shared, answers, 300 + 20 * number)
                await running(shared)
            mark = shared.journal.records[-1].seq
            os.kill(victim, signal.SIGKILL)
            await shared.driver.wait("Healthy", after=mark)
    if part == WORKER:
        # vLLM may look at its worker before the kernel has told how that ended: "exit code: None"
        assert causes(shared, mark) in (["engine-killed"], ["engine-died"])
    assert shared.driver.facts.attempt == attempt + 1
    assert len(answers) == (12 if load else 0)
    assert all(answer["usage"]["completion_tokens"] >= 300 for answer in answers)
    assert {pid: line for pid, line in tree.items() if is_alive(pid)} == {}
    assert memory_of(tree_of(shared))
    assert [path for path in memory if path.exists()] == []


async def test_a_stopped_engine_is_found_by_the_watchdog(shared: Server) -> None:
    """SIGSTOP: `/health` goes on saying yes, nothing moves."""
    await ready(shared)
    tree = tree_of(shared)
    answers: list[dict[str, Any]] = []
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, shared, answers, 500)
            await running(shared)
            mark = shared.journal.records[-1].seq
            os.kill(the(CORE, tree), signal.SIGSTOP)
            await shared.driver.wait("Healthy", after=mark)
    assert "Stalled" in [str(record.event) for record in shared.journal.records if record.seq > mark]
    assert len(answers) == 1
    assert {pid: line for pid, line in tree.items() if is_alive(pid)} == {}


async def test_a_drain_under_load_loses_no_answer_and_leaves_nobody(shared: Server) -> None:
    """Neither ours nor that of somebody who has the URL. The last test of the shared server."""
    await ready(shared)
    tree = tree_of(shared)
    attempt = shared.driver.facts.attempt
    answers: list[dict[str, Any]] = []
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            for number in range(11):
                group.start_soon(ask, shared, answers, 200 + 20 * number)
            group.start_soon(ask_past_stoker, shared.url, answers, 420)
            await running(shared)
            await shared.stop()
        assert await shared.ended() == "Stopped"
    assert sorted(answer["usage"]["completion_tokens"] for answer in answers) == [200 + 20 * n for n in range(12)]
    assert shared.driver.facts.attempt == attempt
    assert {pid: line for pid, line in tree.items() if is_alive(pid)} == {}
    log = [record.log for record in shared.journal.records if record.log][-1]
    assert "[shutdown] API server: shutdown triggered" in await anyio.Path(str(log)).read_text(errors="replace")




# compile caches


async def test_of_three_equal_jobs_one_compiles_and_a_different_one_waits_for_none(make: Make, tmp_path: Path) -> None:
    """All at once, on an empty cache. Afterwards a start of the same configuration waits for nobody."""
    compiling = partial(make, enforce_eager=False, cache_dir=str(tmp_path))
    equal = [compiling(name=f"equal-{number}", context_length=512) for number in range(3)]
    other = compiling(name="other", context_length=1024)
    async with AsyncExitStack() as stack:
        for server in (*equal, other):
            await stack.enter_async_context(server)
        with anyio.fail_after(GUARD):
            await other.driver.wait("Starting")
            await first(*(partial(server.driver.wait, "Starting") for server in equal))
        assert not {"Healthy", "Failed"} & {server.state for server in (*equal, other)}
        assert sum(server.state == "Locking" for server in equal) == 2
        await other.kill()
        for server in equal:
            await ready(server)
            await server.complete({"prompt": "hello", "max_tokens": 3})
        taken = [[event for event in events(server) if event.startswith("Lock")] for server in equal]
        assert sorted(taken) == [["LockAcquired"], ["LockSkipped"], ["LockSkipped"]]
        waited = [server for server in equal if any("waiting for" in phase for phase in phases(server.journal.records))]
        assert len(waited) == 2
    again = compiling(name="again", context_length=512)
    async with again:
        await ready(again)
        assert "LockSkipped" in events(again)
        assert not any("waiting for" in phase for phase in phases(again.journal.records))
    assert len(built_in(tmp_path)) == 1, "what has one name for Stoker has one for vLLM"


def built_in(caches: Path) -> list[Path]:
    """What vLLM has compiled into the one complete cache."""
    (mark,) = caches.glob("vllm/*/complete")
    return list(mark.parent.glob("files/vllm/torch_compile_cache/torch_aot_compile/*"))


async def first(*waits: Callable[[], Awaitable[Any]]) -> None:
    """Return when the first of them does."""
    async with anyio.create_task_group() as group:

        async def one(wait: Callable[[], Awaitable[Any]]) -> None:
            await wait()
            group.cancel_scope.cancel()

        for wait in waits:
            group.start_soon(one, wait)


# a manager that is killed


def test_nobody_outlives_a_manager_that_is_killed_while_it_starts_one(model: str, folder: Path) -> None:
    settings = {
        "backend": "vllm", "model": model, "python": str(PYTHON), "env": ENV, "enforce_eager": True,
        "state_dir": str(folder / "state"), "cache_dir": str(folder / "cache"),
    }  # fmt: skip
    script = REPOSITORY / "tests/processes/manager.py"
    manager = subprocess.Popen([sys.executable, script, json.dumps(settings)], stdout=subprocess.PIPE)
    try:
        assert manager.stdout is not None
        for line in manager.stdout:
            record = json.loads(line)
            if record["kind"] == "phase" and record["detail"].get("phase") == "starting the engine":
                break
        tree = {manager.pid, *descendants(manager.pid)}
        lines = {pid: command_line(pid) for pid in tree}
        assert any(CORE in line for line in lines.values()), lines
        manager.kill()
        assert wait_for_end(tree) == set()
    finally:
        manager.kill()
        manager.wait()


# the real parser


READ_BY_THE_REAL_PARSER = """
import json, runpy, sys
dump = runpy.run_path(sys.argv[1], run_name="dump")
parser = dump["vllm"]()
given = parser.parse_args(sys.argv[2:])
print("table", json.dumps([dump["described"](a) for a in parser._actions if type(a).__name__ != "_HelpAction"]))
print("given", json.dumps({key: repr(value) for key, value in vars(given).items()}))
"""


def test_the_real_parser_reads_what_was_meant_and_is_the_one_that_the_quick_tests_have_a_table_of(model: str) -> None:
    meant = {**EVERYTHING, "served_name": "mine", "model": model}
    config, _ = load_config("vllm", **{**meant, "engine_args": {**meant["engine_args"], "download-dir": "/weights"}})
    table = json.loads((REPOSITORY / f"tests/engines/options/vllm-{VERSION}.json").read_text())
    words = serve_words(config, engine(VERSION), 8001)
    done = subprocess.run(
        [PYTHON, "-c", READ_BY_THE_REAL_PARSER, parser_dump.__file__, *words],
        capture_output=True, text=True, timeout=GUARD,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("table ", "given ")))
    assert json.loads(said["table"]) == table
    given = json.loads(said["given"])
    assert {key: given[key] for key in READ} == READ
    assert given["model_tag"] == repr(model)


READ = {
    "port": "8001", "host": "'127.0.0.1'", "served_model_name": "['mine']", "revision": "'main'", "dtype": "'bfloat16'",
    "max_model_len": "4096", "tensor_parallel_size": "2", "pipeline_parallel_size": "2", "data_parallel_size": "2",
    "seed": "7", "trust_remote_code": "True", "gpu_memory_utilization": "0.8", "kv_cache_memory_bytes": "1073741824",
    "max_num_seqs": "64", "quantization": "'fp8'", "enforce_eager": "True", "shutdown_timeout": "30",
    "enable_prefix_caching": "False", "enable_chunked_prefill": "True", "middleware": "['m.one', 'm.two']",
    "hf_overrides": "{'rope_scaling': {'type': 'yarn', 'factor': 4.0}}", "disable_log_stats": "True",
    "limit_mm_per_prompt": "{'image': 2}", "download_dir": "'/weights'", "max_num_batched_tokens": "2048",
}  # fmt: skip


# starts that fail


async def test_a_wrong_flag_is_named_and_nothing_is_started(make: Make) -> None:
    server = make(engine_args={"no-such-flag": 1})
    found = await failure(server)
    assert (found.cause, found.verdict) == ("unknown-flag", Verdict.HOPELESS)
    assert "no-such-flag" in found.text()
    assert "Launched" not in events(server)


async def test_a_misspelt_flag_is_told_its_nearest_one(make: Make) -> None:
    found = await failure(make(engine_args={"max-num-sekws": 4}))
    assert "max-num-seqs" in found.text()
    assert "0.32" in found.text()


async def test_a_missing_model_is_named_and_not_tried_again(make: Make) -> None:
    server = make(model="nobody/none", max_attempts=3)
    found = await failure(server)
    assert (found.cause, found.verdict) == ("missing-model", Verdict.HOPELESS), found.text()
    assert server.driver.facts.attempt == 1


async def test_a_context_longer_than_the_model_is_named_and_not_tried_again(make: Make) -> None:
    server = make(context_length=200_000, max_attempts=3)
    found = await failure(server)
    assert (found.cause, found.verdict) == ("context-too-long", Verdict.HOPELESS), found.text()
    assert "200000" in found.evidence
    assert server.driver.facts.attempt == 1
