"""The request path beside bare aiohttp and bare httpx: one nginx that answers at once, one client process on one core.

`python -m benchmarks.requests URL` is that client: it prints a JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import httpx

from benchmarks.figures import Figure
from lifecycle.client import Client
from lifecycle.gate import Gate
from lifecycle.resources.collector import spare_collector
from lifecycle.resources.nofile import room_for
from lifecycle.server_facts import Facts

IN_FLIGHT, MANY = 256, 2000
ROUNDS = 15
REQUESTS, FEW = 4000, 512
"""Of one round, half a second; `FEW` is for httpx, two seconds."""
PATH = "/v1/chat/completions"
ANSWER = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "bench",
    "choices": [{
        "index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "All is well. " * 20},
    }],
    "usage": {"prompt_tokens": 40, "completion_tokens": 80, "total_tokens": 120},
}  # fmt: skip
PROMPT = "How is it going? Say it in twenty sentences, each the same. " * 3
ASKED = {
    "model": "bench", "max_tokens": 80,
    "messages": [{"role": "user", "content": PROMPT}],
}  # fmt: skip
CONFIG = """
daemon off;
worker_processes 1;
worker_rlimit_nofile 8192;
pid {folder}/pid;
error_log {folder}/error.log crit;
events {{ worker_connections 8000; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 600;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} backlog=8192;
        location /health {{ default_type application/json; return 200 '{{}}'; }}
        location /v1/models {{ default_type application/json; return 200 '{models}'; }}
        location / {{ default_type application/json; return 200 '{answer}'; }}
    }}
}}
"""

Ask = Callable[[], Awaitable[Any]]


def measure() -> list[Figure]:
    first, *_, last = sorted(os.sched_getaffinity(0))
    with nginx(core=last) as url:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.requests", url], stdout=subprocess.PIPE, check=True, timeout=300,
            preexec_fn=lambda: os.sched_setaffinity(0, {first}),
        )  # fmt: skip
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    few, many = f"requests, {IN_FLIGHT} in flight, in units of", f"requests, {MANY:,} in flight, in units of"
    return [
        Figure(f"{few} bare aiohttp's", ratio(found["ours"], found["aiohttp"]), "", 0.9, at_least=True),
        Figure(f"{few} httpx.AsyncClient's", median(found["ours"]) / median(found["httpx"]), "", 10, at_least=True),
        Figure(f"{many} those at {IN_FLIGHT}", ratio(found["many"], found["ours"]), "", 0.8, at_least=True),
        *(
            Figure(f"requests/s, {what}", median(found[name]), "/s")
            for name, what in (("ours", "Stoker"), ("aiohttp", "bare aiohttp"), ("httpx", "httpx.AsyncClient"))
        ),
    ]


def ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """Of what was measured one after the other: the machine's own speed changes."""
    return median(one / other for one, other in zip(ones, others, strict=True))


@contextmanager
def nginx(*, core: int) -> Iterator[str]:
    """The URL of an nginx of one worker on one core, which answers every completion with `ANSWER`."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        raise SystemExit("nginx is missing: apt-get install nginx-light")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    models = json.dumps({"object": "list", "data": [{"id": "bench", "object": "model"}]})
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        config.write_text(CONFIG.format(folder=folder, port=port, answer=json.dumps(ANSWER), models=models))
        with subprocess.Popen([program, "-p", folder, "-c", str(config)], stderr=subprocess.DEVNULL) as process:
            try:
                os.sched_setaffinity(process.pid, {core})
                _listening(process, port)
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()


def _listening(process: subprocess.Popen[bytes], port: int) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.01)
    raise SystemExit(f"nginx ended with {process.returncode}: does another server use port {port}?")


async def rate(ask: Ask, requests: int, in_flight: int) -> float:
    """Requests per second, so many of them at once, each on a connection that is open already."""
    await asyncio.gather(*(ask() for _ in range(in_flight)))
    left = iter(range(requests))

    async def work() -> None:
        for _ in left:
            await ask()

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return requests / (time.perf_counter() - began)


async def compare(url: str) -> dict[str, list[float]]:
    """Requests per second of each, round by round."""
    gate = Gate("bench")
    gate.follow("Healthy", Facts(model="bench"), url)
    client = Client(gate)

    async def ours() -> None:
        answer = await client.request(PATH, ASKED)
        assert answer["choices"]

    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as bare,
        httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=None, trust_env=False) as slow,
    ):

        async def with_aiohttp() -> None:
            async with bare.post(url + PATH, json=ASKED) as response:
                assert (await response.json())["choices"]

        async def with_httpx() -> None:
            assert (await slow.post(url + PATH, json=ASKED)).json()["choices"]

        found: dict[str, list[float]] = {"ours": [], "aiohttp": [], "many": [], "httpx": []}
        for number in range(ROUNDS + 1):
            rates = {
                "aiohttp": await rate(with_aiohttp, REQUESTS, IN_FLIGHT),
                "ours": await rate(ours, REQUESTS, IN_FLIGHT),
                "many": await rate(ours, REQUESTS, MANY),
            }
            for name, value in rates.items():
                if number:  # the first one warms up
                    found[name].append(value)
        found["httpx"] = [await rate(with_httpx, FEW, IN_FLIGHT) for _ in range(3)]
    await client.aclose()
    return found


if __name__ == "__main__":
    if short := room_for(2 * MANY):
        raise SystemExit(short)
    spare_collector(MANY)
    print(json.dumps(asyncio.run(compare(sys.argv[1]))))
