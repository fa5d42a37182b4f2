"""TensorRT-LLM's `trtllm-serve` as a backend: written with docs/testing.md at hand, checked by examples/test_trtllm.py.

Facts read in TensorRT-LLM 1.2 (tensorrt_llm/commands/serve.py, serve/openai_server.py), not seen on a GPU. It binds its
port before it loads, with a plain socket, so the port cannot be held for it; it answers HTTP when the model is loaded.
It takes no key. It names a model by its path or hub name, and a folder by its last part.
"""

from __future__ import annotations

import re
from pathlib import Path

from lifecycle.adapter import Capabilities, Command, Launch, NoOptions, Phase
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Rule, Verdict
from lifecycle.errors import ConfigError

FLAGS = {
    "revision": "--revision", "context_length": "--max_seq_len", "tensor_parallel": "--tensor_parallel_size",
    "pipeline_parallel": "--pipeline_parallel_size", "trust_remote_code": "--trust_remote_code",
}  # fmt: skip
OTHER_NAMES = {"tp_size": "tensor_parallel", "pp_size": "pipeline_parallel", "host": "host", "port": "port"}
OURS = {**{flag.lstrip("-"): setting for setting, flag in FLAGS.items()}, **OTHER_NAMES}
LOADING = re.compile(r"Loading (?:safetensors )?weights[^:]*:.*\| (\d+)/(\d+) \[")


class TrtllmAdapter:
    name = "trtllm"
    capabilities = Capabilities(
        holds_port=False, ready_paths=("/health",), liveness_path="/health", settings=frozenset(FLAGS)
    )
    options = NoOptions
    rules = (
        Rule("unknown-flag", r"^Error: No such option", Verdict.HOPELESS, "correct the flag in engine_args"),
        Rule("port-taken", r"RuntimeError: Failed to bind socket to ", Verdict.TRANSIENT, "it is started on another"),
        Rule("no-gpu", r"ValueError: No GPU devices found on the node", Verdict.HOPELESS,
             "TensorRT-LLM needs a GPU: look at CUDA_VISIBLE_DEVICES and at what the job was given", "start"),
    )  # fmt: skip

    def check(self, config: ServerConfig) -> None:
        if not config.model:
            raise ConfigError("backend 'trtllm' needs a model: a folder, or a name on the hub")
        if config.api_key_env or config.api_key_file:
            raise ConfigError("trtllm-serve knows no keys: leave api_key_env and api_key_file out")
        named = Path(config.model).name if Path(config.model).is_dir() else config.model
        if (config.served_name or config.model) != named:
            raise ConfigError(f"trtllm-serve will call this model {named!r}: set served_name to that")
        words(config)

    def command(self, launch: Launch) -> Command:
        config = launch.config
        argv = ["trtllm-serve", config.model, "--host", config.host, "--port", str(launch.port), *words(config)]
        return Command(tuple(argv), dict(config.env))

    def phase(self, line: str) -> Phase | None:
        if found := LOADING.search(line):
            return Phase("loading", int(found[1]), int(found[2]))
        return Phase("listening") if "Uvicorn running on" in line else None


def words(config: ServerConfig) -> list[str]:
    """The flags of settings and of `engine_args`: click takes each with underscores only."""
    plain = ServerConfig(config.backend)
    given = {FLAGS[key]: getattr(config, key) for key in FLAGS if getattr(config, key) != getattr(plain, key)}
    for key, value in config.engine_args.items():
        flag = key.lstrip("-").replace("-", "_")
        if flag in OURS:
            raise ConfigError(f"engine_args sets {key!r}, which Stoker sets itself: use {OURS[flag]}")
        given[f"--{flag}"] = value
    present = {flag: value for flag, value in given.items() if value is not None and value is not False}
    return [word for flag, value in present.items() for word in ([flag] if value is True else [flag, str(value)])]


adapter = TrtllmAdapter()
