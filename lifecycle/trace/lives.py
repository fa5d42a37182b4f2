"""The lives in a journal: how long each was in which state, its attempts, why they failed. Pure.

A `Life` is built record by record, so a page that is shown while it goes on and one that is made of an old file have
the same story.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lifecycle.journal import Kind, Record
from lifecycle.story import found_in, words_of

FINAL = ("Stopped", "Failed")
"""The final states of all of Stoker's charts."""


@dataclass(frozen=True)
class Stretch:
    """A time in one state."""

    state: str
    began: float
    """Unix seconds."""
    index: int
    """Of the record that led there, in `Life.records`."""
    event: str = ""
    attempt: int = 0


@dataclass
class Attempt:
    """One start and what became of it."""

    number: int
    began: float
    index: int
    """Of its first record."""
    ended: float | None = None
    """When it was over: a failure was found, or the end was asked for. None: it is not."""
    pid: int | None = None
    port: int | None = None
    log: str = ""
    model: str = ""
    healthy: float | None = None
    """When it first served."""
    found: Mapping[str, Any] = field(default_factory=dict)
    """The diagnosis of its failure."""
    found_at: float | None = None
    """When it was made."""


class Life:
    """One life: of a server, a fleet, a group, a host of one, a place on a cluster, or of what another chart drives.

    Args:
        server: the name.
        source: what tells it apart from others of that name: the file that it is from.
        keep: how many of the latest records, stretches and attempts are kept; the sums are of all. None: all.
    """

    def __init__(self, server: str, source: str = "", keep: int | None = None) -> None:
        self.server = server
        self.source = source
        self.chart = ""
        """Name of its chart; empty if its beginning is not in the journal."""
        self.facts: Mapping[str, Any] = {}
        """The first facts, as far as they are known."""
        self.began: float | None = None
        """Unix seconds of its first record."""
        self.records: deque[Record] = deque(maxlen=keep)
        self.stretches: deque[Stretch] = deque(maxlen=keep)
        self.attempts: deque[Attempt] = deque(maxlen=keep)
        self.taken = 0
        """Records so far; the number of each is its `index` elsewhere."""
        self.moves: Counter[tuple[str, str, str]] = Counter()
        """How often each transition was taken: (state before, event, state after)."""
        self.last = 0.0
        """Unix seconds of its latest record."""
        self._since_start = 0.0
        self._spent: dict[str, float] = {}
        """Seconds in each state, up to the latest stretch."""

    @property
    def state(self) -> str:
        """The latest."""
        return self.stretches[-1].state if self.stretches else ""

    @property
    def over(self) -> bool:
        """Whether it has come to its end; otherwise it goes on, or nobody could write down how it ended."""
        return self.state in FINAL

    @property
    def failed(self) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.found)

    def take(self, record: Record) -> None:
        """The next record."""
        index, self.taken = self.taken, self.taken + 1
        self.records.append(record)
        self.began = record.time if self.began is None else self.began
        self.last = max(self.last, record.time)
        if record.kind is Kind.BEGIN:
            self.chart = str(record.detail.get("chart") or "")
            facts = record.detail.get("facts")
            self.facts = facts if isinstance(facts, Mapping) else {}
            self._enter(Stretch(record.after or "", record.time, index))
            return
        if not self.stretches:  # the beginning of the journal is lost
            self._enter(Stretch(record.before or record.after or "", record.time, index, "", record.attempt))
        if record.kind in (Kind.TRANSITION, Kind.INTERNAL):
            self.moves[record.before or "", record.event or "", record.after or ""] += 1
        self._attempt(record, index)
        if record.kind is Kind.TRANSITION:
            after = record.after or ""
            self._enter(Stretch(after, record.time, index, record.event or "", record.attempt))
            if after in ("Locking", "Starting"):
                self._since_start = record.time

    def words(self, record: Record) -> str:
        """The latest record in words."""
        return words_of(record, record.time - (self._since_start or record.time))

    def seconds(self, now: float | None = None) -> dict[str, float]:
        """Time in each state, in the order in which they were first entered; of a life that is not over until `now`,
        by default until its latest record. Final states take no time."""
        spent = dict(self._spent)
        if self.stretches:
            _spend(spent, self.stretches[-1], self.last if now is None else max(now, self.last))
        return spent

    def seconds_before(self) -> dict[str, float]:
        """Time in each state up to when the present one was entered; that one is in it, if with nothing."""
        spent = dict(self._spent)
        if self.stretches and not self.over:
            spent.setdefault(self.state, 0.0)
        return spent

    def _enter(self, stretch: Stretch) -> None:
        if self.stretches:
            _spend(self._spent, self.stretches[-1], stretch.began)
        self.stretches.append(stretch)

    def _attempt(self, record: Record, index: int) -> None:
        if record.attempt > (self.attempts[-1].number if self.attempts else 0):
            self.attempts.append(Attempt(record.attempt, record.time, index))
        if not self.attempts:
            if record.kind is not Kind.TRANSITION or not (record.after and record.after != "Idle"):
                return
            self.attempts.append(Attempt(0, record.time, index))  # of what does not count them, such as a fleet
        attempt = self.attempts[-1]
        attempt.pid, attempt.port = record.pid or attempt.pid, record.port or attempt.port
        attempt.log = record.log or attempt.log
        attempt.model = str(record.detail.get("model") or attempt.model)
        if record.kind is not Kind.TRANSITION:
            return
        if record.after == "Healthy" and attempt.healthy is None:
            attempt.healthy = record.time
        found = found_in(record)
        if found and not attempt.found:
            attempt.found, attempt.found_at = found, record.time
        if record.after in ("Draining", "Dormant", "Backoff", *FINAL) and attempt.ended is None:
            attempt.ended = record.time
        elif record.after not in ("Draining", "Dormant", "Backoff", *FINAL) and not record.attempt:
            attempt.ended = None


def _spend(spent: dict[str, float], stretch: Stretch, until: float) -> None:
    if stretch.state not in FINAL:
        spent[stretch.state] = spent.get(stretch.state, 0.0) + max(0.0, until - stretch.began)


def lives_of(records: Iterable[Record], source: str = "") -> list[Life]:
    """The lives in the records of one journal, in the order in which they begin."""
    lives: list[Life] = []
    open_: dict[str, Life] = {}
    for record in records:
        if record.kind is Kind.BEGIN or record.server not in open_:
            open_[record.server] = Life(record.server, source)
            lives.append(open_[record.server])
        open_[record.server].take(record)
    return lives
