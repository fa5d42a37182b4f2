"""Random lives of real processes that contend for one compile cache: killed at any moment, and at any step, whatever
the file system does. One builds at a time; all see what is complete; and whoever has died, the cache can be had."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule, run_state_machine_as_test

from lifecycle.adapter import CompileCache
from tests.builders import GUARD, Builders, Process, starting_builders
from tests.effort import TIMES

NFS = "server:/x / nfs4 rw 0 0\n"
WORLDS: dict[str, dict[str, Any]] = {
    "flock": {},
    "a lease": {"flock": "ENOSYS"},
    "both": {"mounts": NFS},
    "both, of which flock excludes nobody": {"mounts": NFS, "flock": "succeeds"},
}
BRIEF = (1.0, 0.05)


class Lives(RuleBasedStateMachine):
    """What the model knows: who holds the cache, and whether it is complete."""

    forks: ClassVar[Builders]
    world: ClassVar[dict[str, Any]]
    processes = Bundle("processes")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="stk-", dir="/tmp"))
        self.cache = CompileCache("key", self.folder / "vllm")
        self.holder: Process | None = None
        self.complete = False

    @initialize(target=processes)
    def first(self) -> Process:
        return self.new()

    @rule(target=processes)
    def another(self) -> Process:
        return self.new()

    def new(self) -> Process:
        return self.forks.start(self.cache, self.folder, lease=BRIEF, **self.world)

    @rule(process=processes)
    def look(self, process: Process) -> None:
        """One look of one that does not hold the cache."""
        if process is not self.holder and process.alive:
            self.judge(process, process.ask("look").get("got"))

    def judge(self, process: Process, got: str | None) -> None:
        if self.holder is not None and not self.holder.alive:  # at a heartbeat, for instance
            self.bury(self.holder)
        if got == "held":
            assert self.holder is None, "two hold it"
            assert not self.complete, "what is complete is built again"
            self.holder = process
        elif got == "complete":
            assert self.complete, "nobody has completed it"
        elif got == "waiting":
            assert not self.complete, "what is complete is waited for"
        else:
            self.bury(process)

    @rule(process=processes, count=st.integers(0, 2))
    def build(self, process: Process, count: int) -> None:
        """The holder builds, and says when it is done."""
        if process is self.holder:
            if process.ask("write", count=count) and process.ask("complete"):
                self.complete = True
            else:
                self.bury(process)

    @rule(process=processes)
    def release(self, process: Process) -> None:
        if process is self.holder:
            self.holder = None
            if not process.ask("release"):
                self.bury(process)

    @rule(process=processes, step=st.integers(0, 30))
    def doom(self, process: Process, step: int) -> None:
        """It will be killed just before one of its next steps in the file system."""
        process.ask("die_at", step=step)

    @rule(process=consumes(processes))
    def kill(self, process: Process) -> None:
        self.bury(process)

    @rule(process=processes)
    def void(self, process: Process) -> None:
        """The cache has proved to be broken."""
        if process.alive:
            if process.ask("void"):
                self.complete = False
            else:
                self.bury(process)

    @rule(process=processes)
    def clear(self, process: Process) -> None:
        if process is not self.holder and process.alive:
            answer = process.ask("clear")
            if self.holder is not None and not self.holder.alive:
                self.bury(self.holder)
            if answer.get("kind") == "InUse":
                assert self.holder is not None, "nobody builds it, and it cannot be removed"
            elif answer:
                assert self.holder is None or not self.cache.entry(self.folder).exists(), "removed while it is built"
                self.complete = False
            else:
                self.bury(process)

    @rule()
    def somebody_comes(self) -> None:
        """It gets the cache if nobody has it, however those before it have died."""
        process = self.new()
        deadline = time.monotonic() + GUARD
        got = process.ask("look")["got"]
        while got == "waiting" and self.holder is None:
            assert time.monotonic() < deadline, "nobody holds it, and it cannot be had"
            time.sleep(BRIEF[1])
            got = process.ask("look")["got"]
        self.judge(process, got)
        if process is self.holder:
            self.release(process)

    def bury(self, process: Process) -> None:
        """It has died, or does now. What it was about to do may have been done, or not."""
        process.kill()
        if process is self.holder:
            self.holder = None
        if self.complete or (self.cache.entry(self.folder) / "complete").exists():
            other = self.new()
            self.complete = other.ask("look")["got"] == "complete"
            other.kill()

    def teardown(self) -> None:
        self.somebody_comes()
        self.forks.end_all()
        shutil.rmtree(self.folder)


@pytest.mark.fault(73, 76)
@pytest.mark.parametrize("world", sorted(WORLDS))
def test_one_builds_all_see_what_is_complete_and_a_death_at_any_step_leaves_it_to_be_had(world: str) -> None:
    with starting_builders() as forks:
        Lives.forks, Lives.world = forks, WORLDS[world]
        run_state_machine_as_test(
            Lives,
            settings=settings(
                max_examples=10 * TIMES, stateful_step_count=30, deadline=None,
                phases=(Phase.reuse, Phase.generate),  # real processes are too slow to shrink with
                suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip
