"""The driver beside a bare `transitions.Machine` that makes the same moves: both in this run, a ratio."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median

import anyio
from transitions import Machine

from benchmarks.figures import Figure
from lifecycle.chart import Chart, Event, State, Transition
from lifecycle.driver import Driver
from lifecycle.journal import Journal

EVENTS = 20_000
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Flip(Event):
    pass


@dataclass(frozen=True, slots=True)
class End(Event):
    pass


@dataclass(frozen=True)
class Count:
    flips: int = 0


def reduce(facts: Count, event: Event, at: float) -> Count:
    return replace(facts, flips=facts.flips + 1)


def even(facts: Count) -> bool:
    return facts.flips % 2 == 0


CHART: Chart[Count] = Chart(
    name="flip",
    states=(State("On", "on"), State("Off", "off"), State("Over", "over", final=True)),
    transitions=(
        Transition((Flip,), ("On",), "Off", ("not even",)),
        Transition((Flip,), ("Off",), "On", ("even",)),
        Transition((End,), ("On", "Off"), "Over"),
    ),
    reduce=reduce,
    guards={"even": even},
)


class Model:
    def __init__(self) -> None:
        self.facts = Count()
        self.state = "On"

    def count(self, event: object) -> bool:
        self.facts = replace(self.facts, flips=self.facts.flips + 1)
        return True

    def even(self, event: object) -> bool:
        return even(self.facts)


def measure() -> list[Figure]:
    pairs = [(_driver(), _machine()) for _ in range(ROUNDS)]
    ratio = median(ours / plain for ours, plain in pairs)
    each = median(ours for ours, _ in pairs)
    return [
        Figure("driver, events/s in units of a plain Machine's", ratio, "", 0.4, at_least=True),
        Figure("driver, events/s", each, "/s"),
    ]


def _driver() -> float:
    """Events per second, journal in memory included."""

    async def run() -> float:
        driver = Driver(CHART, Count(), {}, Journal("bench"))
        for _ in range(EVENTS):
            driver.post(Flip())
        driver.post(End())
        began = time.perf_counter()
        await driver.run()
        assert driver.facts.flips == EVENTS + 1
        return EVENTS / (time.perf_counter() - began)

    return anyio.run(run)


def _machine() -> float:
    """The same moves with the library alone: one machine, one model, the same guard."""
    model = Model()
    machine = Machine(model=model, states=["On", "Off", "Over"], initial="On", auto_transitions=False, send_event=True)
    machine.add_transition("flip", "On", "Off", conditions=["count"], unless=["even"])
    machine.add_transition("flip", "Off", "On", conditions=["count", "even"])
    flip = model.flip  # type: ignore[attr-defined]
    began = time.perf_counter()
    for _ in range(EVENTS):
        flip()
    took = time.perf_counter() - began
    assert model.facts.flips == EVENTS
    return EVENTS / took


