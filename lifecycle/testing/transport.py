"""Requests to simulated servers, through the real client."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import anyio
import httpx

from lifecycle.testing.process import SimulatedProcess

if TYPE_CHECKING:
    from lifecycle.testing.host import SimulatedHost


class SimulatedTransport(httpx.AsyncBaseTransport):
    """Answers each request after its server's `Life.reply` seconds, unless the server goes first."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = self._host
        there = host.at(request.url.port)
        if there is None or not there.listening:
            raise httpx.ConnectError(f"nobody listens on port {request.url.port}")
        host.reached.append(there)
        host.on_request(there)
        if not there.ready:
            host.ledger.violations.append(f"a request reached process {there.pid}, which is not ready")
        if there.asleep:
            host.ledger.violations.append(f"a request reached process {there.pid}, which sleeps")
        await _replied(there)
        body = {"choices": [{"text": f"from {there.pid}", "index": 0, "finish_reason": "length"}]}
        return httpx.Response(there.life.status, json=body, request=request)


async def _replied(there: SimulatedProcess) -> None:
    due = anyio.current_time() + there.life.reply
    while there.running:
        if not there.wedged and anyio.current_time() >= due:
            return
        await there.change(inf if there.wedged else min(due, there.next_time()))
    raise httpx.ReadError(f"process {there.pid} has gone")
