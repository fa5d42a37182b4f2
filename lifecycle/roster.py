"""Where each server of a program stands, from the records of their journals. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lifecycle.journal import Kind, Record


@dataclass(frozen=True)
class Standing:
    """One server, group or fleet, as its journal has it."""

    name: str
    state: str
    since: float
    """Unix seconds at which it came to that state."""
    attempt: int = 0
    """Starts begun so far."""
    model: str = ""
    """The name that the server reports for its model; empty as long as it has not."""
    pid: int | None = None
    """Of the main process of its present attempt."""
    port: int | None = None
    log: str | None = None
    """Of its present or last attempt."""
    phase: str = ""
    """What happens inside its state."""
    trouble: str = ""
    """Why its last attempt failed, in a line; empty if none has."""


class Roster:
    """A journal listener that keeps the latest of each server."""

    def __init__(self) -> None:
        self._latest: dict[str, Standing] = {}

    def __call__(self, record: Record) -> None:
        name, detail = record.server, record.detail
        now = self._latest.get(name) or Standing(name, record.after or "", record.time)
        if record.kind is Kind.PHASE:
            now = replace(now, phase=str(detail.get("phase") or ""))
        elif record.kind is Kind.TRANSITION:
            found = detail.get("diagnosis")
            now = replace(
                now, state=record.after or now.state, since=record.time, phase="",
                model=str(detail.get("model") or now.model),
                trouble=f"{found['summary']} [{found['cause']}]" if found else now.trouble,
            )  # fmt: skip
        over = record.event == "Ended" or record.attempt != now.attempt  # nothing is left of that attempt
        self._latest[name] = replace(
            now, attempt=record.attempt, pid=record.pid or (None if over else now.pid),
            port=record.port or (None if over else now.port), log=record.log or now.log,
        )  # fmt: skip

    def standings(self) -> tuple[Standing, ...]:
        """In the order in which they were first heard of."""
        return tuple(self._latest.values())
