"""Where the files of an output lie. Two kinds, told apart by the name that the user gave:

    out.jsonl                    one file of JSON Lines: appended to, readable while it grows
    .out.jsonl.g2                its next generation, on its way to that name
    .out.jsonl.stoker/           journal, job.json, lock

    out/part-00000.parquet       whole parts; the format may also be jsonl, jsonl.gz, jsonl.zst
    out/.part-00003.g1.jsonl     lines of a part that is not whole yet
    out/.part-00002.g1.parquet   a part on its way to its name
    out/.stoker/                 journal, job.json, lock

The folder of the journal may be removed when the job is done; then no run can go on with the output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lifecycle.batch.store.disk import Disk
from lifecycle.batch.store.formats import FORMATS
from lifecycle.errors import OutputError

STATE = ".stoker"
"""The folder for journal, header and lock in a folder of parts."""


class Layout(Protocol):
    """Names of an output's files. `generation` is the journal's: a rewrite makes new files, and takes them into use all
    at once by a journal of the next generation."""

    @property
    def path(self) -> Path:
        """As the user named it."""

    @property
    def folder(self) -> Path:
        """Where the results lie."""

    @property
    def state(self) -> Path:
        """Where journal, header and lock lie."""

    @property
    def format(self) -> str: ...
    @property
    def part_size(self) -> int | None:
        """Lines of a whole part; None: there is but one part, which never ends."""

    def lines(self, part: int, generation: int) -> Path:
        """The lines of a part that is not whole."""

    def made(self, part: int, generation: int) -> Path:
        """A file that is to be moved to its final name as soon as the journal says so."""

    def final(self, part: int) -> Path: ...
    def is_hidden(self, name: str) -> bool:
        """Whether a name in `folder` can be one of `lines` or `made` other than a final one."""

    def is_part(self, name: str) -> bool:
        """Whether a name in `folder` can be a final one."""


@dataclass(frozen=True)
class SingleFile:
    path: Path
    format: str = "jsonl"
    part_size: int | None = None

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def state(self) -> Path:
        return self.path.with_name(f".{self.path.name}.stoker")

    def lines(self, part: int, generation: int) -> Path:
        return self.path

    def made(self, part: int, generation: int) -> Path:
        return self.path.with_name(f".{self.path.name}.g{generation}")

    def final(self, part: int) -> Path:
        return self.path

    def is_hidden(self, name: str) -> bool:
        return re.fullmatch(rf"\.{re.escape(self.path.name)}\.g[0-9]+", name) is not None

    def is_part(self, name: str) -> bool:
        return name == self.path.name


@dataclass(frozen=True)
class Parts:
    path: Path
    format: str
    part_size: int | None

    @property
    def folder(self) -> Path:
        return self.path

    @property
    def state(self) -> Path:
        return self.path / STATE

    def lines(self, part: int, generation: int) -> Path:
        return self.path / f".part-{part:05}.g{generation}.jsonl"

    def made(self, part: int, generation: int) -> Path:
        return self.path / f".part-{part:05}.g{generation}.{self.format}"

    def final(self, part: int) -> Path:
        return self.path / f"part-{part:05}.{self.format}"

    def is_hidden(self, name: str) -> bool:
        return re.fullmatch(rf"\.part-[0-9]{{5,}}\.g[0-9]+\.({_any(FORMATS)})", name) is not None

    def is_part(self, name: str) -> bool:
        return re.fullmatch(rf"part-[0-9]{{5,}}\.({_any(FORMATS)})", name) is not None


def _any(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, texts))


def layout_of(disk: Disk, name: str | Path, format: str, part_size: int) -> Layout:
    """The layout that a name asks for. Raises `OutputError` for a name that does not go with the format, and `OSError`.

    A folder of parts: a name that ends with a slash, has no suffix, or is a folder; one file: all others.
    """
    if str(name) == "-":
        raise OutputError("output - : no run could go on with standard output; name a file or a folder")
    path = disk.resolve(Path(name))
    if format not in FORMATS:
        raise OutputError(f"output format {format!r} is unknown; known: {', '.join(FORMATS)}")
    if part_size < 1:
        raise OutputError(f"a part of {part_size} lines cannot be; take 1 or more")
    found = disk.kind(path)
    if found == "other":
        raise OutputError(f"output {path} is no regular file, so no run could go on with it; name a file or a folder")
    slash = str(name).endswith("/")
    if found == "file" and slash:
        raise OutputError(f"output {name} is a file, not a folder; name another, or leave out the slash")
    if found == "folder" or (found == "nothing" and (slash or not path.suffix)):
        return Parts(path, format, part_size)
    if format != "jsonl":
        raise OutputError(
            f"output {path}: {format} is written in numbered parts; name a folder for them, such as "
            f"{path.with_name(_stem(path))}/"
        )
    for other in FORMATS:
        if other != "jsonl" and path.name.endswith(f".{other.rpartition('.')[2]}"):
            raise OutputError(
                f"output {path}: one file is plain JSON Lines; name it so, or take format {other} and name a folder "
                f"for its parts, such as {path.with_name(_stem(path))}/"
            )
    return SingleFile(path)


def _stem(path: Path) -> str:
    return path.name.partition(".")[0] or "out"
