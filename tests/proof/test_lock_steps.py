"""The real lock of a compile cache, stopped before each of its calls, does what its table of steps says.

Two processes go on in turns that a test chooses, and may be killed before any call. After each call the table is asked
for all states that it allows; one of them must look as the folder does, and go on with the call that comes next. What
spin shows of the table holds of the code as far as this does."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lifecycle.adapter import CompileCache
from lifecycle.promela.locks import compile_lock
from lifecycle.promela.steps import OVER, Now, Protocol, after, begin, killed
from lifecycle.resources import caches
from tests.builders import Builders, Process, starting_builders
from tests.effort import TIMES

PROTOCOL = compile_lock(2)
LONGEST = 2000
"""Calls of a race; one takes about a hundred."""
Turn = tuple[int, int, bool]
"""Who, how many calls, and whether it is killed then."""


@pytest.fixture(scope="module")
def forks() -> Iterator[Builders]:
    with starting_builders(Path(__file__).with_name("stepped_process.py")) as builders:
        yield builders


def calls(protocol: Protocol, now: Now, me: int) -> set[str]:
    return {call for call, _ in after(protocol, now, me)}


class Race:
    """Two processes, and all states in which the table may be."""

    def __init__(self, forks: Builders, does: tuple[tuple[bool, bool], ...], protocol: Protocol = PROTOCOL) -> None:
        self._protocol = protocol
        self._folder = tempfile.TemporaryDirectory(prefix="stk-", dir="/tmp")
        root = Path(self._folder.name) / "vllm"
        root.mkdir()
        self._cache = CompileCache("key", root)
        self._entry = self._cache.entry(root)
        self._states = {begin(protocol)}
        self._told: list[str] = []
        self._processes: dict[int, Process] = {}
        self._next: dict[int, str] = {}
        """Of each that goes on: the call before which it stands."""
        self.ended: dict[int, str] = {}
        for me, (builds, completes) in enumerate(does, 1):
            self._processes[me] = forks.start(self._cache, root)
            self._processes[me].tell("contend", builds=builds, completes=completes)
            self._hear(me)

    def run(self, turns: list[Turn]) -> None:
        for me, count, kill in turns:
            for _ in range(count):
                if me in self._next:
                    self._go(me)
            if kill and me in self._next:
                self._kill(me)
        for number in range(LONGEST):
            if not self._next:
                break
            self._go(sorted(self._next)[number // 3 % len(self._next)])
        assert not self._next, f"nobody comes to an end: {self._told[-40:]}"
        self._folder.cleanup()

    def _hear(self, me: int) -> None:
        """What it is about to do; the table must be able to do the same."""
        said = self._processes[me].says()
        if "ended" in said:
            self._next.pop(me, None)
            self.ended[me] = said["ended"]
            allowed = {now for now in self._silent(me) if now.at[me] == OVER}
        else:
            self._next[me] = said["call"]
            allowed = {now for now in self._silent(me) if said["call"] in calls(self._protocol, now, me)}
        self._told.append(f"{me}: {said}")
        steps = {now.at[me] for now in self._states}
        assert allowed, f"the table is at {steps}, the code {said}: {self._told[-40:]}"
        self._states = allowed

    def _silent(self, me: int) -> set[Now]:
        """These states, and those that a process comes to without a call."""
        found, waiting = set(self._states), list(self._states)
        while waiting:
            for call, then in after(self._protocol, waiting.pop(), me):
                if not call and then not in found:
                    found.add(then)
                    waiting.append(then)
        return found

    def _go(self, me: int) -> None:
        call = self._next[me]
        process = self._processes[me]
        process.tell("go")
        self._states = {then for now in self._states for made, then in after(self._protocol, now, me) if made == call}
        self._hear(me)  # it has made the call, and stands before the next
        looks = self._look()
        alike = {now for now in self._states if self._as_seen(now) == looks}
        assert alike, f"after {call} of {me}: {looks}, not {set(map(self._as_seen, self._states))}: {self._told[-40:]}"
        self._states = alike

    def _kill(self, me: int) -> None:
        self._told.append(f"{me} is killed")
        self._processes[me].kill()
        del self._next[me]
        self._states = {killed(self._protocol, now, me) for now in self._states}

    def _look(self) -> tuple[bool, bool, bool, int, int]:
        entry = self._entry
        record = entry / caches.HOLDER
        pids = {process.pid: me for me, process in self._processes.items()}
        who = pids[json.loads(record.read_bytes())["pid"]] if record.exists() else 0
        files = entry / caches.FILES
        return (
            entry.exists(), (entry / caches.LOCK).exists(), (entry / caches.MARK).exists(), who,
            1 + caches.has_files(files) if files.exists() else 0,
        )  # fmt: skip

    def _as_seen(self, now: Now) -> tuple[bool, bool, bool, int, int]:
        there, lockfile, mark, record, files = (now.value(n) for n in ("there", "lockfile", "mark", "record", "files"))
        assert isinstance(record, int)
        assert isinstance(files, int)
        return bool(there), bool(lockfile), bool(mark), record, files


DOES = [((True, True), (True, True)), ((True, False), (False, False)), ((False, False), (True, True))]


@pytest.mark.parametrize("does", DOES, ids=str)
@pytest.mark.parametrize("kill", [False, True])
def test_wherever_one_is_interrupted_for_another_both_go_on_as_the_table_says(
    forks: Builders, does: tuple[tuple[bool, bool], ...], kill: bool
) -> None:
    for count in range(0, 45, max(1, 6 // TIMES)):
        race = Race(forks, does)
        race.run([(1, count, kill), (2, 60, False)])
        assert kill or len(race.ended) == 2
        forks.end_all()


@pytest.mark.parametrize("gone", ["parent", "still_there", "other_builder", "old_files", "left_files"])
def test_a_table_that_lacks_a_step_is_not_taken_for_the_code(forks: Builders, gone: str) -> None:
    programs = tuple(tuple(step for step in program if step.name != gone) for program in PROTOCOL.programs)
    race = Race(forks, DOES[2], replace(PROTOCOL, programs=programs))
    try:
        with pytest.raises(AssertionError, match="the table is at"):
            race.run([(1, 30, False), (2, 60, False)])
    finally:
        forks.end_all()


@given(
    st.sampled_from(DOES),
    st.lists(st.tuples(st.integers(1, 2), st.integers(1, 12), st.integers(0, 9).map(lambda n: n == 0)), max_size=12),
)
@settings(
    max_examples=25 * TIMES, deadline=None, suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)  # fmt: skip
def test_in_whatever_turns_they_go_on_and_are_killed_the_code_does_what_the_table_says(
    forks: Builders, does: tuple[tuple[bool, bool], ...], turns: list[Turn]
) -> None:
    try:
        Race(forks, does).run(turns)
    finally:
        forks.end_all()
