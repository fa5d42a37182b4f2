"""What a job has to do, found before a server is started: input, output, and what is left between them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from zlib import crc32

import msgspec

from lifecycle.batch.config import JobConfig
from lifecycle.batch.records import Defaults
from lifecycle.batch.shard import Shard, shard_of
from lifecycle.batch.sources import Row, Source, open_source
from lifecycle.batch.sources.hub import Hub
from lifecycle.batch.store import Store, open_store
from lifecycle.batch.store.layout import STATE
from lifecycle.errors import OutputError


@dataclass
class Plan(AbstractContextManager["Plan"]):
    """A checked job: input and output are open, the output is locked, and it is known what is left."""

    job: JobConfig
    source: Source
    store: Store
    output: Path
    """The store's own: with several shards, this one's."""
    defaults: Defaults
    shard: Shard | None
    total: int | None
    """Records that are this run's; None if that is not known before they have been read (a dataset of the hub)."""
    earlier: int
    """How many of them were finished before."""
    failed: int
    """How many of those have failed."""
    changed: str = ""
    """What this run asks for otherwise than the first one did, for people; empty if nothing."""
    begun: bool = True
    """False while nothing has been started for this job: an output that nothing was put into is taken away then."""

    @property
    def left(self) -> int | None:
        """Records to be done; None if that is not known."""
        return None if self.total is None else self.total - self.earlier

    def rows(self) -> Iterator[Row | None]:
        """The records to be done, in order; None for each that is another run's or finished, so that who reads can
        stop in between. Blocks. Raises `InputError` for an input that is damaged, `OutputError` for one that has
        changed."""
        done, shard = self.store.is_done, self.shard
        for row in self.source.rows():
            mine = shard is None or shard.mine(row.number)
            yield row if mine and not done(row.number, crc32(row.data)) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.source.close()
        finally:
            if self.begun:
                self.store.close()
            else:
                self.store.abandon()


def prepare(job: JobConfig, environ: Mapping[str, str] = os.environ) -> Plan:
    """Check everything that can be checked before a server is started. Blocks: every record of the input is looked at
    (0.7 s for a million), unless it is a dataset of the hub.

    Raises `InputError` for an input that is missing, unreadable or damaged; `OutputError` for an output that cannot be
    written, is being written by another run, or belongs to another job or input; `ConfigError` for a shard or a
    template that cannot be.
    """
    shard = shard_of(job.rank, job.world_size, environ)
    defaults = job.defaults
    source = open_source(job.input)
    try:
        output = path_of(job.output, shard)
        _check_apart(job, source, output)
        store = open_store(
            output, format=job.format, part_size=job.part_size, terms=_terms(job, shard),
            asked=_asked(job),
        )
        try:
            if job.retry_errors:
                store.drop_errors()
            plan = Plan(job, source, store, output, defaults, shard, None, store.finished, store.failed)
            plan.changed = _changed(store.begun_with, _asked(job))
            plan.total = _count(plan)
        except BaseException:
            store.abandon()
            raise
    except BaseException:
        source.close()
        raise
    return plan


def path_of(output: str, shard: Shard | None) -> Path:
    """Where a shard's results go: a file or a folder of its own beside, or in, the name that was given.

    >>> path_of("out.jsonl", Shard(1, 4))
    PosixPath('out.rank-00001-of-00004.jsonl')
    """
    path = Path(output)
    if output == "-":
        raise OutputError("output - : no run could go on with standard output; name a file or a folder")
    if shard is None:
        return path
    name = f"rank-{shard.rank:05}-of-{shard.world:05}"
    if output.endswith("/") or path.is_dir() or not path.suffix:
        path.mkdir(parents=True, exist_ok=True)
        return path / name
    return path.with_name(f"{path.stem}.{name}{path.suffix}")


def _check_apart(job: JobConfig, source: Source, output: Path) -> None:
    """Raise `OutputError` if the output is the input, lies where the next run would take it for input, or is a folder
    with other things in it."""
    for path in source.paths:
        if output.exists() and path.exists() and output.samefile(path):
            raise OutputError(f"output {output} is the input itself; name another file")
    if Path(job.input).is_dir() and output.resolve().is_relative_to(Path(job.input).resolve()):
        raise OutputError(f"output {output} lies in the input {job.input}, where the next run would read it; move it")
    if output.is_dir() and not (output / STATE).exists():
        others = [path.name for path in output.iterdir() if not path.name.startswith(".")]
        if others:
            raise OutputError(
                f"output {output} is a folder with other things in it, such as {min(others)}; name a new or empty one"
            )


def _terms(job: JobConfig, shard: Shard | None) -> dict[str, object]:
    """What must be the same in all runs of a job."""
    share = "" if shard is None else f"{shard.rank} of {shard.world}"
    return {"shard": share, "rollouts": job.rollouts, "rollout": job.rollout}


def _asked(job: JobConfig) -> dict[str, Any]:
    """What shapes the requests and may be another from run to run."""
    names = ("model", "system", "max_tokens", "temperature", "top_p", "seed", "template", "context")
    return {**job.params, **{name: value for name in names if (value := getattr(job, name)) not in (None, "")}}


def _changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs, in words.

    >>> _changed({"seed": 1, "top_k": 2}, {"seed": 3, "top_k": 2, "stop": ["a"]})
    "seed = 3 (was 1), stop = ['a'] (was not set)"
    """
    now = msgspec.json.decode(msgspec.json.encode(now))  # as JSON has it: no tuples
    names = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    shown = [[repr(each[name])[:80] if name in each else "not set" for each in (now, then)] for name in names]
    return ", ".join(f"{name} = {new} (was {old})" for name, (new, old) in zip(names, shown, strict=True))


def _count(plan: Plan) -> int | None:
    """How many records are this run's. Every result of an earlier one is seen to have its record still."""
    done, shard = plan.store.is_done, plan.shard
    if isinstance(plan.source, Hub):  # to read it means to download it
        known = plan.source.total()
        return known if known is None or shard is None else sum(map(shard.mine, range(known)))
    total = finished = 0
    for row in plan.source.rows():
        if shard is None or shard.mine(row.number):
            total += 1
            finished += done(row.number, crc32(row.data))
    if finished < plan.store.finished:
        raise OutputError(
            f"output {plan.output} has {plan.store.finished - finished} results for records that this input does not "
            "have; give the input that it was begun with, or name another output"
        )
    return total
