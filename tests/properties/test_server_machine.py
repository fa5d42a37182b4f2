"""The server's chart with its mailbox and activities as a random machine, beside rules that know nothing of the table.

Unlike the explorer, this one has real facts: attempts are counted, time passes, every diagnosis is another one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lifecycle.chart import Event, Outcome, Span
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.explore import Configuration, Move
from lifecycle.journal import Journal, Kind, fields_of, kind_of, replay
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import (
    EVENTS,
    Awoke,
    BecameReady,
    Ended,
    Exited,
    Facts,
    Fault,
    Kill,
    Launched,
    LaunchFailed,
    LockAcquired,
    LockFailed,
    LockSkipped,
    NotAsleep,
    NotReady,
    PortsFailed,
    Shutdown,
    Sleep,
    Stalled,
    Start,
    StartTimedOut,
    Stop,
    Unwell,
    Wake,
)
from lifecycle.testing.invariants import FINAL, INVARIANTS, MOVES
from tests.effort import TIMES

diagnoses = st.builds(
    Diagnosis,
    cause=st.sampled_from(["exited", "port-taken", "missing-model", "stalled"]),
    summary=st.just("it failed"),
    verdict=st.sampled_from(Verdict),
    exit_code=st.sampled_from([None, 1, -9]),
    evidence=st.sampled_from(["", "one", "other 1", "other 2"]),
)
asked = st.sampled_from([Stop(), Stop(), Kill(), Shutdown(), Start(), Sleep(), Wake()])
OUTCOMES: dict[type[Event], st.SearchStrategy[Event]] = {
    LockAcquired: st.just(LockAcquired("key")),
    LockSkipped: st.just(LockSkipped("complete")),
    Launched: st.builds(Launched, st.integers(2, 9), st.integers(1024, 1030), st.just("log")),
    BecameReady: st.just(BecameReady("model", "/health")),
    Awoke: st.just(Awoke()),
    Ended: st.just(Ended()),
    Fault: st.just(Fault("an activity", "RuntimeError: a bug")),
    **{
        kind: st.builds(kind, diagnoses)
        for kind in (LockFailed, PortsFailed, LaunchFailed, Exited, NotReady, StartTimedOut, Unwell, Stalled, NotAsleep)
    },
}


class ServerMachine(RuleBasedStateMachine):
    """A driver without a loop: posts and takes are rules."""

    @initialize(local=st.booleans(), attempts=st.integers(1, 4))
    def begin(self, local: bool, attempts: int) -> None:
        self.first = Facts(local=local, max_attempts=attempts, attempt_window=100.0)
        self.state, self.facts = SERVER.initial, self.first
        self.running: dict[Span, int] = {}
        self.activations = 0
        self.mailbox: deque[tuple[Event, int | None, str]] = deque()
        self.clock = 1000.0
        self.journal = Journal("s", epoch=0.0)
        self.journal.write(Kind.BEGIN, 0, at=self.clock, detail={"chart": "server", "facts": fields_of(self.first)})
        self.failed_in_a_row = 0
        self.mailbox.append((Start(), None, ""))

    def now(self) -> Configuration[Facts]:
        return Configuration(self.state, self.facts, tuple(span for span in SERVER.spans if span in self.running))

    @rule(event=asked)
    def ask(self, event: Event) -> None:
        self.mailbox.append((event, None, ""))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        """A running activity posts one of its outcomes, or has a bug."""
        span = data.draw(st.sampled_from(sorted(self.running, key=lambda each: each.activity)))
        kinds = [*span.outcomes] * 4 + [Fault]
        kind = data.draw(st.sampled_from(kinds))
        event = data.draw(OUTCOMES[kind]) if kind in OUTCOMES else kind()
        self.mailbox.append((event, self.running[span], span.activity))

    @rule(seconds=st.sampled_from([0.1, 99.0, 101.0]))
    def wait(self, seconds: float) -> None:
        self.clock += seconds

    @precondition(lambda self: self.mailbox and self.state not in FINAL)
    @rule()
    def take(self) -> None:
        event, activation, sender = self.mailbox.popleft()
        before = self.now()
        if activation is not None and activation not in self.running.values():
            self._check(Move(before, None, sender, None, (), (), self.now()))
            return
        step = SERVER.step(self.state, self.facts, event, self.clock)
        ends, begins = SERVER.moves(step, before.open)
        for span in ends:
            del self.running[span]
        for span in begins:
            self.activations += 1
            self.running[span] = self.activations
        self.state, self.facts = step.after, step.facts
        ended, began = tuple(span.activity for span in ends), tuple(span.activity for span in begins)
        self._check(Move(before, event, sender, step.outcome, ended, began, self.now()))
        self._check_counts(before, event, step.outcome)
        self.journal.write(
            kind_of(step), 0, at=self.clock, event=type(event).__name__, before=step.before, after=step.after,
            detail=fields_of(event),
        )  # fmt: skip

    def _check(self, move: Move[Facts]) -> None:
        for check in MOVES:
            assert check(move) is None, check(move)

    def _check_counts(self, before: Configuration[Facts], event: Event, outcome: Outcome) -> None:
        """Attempts and failures, counted here in another way."""
        if outcome is not Outcome.TAKEN:
            assert self.facts == before.facts
            return
        began = before.state in ("Idle", "Backoff") and self.state in ("Locking", "Starting")
        assert self.facts.attempt == before.facts.attempt + began
        if self.state == "Draining" != before.state and hasattr(event, "diagnosis"):
            free = self.facts.quick
            well = before.facts.healthy_since is not None and self.clock - before.facts.healthy_since >= 100.0
            self.failed_in_a_row = self.failed_in_a_row + (not free) if free or not well else 1
            assert self.facts.failures == self.failed_in_a_row
            assert self.facts.port_retries <= 1
        if self.state == "Backoff":
            assert self.facts.failures < self.facts.max_attempts
            assert self.facts.diagnosis is not None
            assert self.facts.diagnosis.verdict is not Verdict.HOPELESS

    @invariant()
    def rules_hold(self) -> None:
        if hasattr(self, "state"):
            for check in INVARIANTS:
                assert check(self.now()) is None, check(self.now())

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        stand = replay(self.journal.records, SERVER, EVENTS, Facts)["s"]
        assert (stand.state, stand.facts) == (self.state, self.facts)
        self._stop_now()

    def _stop_now(self) -> None:
        """Wherever it stands: a stop and the end of the process tree lead to a final state."""
        state, facts = self.state, self.facts
        for event in (Stop(), Ended()):
            if state not in FINAL:
                step = SERVER.step(state, facts, event, self.clock)
                state, facts = step.after, step.facts
        assert state in FINAL
        assert replace(facts, diagnosis=None).stopping or self.state in FINAL


TestServerMachine = ServerMachine.TestCase
TestServerMachine.settings = settings(max_examples=80 * TIMES, stateful_step_count=40, deadline=None)
