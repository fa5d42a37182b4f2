"""A record of the input, and what every kind of input offers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec


class Row(msgspec.Struct, frozen=True, gc=False):
    """One record. A struct without a slot for the garbage collector, because a job makes one for each of millions."""

    number: int
    """Its place in the whole input, from 0, counting records only: an empty line is none. The same in every run."""
    data: bytes
    """The record as JSON: a line without its byte order mark and the white space around it, or an encoded row."""
    unit: str
    """What `position` counts: "line", "part-3.jsonl, line", "row". One object shared by the rows of a file."""
    position: int
    """The line or row of its file, from 1; empty lines count."""

    @property
    def where(self) -> str:
        """Where a person finds it: "line 7", "part-3.jsonl, line 7", "row 7"."""
        return f"{self.unit} {self.position}"


class Source(Protocol):
    """An input that can be read as often as needed, always in the same order."""

    @property
    def name(self) -> str:
        """For people: what was asked for."""
        ...

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that it reads, so that an output can be told from its input. None for a stream or a dataset."""
        ...

    def total(self) -> int | None:
        """How many records there are, if that is known without reading them: Parquet, most hub datasets."""
        ...

    def rows(self) -> Iterator[Row]:
        """Every record in order. Blocks; holds no more than one record or one small batch of rows in memory.

        Raises `InputError` where the input is damaged, after all records before that point were given.
        """
        ...

    def close(self) -> None:
        """Give back what it holds. Safe to call twice."""
        ...
