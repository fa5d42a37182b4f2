"""`stoker ps`: every server of this user on this host, and how it stands."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
import psutil
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from lifecycle.cli.say import put, tell
from lifecycle.errors import StokerError
from lifecycle.resources.desk import Status, managers
from lifecycle.resources.local import LocalHost
from lifecycle.resources.reap import Leftover, keepsake_of, records
from lifecycle.roster import Standing

NARROWEST = 120
"""Columns of the table where no terminal says how many there are."""
UNKNOWN, ORPHANED, KEPT = "unknown", "orphaned", "kept"
"""States of a server whose manager is asked for nothing (a program that has Stoker embedded), of one whose manager has
died (`stoker reap` ends those), and of one that its keeper keeps since, for `stoker serve --attach` to take over."""


@dataclass(frozen=True)
class Row:
    """One server, group or fleet."""

    name: str
    state: str
    since: float | None
    """Unix seconds."""
    attempt: int
    model: str
    port: int | None
    manager: int
    pids: tuple[int, ...]
    """Its processes, the main one first."""
    memory: int
    """Bytes that are resident in them, shared ones counted in each."""
    gpu_memory: int
    """Bytes; 0 also where the driver does not say."""
    in_flight: int | None
    """Requests that it has; None where only its fleet knows."""
    phase: str
    trouble: str
    log: str | None


def run(args: argparse.Namespace) -> int:
    """The command. Exit code 0 also if there is none."""
    state_dir = LocalHost(Path(args.state_dir) if args.state_dir else None).state_dir
    rows = look(state_dir)
    if args.json:
        for row in rows:
            put(msgspec.json.encode(asdict(row)).decode())
    elif rows:
        put(table(rows, time.time()))
    else:
        put("no server runs here")
    return 0


def look(state_dir: Path) -> list[Row]:
    """What managers say, beside what the state folder and the processes show. Blocks."""
    told: list[Status] = []
    for said in managers():
        if isinstance(said, StokerError):
            tell(f"stoker: {said}")
        else:
            told.append(said)
    return rows_of(told, [each for each in records(state_dir) if each.is_here], gpu_memory())


def rows_of(told: Iterable[Status], found: Sequence[Leftover], on_gpu: Mapping[int, int]) -> list[Row]:
    """A row for each server that a manager tells of, and for each of the records that nobody has told of."""
    rows, seen = [], set()
    for status in told:
        for number, each in enumerate(status.servers):
            record = next((one for one in found if each.pid and one.main == each.pid), None)
            if record is not None:
                seen.add(record.id)
            pids = _pids(record) if record is not None else ()
            in_flight = status.in_flight if number == 0 else None
            rows.append(_row(each, status.manager, pids, in_flight, on_gpu))
    for record in found:
        if record.id not in seen:
            state = KEPT if record.is_kept else ORPHANED if record.orphaned else UNKNOWN
            sake = keepsake_of(record) if record.is_kept else None
            standing = Standing(record.label, state, 0.0)
            if sake is not None:
                standing = replace(standing, model=sake.model, port=sake.ports[0], log=sake.log)
            rows.append(_row(standing, record.manager, _pids(record), None, on_gpu))
    return rows


def _row(
    each: Standing, manager: int, pids: tuple[int, ...], in_flight: int | None, on_gpu: Mapping[int, int]
) -> Row:
    return Row(
        each.name, each.state, each.since or None, each.attempt, each.model, each.port, manager, pids,
        sum(map(_resident, pids)), sum(on_gpu.get(pid, 0) for pid in pids), in_flight, each.phase, each.trouble,
        each.log,
    )  # fmt: skip


def _pids(record: Leftover) -> tuple[int, ...]:
    others = {pid for pid in record.processes() if pid not in (record.main, record.keeper)}
    return tuple([record.main] if record.main else []) + tuple(sorted(others))


def _resident(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def gpu_memory() -> dict[int, int]:
    """Bytes of GPU memory by pid, as far as the driver says. Blocks."""
    from lifecycle.resources.gpus import everything

    used: dict[int, int] = {}
    for gpu in everything():
        for process in (p for each in (gpu, *gpu.instances) for p in each.processes):
            used[process.pid] = used.get(process.pid, 0) + (process.used or 0)
    return used


def table(rows: Sequence[Row], now: float) -> str:
    """The rows for people."""
    console = Console(width=None if sys.stdout.isatty() else NARROWEST)
    shown = Table(
        "name", "state", "for", "attempt", "model", "port", "manager", "pids", "memory", "gpu", "in flight", box=None,
        pad_edge=False, padding=(0, 2, 0, 0),
    )  # fmt: skip
    for row in rows:
        shown.add_row(
            row.name, row.state, _span(now - row.since) if row.since else "", str(row.attempt or ""), row.model,
            str(row.port or ""), str(row.manager), " ".join(map(str, row.pids)), _size(row.memory),
            _size(row.gpu_memory), "" if row.in_flight is None else str(row.in_flight),
        )  # fmt: skip
    with console.capture() as captured:
        console.print(shown)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    more = [f"{row.name}: {name}: {text}" for row in rows for name, text in _more(row) if text]
    return "\n".join([*lines, *([""] if more else []), *more])


def _more(row: Row) -> tuple[tuple[str, str | None], ...]:
    return ("log", row.log), ("at", row.phase), ("last trouble", row.trouble)


def _size(size: int) -> str:
    return decimal(size) if size else ""


def _span(seconds: float) -> str:
    """How long, in the largest two units.

    >>> _span(59.6), _span(3600 * 30)
    ('59 s', '1 d 6 h')
    """
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    left, told = int(max(0.0, seconds)), []
    for name, size in units:
        if left >= size:
            told.append(f"{left // size} {name}")
            left %= size
    return " ".join(told[:2]) or "0 s"
