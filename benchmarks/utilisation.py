"""How much of an engine `stoker generate` uses, beside the engine's own bench client (`vllm bench serve`), at the same
concurrency: a real vLLM with a tiny model, and a real llama.cpp with a real one.

Both clients get the same prompts and ask for the same number of tokens whatever the model says, one after the other,
several times.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from benchmarks.engine import ENV, MODEL_MAKER, PYTHON
from benchmarks.figures import Figure
from lifecycle.config import ServerConfig, load_config
from lifecycle.server import Server

ROUNDS = 5
LIMIT = 600
"""Seconds for one client."""


def measure() -> list[Figure]:
    if not PYTHON.exists():
        raise SystemExit(f"{PYTHON} is missing: `make bench` installs vLLM there, or name one in STOKER_VLLM_PYTHON")
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as name:
        folder = Path(name)
        model = folder / "tiny"
        subprocess.run([PYTHON, MODEL_MAKER, model], check=True, capture_output=True)
        folders: dict[str, Any] = {"state_dir": f"{folder}/state", "cache_dir": f"{folder}/cache"}
        vllm, _ = load_config(
            "vllm", model=str(model), python=str(PYTHON), env=ENV, context_length=512, **folders
        )  # fmt: skip
        llamacpp, _ = load_config("llamacpp", model="gemma3-270m", ctx_size=4096, parallel=4, threads=1, **folders)
        return [
            *_figures("vLLM, tiny model", vllm, folder / "one", model, prompts=600, tokens=128, in_flight=32),
            *_figures("llama.cpp, Gemma 3 270M", llamacpp, folder / "two", model, prompts=16, tokens=96, in_flight=4),
        ]


def _figures(
    what: str, config: ServerConfig, folder: Path, tokenizer: Path, *, prompts: int, tokens: int, in_flight: int
) -> list[Figure]:
    folder.mkdir()
    source = _write(folder / "in.jsonl", prompts)
    rounds = anyio.run(_rounds, config, source, tokenizer, tokens, in_flight)
    ratios = [ours / theirs for ours, theirs in rounds]
    ours, theirs = (median(each[number] for each in rounds) for number in range(2))
    return [
        Figure(
            f"{what}, {in_flight} in flight: requests/s of `stoker generate` in units of those of `vllm bench serve`, "
            f"median of {len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f}", median(ratios), "", 0.98, at_least=True,
        ),
        Figure(f"{what}: requests/s", ours, "/s", peer=f"{theirs:.3g}/s (`vllm bench serve`)"),
    ]  # fmt: skip


def _write(path: Path, prompts: int) -> Path:
    """Prompts that share no beginning, so that no cache of prefixes makes the second client's work less."""
    words = ["stone", "river", "lamp", "house", "green", "slow", "paper", "night", "bird", "glass", "winter", "road"]
    draw = random.Random(1)
    lines = (json.dumps({"prompt": " ".join(draw.choices(words, k=20))}) for _ in range(prompts))
    path.write_text("".join(line + "\n" for line in lines))
    return path


async def _rounds(
    config: ServerConfig, source: Path, tokenizer: Path, tokens: int, in_flight: int
) -> list[tuple[float, float]]:
    """Requests a second of both clients. The first round warms the engine up and is not counted."""
    async with Server(config) as server:
        await server.healthy()
        url, model = server.url, server.driver.facts.model
        found = []
        for number in range(ROUNDS + 1):
            folder = source.parent / str(number)
            folder.mkdir()
            shared = (url, model, source, folder, tokens, in_flight)
            pair = [await anyio.to_thread.run_sync(_ours, *shared), 0.0]
            pair[1] = await anyio.to_thread.run_sync(_theirs, *shared, tokenizer)
            found.append((pair[0], pair[1]))
    return found[1:]


def _ours(url: str, model: str, source: Path, folder: Path, tokens: int, in_flight: int) -> float:
    summary = folder / "ours.json"
    _run(
        sys.executable, "-m", "lifecycle.cli", "generate", str(source), "--output", f"{folder}/out.jsonl",
        "--base-url", url, "--concurrency", str(in_flight), "--max-tokens", str(tokens), "--param", "ignore_eos=true",
        "--summary", str(summary), "--set", f"state_dir={folder}/state",
    )  # fmt: skip
    found: dict[str, Any] = json.loads(summary.read_bytes())
    prompts = len(source.read_text().splitlines())
    assert found["records"]["answered"] == prompts, found
    assert found["tokens"]["completion"] == prompts * tokens, found
    return float(found["per_second"]["prompts"])


def _theirs(url: str, model: str, source: Path, folder: Path, tokens: int, in_flight: int, tokenizer: Path) -> float:
    prompts = len(source.read_text().splitlines())
    _run(
        str(PYTHON), "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai", "--base-url", url,
        "--model", model, "--tokenizer", str(tokenizer), "--dataset-name", "custom", "--dataset-path", str(source),
        "--custom-output-len", str(tokens), "--skip-chat-template", "--disable-shuffle", "--ignore-eos",
        "--num-prompts", str(prompts), "--max-concurrency", str(in_flight), "--save-result",
        "--result-dir", str(folder), "--result-filename", "theirs.json", "--disable-tqdm",
    )  # fmt: skip
    found: dict[str, Any] = json.loads((folder / "theirs.json").read_bytes())
    assert found["completed"] == prompts, found
    return float(found["request_throughput"])


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, env={**os.environ, **ENV})
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout[-500:]}\n{done.stderr[-2000:]}")
