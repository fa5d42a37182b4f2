"""Log files and lines: any bytes in, lines out, never an error, never more memory than a line may have."""

from __future__ import annotations

import codecs
import os
import re
from pathlib import Path

LONGEST_LINE = 64 * 1024
"""Characters kept of one line; the rest is dropped and said to be."""
CUT = " … (line cut)"
TAIL_BYTES = 256 * 1024
"""Bytes read from the end of a log to show its last lines."""
LONGEST_LABEL = 80
"""Characters of a server's name that go into a file name (file systems allow 255 bytes in all)."""

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|\x1b[ -/]*[0-~]"  # all other sequences
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"  # NUL and its kin, and what is left of a broken sequence
)
"""ECMA-48 (5.4, 8.3.89) and xterm's control sequences."""
_BREAK = re.compile(r"[\r\n]")


class LineSplitter:
    """Splits a stream of bytes into lines, however the bytes are cut.

    `\\n`, `\\r\\n` and a lone `\\r` (progress bars) end a line. Broken UTF-8 is replaced; escapes and control
    characters are dropped, and so are lines that are empty then. A line is given as soon as its end is seen.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes."""
        return self._split(self._decoder.decode(data))

    def flush(self) -> list[str]:
        """What is left at the end of the stream. The splitter can then be used for another stream."""
        lines = self._split(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        return lines + self._end_line()

    def _split(self, text: str) -> list[str]:
        *ends, rest = _BREAK.split(text)
        lines: list[str] = []
        for end in ends:
            self._keep(end)
            lines += self._end_line()
        self._keep(rest)
        return lines

    def _keep(self, text: str) -> None:
        room = LONGEST_LINE - self._size
        if text and room > 0:
            self._rest.append(text[:room])
        self._size += len(text)

    def _end_line(self) -> list[str]:
        line = _ESCAPES.sub("", "".join(self._rest)).rstrip()
        if self._size > LONGEST_LINE:
            line += CUT
        self._rest, self._size = [], 0
        return [line] if line else []


def split(data: bytes) -> list[str]:
    """The lines of a whole piece of output."""
    splitter = LineSplitter()
    return splitter.feed(data) + splitter.flush()


def pieces(path: Path) -> tuple[Path, Path, Path]:
    """The files in which a keeper keeps one log, oldest first: its beginning, and its end in two that take turns."""
    return path, Path(f"{path}.end.older"), Path(f"{path}.end")


def tail(path: Path, count: int) -> list[str]:
    """The last `count` lines of an attempt's log, which may lie in several pieces. Empty if it cannot be read."""
    data = b""
    for piece in reversed(pieces(path)):
        data = _end_of(piece, TAIL_BYTES - len(data)) + data
    return split(data)[-count:] if count > 0 else []


def _end_of(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - size))
            return log.read(size)
    except OSError:
        return b""


def attempt_log(folder: Path, label: str, attempt: int) -> Path:
    """A new, empty log file for one attempt, in a private folder; never one that exists, so that no log is lost."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")[:LONGEST_LABEL] or "server"
    number = 0
    while True:
        again = f".{number}" if number else ""
        path = folder / f"{name}-{os.getpid()}-{attempt}{again}.log"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            number += 1
            continue
        return path
