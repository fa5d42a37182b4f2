"""`stoker trace JOURNAL...`: runs as a timeline: text, a picture, or a page that can be stepped through."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from lifecycle.cli.say import put
from lifecycle.errors import JournalError, OutputError
from lifecycle.trace import Life, lives_of, read


def run(args: argparse.Namespace) -> int:
    """The command. Exit code 0."""
    lives, warnings = lives_in([Path(name) for name in args.journals])
    shown = chosen(lives, args.server, args.last)
    output = render(shown, warnings, args.format, " ".join(args.journals))
    if args.output is None:
        put(output.removesuffix("\n"))
        return 0
    try:
        Path(args.output).write_text(output, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{args.output} cannot be written: {error.strerror}") from None
    return 0


def render(lives: Sequence[Life], warnings: Sequence[str], format: str, title: str) -> str:
    """Lives in one of the formats: text, svg, html."""
    if format == "svg":
        from lifecycle.trace.picture import picture

        return picture(lives, title)
    if format == "html":
        from lifecycle.trace.page import page

        return page(lives, warnings, title)
    from lifecycle.trace.text import text

    return text(lives, warnings)


def lives_in(journals: Sequence[Path]) -> tuple[list[Life], list[str]]:
    """The lives in all of these journals by the time of their beginning, and what is wrong with the files."""
    lives: list[Life] = []
    warnings: list[str] = []
    for path in dict.fromkeys(journals):
        reading = read(path)
        lives += lives_of(reading.records, str(path) if len(journals) > 1 else "")
        if reading.broken:
            where = ", ".join(map(str, reading.broken[:5])) + (", …" if len(reading.broken) > 5 else "")
            warnings.append(f"{path}: {len(reading.broken)} broken lines are left out (line {where})")
    if not lives:
        raise JournalError(f"nothing is written in {', '.join(map(str, journals))} yet")
    return sorted(lives, key=lambda life: life.began or 0.0), warnings


def chosen(lives: Sequence[Life], names: Sequence[str], last: int | None) -> list[Life]:
    """Those of the named servers, or all; of these the `last` ones to begin. Raises `JournalError`."""
    found = [life for life in lives if not names or life.server in names]
    missing = set(names) - {life.server for life in lives}
    if missing:
        known = ", ".join(sorted({life.server for life in lives}))
        raise JournalError(f"no server {', '.join(sorted(missing))!r} is in the journal; these are: {known}")
    return found[-last:] if last else found
