"""Histories of a job's output on a simulated disk, and what must hold after each end of the process."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import pyarrow.parquet
from backports import zstd

from lifecycle.batch.store import Store, open_store
from lifecycle.errors import OutputError
from tests.batch.simulated_disk import Crash, SimulatedDisk

Action = tuple[Literal["append", "fail", "skip", "skip failed", "sync", "busy sync", "reopen", "drop", "finish"], int]
RECORDS = 9
PART_SIZE = 2


def check_of(number: int) -> int:
    return number * 2654435761 % 2**32


@dataclass
class Output:
    """A job's output, and what is known to be in it."""

    format: str
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    expected: dict[int, tuple[bytes | None, bool]] = field(default_factory=dict)
    """Line of each record that `append` returned for, and whether it failed."""
    safe: set[int] = field(default_factory=set)
    """Those that were synced."""
    trying: dict[int, tuple[bytes | None, bool]] = field(default_factory=dict)
    """The one that is being appended."""
    dropping: bool = False
    store: Store | None = None
    tries: int = 0
    said: str = ""
    """What another thread was told."""

    @property
    def path(self) -> str:
        return "/out.jsonl" if self.format == "single" else "/out/"

    def open(self) -> Store:
        format = "jsonl" if self.format == "single" else self.format
        self.store = open_store(
            self.path, format=format, part_size=PART_SIZE, disk=self.disk, take_lock=self.disk.lock
        )  # fmt: skip
        return self.store

    def play(self, actions: Sequence[Action]) -> None:
        """Begin, do all that, end in order. `Crash` goes through."""
        self.open()
        for kind, choice in actions:
            self._do(kind, choice)
        self.close()

    def _do(self, kind: str, choice: int) -> None:
        store = self.store
        assert store is not None
        if kind == "sync":
            self.sync()
        elif kind == "busy sync":
            self.disk.meanwhile = lambda: self._append_meanwhile(choice)
            try:
                self.sync()
            finally:
                self.disk.meanwhile = None
        elif kind == "reopen":
            self.close()
            self.open()
        elif kind == "drop":
            self.drop()
        elif kind == "finish":
            store.finish()
            self.safe = set(self.expected)
        elif left := [number for number in range(RECORDS) if number not in self.expected]:
            self.append(left[choice % len(left)], skip=kind.startswith("skip"), error=kind in ("fail", "skip failed"))

    def _append_meanwhile(self, choice: int) -> None:
        try:
            self._do("append", choice)
        except OutputError as error:  # for the other thread, not for the one that syncs
            self.trying = {}
            self.said = str(error)

    def append(self, number: int, *, skip: bool = False, error: bool = False) -> None:
        assert self.store is not None
        self.tries += 1
        record: dict[str, Any] = {"id": number, "try": self.tries, "text": "ü" * (number * 3)}
        if error:
            record["error"] = {"message": "no"}
        line = None if skip else json.dumps(record, ensure_ascii=False).encode()
        self.trying = {number: (line, error)}
        self.store.append(number, check_of(number), line, error=error)
        self.expected.update(self.trying)
        self.trying = {}

    def sync(self) -> None:
        assert self.store is not None
        before = set(self.expected)
        self.store.sync()
        self.safe = before

    def drop(self) -> None:
        assert self.store is not None
        self.dropping = True
        failed = self.failed()
        assert self.store.drop_errors() == len(failed)
        self.dropping = False
        self.expected = {number: what for number, what in self.expected.items() if not what[1]}
        if failed:
            self.safe = set(self.expected)

    def close(self) -> None:
        assert self.store is not None
        self.store.close()
        self.safe = set(self.expected)

    def failed(self) -> set[int]:
        return {number for number, (_, error) in self.expected.items() if error}

    def end(self, power_cut: Random | None) -> None:
        """The process dies, or the whole machine."""
        if power_cut is None:
            self.disk.kill()
        else:
            self.disk.cut_power(power_cut)

    def recover(self, *, power_cut: bool) -> None:
        """Open again, and check that nothing is lost that should not be, twice, torn or made up."""
        store = self.open()
        done = {number for number in range(RECORDS) if store.is_done(number, check_of(number))}
        known = {**self.expected, **self.trying}
        must = set(self.safe if power_cut else self.expected)
        if self.dropping:
            gone = self.failed()
            assert gone <= done or not gone & done or power_cut
            must -= gone
        assert must <= done
        assert done <= set(known)
        self.expected = {number: known[number] for number in done}
        self.safe = set(done)
        self.trying = {}
        self.dropping = False
        self.check()

    def check(self) -> None:
        """The output holds exactly the lines that are expected, and the store knows it."""
        assert self.store is not None
        wanted = self._with_lines()
        found = self.lines()
        assert sorted(line["id"] for line in found) == sorted(wanted)
        assert {line["id"]: line for line in found} == wanted
        assert self.store.finished == len(self.expected)
        assert self.store.failed == len(self.failed())

    def _with_lines(self) -> dict[int, dict[str, Any]]:
        return {number: json.loads(line) for number, (line, _) in self.expected.items() if line is not None}

    def complete(self) -> None:
        """Do what is left, and end; then there is nothing but whole parts."""
        for number in range(RECORDS):
            if number not in self.expected:
                self.append(number)
        assert self.store is not None
        self.store.finish()
        self.check()
        self.close()
        self.disk.cut_power(Random(0))
        self._check_whole()
        assert self.open().complete
        self.check()
        self.close()

    def _check_whole(self) -> None:
        visible = [name for name in self.disk.names(Path(self.path)) if not name.startswith(".")] if self.parts else []
        hidden = [name for name in self._hidden() if ".stoker" not in name]
        assert not hidden
        assert sorted(line["id"] for line in self.lines()) == sorted(self._with_lines())
        assert all(name.startswith("part-") and name.endswith(f".{self.format}") for name in visible)

    @property
    def parts(self) -> bool:
        return self.format != "single"

    def _hidden(self) -> list[str]:
        return [name for name in self.disk.names(Path(self.path if self.parts else "/")) if name.startswith(".")]

    def lines(self) -> list[dict[str, Any]]:
        """All lines: of whole parts, and of those that grow."""
        if not self.parts:
            return _parse(self._content("/out.jsonl"))
        found = []
        for name in self.disk.names(Path(self.path)):
            if name == ".stoker":
                continue
            data = self._content(f"/out/{name}")
            if name.startswith("."):
                assert name.endswith(".jsonl")
            if name.endswith(".gz"):
                data = gzip.decompress(data)
            elif name.endswith(".zst"):
                data = zstd.decompress(data)
            found += _rows(data) if name.endswith(".parquet") else _parse(data)
        return found

    def _content(self, path: str) -> bytes:
        return self.disk.open(Path(path)).read(1 << 30, 0)


def _parse(data: bytes) -> list[dict[str, Any]]:
    assert not data or data.endswith(b"\n")
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]


def _rows(data: bytes) -> list[dict[str, Any]]:
    rows = pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def crashed(format: str, actions: Sequence[Action], at: int) -> Output:
    """An output whose process died at that operation."""
    output = Output(format)
    output.disk.crash_at = at
    try:
        output.play(actions)
    except Crash:
        return output
    raise AssertionError(f"there is no operation {at}")
