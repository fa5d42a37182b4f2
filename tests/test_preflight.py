"""What a preflight makes of facts, and how it gets them."""

from __future__ import annotations

import errno
import http.server
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle import Capabilities, Command, ConfigError, Launch, NoOptions, Phase, ServerConfig
from lifecycle.adapter import Ask, Prepared
from lifecycle.errors import StokerError, UnknownFlag
from lifecycle.preflight import Check, Status, blocker, ok
from lifecycle.preflight import judgements as judge
from lifecycle.preflight import model as models
from lifecycle.preflight.flight import Flight, Rows, guarded, in_thread
from lifecycle.preflight.model import OnHub
from lifecycle.preflight.trial import Outcome, locks_row, try_locks
from lifecycle.resources import weights as disk
from lifecycle.resources.gpus import Gpu, GpuProcess
from lifecycle.resources.local import LocalHost
from lifecycle.resources.weights import OnDisk

GIB = 1024**3
H100 = Gpu(0, "GPU-a", "H100", 80 * GIB, GIB, 79 * GIB)
FULL = replace(H100, index=1, uuid="GPU-b", used=60 * GIB, free=20 * GIB,
               processes=(GpuProcess(77, "VLLM::EngineCore", 59 * GIB),))  # fmt: skip
SMALL = replace(H100, index=2, uuid="GPU-c", name="L4", total=24 * GIB, free=24 * GIB)
OK, WARNING, BLOCKER = Status.OK, Status.WARNING, Status.BLOCKER


@pytest.mark.parametrize(
    ("found", "needed", "uses", "visible", "bindings", "status", "said"),
    [
        ((), 1, False, None, False, OK, "asks for none"),
        ((), 1, True, None, True, WARNING, "none is seen"),
        ((), 1, True, None, False, WARNING, "nvidia-ml-py"),
        ((), 1, True, "", True, WARNING, "CUDA_VISIBLE_DEVICES=''"),
        ((H100,), 1, True, None, True, OK, "1 × H100; 1 needed"),
        ((H100,), 2, True, None, True, BLOCKER, "2 GPUs are needed"),
        ((H100,), 2, True, "0", True, BLOCKER, "CUDA_VISIBLE_DEVICES='0'"),
        ((H100,), 2, False, None, True, OK, "1 × H100"),
        ((H100, SMALL), 1, True, None, True, OK, "1 × H100, 1 × L4"),
        ((H100, SMALL), 2, True, None, True, WARNING, "the smallest decides"),
    ],
)
def test_gpus_are_held_against_the_parallel_sizes(
    found: tuple[Gpu, ...], needed: int, uses: bool, visible: str | None, bindings: bool, status: Status, said: str
) -> None:
    row = judge.gpus_row(found, needed, uses_gpus=uses, visible=visible, bindings=bindings)
    assert row.status is status
    assert said in f"{row.found} {row.advice}"


@pytest.mark.parametrize(
    ("found", "weights", "sharing", "status", "said"),
    [
        ((H100,), None, 1, OK, "79.0 GiB of 80.0 GiB free"),
        ((H100,), 16 * GIB, 1, OK, "weights take 16.0 GiB"),
        ((H100,), 140 * GIB, 1, BLOCKER, "raise tensor_parallel"),
        ((H100, H100), 140 * GIB, 2, WARNING, "little is left for the cache"),
        ((FULL,), 40 * GIB, 1, BLOCKER, "VLLM::EngineCore (pid 77)"),
        ((FULL,), GIB, 1, WARNING, "others use these GPUs"),
        ((replace(FULL, processes=()),), 40 * GIB, 1, BLOCKER, "does not name"),
        ((H100, FULL), GIB, 1, OK, "79.0 GiB"),
    ],
)
def test_the_gpu_s_memory_is_held_against_the_weights(
    found: tuple[Gpu, ...], weights: int | None, sharing: int, status: Status, said: str
) -> None:
    row = judge.gpu_memory_row(found, weights, sharing, sharing)
    assert row is not None
    assert row.status is status
    assert said in f"{row.found} {row.advice}"


def test_without_gpus_there_is_no_row_on_their_memory() -> None:
    assert judge.gpu_memory_row((), GIB, 1, 1) is None


