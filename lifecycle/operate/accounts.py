"""What journals come to, in numbers: where each server stands, and what it did how often and for how long. Pure."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lifecycle.chart import Chart
from lifecycle.journal import Kind, Record
from lifecycle.story import found_in

MOST_NAMES = 1000
"""Servers that have accounts of their own. A program that gives each new server a new name would otherwise grow for
ever; those after them are counted together, as `OTHER`."""
MOST_CAUSES = 100
"""The same of causes: an adapter may make them up."""
OTHER = "other"


@dataclass
class Account:
    """One server, group, fleet, or whatever else a chart drives."""

    chart: str
    state: str
    since: float
    """Unix seconds at which it came to that state."""
    seen: float
    """The same on the clock of the accounts."""
    attempt: int = 0
    """Of its present life."""
    attempts: int = 0
    """Starts begun, in all its lives."""
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """In each state that it has left."""
    transitions: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By state before, state after, event."""
    failures: Counter[str] = field(default_factory=Counter)
    """By the cause that was diagnosed."""
    problems: Counter[str] = field(default_factory=Counter)
    """Cleanups that took too long or raised, by kind of record."""
    replicas: int | None = None
    """Of a fleet; None: it is none."""
    min_healthy: int = 0
    healthy: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    """Names of replicas that serve, and of those that never will again."""


class Accounts:
    """A journal listener that keeps account.

    Args:
        charts: whose states are known, and which of these are final: there time is not counted. Of another chart the
            states are those that were seen.
        clock: seconds that never go back. The time in a state is counted by it, and not by the times of the records,
            so that it never shrinks: those are the times at which events came, before the cleanups that they caused.
    """

    def __init__(self, charts: Iterable[Chart[Any]] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self.of: dict[str, Account] = {}
        """By the name of the server."""
        self._states = {chart.name: tuple(state.name for state in chart.states) for chart in charts}
        self._final = {chart.name: chart.final for chart in charts}
        self._causes: set[str] = set()
        self._clock = clock

    def __call__(self, record: Record) -> None:
        """Take a record."""
        account = self._account(record)
        match record.kind:
            case Kind.BEGIN:
                self._begin(account, record)
            case Kind.TRANSITION | Kind.INTERNAL:
                self._step(account, record)
            case Kind.OVERRUN | Kind.CLEANUP_ERROR:
                account.problems[record.kind.value] += 1
        if record.attempt > account.attempt:
            account.attempts += record.attempt - account.attempt
            account.attempt = record.attempt

    def name(self, server: str) -> str:
        """The name under which a server is counted."""
        return server if server in self.of or len(self.of) < MOST_NAMES else OTHER

    def states(self, account: Account) -> Mapping[str, bool]:
        """Every state that it can be in, and whether it is in it now."""
        seen = {state for before, after, _ in account.transitions for state in (before, after)}
        known = self._states.get(account.chart) or tuple(sorted({account.state, *seen}))
        return {state: state == account.state for state in known}

    def seconds(self, account: Account) -> Mapping[str, float]:
        """How long it was in each state that it has come to, up to now."""
        found = dict(account.seconds)
        if account.state not in self._final.get(account.chart, ()):
            found[account.state] = found.get(account.state, 0.0) + self._clock() - account.seen
        return found

    def _account(self, record: Record) -> Account:
        name = self.name(record.server)
        if name not in self.of:
            self.of[name] = Account("", record.before or record.after or "", record.time, self._clock())
        return self.of[name]

    def _begin(self, account: Account, record: Record) -> None:
        facts = record.detail.get("facts") or {}
        account.chart = str(record.detail.get("chart") or "")
        self._enter(account, record)
        account.attempt = 0
        account.healthy.clear()
        account.lost.clear()
        if "min_healthy" in facts:
            account.replicas, account.min_healthy = facts["replicas"], facts["min_healthy"]

    def _enter(self, account: Account, record: Record) -> None:
        account.state, account.since, account.seen = record.after or "", record.time, self._clock()

    def _step(self, account: Account, record: Record) -> None:
        detail = record.detail
        if record.kind is Kind.TRANSITION:
            before = record.before or ""
            account.seconds[before] += self._clock() - account.seen
            account.transitions[before, record.after or "", record.event or ""] += 1
            self._enter(account, record)
            cause = str(found_in(record).get("cause") or "")
            if cause:
                account.failures[self._bounded(cause)] += 1
        name = detail.get("name")
        if account.replicas is not None and isinstance(name, str):
            for names, event in ((account.healthy, "ReplicaHealthy"), (account.lost, "ReplicaLost")):
                (names.add if record.event == event else names.discard)(name)

    def _bounded(self, cause: str) -> str:
        if cause not in self._causes and len(self._causes) >= MOST_CAUSES:
            return OTHER
        self._causes.add(cause)
        return cause
