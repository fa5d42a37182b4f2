"""Runs one chart: a mailbox, one event at a time, and the activities that its states own. On asyncio and on trio.

The order of things when a transition is taken: the activities whose spans end are ended one by one, the innermost
first, each cleanup awaited; then the new state is published; then the activities whose spans begin are started, the
outermost first. So whoever sees a state sees it with everything that the earlier state held already released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from lifecycle.chart import Chart, Event, Outcome, Span
from lifecycle.errors import ChartError
from lifecycle.journal import Journal, Kind, Record, Snapshot, fields_of, kind_of
from lifecycle.logs import logged

F = TypeVar("F")

CLEANUP_GRACE = 10.0
"""Seconds that a cleanup may take before it is written down as an overrun and forced."""


class Disposition(StrEnum):
    """What became of an event that was sent."""

    TAKEN = "taken"
    REFUSED = "refused"
    IGNORED = "ignored"
    STALE = "stale"
    LATE = "late"


class Activity(Generic[F]):
    """What an activity sees of its driver: the facts, a way to report, a way to leave a note."""

    def __init__(self, driver: Driver[F], span: Span, number: int) -> None:
        self._driver = driver
        self._span = span
        self.number = number
        """Counts activations of all activities of this driver; an outcome is stale once its activation has ended."""

    @property
    def facts(self) -> F:
        """The facts now. In a cleanup: those after the event that ends the activity."""
        return self._driver.facts

    @property
    def now(self) -> float:
        """Unix seconds on the journal's clock, which is that of the events."""
        return self._driver.journal.now()

    def post(self, event: Event) -> None:
        """Report an outcome. Never waits: an activity that waited for its own server would wait for itself."""
        if not isinstance(event, self._span.outcomes):
            raise ChartError(f"the activity {self._span.activity!r} may not report {type(event).__name__}")
        self._driver.deliver(event, self.number)

    def note(self, kind: Kind = Kind.PHASE, **detail: Any) -> None:
        """Leave a record that changes nothing."""
        self._driver.note(kind, **detail)


ActivityFunction = Callable[[Activity[F]], Awaitable[None]]


@dataclass(eq=False)
class _Live:
    """An activity that is running."""

    span: Span
    number: int
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)
    closing: bool = False


@dataclass(eq=False, slots=True)
class _Letter:
    event: Event
    activation: int | None = None
    answered: anyio.Event | None = None
    disposition: Disposition = Disposition.LATE


