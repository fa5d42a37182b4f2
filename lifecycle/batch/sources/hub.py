"""A dataset of the Hugging Face hub as rows, streamed: `hf:NAME[:CONFIG][@SPLIT][#REVISION]`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lifecycle.batch.sources.row import Row
from lifecycle.batch.sources.values import encode
from lifecycle.errors import InputError

PREFIX = "hf:"
SPEC = re.compile(r"hf:(?P<name>[^:@#]+)(:(?P<config>[^:@#]+))?(@(?P<split>[^:@#]+))?(#(?P<revision>[^:@#]+))?")
FORM = "hf:NAME[:CONFIG][@SPLIT][#REVISION], such as hf:openai/gsm8k:main@train"


class Hub:
    """A dataset in its own order. It stays the same between runs only while the dataset does: a revision (a commit or
    a tag) holds it still.

    Images, sounds and videos are not decoded: a record has their bytes and path, as the dataset stores them.
    """

    def __init__(self, spec: str) -> None:
        """Raises `InputError` for a spec of another form, for what the hub does not have or give, and if several splits
        are there and none is named."""
        found = SPEC.fullmatch(spec)
        if found is None:
            raise InputError(f"input {spec} has not the form {FORM}")
        self.name = spec
        self.paths: tuple[Path, ...] = ()
        self._data = _open(spec, **found.groupdict())

    def total(self) -> int | None:
        splits = self._data.info.splits
        known = splits.get(str(self._data.split)) if splits else None
        return known.num_examples if known else None

    def rows(self) -> Iterator[Row]:
        number = 0
        try:
            for record in self._data:
                data = encode(record)
                yield Row(number, data, "row", number + 1)
                number += 1
        except Exception as error:  # what `datasets` raises depends on the format of the files and on the network
            raise InputError(f"input {self.name} cannot be read after row {number}: {_reason(error)}") from None

    def close(self) -> None:
        """There is nothing to give back."""


def _open(spec: str, name: str, config: str | None, split: str | None, revision: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise InputError(f"input {spec} needs: pip install 'stoker[hub]' ({error})") from None
    datasets.disable_progress_bars()  # the terminal is the job's
    try:
        data = datasets.load_dataset(name, config, split=split, revision=revision, streaming=True)
        if split is None:
            names = list(data)
            if len(names) > 1:
                splits = ", ".join(names)
                raise InputError(f"input {spec} has the splits {splits}; say which, as {spec_with(spec, names[0])}")
            data = data[names[0]]
        return data.decode(False) if data.features else data
    except InputError:
        raise
    except Exception as error:  # ValueError, OSError, the hub's own errors, those of a dataset's builder
        raise InputError(f"input {spec} cannot be opened: {_reason(error)}") from None


def spec_with(spec: str, split: str) -> str:
    """The spec with a split in its place.

    >>> spec_with("hf:a/b:c#d", "train")
    'hf:a/b:c@train#d'
    """
    name, mark, revision = spec.partition("#")
    return f"{name}@{split}{mark}{revision}"


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
