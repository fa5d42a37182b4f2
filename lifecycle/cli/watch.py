"""What the commands share while a server lives: its story in words, and the signals that end it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager

import anyio
import msgspec

from lifecycle.cli.notice import Attended, Notice
from lifecycle.cli.say import put, tell
from lifecycle.cli.signals import at_once, exit_code_of
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.errors import StartFailed, StokerError
from lifecycle.findings import NEVER_STARTED
from lifecycle.journal import Kind, Record
from lifecycle.resources.desk import keep_desk
from lifecycle.roster import Roster
from lifecycle.service import Listener
from lifecycle.story import hint_of, is_whole, phase_words, words_of


class Narrator:
    """Tells a server's life: `say` gets a short line for each state, `phase` what happens inside one, and `status`
    (for a display that shows where things stand) the name of each state."""

    def __init__(
        self,
        say: Callable[[str], None],
        phase: Callable[[str], None],
        status: Callable[[str], None] = lambda state: None,
        *,
        pause: float = 0.0,
    ) -> None:
        """`pause`: seconds between two lines about the same phase, where each is a line of its own."""
        self._say = say
        self._phase = phase
        self._status = status
        self._since: dict[str, float] = {}
        self._pause = pause
        self._told: tuple[str, float] = ("", 0.0)
        self._hint = ""
        self._hinted: set[str] = set()

    def __call__(self, record: Record) -> None:
        """A journal listener."""
        if record.kind is Kind.PHASE:
            name, at = str(record.detail.get("phase")), record.time
            if name != self._told[0] or at >= self._told[1] + self._pause or is_whole(record):
                self._told = (name, at)
                self._phase(phase_text(record))
        elif record.kind is Kind.TRANSITION:
            started = self._since.setdefault("Starting", record.time)
            if record.after in ("Locking", "Starting"):  # a part that nobody can ask is Healthy without the latter
                self._since["Starting"] = started = record.time
            self._say(line_of(record, record.time - started))
            self._hint = hint_of(record) or self._hint
            if record.after == "Backoff" and self._hint and self._hint not in self._hinted:
                self._hinted.add(self._hint)  # once: the same may happen again
                self._say(f"  {'':<10} {self._hint}")
            self._status(record.after or "")
        elif record.kind in (Kind.OVERRUN, Kind.CLEANUP_ERROR):
            self._say(f"  {record.kind}: {dict(record.detail)}")


class Narrators:
    """Narrators of many servers; what each says comes with the server's name, as `named` writes it."""

    def __init__(
        self,
        say: Callable[[str], None],
        phase: Callable[[str], None],
        named: Callable[[str, str], str],
        *,
        pause: float,
    ) -> None:
        self._say = say
        self._phase = phase
        self._named = named
        self._pause = pause
        self._each: dict[str, Narrator] = {}

    def __call__(self, record: Record) -> None:
        """A listener of the journals of all of them."""
        name = record.server
        if name not in self._each:
            self._each[name] = Narrator(
                lambda text: self._say(self._named(name, text)),
                lambda text: self._phase(self._named(name, text)),
                pause=self._pause,
            )
        self._each[name](record)


class GroupNarrator:
    """Tells the lives of a group, or of a host of one, and of the members there, like a `Narrator`; what a member does
    comes with its name."""

    def __init__(
        self,
        group: str,
        say: Callable[[str], None],
        phase: Callable[[str], None],
        status: Callable[[str], None] = lambda state: None,
        *,
        pause: float = 0.0,
    ) -> None:
        self._group = group
        self._itself = Narrator(say, phase, status, pause=pause)
        self._members = Narrators(say, phase, lambda name, text: f"    {name} {text}", pause=pause)

    def __call__(self, record: Record) -> None:
        """A listener of the journals of all of them."""
        (self._itself if record.server == self._group else self._members)(record)


class FleetNarrator:
    """Tells the lives of a fleet and of its replicas like a `Narrator`, each line with the name of whom it is about.
    `status` gets the fleet's state and how many replicas serve, such as "Healthy 7/8"."""

    def __init__(
        self,
        fleet: str,
        replicas: int,
        say: Callable[[str], None],
        phase: Callable[[str], None],
        status: Callable[[str], None] = lambda state: None,
        *,
        pause: float = 0.0,
    ) -> None:
        self._fleet = fleet
        self._replicas = replicas
        self._say = say
        self._status = status
        self._state = ""
        self._healthy: set[str] = set()
        self._servers = Narrators(say, phase, self._named, pause=pause)

    def __call__(self, record: Record) -> None:
        """A listener of the journals of all of them."""
        if record.kind is Kind.TRANSITION:
            if record.server == self._fleet:
                self._state = record.after or ""
            elif record.after == "Healthy":
                self._healthy.add(record.server)
            else:
                self._healthy.discard(record.server)
            self._status(f"{self._state} {len(self._healthy)}/{self._replicas}")
        if record.server != self._fleet:
            self._servers(record)
        elif record.kind is Kind.TRANSITION:
            self._say(self._named(self._fleet, self._line(record)))

    def _named(self, name: str, text: str) -> str:
        return f"  {name:<{len(self._fleet) + 3}}{text}"

    def _line(self, record: Record) -> str:
        if record.after in ("Starting", "Healthy"):
            return f"  {record.after:<10} {len(self._healthy)} of {self._replicas} replicas serve"
        return line_of(record, 0.0)


