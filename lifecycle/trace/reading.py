"""Reading journals that may have been damaged: what a crash or a full disk left of a line costs that line, and no more.

`lifecycle.journal.read_journal` is for replaying, and refuses such a file; whoever wants to see what happened wants to
see all that is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lifecycle.decoding import decode
from lifecycle.errors import JournalError
from lifecycle.journal import Record

BEGINNING = b'{"seq":'
"""How every line of a journal begins: `seq` is the first field of a record."""


@dataclass(frozen=True)
class Reading:
    """What a file holds."""

    path: Path
    records: tuple[Record, ...]
    broken: tuple[int, ...] = ()
    """Numbers of lines of which nothing, or only the end, could be read."""


def read(path: Path) -> Reading:
    """All that is left of a journal. Raises `JournalError` if the file cannot be read or holds something else."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JournalError(f"journal {path} cannot be read: {error.strerror}") from None
    records, broken = records_of(data.split(b"\n"))
    if not records and broken:
        raise JournalError(f"{path} holds no record of a journal: {len(broken)} lines were tried")
    return Reading(path, tuple(records), tuple(broken))


def records_of(lines: Iterable[bytes]) -> tuple[list[Record], list[int]]:
    """The records of a journal's lines, and the numbers of the lines that are broken."""
    records: list[Record] = []
    broken: list[int] = []
    for number, line in enumerate(lines, 1):
        text = line.strip(b"\0 \t\r")  # a power cut leaves NULs where the last line should be
        if not text:
            continue
        try:
            records.append(decode(text, Record))
        except msgspec.MsgspecError:
            broken.append(number)
            records += _rest(text)
    return records, broken


def _rest(line: bytes) -> list[Record]:
    """A whole record behind a torn one: the next run appended it to what a crash had left."""
    at = line.rfind(BEGINNING)
    if at <= 0:
        return []
    try:
        return [decode(line[at:], Record)]
    except msgspec.MsgspecError:
        return []
