"""A server on another node as it is known here: the state, the facts and the URL that its latest news told of. Pure."""

from __future__ import annotations

from lifecycle.chart import Event
from lifecycle.diagnosis import Diagnosis
from lifecycle.journal import Record, fields_of, kind_of
from lifecycle.ray.actor import News
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import Ended, Exited, Facts

ALIVE = ("Starting", "Healthy", "Asleep")


class Mirror:
    """One life of a server elsewhere."""

    def __init__(self, label: str) -> None:
        self.state = SERVER.initial
        self.facts = Facts()
        self.url = ""
        self._label = label
        self._seq = 0
        self._time = float("-inf")

    def take(self, news: News) -> None:
        """It was there."""
        self.state, self.facts, self.url = news.state, news.facts, news.url
        self._seq, self._time = news.record.seq, news.record.time

    def lost(self, found: Diagnosis, at: float) -> list[Record]:
        """Its node or its actor has gone: the records that its own journal would have had, could it still write."""
        if self.state not in ALIVE:
            return []
        return [self._step(Exited(found), at), self._step(Ended(), at)]

    def _step(self, event: Event, at: float) -> Record:
        self._seq, self._time = self._seq + 1, max(self._time, at)
        step = SERVER.step(self.state, self.facts, event, self._time)
        self.state, self.facts = step.after, step.facts
        return Record(
            self._seq, self._time, self._label, self.facts.attempt, kind_of(step), type(event).__name__, step.before,
            step.after, fields_of(event),
        )  # fmt: skip
