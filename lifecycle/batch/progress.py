"""What a person sees while a job runs: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol, TextIO

from lifecycle.batch.summary import usage_of

PLAIN_INTERVAL = 10.0
"""Seconds between two plain lines."""
REDRAWS = 5
"""A second, of the bar."""
RATE_WINDOW = 10.0
"""Seconds over which tokens/s and prompts/s are taken."""


class Progress(Protocol):
    """Told what happens to a job."""

    def begin(self, total: int, done: int) -> None: ...

    def started(self) -> None: ...

    def finished(self, line: Mapping[str, Any] | None, seconds: float) -> None:
        """A line of output has been written; None for one that was never sent."""
        ...

    def gave_up(self) -> None:
        """A request that had started will get no line in this run."""
        ...

    def say(self, text: str) -> None:
        """A message about the server, above the bar."""
        ...

    def phase(self, text: str) -> None:
        """What the server is doing in its present state."""
        ...

    def status(self, state: str) -> None:
        """The state that the server is in now."""
        ...

    def end(self) -> None: ...


class Counts:
    """The numbers behind a display."""

    def __init__(self) -> None:
        self.total = self.done = self.in_flight = 0
        self._recent: list[tuple[float, int, int]] = []

    def finish(self, line: Mapping[str, Any] | None) -> None:
        self.done += 1
        if line is not None:
            self.in_flight -= 1
            tokens = 0 if line.get("error") else usage_of(line)[1]
            self._recent.append((time.monotonic(), 1, tokens))

    def rates(self) -> tuple[float, float]:
        """(prompts/s, tokens/s) of late."""
        now = time.monotonic()
        self._recent = [each for each in self._recent if each[0] >= now - RATE_WINDOW]
        if not self._recent:
            return 0.0, 0.0
        span = max(1.0, now - self._recent[0][0])
        return len(self._recent) / span, sum(tokens for _, _, tokens in self._recent) / span

    def text(self) -> str:
        prompts, tokens = self.rates()
        left = f"{clock((self.total - self.done) / prompts)} left" if prompts else "time left unknown"
        return f"{self.done}/{self.total} prompts, {tokens:.0f} tokens/s, {self.in_flight} in flight, {left}"


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class PlainProgress:
    """A line every few seconds, for logs and pipes."""

    def __init__(self, out: TextIO | None = None, interval: float = PLAIN_INTERVAL) -> None:
        self._out = out or sys.stderr
        self._interval = interval
        self._counts = Counts()
        self._next = 0.0

    def begin(self, total: int, done: int) -> None:
        self._counts.total, self._counts.done = total, done
        self._next = time.monotonic() + self._interval

    def started(self) -> None:
        self._counts.in_flight += 1

    def finished(self, line: Mapping[str, Any] | None, seconds: float) -> None:
        self._counts.finish(line)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._interval
            self.say(self._counts.text())

    def gave_up(self) -> None:
        self._counts.in_flight -= 1

    def say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads it any more: that is no reason to stop
            print(text, file=self._out, flush=True)

    def phase(self, text: str) -> None:
        self.say(text)

    def status(self, state: str) -> None:
        return

    def end(self) -> None:
        return


class RichProgress:
    """A bar at the bottom of a terminal; messages scroll above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._counts = Counts()
        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[phase]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[numbers]}"),
            console=self._console,
            refresh_per_second=REDRAWS,  # also while nothing happens: a start may take many minutes
            expand=True,
        )
        self._task = self._bar.add_task("", total=None, phase="", numbers="")
        self._drawn_at = 0.0
        self._bar.start()

    def begin(self, total: int, done: int) -> None:
        self._counts.total, self._counts.done = total, done
        self._draw(now=True)

    def started(self) -> None:
        self._counts.in_flight += 1
        self._draw()

    def finished(self, line: Mapping[str, Any] | None, seconds: float) -> None:
        self._counts.finish(line)
        self._draw()

    def gave_up(self) -> None:
        self._counts.in_flight -= 1
        self._draw()

    def say(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._console.print(text, markup=False)
        self._draw(now=True)

    def phase(self, text: str) -> None:
        self.say(text)

    def status(self, state: str) -> None:
        self._bar.update(self._task, phase=state)
        self._draw(now=True)

    def end(self) -> None:
        self._draw(now=True)
        with suppress(OSError, ValueError):
            self._bar.stop()

    def _draw(self, now: bool = False) -> None:
        moment = time.monotonic()
        if not now and moment - self._drawn_at < 1 / REDRAWS:
            return
        self._drawn_at = moment
        counts = self._counts
        self._bar.update(self._task, total=counts.total or None, completed=counts.done, numbers=counts.text())


def display() -> Progress:
    """The display that fits standard error."""
    return RichProgress() if sys.stderr.isatty() else PlainProgress()
