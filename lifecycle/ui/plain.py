"""Lives as plain values for the scripts of the pages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lifecycle.journal import Kind, Record
from lifecycle.story import found_in, phase_words
from lifecycle.trace.charts import given_up
from lifecycle.trace.lives import Attempt, Life

DIAGNOSIS = ("cause", "summary", "evidence", "advice", "given_up", "log", "tail")
"""What a page shows of a diagnosis."""


def plain_attempts(life: Life) -> list[dict[str, Any]]:
    """The attempts of a life; the last one of a server that was given up with why it was."""
    told = [plain_attempt(attempt) for attempt in life.attempts]
    if told and told[-1]["found"] and (why := given_up(life)):
        told[-1]["found"]["given_up"] = why
    return told


def plain_attempt(attempt: Attempt) -> dict[str, Any]:
    """An attempt; times are Unix seconds, None for what has not come."""
    return {
        "number": attempt.number, "index": attempt.index, "began": attempt.began, "ended": attempt.ended,
        "healthy": attempt.healthy, "pid": attempt.pid, "port": attempt.port, "log": attempt.log,
        "found": plain_diagnosis(attempt.found), "foundAt": attempt.found_at,
    }  # fmt: skip


def plain_diagnosis(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is shown of a diagnosis; None if there is none."""
    return {key: found[key] for key in DIAGNOSIS if found.get(key)} if found else None


def plain_record(record: Record, words: str) -> dict[str, Any]:
    """A record with what it says in words."""
    return {
        "at": record.time, "kind": record.kind.value, "event": record.event or "", "before": record.before or "",
        "after": record.after or "", "words": words,
    }  # fmt: skip


def words_for(life: Life, record: Record) -> str:
    """What the latest record of a life says beyond its event and its states."""
    if record.kind is Kind.PHASE:
        return f"… {phase_words(record)}"
    if record.kind is Kind.TRANSITION:
        return life.words(record)
    if record.kind is Kind.BEGIN:
        return ""
    kind = "" if record.kind is Kind.INTERNAL else f"({record.kind})"
    told = {key: value for key, value in record.detail.items() if key != "diagnosis" and value is not None}
    said = " ".join(f"{key}={value}" for key, value in told.items())
    return " ".join(filter(None, (kind, said, str(found_in(record).get("summary", "")))))
