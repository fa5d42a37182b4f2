"""`stoker diagram`: the state machine as text or picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from lifecycle.cli.say import put
from lifecycle.diagram import counts_of, coverage_of, render
from lifecycle.errors import OutputError


def run(args: argparse.Namespace) -> int:
    """The command."""
    if args.coverage:
        text = coverage_of([Path(name) for name in args.coverage], args.format, args.chart)
    else:
        taken = counts_of([Path(name) for name in args.journal]) if args.journal else None
        text = render(args.format, args.backend, taken)
    if args.output is None:
        put(text.removesuffix("\n"))
        return 0
    try:
        Path(args.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{args.output} cannot be written: {error.strerror}") from None
    return 0
