"""SGLang's flags: which of them Stoker sets and from what, its ports, and its caches. Data and pure functions.

Facts of SGLang 0.5.23, the same in 0.5.15 and 0.5.20 unless said.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from backends.flags import named
from backends.options import Options, nearest_flag
from lifecycle.errors import ConfigError, UnknownFlag

PLAIN = "requests reach it by plain HTTP at a literal address"
OURS = {
    "model-path": "model", "model": "model", "served-model-name": "served_name", "revision": "revision",
    "dtype": "dtype", "context-length": "context_length", "random-seed": "engine_seed",
    "tp": "tensor_parallel", "tp-size": "tensor_parallel", "tensor-parallel-size": "tensor_parallel",
    "pp": "pipeline_parallel", "pp-size": "pipeline_parallel", "pipeline-parallel-size": "pipeline_parallel",
    "dp": "data_parallel", "dp-size": "data_parallel", "data-parallel-size": "data_parallel",
    "attn-dp-size": "dp_attention", "attention-data-parallel-size": "dp_attention",
    "enable-dp-attention": "dp_attention", "trust-remote-code": "trust_remote_code",
    "host": "host", "port": "port", "config": "engine_args, one by one", "nccl-port": "nothing: it finds and holds one",
    "enable-memory-saver": "memory_saver", "enable-weights-cpu-backup": "memory_saver",
    "device": "device", "attention-backend": "attention_backend", "load-format": "load_format",
    "mem-fraction-static": "mem_fraction_static", "max-running-requests": "max_running_requests",
    "uvicorn-access-log-exclude-prefixes": "nothing: it keeps its own probes out of the log",
    "nnodes": "nodes", "node-rank": "node_rank", "dist-init-addr": "head_address and head_port",
    "nccl-init-addr": "head_address and head_port",
}  # fmt: skip
"""Flags that Stoker sets itself, each with the setting that it comes from."""
COMPOSED = ("dp_attention", "memory_saver")
"""Settings that stand for more than one flag."""
ADOPTED = {flag: setting for flag, setting in OURS.items() if setting.isidentifier() and setting not in COMPOSED}
"""Those of them that are taken for the setting where they are given."""
REFUSED = {
    "ssl-keyfile": PLAIN, "ssl-certfile": PLAIN, "ssl-ca-certs": PLAIN, "ssl-keyfile-password": PLAIN,
    "enable-ssl-refresh": PLAIN, "grpc-mode": PLAIN, "smg-grpc-mode": PLAIN,
}  # fmt: skip
"""Flags that no server of Stoker's can have, and why."""

PROBED = ("/ready", "/health", "/v1/loads", "/v1/models")
"""Paths that Stoker asks all the time: kept out of the log, where each line would differ by its client's port and so
would count as progress of a start that hangs."""
DERIVED = tuple(range(233, 240))
"""Distances from the HTTP port of the ports that SGLang derives from it with attention data parallelism (PortArgs in
server_args.py): one that it only checks, then those of tokenizer, detokenizer, RPC, metrics, scheduler and load."""


def refuse(engine_args: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for a flag that no server of Stoker's can have."""
    for key in engine_args:
        name = key.lstrip("-").replace("_", "-")
        if name in REFUSED:
            raise ConfigError(f"engine_args sets {name!r}, which backend 'sglang' cannot use: {REFUSED[name]}")


def refuse_inexact(engine_args: Mapping[str, Any], options: Options) -> None:
    """Raises `UnknownFlag` for a flag that is not exactly one of the engine's: its parser would take the beginning of
    one, and so let a flag that Stoker sets be set twice."""
    for key in engine_args:
        flag = named(key.partition(".")[0], OURS)
        if options.find(flag) is None:
            raise UnknownFlag(f"{options.engine} has no flag {flag}{nearest_flag(flag, options.by_name)}")


CACHES = {
    "SGLANG_CACHE_DIR": "", "SGLANG_DG_CACHE_DIR": "deep_gemm", "SGLANG_JIT_CACHE_DIR": "jit",
    "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "CUDA_CACHE_PATH": "nv",
    "TILELANG_CACHE_DIR": "tilelang", "FLASHINFER_WORKSPACE_BASE": "",
}  # fmt: skip
"""Variables that say where the parts of the compile cache lie, and their folders. Since 0.5.20 SGLang itself puts those
of others below SGLANG_CACHE_DIR; named one by one, they lie there in older versions too."""
SAME_CODE = re.compile(
    r"log-.*|.*-parser|chat-template|completion-template|.*metrics.*|watchdog-timeout|soft-watchdog-timeout|"
    r"stream-interval|decode-log-interval|download-dir|tokenizer-.*|skip-server-warmup|schedule-.*|crash-dump-folder"
)
"""Flags of the user's that surely change nothing in the compiled code. Every other one is part of a cache's name."""
CODE_ENV = re.compile(r"SGLANG_\w+|SGL_\w+|TORCH(?:INDUCTOR|DYNAMO|_COMPILE)\w*|TRITON_\w+|FLASHINFER_\w+|CUDA_HOME")
SAME_CODE_ENV = re.compile(r"SGLANG_(?:LOG\w*|HOST_IP|PORT|HEALTH_\w+|WAIT_PORT_\w+|ENABLE_HEALTH_\w+|NUMA_\w+)")
"""Variables that may change the compiled code, and those among them that do not."""


def cache_key(
    words: Iterable[str], environ: Mapping[str, str], *, version: str, torch: str, gpus: Iterable[str], model: str
) -> str:
    """The name of the compile cache that a start builds: all that its code depends on, in one line for people.

    Args:
        words: the flags that are not about this server's name and place.
        environ: the variables that the engine will see.
        version: of SGLang.
        torch: its version of torch.
        gpus: the types of the GPUs that the engine will see.
        model: hub name, or path.
    """
    kinds = ", ".join(sorted(set(gpus))) or "no NVIDIA GPU"
    env = sorted(
        f"{name}={value}"
        for name, value in environ.items()
        if CODE_ENV.fullmatch(name) and name not in CACHES and not SAME_CODE_ENV.fullmatch(name)
    )
    return "; ".join((f"sglang {version}", f"torch {torch}", kinds, model + model_hash(model), " ".join(words), *env))


def model_hash(model: str) -> str:
    """`@` and a short hash of a local model's config.json; empty for a model of a hub."""
    try:
        return "@" + hashlib.sha256((Path(model).expanduser() / "config.json").read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def caches(files: Path) -> dict[str, str]:
    """The variables that put all of SGLang's caches below `files`."""
    return {name: str(files / folder) for name, folder in CACHES.items()}
