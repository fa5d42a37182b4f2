"""vLLM's OpenAI server: one process tree on one machine, with as many GPUs as it is given; or one on each of several.

Facts of 0.32.0, seen on its build for CPUs; older and newer versions as `OLDEST` and the comments say. It binds its
port early and listens when the model is loaded; `/health` answers from then on.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from backends import nodes, ray, vllm_cache, vllm_load, vllm_log, vllm_nodes
from backends.engine import find_engine, interpreter, refuse_missing
from backends.vllm_flags import ADOPTED, VllmOptions, refuse, refuse_doubled, serve_words, undotted
from lifecycle.adapter import Ask, Capabilities, Command, CompileCache, EngineLoad, Launch, Phase, Prepared
from lifecycle.config import MODEL_SETTINGS, ServerConfig, is_exposed
from lifecycle.errors import ConfigError
from lifecycle.group.plan import Member, one_each
from lifecycle.resources.caches import default_root
from lifecycle.resources.gpus import gpus
from lifecycle.secrets import api_key

OLDEST = "0.18.1"
"""The first version with --shutdown-timeout: an older one drops what is in flight when it is told to end."""
MODULE = "vllm.entrypoints.cli.main"
"""Run with `-m`, so that the interpreter is ours to choose; the `vllm` command is this module."""
INHERITED = re.compile(
    r"VLLM_(?:PORT(?:_\w+)?|SERVICE_(?:HOST|PORT\w*)|DP_(?:RANK|RANK_LOCAL|SIZE|MASTER_IP|MASTER_PORT))"
)
"""Variables that a server must not inherit: VLLM_PORT is the seed of every port that vLLM looks for itself, and
Kubernetes sets it to a URL for a service called vllm; VLLM_DP_* make a server a rank of another one."""


@dataclass(frozen=True)
class SidePort:
    """A port that only a connector for KV or encoder caches opens, always the same one unless it is told."""

    flag: str
    connector: str
    """A word that the flag's value has then."""
    variable: str


SIDE_PORTS = (
    SidePort("kv-transfer-config", "Nixl", "VLLM_NIXL_SIDE_CHANNEL_PORT"),
    SidePort("kv-transfer-config", "Mooncake", "VLLM_MOONCAKE_BOOTSTRAP_PORT"),
    SidePort("kv-transfer-config", "p2p", "VLLM_P2P_SIDE_CHANNEL_PORT"),
    SidePort("ec-transfer-config", "ECCPUConnector", "VLLM_EC_SIDE_CHANNEL_PORT"),
)
"""Defaults 5600, 8998, 5710, 5601. With data_parallel the ranks count up from them."""


