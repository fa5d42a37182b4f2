"""Journals for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from lifecycle.chart import Chart
from lifecycle.journal import Kind, Record

FOUND = {
    "cause": "out-of-memory", "summary": "server exited with code 1", "evidence": "CUDA out of memory <script>",
    "advice": "load a smaller model", "tail": ["loading", "</script><img src=x onerror=alert(1)>"],
}  # fmt: skip


def walk(chart: Chart[Any], name: str, facts: dict[str, Any] | None = None, began: float = 1000.0) -> Iterator[Record]:
    """The records of a life that takes every transition which can be reached in one go, and comes to a final state."""
    yield Record(1, began, name, 0, Kind.BEGIN, after=chart.initial, detail={"chart": chart.name, "facts": facts or {}})
    state, seq, left = chart.initial, 1, list(chart.rows)
    while state not in chart.final:
        ways = [row for row in left if row.source == state and row.target not in chart.final]
        ways = ways or [row for row in chart.rows if row.source == state and row.target in chart.final]
        ways = ways or [row for row in chart.rows if row.source == state and row.dest is not None]
        row = ways[0]
        if row in left:
            left.remove(row)
        seq += 1
        kind = Kind.INTERNAL if row.dest is None else Kind.TRANSITION
        bad = row.event.__name__ in ("Exited", "ReplicaLost", "MemberLost", "HeadLost", "Lost")
        detail = {"diagnosis": FOUND} if bad else {}
        yield Record(seq, began + seq * 0.5, name, 1, kind, row.event.__name__, state, row.target, detail)
        state = row.target


def crash(name: str = "mine", began: float = 1000.0) -> Iterator[Record]:
    """The records of a server that dies once and serves again until it is stopped."""
    told: list[tuple[str, str, int, dict[str, Any]]] = [
        ("Start", "Locking", 1, {}), ("LockSkipped", "PortBound", 1, {"reason": "no cache"}),
        ("Launched", "Starting", 1, {"pid": 41, "port": 8000, "log": "/logs/1.log"}),
        ("BecameReady", "Healthy", 1, {"model": "tiny", "path": "/health"}),
        ("Exited", "Draining", 1, {"diagnosis": FOUND}), ("Ended", "Backoff", 1, {}),
        ("BackoffOver", "Locking", 2, {}), ("LockSkipped", "PortBound", 2, {"reason": "no cache"}),
        ("Launched", "Starting", 2, {"pid": 42, "port": 8000, "log": "/logs/2.log"}),
        ("BecameReady", "Healthy", 2, {"model": "tiny", "path": "/health"}),
        ("Stop", "Draining", 2, {}), ("Ended", "Stopped", 2, {}),
    ]  # fmt: skip
    yield Record(1, began, name, 0, Kind.BEGIN, after="Idle", detail={"chart": "server", "facts": {"local": True}})
    before = "Idle"
    for number, (event, after, attempt, detail) in enumerate(told, 2):
        pid, port, log = detail.get("pid"), detail.get("port"), detail.get("log")
        yield Record(
            number, began + number, name, attempt, Kind.TRANSITION, event, before, after, detail, pid, port, log
        )
        before = after


def lines(records: Iterator[Record] | list[Record]) -> bytes:
    """As they are in a file."""
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)
