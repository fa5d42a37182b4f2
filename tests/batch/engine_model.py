"""A server that batches, on virtual time, and a job that keeps as many requests in flight as an `Adaptive` says."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from lifecycle.adapter import EngineLoad
from lifecycle.batch.adaptive import Adaptive

Curve = Callable[[int], float]
"""Tokens per second with so many requests running."""
Length = Callable[[random.Random], float]
"""Tokens of one answer."""

LOOK_EVERY = 2.0
"""Seconds."""
STUCK = 3_000_000


def knee(at: int, falls: float = 0.0, pace: float = 50.0) -> Curve:
    """Grows with every request up to `at`; beyond that it is flat, or `falls` with that power: the cache thrashes."""
    return lambda running: pace * (running if running <= at else at * (at / running) ** falls)


def saturating(half: float, pace: float = 50.0) -> Curve:
    """Each further request earns less; `half` of them reach half of what there is."""
    return lambda running: pace * running / (1 + running / half)


def equal(tokens: float = 100.0) -> Length:
    return lambda roll: tokens


def exponential(tokens: float = 100.0) -> Length:
    return lambda roll: roll.expovariate(1 / tokens)


def long_tailed(tokens: float = 100.0) -> Length:
    return lambda roll: tokens * math.exp(roll.gauss(0, 1) - 0.5)


@dataclass
class Model:
    """All that run get on at the same pace, which is the curve's throughput shared among them."""

    adaptive: Adaptive
    curve: Curve
    length: Length = field(default_factory=equal)
    seed: int = 0
    room: int = 10**9
    """Requests that run at once; others wait in the engine."""
    tells: Callable[[int, int], EngineLoad | None] = lambda running, waiting: None
    """What the engine says of itself."""
    jitter: float = 0.0
    """Standard deviation of the logarithm of its speed, which changes at each look."""
    says_tokens: bool = True
    now: float = 0.0
    done: float = 0.0
    """Tokens that a server without jitter would have made."""

    def __post_init__(self) -> None:
        self._roll = random.Random(self.seed)
        self._made = 0.0  # tokens that a request made which has run from the beginning
        self._running: list[tuple[float, int, float, float]] = []
        self._waiting: deque[tuple[float, float]] = deque()
        self._numbers = 0
        self._look_at = LOOK_EVERY
        self._speed = 1.0
        self.peak = 0

    @property
    def in_flight(self) -> int:
        return len(self._running) + len(self._waiting)

    def best(self, maximum: int) -> float:
        """The throughput at the best number in flight."""
        return max(self.curve(min(running, self.room)) for running in range(1, maximum + 1))

    def outage(self, seconds: float) -> None:
        """For so long nothing gets on."""
        self.now += seconds
        self._look_at += seconds

    def throughput(self, windows: int) -> float:
        """Live until so many windows have been measured. The tokens per second meanwhile."""
        began, done, end = self.now, self.done, self.adaptive.windows + windows
        for _ in range(STUCK):
            if self.adaptive.windows >= end:
                return (self.done - done) / (self.now - began)
            self.step()
        raise AssertionError(f"no window ended for {STUCK} steps at {self.adaptive.limit}")

    def step(self) -> None:
        """Live until a request ends or the engine is looked at."""
        while self.in_flight < self.adaptive.limit:
            self._waiting.append((self.now, max(1.0, self.length(self._roll))))
        self.peak = max(self.peak, self.in_flight)
        self._admit()
        running = len(self._running)
        pace = self._speed * self.curve(running) / running
        seconds = (self._running[0][0] - self._made) / pace
        if self.now + seconds >= self._look_at:
            self._pass(self._look_at - self.now, pace)
            self._look_at += LOOK_EVERY
            self.adaptive.seen(self.tells(running, len(self._waiting)))
            self._speed = math.exp(self._roll.gauss(0, self.jitter)) if self.jitter else 1.0
            return
        self._pass(seconds, pace)
        self._made, _, began, tokens = heapq.heappop(self._running)
        before = self.in_flight + 1
        self._admit()
        self.adaptive.finished(self.now, self.now - began, int(tokens) if self.says_tokens else 0, before, True)

    def _pass(self, seconds: float, pace: float) -> None:
        self.now += seconds
        self.done += seconds * self.curve(len(self._running))
        self._made += seconds * pace

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.room:
            began, tokens = self._waiting.popleft()
            self._numbers += 1
            heapq.heappush(self._running, (self._made + tokens, self._numbers, began, tokens))


def honest(running: int, waiting: int) -> EngineLoad:
    """An engine that says what it does."""
    return EngineLoad(running, waiting, ())
