"""The server's chart as a random machine, beside counts that know nothing of the table."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from lifecycle.chart import Event, Outcome
from lifecycle.diagnosis import Verdict
from lifecycle.explore import Move
from lifecycle.server_facts import Facts, Idled
from lifecycle.testing.machine import RESTS, ServerMachine
from tests.effort import TIMES


class CountingMachine(ServerMachine):
    """Attempts and failures, counted here in another way."""

    @initialize(local=st.booleans(), attempts=st.integers(1, 4), rests=st.sampled_from(RESTS))
    def begin(self, local: bool, attempts: int, rests: str) -> None:
        super().begin(local, attempts, rests)
        self.failed_in_a_row = 0

    def check_move(self, move: Move[Facts], event: Event | None) -> None:
        super().check_move(move, event)
        before = move.before
        if move.outcome is not Outcome.TAKEN:
            assert self.facts == before.facts
            return
        began = before.state in ("Idle", "Dormant", "Backoff") and self.state in ("Locking", "Starting")
        assert self.facts.attempt == before.facts.attempt + began
        if isinstance(event, Idled):
            well = before.facts.healthy_since is not None and self.clock - before.facts.healthy_since >= 100.0
            self.failed_in_a_row = 0 if well else self.failed_in_a_row
        if self.state == "Draining" != before.state and getattr(event, "diagnosis", None) is not None:
            free = self.facts.quick
            well = before.facts.healthy_since is not None and self.clock - before.facts.healthy_since >= 100.0
            self.failed_in_a_row = self.failed_in_a_row + (not free) if free or not well else 1
            assert self.facts.failures == self.failed_in_a_row
            assert self.facts.port_retries <= 1
        if self.state == "Backoff":
            assert self.facts.failures < self.facts.max_attempts
            assert self.facts.diagnosis is not None
            assert self.facts.diagnosis.verdict is not Verdict.HOPELESS


TestServerMachine = CountingMachine.TestCase
TestServerMachine.settings = settings(max_examples=80 * TIMES, stateful_step_count=40, deadline=None)
