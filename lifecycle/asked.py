"""A server that does not speak HTTP, and whose adapter knows how to ask it whether it is ready (`Adapter.ready`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio

from lifecycle.adapter import Adapter, Launch, ready_of
from lifecycle.errors import LaunchError
from lifecycle.host import Answer, Host, NoAnswer, Prober

PAUSE = 1.0
"""Seconds from the end of one question to the beginning of the next, at least: each may be a process of its own."""
YES, NO = 200, 503


class Asked:
    """Implements `lifecycle.host.Prober`: a GET of any path is the adapter's own question. Yes is 200; No is 503, with
    what is missing as its body; a question that cannot be asked is no answer."""

    def __init__(self, adapter: Adapter, launch: Launch, host: Host, port: Prober) -> None:
        self._adapter = adapter
        self._launch = launch
        self._host = host
        self._port = port
        self._not_before = anyio.current_time()

    async def get(self, path: str, timeout: float) -> Answer:
        """See `lifecycle.host.Prober`. `timeout` is the question's own business."""
        await anyio.sleep_until(self._not_before)
        try:
            missing = await ready_of(self._adapter, self._launch, self._host.ask)
        except LaunchError as error:
            raise NoAnswer(str(error)) from None
        finally:
            self._not_before = anyio.current_time() + PAUSE
        return Answer(NO if missing else YES, missing)

    async def post(self, path: str, payload: Mapping[str, Any], timeout: float) -> Answer:
        """See `lifecycle.host.Prober`. There is nobody to POST to."""
        raise NoAnswer("it does not speak HTTP")

    async def listening(self) -> bool:
        """See `lifecycle.host.Prober`."""
        return await self._port.listening()

    async def aclose(self) -> None:
        """See `lifecycle.host.Prober`."""
        await self._port.aclose()
