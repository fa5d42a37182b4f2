"""JSON Lines as rows, from any stream of bytes."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Generator
from itertools import chain
from typing import BinaryIO

from lifecycle.batch.sources.kinds import inner_suffix
from lifecycle.batch.sources.row import Row
from lifecycle.errors import InputError

SPACE = b" \t\r\n"
"""JSON's white space (RFC 8259, section 2)."""


def lines(stream: BinaryIO, number: int, name: str, label: str = "") -> Generator[Row, None, int]:
    """Every line that is not empty, numbered from `number`; returns the number after the last.

    `name` is the file's for errors, `label` stands before "line 7" where there are several files.
    Raises `InputError` when the stream raises `OSError`, after every whole line before that.
    """
    unit = f"{label}line"
    position = 0
    try:
        first = stream.readline().removeprefix(BOM_UTF8)
        if inner_suffix(name) == ".json":
            _refuse_document(first.strip(SPACE), name)
        for position, line in enumerate(chain((first,), stream), 1):
            data = line.strip(SPACE)
            if data:
                yield Row(number, data, unit, position)
                number += 1
    except OSError as error:
        raise InputError(f"input {name} cannot be read after line {position}: {error.strerror or error}") from None
    return number


def _refuse_document(first: bytes, name: str) -> None:
    """A `.json` file is as often one array, or one record over many lines: no line of these is a record."""
    if first.startswith(b"[") or first == b"{":
        raise InputError(
            f"input {name} is a single JSON document, and a record a line is wanted (JSON Lines); "
            f"`jq -c '.[]' {name}` makes lines of an array, `jq -c .` of one record"
        )
