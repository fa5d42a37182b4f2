"""`stoker generate` from a file to a file, beside datatrove's runner and the bare request path: one nginx that answers
at once, one client process on one core. And what a million prompts cost: memory, CPU, the time to see that all is done.

`python -m benchmarks.generate requests|job ...` are such clients: each prints JSON.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from benchmarks.figures import Figure, spread
from benchmarks.life import PEER
from benchmarks.requests import ANSWER, ASKED, PATH, PROMPT, nginx, rate
from lifecycle.batch.config import JobConfig
from lifecycle.batch.job import run_job
from lifecycle.batch.plan import prepare
from lifecycle.batch.progress import PlainProgress
from lifecycle.batch.summary import Summary
from lifecycle.client import Client
from lifecycle.gate import Gate
from lifecycle.resources.collector import spare_collector
from lifecycle.server_facts import Facts

IN_FLIGHT = 256
ROUNDS = 5
PROMPTS, REQUESTS, FEW = 20_000, 12_000, 2_000
"""Of one round, some three seconds each; `FEW` is for datatrove."""
SMALL, LARGE = 100_000, 1_000_000
"""Prompts of the two jobs whose memory and CPU are compared."""


def measure() -> list[Figure]:
    if not PEER.exists():
        raise SystemExit(f"{PEER} is missing: `make bench` installs datatrove there")
    first, *_, last = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as name, nginx(core=last) as url:
        rounds = [_round(url, Path(name) / str(number), first) for number in range(ROUNDS)]
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as name:
        folder = Path(name)
        small, large = (_client(first, "job", str(many), str(folder / str(many))) for many in (SMALL, LARGE))
        resumed = _resumed(folder / str(LARGE), first)
    ours, bare, peer = ([each[number] for each in rounds] for number in range(3))
    slow, path = median(ours) / median(peer), median(one / other for one, other in zip(ours, bare, strict=True))
    many, inside = f"{LARGE:,} prompts answered inside the process", "in units of the same at"
    return [
        Figure("generate, prompts/s in units of datatrove's with checkpoints", slow, "", 5, at_least=True),
        Figure(f"generate, prompts/s in units of bare requests, {IN_FLIGHT} in flight", path, "", 0.6, at_least=True),
        Figure("generate, prompts/s", median(ours), "/s", peer=f"{median(peer):.0f}/s"),
        Figure(f"{many}, peak memory", large["peak"] / 2**20, "MiB", 300),
        Figure(f"{many}, peak memory {inside} {SMALL:,}", large["peak"] / small["peak"], "", 1.1),
        Figure(f"{many}, CPU of each {inside} {SMALL:,}", large["cpu"] / small["cpu"], "", 1.1),
        Figure(f"{many}, CPU of each", 1e6 * large["cpu"], "µs"),
        Figure(f"{LARGE:,} records finished, none left: the whole command, median of {len(resumed)}, "
               f"{spread(resumed)}", median(resumed), "s", 2),
    ]  # fmt: skip


def _round(url: str, folder: Path, core: int) -> tuple[float, float, float]:
    """Prompts a second of `stoker generate`, requests a second without it, documents a second of datatrove: one after
    the other, because the machine's own speed changes."""
    folder.mkdir()
    source = _write(folder / "in.jsonl", PROMPTS)
    summary = folder / "summary.json"
    _run(core, *_generate(source, folder / "out.jsonl", folder), "--base-url", url, "--summary", str(summary))
    found = json.loads(summary.read_bytes())
    assert found["records"]["answered"] == PROMPTS, found
    bare = _client(core, "requests", url)["rate"]
    script = str(Path(__file__).with_name("peer_generate.py"))
    peer = _run(core, str(PEER), script, url, str(FEW), str(IN_FLIGHT), str(folder / "peer"))
    return found["per_second"]["prompts"], bare, float(peer.split()[-1])


def _generate(source: Path, output: Path, folder: Path) -> Sequence[str]:
    return (
        sys.executable, "-m", "lifecycle.cli", "generate", str(source), "--output", str(output),
        "--backend", "endpoint", "--concurrency", str(IN_FLIGHT), "--max-tokens", "80",
        "--set", f"state_dir={folder / 'state'}",
    )  # fmt: skip


def _write(path: Path, prompts: int) -> Path:
    line = json.dumps({"messages": ASKED["messages"]}).encode() + b"\n"
    with path.open("wb") as file:
        for _ in range(prompts // 1000):
            file.write(1000 * line)
    return path


def _client(core: int, *args: str) -> dict[str, float]:
    printed = _run(core, sys.executable, "-m", "benchmarks.generate", *args)
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def _run(core: int, *argv: str) -> str:
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=600, env={**os.environ, "PROMPT": PROMPT},
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return str(done.stdout)


def _resumed(folder: Path, core: int) -> list[float]:
    """Seconds of the whole command, the interpreter's start included, on a job that has nothing left."""
    took = []
    for _ in range(3):
        began = time.perf_counter()
        _run(core, *_generate(folder / "in.jsonl", folder / "out.jsonl", folder), "--base-url", "http://127.0.0.1:9")
        took.append(time.perf_counter() - began)
    return took


async def requests(url: str) -> dict[str, float]:
    """Requests per second of the client alone."""
    gate = Gate("bench")
    gate.follow("Healthy", Facts(model="bench"), url)
    client = Client(gate)

    async def ask() -> None:
        assert (await client.request(PATH, ASKED))["choices"]

    found = await rate(ask, REQUESTS, IN_FLIGHT)
    await client.aclose()
    return {"rate": found}


def job(prompts: int, folder: Path) -> dict[str, float]:
    """Seconds of CPU for each prompt, and bytes at the peak, of a job whose requests are answered in this process."""
    folder.mkdir()
    source = _write(folder / "in.jsonl", prompts)
    answer = json.dumps(ANSWER).encode()

    async def send(path: str, payload: Mapping[str, Any]) -> Any:
        await anyio.lowlevel.checkpoint()
        return msgspec.json.decode(answer)

    async def run() -> Summary:
        with prepare(JobConfig(str(source), str(folder / "out.jsonl"), concurrency=IN_FLIGHT, max_tokens=80)) as plan:
            return await run_job(plan, send, progress=PlainProgress(io.StringIO()))

    began = time.process_time()
    summary = asyncio.run(run())
    assert summary.answered == prompts
    return {"cpu": (time.process_time() - began) / prompts, "peak": peak()}


def peak() -> int:
    """Bytes of memory that this process has held at most: unlike `ru_maxrss`, without those of the one that it was
    forked from (proc(5))."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    what, *args = sys.argv[1:]
    spare_collector(IN_FLIGHT)
    found = asyncio.run(requests(args[0])) if what == "requests" else job(int(args[0]), Path(args[1]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
