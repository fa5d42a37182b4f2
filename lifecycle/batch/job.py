"""The job: what is left to do, found before a server is started; then as many requests in flight as were asked for."""

from __future__ import annotations

import shutil
import sys
import tempfile
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from lifecycle.batch.output import Output
from lifecycle.batch.progress import Progress
from lifecycle.batch.records import Defaults, Malformed, Request, answered, asked, key_of, malformed, parse, refused
from lifecycle.batch.summary import Summary, Tally
from lifecycle.errors import Draining, InputError, OutputError, RequestError, RequestRefused

Send = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""(path, payload) to an answer: `Server.request`."""


@dataclass(frozen=True)
class JobConfig:
    """Everything that can be said about a job."""

    input: str
    """Path of a JSON Lines file, or - for standard input."""
    output: str
    """Path of the JSON Lines file to write, or to go on with."""
    model: str = ""
    """Put into every request that names none. Empty: the server's own."""
    concurrency: int = 64
    """Requests in flight at once."""
    max_tokens: int | None = None
    """Longest answer in tokens, unless a record says otherwise."""
    temperature: float | None = None
    """Sent with every request that names none of its own; not given: the server's default."""
    top_p: float | None = None
    """The same for nucleus sampling."""
    seed: int | None = None
    """The same for the seed."""
    retry_errors: bool = False
    """Send the lines again that have an error in OUT; their lines there are taken out first."""
    system: str = ""
    """System message for every record that has none of its own."""

    @property
    def defaults(self) -> Defaults:
        names = ("max_tokens", "temperature", "top_p", "seed")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return Defaults(self.model, self.system, given)


@dataclass
class Plan(AbstractContextManager["Plan"]):
    """A checked job: the output is open and locked, and it is known what is left."""

    job: JobConfig
    output: Output
    total: int
    """Lines of the input."""
    done: frozenset[str]
    """Keys that have their line of output already."""
    failed: int
    """How many of those lines have an error."""
    _input: Path
    _spool: IO[bytes] | None = field(default=None, repr=False)

    @property
    def left(self) -> int:
        return self.total - len(self.done)

    def todo(self) -> Iterator[Request | Malformed]:
        """The lines that have no output yet, in order."""
        for line in read(self._input, self.job.defaults):
            if line.key not in self.done:
                yield line

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.output.close()
        if self._spool is not None:
            self._spool.close()

    def __enter__(self) -> Self:
        return self


def prepare(job: JobConfig) -> Plan:
    """Check everything that can be checked before a server is started.

    Raises `InputError` for an input that is missing or unreadable, or has an id twice, and `OutputError` for an output
    that cannot be written, is being written by another run, or belongs to another input.
    """
    path, spool = _source(job.input)
    try:
        if Path(job.output).exists() and path.exists() and Path(job.output).samefile(path):
            raise OutputError(f"output {job.output} is the input itself; name another file")
        if job.output == "-":
            raise OutputError("output - : no run could go on with standard output; name a file")
        output = Output(Path(job.output))
        try:
            keys = _keys(path, job)
            done, failed = _done(output, keys)
            if not output.has_lines and output.torn and not _may_be_ours(output.torn, path, job):
                raise OutputError(f"output {job.output} was not written by Stoker; move it away, or name another file")
            output.mend()
            if job.retry_errors and failed:
                output.keep(lambda line: not line.get("error"))
                done, failed = _done(output, keys)
        except BaseException:
            output.close()
            raise
    except BaseException:
        if spool is not None:
            spool.close()
        raise
    return Plan(job, output, len(keys), done, failed, path, spool)


def _source(name: str) -> tuple[Path, IO[bytes] | None]:
    """The input as a file that can be read twice: standard input is copied to one first."""
    if name != "-":
        path = Path(name)
        try:
            with path.open("rb"):
                return path, None
        except OSError as error:
            raise InputError(f"input {name} cannot be read: {error.strerror}") from None
    spool = tempfile.NamedTemporaryFile(prefix="stoker-stdin-")  # noqa: SIM115 - closed with the plan
    shutil.copyfileobj(sys.stdin.buffer, spool)
    spool.flush()
    return Path(spool.name), spool


