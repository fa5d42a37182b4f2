"""What goes wrong in a run of the whole system as time goes by, at the rates of its seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from tests.simulation.whole.world import World


class Fate:
    """Strikes a world now and then."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def strike(self) -> None:
        """Until all is calm."""
        kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill, "kill at a step": self._kill_at_a_step, "power cut": self._power_cut,
            "flap": self._flap, "no space": self._no_space, "bad disk": self._bad_disk,
            "clock jump": self._clock_jump, "lease lost": self._world.machine.locks.lose_one, "signal": self._signal,
            "sudden death": self._sudden_death, "reset": self._reset,
        }  # fmt: skip
        async with anyio.create_task_group() as tasks:
            for kind, happen in kinds.items():
                if kind in self._world.draw.rates:
                    tasks.start_soon(self._now_and_then, kind, happen)
            if "cable" in self._world.draw.rates:
                tasks.start_soon(self._now_and_then, "cable", lambda: self._cable(tasks))

    async def _now_and_then(self, kind: str, happen: Callable[[], None]) -> None:
        while True:
            await anyio.sleep(self._world.random.expovariate(1 / self._world.draw.rates[kind]))
            if self._world.machine.calm:
                return
            self._world.faults[kind] += 1
            self._world.tell(kind)
            happen()

    def _kill(self) -> None:
        if self._world.managers:
            self._world.random.choice(self._world.managers).kill()

    def _kill_at_a_step(self) -> None:
        if self._world.managers and self._world.random.random() < 0.5:
            self._world.steps[self._world.random.choice(self._world.managers)] = self._world.random.randrange(12)
        else:
            self._world.disk.crash_at = len(self._world.disk.operations) + self._world.random.randint(1, 12)

    def _power_cut(self) -> None:
        for manager in tuple(self._world.managers):
            manager.kill()
        for tree in self._world.machine.trees():
            tree._exits_at = tree._gone_at = anyio.current_time()
            tree._change()
        self._world.disk.cut_power(self._world.random)
        self._world.floor = 0
        for path in sorted(self._world.folder.rglob("*")):
            if path.name in ("holder", "complete") and self._world.random.random() < 0.5:
                path.write_bytes(path.read_bytes()[: self._world.random.randrange(40)])

    def _flap(self) -> None:
        trees = self._world.machine.trees()
        if trees:
            tree = self._world.random.choice(trees)
            self._world.random.choice((tree.become_deaf, tree.become_wedged, tree.recover, tree.recover))()

    def _no_space(self) -> None:
        disk = self._world.disk
        disk.full_from = None if disk.full_from else len(disk.operations) + self._world.random.randint(1, 9)

    def _bad_disk(self) -> None:
        self._world.disk.fail_at = (len(self._world.disk.operations) + self._world.random.randint(1, 9), 5)

    def _clock_jump(self) -> None:
        self._world.clock.jumped += self._world.random.choice((-3600.0, -1.0, 1.0, 3600.0, 86400.0))

    def _signal(self) -> None:
        if self._world.stop is not None:
            self._world.stop.set()

    def _sudden_death(self) -> None:
        trees = [each for each in self._world.machine.trees() if each.running]
        if trees:
            self._world.random.choice(trees).exit(-9)

    def _reset(self) -> None:
        if self._world.crews:
            self._world.random.choice(self._world.crews).network.reset(f"host-{self._world.random.randrange(self._world.draw.nodes)}")

    def _cable(self, tasks: anyio.abc.TaskGroup) -> None:
        if self._world.crews:
            crew, rank = self._world.crews[-1], self._world.random.randrange(self._world.draw.nodes)
            tasks.start_soon(crew.pull, rank, self._world.random.uniform(0.5, 15.0))
