"""SGLang: `python -m sglang.launch_server`, an HTTP process with a scheduler for each GPU and a detokenizer below it.

Facts seen with SGLang 0.5.23, and read in 0.5.15 and 0.5.20. It listens, and lists its model, seconds before it can
serve: `/ready` (since 0.5.20) and `/health` answer 503 until its own warm-up is over. Its processes report to
`/v1/loads`, from shared memory, so that it answers while the scheduler is busy or stuck. It takes its key from the
command line or from a file, never from the environment.

On several hosts each runs SGLang with the same flags and its rank. Those that are not the head have no API: when their
part of the model is loaded, they answer `/health`, and nothing else, until the head tells them to end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from backends import sglang_log
from backends.engine import Engine, find_engine, numbers, refuse_missing
from backends.flags import flags
from backends.nodes import END_GRACE, interface_env, meeting_point, refuse_homeless, refuse_rank, refuse_undivided
from backends.sglang_flags import ADOPTED, DERIVED, OURS, PROBED, cache_key, caches, refuse, refuse_inexact
from lifecycle.adapter import (
    PRIVATE,
    Ask,
    Capabilities,
    Command,
    CompileCache,
    EngineLoad,
    Launch,
    Phase,
    Prepared,
)
from lifecycle.config import MODEL_SETTINGS, ServerConfig
from lifecycle.errors import ConfigError
from lifecycle.group.plan import Member, one_each
from lifecycle.resources.caches import default_root
from lifecycle.resources.gpus import gpus
from lifecycle.secrets import api_key

OLDEST = "0.5.15"
"""The oldest SGLang that is supported: the first that ends what it drains by a request to its scheduler."""
READY_SINCE = "0.5.20"
"""The first SGLang with `/ready`. In older ones `/health` generates a token, for a second at least, unless told not to.
"""
MODULE = "sglang.launch_server"
"""Run with `-m`, so that the interpreter is ours to choose: `sglang.cli.main`, the module of the `sglang` command, does
nothing when it is run so."""
KEY_FILE = "key.yaml"


@dataclass(frozen=True)
class SglangOptions:
    """Settings of SGLang that most people touch. Any other flag goes into `engine_args`."""

    dp_attention: bool = False
    """Let `data_parallel` divide the attention inside the tensor-parallel group, instead of making whole copies."""
    mem_fraction_static: float | None = None
    """Share of a GPU's memory for weights and KV cache, 0 to 1. None: SGLang decides."""
    max_running_requests: int | None = None
    """Requests that are worked on at once. None: SGLang decides."""
    attention_backend: str = ""
    """flashinfer, fa3, triton, torch_native, ... Default: SGLang decides."""
    load_format: str = ""
    """auto, safetensors, dummy (random weights), ... Default: SGLang decides."""
    device: str = ""
    """cuda, cpu, ... Default: SGLang finds out."""
    memory_saver: bool = False
    """Let `Server.sleep` give the GPU's memory back; the weights are kept in the host's meanwhile."""


