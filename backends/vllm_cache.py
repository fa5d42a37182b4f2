"""Where vLLM's compiled code goes, and what it depends on: the folders and the name of a compile cache. Pure.

Sources: `vllm/envs.py` (`compile_factors`) and the `compute_hash` of `vllm/config/*.py` of 0.32.0.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from backends.vllm_nodes import PLACE

FOLDERS: Mapping[str, str] = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TILELANG_CACHE_DIR": "tilelang",
    "CUDA_CACHE_PATH": "cuda",
    "DG_JIT_CACHE_DIR": "deep_gemm",
}
"""Variables that say where the parts of a compile cache lie. VLLM_CACHE_ROOT has torch's compiled graphs (vLLM sets
TORCHINDUCTOR_CACHE_DIR itself where it compiles ahead of time) and FlashInfer's autotuning; none of them is a factor of
vLLM's own cache key."""
NAMED = frozenset({"host", "port", "served-model-name"}) | PLACE
"""Flags that name this server, and its part. How many nodes there are is part of the name: each builds the code of its
own ranks only."""
SAME_CODE = frozenset({
    "aggregate-engine-logging", "allow-credentials", "allowed-headers", "allowed-local-media-path",
    "allowed-media-domains", "allowed-methods", "allowed-origins", "api-server-count", "chat-template",
    "chat-template-content-format", "default-chat-template-kwargs", "device-ids", "device-memory-utilization",
    "disable-access-log-for-endpoints", "disable-fastapi-docs", "disable-log-requests", "disable-log-stats",
    "disable-uvicorn-access-log", "distributed-timeout-seconds", "download-dir", "enable-auto-tool-choice",
    "enable-force-include-usage", "enable-log-deltas", "enable-log-outputs", "enable-log-requests",
    "enable-prefix-caching", "enable-prompt-tokens-details", "enable-request-id-headers",
    "enable-server-load-tracking", "enable-tokenizer-info-endpoint", "fail-on-environ-validation", "generation-config",
    "gpu-memory-utilization", "h11-max-header-count", "h11-max-incomplete-event-size", "ignore-patterns",
    "kv-cache-memory-bytes", "kv-events-config", "log-config-file", "log-error-stack", "log-level", "logging-config",
    "max-log-len", "max-logprobs", "max-parallel-loading-workers", "middleware", "no-enable-log-requests",
    "no-enable-prefix-caching", "num-gpu-blocks-override", "otlp-traces-endpoint", "override-generation-config",
    "reasoning-parser", "reasoning-parser-plugin", "response-role", "return-tokens-as-token-ids", "root-path",
    "safetensors-load-strategy", "shutdown-timeout", "sse-keep-alive-interval", "ssl-ca-certs", "ssl-cert-reqs",
    "ssl-certfile", "ssl-ciphers", "ssl-keyfile", "tokenizer", "tokenizer-mode", "tokenizer-revision",
    "tool-call-parser", "tool-parser-plugin", "tool-server", "trust-request-chat-template", "use-tqdm-on-load",
    "uvicorn-log-level",
})  # fmt: skip
"""Flags that surely change nothing in the compiled code: HTTP, logs, chat, tokenizer, and what vLLM's own hashes leave
out. Every other one is part of the name of a compile cache."""
SAME_CODE_ENV = re.compile(
    r"VLLM_(?:API_KEY|PORT|HOST_IP|LOG\w*|DEBUG_LOG_\w+|DEBUG_DUMP_PATH|RPC_BASE_PATH|NO_USAGE_STATS|DO_NOT_TRACK"
    r"|USAGE_\w+|CONFIGURE_LOGGING|RINGBUFFER_WARNING_INTERVAL|HTTP_TIMEOUT_KEEP_ALIVE|KEEP_ALIVE_ON_ENGINE_DEATH"
    r"|(?:IMAGE|VIDEO|AUDIO)_FETCH_TIMEOUT|MEDIA_\w+|MAX_(?:AUDIO|EMBED|IMAGE)_\w+|ASSETS_CACHE\w*|CONFIG_ROOT"
    r"|USE_MODELSCOPE|MODEL_REDIRECT_PATH|SKIP_MODEL_NAME_VALIDATION|WORKER_MULTIPROC_METHOD"
    r"|CPU_KVCACHE_SPACE|NIXL_SIDE_CHANNEL_\w+|P2P_SIDE_CHANNEL_\w+|EC_SIDE_CHANNEL_\w+|MOONCAKE_BOOTSTRAP_PORT"
    r"|DP_\w+|WORKER_SHUTDOWN_TIMEOUT_SECONDS|EXECUTE_MODEL_TIMEOUT_SECONDS|SERVER_DEV_MODE)"
)
"""Variables of vLLM that change nothing in the compiled code: ports and places, logs, statistics, media, timeouts. All
but some that are rarely set vLLM leaves out of its own key, too (`compile_factors` in `vllm/envs.py`, 0.32.0)."""
CODE_ENV = re.compile(r"VLLM_\w+|TORCH(?:INDUCTOR|DYNAMO|_COMPILE)\w*|TRITON_\w+|NVCC_\w+|CUDA_HOME|FLASHINFER_\w+")
"""Variables that may change it."""
NO_COMPILER = ("0", "NONE", "none")
"""Modes of `--compilation-config` in which nothing is compiled."""


