"""What becomes of each request, for those who count and trace them. A client without observers does none of this."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from lifecycle.errors import Draining, RequestError, RequestRefused, RetriesExhausted, StartFailed

log = logging.getLogger("stoker.requests")


@dataclass(slots=True, eq=False)
class Request:
    """One request, from when it is asked for until its caller has the answer or the error. What is not known yet has
    its default."""

    path: str
    payload: Mapping[str, Any] | None
    server: str = ""
    """Name of the server that has it, or had it last; empty as long as it waits for one."""
    attempts: int = 0
    first: float | None = None
    """Seconds to the first chunk of a stream; None if there was none."""
    seconds: float = 0.0
    """That it took, with all that it waited and all its attempts."""
    answer: Mapping[str, Any] | None = None
    """Of a stream: the last chunk, or the last that tells of its tokens (`usage`)."""
    error: BaseException | None = None
    began: float = field(default_factory=anyio.current_time)
    """Event loop time."""

    def chunk(self, chunk: Mapping[str, Any]) -> None:
        """A piece of a stream has come."""
        if self.first is None:
            self.first = anyio.current_time() - self.began
        if chunk.get("usage") or not (self.answer or {}).get("usage"):
            self.answer = chunk

    @property
    def outcome(self) -> str:
        """One of `OUTCOMES`."""
        return outcome_of(self.error)


Observer = Callable[[Request], Callable[[], None]]
"""Called when a request is asked for, in the task of whoever asks; what it returns is called when that one is told.
Both must be quick."""

OUTCOMES = ("answered", "refused", "exhausted", "failed", "draining", "given-up", "abandoned")


def outcome_of(error: BaseException | None) -> str:
    """What became of a request, in a word: answered, refused by the server (4xx), exhausted (its retries), failed for
    good otherwise, not sent since the server is draining or was given up, or abandoned by whoever had asked."""
    match error:
        case None:
            return "answered"
        case RequestRefused():
            return "refused"
        case RetriesExhausted():
            return "exhausted"
        case RequestError():
            return "failed"
        case Draining():
            return "draining"
        case StartFailed():
            return "given-up"
        case _:
            return "abandoned"


@contextmanager
def observed(observers: Sequence[Observer], request: Request) -> Iterator[Request]:
    """The time of one request."""
    ends = [end for observer in observers if (end := _begin(observer, request)) is not None]
    try:
        yield request
    except BaseException as error:
        request.error = error
        raise
    finally:
        request.seconds = anyio.current_time() - request.began
        for end in reversed(ends):
            try:
                end()
            except Exception:  # somebody's display; the request goes on
                log.exception("an observer of requests raised")


def _begin(observer: Observer, request: Request) -> Callable[[], None] | None:
    try:
        return observer(request)
    except Exception:
        log.exception("an observer of requests raised")
        return None