class SglangAdapter:
    name = "sglang"
    capabilities = Capabilities(
        extra_ports=1,
        ready_paths=("/ready", "/health"),
        load_path="/v1/loads?include=core",
        abort=("/abort_request", {"abort_all": True}),
        sleep=("/release_memory_occupation", {}),
        wake=("/resume_memory_occupation", {}),
        settings=frozenset(MODEL_SETTINGS),
    )
    options = SglangOptions
    rules = sglang_log.RULES
    quotes = sglang_log.QUOTES
    adopts = ADOPTED

    def capabilities_for(self, config: ServerConfig) -> Capabilities:
        """Copies of the model cannot share the one port that has a flag, and choose their own; with attention data
        parallelism further ports follow from the HTTP port."""
        chosen = SglangOptions(**config.options)
        can = self.capabilities if chosen.memory_saver else replace(self.capabilities, sleep=None)
        if config.nodes > 1:  # its ports follow from the one where the parts meet
            can = replace(can, extra_ports=0)
            return can if config.node_rank == 0 else of_a_part(can)
        if config.data_parallel == 1:
            return can
        return replace(can, derived_ports=DERIVED) if chosen.dp_attention else replace(can, extra_ports=0)

    def check(self, config: ServerConfig) -> None:
        """Refuse what no SGLang can be told. Raises `ConfigError`."""
        if config.command:
            raise ConfigError("command is set, but backend 'sglang' makes its own: leave it out, or use 'custom'")
        if not config.model:
            raise ConfigError("backend 'sglang' needs a model: a folder, or a name on the hub")
        chosen = SglangOptions(**config.options)
        if chosen.mem_fraction_static is not None and not 0 < chosen.mem_fraction_static < 1:
            raise ConfigError(f"mem_fraction_static = {chosen.mem_fraction_static} must lie between 0 and 1")
        if chosen.max_running_requests is not None and chosen.max_running_requests < 1:
            raise ConfigError(f"max_running_requests = {chosen.max_running_requests} must be more than 0")
        if chosen.dp_attention and config.tensor_parallel % config.data_parallel:
            raise ConfigError(
                f"data_parallel = {config.data_parallel} must divide tensor_parallel = {config.tensor_parallel}, whose "
                "GPUs dp_attention shares out"
            )
        refuse_rank(config)
        size = config.tensor_parallel * config.pipeline_parallel
        refuse_undivided(config, "tensor_parallel × pipeline_parallel", size)
        if config.nodes > 1 and config.data_parallel > 1 and not chosen.dp_attention:
            raise ConfigError(
                f"nodes = {config.nodes} and data_parallel = {config.data_parallel}: SGLang makes whole copies on one "
                "host only; set dp_attention = true, or start a fleet of replicas"
            )
        if (api_key(config) or "").startswith("-"):
            raise ConfigError("the key begins with '-', which SGLang's parser takes for a flag: choose another one")
        refuse(config.engine_args)
        flags(config.engine_args, ours=OURS)

    def members(self, config: ServerConfig) -> tuple[Member, ...]:
        """One on each host; none is ready before the head has joined."""
        return one_each(config, needs_head=True)

    async def prepare(self, config: ServerConfig, ask: Ask) -> Prepared:
        """Find the installed SGLang, have it check the flags, and name the compile cache. Raises `ConfigError`."""
        if config.nodes > 1:
            refuse_homeless(config)
        engine = await find_engine("sglang", config, ask, oldest=OLDEST)
        refuse_missing(config.model)
        refuse_inexact(config.engine_args, engine.options)
        words = model_words(config, engine)
        engine.check([*words, *place_words(config, 0, (0,) * self.capabilities_for(config).extra_ports)])
        if not compiles(config):
            return Prepared(None, engine)
        environ = {**os.environ, **config.env}
        key = cache_key(
            words,
            environ,
            version=engine.version,
            torch=engine.torch,
            gpus=[gpu.name for gpu in await anyio.to_thread.run_sync(gpus, environ)],
            model=config.model,
        )
        return Prepared(CompileCache(key, cache_root(config) / self.name, locked=config.node_rank == 0), engine)

    def command(self, launch: Launch) -> Command:
        config, engine = launch.config, launch.prepared.engine
        words = model_words(config, engine) + place_words(config, launch.port, launch.extra_ports)
        env = {"PYTHONSAFEPATH": "1", **health_is_a_flag(engine.version), **quick_end({**os.environ, **config.env})}
        cache = launch.prepared.cache
        if cache is not None and cache.files is not None:
            env |= caches(cache.files)
        if config.nodes > 1:
            env |= {"SGLANG_HOST_IP": config.node_address, **interface_env(config, {**os.environ, **config.env})}
        env |= config.env
        key = api_key(config)
        files = {}
        if key is not None:
            files[KEY_FILE] = f"api-key: {json.dumps(key)}\n"
            words += ["--config", f"{PRIVATE}/{KEY_FILE}"]
        return Command((engine.python, "-m", MODULE, *words), env, files=files)

    def phase(self, line: str) -> Phase | None:
        return sglang_log.phase(line)

    def load(self, body: Any) -> EngineLoad | None:
        """What `/v1/loads` says, over all schedulers.

        Each scheduler writes a snapshot to shared memory after each step, and all the time while it has nothing to
        do: its time (since 0.5.20) and its tokens stand still only while it is stopped or stuck.
        """
        try:
            found = msgspec.convert(body, Loads).loads
        except msgspec.ValidationError:
            return None
        if not found:
            return None
        running, waiting = sum(one.num_running_reqs for one in found), sum(one.num_waiting_reqs for one in found)
        return EngineLoad(running, waiting, tuple(number for one in found for number in one.progress))