@pytest.mark.parametrize(
    ("available", "limit", "weights", "on_gpu", "status"),
    [
        (8, None, None, False, OK),
        (8, None, 4, False, OK),
        (8, None, 9, False, BLOCKER),
        (8, None, 9, True, WARNING),
        (64, 4, 9, False, BLOCKER),
        (64, 16, 9, False, OK),
    ],
)
def test_memory_and_the_job_s_share_of_it_are_held_against_the_weights(
    available: int, limit: int | None, weights: int | None, on_gpu: bool, status: Status
) -> None:
    sizes = [None if size is None else size * GIB for size in (limit, weights)]
    assert judge.memory_row(available * GIB, 0, sizes[0], sizes[1], on_gpu=on_gpu).status is status


@pytest.mark.parametrize(
    ("free", "to_fetch", "status"), [(50, 0, OK), (50, 49, OK), (50, 51, BLOCKER), (0, 0, WARNING)]
)
def test_the_disk_is_held_against_what_must_be_downloaded(free: int, to_fetch: int, status: Status) -> None:
    assert judge.disk_row(free * GIB, to_fetch * GIB, "/home/u").status is status


@pytest.mark.parametrize(
    ("free", "ranks", "status"),
    [(None, 1, WARNING), (64 * 1024**2, 1, WARNING), (GIB, 1, OK), (GIB, 8, WARNING), (16 * GIB, 8, OK)],
)
def test_shared_memory_must_be_enough_for_every_rank(free: int | None, ranks: int, status: Status) -> None:
    assert judge.shared_memory_row(free, ranks).status is status


@pytest.mark.parametrize(
    ("soft", "hard", "status", "said"),
    [(1024, 1_048_576, WARNING, "room for about 768"), (65536, 65536, OK, "65280"), (-1, -1, OK, "no limit"),
     (100, -1, WARNING, "about 0 requests"), (1024, 4096, WARNING, "at most 4096")],
)  # fmt: skip
def test_open_files_are_told_in_requests(soft: int, hard: int, status: Status, said: str) -> None:
    row = judge.files_row(soft, hard)
    assert row.status is status
    assert said in f"{row.found} {row.advice}"


@pytest.mark.parametrize(
    ("environ", "local", "status"),
    [
        ({}, True, OK),
        ({"HTTP_PROXY": "http://proxy:3128"}, True, WARNING),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "127.0.0.1"}, True, OK),
        ({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "*"}, True, OK),
        ({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "127.0.0.0/8"}, True, WARNING),
        ({"ALL_PROXY": "socks5://proxy:1080", "NO_PROXY": "::1"}, True, WARNING),
        ({"HTTPS_PROXY": "http://proxy:3128"}, False, OK),
        ({"HTTP_PROXY": ""}, True, OK),
        ({"HTTP_PROXY": None}, True, OK),
    ],
)
def test_a_proxy_that_would_take_the_engine_s_own_requests_is_told(
    environ: dict[str, str | None], local: bool, status: Status
) -> None:
    assert judge.proxies_row(environ, "127.0.0.1", local=local).status is status


def test_the_login_of_a_proxy_is_not_shown() -> None:
    row = judge.proxies_row({"HTTP_PROXY": "http://me:secret-word@proxy:3128"}, "127.0.0.1", local=True)
    assert "secret-word" not in f"{row}"
    assert "proxy:3128" in row.found


@pytest.mark.parametrize(
    ("host", "keyed", "status"),
    [("127.0.0.1", False, OK), ("::1", False, OK), ("0.0.0.0", True, OK), ("10.0.0.7", False, WARNING)],
)
def test_a_server_that_all_can_reach_without_a_key_is_told(host: str, keyed: bool, status: Status) -> None:
    assert judge.exposure_row(host, keyed=keyed).status is status


def test_a_long_tmpdir_is_told_with_what_is_used_instead() -> None:
    assert judge.tmpdir_row("/tmp/", "/tmp/stk-1234", 70).status is OK
    row = judge.tmpdir_row("/scratch/" + "x" * 80, "/tmp/stk-1234", 70)
    assert row.status is WARNING
    assert "/tmp is used" in row.found
    assert "at most 61 bytes" in row.advice


def test_leftovers_are_told_by_name() -> None:
    assert judge.leftovers_row({}).status is OK
    row = judge.leftovers_row({"vllm": 3})
    assert (row.status, "vllm (3 processes)" in row.found, "stoker reap" in row.advice) == (WARNING, True, True)
    assert "2 files in /dev/shm" in judge.leftovers_row({"vllm": 0}, files=2).found


