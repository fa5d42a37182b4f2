"""What a record of a journal says, in words: for the commands, for `stoker trace` and for the live page. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.filesize import decimal

from lifecycle.findings import NEVER_STARTED
from lifecycle.journal import Kind, Record

LONGER = {"drained": "drained; its processes are ending"}
"""Phases that need more words: an engine may take seconds to end."""


def found_in(record: Record) -> Mapping[str, Any]:
    """The diagnosis that a record brings, as plain values; empty if it brings none."""
    found = record.detail.get("diagnosis")
    if isinstance(found, Mapping):
        return found
    if record.event == "Fault" and record.kind is Kind.TRANSITION:
        activity, error = record.detail.get("activity"), record.detail.get("error")
        return {"cause": "fault", "summary": f"the activity {activity!r} raised {error}"}
    return {}


def hint_of(record: Record) -> str:
    """The log line that shows why an attempt failed, or else what to do about it; empty if neither is known."""
    found = found_in(record)
    if found.get("evidence"):
        return f"shown by: {found['evidence']}"
    return f"what to do: {found['advice']}" if found.get("advice") else ""


def why_of(record: Record) -> str:
    """Why an attempt failed, in a line; empty if the record does not tell of a failure."""
    found = found_in(record)
    if not found:
        return ""
    if found.get("cause") in NEVER_STARTED and not found.get("log"):
        return f"nothing was started [{found['cause']}]"  # the command ends with the words
    return f"{found.get('summary', '')} [{found.get('cause', '')}]"


def is_whole(record: Record) -> bool:
    """Whether a phase has come to its end."""
    done = record.detail.get("done")
    return done is not None and done == record.detail.get("total")


def phase_words(record: Record) -> str:
    """A phase of a start or a drain, with its progress."""
    detail = record.detail
    name, left = str(detail.get("phase")), detail.get("left")
    if name == "drained" and left:
        return f"not drained in time, {left} requests are cut off; its processes are ending"
    numbers = [detail[key] for key in ("done", "total") if detail.get(key) is not None]
    if detail.get("unit") == "bytes":
        numbers = [decimal(number) for number in numbers]
    progress = " " + "/".join(map(str, numbers)) if numbers else ""
    return f"{LONGER.get(name, name)}{progress}"


def words_of(record: Record, since_start: float) -> str:
    """What a transition tells beyond the states: `since_start` are the seconds since the start that it ends."""
    detail, why = record.detail, why_of(record)
    match record.after:
        case "Starting" if record.pid is not None:
            text = f"attempt {record.attempt}, pid {record.pid}, port {record.port}, log {record.log}"
        case "Healthy" if record.event == "Launched":
            text = "it runs; nobody can ask such a part whether it is ready"
        case "Healthy":
            text = f"after {since_start:.2f} s, serving {detail.get('model') or 'its model'}"
        case "Draining" if not why:
            text = f"asked to end ({record.event})"
        case "Locking" if record.attempt > 1:
            text = f"attempt {record.attempt}"
        case _:
            text = str(detail.get("reason", ""))
    return f"{text}{why}"
