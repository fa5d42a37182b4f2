"""Records of journals as records of the standard `logging`, for programs that Stoker is embedded in.

The logger is named for the chart: `stoker.server`, `stoker.fleet`, `stoker.group`, or that of your own. A transition is
a line at INFO, at WARNING if it tells of a failure, at ERROR if it gives the server up; what happens inside a state and
what was refused is DEBUG. Each has its fields as attributes (`extra`): `stoker_server`, `stoker_kind`, `stoker_event`,
`stoker_before`, `stoker_after`, `stoker_attempt`, `stoker_cause`, `stoker_pid`, `stoker_port`, `stoker_log`.

A program that sets up no logging sees nothing of it: `stoker` has a `NullHandler`, as libraries should
(https://docs.python.org/3/howto/logging.html#configuring-logging-for-a-library).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from lifecycle.journal import Kind, Record

ROOT = "stoker"
logging.getLogger(ROOT).addHandler(logging.NullHandler())


def logged(chart: str) -> Callable[[Record], None]:
    """A journal listener that logs what becomes of whatever this chart drives."""
    logger = logging.getLogger(f"{ROOT}.{chart}")

    def log(record: Record) -> None:
        level = level_of(record)
        if logger.isEnabledFor(level):
            logger.log(level, "%s: %s", record.server, _text(record), extra=extra_of(record))

    return log


def level_of(record: Record) -> int:
    """How much a record matters."""
    match record.kind:
        case Kind.TRANSITION if record.after == "Failed":
            return logging.ERROR
        case Kind.TRANSITION if record.detail.get("diagnosis") or record.event == "Fault":
            return logging.WARNING
        case Kind.TRANSITION:
            return logging.INFO
        case Kind.OVERRUN | Kind.CLEANUP_ERROR:
            return logging.WARNING
        case _:
            return logging.DEBUG


def extra_of(record: Record) -> Mapping[str, Any]:
    """Its fields, by names that no other attribute of a log record has."""
    from lifecycle.story import found_in  # knows configurations, and those know adapters

    return {
        "stoker_server": record.server,
        "stoker_kind": record.kind.value,
        "stoker_event": record.event,
        "stoker_before": record.before,
        "stoker_after": record.after,
        "stoker_attempt": record.attempt,
        "stoker_cause": found_in(record).get("cause"),
        "stoker_pid": record.pid,
        "stoker_port": record.port,
        "stoker_log": record.log,
    }


def _text(record: Record) -> str:
    from lifecycle.story import phase_words, why_of

    match record.kind:
        case Kind.TRANSITION:
            why = why_of(record)
            return f"{record.before} → {record.after} ({record.event})" + (f": {why}" if why else "")
        case Kind.PHASE:
            return f"{record.after}: {phase_words(record)}"
        case Kind.OVERRUN | Kind.CLEANUP_ERROR:
            return f"{record.after}: {record.kind}: {dict(record.detail)}"
        case _:
            return f"{record.after}: {record.kind} {record.event or ''}".rstrip()