class VllmAdapter:
    name = "vllm"
    capabilities = Capabilities(
        ready_paths=("/health",),
        liveness_path="/health",
        load_path="/metrics",
        sleep=("/sleep?level=1", {}),
        wake=("/wake_up", {}),
        settings=frozenset(MODEL_SETTINGS),
    )
    options = VllmOptions
    rules = vllm_log.RULES
    quotes = vllm_log.QUOTES
    adopts = ADOPTED

    def capabilities_for(self, config: ServerConfig) -> Capabilities:
        sides = side_ports(config, {**os.environ, **config.env})
        sleep = self.capabilities.sleep if VllmOptions(**config.options).sleep_mode else None
        can = replace(self.capabilities, extra_ports=len(sides), sleep=sleep)
        return vllm_nodes.of_a_part(can) if vllm_nodes.is_headless(config) else can

    def check(self, config: ServerConfig) -> None:
        """Refuse what cannot be, without looking for the engine. Raises `ConfigError`."""
        if config.command:
            raise ConfigError("command is set, but backend 'vllm' makes its own: leave it out, or use 'custom'")
        if not config.model:
            raise ConfigError("backend 'vllm' needs a model: a folder, or user/repository on the hub")
        chosen = VllmOptions(**config.options)
        for key in ("kv_cache_memory_bytes", "max_num_seqs"):
            value = getattr(chosen, key)
            if value is not None and value <= 0:
                raise ConfigError(f"{key} = {value} must be more than 0")
        if chosen.sleep_mode and is_exposed(config.host):
            raise ConfigError(
                f"sleep_mode = true, and host = {config.host!r} lets others reach vLLM's control paths, which "
                "ask for no key: bind 127.0.0.1"
            )
        share = chosen.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise ConfigError(f"gpu_memory_utilization = {share} must be more than 0 and at most 1")
        for name in config.env:
            if INHERITED.fullmatch(name):
                raise ConfigError(f"env sets {name}, but the ports and ranks of a server are Stoker's: leave it out")
        refuse(config.engine_args)
        vllm_nodes.check(config)
        if config.data_parallel > 1 and (found := side_ports(config, {**os.environ, **config.env})):
            raise ConfigError(
                f"data_parallel = {config.data_parallel} and a connector: the ranks count up from a port that must be "
                f"free for all of them; set {' and '.join(side.variable for side in found)} in env"
            )

    def members(self, config: ServerConfig) -> tuple[Member, ...]:
        """One on each host; over Ray a node of the cluster on each, and vLLM on the head when they have joined."""
        if not vllm_nodes.over_ray(config):
            return one_each(config)
        nodes = ray.cluster(config, interpreter("vllm", config.python))
        return (*nodes, Member("vllm", 0, replace(config, node_rank=0), serves=True))

    async def prepare(self, config: ServerConfig, ask: Ask) -> Prepared:
        """Find the installed vLLM, have it check the command line, and name the compile cache. Raises `ConfigError`."""
        environ = {**without_inherited(os.environ), **start_limit(config, os.environ), **config.env}
        refuse_unplaced(config, environ)
        engine = await find_engine("vllm", config, ask, oldest=OLDEST)
        refuse_missing(config.model)
        refuse_doubled(config.engine_args, engine.options)
        words = serve_words(config, engine)
        engine.check(list(undotted(words, engine.options)))
        if vllm_nodes.over_ray(config):
            await vllm_nodes.refuse_small_cluster(config, engine.python, environ, ask)
        if not vllm_cache.compiles(words, environ):
            return Prepared(None, engine)
        key = vllm_cache.key(
            words,
            environ,
            version=engine.version,
            torch=engine.torch,
            gpus=[gpu.name for gpu in await anyio.to_thread.run_sync(gpus, environ)],
            model=config.model,
            model_hash=vllm_cache.model_hash(config.model),
        )
        locked = not vllm_nodes.is_headless(config)
        return Prepared(CompileCache(key, cache_root(config) / self.name, locked), engine)

    def command(self, launch: Launch) -> Command:
        config, engine = launch.config, launch.prepared.engine
        argv = [engine.python, "-m", MODULE, "serve", *serve_words(config, engine, launch.port)]
        env: dict[str, str | None] = dict.fromkeys(filter(INHERITED.fullmatch, os.environ))
        env |= {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", **start_limit(config, os.environ)}
        cache = launch.prepared.cache
        if cache is not None and cache.files is not None:
            env |= vllm_cache.folders(cache.files)
        sides = side_ports(config, {**os.environ, **config.env})
        env |= {side.variable: str(port) for side, port in zip(sides, launch.extra_ports, strict=True)}
        env |= vllm_nodes.node_env(config, {**os.environ, **{name: str(env[name]) for name in env}, **config.env})
        if VllmOptions(**config.options).sleep_mode:
            env["VLLM_SERVER_DEV_MODE"] = "1"
        env |= config.env
        key = api_key(config)
        if key is not None:
            env["VLLM_API_KEY"] = key
        return Command(tuple(argv), env)

    def phase(self, line: str) -> Phase | None:
        return vllm_log.phase(line)

    def load(self, body: Any) -> EngineLoad | None:
        return vllm_load.load(body) if isinstance(body, str) else None


def side_ports(config: ServerConfig, environ: Mapping[str, str]) -> tuple[SidePort, ...]:
    """The ports that connectors of `config` open and that `environ` does not set."""
    args = {key.lstrip("-").replace("_", "-"): json.dumps(value) for key, value in config.engine_args.items()}
    return tuple(
        side for side in SIDE_PORTS if side.connector in args.get(side.flag, "") and side.variable not in environ
    )


LIMIT, LONG = "VLLM_ENGINE_READY_TIMEOUT_S", 7 * 86400
"""vLLM's own limit for a start (`vllm/envs.py`, seconds), and one that leaves it to ours. Not our own: the variable is
in vLLM's compile key (`compile_factors` in 0.32.0), so another `startup_timeout` would compile everything again."""


def start_limit(config: ServerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """vLLM's limit for a start, always the same and never shorter than ours; nothing if somebody has set it."""
    return {} if LIMIT in environ else {LIMIT: str(max(LONG, math.ceil(config.startup_timeout)))}


def cache_root(config: ServerConfig) -> Path:
    """The folder of all engines' compile caches."""
    return Path(config.cache_dir).expanduser() if config.cache_dir else default_root()


def refuse_unplaced(config: ServerConfig, environ: Mapping[str, str]) -> None:
    """Raises `ConfigError` if it is not said where the parts of a server meet."""
    if vllm_nodes.over_ray(config):
        vllm_nodes.refuse_any_cluster(config, environ)
    elif config.nodes > 1:
        nodes.refuse_homeless(config)


def without_inherited(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not INHERITED.fullmatch(name)}


adapter = VllmAdapter()