def read(path: Path, defaults: Defaults) -> Iterator[Request | Malformed]:
    """Every line of the input that is not empty. Memory does not grow with the input."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if number == 1:
                    line = line.removeprefix(BOM_UTF8)
                if line.strip():
                    yield parse(line, number, defaults)
    except OSError as error:
        raise InputError(f"input {path} cannot be read: {error.strerror}") from None


def _keys(path: Path, job: JobConfig) -> dict[str, int]:
    """What each key asks for, as a hash, in the order of the input."""
    keys: dict[str, int] = {}
    lines: dict[str, int] = {}
    for line in read(path, job.defaults):
        if line.key in keys:
            name = "custom_id" if line.batch else "id"
            raise InputError(
                f"input {job.input}: {name} {line.key!r} stands in line {lines[line.key]} and in line {line.line}; "
                "each must occur once"
            )
        keys[line.key] = _fingerprint(asked(line.record))
        lines[line.key] = line.line
    return keys


def _fingerprint(prompt: Any) -> int:
    return hash(repr(prompt))


def _may_be_ours(torn: bytes, path: Path, job: JobConfig) -> bool:
    """Whether a file that is nothing but a piece of a line can be the first line of output for this input, cut off: it
    begins as one of its records does."""
    beginnings = set(MADE)
    for line in read(path, job.defaults):
        first = next(((name, value) for name, value in line.record.items() if name not in RESULTS), None)
        if first is not None:
            beginnings.add(msgspec.json.encode(dict([first]))[:-1])
    return any(torn.startswith(begin[: len(torn)]) for begin in beginnings)


MADE = (b'{"id":"batch_req_', b'{"id":"line-')
"""How a line begins that has nothing of a record at its beginning."""
RESULTS = ("id", "error", "generations")
"""Fields whose place in a line of output is not the record's."""


def _done(output: Output, keys: Mapping[str, int]) -> tuple[frozenset[str], int]:
    """The keys that have their line, and how many of these lines have an error."""
    done: set[str] = set()
    failed = 0
    for number, line in output.finished():
        key = key_of(line)
        where = f"output {output.path}, line {number}"
        if key is None or key not in keys:
            raise OutputError(f"{where} has the id {key!r}, which is not in this input; name another output")
        if "custom_id" not in line and keys[key] != _fingerprint(asked(line)):
            raise OutputError(f"{where}: {key!r} answers another prompt than this input has; name another output")
        if key in done:
            raise OutputError(f"{where} has the id {key!r} a second time; move the output away")
        done.add(key)
        failed += bool(line.get("error"))
    return frozenset(done), failed


async def run_job(plan: Plan, send: Send, *, progress: Progress, stop: anyio.Event | None = None) -> Summary:
    """Send what is left and write every answer, `concurrency` requests at a time.

    A record that is refused (4xx), answers nonsense, or has used up its retries gets a line with `error`. One that was
    cut off by the end of the server gets none: it is sent again by the next run. When `stop` is set no new record is
    taken, and those in flight finish.

    Raises `StartFailed` if the server is given up, and `OutputError` if the output cannot be written any more.
    """
    tally = Tally(plan.total, len(plan.done), plan.failed)
    progress.begin(tally)
    workers = max(1, min(plan.job.concurrency, plan.left))
    giver, taker = anyio.create_memory_object_stream[Request](0)
    job = _Job(plan.output, send, tally)
    try:
        async with anyio.create_task_group() as group:
            for _ in range(workers):
                group.start_soon(job.work, taker.clone())
            taker.close()
            async with giver:
                await job.give(plan.todo(), giver, stop)
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    finally:
        plan.output.sync()
        progress.end()
    return tally.summary()


@dataclass
class _Job:
    output: Output
    send: Send
    tally: Tally
    ended: bool = False
    """The server takes no more: no use in handing out further records."""

    async def give(
        self,
        lines: Iterator[Request | Malformed],
        giver: MemoryObjectSendStream[Request],
        stop: anyio.Event | None,
    ) -> None:
        for line in lines:
            if self.ended or (stop is not None and stop.is_set()):
                return
            if isinstance(line, Malformed):
                self.output.append(malformed(line))
                self.tally.record_failed("malformed")
            elif stop is None:
                await giver.send(line)
            else:
                async with anyio.create_task_group() as race:
                    race.start_soon(_cancel_when, stop, race.cancel_scope)
                    await giver.send(line)
                    race.cancel_scope.cancel()

    async def work(self, taker: MemoryObjectReceiveStream[Request]) -> None:
        async with taker:
            async for request in taker:
                await self.one(request)

    async def one(self, request: Request) -> None:
        began = anyio.current_time()
        self.tally.request_began()
        try:
            answer = await self.send(request.path, request.payload)
            line = answered(request, answer)
        except Draining:
            self.ended = True
            self.tally.request_failed()
            return
        except RequestRefused as error:
            line = refused(request, str(error), status=error.status, body=error.body, kind="refused")
        except RequestError as error:
            line = refused(request, str(error), status=error.status, body=error.body, kind="failed")
        except BaseException:
            self.tally.request_failed()
            raise
        self.output.append(line)
        self.tally.count(line, anyio.current_time() - began)


async def _cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that a job ends with: many requests may fail for the one reason."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
