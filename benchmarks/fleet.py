"""A fleet's dispatch: eight servers that answer at once beside one of them; eight echo servers, counted and restarted.

`python -m benchmarks.fleet URL ...` is the client of the first part: it prints a JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio

from benchmarks.figures import Figure
from benchmarks.requests import ASKED, IN_FLIGHT, PATH, REQUESTS, nginx, rate, ratio
from lifecycle.config import ServerConfig, load_config
from lifecycle.fleet import Fleet
from lifecycle.resources.collector import spare_collector
from lifecycle.resources.nofile import room_for
from lifecycle.server import Server
from lifecycle.service import Listener, Service

REPLICAS = 8
ROUNDS = 15
LATENCY, ASKERS = 0.1, 32
"""Seconds that an echo server takes, and how many ask at once: 320 requests/s leave two cores time, since replicas that
wait for a core are not equal."""
COUNTED = 4000
"""Requests to the echo servers after which their shares are compared."""
SAID = {key: value for key, value in ASKED.items() if key != "model"}


def measure() -> list[Figure]:
    first, *_, last = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        urls = [stack.enter_context(nginx(core=last)) for _ in range(REPLICAS)]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.fleet", *urls], stdout=subprocess.PIPE, check=True, timeout=300,
            preexec_fn=lambda: os.sched_setaffinity(0, {first}),
        )  # fmt: skip
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    with tempfile.TemporaryDirectory(prefix="stoker-fleet-") as folder:
        echo = anyio.run(_echo, Path(folder))
    what = f"fleet of {REPLICAS} servers that answer at once, requests/s in units of one such server's"
    mean = sum(echo.served) / REPLICAS
    off = max(abs(one - mean) for one in echo.served)
    return [
        Figure(what, ratio(found["fleet"], found["one"]), "", 0.9, at_least=True),
        Figure(f"{REPLICAS} echo replicas, imbalance of completed requests", 100 * off / mean, "%", 5),
        Figure(f"rolling restart of {REPLICAS} under load, failed requests", echo.failed, "", 0),
        Figure("requests sent again by it", echo.retries, ""),
        Figure("requests answered meanwhile", echo.answered, ""),
        Figure("time that it takes", echo.seconds, "s"),
    ]


async def compare(urls: list[str]) -> dict[str, list[float]]:
    """Requests per second through one server, and through a fleet of all, round by round."""
    config, adapter = load_config("endpoint", base_url=urls[0])

    def make(number: int, config: ServerConfig, listener: Listener) -> Server:
        return Server(replace(config, base_url=urls[number]), adapter=adapter, listener=listener)

    found: dict[str, list[float]] = {"one": [], "fleet": []}
    one = Server(config, adapter=adapter)
    fleet = Fleet(config, replicas=len(urls), min_healthy=len(urls), adapter=adapter, make=make)
    async with one, fleet:
        for service in (one, fleet):
            await service.healthy()
        for number in range(ROUNDS + 1):
            for name, service in (("one", one), ("fleet", fleet)):
                value = await rate(_asker(service), REQUESTS, IN_FLIGHT)
                if number:  # the first one warms up
                    found[name].append(value)
    return found


def _asker(service: Service) -> Any:
    async def ask() -> None:
        assert (await service.request(PATH, ASKED))["choices"]

    return ask


@dataclass
class Echo:
    """What came of the echo servers."""

    served: list[int]
    """By each replica, as it counts them itself."""
    failed: int = 0
    answered: int = 0
    retries: int = 0
    seconds: float = 0.0


async def _echo(folder: Path) -> Echo:
    config, adapter = load_config("echo", state_dir=str(folder), latency=LATENCY)
    async with Fleet(config, replicas=REPLICAS, min_healthy=REPLICAS, adapter=adapter) as fleet:
        await fleet.healthy()
        async with anyio.create_task_group() as group:
            for _ in range(ASKERS):
                group.start_soon(_ask_many, fleet, COUNTED // ASKERS)
        found = Echo([await _count(slot.replica) for slot in fleet.slots])
        over = anyio.Event()

        async def ask_until_over() -> None:
            while not over.is_set():
                try:
                    await fleet.request(PATH, SAID)
                    found.answered += 1
                except Exception:
                    found.failed += 1

        async with anyio.create_task_group() as group:
            for _ in range(ASKERS):
                group.start_soon(ask_until_over)
            began = perf_counter()
            await fleet.rolling_restart()
            found.seconds = perf_counter() - began
            over.set()
        found.retries = fleet.client.sent_again
        return found


async def _ask_many(fleet: Fleet, requests: int) -> None:
    for _ in range(requests):
        await fleet.request(PATH, SAID)


async def _count(replica: object) -> int:
    """How many requests an echo server has had: it numbers its answers."""
    assert isinstance(replica, Server)
    answer = await replica.request(PATH, SAID)
    return int(answer["id"].rpartition("-")[2])


if __name__ == "__main__":
    if short := room_for(2 * IN_FLIGHT * REPLICAS):
        raise SystemExit(short)
    spare_collector(IN_FLIGHT)
    print(json.dumps(asyncio.run(compare(sys.argv[1:]))))
