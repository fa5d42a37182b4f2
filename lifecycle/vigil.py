"""Whether a server that is Healthy still works, has work left, and sleeps or wakes when told. Asks, decides, no more.

A dead engine behind a living API process answers its health path with an error, or not at all. A stuck engine has
requests, and the counters that its loop moves stand still. A long prefill or a long queue has requests too, and its
counters move: that is work, not a fault.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from operator import is_not

import anyio

from lifecycle.adapter import Adapter, Capabilities, EngineLoad, Post, capabilities_of, load_of
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis
from lifecycle.gate import Gate
from lifecycle.host import NoAnswer, Prober
from lifecycle.probing import is_good, liveness, one_token, words

ASLEEP = "asleep"
"""The phase of an engine that has given its memory back."""
LOOK_AGAIN = 1.0
"""Seconds to the next liveness probe after one that was refused, or answered with an error: no slowness to be
forgiven."""
LOOKS = 4
"""Times in one `stall_timeout`, at least, that an engine's counters are looked at."""
ABORT_TIMEOUT = 2.0
"""Seconds that an engine has to abort what is in flight."""
DRAIN_LOOK = 0.25
"""Seconds between two looks at what an engine still works on while it drains."""


async def until_unwell(
    prober: Prober,
    path: str,
    config: ServerConfig,
    stranger: Callable[[], Diagnosis | None],
    hint: Callable[[], anyio.Event],
    gate: Gate,
) -> Diagnosis | str:
    """Probe `path` until too many probes in a row have failed; what is wrong, as a diagnosis or in words.

    Args:
        stranger: finds out whether somebody else has come to listen on the server's port.
        hint: gives an event that is set when something is worth a look: the log says so, a request was broken off.
        gate: is told when the server was seen to be well.
    """
    failures, soon = 0, False
    while failures < config.liveness_failures:
        with anyio.move_on_after(min(LOOK_AGAIN, config.liveness_interval) if soon else config.liveness_interval):
            await hint().wait()
        foreign = stranger()
        if foreign is not None:  # a second listener (SO_REUSEPORT) gets a share of the connections
            return foreign
        try:
            answer = await prober.get(path, config.liveness_timeout)
        except NoAnswer as error:
            failures, soon, said = failures + 1, error.refused, str(error)
        else:
            soon = not is_good(answer)
            failures, said = failures + 1 if soon else 0, f"HTTP {words(answer)}"
            if not soon:
                gate.trust()
    return f"{failures} liveness probes of {path} in a row have failed, the last with {said}"


class Standstill:
    """Since when an engine has had work and its counters have stood still. Pure: looks in, seconds out."""

    def __init__(self, now: float, *, ours: bool = True) -> None:
        self.ours = ours
        """Its tokens cost nothing: it may be tried out although it says that it has nothing to do. An engine that stood
        still before a request came does not know of it."""
        self.moved_at = now
        """When it last gave a sign of life: its counters moved, or it gave a token."""
        self.load: EngineLoad | None = None
        """What it said at the last look; None: it did not say."""

    def look(self, load: EngineLoad | None, now: float) -> None:
        """Take what an engine says of its work at time `now`."""
        before = self.load.progress if self.load else None
        if load is not None and (load.progress != before or not (is_busy(load) or self.ours)):
            self.moved_at = now
        self.load = load

    def suspicious(self, gate: Gate, limit: float, now: float) -> bool:
        """Whether there is reason to try the server out: an engine that has stood still for `limit` seconds, or
        requests of ours that get nothing and of which the engine does not know or say anything."""
        stands = self.load is not None and self.moved_at + limit <= now
        if self.load is not None and is_busy(self.load):
            return stands
        return (stands and self.ours) or (gate.in_flight > 0 and gate.progress_at + limit <= now)


def is_busy(load: EngineLoad) -> bool:
    return load.running + load.waiting > 0


async def until_stalled(prober: Prober, model: str, config: ServerConfig, adapter: Adapter, gate: Gate) -> str:
    """Watch until requests get nothing, the engine stands still, and not one token can be had; what was seen, in words.

    Requests count whoever sent them, if the engine tells of its work; else only those that came through `gate`.
    """
    can, limit = capabilities_of(adapter, config), config.stall_timeout
    engine = Standstill(anyio.current_time(), ours=can.local)
    while True:
        if can.load_path is None:
            # Both from the time that is due: `limit - (now - then)` can be too small to move a clock at all.
            left = gate.progress_at + limit - anyio.current_time() if gate.in_flight else limit
            await anyio.sleep(left if left > 0 else 0)
        else:
            await anyio.sleep(min(config.liveness_interval, limit / LOOKS))
            engine.look(await load_now(prober, adapter, can.load_path, config.probe_timeout), anyio.current_time())
        if not engine.suspicious(gate, limit, anyio.current_time()):
            continue
        gate.tried += 1
        if await _gives_a_token(prober, model, config, adapter):
            gate.touch()
            engine.moved_at = anyio.current_time()
        else:
            break
    token = f"and one token was not to be had in {config.liveness_timeout:g} s"
    if engine.load is not None and is_busy(engine.load):
        return (
            f"the engine says that it has {engine.load.running} requests running and {engine.load.waiting} waiting, "
            f"its counters have stood still for stall_timeout = {limit:g} s, {token}"
        )
    if gate.in_flight and gate.progress_at + limit <= anyio.current_time():
        return f"{gate.in_flight} requests in flight have got nothing for stall_timeout = {limit:g} s, {token}"
    return f"the engine, which has nothing to do, has stood still for stall_timeout = {limit:g} s, {token}"


