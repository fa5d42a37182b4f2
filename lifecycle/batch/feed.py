"""Hands out the records of a job, read ahead in a thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

import anyio

from lifecycle.batch.sources import Row

AHEAD, AHEAD_BYTES = 256, 1 << 22
"""Records, and bytes of them, that are read at a time."""
LONGEST = 0.05
"""Seconds for which the thread reads at most before it looks whether it is still wanted."""


class Feed:
    """Each record once, to whoever asks next.

    Args:
        rows: the records; None for each that is passed over. Read in one thread at a time.
    """

    def __init__(self, rows: Iterator[Row | None]) -> None:
        self._rows = rows
        self._ready: deque[Row] = deque()
        self._reading = anyio.Lock()
        self._thread = anyio.CapacityLimiter(1)
        self._closed = self._ended = False
        self._error: BaseException | None = None

    @property
    def exhausted(self) -> bool:
        """Every record has been handed out."""
        return self._ended and not self._ready

    async def next(self) -> Row | None:
        """The next record; None if there is none, or `close` was called. Raises what reading raises, once every
        record before that was handed out."""
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._closed or self._ended:
                return None
            async with self._reading:
                if not (self._ready or self._ended or self._closed or self._error):
                    # Not abandoned when cancelled: nobody else may go on with the iterator meanwhile.
                    await anyio.to_thread.run_sync(self._read, limiter=self._thread)
        return None if self._closed else self._ready.popleft()

    def close(self) -> None:
        """Hand out nothing more."""
        self._closed = True

    def _read(self) -> None:
        until, size = time.monotonic() + LONGEST, 0
        try:
            for row in self._rows:
                if row is not None:
                    self._ready.append(row)
                    size += len(row.data)
                if len(self._ready) >= AHEAD or size >= AHEAD_BYTES or time.monotonic() > until:
                    return
            self._ended = True
        except Exception as error:
            self._error = error