class Load(msgspec.Struct):
    """One scheduler's part of `/v1/loads`."""

    num_running_reqs: int
    num_waiting_reqs: int
    timestamp: float = 0.0
    num_used_tokens: int = 0
    gen_throughput: float = 0.0
    total_prefill_uncached_tokens: int = 0

    @property
    def progress(self) -> tuple[float, ...]:
        return self.timestamp, self.num_used_tokens, self.gen_throughput, self.total_prefill_uncached_tokens


class Loads(msgspec.Struct):
    """`/v1/loads`."""

    loads: list[Load]


def model_words(config: ServerConfig, engine: Engine) -> list[str]:
    """The flags that say what is served and how. Raises `ConfigError`."""
    chosen = SglangOptions(**config.options)
    model = str(Path(config.model).expanduser()) if config.model.startswith("~") else config.model
    words = ["--model-path", model]
    for flag, value in (
        ("revision", config.revision),
        ("dtype", config.dtype),
        ("context-length", config.context_length),
        ("tp-size", config.tensor_parallel if config.tensor_parallel > 1 else None),
        ("pp-size", config.pipeline_parallel if config.pipeline_parallel > 1 else None),
        ("nnodes", config.nodes if config.nodes > 1 else None),
        ("random-seed", config.engine_seed),
        ("mem-fraction-static", chosen.mem_fraction_static),
        ("max-running-requests", chosen.max_running_requests),
        ("attention-backend", chosen.attention_backend),
        ("load-format", chosen.load_format),
        ("device", chosen.device),
    ):
        if value not in ("", None):
            words += [f"--{flag}", str(value)]
    words += ["--trust-remote-code"] * config.trust_remote_code
    if chosen.memory_saver:  # without the backup the weights are gone when it wakes up
        words += ["--enable-memory-saver", "--enable-weights-cpu-backup"]
    if config.data_parallel > 1:
        words += data_parallel_words(config.data_parallel, engine, attention=chosen.dp_attention)
    return words + flags(config.engine_args, ours=OURS, options=engine.options)


def data_parallel_words(size: int, engine: Engine, *, attention: bool) -> list[str]:
    """Copies of the whole model, or of its attention only; 0.5.23 has a flag of its own for the latter."""
    if attention and engine.has("attn-dp-size"):
        return ["--attn-dp-size", str(size)]
    return ["--dp-size", str(size), *["--enable-dp-attention"] * attention]


def place_words(config: ServerConfig, port: int, extra_ports: Sequence[int]) -> list[str]:
    """The flags that say where it is served and under which name."""
    words = ["--served-model-name", config.served_name or config.model, "--host", config.host, "--port", str(port)]
    for extra in extra_ports:
        words += ["--nccl-port", str(extra)]
    if config.nodes > 1:
        words += ["--node-rank", str(config.node_rank), "--dist-init-addr", meeting_point(config)]
    return [*words, "--uvicorn-access-log-exclude-prefixes", *PROBED]


def of_a_part(can: Capabilities) -> Capabilities:
    """What is true of a part that is not the head, from what is true of the server."""
    return replace(
        can, ready_paths=("/health",), reports_model=False, generates=False, load_path=None, abort=None, sleep=None,
        wake=None, longest_grace=END_GRACE,
    )  # fmt: skip


def health_is_a_flag(version: str) -> dict[str, str]:
    """Before `/ready` came, `/health` generated a token, for a second at least, and called a long prefill ill."""
    old = numbers(version) < numbers(READY_SINCE)
    return {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"} if old else {}


def cache_root(config: ServerConfig) -> Path:
    """The folder of all engines' compile caches."""
    return Path(config.cache_dir).expanduser() if config.cache_dir else default_root()


def quick_end(environ: Mapping[str, str]) -> dict[str, str]:
    """After an error in a scheduler SGLang waits a minute for CUDA's coredumps, also where they are not switched on."""
    return {} if "SGLANG_CUDA_COREDUMP" in environ else {"SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0"}


def compiles(config: ServerConfig) -> bool:
    """Whether a start compiles code: kernels for a GPU always, for a CPU only if it is told to."""
    args = {key.lstrip("-").replace("_", "-") for key, value in config.engine_args.items() if value is not False}
    return SglangOptions(**config.options).device != "cpu" or "enable-torch-compile" in args


adapter = SglangAdapter()
