"""The driver: one event at a time, activities that end in order, and every letter answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import anyio
import pytest

from lifecycle.chart import Chart, Event, Ignore, Span, State, Transition
from lifecycle.driver import Activity, ActivityFunction, Disposition, Driver
from lifecycle.errors import ChartError
from lifecycle.journal import Journal, Kind

pytestmark = pytest.mark.anyio


@dataclass(frozen=True, slots=True)
class Go(Event):
    pass


@dataclass(frozen=True, slots=True)
class Done(Event):
    note: str = ""


@dataclass(frozen=True, slots=True)
class Tick(Event):
    pass


@dataclass(frozen=True, slots=True)
class Halt(Event):
    pass


@dataclass(frozen=True, slots=True)
class Oops(Event):
    activity: str
    error: str


@dataclass(frozen=True)
class Count:
    ticks: int = 0
    halted: bool = False
    error: str = ""


def reduce(count: Count, event: Event, at: float) -> Count:
    match event:
        case Tick():
            return replace(count, ticks=count.ticks + 1)
        case Halt():
            return replace(count, halted=True)
        case Oops(error=error):
            return replace(count, error=error)
    return count


OUTER = Span("outer", ("Busy",), ("Ending",))
INNER = Span("inner", ("Busy",), (), (Done,))
CHART = Chart(
    "test",
    (State("Ready", ""), State("Busy", ""), State("Ending", ""), State("Over", "", final=True)),
    (
        Transition((Go,), ("Ready",), "Busy"),
        Transition((Tick,), ("Ready", "Busy"), None),
        Transition((Done,), ("Busy",), "Ending"),
        Transition((Go,), ("Busy",), "Busy"),
        Transition((Halt, Oops), ("Ready", "Busy", "Ending"), "Over"),
    ),
    reduce,
    spans=(OUTER, INNER),
    ignores=(Ignore((Done,), ("Ready",)),),
)
Body = Callable[[Activity[Count]], Awaitable[None]]


async def forever(act: Activity[Count]) -> None:
    await anyio.sleep_forever()


def make(
    *,
    outer: Body = forever,
    inner: Body = forever,
    shutdown: Event | None = Halt(),
    force: Callable[[str], Awaitable[None]] | None = None,
    grace: float = 10.0,
) -> Driver[Count]:
    activities: dict[str, ActivityFunction[Count]] = {"outer": outer, "inner": inner}
    return Driver(
        CHART,
        Count(),
        activities,
        Journal("test"),
        fault=Oops,
        shutdown=shutdown,
        force=force,
        grace=grace,
    )


class Running:
    """A driver that runs while the block does, and must have ended soon after it."""

    def __init__(self, driver: Driver[Count]) -> None:
        self.driver = driver
        self._group = anyio.create_task_group()
        self._hang = anyio.fail_after(20)

    async def __aenter__(self) -> Driver[Count]:
        self._hang.__enter__()
        await self._group.__aenter__()
        self._group.start_soon(self.driver.run)
        return self.driver

    async def __aexit__(self, *error: object) -> None:
        try:
            self.driver.post(Halt())
            await self._group.__aexit__(None, None, None)
        finally:
            self._hang.__exit__(None, None, None)


def kinds(driver: Driver[Count], event: str) -> list[Kind]:
    return [record.kind for record in driver.journal.records if record.event == event]


def logging(name: str, log: list[str], cleanup: Callable[[], Awaitable[None]] | None = None) -> Body:
    async def body(act: Activity[Count]) -> None:
        log.append(f"+{name}")
        try:
            await anyio.sleep_forever()
        finally:
            if cleanup is not None:
                with anyio.CancelScope(shield=True):
                    await cleanup()
            log.append(f"-{name}")

    return body


async def some_steps() -> None:
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


@pytest.mark.fault(100)
async def test_a_send_says_what_became_of_it() -> None:
    async with Running(make()) as driver:
        assert await driver.send(Done()) is Disposition.IGNORED
        assert await driver.send(Go()) is Disposition.TAKEN
        assert await driver.send(Tick()) is Disposition.TAKEN
        assert await driver.send(Unheard()) is Disposition.REFUSED
        assert await driver.send(Halt()) is Disposition.TAKEN
        assert await driver.send(Go()) is Disposition.LATE
    assert (driver.state, driver.facts.ticks) == ("Over", 1)


@dataclass(frozen=True, slots=True)
class Unheard(Event):
    pass


@pytest.mark.fault(101)
async def test_events_are_taken_one_at_a_time_in_the_order_in_which_they_came() -> None:
    async with Running(make()) as driver:
        for event in (Tick(), Go(), Tick(), Done(), Halt(), Tick()):
            driver.post(event)
        await driver.ended()
    taken = [record.event for record in driver.journal.records if record.kind in (Kind.TRANSITION, Kind.INTERNAL)]
    assert taken == ["Tick", "Go", "Tick", "Done", "Halt"]
    assert kinds(driver, "Tick")[-1] is Kind.LATE


@pytest.mark.fault(100)
async def test_every_send_that_waits_at_the_end_is_answered_late() -> None:
    driver, answers = make(), list[Disposition]()

    async def ask() -> None:
        answers.append(await driver.send(Tick()))

    async with Running(driver):
        driver.post(Halt())
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(ask)
    assert answers == [Disposition.LATE] * 5


@pytest.mark.fault(100)
async def test_a_cancelled_send_leaves_its_event_to_be_taken() -> None:
    driver = make()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await driver.send(Tick())
    async with Running(driver):
        assert await driver.send(Go()) is Disposition.TAKEN
    assert driver.facts.ticks == 1


async def test_a_state_that_passes_at_once_is_not_missed() -> None:
    async with Running(make()) as driver:
        for event in (Go(), Done(), Halt()):
            driver.post(event)
        await driver.ended()
        first = await driver.wait("Busy")
        assert (first.event, first.after) == ("Go", "Busy")
        assert (await driver.wait("Over", after=first.seq)).event == "Halt"


async def test_an_activity_may_not_report_what_its_span_does_not_name() -> None:
    async def wrong(act: Activity[Count]) -> None:
        act.post(Halt())

    async with Running(make(inner=wrong)) as driver:
        await driver.send(Go())
        await driver.ended()
    assert "the activity 'inner' may not report Halt" in driver.facts.error


async def test_activities_end_from_the_innermost_each_when_the_one_before_is_through() -> None:
    log: list[str] = []
    driver = make(outer=logging("outer", log, some_steps), inner=logging("inner", log, some_steps))
    async with Running(driver):
        await driver.send(Go())
        await anyio.wait_all_tasks_blocked()
        await driver.send(Halt())
    assert sorted(log[:2]) == ["+inner", "+outer"]
    assert log[2:] == ["-inner", "-outer"]


async def test_a_state_is_published_when_what_it_left_is_released() -> None:
    seen: list[tuple[str, bool]] = []
    log: list[str] = []
    driver = make(inner=logging("inner", log, some_steps))
    driver.journal.listen(lambda record: seen.append((driver.state, "-inner" in log)))
    async with Running(driver):
        await driver.send(Go())
        await anyio.wait_all_tasks_blocked()
        driver.post(Done())
        await driver.wait("Ending")
        assert driver.open_activities == ("outer",)
    assert ("Ending", True) in seen
    assert ("Ending", False) not in seen


async def test_an_activity_of_a_state_that_is_entered_again_begins_anew_with_another_number() -> None:
    numbers: list[int] = []

    async def inner(act: Activity[Count]) -> None:
        numbers.append(act.number)
        await anyio.sleep_forever()

    async with Running(make(inner=inner)) as driver:
        await driver.send(Go())
        await anyio.wait_all_tasks_blocked()
        await driver.send(Go())
        await anyio.wait_all_tasks_blocked()
    assert len(set(numbers)) == 2


async def test_an_outcome_of_an_activity_that_was_left_is_stale() -> None:
    posts: list[Callable[[], None]] = []

    async def inner(act: Activity[Count]) -> None:
        posts.append(lambda: act.post(Done("old")))
        await anyio.sleep_forever()

    async with Running(make(inner=inner)) as driver:
        await driver.send(Go())
        await anyio.wait_all_tasks_blocked()
        await driver.send(Go())
        posts[0]()
        await driver.send(Tick())
        assert driver.state == "Busy"
        assert kinds(driver, "Done") == [Kind.STALE]
        await anyio.wait_all_tasks_blocked()
        posts[1]()
        await driver.wait("Ending")


async def test_an_outcome_posted_in_a_cleanup_is_stale() -> None:
    async def inner(act: Activity[Count]) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            act.post(Done())

    async with Running(make(inner=inner)) as driver:
        await driver.send(Go())
        await anyio.wait_all_tasks_blocked()
        await driver.send(Go())
        await driver.send(Tick())
        assert kinds(driver, "Done") == [Kind.STALE]
        assert driver.state == "Busy"


async def test_a_cleanup_sees_the_facts_after_the_event_that_ends_it() -> None:
    seen: list[bool] = []

    async def outer(act: Activity[Count]) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(act.facts.halted)

    async with Running(make(outer=outer)) as driver:
        await driver.send(Go())
        await anyio.wait_all_tasks_blocked()
        await driver.send(Halt())
    assert seen == [True]


async def test_an_activity_that_never_got_to_run_is_ended_all_the_same() -> None:
    async with Running(make()) as driver:
        for event in (Go(), Go(), Go(), Done(), Halt()):
            driver.post(event)
        await driver.ended()
        assert driver.open_activities == ()


async def test_an_activity_that_raises_becomes_a_fault_with_its_name_and_error() -> None:
    async def inner(act: Activity[Count]) -> None:
        raise ValueError("no good")

    async with Running(make(inner=inner)) as driver:
        await driver.send(Go())
        await driver.ended()
    assert driver.facts.error == "ValueError: no good"
    fault = next(record for record in driver.journal.records if record.event == "Oops")
    assert fault.detail["activity"] == "inner"


async def test_an_error_of_one_child_is_told_without_the_group_around_it() -> None:
    async def child() -> None:
        raise ValueError("of a child")

    async def inner(act: Activity[Count]) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(child)
            await anyio.sleep_forever()

    async with Running(make(inner=inner)) as driver:
        await driver.send(Go())
        await driver.ended()
    assert driver.facts.error == "ValueError: of a child"


async def test_an_adapters_own_timeout_is_a_fault_and_not_ours() -> None:
    async def inner(act: Activity[Count]) -> None:
        with anyio.fail_after(0):
            await anyio.sleep_forever()

    async with Running(make(inner=inner)) as driver:
        await driver.send(Go())
        await driver.ended()
    assert driver.facts.error.startswith("TimeoutError")


async def test_an_error_in_a_cleanup_is_a_record_of_its_own_and_the_outer_span_is_ended_too() -> None:
    log: list[str] = []

    async def inner(act: Activity[Count]) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("in the cleanup")

    async with Running(make(outer=logging("outer", log), inner=inner)) as driver:
        await driver.send(Go())
        await anyio.wait_all_tasks_blocked()
        assert await driver.send(Halt()) is Disposition.TAKEN
    errors = [record for record in driver.journal.records if record.kind is Kind.CLEANUP_ERROR]
    assert [record.detail for record in errors] == [{"activity": "inner", "error": "ValueError: in the cleanup"}]
    assert log == ["+outer", "-outer"]
    assert driver.facts.error == ""


async def test_a_cleanup_that_hangs_is_forced_and_the_outer_span_waits_for_it() -> None:
    log: list[str] = []
    released = anyio.Event()
    forced: list[str] = []

    async def force(activity: str) -> None:
        forced.append(activity)
        log.append("forced")
        if len(forced) == 2:  # the first time it does not help
            released.set()

    driver = make(
        outer=logging("outer", log), inner=logging("inner", log, released.wait), force=force, grace=0.01
    )
    async with Running(driver):
        await driver.send(Go())
        await anyio.wait_all_tasks_blocked()
        await driver.send(Halt())
    assert log[2:] == ["forced", "forced", "-inner", "-outer"]
    assert forced == ["inner", "inner"]
    assert [r.detail["activity"] for r in driver.journal.records if r.kind is Kind.OVERRUN] == ["inner", "inner"]


@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_a_force_that_fails_does_not_end_the_wait(how: str) -> None:
    log: list[str] = []
    released = anyio.Event()
    calls = 0

    async def force(activity: str) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            released.set()
        elif how == "raises":
            raise OSError("no such process")
        else:
            await anyio.sleep_forever()

    driver = make(outer=logging("outer", log), inner=logging("inner", log, released.wait), force=force, grace=0.01)
    async with Running(driver):
        await driver.send(Go())
        await anyio.wait_all_tasks_blocked()
        await driver.send(Halt())
    assert log[2:] == ["-inner", "-outer"]
    errors = [record.detail["error"] for record in driver.journal.records if record.kind is Kind.CLEANUP_ERROR]
    assert errors == (["OSError: no such process"] if how == "raises" else [])


async def test_without_a_fault_event_an_error_ends_the_driver_and_everything_is_released_in_order() -> None:
    log: list[str] = []
    broken = anyio.Event()

    async def inner(act: Activity[Count]) -> None:
        await broken.wait()
        raise ValueError("fatal")

    chart = replace(CHART, spans=(OUTER, Span("middle", ("Busy",)), INNER))
    bodies = {"outer": logging("outer", log), "middle": logging("middle", log, some_steps), "inner": inner}
    driver = Driver(chart, Count(), bodies, Journal("test"))

    async def run() -> None:
        with pytest.raises(ValueError, match="fatal"):
            await driver.run()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await driver.send(Go())
            await anyio.wait_all_tasks_blocked()
            broken.set()
    assert log[2:] == ["-middle", "-outer"]
    assert await driver.send(Tick()) is Disposition.LATE


@pytest.mark.fault(99)
@pytest.mark.parametrize("state", ["Ready", "Busy", "Ending"])
async def test_a_cancellation_becomes_the_shutdown_event_and_goes_on_when_all_is_released(state: str) -> None:
    log: list[str] = []
    driver = make(outer=logging("outer", log, some_steps), inner=logging("inner", log, some_steps))
    ways: dict[str, tuple[Event, ...]] = {"Ready": (), "Busy": (Go(),), "Ending": (Go(), Done())}
    with anyio.fail_after(20):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(driver.run)
                for event in ways[state]:
                    await driver.send(event)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
    assert (driver.state, driver.facts.halted, driver.over) == ("Over", True, True)
    assert sum(entry.startswith("+") for entry in log) == sum(entry.startswith("-") for entry in log)
    assert await driver.send(Tick()) is Disposition.LATE


async def test_without_a_shutdown_event_a_cancellation_ends_the_activities_and_answers_all() -> None:
    log: list[str] = []
    driver = make(outer=logging("outer", log, some_steps), inner=logging("inner", log), shutdown=None)
    with anyio.fail_after(20), anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(driver.run)
            await driver.send(Go())
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert log[2:] == ["-inner", "-outer"]
    assert (driver.state, driver.over) == ("Busy", True)
    assert await driver.send(Tick()) is Disposition.LATE


async def test_a_driver_that_is_cancelled_before_it_ran_is_over_and_answers() -> None:
    driver = make()
    with anyio.fail_after(20), anyio.CancelScope() as scope:
        scope.cancel()
        await driver.run()
    assert driver.over
    assert await driver.send(Tick()) is Disposition.LATE


def test_a_driver_without_a_function_for_an_activity_cannot_be_made() -> None:
    with pytest.raises(ChartError, match="no function for the activities inner"):
        Driver(CHART, Count(), {"outer": forever}, Journal("test"))