# Locks, tried


def test_locks_of_this_disk_exclude_another_process(tmp_path: Path) -> None:
    assert try_locks(tmp_path) == (Outcome.WORKS, "held")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        try_locks(tmp_path / "none")


@pytest.mark.parametrize(
    ("network", "outcome", "status"),
    [
        (None, Outcome.WORKS, OK),
        ("nfs4", Outcome.WORKS, WARNING),
        (None, Outcome.UNSUPPORTED, WARNING),
        ("lustre", Outcome.UNSUPPORTED, WARNING),
        ("nfs", Outcome.USELESS, WARNING),
        (None, Outcome.USELESS, BLOCKER),
        (None, Outcome.STUCK, BLOCKER),
        ("nfs", Outcome.STUCK, BLOCKER),
    ],
)
def test_a_trial_of_locks_is_judged_by_the_file_system(network: str | None, outcome: Outcome, status: Status) -> None:
    row = locks_row("cache folder", "cache_dir", Path("/x"), network, outcome, os.strerror(errno.ENOLCK))
    assert row.status is status
    assert "/x" in row.found
    assert row.status is OK or "set cache_dir" in row.advice


# The model


def weights(folder: Path, **sizes: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in sizes.items():
        (folder / name.replace("_", ".")).write_bytes(b"x" * size)
    return folder


def test_a_model_s_size_is_that_of_one_kind_of_weights(tmp_path: Path) -> None:
    folder = weights(tmp_path / "m", a_safetensors=300, b_safetensors=200, c_bin=999, d_json=50)
    assert disk.in_folder(str(folder)) == OnDisk(folder, 500)
    assert disk.in_folder(str(folder / "c.bin")) == OnDisk(folder / "c.bin", 999)
    assert disk.in_folder(str(folder / "none")) is None


def cached(home: Path, revision: str = "main", commit: str = "abc123", size: int = 700) -> dict[str, str | None]:
    """The hub's cache with one model; the variables that lead to it."""
    repository = home / "hub" / "models--user--model"
    weights(repository / "snapshots" / commit, model_safetensors=size)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / revision).write_text(commit)
    return {"HF_HOME": str(home)}


def test_a_snapshot_in_the_hub_s_cache_is_found_by_its_revision(tmp_path: Path) -> None:
    environ = cached(tmp_path)
    found = disk.in_cache("user/model", "", environ)
    assert found is not None
    assert (found.size, found.cached) == (700, True)
    assert disk.in_cache("user/model", "abc123", environ) == found
    assert disk.in_cache("user/model", "other", environ) is None
    assert disk.in_cache("user/another", "", environ) is None
    assert disk.in_cache("user/model", "", {"HF_HUB_CACHE": str(tmp_path / "hub")}) == found


def test_a_snapshot_without_weights_is_none(tmp_path: Path) -> None:
    environ = cached(tmp_path, size=0)
    assert disk.in_cache("user/model", "", environ) is None


@pytest.mark.parametrize(
    ("environ", "where"),
    [({"HF_TOKEN": "hf_secret"}, "HF_TOKEN"), ({"HUGGING_FACE_HUB_TOKEN": "hf_secret"}, "HUGGING_FACE_HUB_TOKEN"),
     ({}, "token"), ({"HF_TOKEN": "  "}, "token")],
)  # fmt: skip
def test_the_token_is_found_and_not_shown(tmp_path: Path, environ: dict[str, str | None], where: str) -> None:
    (tmp_path / "token").write_text("hf_secret\n")
    token, found = models.token_of({"HF_HOME": str(tmp_path), **environ})
    assert (token, found.endswith(where)) == ("hf_secret", True)
    assert "hf_secret" not in f"{models.token_row(found)}"


def test_no_token_is_all_right(tmp_path: Path) -> None:
    assert models.token_of({"HF_HOME": str(tmp_path)}) == ("", "")
    assert models.token_row("").status is OK


HERE, CACHED, EMPTY = OnDisk(Path("/m"), 9 * GIB), OnDisk(Path("/m"), 9 * GIB, cached=True), OnDisk(Path("/m"), 0)
DOWN = OnHub(None, "https://huggingface.co: no route to host")


