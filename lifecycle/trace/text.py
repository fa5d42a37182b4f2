"""Lives as text: what happened when, the time in each state, the attempts and why they failed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lifecycle.journal import Kind
from lifecycle.story import is_whole, phase_words
from lifecycle.trace.charts import given_up
from lifecycle.trace.lives import Attempt, Life
from lifecycle.ui.plain import words_for

BAR = 30
"""Characters of the bar of a state in which all the time was spent."""
QUIET = frozenset((Kind.IGNORED, Kind.STALE))
"""Kinds of records that tell of nothing: left out of the text."""
INDENT = "    "


def text(lives: Sequence[Life], warnings: Sequence[str] = ()) -> str:
    """All of these lives, one after the other."""
    parts = [*(f"note: {warning}" for warning in warnings)]
    if warnings:
        parts.append("")
    for number, life in enumerate(lives):
        parts += [""] * bool(number) + [heading(life), "", *_timeline(life), *_states(life), *_attempts(life)]
    return "\n".join(parts) + "\n"


def heading(life: Life) -> str:
    """Whose life it is, when, and how it ended."""
    began = life.began or 0.0
    starts = f"{life.attempts[-1].number} attempts" if life.attempts and life.attempts[-1].number > 1 else ""
    end = life.state if life.over else f"{life.state} when the journal ends"
    what = f"{life.chart or 'life'} {life.server}"
    source = f"  ({life.source})" if life.source else ""
    return f"{what}: " + ", ".join(
        filter(None, (f"{clock(began)} to {clock(life.last)}", span(life.last - began), starts, end))
    ) + source


def _timeline(life: Life) -> Iterator[str]:
    """A line for each record that tells something; the phases of one state only when another one begins or ends."""
    began, told = life.began or 0.0, ""
    copy = Life(life.server)
    for record in life.records:
        copy.take(record)
        line = ""
        if record.kind in (Kind.BEGIN, Kind.TRANSITION):
            told = ""
            words = "" if record.kind is Kind.BEGIN else copy.words(record)
            line = f"{record.after or '':<10} {record.event or '':<14} {words}"
        elif record.kind is Kind.PHASE:
            name = str(record.detail.get("phase"))
            if name == told and not is_whole(record):
                continue
            told = name
            line = f"{'':<10} … {phase_words(record)}"
        elif record.kind not in QUIET:
            line = f"{'':<10} {record.event or '':<14} {words_for(copy, record)}"
        if line:
            yield f"{INDENT}{record.time - began:>11.3f}  {line}".rstrip()


def _states(life: Life) -> Iterator[str]:
    spent = life.seconds()
    total = sum(spent.values())
    if total <= 0:
        return
    yield ""
    yield f"{INDENT}time in each state"
    for state, seconds in spent.items():
        share = seconds / total
        bar = "█" * round(BAR * share) or "▏"
        yield f"{INDENT}{state:<10} {span(seconds):>12} {share:>6.1%}  {bar}".rstrip()


def _attempts(life: Life) -> Iterator[str]:
    told = [attempt for attempt in life.attempts if attempt.number or attempt.found]
    if not told:
        return
    yield ""
    yield f"{INDENT}attempts"
    for attempt in told:
        yield f"{INDENT}{attempt.number or '':>3}  {summary_of(attempt, life)}".rstrip()
        yield from (f"{INDENT}     {line}" for line in diagnosis_lines(attempt.found, tail=False))
    why = given_up(life)
    if why:
        yield f"{INDENT}     not tried again: {why}"


def summary_of(attempt: Attempt, life: Life) -> str:
    """How an attempt went."""
    parts = [f"pid {attempt.pid}"] if attempt.pid else []
    parts += [f"port {attempt.port}"] if attempt.port else []
    until = life.last if attempt.ended is None else attempt.ended
    if attempt.healthy is None:
        parts.append(f"not Healthy, over after {span(until - attempt.began)}" if attempt.ended is not None
                     else f"not Healthy yet, after {span(until - attempt.began)}")  # fmt: skip
    else:
        parts.append(f"Healthy after {span(attempt.healthy - attempt.began)}, for {span(until - attempt.healthy)}")
    return ", ".join(parts)


def diagnosis_lines(found: Mapping[str, Any], *, tail: bool = True) -> Iterator[str]:
    """A diagnosis as it is in a record, in lines."""
    if not found:
        return
    yield f"{found.get('summary', '')} [{found.get('cause', '')}]"
    for key, words in (("evidence", "shown by"), ("advice", "what to do"), ("given_up", "not tried again")):
        if found.get(key):
            yield f"{words}: {found[key]}"
    if tail:
        yield from (f"| {line}" for line in found.get("tail") or ())
    if found.get("log"):
        yield f"whole log: {found['log']}"


def clock(at: float) -> str:
    """A time of this zone for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def span(seconds: float) -> str:
    """A length of time, in units that fit.

    >>> [span(each) for each in (0.0123, 4.56, 75, 5000, 200000)]
    ['12 ms', '4.56 s', '1 min 15 s', '1 h 23 min', '2 d 7 h']
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    for big, small, size, part in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        if seconds < size * {"min": 60, "h": 24, "d": 10**9}[big]:
            return f"{int(seconds // size)} {big} {int(seconds % size // part)} {small}"
    return f"{seconds:.0f} s"