class Driver(Generic[F]):
    """Drives one `(chart, facts)` to a final state.

    Args:
        chart: the table.
        facts: the first facts.
        activities: a coroutine function for each activity that the chart's spans name.
        journal: where everything that happens is written.
        fault: makes the event that tells of an activity that raised, from its name and the error's text. None: the
            error ends the driver.
        shutdown: the event that a cancellation from outside becomes. None: the activities are ended, and that is all.
        force: called with an activity's name when its cleanup takes longer than `grace` seconds, again each time.
    """

    def __init__(
        self,
        chart: Chart[F],
        facts: F,
        activities: Mapping[str, ActivityFunction[F]],
        journal: Journal,
        *,
        fault: Callable[[str, str], Event] | None = None,
        shutdown: Event | None = None,
        force: Callable[[str], Awaitable[None]] | None = None,
        grace: float = CLEANUP_GRACE,
    ) -> None:
        missing = [span.activity for span in chart.spans if span.activity not in activities]
        if missing:
            raise ChartError(f"chart {chart.name!r} has no function for the activities {', '.join(missing)}")
        self.chart = chart
        self.facts = facts
        self.state = chart.initial
        self.journal = journal
        journal.listen(logged(chart.name))
        self._first_facts = facts
        self._activities = activities
        self._fault = fault
        self._shutdown = shutdown
        self._force = force
        self._grace = grace
        self._mailbox: deque[_Letter] = deque()
        self._wake: anyio.Event | None = None
        self._live: list[_Live] = []
        self._activations = 0
        self._group: TaskGroup | None = None
        self._closed = False
        self._crash: Exception | None = None
        self._over = anyio.Event()

    def post(self, event: Event) -> None:
        """Put an event into the mailbox and go on."""
        self.deliver(event, None)

    async def send(self, event: Event) -> Disposition:
        """Put an event into the mailbox and wait for what becomes of it. Always ends: at the latest with LATE."""
        letter = _Letter(event, answered=anyio.Event())
        self._put(letter)
        assert letter.answered is not None
        await letter.answered.wait()
        return letter.disposition

    async def wait(self, *states: str, after: int = 0) -> Record:
        """The first transition into one of `states` after record `after`, also if it has long been left again."""
        return await self.journal.wait(
            lambda record: record.kind is Kind.TRANSITION and record.after in states, after=after
        )

    @property
    def over(self) -> bool:
        """Whether a final state has been reached and everything is released."""
        return self._over.is_set()

    async def ended(self) -> None:
        """Return when the driver has ended."""
        await self._over.wait()

    def snapshot(self) -> Snapshot[F]:
        return Snapshot(self.journal.seq, self.state, self.facts)

    @property
    def open_activities(self) -> tuple[str, ...]:
        """Activities that are running now, the outermost first."""
        return tuple(live.span.activity for live in self._live)

    def deliver(self, event: Event, activation: int | None) -> None:
        self._put(_Letter(event, activation))

    def note(self, kind: Kind, **detail: Any) -> None:
        self.journal.write(kind, self._attempt, before=self.state, after=self.state, detail=detail)

    async def run(self) -> None:
        """Take events until a final state is reached. A cancellation from outside becomes the `shutdown` event; the
        cancellation goes on when everything is released."""
        try:
            async with anyio.create_task_group() as outside:
                outside.start_soon(self._shielded)
                try:
                    await self._over.wait()
                except anyio.get_cancelled_exc_class():
                    self._cancelled()
                    with anyio.CancelScope(shield=True):
                        await self._over.wait()
                    raise
        except BaseExceptionGroup as group:  # one task, so one error: do not make the caller unwrap it
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise

    def _cancelled(self) -> None:
        if self._shutdown is not None:
            self.post(self._shutdown)
        else:
            self._closed = True
            self._ring()

    async def _shielded(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                async with anyio.create_task_group() as group:
                    self._group = group
                    try:
                        await self._loop()
                    finally:
                        for live in reversed(tuple(self._live)):
                            await self._end(live)
            finally:
                self._close()
                self._over.set()
        if self._crash is not None:
            raise self._crash

    async def _loop(self) -> None:
        self.journal.write(
            Kind.BEGIN,
            self._attempt,
            after=self.state,
            detail={"chart": self.chart.name, "facts": fields_of(self._first_facts)},
        )
        while self.state not in self.chart.final and not self._closed:
            if not self._mailbox:
                self._wake = anyio.Event()
                await self._wake.wait()
                continue
            await self._take(self._mailbox.popleft())

    async def _take(self, letter: _Letter) -> None:
        event = letter.event
        at = self.journal.now()
        if letter.activation is not None and all(live.number != letter.activation for live in self._live):
            self._write(Kind.STALE, letter, at)
            self._answer(letter, Disposition.STALE)
            return
        step = self.chart.step(self.state, self.facts, event, at)
        if step.outcome is Outcome.TAKEN:
            self.facts = step.facts
            ends, begins = self.chart.moves(step, tuple(live.span for live in self._live))
            for span in ends:
                await self._end(next(live for live in self._live if live.span is span))
            self.state = step.after
            self._write(kind_of(step), letter, at, step.before, step.after)
            for span in begins:
                self._begin(span)
        else:
            self._write(kind_of(step), letter, at)
        self._answer(letter, Disposition(step.outcome))

    def _write(
        self, kind: Kind, letter: _Letter, at: float, before: str | None = None, after: str | None = None
    ) -> None:
        self.journal.write(
            kind,
            self._attempt,
            at=at,
            event=type(letter.event).__name__,
            before=before or self.state,
            after=after or self.state,
            detail=fields_of(letter.event),
        )

    def _begin(self, span: Span) -> None:
        assert self._group is not None
        self._activations += 1
        live = _Live(span, self._activations)
        self._live.append(live)
        self._live.sort(key=lambda each: self.chart.spans.index(each.span))
        self._group.start_soon(self._act, live, name=span.activity)

    async def _act(self, live: _Live) -> None:
        name = live.span.activity
        try:
            # Errors are caught outside the scope: inside, a group may mix them with the scope's own cancellation.
            with live.scope:
                await self._activities[name](Activity(self, live.span, live.number))
        except Exception as error:
            text = _text(error)
            if live.closing:
                self.note(Kind.CLEANUP_ERROR, activity=name, error=text)
            elif self._fault is None:
                self._crash = self._crash or error
                self._closed = True
                self._ring()
            else:
                self.deliver(self._fault(name, text), live.number)
        finally:
            live.done.set()

    async def _end(self, live: _Live) -> None:
        """Cancel one activity and wait until its cleanup is through, however long that takes."""
        live.closing = True
        live.scope.cancel()
        while not live.done.is_set():
            with anyio.move_on_after(self._grace):
                await live.done.wait()
            if not live.done.is_set():
                self.note(Kind.OVERRUN, activity=live.span.activity, grace=self._grace)
                await self._escalate(live.span.activity)
        self._live.remove(live)

    async def _escalate(self, activity: str) -> None:
        if self._force is None:
            return
        try:
            with anyio.move_on_after(self._grace):
                await self._force(activity)
        except Exception as error:
            self.note(Kind.CLEANUP_ERROR, activity=activity, error=_text(error))

    def _put(self, letter: _Letter) -> None:
        if self._closed:
            self._late(letter)
            return
        self._mailbox.append(letter)
        self._ring()

    def _ring(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    def _close(self) -> None:
        self._closed = True
        while self._mailbox:
            self._late(self._mailbox.popleft())

    def _late(self, letter: _Letter) -> None:
        self._write(Kind.LATE, letter, self.journal.now())
        self._answer(letter, Disposition.LATE)

    def _answer(self, letter: _Letter, disposition: Disposition) -> None:
        letter.disposition = disposition
        if letter.answered is not None:
            letter.answered.set()

    @property
    def _attempt(self) -> int:
        attempt: int = getattr(self.facts, "attempt", 0)
        return attempt


def _text(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
