"""What Stoker adds to the start of a real vLLM, and what its check of the flags costs once the engine was asked."""

from __future__ import annotations

import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

from backends.engine import find_engine
from backends.vllm import adapter
from backends.vllm_flags import serve_words
from benchmarks.figures import Figure
from lifecycle.config import ServerConfig, load_config
from lifecycle.host import ASK_TIMEOUT, NOTHING
from lifecycle.journal import Kind, Record
from lifecycle.resources.ask import ask
from lifecycle.server import Server

PYTHON = Path(os.environ.get("STOKER_VLLM_PYTHON") or Path(sys.prefix) / "engines" / "vllm" / "bin" / "python")
MODEL_MAKER = Path(__file__).parent.parent / "tests" / "engines" / "tiny_model.py"
STARTS, CHECKS = 3, 30
POLL = 0.002
"""Seconds between two questions of the observer that sees the engine's first 200 by itself."""
ENV = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
}  # fmt: skip


class Observer(threading.Thread):
    """Asks `/health` all the time, apart from Stoker, until it gets the first 200."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.ready_at = 0.0

    def run(self) -> None:
        """Until the first 200."""
        while not self.ready_at:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            try:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    self.ready_at = time.monotonic()
            except (OSError, http.client.HTTPException):
                time.sleep(POLL)
            finally:
                connection.close()


def measure() -> list[Figure]:
    if not PYTHON.exists():
        raise SystemExit(f"{PYTHON} is missing: `make bench` installs vLLM there, or name one in STOKER_VLLM_PYTHON")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny"
        subprocess.run([PYTHON, MODEL_MAKER, model], check=True, capture_output=True)
        config, _ = load_config(
            "vllm", model=str(model), served_name="tiny", python=str(PYTHON), env=ENV, context_length=256,
            state_dir=f"{folder}/state", cache_dir=f"{folder}/cache",
        )  # fmt: skip
        shares, tokens = anyio.run(_starts, config)
        checks = anyio.run(_checks, config)
    return [
        Figure(f"real vLLM, warm: its first 200 to Healthy, median of {STARTS}", statistics.median(shares), "ms", 100),
        Figure("of that, the one token that vLLM is asked for", statistics.median(tokens), "ms"),
        Figure(f"flags checked, engine asked before, median of {CHECKS}", statistics.median(checks), "ms", 50),
    ]


async def _starts(config: ServerConfig) -> tuple[list[float], list[float]]:
    """Milliseconds from the engine's own readiness to Healthy, of warm starts, and those that one token takes."""
    shares, tokens = [], []
    for number in range(STARTS + 1):  # the first one compiles
        observers: list[Observer] = []
        healthy: list[float] = []

        def listen(record: Record, observers: list[Observer] = observers, healthy: list[float] = healthy) -> None:
            if record.kind is not Kind.TRANSITION:
                return
            if record.event == "Launched" and record.port is not None:
                observers.append(Observer(record.port))
                observers[0].start()
            elif record.event == "BecameReady":
                healthy.append(time.monotonic())

        async with Server(config, listener=listen) as server:
            await server.healthy()
            await anyio.to_thread.run_sync(observers[0].join)
            began = time.monotonic()
            await server.complete({"prompt": "Hello", "max_tokens": 1, "temperature": 0})
            took = time.monotonic() - began
        if number:
            shares.append(1000 * (healthy[0] - observers[0].ready_at))
            tokens.append(1000 * took)
    return shares, tokens


async def _asking(argv: Sequence[str], *, env: Mapping[str, str] = NOTHING, timeout: float = ASK_TIMEOUT) -> str:
    return await ask(argv, env=env, timeout=timeout)


async def _checks(config: ServerConfig) -> list[float]:
    """Milliseconds that it takes to find the engine and have its options check a command line."""
    took = []
    for _ in range(CHECKS + 1):
        began = time.monotonic()
        engine = await find_engine("vllm", config, _asking)
        engine.check(serve_words(config, engine, 8000))
        took.append(1000 * (time.monotonic() - began))
    assert adapter.name == engine.name
    return took[1:]
