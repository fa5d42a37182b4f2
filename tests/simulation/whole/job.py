"""What a job of the simulation works on: its input, its disk, its display, and the way of its requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from lifecycle.batch.sources import Row
from lifecycle.batch.summary import Tally
from tests.batch.simulated_disk import Crash, SimulatedDisk
from tests.simulation.whole.machine import Wire


class Disk(SimulatedDisk):
    """Tells of the death of its process at once."""

    def __init__(self) -> None:
        super().__init__()
        self.on_crash: Callable[[], None] = lambda: None

    def begin(self, what: str) -> None:
        try:
            super().begin(what)
        except Crash:
            self.on_crash()
            raise


class Quiet:
    """A display that nobody sees. Keeps the counts."""

    def __init__(self) -> None:
        self.tally: Tally | None = None

    def begin(self, tally: Tally) -> None:
        self.tally = tally

    def say(self, text: str) -> None: ...
    def phase(self, text: str) -> None: ...
    def status(self, state: str) -> None: ...
    def end(self) -> None: ...


@dataclass
class Prompts:
    """An input: so many prompts."""

    count: int
    name: str = "prompts"
    paths: tuple[Path, ...] = ()

    def total(self) -> int | None:
        return self.count

    def rows(self) -> Iterator[Row]:
        for number in range(self.count):
            yield Row(number, msgspec.json.encode({"prompt": f"p{number}"}), "line", number + 1)

    def close(self) -> None: ...


class Echo(Wire):
    """Answers with the prompt."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if response.status_code != 200:
            return response
        prompt = msgspec.json.decode(await request.aread())["prompt"]
        choice = {"text": prompt, "index": 0, "finish_reason": "length"}
        return httpx.Response(200, json={"choices": [choice]}, request=request)