def grouped(words: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The flags of a command line, each with its values.

    >>> grouped(["--dtype", "auto", "--enforce-eager", "--lora-modules", "a=1", "b=2"])
    [('dtype', ('auto',)), ('enforce-eager', ()), ('lora-modules', ('a=1', 'b=2'))]
    """
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            name, equals, value = word.lstrip("-").partition("=")
            groups.append((name.replace("_", "-"), [value] if equals else []))
        elif groups:
            groups[-1][1].append(word)
    return [(name, tuple(values)) for name, values in groups]


def compiles(words: Iterable[str], environ: Mapping[str, str]) -> bool:
    """Whether a start with these flags and variables compiles code that is kept for the next one."""
    if environ.get("VLLM_DISABLE_COMPILE_CACHE", "0") not in ("0", ""):
        return False
    flags = dict(grouped(words))
    if "enforce-eager" in flags or "O0" in flags or flags.get("optimization-level", flags.get("O")) == ("0",):
        return False
    modes = [flags.get(f"{flag}.mode", flags.get(f"{flag}.level", ("",))) for flag in ("compilation-config", "cc")]
    for text in (*flags.get("compilation-config", ()), *flags.get("cc", ())):
        try:
            given = json.loads(text)
        except ValueError:
            continue
        if isinstance(given, Mapping):
            modes.append((str(given.get("mode", given.get("level", ""))),))
    return not any(mode and mode[0] in NO_COMPILER for mode in modes)


def key(
    words: Iterable[str],
    environ: Mapping[str, str],
    *,
    version: str,
    torch: str,
    gpus: Iterable[str],
    model: str,
    model_hash: str,
) -> str:
    """The name of the compile cache that a start builds: all that its code depends on, in one line for people.

    Args:
        words: the flags of the engine's command line.
        environ: the variables that the engine will see.
        version: of vLLM.
        torch: its version of torch.
        gpus: the types of the GPUs that the engine will see.
        model: hub name, or path.
        model_hash: of what is known about the model beyond its name.
    """
    kinds = ", ".join(sorted(set(gpus))) or "cpu"
    flags = sorted(
        " ".join((name, *values)) for name, values in grouped(words) if name not in SAME_CODE and name not in NAMED
    )
    env = sorted(
        f"{name}={value}"
        for name, value in environ.items()
        if CODE_ENV.fullmatch(name) and name not in FOLDERS and not SAME_CODE_ENV.fullmatch(name)
    )
    parts = [f"vllm {version}", f"torch {torch}", kinds, model + (f"@{model_hash}" if model_hash else ""), *flags, *env]
    return "; ".join(parts)


def model_hash(model: str) -> str:
    """A short hash of a local model's config.json; empty for a model of a hub."""
    try:
        return hashlib.sha256((Path(model).expanduser() / "config.json").read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def folders(files: Path) -> dict[str, str]:
    """The variables that put all of vLLM's caches below `files`."""
    return {name: str(files / folder) for name, folder in FOLDERS.items()}
