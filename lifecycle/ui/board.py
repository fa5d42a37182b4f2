"""What the live page shows of servers: their lives from the records of their journals, as plain values. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from lifecycle.journal import Kind, Record
from lifecycle.story import phase_words
from lifecycle.trace.charts import chart_of, drawn, view_of
from lifecycle.trace.lives import Life
from lifecycle.ui.plain import plain_attempts, plain_record, words_for

KEPT = 400
"""Records, stretches and attempts of each server that are kept; the sums are of all."""
SHOWN_ATTEMPTS = 20
MOST_PHASES = 40
STARTING = ("Locking", "Adopting", "PortBound", "Starting", "Gathering", "Joining", "Placing")
"""States whose phases are those of a start."""


class Story:
    """One server on the page."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = Life(name, keep=KEPT)
        self.starts = 0
        self.failures = 0
        """In all its lives: a replica that is replaced has several."""
        self.version = 0
        """Counts its records, in all its lives."""
        self.moved = 0
        """The version at which its attempts last changed."""
        self.begun = 0
        """The version at which its present life began."""
        self.events: deque[tuple[int, dict[str, Any]]] = deque(maxlen=KEPT)
        self.phases: deque[dict[str, Any]] = deque(maxlen=MOST_PHASES)
        """Of its present or last start."""
        self.doing = ""
        """What happens inside its state."""
        self.latest: list[str] = []
        """Its latest transition: state before, event, state after."""

    def take(self, record: Record) -> None:
        """The next record."""
        self.version += 1
        if record.kind is Kind.BEGIN and self.life.taken:
            self.life = Life(self.name, keep=KEPT)
        if record.kind is Kind.BEGIN:
            self.begun = self.version
        starts, failures = len(self.life.attempts), len(self.life.failed)
        self.life.take(record)
        self.starts += max(0, len(self.life.attempts) - starts)
        self.failures += max(0, len(self.life.failed) - failures)
        self.events.append((self.version, plain_record(record, words_for(self.life, record))))
        if record.kind is Kind.PHASE:
            self._phase(record)
        elif record.kind in (Kind.TRANSITION, Kind.BEGIN):
            self.moved, self.doing = self.version, ""
            self.latest = [record.before or "", record.event or "", record.after or ""]
            if record.kind is Kind.BEGIN or record.after in ("Locking", "Gathering", "Placing"):
                self.phases.clear()

    def _phase(self, record: Record) -> None:
        detail = record.detail
        self.doing = phase_words(record)
        if record.after not in STARTING:
            return
        name = str(detail.get("phase"))
        told = {"name": name, "words": self.doing, "done": detail.get("done"), "total": detail.get("total")}
        if self.phases and self.phases[-1]["name"] == name:
            self.phases[-1].update(told)
        else:
            self.phases.append({**told, "began": record.time})

    def plain(self, seen: int = 0) -> dict[str, Any]:
        """For a page that has this server as it was at version `seen`; 0: that has nothing of it."""
        life = self.life
        stretch = life.stretches[-1] if life.stretches else None
        said: dict[str, Any] = {
            "name": self.name, "kind": life.chart, "version": self.version, "state": life.state,
            "began": life.began, "since": stretch.began if stretch else None,
            "attempt": life.attempts[-1].number if life.attempts else 0, "failures": self.failures,
            "seconds": life.seconds_before(),
            "moves": [[*move, count] for move, count in life.moves.items()], "latest": self.latest,
            "phases": list(self.phases), "doing": self.doing,
            "events": [event for version, event in self.events if version > seen],
        }  # fmt: skip
        if life.attempts:
            said["model"], said["log"] = life.attempts[-1].model, life.attempts[-1].log
        if self.moved > seen:
            said["attempts"] = plain_attempts(life)[-SHOWN_ATTEMPTS:]
        if self.begun > seen:
            found = view_of(life)
            chart = chart_of(life)
            said["chart"] = drawn(found) if found else None
            said["final"] = sorted(chart.final) if chart else []
            said["anew"] = True
        return said


class Board:
    """A journal listener that keeps what the page shows of each server, and tells who waits for something new."""

    def __init__(self) -> None:
        self.stories: dict[str, Story] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called after each record."""

    def __call__(self, record: Record) -> None:
        """Take a record of a journal."""
        if record.server not in self.stories:
            self.stories[record.server] = Story(record.server)
        self.stories[record.server].take(record)
        self.changed()

    def log_of(self, name: str) -> str:
        """The path of a server's present or last log; empty if it has none."""
        story = self.stories.get(name)
        return story.life.attempts[-1].log if story and story.life.attempts else ""

    def news(self, seen: dict[str, int]) -> list[dict[str, Any]]:
        """What is new for a page that has servers as they were at these versions, which are moved on."""
        told = []
        for name, story in self.stories.items():
            if story.version > seen.get(name, 0):
                told.append(story.plain(seen.get(name, 0)))
                seen[name] = story.version
        return told
