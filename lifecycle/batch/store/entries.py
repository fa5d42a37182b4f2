"""The entries of the journal: 24 bytes each, little-endian, the last four a CRC-32 of the others.

    BEGIN   number: generation, counted up by each rewrite; check: version of this layout. Always the first entry.
    PART    number: the part that the following records belong to.
    DONE    number, check: the record; length, crc: its line with its newline, which stands behind the lines of the
            part's records before it. Flags: ERROR; NO_LINE (length and crc are 0).
    MARK    number: how many entries of this journal, from its beginning, are on the disk with all that they tell of;
            check: Adler-32 of these entries. Flags: CLEAN, the run was over; COMPLETE, and so is the job.
    SEALED  number: a part that is whole; check: its lines; size: bytes of its file.

The entries before a MARK are checked by one Adler-32, not by a second CRC-32: that of data which carry their own CRC-32
depends on nothing but their length.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import NamedTuple
from zlib import crc32

LAYOUT = 1
BEGIN, PART, DONE, MARK, SEALED = range(1, 6)
ERROR, NO_LINE = 1, 2
CLEAN, COMPLETE = 1, 2

_RECORD = struct.Struct("<BBHIIII")  # kind, flags, 0, number, check, length, crc
_SIZED = struct.Struct("<BBHIIQ")  # kind, flags, 0, number, check, size
_CRC = struct.Struct("<I")
SIZE = _RECORD.size + _CRC.size
WORDS = SIZE // 4
assert array("I").itemsize == 4


class Entry(NamedTuple):
    kind: int
    flags: int
    number: int
    check: int
    length: int
    crc: int

    @property
    def size(self) -> int:
        return self.length | self.crc << 32


def begin(generation: int) -> bytes:
    return _sealed(_RECORD.pack(BEGIN, 0, 0, generation, LAYOUT, 0, 0))


def part(number: int) -> bytes:
    return _sealed(_RECORD.pack(PART, 0, 0, number, 0, 0, 0))


def done(number: int, check: int, flags: int, length: int, crc: int) -> bytes:
    return _sealed(_RECORD.pack(DONE, flags, 0, number, check, length, crc))


def mark(entries: int, adler: int, flags: int) -> bytes:
    return _sealed(_SIZED.pack(MARK, flags, 0, entries, adler, 0))


def sealed(number: int, lines: int, size: int) -> bytes:
    return _sealed(_SIZED.pack(SEALED, 0, 0, number, lines, size))


def _sealed(body: bytes) -> bytes:
    return body + _CRC.pack(crc32(body))


def parse(data: bytes) -> Entry | None:
    """The entry, or None if these are not the bytes of one."""
    if len(data) != SIZE:
        return None
    body = data[: _RECORD.size]
    if crc32(body) != _CRC.unpack_from(data, _RECORD.size)[0] or not BEGIN <= data[0] <= SEALED:
        return None
    kind, flags, _, number, check, length, crc = _RECORD.unpack(body)
    return Entry(kind, flags, number, check, length, crc)


class Columns(NamedTuple):
    """Many entries at once, each field in a column: taken apart in C, a million in a few milliseconds."""

    kinds: bytes
    flags: bytes
    numbers: array[int]
    checks: array[int]
    lengths: array[int]
    crcs: array[int]

    def rows(self, start: int, stop: int) -> Columns:
        return Columns(*(column[start:stop] for column in self))  # type: ignore[arg-type]

    def entry(self, row: int) -> Entry:
        return Entry(*(column[row] for column in self))


def columns(data: bytes) -> Columns:
    words = array("I", data)
    if sys.byteorder == "big":
        words.byteswap()
    return Columns(
        data[0::SIZE], data[1::SIZE], words[1::WORDS], words[2::WORDS], words[3::WORDS], words[4::WORDS]
    )  # fmt: skip
