"""How much servers have to do and how fast they do it: samples of what engines say of themselves, and of the requests
that this program itself sends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

import anyio

from lifecycle.adapter import EngineLoad
from lifecycle.observing import Request

INTERVAL = 2.0
"""Seconds between two samples."""
SAMPLES = 300
"""Samples kept: ten minutes."""
PATIENCE = 5.0
"""Seconds that an engine has to say what it works on; one that computes may take longer, and is left out then."""


class Part(Protocol):
    """What can be asked for its work: a server, a replica."""

    async def load(self) -> EngineLoad | None: ...


@dataclass(frozen=True)
class Sample:
    """What one server did since the last sample. None: nobody can tell."""

    running: int | None = None
    waiting: int | None = None
    answered: float | None = None
    """Requests per second."""
    tokens: float | None = None
    """Generated tokens per second."""
    mean: float | None = None
    """Seconds that a request took."""
    worst: float | None = None
    """Seconds that 95 of 100 requests did not exceed."""


def between(before: EngineLoad | None, now: EngineLoad | None, seconds: float) -> Sample:
    """What an engine did between two looks at it. A counter that has gone back is that of another process.

    >>> between(EngineLoad(1, 0, (), 10, 100, 5.0), EngineLoad(2, 3, (), 20, 300, 9.0), 2.0)
    Sample(running=2, waiting=3, answered=5.0, tokens=100.0, mean=0.4, worst=None)
    """
    if now is None:
        return Sample()
    answered, tokens = _more(before, now, "answered"), _more(before, now, "tokens")
    took = _more(before, now, "seconds")
    return Sample(
        now.running, now.waiting,
        None if answered is None else answered / seconds,
        None if tokens is None else tokens / seconds,
        took / answered if took is not None and answered else None,
    )  # fmt: skip


def _more(before: EngineLoad | None, now: EngineLoad, name: str) -> float | None:
    earlier, later = getattr(before, name, None), getattr(now, name)
    return None if earlier is None or later is None or later < earlier else later - earlier


def together(samples: list[Sample]) -> Sample:
    """Several servers as one."""
    def total(name: str) -> Any:
        known = [value for sample in samples if (value := getattr(sample, name)) is not None]
        return sum(known) if known else None

    weighed = [(one.answered, one.mean) for one in samples if one.answered and one.mean is not None]
    many = sum(answered for answered, _ in weighed)
    mean = sum(answered * mean for answered, mean in weighed) / many if many else None
    worst = max((one.worst for one in samples if one.worst is not None), default=None)
    return Sample(total("running"), total("waiting"), total("answered"), total("tokens"), mean, worst)


class Own:
    """An observer of the requests of this program: how many were answered since the last look, and how fast."""

    def __init__(self) -> None:
        self.open = 0
        self.any = False
        """Whether there ever was one: of others this program knows nothing."""
        self._took: list[float] = []

    def __call__(self, request: Request) -> Callable[[], None]:
        """A request begins; what it returns is called at its end."""
        self.open += 1
        self.any = True

        def over() -> None:
            self.open -= 1
            if request.outcome == "answered":
                self._took.append(request.seconds)

        return over

    def look(self, seconds: float) -> Sample:
        """What was done since the last look."""
        took, self._took = sorted(self._took), []
        if not took:
            return Sample(answered=0.0)
        return Sample(
            answered=len(took) / seconds, mean=sum(took) / len(took), worst=took[ceil(0.95 * len(took)) - 1]
        )


class Meters:
    """Samples of servers, taken all the time, so that whoever opens the page sees what was before.

    Args:
        label: name of the whole.
        parts: the servers by name, as they are now.
        own: of the requests that this program sends; None: it sends none.
    """

    def __init__(self, label: str, parts: Callable[[], Mapping[str, Part]], own: Own | None = None) -> None:
        self.label = label
        self.samples: deque[dict[str, Any]] = deque(maxlen=SAMPLES)
        self._parts = parts
        self._own = own
        self._loads: dict[str, EngineLoad | None] = {}

    async def run(self, now: Callable[[], float], told: Callable[[], None]) -> None:
        """Take samples, for ever. `now` gives Unix seconds; `told` is called after each."""
        while True:
            await anyio.sleep(INTERVAL)
            self.samples.append({"at": now(), "servers": await self.look(INTERVAL)})
            told()

    async def look(self, seconds: float, patience: float = PATIENCE) -> dict[str, dict[str, Any]]:
        """One sample of each server that tells something, and of all together; `seconds` since the last one."""
        loads: dict[str, EngineLoad | None] = {}

        async def ask(name: str, part: Part) -> None:
            with anyio.move_on_after(patience):
                loads[name] = await part.load()

        async with anyio.create_task_group() as group:
            for name, part in self._parts().items():
                group.start_soon(ask, name, part)
        each = {name: between(self._loads.get(name), load, seconds) for name, load in sorted(loads.items())}
        self._loads = loads
        whole = together([sample for name, sample in each.items() if name != self.label])
        if self.label in each:
            whole = each[self.label]
        if self._own is not None and self._own.any:
            mine = self._own.look(seconds)
            known = whole.answered is not None
            whole = Sample(
                self._own.open if whole.running is None else whole.running, whole.waiting,
                whole.answered if known else mine.answered, whole.tokens,
                mine.mean if mine.mean is not None else whole.mean, mine.worst,
            )  # fmt: skip
        return {name: _plain(sample) for name, sample in {**each, self.label: whole}.items() if sample != Sample()}


def _plain(sample: Sample) -> dict[str, Any]:
    return {name: round(value, 4) for name, value in vars(sample).items() if value is not None}
