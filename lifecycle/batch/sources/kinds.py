"""What kind of file is it? The first bytes decide, and the name may not say otherwise. Pure."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Literal

from lifecycle.errors import InputError

Kind = Literal["lines", "gzip", "zstd", "parquet"]

HEAD = 4
"""As many of the first bytes as tell the kinds apart."""
PACKED: dict[str, Kind] = {".gz": "gzip", ".zst": "zstd"}
PLAIN = (".jsonl", ".ndjson", ".json")
PARQUET = ".parquet"
OTHERS = {
    *(".7z", ".bz2", ".lz4", ".tar", ".tgz", ".xz", ".zip"),
    *(".arrow", ".avro", ".csv", ".feather", ".h5", ".npy", ".npz", ".orc", ".pkl", ".pt", ".safetensors", ".tsv"),
    *(".xls", ".xlsx"),
}
"""Never JSON Lines: refused by name, because every line of such a file would become a record with an error."""
READ = "JSON Lines (.jsonl, .ndjson, .json, also with .gz or .zst) and Parquet (.parquet)"

TEMPORARY = (".tmp", ".lock", ".journal.jsonl")
"""How files end that a job keeps beside its output."""
PAPERS = re.compile(r"(readme|licen[cs]e|notice|changelog)(\.(md|txt|rst))?", re.IGNORECASE)
"""Files that lie beside data and are none."""


def kind_of(head: bytes, name: str) -> Kind:
    """The kind of a file that begins with `head`.

    Magic numbers: gzip RFC 1952, 2.3.1; zstd RFC 8878, 3.1.1 and 3.1.2 (a skippable frame may come first, as pzstd
    writes it); Parquet's README, "File format". Raises `InputError` if the name promises what the content is not, or
    if it is something that cannot be read.
    """
    suffix = PurePath(name).suffix.lower()
    found: Kind = "lines"
    if head.startswith(b"\x1f\x8b"):
        found = "gzip"
    elif head == b"\x28\xb5\x2f\xfd" or (head[1:] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50):
        found = "zstd"
    elif head == b"PAR1":
        found = "parquet"
    elif head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"input {name} is UTF-16, and JSON Lines are UTF-8; `iconv -f UTF-16 -t UTF-8` makes it so")
    claimed = "parquet" if suffix == PARQUET else PACKED.get(suffix)
    if found == "lines" and claimed:
        what = f"begins with {head!r}" if head else "is empty"
        raise InputError(f"input {name} {what}, so it is not {claimed} as its name says; get it again, or rename it")
    inner = inner_suffix(name)
    if found == "lines" and inner in OTHERS:
        raise InputError(f"input {name}: {inner} is not read; what is read: {READ}")
    if found in ("gzip", "zstd") and inner in (*OTHERS, PARQUET):
        raise InputError(f"input {name}: {inner} inside {found} is not read; unpack it, or give: {READ}")
    return found


def inner_suffix(name: str) -> str:
    """The suffix without that of the compression.

    >>> inner_suffix("a.json.gz"), inner_suffix("a.gz"), inner_suffix("a.jsonl")
    ('.json', '', '.jsonl')
    """
    path = PurePath(name)
    return (PurePath(path.stem) if path.suffix.lower() in PACKED else path).suffix.lower()


def is_data(name: str) -> bool:
    """Whether a file in a folder has a name by which it is read."""
    suffix = PurePath(name).suffix.lower()
    return suffix in PACKED or suffix in (*PLAIN, PARQUET)


def is_beside(name: str) -> bool:
    """Whether a file in a folder is none of its data: hidden (as Hadoop and Spark have it, `_SUCCESS` too), a job's own
    temporary or journal, a readme."""
    return name.startswith((".", "_")) or name.endswith(TEMPORARY) or PAPERS.fullmatch(name) is not None
