"""Files as one input, one after the other."""

from __future__ import annotations

import glob
import shutil
import stat
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from lifecycle.batch.sources import parquet
from lifecycle.batch.sources.kinds import HEAD, READ, TEMPORARY, Kind, is_beside, is_data, kind_of
from lifecycle.batch.sources.lines import lines
from lifecycle.batch.sources.packed import check_readable, open_lines
from lifecycle.batch.sources.row import Row
from lifecycle.errors import InputError


@dataclass(frozen=True, slots=True)
class Part:
    """A file that can be read."""

    path: Path
    kind: Kind
    name: str
    """As errors name it."""
    label: str = ""
    """Stands before "line 7" where there are several files."""
    count: int | None = None
    """Its records, where the file says so itself."""

    def rows(self, number: int) -> Generator[Row, None, int]:
        if self.kind == "parquet":
            return (yield from parquet.table(self.path, number, self.name, self.label))
        try:
            stream = open_lines(self.path, self.kind)
        except OSError as error:
            raise _unreadable(self.name, error) from None
        with stream:
            return (yield from lines(stream, number, self.name, self.label))


class Files:
    """Parts as one source. Rows are numbered through, so their numbers stay while no part before them changes."""

    def __init__(self, name: str, parts: Sequence[Part], spool: IO[bytes] | None = None) -> None:
        self.name = name
        self._parts = parts
        self._spool = spool

    @property
    def paths(self) -> tuple[Path, ...]:
        return () if self._spool else tuple(part.path for part in self._parts)

    def total(self) -> int | None:
        total = 0
        for part in self._parts:
            if part.count is None:
                return None
            total += part.count
        return total

    def rows(self) -> Iterator[Row]:
        number = 0
        for part in self._parts:
            number = yield from part.rows(number)

    def close(self) -> None:
        if self._spool:
            self._spool.close()


def open_file(path: Path, name: str) -> Files:
    """One file; a pipe is copied to a temporary file first, because it can be read only once."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            with path.open("rb") as stream:
                return spooled(stream, name)
    except OSError as error:
        raise _unreadable(name, error) from None
    return Files(name, [part_of(path, name)])


def open_folder(folder: Path, name: str) -> Files:
    """The data files of a folder, by name. Raises `InputError` for anything else in it but hidden files, a job's own
    and readmes: nothing is left out in silence."""
    try:
        entries = sorted((each for each in folder.iterdir() if not is_beside(each.name)), key=lambda each: each.name)
    except OSError as error:
        raise _unreadable(name, error) from None
    for entry in entries:
        if entry.is_dir():
            raise InputError(f"input {name} has the folder {entry.name} in it; name that one, or give '{name}/**/*'")
        if not is_data(entry.name):
            raise InputError(f"input {name} has {entry.name}, none of {READ}; say what is meant, like '{name}/*.jsonl'")
    if not entries:
        raise InputError(f"input {name} is a folder without data; looked for {READ}")
    return Files(name, [part_of(entry, str(entry), f"{entry.name}, ") for entry in entries])


def open_glob(pattern: str) -> Files:
    """The files that match, by path; `**` goes down into folders, `*` leaves out hidden files and folders."""
    found = sorted(path for path in glob.glob(pattern, recursive=True) if not path.endswith(TEMPORARY))
    paths = [Path(path) for path in found if not Path(path).is_dir()]
    if not paths:
        raise InputError(f"input {pattern}: no file matches; looked in {Path.cwd()}, hidden files left out")
    return Files(pattern, [part_of(path, str(path), f"{path}, ") for path in paths])


def open_stdin(name: str) -> Files:
    if sys.stdin is None:
        raise InputError(f"input {name}: standard input is closed; name a file")
    return spooled(sys.stdin.buffer, "standard input")


def spooled(stream: BinaryIO, name: str) -> Files:
    """What comes once, in a file without a name: it goes with the process, however that ends."""
    spool = tempfile.TemporaryFile(prefix="stoker-input-")  # noqa: SIM115 - closed with the source
    try:
        shutil.copyfileobj(stream, spool, 1 << 20)
        spool.flush()
        return Files(name, [part_of(Path(f"/proc/self/fd/{spool.fileno()}"), name)], spool)
    except OSError as error:
        spool.close()
        raise InputError(
            f"input {name} cannot be copied to a temporary file in {tempfile.gettempdir()}: {error.strerror or error}; "
            "TMPDIR names another folder"
        ) from None
    except BaseException:
        spool.close()
        raise


def part_of(path: Path, name: str, label: str = "") -> Part:
    """A file after a look at its beginning. Raises `InputError` if it cannot be read here."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise _unreadable(name, error) from None
    kind = kind_of(head, name)
    check_readable(kind, name)
    return Part(path, kind, name, label, parquet.count(path, name) if kind == "parquet" else None)


def _unreadable(name: str, error: OSError) -> InputError:
    return InputError(f"input {name} cannot be read: {error.strerror or error}")
