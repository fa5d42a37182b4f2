"""Finds how many requests in flight give this server its best throughput, and holds that. Pure: no I/O, no clock.

Limits that follow latency (TCP Vegas; Gradient2 of Netflix' concurrency-limits) take any rise of it for a queue. A
server that batches is not like that: from 1 to 64 in flight its latency may double while its throughput grows thirty
times. So the throughput itself is measured, and climbed:

- Trials as in PCC (Dong et al., "PCC: Re-architecting Congestion Control for Consistent High Performance", NSDI 2015;
  "PCC Vivace", NSDI 2018; the same idea sizes .NET's thread pool: Hellerstein, Morrison and Eilebrecht, "Applying
  control theory in the real world", SIGMETRICS Performance Evaluation Review 37(3), 2009): measure at the present
  limit, measure at another, go where the utility is greater, in greater steps while the direction holds, in smaller
  ones after a failure. What is too close to call is measured again in pairs, so that noise and drift cancel.
- The utility is Kleinrock's power with an exponent ("Power and deterministic rules of thumb for probabilistic problems
  in computer communications", ICC 1979): throughput against latency, where a tenth more in flight, and so of latency,
  must earn 0.3 % more throughput. This guards against a queue that earns nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lifecycle.adapter import EngineLoad

INITIAL = 16
"""In flight at first: a few seconds show whether more is better."""
STEPS_PER_DOUBLING = 4
"""The limits that are tried are a fifth apart."""
PRICE = 0.03
"""Relative gain of throughput that a relative rise of the limit must earn."""
CLEAR = 0.10
"""A difference of utility (as a logarithm) from here on is believed at once, a smaller one after `PAIRS` pairs."""
PAIRS = 3
CHANGE = 0.3
"""The server's speed has changed when its throughput (as a logarithm) is off by this twice in a row."""
DWELL, DWELL_MAX = 4, 32
"""Windows at the limit that was found before its neighbours are tried again; doubled each time nothing better is there.
"""
FEWEST, SHORTEST = 16, 1.0
"""Requests and seconds that a window has at least."""
UNCOUNTED = 4
"""Times as long a window where answers do not say their tokens: their lengths differ, and that is noise then."""
FULL = 0.9
"""A window in which less than this part of the limit was in flight tells nothing about the limit."""
QUEUED_LOOKS = 3
"""Looks in a row at which requests waited in the engine, and it ran no more than it once did with fewer in flight: it
can run no more. That some wait is not enough: a request that has just come waits for the engine's next step."""
PATIENCE, PATIENCE_MAX = 10, 640
"""Looks until the engine may show that it can run more than before; doubled each time it cannot."""