@pytest.mark.parametrize(
    ("model", "here", "hub", "offline", "status", "said"),
    [
        ("/m", HERE, None, False, OK, "9.0 GiB"),
        ("/m", EMPTY, None, False, WARNING, "no weights"),
        ("/none", None, None, False, BLOCKER, "check the path"),
        ("u/m", CACHED, OnHub(200, "hub", 1), False, OK, "9.0 GiB"),
        ("u/m", CACHED, DOWN, False, WARNING, "HF_HUB_OFFLINE=1"),
        ("u/m", CACHED, OnHub(401, "hub says 401"), False, WARNING, "HF_HUB_OFFLINE=1"),
        ("u/m", CACHED, None, True, OK, "9.0 GiB"),
        ("u/m", None, None, True, BLOCKER, "hf download u/m"),
        ("u/m", None, OnHub(200, "hub", 16 * GIB), False, OK, "16.0 GiB to download"),
        ("u/m", None, OnHub(200, "hub"), False, OK, "u/m is on hub"),
        ("u/m", None, OnHub(401, "hub says 401"), False, BLOCKER, "HF_TOKEN"),
        ("u/m", None, OnHub(403, "hub says 403"), False, BLOCKER, "accept the model's terms"),
        ("u/m", None, OnHub(404, "hub says 404"), False, BLOCKER, "check the name and the revision"),
        ("u/m", None, OnHub(503, "hub says 503"), False, BLOCKER, "HF_ENDPOINT"),
        ("u/m", None, DOWN, False, BLOCKER, "proxy variables"),
    ],
)
def test_a_model_is_judged_by_what_disk_and_hub_say(
    model: str, here: OnDisk | None, hub: OnHub | None, offline: bool, status: Status, said: str
) -> None:
    row = models.model_row(model, here, hub, needs_files=True, offline=offline)
    assert row.status is status
    assert said in f"{row.found} {row.advice}"
    loose = models.model_row(model, here, hub, needs_files=False, offline=offline)
    assert loose.status is not BLOCKER


@given(st.text(max_size=30))
def test_a_model_is_a_path_or_may_be_on_the_hub(model: str) -> None:
    assert disk.looks_like_path(model) or disk.NAME.fullmatch(model)


class Hub:
    """A hub on this machine that answers every question in one way."""

    def __init__(self, status: int, body: str, headers: dict[str, str]) -> None:
        self.asked: list[tuple[str, str]] = []
        asked = self.asked

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append((self.path, self.headers.get("authorization", "")))
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.environ: dict[str, str | None] = {"HF_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}/"}
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    made: list[Hub] = []
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)

    def make(status: int, body: str = "", **headers: str) -> Hub:
        made.append(Hub(status, body, {key.replace("_", "-"): value for key, value in headers.items()}))
        made[-1].environ["HF_HOME"] = str(tmp_path)
        return made[-1]

    yield make
    for hub in made:
        hub.server.shutdown()
        hub.server.server_close()


@pytest.mark.anyio
async def test_the_hub_tells_the_size_of_the_weights(hubs: Any) -> None:
    hub = hubs(200, '{"siblings": [{"rfilename": "a.safetensors", "size": 70}, {"rfilename": "b.bin", "size": 9}]}')
    found = await models.ask_hub("user/model", "v1", {**hub.environ, "HF_TOKEN": "hf_x"})
    assert (found.status, found.size) == (200, 70)
    assert hub.asked == [("/api/models/user/model/revision/v1?blobs=true", "Bearer hf_x")]


@pytest.mark.anyio
@pytest.mark.parametrize("body", ["", "[]", "{}", '{"siblings": 3}', '{"siblings": [{}]}', "<html>"])
async def test_a_hub_that_tells_no_size_is_a_hub(hubs: Any, body: str) -> None:
    found = await models.ask_hub("user/model", "", hubs(200, body).environ)
    assert (found.status, found.size) == (200, None)


@pytest.mark.anyio
async def test_a_hub_that_refuses_says_why(hubs: Any) -> None:
    hub = hubs(403, x_error_message="Access to model user/model is restricted.")
    found = await models.ask_hub("user/model", "", hub.environ)
    assert found.status == 403
    assert "is restricted" in found.words


@pytest.mark.anyio
@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "nonsense", "http://"])
async def test_a_hub_that_is_not_there_is_no_error(endpoint: str) -> None:
    found = await models.ask_hub("user/model", "", {"HF_ENDPOINT": endpoint})
    assert found.status is None
    assert endpoint.rstrip("/") in found.words


# The flight


