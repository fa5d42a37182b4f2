"""Preflight: what can be known before a server is started, as rows of a table.

A row is a `Check`. Pure functions (`lifecycle.preflight.judgements`) make rows from facts; `lifecycle.preflight.facts`
and its neighbours fetch the facts, and `lifecycle.preflight.flight` runs all of it, each row under a deadline of its
own. A backend adds rows with a hook `async def inspect(config, ask) -> tuple[Check, ...]` (`lifecycle.adapter`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """What a row means for a start."""

    OK = "ok"
    WARNING = "warning"
    """It may go well, or slowly, or not for long."""
    BLOCKER = "blocker"
    """A start will fail."""


@dataclass(frozen=True)
class Check:
    """One row: what was looked at, what was found, what to do about it."""

    name: str
    status: Status
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Check:
    """A row that says that all is well."""
    return Check(name, Status.OK, found)


def warning(name: str, found: str, advice: str) -> Check:
    """A row that says what may go wrong."""
    return Check(name, Status.WARNING, found, advice)


def blocker(name: str, found: str, advice: str) -> Check:
    """A row that says why a start will fail."""
    return Check(name, Status.BLOCKER, found, advice)
