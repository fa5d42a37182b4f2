"""What a job was begun with: a later run must ask for the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lifecycle.batch.store.disk import Disk
from lifecycle.batch.store.layout import Layout
from lifecycle.decoding import decode
from lifecycle.errors import OutputError

NAME, BESIDE = "job.json", "job.json.new"
VERSION = 1
LIMIT = 1 << 24
ASKED = "asked"
"""What each run of the job may change, as it was in the first."""
_ABSENT = "nothing"


def write(disk: Disk, layout: Layout, terms: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Write the header beside and rename it. Raises `OSError`."""
    beside = layout.state / BESIDE
    file = disk.open(beside, create=True)
    try:
        data = msgspec.json.format(msgspec.json.encode({**_header(layout, terms), ASKED: asked})) + b"\n"
        file.truncate(0)
        file.write(data, 0)
        file.fsync()
    finally:
        file.close()
    disk.rename(beside, layout.state / NAME)
    disk.fsync_folder(layout.state)


def check(disk: Disk, layout: Layout, terms: Mapping[str, Any]) -> dict[str, Any]:
    """What the job was begun with and may change. Raises `OutputError` if it had other terms, and `OSError`."""
    path = layout.state / NAME
    file = disk.open(path, write=False)
    try:
        data = file.read(LIMIT, 0)
    finally:
        file.close()
    try:
        found = decode(data)
        asked_then = dict(found.pop(ASKED, {}))
        then = {**found.pop("terms"), **found}
    except (msgspec.MsgspecError, AttributeError, KeyError, TypeError):
        raise OutputError(f"output {layout.path}: {path} was not written by Stoker; name another output") from None
    if then.get("version") != VERSION:
        raise OutputError(
            f"output {layout.path} was begun by another version of Stoker (layout {then.get('version')}, this one "
            f"writes {VERSION}); go on with that one, or name another output"
        )
    asked = msgspec.json.decode(msgspec.json.encode(_header(layout, terms)))  # as JSON has it: no tuples
    now = {**asked.pop("terms"), **asked}
    for key in dict.fromkeys((*now, *then)):
        if now.get(key, _ABSENT) != then.get(key, _ABSENT):
            raise OutputError(
                f"output {layout.path} was begun with {key} {_shown(then, key)}, now it is {_shown(now, key)}; "
                f"give it as it was, or name another output"
            )
    return asked_then


def _header(layout: Layout, terms: Mapping[str, Any]) -> dict[str, Any]:
    own = {"version": VERSION, "format": layout.format}
    if layout.part_size is not None:
        own["part_size"] = layout.part_size
    return {**own, "terms": {key: value for key, value in terms.items() if key not in own}}


def _shown(terms: Mapping[str, Any], key: str) -> str:
    value = terms.get(key, _ABSENT)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else f"{text[:200]}..."
