"""What a job reads: files, folders, globs, standard input, datasets of the hub; all as a stream of rows."""

from __future__ import annotations

from pathlib import Path

from lifecycle.batch.sources.files import open_file, open_folder, open_glob, open_stdin
from lifecycle.batch.sources.hub import PREFIX, Hub
from lifecycle.batch.sources.row import Row, Source

__all__ = ["Row", "Source", "open_source"]


def open_source(spec: str) -> Source:
    """Open an input, after a look at each of its files.

    `spec` is a path of a file or a folder, a glob (`*`, `?`, `[...]`, `**`; quote it from the shell), `-` for standard
    input, or `hf:NAME[:CONFIG][@SPLIT][#REVISION]` for a dataset of the hub. A file may be JSON Lines, plain or packed
    with gzip or zstd, or Parquet; its first bytes decide, and kinds may be mixed.

    Raises `InputError` if anything of it is missing, unreadable, of a kind that is not read, or needs an extra that
    is not installed.
    """
    if spec == "-":
        return open_stdin(spec)
    if spec.startswith(PREFIX):
        return Hub(spec)
    path = Path(spec)
    if path.is_dir():
        return open_folder(path, spec.rstrip("/") or spec)
    if any(mark in spec for mark in "*?[") and not path.exists():
        return open_glob(spec)
    return open_file(path, spec)
