"""Words for people and scripts. A reader that has gone (a closed pipe, a terminal that was shut) costs the words, never
the job."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from datetime import datetime


def tell(text: str) -> None:
    """A line on standard error."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def stamped(text: str) -> None:
    """A line on standard error with the date and time before it: a server lives for weeks."""
    tell(f"{datetime.now():%m-%d %H:%M:%S}{text}")


def put(text: str) -> None:
    """A line on standard output."""
    with suppress(OSError, ValueError):
        print(text, flush=True)


def open_missing_streams() -> None:
    """Give a command that was started without standard streams (`>&-`) ones that lead nowhere: Python has None there,
    and the next file that is opened would take their place."""
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - as long as the process


def let_go() -> None:
    """At the end: what nobody reads any more must not become an error of the interpreter's own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