class Adaptive:
    """The limit of a job, from 1 to `maximum`.

    Tell it of each request that ended (`finished`) and of each look at the engine (`seen`), and keep as many in flight
    as `limit` says. It begins at `initial`.
    """

    def __init__(self, maximum: int, *, initial: int = INITIAL) -> None:
        if maximum < 1:
            raise ValueError(f"maximum = {maximum} must be at least 1")
        self._limits = ladder(maximum)
        start = max(i for i, limit in enumerate(self._limits) if limit <= max(1, initial))
        self._climb = Climb(self._limits, start)
        self.limit = self._limits[start]
        self.windows = 0
        """Measurements taken so far."""
        self._in_flight = 0
        self._now = self._since = -math.inf
        self._counts_tokens = False
        self._window = self._begin(settle=self.limit)
        self._most_running = self._reached_with = 0
        self._in_vain = 0
        self._ceiling: int | None = None
        self._patience = self._looks_left = PATIENCE

    def finished(self, now: float, seconds: float, tokens: int, in_flight: int, ok: bool) -> None:
        """A request ended.

        Args:
            now: seconds on a clock that never goes back.
            seconds: how long the request took.
            tokens: what it cost, prompt and answer; 0 if the server does not say. Where it never does, requests are
                counted, over longer windows.
            in_flight: how many there were until it ended, itself included.
            ok: whether it was answered. One that was not is no throughput.
        """
        self._in_flight = in_flight
        self._now = now
        self._counts_tokens = self._counts_tokens or tokens > 0
        throughput = self._window.add(now, seconds, (tokens or 1) if ok else 0, in_flight)
        if throughput is None:
            return
        if throughput >= 0:
            self.windows += 1
            self._climb.measured(throughput, self._top())
        self._measure()

    def disturbed(self, now: float) -> None:
        """Up to now requests had to wait for something that is not the engine's pace: a restart, a pause.

        Those that began before tell nothing. Not needed, since what is off once is not believed; but it saves a wrong
        turn.
        """
        self._now = self._since = now
        self._window = self._begin(settle=0)

    def seen(self, load: EngineLoad | None) -> None:
        """The engine was looked at; None: it says nothing about itself."""
        if load is None or load.running <= 0:
            return
        if load.running > self._most_running:
            self._most_running, self._reached_with = load.running, self._in_flight
            self._patience = PATIENCE
        elif load.running == self._most_running:
            self._reached_with = min(self._reached_with, self._in_flight)
        in_vain = load.waiting > 0 and load.running <= self._most_running and self._in_flight > self._reached_with
        self._in_vain = self._in_vain + 1 if in_vain else 0
        if self._in_vain >= QUEUED_LOOKS and self.limit > self._most_running:
            self._ceiling = self._most_running
            self._looks_left = self._patience
            self._patience = min(2 * self._patience, PATIENCE_MAX)
            self._climb.stay_below(self._top())
            self._measure()
        elif self._ceiling is not None:
            self._looks_left -= 1
            if self._looks_left <= 0:
                above = self._top() + 1
                self._ceiling = self._limits[above] if above < len(self._limits) else None
                self._looks_left = self._patience

    def _top(self) -> int:
        """Index of the lowest limit that the ceiling does not raise, or of the last one."""
        last = len(self._limits) - 1
        if self._ceiling is None:
            return last
        return next((i for i, limit in enumerate(self._limits) if limit >= self._ceiling), last)

    def _measure(self) -> None:
        """Begin a window at the limit that is to be measured now."""
        before = self.limit
        self.limit = min(self._limits[self._climb.at], self._ceiling or self._limits[-1])
        if self.limit == before:
            self._window = self._begin(settle=0)
        else:
            self._since = self._now
            self._window = self._begin(settle=max(self._in_flight, self.limit))

    def _begin(self, *, settle: int) -> Window:
        rounds = self._climb.rounds * (1 if self._counts_tokens else UNCOUNTED)
        return Window(self.limit, since=self._since, settle=settle, rounds=rounds)


def ladder(maximum: int) -> list[int]:
    """The limits that are tried: 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16 and so on up to `maximum`."""
    steps = math.ceil(STEPS_PER_DOUBLING * math.log2(maximum)) if maximum > 1 else 0
    return sorted({min(maximum, round(2 ** (step / STEPS_PER_DOUBLING))) for step in range(steps + 1)})


class Window:
    """One measurement of throughput.

    After a change of the limit those in flight end first (`settle` requests are not counted, nor is a later one that
    began before `since`); then each place in flight is measured for `rounds` requests, because one round of equally
    long requests may end all at once.

    Throughput is taken by Little's law: what is in flight, times the work of a request over its time. Counting the
    work that ends in a stretch of time says the same with much more noise, because long answers and short ones pass
    through a batch at the same speed.
    """

    def __init__(self, limit: int, *, since: float, settle: int, rounds: int) -> None:
        self._limit = limit
        self._since = since
        self._settle = settle
        self._wanted = limit * max(rounds, math.ceil(FEWEST / limit))
        self._began: float | None = None
        self._count = self._work = self._in_flight = 0
        self._seconds = 0.0

    def add(self, now: float, seconds: float, work: int, in_flight: int) -> float | None:
        """Count a request. The work per second once the window is full, -1 if it tells nothing, None before."""
        if self._began is None:
            self._began = now
        if self._settle > 0:
            self._settle -= 1
            self._began = now
            return None
        if now - seconds < self._since:
            return None
        self._count += 1
        self._work += work
        self._seconds += seconds
        self._in_flight += in_flight
        if self._count < self._wanted or now - self._began < SHORTEST:
            return None
        if self._in_flight < FULL * self._limit * self._count or self._seconds <= 0:
            return -1.0
        return self._in_flight / self._count * self._work / self._seconds


