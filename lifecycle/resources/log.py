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

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
_BREAK = re.compile(r"\r\n|\n|\r")


class LineSplitter:
    """Splits a stream of bytes into lines, however the bytes are cut.

    `\\n`, `\\r\\n` and a lone `\\r` (progress bars) end a line. Broken UTF-8 is replaced, NUL and ANSI escapes are
    dropped, empty lines are left out.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._dropping = False

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes."""
        return self._split(self._decoder.decode(data))

    def flush(self) -> list[str]:
        """What is left at the end of the stream."""
        lines = self._split(self._decoder.decode(b"", final=True))
        last, self._rest = self._rest, ""
        if not self._dropping:
            lines += _clean(last)
        self._dropping = False
        return lines

    def _split(self, text: str) -> list[str]:
        text = self._rest + text
        # A "\r" at the very end may be half of a "\r\n": it waits for what follows.
        held = "\r" if text.endswith("\r") else ""
        *whole, rest = _BREAK.split(text[: len(text) - len(held)])
        lines: list[str] = []
        for line in whole:
            if self._dropping:
                self._dropping = False
            else:
                lines += _clean(line)
        if len(rest) > LONGEST_LINE:
            if not self._dropping:
                lines += _clean(rest)
            self._dropping = True
            rest = ""
        elif self._dropping:
            rest = ""
        self._rest = rest + held
        return lines


def _clean(line: str) -> list[str]:
    if len(line) > LONGEST_LINE:
        line = line[:LONGEST_LINE] + CUT
    line = _ANSI.sub("", line).replace("\x00", "").rstrip()
    return [line] if line else []


def split(data: bytes) -> list[str]:
    """The lines of a whole piece of output."""
    splitter = LineSplitter()
    return splitter.feed(data) + splitter.flush()


def tail(path: Path, count: int) -> list[str]:
    """The last `count` lines of an attempt's log, which may lie in three pieces. Empty if it cannot be read."""
    lines: list[str] = []
    for piece in (path, Path(f"{path}.end.older"), Path(f"{path}.end")):
        lines += split(_end_of(piece))
    return lines[-count:]


def _end_of(path: Path) -> bytes:
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - TAIL_BYTES))
            return log.read()
    except OSError:
        return b""


def attempt_log(folder: Path, label: str, attempt: int) -> Path:
    """A new, empty log file for one attempt, in a private folder; never one that exists, so no log is ever lost."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "server"
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
