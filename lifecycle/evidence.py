"""Which lines of a log can show why a server ended. Pure.

A log holds more than errors: warnings about things that then went well, and, once the server serves, whatever its users
wrote. A prompt that reads "CUDA out of memory" must do nothing, be it in a record of a request, in a JSON body, spread
over several lines, or in the traceback of one request that failed while the server went on. So:

- a line that the backend knows to carry users' texts (`Adapter.quotes`) never counts, and neither does a record below
  ERROR, where the log tells levels;
- before the server was ready, any other line counts, and a pattern may be anywhere in it;
- afterwards only the engine's own errors count: records of level ERROR or worse, tracebacks that a logger has put
  something in front of, and bare tracebacks that nothing ordinary follows, since the server did not go on after them;
  so do the last words of C, C++ and CPython, if the process has crashed. There a pattern must fit at the very beginning
  of the error's text. What a user wrote stands further behind, in quotes or braces.

What remains is a server that prints prompts raw, line by line, and gets a piece of an engine's log as a prompt. After a
crash its cause may then have a wrong name; no server is ever ended or given up for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from lifecycle.decoding import decode


class Level(Enum):
    """How much a line says of itself."""

    UNTOLD = auto()
    ORDINARY = auto()
    """A warning or less, or a line of an access log."""
    ERROR = auto()


@dataclass(frozen=True)
class Line:
    """A log line without what loggers put in front."""

    message: str
    level: Level
    front: str
    """What a logger has put in front; empty if nothing. The lines of one record have the same, or only the first has
    any."""


@dataclass(frozen=True)
class Evidence:
    """A line that may show the cause."""

    text: str
    """As it is in the log."""
    heads: tuple[str, ...]
    """Where a pattern must fit at the beginning; empty: it may be anywhere in `text`."""


_LEVELS = "TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SEVERE"
_FRONT = re.compile(
    r"\([\w.-]+ pid=\d+\)\s*"  # vLLM: who prints
    r"|\[rank\d+\]:\s*"  # torch
    rf"|\[?(?P<level>{_LEVELS})\b\]?:?(?:[\w.]+:(?=\S))?\s*(?:[-|]\s+)?"
    r"|\[?(?P<letter>[DIWEF])\d{4} \d\d:\d\d:\d\d[^\]]*\]\s*"  # glog in brackets, torch's C++ parts
    r"|\[\d{4}-\d\d-\d\d[^\]]*\]\s*"  # SGLang: clock and rank
    r"|\[?\d{1,4}[-/:.]\d\d[-/:.\d]*[\d.,TZ:+ -]*\]?\s+(?:(?P<short>[DIWE])\s)?(?:[-|]\s+)?"  # clocks of all kinds
    r"|\[[\w./-]+:\d+\]\s*"  # file and line
)
_NAME = re.compile(r"[\w.]+ - (?=\S)")
"""A logger's name, which only comes behind something else."""
_ACCESS = re.compile(r"\"(?:GET|POST|HEAD|PUT|DELETE|OPTIONS|PATCH) [^\"]*\" \d{3}\b")
_SEVERE = frozenset(("ERROR", "CRITICAL", "FATAL", "SEVERE", "E", "F"))
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|Failed)\b(?::\s*|\s*$)")
_TRACEBACK = "Traceback (most recent call last)"
_LAST_WORDS = re.compile(
    r"terminate called |\s*what\(\):|Fatal Python error|Segmentation fault|Bus error|Illegal instruction|Aborted\b|"
    r"(?:ggml_)?(?:CUDA|cuda\w*|HIP|NCCL)\b.*(?:error|failed)"
)
"""How C, C++ and CPython themselves say that a process has come to its end."""
_OF_A_REQUEST = re.compile(
    r"Exception in ASGI application|[Ee]rror (?:in|while|when) (?:handling|processing|preprocess)"
)
"""Errors that cost one request its answer, not the server its life: uvicorn 0.34, vLLM's entrypoints."""


