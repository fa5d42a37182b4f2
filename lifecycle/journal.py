"""What happened to a server, in order: records in memory for those who wait, JSON Lines for those who come later.

A journal holds every event that reached a server, whatever became of it, so it replays exactly: `replay` takes the
chart through the same events and must see the same states. Nothing in it is a secret; keys never reach an event.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import anyio
import msgspec

from lifecycle.chart import Chart, Event, Outcome, Step
from lifecycle.decoding import decode
from lifecycle.errors import JournalError

F = TypeVar("F")
T = TypeVar("T")
log = logging.getLogger("stoker.journal")

KEPT = 4096
"""Records kept in memory: many lives of one server; the file keeps them all."""


class Kind(StrEnum):
    """What a record says."""

    BEGIN = "begin"
    """A life starts: `detail` holds the chart's name and the first facts."""
    TRANSITION = "transition"
    INTERNAL = "internal"
    """Taken; the facts changed, the state was not left."""
    REFUSED = "refused"
    IGNORED = "ignored"
    STALE = "stale"
    """The outcome of an activity that had been left."""
    LATE = "late"
    """Sent after the end."""
    OVERRUN = "overrun"
    """A cleanup took longer than its grace."""
    CLEANUP_ERROR = "cleanup-error"
    PHASE = "phase"
    """Progress inside a state, for people: changes nothing."""


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a journal."""

    seq: int
    time: float
    """Unix seconds; never goes backwards within a life."""
    server: str
    attempt: int
    kind: Kind
    event: str | None = None
    before: str | None = None
    after: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    """The event's fields, or what else there is to say."""
    pid: int | None = None
    port: int | None = None
    log: str | None = None
    taken: float | None = None
    """When the event was taken, if records of the cleanups that it caused came in between; None: at `time`."""


