"""A server's chart with its mailbox and activities as a random machine, to extend. Needs the package hypothesis.

    class MyMachine(ServerMachine):
        chart = MY_CHART

        def check_move(self, move, event):
            super().check_move(move, event)
            assert ...

    TestMyMachine = MyMachine.TestCase
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lifecycle.chart import Chart, Event, Span
from lifecycle.explore import Configuration, Invariant, Move, MoveInvariant
from lifecycle.journal import Journal, Kind, fields_of, kind_of, replay
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import EVENTS, Ended, Facts, Fault, Start, Stop
from lifecycle.testing.invariants import INVARIANTS, MOVES
from lifecycle.testing.strategies import OUTCOMES, asked

SERVER_ID = "s"
RESTS = ("", "stop", "sleep")
"""What becomes of a server that nobody needs; "": nothing."""


class ServerMachine(RuleBasedStateMachine):
    """A driver without a loop: callers ask, activities report, time passes, and events are taken one at a time, each of
    these whenever Hypothesis likes. Unlike the explorer's, its facts are real: attempts are counted, and every
    diagnosis is another one. At the end the journal must replay, and a stop must lead to a final state.
    """

    chart: ClassVar[Chart[Facts]] = SERVER
    events: ClassVar[Mapping[str, type[Event]]] = EVENTS
    """All events of the chart by name, for the replay."""
    outcomes: ClassVar[Mapping[type[Event], st.SearchStrategy[Event]]] = OUTCOMES
    """What activities report; a kind that is not here is made without arguments."""
    invariants_of_states: ClassVar[Sequence[Invariant[Facts]]] = INVARIANTS
    invariants_of_moves: ClassVar[Sequence[MoveInvariant[Facts]]] = MOVES

    @initialize(local=st.booleans(), attempts=st.integers(1, 4), rests=st.sampled_from(RESTS))
    def begin(self, local: bool, attempts: int, rests: str = "") -> None:
        self.first = Facts(
            local=local, max_attempts=attempts, attempt_window=100.0, attaches=local, keeps=local,
            idles=local and bool(rests), sleeps_when_idle=rests == "sleep",
        )  # fmt: skip
        self.state, self.facts = self.chart.initial, self.first
        self.running: dict[Span, int] = {}
        self.activations = 0
        self.mailbox: deque[tuple[Event, int | None, str]] = deque()
        self.clock = 1000.0
        self.journal = Journal(SERVER_ID, epoch=0.0)
        detail = {"chart": "server", "facts": fields_of(self.first)}
        self.journal.write(Kind.BEGIN, 0, at=self.clock, detail=detail)
        self.mailbox.append((Start(), None, ""))

    def now(self) -> Configuration[Facts]:
        """Where the machine stands."""
        return Configuration(self.state, self.facts, tuple(span for span in self.chart.spans if span in self.running))

    @rule(event=asked())
    def ask(self, event: Event) -> None:
        self.mailbox.append((event, None, ""))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        """A running activity posts one of its outcomes, or has a bug."""
        span = data.draw(st.sampled_from(sorted(self.running, key=lambda each: each.activity)))
        kinds = [*span.outcomes] * 4 + [Fault]
        kind = data.draw(st.sampled_from(kinds))
        event = data.draw(self.outcomes[kind]) if kind in self.outcomes else kind()
        self.mailbox.append((event, self.running[span], span.activity))

    @rule(seconds=st.sampled_from([0.1, 99.0, 101.0]))
    def wait(self, seconds: float) -> None:
        self.clock += seconds

    @precondition(lambda self: self.mailbox and self.state not in self.chart.final)
    @rule()
    def take(self) -> None:
        event, activation, sender = self.mailbox.popleft()
        before = self.now()
        if activation is not None and activation not in self.running.values():
            self.check_move(Move(before, None, sender, None, (), (), self.now()), None)
            return
        step = self.chart.step(self.state, self.facts, event, self.clock)
        ends, begins = self.chart.moves(step, before.open)
        for span in ends:
            del self.running[span]
        for span in begins:
            self.activations += 1
            self.running[span] = self.activations
        self.state, self.facts = step.after, step.facts
        ended, began = tuple(span.activity for span in ends), tuple(span.activity for span in begins)
        self.check_move(Move(before, event, sender, step.outcome, ended, began, self.now()), event)
        self.journal.write(
            kind_of(step), 0, at=self.clock, event=type(event).__name__, before=step.before, after=step.after,
            detail=fields_of(event),
        )  # fmt: skip

    def check_move(self, move: Move[Facts], event: Event | None) -> None:
        """Called after each event that was taken from the mailbox; `event` is None for a stale outcome. Extend it."""
        for check in self.invariants_of_moves:
            assert check(move) is None, check(move)

    @invariant()
    def rules_hold(self) -> None:
        if hasattr(self, "state"):
            for check in self.invariants_of_states:
                assert check(self.now()) is None, check(self.now())

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        stand = replay(self.journal.records, self.chart, self.events, Facts)[SERVER_ID]
        assert (stand.state, stand.facts) == (self.state, self.facts), "the journal replays to somewhere else"
        self._stop_now()

    def _stop_now(self) -> None:
        """Wherever it stands: a stop and the end of the process tree lead to a final state."""
        state, facts = self.state, self.facts
        for event in (Stop(), Ended()):
            if state not in self.chart.final:
                step = self.chart.step(state, facts, event, self.clock)
                state, facts = step.after, step.facts
        assert state in self.chart.final, f"a stop and the end of the process lead to {state}"
        assert facts.stopping or self.state in self.chart.final, "a stop was forgotten"
