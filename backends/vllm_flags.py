"""vLLM's command line: which settings become which flags, which flags are not the user's, and what would be doubled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.engine import Engine
from backends.flags import flags, named
from backends.options import Options, nearest_flag
from backends.vllm_nodes import node_words
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError, UnknownFlag

OURS = {
    "model": "model", "model-tag": "model", "served-model-name": "served_name", "host": "host", "port": "port",
    "uds": "host and port", "api-key": "api_key_env or api_key_file", "revision": "revision", "dtype": "dtype",
    "max-model-len": "context_length", "tensor-parallel-size": "tensor_parallel", "tp": "tensor_parallel",
    "pipeline-parallel-size": "pipeline_parallel", "pp": "pipeline_parallel", "data-parallel-size": "data_parallel",
    "dp": "data_parallel", "seed": "engine_seed", "trust-remote-code": "trust_remote_code",
    "no-trust-remote-code": "trust_remote_code", "shutdown-timeout": "drain_timeout",
    "gpu-memory-utilization": "gpu_memory_utilization", "device-memory-utilization": "gpu_memory_utilization",
    "kv-cache-memory-bytes": "kv_cache_memory_bytes", "max-num-seqs": "max_num_seqs", "quantization": "quantization",
    "q": "quantization", "enable-sleep-mode": "sleep_mode", "no-enable-sleep-mode": "sleep_mode",
    "enforce-eager": "enforce_eager", "no-enforce-eager": "enforce_eager",
    "config": "engine_args for each of its lines", "nnodes": "nodes", "n": "nodes", "node-rank": "node_rank",
    "r": "node_rank", "master-addr": "head_address", "master-port": "head_port", "headless": "node_rank from 1 on",
    "data-parallel-size-local": "nodes, which share the copies", "dpl": "nodes, which share the copies",
    "data-parallel-start-rank": "node_rank from 1 on", "dpr": "node_rank from 1 on",
    "data-parallel-address": "head_address", "dpa": "head_address", "data-parallel-rpc-port": "head_port",
    "dpp": "head_port",
}  # fmt: skip
"""Flags that Stoker sets itself, with the setting to use instead."""
ADOPTED = {flag: setting for flag, setting in OURS.items() if setting.isidentifier() and not flag.startswith("no-")}
"""Those of them that are taken for the setting where they are given."""
OF_OTHERS = frozenset({
    "data-parallel-rank", "dpn", "data-parallel-external-lb", "dpe", "data-parallel-hybrid-lb", "dph",
    "data-parallel-multi-port-external-lb", "dpm", "data-parallel-supervisor-port", "grpc", "grpc-port",
})  # fmt: skip
"""Flags that make a server a part of something larger, or let it listen elsewhere."""


@dataclass(frozen=True)
class VllmOptions:
    """Settings of vLLM that most people touch. Any other flag goes into `engine_args`."""

    gpu_memory_utilization: float | None = None
    """Share of each GPU's memory that vLLM takes, 0 to 1. None: vLLM decides (0.92 in 0.32)."""
    kv_cache_memory_bytes: int | None = None
    """Bytes of KV cache on each GPU, instead of what `gpu_memory_utilization` leaves."""
    max_num_seqs: int | None = None
    """Requests that are worked on at once. None: vLLM decides."""
    quantization: str = ""
    """How the weights are quantized: awq, gptq, fp8, ... Default: as the model's config.json says."""
    enforce_eager: bool = False
    """No compiling and no CUDA graphs: ready much sooner, generates more slowly."""
    sleep_mode: bool = False
    """Let `Server.sleep` move the weights out of GPU memory. vLLM then has control paths that ask for no key
    (VLLM_SERVER_DEV_MODE), so it must be reachable from this machine only."""


def serve_words(config: ServerConfig, engine: Engine | None, port: int = 0) -> list[str]:
    """What comes after `vllm serve`: the model first, for flags that take several values would swallow it.

    Args:
        engine: the installed one; None if that is not known yet.
    """
    chosen = VllmOptions(**config.options)
    words = [str(Path(config.model).expanduser()) if config.model.startswith("~") else config.model]
    words += ["--host", config.host, "--port", str(port), "--served-model-name", config.served_name or config.model]
    for flag, value, default in (
        ("revision", config.revision, ""),
        ("dtype", config.dtype, ""),
        ("max-model-len", config.context_length, None),
        ("tensor-parallel-size", config.tensor_parallel, 1),
        ("pipeline-parallel-size", config.pipeline_parallel, 1),
        ("data-parallel-size", config.data_parallel, 1),
        ("seed", config.engine_seed, None),
        ("gpu-memory-utilization", chosen.gpu_memory_utilization, None),
        ("kv-cache-memory-bytes", chosen.kv_cache_memory_bytes, None),
        ("max-num-seqs", chosen.max_num_seqs, None),
        ("quantization", chosen.quantization, ""),
    ):
        if value != default:
            words += [f"--{flag}", str(value)]
    words += node_words(config)
    words += ["--trust-remote-code"] * config.trust_remote_code
    words += ["--enforce-eager"] * chosen.enforce_eager
    words += ["--enable-sleep-mode"] * chosen.sleep_mode
    if engine is None or engine.has("shutdown-timeout"):
        words += ["--shutdown-timeout", str(math.ceil(config.drain_limit))]
    return words + flags(config.engine_args, ours=OURS, options=engine.options if engine else None)


def refuse(engine_args: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for flags that are not the user's, as far as that can be said without the engine."""
    for key in engine_args:
        name = key.lstrip("-").replace("_", "-")
        if name in OF_OTHERS:
            raise ConfigError(
                f"engine_args sets {name!r}, but a server takes all of its requests at one port: leave it out"
            )
    flags(engine_args, ours=OURS)


def refuse_doubled(engine_args: Mapping[str, Any], options: Options) -> None:
    """Raises `UnknownFlag` for a flag that is not exactly one of the engine's (its parser would take a beginning of
    one), and `ConfigError` for another name of one that is not the user's."""
    for key in engine_args:
        flag = named(key, OURS).partition(".")[0]
        option = options.find(flag) or options.find(f"-{key.lstrip('-')}")
        if option is None:
            raise UnknownFlag(f"{options.engine} has no flag {flag}{nearest_flag(flag, options.by_name)}")
        refuse(dict.fromkeys(option.names))


def undotted(words: Sequence[str], options: Options) -> Iterator[str]:
    """A command line without vLLM's `--flag.key value`, which its parser turns into JSON before it looks."""
    dotted = False
    for word in words:
        stem, dot, _ = word.partition("=")[0].partition(".")
        if word.startswith("-") and dot and options.find(stem):
            yield from (stem, "{}")
            dotted = "=" not in word
        elif dotted and not word.startswith("--"):
            dotted = False
        else:
            dotted = False
            yield word
