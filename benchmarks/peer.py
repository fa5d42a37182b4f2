"""datatrove's `CustomServer` on the same script. Run with datatrove's own interpreter; prints one JSON object.

    peer.py SCRIPT "[0.5, 1.2]"     seconds that each server is not ready for after it has begun to listen
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from datatrove.pipeline.inference.run_inference import InferenceConfig
from datatrove.pipeline.inference.servers.custom_server import CustomServer

AT_ONCE = 2


def server(script: str, wait: float, child: bool) -> CustomServer:
    rule = [{"until": wait, "status": 503}]
    flags = {"routes": json.dumps({"/health": rule, "/v1/models": rule})}
    if child:
        flags["child"] = "session"
    return CustomServer(InferenceConfig("custom", "fake", model_kwargs={"server_script": script, **flags}), 0)


def stats(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/_stats", timeout=10) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def one(script: str, wait: float, kill: bool, found: dict[str, list[float]]) -> None:
    tended = server(script, wait, child=not kill)  # with a child it never notices the exit
    async with tended:
        while not tended._server_ready.done():  # noqa: ASYNC110 - the future is replaced now and then
            await asyncio.sleep(0.005)
        noticed = time.monotonic()
        counted = await asyncio.to_thread(stats, tended.get_base_url())
        found["ready"].append(noticed - counted["bound_at"] - wait)
        if kill:
            killed_at = time.monotonic()
            os.kill(counted["pid"], signal.SIGKILL)
            while tended._server_ready.done() and tended._server_ready.exception() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            found["exit"].append(time.monotonic() - killed_at)
        began = time.monotonic()
    if not kill:
        found["teardown"].append(time.monotonic() - began)
    left = [pid for pid in (counted["pid"], *counted["children"]) if alive(pid)]
    if not kill:
        found["left"].append(len(left))
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def main() -> None:
    script, waits = sys.argv[1], json.loads(sys.argv[2])
    found: dict[str, list[float]] = {"ready": [], "exit": [], "teardown": [], "left": []}
    places = asyncio.Semaphore(AT_ONCE)

    async def placed(number: int, wait: float) -> None:
        async with places:
            await asyncio.wait_for(one(script, wait, number % 2 == 1, found), 60)

    await asyncio.gather(*(placed(number, wait) for number, wait in enumerate(waits)))
    print(json.dumps({**found, "left": sum(found["left"]) / len(found["left"])}), flush=True)
    os._exit(0)  # its transports cannot be closed any more


asyncio.run(main())
