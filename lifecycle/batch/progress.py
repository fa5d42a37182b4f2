"""What a person sees while a job runs: a bar on a terminal, a plain line now and then elsewhere.

The job only counts, in its `Tally`; a display looks at the counts when it draws, so that a finished record costs no
drawing, and a display moves also while nothing finishes.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

from lifecycle.batch.summary import Tally, by_kind

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_INTERVAL = 10.0
"""Seconds between two plain lines."""
SHORTEST_INTERVAL = 0.1
"""Seconds. A plain line is written no more often, whatever is asked for."""
REDRAWS = 4
"""A second, of the bar: one costs 0.3 to 0.6 ms of a core."""
RATE_WINDOW = 60.0
"""Seconds over which the rates are taken: a request may take half of that."""
MARKS = 30
"""Readings kept in the window."""


class Progress(Protocol):
    """Shows how a job gets on."""

    def begin(self, tally: Tally) -> None:
        """The job begins, and counts here what happens."""
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

    def end(self) -> None:
        """Nothing is shown after this. Idempotent."""
        ...


@dataclass(frozen=True)
class Reading:
    """What a tally had counted at a time."""

    at: float
    prompts: int
    prompt_tokens: int
    completion_tokens: int

    @classmethod
    def of(cls, tally: Tally) -> Reading:
        return cls(tally.now(), tally.finished, tally.prompt_tokens, tally.completion_tokens)


@dataclass(frozen=True)
class Rates:
    """Per second."""

    prompts: float
    prompt_tokens: float
    completion_tokens: float


class Meter:
    """The rates of a tally over the last minute."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._marks = deque([Reading(tally.began, 0, 0, 0)])

    def rates(self) -> Rates:
        now = Reading.of(self.tally)
        marks = self._marks
        while len(marks) > 1 and marks[1].at <= now.at - RATE_WINDOW:
            marks.popleft()
        since = marks[0]
        if now.at - marks[-1].at >= RATE_WINDOW / MARKS:
            marks.append(now)
        span = max(1.0, now.at - since.at)
        return Rates(
            (now.prompts - since.prompts) / span,
            (now.prompt_tokens - since.prompt_tokens) / span,
            (now.completion_tokens - since.completion_tokens) / span,
        )

    def seconds_left(self, rates: Rates) -> float | None:
        """At the present rate, or while nothing finishes at that of the whole run; None if there is no telling."""
        tally = self.tally
        if tally.total is None or (tally.at_server is not None and not tally.at_server()):
            return None  # while the server is away, there is no telling
        rate = rates.prompts or tally.finished / max(1.0, tally.now() - tally.began)
        return (tally.total - tally.earlier - tally.finished) / rate if rate else None

    def text(self) -> str:
        """All the numbers in a line."""
        tally, rates = self.tally, self.rates()
        done = tally.earlier + tally.finished
        parts = [
            f"{done} prompts" if tally.total is None else f"{done}/{tally.total} prompts",
            f"{rates.prompts:.1f} prompts/s",
            f"{rates.prompt_tokens:.0f} prompt and {rates.completion_tokens:.0f} completion tokens/s",
            in_flight(tally),
        ]
        if tally.retries:
            parts.append(f"{tally.retries} retries")
        if errors := dict(tally.errors):
            parts.append(f"{sum(errors.values())} errors ({by_kind(errors)})")
        if tally.skipped:
            parts.append(f"{tally.skipped} skipped")
        left = self.seconds_left(rates)
        parts.append("time left unknown" if left is None else f"{clock(left)} left")
        return ", ".join(parts)


def in_flight(tally: Tally) -> str:
    """How many requests there are, in words: with the server, or waiting for it."""
    there = tally.in_flight if tally.at_server is None else min(tally.in_flight, tally.at_server())
    waiting = tally.in_flight - there
    return f"{there} in flight" + (f" ({waiting} wait for the server)" if waiting else "")


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class PlainProgress:
    """A line every `interval` seconds from the beginning of the job to its end, for logs and pipes."""

    def __init__(self, out: TextIO | None = None, interval: float = PLAIN_INTERVAL) -> None:
        self._out = out or sys.stderr
        self._interval = max(SHORTEST_INTERVAL, interval)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, tally: Tally) -> None:
        self._thread = threading.Thread(target=self._tell, args=(Meter(tally),), name="progress", daemon=True)
        self._thread.start()

    def _tell(self, meter: Meter) -> None:
        while not self._ended.wait(self._interval):
            self.say(meter.text())

    def say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads it any more: that is no reason to stop
            self._out.write(text + "\n")  # in one piece: two threads write here
            self._out.flush()

    def phase(self, text: str) -> None:
        self.say(text)

    def status(self, state: str) -> None:
        return

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)  # it may be writing into a pipe that nobody empties


class RichProgress:
    """A bar and the numbers at the bottom of a terminal; messages scroll above them."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(stderr=True)
        self._state = ""
        self._meter: Meter | None = None
        # It redraws also while nothing happens: a start may take many minutes.
        self._live = Live(
            get_renderable=self._picture,
            console=self._console,
            refresh_per_second=REDRAWS,
            redirect_stdout=sys.stdout.isatty(),  # what goes into a file stays there
        )
        self._live.start()

    def begin(self, tally: Tally) -> None:
        self._meter = Meter(tally)

    def say(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._console.print(text, markup=False, highlight=False)

    def phase(self, text: str) -> None:
        self.say(text)

    def status(self, state: str) -> None:
        self._state = state
        with suppress(OSError, ValueError):
            self._live.refresh()

    def end(self) -> None:
        with suppress(OSError, ValueError):
            self._live.stop()

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if self._meter is None:
            return Text(self._state)
        tally = self._meter.tally
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column()
        bar.add_column(ratio=1)
        bar.add_row(Text(self._state), ProgressBar(tally.total or None, tally.earlier + tally.finished))
        return Group(bar, Text(self._meter.text()))


def display(interval: float = PLAIN_INTERVAL) -> Progress:
    """The display that fits standard error; `interval` is in seconds and for plain lines."""
    if sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_dumb_terminal:  # one that cannot move its cursor
            return RichProgress(console)
    return PlainProgress(interval=interval)