def phase_text(record: Record) -> str:
    """A phase of a start or a drain, with its progress."""
    return f"  {record.after:<10} … {phase_words(record)}"


def line_of(record: Record, since_start: float) -> str:
    """One transition in words."""
    return f"  {record.after:<10} {words_of(record, since_start)}".rstrip()


PHASE_PAUSE = 10.0
"""Seconds between two lines about one phase of a start, where each is a line of its own."""
FIRST_WORD = 10.0
"""Seconds in one state until it is told that it lasts; then twice as long each time."""
LASTING = ("Locking", "Gathering", "Joining", "Starting", "Draining", "Backoff")


@asynccontextmanager
async def attended(
    server: Attended,
    stop: anyio.Event,
    say: Callable[[str], None],
    *,
    but: Collection[int] = (),
    work_first: bool = False,
    before: float | None = None,
    roster: Roster | None = None,
    in_flight: Callable[[], int] = lambda: 0,
    hurry: Callable[[], None] = lambda: None,
) -> AsyncIterator[list[int]]:
    """While the body runs, notices (signals, and the end of the time that a Slurm job has) set `stop` and drain, a
    second Ctrl-C ends at once, and a state that lasts is told of through `say`. To be entered before the server, so
    that its end is attended too. Gives the numbers of the signals that came, 0 for time. An error of the body goes on
    as itself, not inside a group.

    Args:
        but: signals that mean something else here and are left alone.
        work_first: what has been begun may finish before the server is told, see `Notice`.
        before: seconds before the end of a job at which no new work is begun any more, see `Notice.mind_the_clock`.
        roster, in_flight: how the servers stand, for `stoker ps`, and how many requests they have.
        hurry: called when all is to end at once.
    """
    notice = Notice(server, stop, work_first=work_first, hurry=hurry)
    roster = roster or Roster()
    error: StokerError | None = None

    def told(*numbers: signal.Signals) -> None:
        for number in numbers:
            notice.take(number, group)

    async with anyio.create_task_group() as group:
        stop_or_kill = (lambda: told(signal.SIGTERM), lambda: told(signal.SIGINT, signal.SIGINT))
        group.start_soon(keep_desk, roster.standings, in_flight, *stop_or_kill)
        group.start_soon(notice.listen, group, but)
        group.start_soon(notice.mind_the_clock, group, before, say)
        group.start_soon(_tell_waits, server, say)
        try:
            yield notice.came
        except StokerError as found:
            error = found
        group.cancel_scope.cancel()
    if error is not None:
        raise error


async def _tell_waits(server: Attended, say: Callable[[str], None]) -> None:
    while True:
        seq, began, pause = server.journal.seq, anyio.current_time(), FIRST_WORD
        moved = False
        while not moved:
            with anyio.move_on_after(pause):
                await server.journal.wait(lambda record: record.kind is Kind.TRANSITION, after=seq)
                moved = True
            if not moved and server.state in LASTING:
                why = f": {server.waiting_for}" if server.waiting_for else ""
                say(f"  {server.state:<10} … for {anyio.current_time() - began:.0f} s{why}")
                pause *= 2


def telling(narrate: Listener, *, as_json: bool) -> Listener:
    """Who tells of each record: `narrate`, or standard output, which gets it as a JSON line."""

    def as_a_line(record: Record) -> None:
        put(msgspec.json.encode(record).decode())

    return as_a_line if as_json else narrate


def each_of(*listeners: Listener) -> Listener:
    """One listener that tells all of these."""

    def tell_all(record: Record) -> None:
        for listener in listeners:
            listener(record)

    return tell_all


def code_of_end(signals: Sequence[int], ended: str, diagnosis: Diagnosis | None) -> int:
    """The exit code of what served until its final state `ended`; tells why it was given up, if it was."""
    if at_once(signals):
        return exit_code_of(signals)
    if ended == "Failed" and diagnosis is not None:
        return tell_failure(StartFailed(diagnosis))
    return 0


def tell_failure(error: StartFailed) -> int:
    """Tell the diagnosis of a server that was given up, on standard error; the exit code for it: 2 if the installed
    engine would not take what the configuration asks, so that nothing was started, else 1."""
    found = error.diagnosis
    never_started = found.cause in NEVER_STARTED and not found.log
    tell(f"stoker: {found.text()}" if never_started else f"stoker: given up: {found.text()}")
    if found.verdict is Verdict.HOPELESS and not never_started:
        tell("  not tried again: another attempt cannot help before this is changed")
    return 2 if never_started else 1