class Climb:
    """Where to measure next, on a ladder of limits."""

    def __init__(self, limits: Sequence[int], start: int) -> None:
        self._limits = limits
        self.at = start
        """The one to measure now: the base or another that is compared with it."""
        self._base = start
        self._known: float | None = None
        """Logarithm of the throughput at the base."""
        self._weight = 0
        self._gains: list[float] = []
        """Utility of the other one above the base's, of each pair."""
        self._off = 0
        self._begin(1)

    def _begin(self, direction: int) -> None:
        self._direction = direction
        self._stride = STEPS_PER_DOUBLING
        self._worse: set[int] = set()
        """Directions in which a step of this stride is known to lose."""
        self._won = False
        """The last step was one in this direction, and it paid."""
        self._dwell, self._next_dwell = 0, DWELL
        self._gains = []

    @property
    def rounds(self) -> int:
        """How long to measure: small steps make small differences."""
        return {1: 4, 2: 3}.get(self._stride, 2)

    def measured(self, throughput: float, top: int) -> None:
        """`throughput` is that at `at`; go no higher than `top`."""
        value = math.log(max(throughput, 1e-9))
        if self.at == self._base:
            self._at_base(value, top)
        else:
            self._at_other(value, top)

    def stay_below(self, top: int) -> None:
        """The engine can run no more than that."""
        if self._base > top:
            self._base, self._known = top, None
            self._gains = []
        self.at = self._base

    def _at_base(self, value: float, top: int) -> None:
        if self._known is None:
            self._known, self._weight = value, 1
        elif abs(value - self._known) > CHANGE:
            sign = 1 if value > self._known else -1
            self._off = self._off + sign if self._off * sign > 0 else sign
            if abs(self._off) == 1:  # once is chance, or a restart of the server
                return
            self._begin(sign)
            self._known, self._weight, self._off = value, 1, 0
        else:
            self._weight = min(self._weight + 1, 4)
            self._known += (value - self._known) / self._weight
            self._off = 0
        if self._dwell > 0:
            self._dwell -= 1
        else:
            self._step(top)

    def _at_other(self, value: float, top: int) -> None:
        assert self._known is not None
        price = PRICE * math.log(self._limits[self.at] / self._limits[self._base])
        self._gains.append(value - self._known - price)
        gain = sum(self._gains) / len(self._gains)
        if abs(gain) < CLEAR and len(self._gains) < PAIRS:
            self.at = self._base
        elif gain > 0:
            self._known, self._weight = self._known + gain + price, len(self._gains)
            self._base = self.at
            if self._won:  # twice in this direction
                self._stride = min(2 * self._stride, STEPS_PER_DOUBLING)
            self._won = True
            self._worse = {-self._direction}
            self._next_dwell = DWELL
            self._gains = []
            self._step(top)
        else:
            self._lost()

    def _step(self, top: int) -> None:
        """Measure the next one; the base again where there is none."""
        while True:
            self.at = min(max(self._base + self._direction * self._stride, 0), max(top, self._base))
            if self.at != self._base:
                return
            self._lost()
            if self._dwell:
                return

    def _lost(self) -> None:
        """A step in this direction does not pay: back to the base, then the other way, then a smaller step."""
        self.at = self._base
        self._gains = []
        self._won = False
        self._worse.add(self._direction)
        if len(self._worse) == 2:
            self._worse = set()
            if self._stride == 1:
                self._dwell = self._next_dwell
                self._next_dwell = min(2 * self._next_dwell, DWELL_MAX)
            self._stride = max(1, self._stride // 2)
        self._direction = -self._direction
