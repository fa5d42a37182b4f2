"""The generate job: as many requests in flight as were asked for, and each record's one line of output."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import anyio
import msgspec

from lifecycle.adapter import EngineLoad
from lifecycle.batch.adaptive import Adaptive
from lifecycle.batch.asking import Asker, Generate, Send, seed_of
from lifecycle.batch.config import JobConfig
from lifecycle.batch.feed import Feed
from lifecycle.batch.functions import Rollout, find, find_rollout, opened
from lifecycle.batch.plan import Plan, prepare
from lifecycle.batch.progress import Progress
from lifecycle.batch.records import (
    PARAMS,
    Defaults,
    Malformed,
    OddAnswer,
    Request,
    answered,
    generations,
    malformed,
    parse,
    refused,
    resulted,
)
from lifecycle.batch.slots import Slots
from lifecycle.batch.sources import Row
from lifecycle.batch.summary import Summary, Tally
from lifecycle.errors import Draining, OutputError, RequestError, RequestRefused, StartFailed, StokerError

__all__ = ["JobAborted", "JobConfig", "Plan", "prepare", "run_job"]

TICK = 0.25
"""Seconds between two looks at what is due: results to be synced."""
LOOK = 1.0
"""Seconds between two looks at the engine's load."""


class JobAborted(StokerError):
    """A record has failed, and the job was told to end then. What was answered is safe."""


async def run_job(
    plan: Plan,
    send: Send,
    *,
    progress: Progress,
    stop: anyio.Event | None = None,
    rollout: Rollout | None = None,
    context: Any = None,
    retried: Callable[[], int] = lambda: 0,
    at_server: Callable[[], int] | None = None,
    load: Callable[[], Awaitable[EngineLoad | None]] | None = None,
) -> Summary:
    """Do what is left of a job.

    A record that is refused (4xx), gets nonsense, or has used up its retries is finished with its error. One that was
    cut off by the end of the server is not: the next run sends it again. When `stop` is set no new record is taken, and
    those in flight finish.

    Args:
        send: (path, payload) to an answer: `Server.request`.
        rollout, context: see `JobConfig`; objects instead of names, for programs.
        retried: how often requests have been sent again so far, for the display.
        at_server: how many requests the server has now, for the display.
        load: asks what the engine works on; used to find the number of requests in flight.

    Raises `StartFailed` if the server is given up, `OutputError` if the output cannot be written any more,
    `InputError` if the input turns out to be damaged, and `JobAborted`.
    """
    job = plan.job
    if rollout is None and job.rollout:
        rollout = find_rollout(job.rollout)
    if context is None and job.context:
        context = find("context", job.context)
    tally = Tally(plan.total, plan.earlier, plan.failed, at_server=at_server)
    adaptive = Adaptive(job.concurrency) if job.adaptive else None
    slots = Slots(adaptive.limit if adaptive else job.concurrency)
    feed = Feed(plan.rows())
    progress.begin(tally)
    try:
        async with AsyncExitStack() as stack:
            shared = await stack.enter_async_context(opened(context)) if context is not None else {}
            run = _Run(plan, feed, tally, Asker(send, slots, tally, adaptive), rollout, shared)
            await run.run(stop, _Ticker(plan, tally, adaptive, slots, retried, load))
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    finally:
        tally.retries = retried()
        progress.end()
    if run.aborted:
        raise JobAborted(run.aborted)
    if feed.exhausted and not run.ended:
        await anyio.to_thread.run_sync(plan.store.finish)
        if tally.total is None:
            tally.total = tally.earlier + tally.finished
    return tally.summary()


@dataclass
class _Ticker:
    """What is due now and then, whatever the requests do."""

    plan: Plan
    tally: Tally
    adaptive: Adaptive | None
    slots: Slots
    retried: Callable[[], int]
    load: Callable[[], Awaitable[EngineLoad | None]] | None

    async def run(self) -> None:
        looked = anyio.current_time()
        while True:
            await anyio.sleep(TICK)
            self.tally.retries = self.retried()
            if self.plan.store.sync_due:
                await anyio.to_thread.run_sync(self.plan.store.sync)
            if self.adaptive is not None and self.load is not None and anyio.current_time() - looked >= LOOK:
                looked = anyio.current_time()
                self.adaptive.seen(await self.load())
                self.slots.limit = self.adaptive.limit