def read(line: str) -> Line:
    """Take a log line apart.

    >>> read("(EngineCore pid=7) ERROR 12-01 14:12:19 [core.py:843] it broke").message
    'it broke'
    """
    if line.startswith("{"):
        return _read_json(line)
    rest, level = line, Level.UNTOLD
    for _ in range(6):
        front = _FRONT.match(rest)
        if front is None or not front[0]:
            named = _NAME.match(rest) if rest != line else None
            if named is None:
                break
            rest = rest[named.end() :]
            continue
        rest = rest[front.end() :]
        word = front["level"] or front["letter"] or front["short"]
        if word and level is Level.UNTOLD:
            level = Level.ERROR if word in _SEVERE else Level.ORDINARY
    if _ACCESS.search(line):
        return Line(rest, Level.ORDINARY, line)
    return Line(rest, level, line[: len(line) - len(rest)].rstrip())


def _read_json(line: str) -> Line:
    try:
        found = decode(line)
    except msgspec.MsgspecError:
        return Line(line, Level.UNTOLD, "")
    word = str(found.get("level") or found.get("levelname") or found.get("severity") or "").upper()
    if not word:
        return Line(line, Level.UNTOLD, "")
    message = str(found.get("message") or found.get("msg") or found.get("event") or "")
    return Line(message, Level.ERROR if word in _SEVERE else Level.ORDINARY, line)


def evidence(
    lines: Sequence[str],
    quotes: Iterable[str] = (),
    *,
    serving: bool = False,
    crashed: bool = False,
    own: Iterable[str] = (),
) -> list[Evidence]:
    """The lines that may show a cause, in their order.

    Args:
        lines: the end of the log.
        quotes: patterns of lines that carry users' texts.
        serving: the server had been ready; users' texts may be anywhere.
        crashed: the main process was ended by a signal for a fault of its own.
        own: patterns of the words with which the engine itself, in a log that tells no levels, begins the record of an
            error while it serves.
    """
    quoting = [re.compile(pattern) for pattern in quotes]
    told = [(line, read(line)) for line in lines if not any(quote.search(line) for quote in quoting)]
    if not serving:
        return [Evidence(line, ()) for line, parts in told if parts.level is not Level.ORDINARY]
    return _own_errors(told, crashed, [re.compile(pattern) for pattern in own])


def _heads(message: str, raised: re.Match[str] | None) -> tuple[str, ...]:
    """Where the text of an error begins: an exception's full name, its own name, its message; what C++ says of one."""
    if raised is None:
        return (message, message.strip().removeprefix("what():").lstrip())
    return message, message[message[: raised.end()].rstrip(": ").rfind(".") + 1 :], message[raised.end() :]


def _own_errors(
    told: Iterable[tuple[str, Line]], crashed: bool, own: Sequence[re.Pattern[str]]
) -> list[Evidence]:
    sure: list[tuple[int, Evidence]] = []
    last: list[tuple[int, Evidence]] = []
    """Bare tracebacks and last words: they count if nothing ordinary comes after them."""
    record, front, request = Level.UNTOLD, "", False
    tracing: list[tuple[int, Evidence]] | None = None
    """Where the exception belongs that ends the present traceback."""
    for number, (line, parts) in enumerate(told):
        if parts.front and parts.front != front:
            record, front, tracing = parts.level, parts.front, None
            request = bool(_OF_A_REQUEST.match(parts.message))
        if parts.level is Level.ORDINARY:
            last.clear()
            continue
        if _TRACEBACK in parts.message:
            tracing = sure if parts.front else last
        raised = _EXCEPTION.match(parts.message)
        if request:
            continue
        heads = _heads(parts.message, raised)
        if parts.front and (record is Level.ERROR or raised or any(words.match(parts.message) for words in own)):
            sure.append((number, Evidence(line, heads)))
        elif raised and tracing is not None:
            tracing.append((number, Evidence(line, heads)))
            tracing = None
        elif crashed and _LAST_WORDS.match(parts.message):
            last.append((number, Evidence(line, heads)))
    return [found for _, found in sorted([*sure, *last], key=lambda one: one[0])]