@pytest.mark.anyio
async def test_a_check_that_raises_is_a_row() -> None:
    async def bug() -> Rows:
        raise KeyError("x")

    async def mistake() -> Rows:
        raise StokerError("nobody listens")

    assert await guarded("a", bug, 5) == [Check("a", WARNING, "could not be checked: KeyError: 'x'")]
    assert await guarded("b", mistake, 5) == [blocker("b", "nobody listens", "")]


@pytest.mark.anyio
async def test_a_check_that_hangs_is_a_row_after_its_deadline() -> None:
    async def hang() -> Rows:
        await in_thread(lambda: time.sleep(3600))  # as a file system that has gone does
        return []

    (row,) = await guarded("disk", hang, 0.05)
    assert row.status is WARNING
    assert "0.05 s" in row.found


class Engine:
    """A backend whose parts a test replaces."""

    name = "engine"
    capabilities = Capabilities(settings=frozenset({"revision", "tensor_parallel"}))
    options = NoOptions

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def check(self, config: ServerConfig) -> None:
        if isinstance(self.error, ValueError):
            raise ConfigError(str(self.error))

    async def prepare(self, config: ServerConfig, ask: Ask) -> Prepared:
        if isinstance(self.error, StokerError):
            raise self.error
        return Prepared(None, self)

    async def inspect(self, config: ServerConfig, ask: Ask) -> tuple[Check, ...]:
        if isinstance(self.error, RuntimeError):
            raise self.error
        return (ok("kernels", (await ask(["echo", "compiled"])).strip()),)

    def command(self, launch: Launch) -> Command:
        return Command(("sh", "-c", "true", "--key", os.environ.get("MY_KEY", "")))

    def phase(self, line: str) -> Phase | None:
        return None


async def rows_of(folder: Path, error: Exception | None = None, **settings: Any) -> dict[str, Check]:
    config = ServerConfig("engine", **{"model": str(weights(folder / "m", a_gguf=3)), **settings})
    began: list[str] = []
    rows = await Flight(config, Engine(error), LocalHost(folder / "state")).fly(began.append)
    assert began
    return {row.name: row for row in rows}


@pytest.mark.anyio
async def test_a_backend_adds_rows_of_its_own(tmp_path: Path) -> None:
    rows = await rows_of(tmp_path)
    assert rows["kernels"] == ok("kernels", "compiled")
    assert rows["engine"].status is OK
    assert rows["command line"].found.startswith("sh -c true")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("error", "name", "status"),
    [
        (ValueError("settings that cannot be"), "settings", BLOCKER),
        (ConfigError("no engine is installed: pip install engine"), "engine", BLOCKER),
        (UnknownFlag("engine 1.0 has no flag --x; did you mean --y?"), "flags", BLOCKER),
        (RuntimeError("a bug of the backend"), "inspection", WARNING),
    ],
)
async def test_what_a_backend_finds_wrong_is_a_row_and_the_other_rows_are_there(
    tmp_path: Path, error: Exception, name: str, status: Status
) -> None:
    rows = await rows_of(tmp_path, error)
    assert rows[name].status is status
    assert str(error) in rows[name].found
    assert rows["ports"].status is OK
    assert ("command line" in rows) == (status is WARNING)


@pytest.mark.anyio
async def test_a_key_is_not_shown_in_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "a-secret-of-mine")
    rows = await rows_of(tmp_path, api_key_env="MY_KEY")
    assert "a-secret-of-mine" not in f"{rows}"


@pytest.mark.anyio
async def test_a_size_that_must_be_downloaded_is_held_against_the_disk(
    tmp_path: Path, hubs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = hubs(200, '{"siblings": [{"rfilename": "a.safetensors", "size": 1125899906842624}]}')
    for key, value in hub.environ.items():
        monkeypatch.setenv(key, str(value))
    rows = await rows_of(tmp_path, model="user/model")
    assert rows["disk"].status is BLOCKER
    assert "1048576.0 GiB must be downloaded" in rows["disk"].found


@pytest.mark.anyio
async def test_offline_means_that_the_hub_is_not_asked(
    tmp_path: Path, hubs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = hubs(200)
    for key, value in {**hub.environ, "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(key, str(value))
    assert (await rows_of(tmp_path, model="user/model"))["model"].status is BLOCKER
    cached(tmp_path)
    assert (await rows_of(tmp_path, model="user/model"))["model"].status is OK
    assert hub.asked == []