class Sink(Protocol):
    """Where records go."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class FileSink:
    """Appends JSON Lines to a file that only this user can read. A full disk costs lines, never the server."""

    def __init__(self, path: Path) -> None:
        if path.is_file() and not _is_journal(path):
            raise JournalError(f"journal {path} holds something else; name another file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"journal {path} cannot be written: {error.strerror}") from None
        self.path = path
        self.lost = 0
        self._torn = False

    def write(self, record: Record) -> None:
        if self._fd < 0:
            return
        line = msgspec.json.encode(record) + b"\n"
        if self._torn:  # end the piece of a line that a full disk left behind
            line = b"\n" + line
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        self._torn = written < len(line)
        if self._torn:
            self._lose("only a part was written")

    def _lose(self, why: str) -> None:
        if not self.lost:
            log.warning("journal %s: %s; lines are being lost, the server goes on", self.path, why)
        self.lost += 1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _is_journal(path: Path) -> bool:
    """Whether a file is empty or begins as a journal does."""
    try:
        with path.open("rb") as lines:
            first = lines.readline()
        return not first or bool(decode(first, Record))
    except OSError:
        return True  # opening it for writing will say what is wrong
    except msgspec.MsgspecError:
        return False


class Journal:
    """The records of one server. One writer (its driver), any number of waiters."""

    def __init__(self, server: str, sinks: Iterable[Sink] = (), *, epoch: float | None = None) -> None:
        """`epoch`: Unix time at the event loop's zero. None: taken from the wall clock once, at the first record, so
        that a clock that jumps later moves no record."""
        self.server = server
        self.records: deque[Record] = deque(maxlen=KEPT)
        self.seq = 0
        self._sinks = list(sinks)
        self._epoch = epoch
        self._latest = float("-inf")
        self._more: anyio.Event | None = None
        self._listeners: list[Callable[[Record], None]] = []

    def now(self) -> float:
        """Unix seconds on the event loop's clock: real time in production, virtual time in a simulation."""
        if self._epoch is None:
            self._epoch = time.time() - anyio.current_time()
        return self._epoch + anyio.current_time()

    def listen(self, listener: Callable[[Record], None]) -> None:
        """Call `listener` with every record from now on. It must be quick and must not raise."""
        self._listeners.append(listener)

    def write(
        self,
        kind: Kind,
        attempt: int,
        *,
        at: float | None = None,
        event: str | None = None,
        before: str | None = None,
        after: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> Record:
        """Append one record and wake who waits for it."""
        self.seq += 1
        detail = detail or {}
        wanted = self.now() if at is None else at
        self._latest = max(self._latest, wanted)
        record = Record(
            self.seq,
            self._latest,
            self.server,
            attempt,
            kind,
            event,
            before,
            after,
            detail,
            detail.get("pid"),
            detail.get("port"),
            detail.get("log"),
            wanted if wanted < self._latest else None,
        )
        self.records.append(record)
        for sink in self._sinks:
            sink.write(record)
        for listener in self._listeners:
            try:
                listener(record)
            except Exception:  # somebody's display; the server's life goes on
                log.exception("a listener of the journal raised")
        if self._more is not None:
            self._more.set()
            self._more = None
        return record

    async def wait(self, wanted: Callable[[Record], bool], *, after: int = 0) -> Record:
        """The first record later than `after` for which `wanted` holds; waits for it if it is not there yet.

        A state that passes quickly is not missed: it is in the journal.
        """
        while True:
            newer = max(0, len(self.records) - (self.seq - after))
            for record in tuple(islice(self.records, newer, None)):
                if wanted(record):
                    return record
            after = self.seq
            if self._more is None:
                self._more = anyio.Event()
            await self._more.wait()

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


@dataclass(frozen=True)
class Snapshot(Generic[F]):
    """Where a server stood after record `seq`."""

    seq: int
    state: str
    facts: F


def save_snapshot(path: Path, snapshot: Snapshot[Any]) -> None:
    """Write a snapshot, readable by this user only, whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(msgspec.json.encode(snapshot))
        out.flush()
        os.fsync(out.fileno())
    beside.replace(path)


def load_snapshot(path: Path, facts: type[F]) -> Snapshot[F]:
    """Read a snapshot back. Raises `JournalError` if it is missing or not one."""
    try:
        plain = decode(path.read_bytes())
        return Snapshot(int(plain["seq"]), str(plain["state"]), msgspec.convert(plain["facts"], facts))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise JournalError(f"snapshot {path} cannot be read: {error}") from None


def fields_of(value: Any) -> dict[str, Any]:
    """A dataclass as plain values that JSON can hold."""
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain


def read_journal(path: Path, skip: int = 0) -> Iterator[Record]:
    """The records of a file from byte `skip` on, as a stream. A torn last line is left out; a broken line elsewhere is
    a `JournalError` (its number counts from `skip`)."""
    try:
        with path.open("rb") as lines:
            lines.seek(skip)
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    yield decode(line, Record)
                except msgspec.MsgspecError as error:
                    if not line.endswith(b"\n"):
                        return
                    raise JournalError(f"{path}:{number}: not a journal record: {error}") from None
    except OSError as error:
        raise JournalError(f"journal {path} cannot be read: {error.strerror}") from None


def of_chart(records: Iterable[Record], chart: str) -> Iterator[Record]:
    """The records of the lives that a chart drives, out of a file that has those of others too: a fleet's beside its
    servers'. A life whose beginning is not among the records is taken for one of them."""
    others: set[str] = set()
    for record in records:
        if record.kind is Kind.BEGIN:
            (others.discard if record.detail.get("chart") == chart else others.add)(record.server)
        if record.server not in others:
            yield record


def replay(
    records: Iterable[Record],
    chart: Chart[F],
    events: Mapping[str, type[Event]],
    facts: type[F],
) -> dict[str, Snapshot[F]]:
    """Take `chart` through the events of a journal again; where each server stands at the end.

    Raises `JournalError` at the first record that the chart does not reproduce: another chart, a changed table, a file
    that was edited.
    """
    stands: dict[str, Snapshot[F]] = {}
    for record in records:
        if record.kind is Kind.BEGIN:
            if record.detail.get("chart") != chart.name:
                raise JournalError(f"record {record.seq} is of the chart {record.detail.get('chart')!r}")
            first = _converted(record.detail.get("facts"), facts, record)
            stands[record.server] = Snapshot(record.seq, chart.initial, first)
        elif record.kind in _STEPS:
            stand = stands.get(record.server)
            if stand is None:
                raise JournalError(f"record {record.seq} comes before the beginning of {record.server!r}")
            stands[record.server] = _again(record, stand, chart, events)
    return stands


def _again(
    record: Record, stand: Snapshot[F], chart: Chart[F], events: Mapping[str, type[Event]]
) -> Snapshot[F]:
    kind = events.get(record.event or "")
    if kind is None:
        raise JournalError(f"record {record.seq} has the event {record.event!r}, which the chart does not know")
    at = record.time if record.taken is None else record.taken
    step = chart.step(stand.state, stand.facts, _converted(dict(record.detail), kind, record), at)
    if (kind_of(step), step.before, step.after) != (record.kind, record.before, record.after):
        raise JournalError(
            f"record {record.seq} says {record.kind} {record.before} → {record.after} on {record.event}, "
            f"the chart says {kind_of(step)} {step.before} → {step.after}"
        )
    return Snapshot(record.seq, step.after, step.facts)


def _converted(plain: Any, kind: type[T], record: Record) -> T:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.MsgspecError as error:
        raise JournalError(f"record {record.seq} does not hold a {kind.__name__}: {error}") from None


_STEPS = frozenset((Kind.TRANSITION, Kind.INTERNAL, Kind.REFUSED, Kind.IGNORED))


def kind_of(step: Step[Any]) -> Kind:
    """The kind of record that tells of a step."""
    if step.outcome is Outcome.TAKEN:
        return Kind.INTERNAL if step.internal else Kind.TRANSITION
    return Kind.REFUSED if step.outcome is Outcome.REFUSED else Kind.IGNORED