async def until_unasked(prober: Prober, config: ServerConfig, adapter: Adapter, gate: Gate) -> None:
    """Return when nobody has asked anything for `idle_timeout` seconds: nobody through `gate`, and nobody past it as
    far as the engine tells of its work."""
    path, limit = capabilities_of(adapter, config).load_path, config.idle_timeout
    assert limit is not None
    asked_at = max(gate.asked_at, anyio.current_time())
    before, ours = await _said(prober, adapter, path, config), gate.tried
    while True:
        left = limit if gate.in_flight or gate.outside else max(gate.asked_at, asked_at) + limit - anyio.current_time()
        if left <= 0:
            return
        await anyio.sleep(left if path is None else min(left, config.liveness_interval, limit / LOOKS))
        load = await _said(prober, adapter, path, config)
        tried, ours = gate.tried != ours, gate.tried  # a token of our own is answered as well
        if load is not None:
            others = before is not None and load.answered != before.answered and not tried
            asked_at = anyio.current_time() if others or is_busy(load) else asked_at
            before = load


async def _said(prober: Prober, adapter: Adapter, path: str | None, config: ServerConfig) -> EngineLoad | None:
    return None if path is None else await load_now(prober, adapter, path, config.probe_timeout)


async def load_now(prober: Prober, adapter: Adapter, path: str, timeout: float) -> EngineLoad | None:
    """What an engine says of its work; None if it does not answer, or says nothing that the adapter knows."""
    try:
        answer = await prober.get(path, timeout)
    except NoAnswer:
        return None
    return load_of(adapter, answer.body) if is_good(answer) else None


async def until_idle(prober: Prober, adapter: Adapter, path: str, timeout: float) -> None:
    """Return when an engine works on nothing any more, or does not say so."""
    while True:
        load = await load_now(prober, adapter, path, timeout)
        if load is None or not is_busy(load):
            return
        await anyio.sleep(DRAIN_LOOK)


@asynccontextmanager
async def moving(left: Callable[[], float], gate: Gate) -> AsyncIterator[anyio.CancelScope]:
    """A scope that is cancelled when no seconds are `left`; asked again whenever something new is known of the
    server, so that its end can come nearer and move away."""

    async def follow() -> None:
        while True:
            scope.deadline = anyio.current_time() + left()
            await gate.until(partial(is_not, gate.facts))

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            yield scope
            group.cancel_scope.cancel()


async def drain(
    prober: Prober, adapter: Adapter, can: Capabilities, config: ServerConfig, gate: Gate, left: Callable[[], float]
) -> None:
    """Wait until nobody waits for an answer: no request of ours, and none that reached the engine by itself. What is
    still in flight when no seconds are `left` is ended."""
    async with moving(left, gate) as limit:
        await gate.empty()
        if can.load_path is not None:
            await until_idle(prober, adapter, can.load_path, config.probe_timeout)
    if limit.cancelled_caught:
        gate.cut()
        await abort(prober, adapter, can, config.probe_timeout)


async def abort(prober: Prober, adapter: Adapter, can: Capabilities, timeout: float) -> None:
    """Ask an engine that can to end what it works on, and give it a moment to do so."""
    with anyio.move_on_after(ABORT_TIMEOUT), suppress(NoAnswer):
        if can.abort is not None:
            await prober.post(*can.abort, ABORT_TIMEOUT)
            if can.load_path is not None:
                await until_idle(prober, adapter, can.load_path, timeout)


async def sleep_until_wanted(
    prober: Prober, can: Capabilities, config: ServerConfig, gate: Gate, note: Callable[..., None]
) -> str:
    """Put an engine to sleep, and wake it when it is wanted; what it would not do, in words, or nothing."""
    assert can.sleep is not None
    if not gate.facts.wanted:  # or else it is wanted again already
        said = await _told(prober, can.sleep, config.warmup_timeout)
        if said:
            return f"the engine does not fall asleep: {said}"
        note(phase=ASLEEP)
        await gate.until(lambda facts: facts.wanted)
        said = await woken(prober, can, config)
        if said:
            return f"the engine does not wake up: {said}"
    return ""


async def woken(prober: Prober, can: Capabilities, config: ServerConfig) -> str:
    """Wake an engine; what it says against it, or nothing."""
    assert can.wake is not None
    return await _told(prober, can.wake, config.warmup_timeout)


async def _told(prober: Prober, what: Post, timeout: float) -> str:
    """What an engine says against what it is told; nothing if it does it."""
    path, payload = what
    try:
        answer = await prober.post(path, payload, timeout)
    except NoAnswer as error:
        return str(error)
    return "" if is_good(answer) else f"POST {path}: HTTP {answer.status} {answer.body}"


async def _gives_a_token(prober: Prober, model: str, config: ServerConfig, adapter: Adapter) -> bool:
    can = capabilities_of(adapter, config)
    if not can.generates:
        return await liveness(prober, can.ready_paths[0], config.liveness_timeout)
    try:
        return await one_token(prober, model, config.liveness_timeout)
    except NoAnswer:
        return False
