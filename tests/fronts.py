"""Fleets behind a router for tests, and outsiders who send requests to their URL; the router is the fake one, or the
real one where there is a venv with it."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx

from lifecycle.config import load_config
from lifecycle.fleet.front import Front
from lifecycle.fleet.settings import FleetConfig
from lifecycle.host import Answer
from lifecycle.resources.probes import HttpProber
from tests.served import GUARD, QUICK

FAKE = str(Path(__file__).parent / "fake_router")
KEY = "outsiders-key-0123456789"
KEYED = {"authorization": f"Bearer {KEY}"}
Setup = Mapping[str, Any]
"""Settings of the router: which one it is."""


def fake_router(**faults: float) -> Setup:
    """The fake; see `tests/fake_router` for its faults."""
    return {"python": sys.executable, "env": {"PYTHONPATH": FAKE, "FAKE_ROUTER": json.dumps(faults)}}


def make_front(
    folder: Path, setup: Setup, *, replicas: int = 3, min_healthy: int = 1, router: Setup | None = None, **settings: Any
) -> Front:
    """Echo servers behind a router, with short times and a key.

    Args:
        router: further settings of the router.
        settings: of the replicas.
    """
    (folder / "key").write_text(KEY)
    common = {"state_dir": str(folder / "state"), "api_key_file": str(folder / "key"), **QUICK}
    config, adapter = load_config("echo", **{**common, **settings})
    given, _ = load_config("router", **{"name": "router", **common, **setup, **(router or {})})
    return Front(config, given, FleetConfig(replicas, min_healthy), adapter=adapter)


async def served(front: Front) -> str:
    with anyio.fail_after(GUARD):
        return await front.healthy()


async def known(front: Front, number: int) -> None:
    """Wait until the router sends requests to so many replicas."""
    with anyio.fail_after(GUARD):
        await front.registrar.until(lambda: front.registrar.have == number)


def pids(front: Front) -> list[int]:
    found = [slot.replica.driver.facts.pid for slot in front.fleet.slots]  # type: ignore[attr-defined]
    return [pid for pid in found if pid is not None]


def pid_of_router(front: Front) -> int:
    pid = front.router.driver.facts.pid
    assert pid is not None
    return pid


def client(**options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, timeout=GUARD, headers=KEYED, **options)


async def complete(http: httpx.AsyncClient, url: str, **payload: Any) -> httpx.Response:
    body = {"model": "echo", "prompt": "hello", "max_tokens": 4, **payload}
    return await http.post(f"{url}/v1/completions", json=body)


async def control(front: Front, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
    """A call to the router with the key that only Stoker has."""
    prober = HttpProber(front.url, front._routing.control_key)
    try:
        return await prober.ask(method, path, body, GUARD)
    finally:
        await prober.aclose()


async def listed(front: Front) -> list[str]:
    """The URLs that the router has."""
    answer = await control(front, "GET", "/workers")
    return sorted(each["url"] for each in answer.body["workers"])


class Outsiders:
    """Requests to a URL, from many connections at once, until it is enough."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: Counter[str] = Counter()
        self.bad: list[str] = []
        self._enough = False
        self._turn = anyio.Event()

    async def more(self, number: int) -> None:
        """Wait until so many more have been answered well."""
        wanted = self.answers["200"] + number
        with anyio.fail_after(GUARD):
            while self.answers["200"] < wanted:
                await self._turn.wait()

    async def one(self, name: int) -> None:
        async with client() as http:
            number = 0
            while not self._enough:
                number += 1
                try:
                    answer = await complete(http, self.url, prompt=f"question {name} {number}")
                    self._count(str(answer.status_code), answer.text)
                except httpx.HTTPError as error:
                    self._count(type(error).__name__, str(error))
                    await anyio.sleep(0.01)

    def _count(self, kind: str, said: str) -> None:
        self.answers[kind] += 1
        if kind != "200":
            self.bad.append(f"{kind}: {said[:200]}")
        self._turn.set()
        self._turn = anyio.Event()


@asynccontextmanager
async def load(url: str, connections: int = 8) -> AsyncIterator[Outsiders]:
    outsiders = Outsiders(url)
    async with anyio.create_task_group() as group:
        for name in range(connections):
            group.start_soon(outsiders.one, name)
        try:
            yield outsiders
        finally:
            outsiders._enough = True


def kill(pid: int) -> None:
    os.kill(pid, 9)