class _Run:
    def __init__(
        self, plan: Plan, feed: Feed, tally: Tally, asker: Asker, rollout: Rollout | None, shared: Mapping[str, Any]
    ) -> None:
        self.store = plan.store
        self.job = plan.job
        self.defaults = Defaults(plan.job.model, bare=True) if rollout else plan.defaults
        self.asking = plan.defaults
        self.feed = feed
        self.tally = tally
        self.asker = asker
        self.rollout = rollout
        self.shared = shared
        self.left = plan.left
        self.ended = False
        """The server takes no more: no use in handing out further records."""
        self.aborted = ""
        """Why the job ends, if a record that failed is the reason."""

    async def run(self, stop: anyio.Event | None, ticker: _Ticker) -> None:
        """Return when no record is left or the job is to end, and everything in flight is through."""
        workers = self.job.concurrency if self.left is None else min(self.job.concurrency, self.left)
        async with anyio.create_task_group() as around:
            around.start_soon(ticker.run)
            if stop is not None:
                around.start_soon(self._close_when, stop)
            async with anyio.create_task_group() as group:
                for _ in range(max(1, workers)):
                    group.start_soon(self._work)
            around.cancel_scope.cancel()

    async def _close_when(self, stop: anyio.Event) -> None:
        await stop.wait()
        self.feed.close()

    def _end(self) -> None:
        self.ended = True
        self.feed.close()

    async def _work(self) -> None:
        while (row := await self.feed.next()) is not None:
            found = parse(row.data, row.position, self.defaults, row.where)
            if isinstance(found, Malformed):
                self._finish(row, malformed(found), found.why)
            else:
                try:
                    await self._one(row, found)
                except Draining:
                    self._end()

    async def _one(self, row: Row, request: Request) -> None:
        """Raises `Draining`, `StartFailed`, `OutputError`: what concerns every record."""
        if self.job.rollouts == 1 and self.rollout is None:
            try:
                line = answered(request, await self.asker.ask(request.path, request.payload))
            except RequestError as failure:
                line = _failed(request, failure)
        elif request.batch:
            line = refused(request, f"an OpenAI batch line has one answer; rollouts = {self.job.rollouts}")
        else:
            line = await self._rollouts(row, request)
        error = line.get("error")
        self._finish(row, line, str(error["message"]) if error else "")

    async def _rollouts(self, row: Row, request: Request) -> dict[str, Any]:
        """All rollouts of a record, at once."""
        many = self.job.rollouts
        results: list[Any] = [None] * many
        failed: dict[int, dict[str, Any]] = {}

        async def one(number: int) -> None:
            try:
                results[number] = await self._result(row, request, number)
            except (Draining, StartFailed, OutputError):
                raise
            except Exception as error:  # a user's function may raise anything; it costs its own record only
                failed[number] = _failed(request, error)

        try:
            async with anyio.create_task_group() as group:
                for number in range(many):
                    group.start_soon(one, number)
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        if not failed:
            return answered(request, *results) if self.rollout is None else resulted(request, results)
        first = min(failed)
        line = failed[first]
        if many > 1:
            line["error"]["message"] = f"rollout {first + 1} of {many}: {line['error']['message']}"
            whole = [result for number, result in enumerate(results) if number not in failed]
            if self.rollout is not None:
                line["results"] = whole
            else:
                line["generations"] = [each for answer in whole for each in generations(answer)]
        return line

    async def _result(self, row: Row, request: Request, number: int) -> Any:
        many = self.job.rollouts
        if self.rollout is None:
            seed = seed_of(request.payload.get("seed"), row.number, number, many)
            payload = request.payload if seed is None else {**request.payload, "seed": seed}
            answer = await self.asker.ask(request.path, payload)
            generations(answer)
            return answer
        own = request.record.get(PARAMS)
        given = {**self.asking.parameters, **own} if isinstance(own, dict) else self.asking.parameters
        asking = Defaults(self.asking.model, self.asking.system, {k: v for k, v in given.items() if k != "seed"})
        generate = Generate(self.asker, asking, number, seed_of(given.get("seed"), row.number, number, many))
        result = await self.rollout(dict(request.record), generate, **self.shared)
        msgspec.json.encode(result)
        return result

    def _finish(self, row: Row, line: dict[str, Any], why: str) -> None:
        """A record is through; `why` says why it failed, if it has."""
        check, job = crc32(row.data), self.job
        if why and job.on_error == "abort":
            self.aborted = self.aborted or f"{row.where} of {job.input}: {why}"
            self._end()
        elif why and job.on_error == "skip":
            self.store.append(row.number, check, None, error=True)
            self.tally.record_skipped()
        else:
            self.store.append(row.number, check, msgspec.json.encode(line), error=bool(why))
            if why:
                self.tally.record_failed(_kind(line))
            else:
                self.tally.record_answered()


def _kind(line: Mapping[str, Any]) -> str:
    error = line["error"]
    return str(error.get("kind") or error.get("code") or "failed")


def _failed(request: Request, error: Exception) -> dict[str, Any]:
    """The line of a record that has failed."""
    if isinstance(error, RequestRefused):
        return refused(request, str(error), status=error.status, body=error.body, kind="refused")
    if isinstance(error, RequestError):
        return refused(request, str(error), status=error.status, body=error.body, kind="failed")
    if isinstance(error, OddAnswer):
        return refused(request, str(error), body=error.body)
    last = traceback.extract_tb(error.__traceback__)[-1]
    why = f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
    return refused(request, why, kind="rollout")


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that a job ends with: many requests may fail for the one reason."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
