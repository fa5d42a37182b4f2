"""Every error that Stoker raises. One root; a class for each thing that a caller can do something about."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lifecycle.diagnosis import Diagnosis


class StokerError(Exception):
    """The root of all errors raised by Stoker on purpose."""


class ConfigError(StokerError):
    """A setting is unknown, has a value that cannot be, or contradicts another one."""


class UnknownFlag(ConfigError):
    """A flag that the installed engine does not have, or a value that it would not take."""


class InputError(StokerError):
    """The input of a job cannot be used at all: missing, unreadable, or with an id that occurs twice."""


class OutputError(StokerError):
    """The output of a job cannot be written, or belongs to another run."""


class JournalError(StokerError):
    """A journal cannot be read, or does not replay to what it says."""


class ChartError(StokerError):
    """A chart is not well formed; the message lists every finding of its lint."""


class PortTaken(StokerError):
    """A port that the user asked for is held by somebody else."""

    def __init__(self, port: int, holder: str) -> None:
        super().__init__(f"port {port} is taken by {holder}; choose another with --port, or leave it out")
        self.port = port
        self.holder = holder


class LaunchError(StokerError):
    """A server process could not be started at all (no such program, not executable, no such folder)."""


class Tended(StokerError):
    """Another manager tends the server."""


class KeeperKilled(LaunchError):
    """Somebody killed the keeper before its server ran: nothing says that it will happen again."""


class StartFailed(StokerError):
    """The server was given up. `diagnosis` says why, with the log lines that show it."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.text())
        self.diagnosis = diagnosis


class Draining(StokerError):
    """The server takes no new requests: it is draining, or has stopped."""


class RequestError(StokerError):
    """One request failed for good. `status` is the HTTP status, or None when no answer came; `body` its text."""

    def __init__(self, message: str, *, status: int | None = None, body: str = "", attempts: int = 1) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.attempts = attempts


class RequestRefused(RequestError):
    """The server answered 4xx: sending the same again cannot help, so it was not sent again."""


class RetriesExhausted(RequestError):
    """Every attempt that the retry budget allows has failed."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that ends an error about an unknown name: the nearest known one, or all of them if none is near.

    >>> nearest("prot", ["port", "host"])
    "; did you mean 'port'?"
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""
