"""Why a server ended: exit status, phase and log lines in, a named cause with advice out. Pure; rules are data."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby


class Verdict(StrEnum):
    """Whether another attempt can help."""

    HOPELESS = "hopeless"
    """The same will happen again: an unknown flag, a missing model, bad credentials."""
    TRANSIENT = "transient"
    """The cause lies outside and may pass: a hub that is down, memory held by a process that is ending."""
    UNKNOWN = "unknown"
    """Worth another try, but not worth a third if the second fails with the same words."""


@dataclass(frozen=True)
class Exit:
    """How a server's main process ended. `code` is negative for a signal, as in `subprocess`."""

    code: int

    def text(self) -> str:
        if self.code < 0:
            try:
                return f"was killed by {signal.Signals(-self.code).name}"
            except ValueError:
                return f"was killed by signal {-self.code}"
        return f"exited with code {self.code}"


@dataclass(frozen=True)
class Rule:
    """One known cause of a failed start or run.

    `pattern` is searched in each of the last log lines; a rule counts only when the process has exited or the start has
    failed, so that the same words in a prompt that a healthy server prints do nothing.
    """

    cause: str
    pattern: str
    verdict: Verdict
    advice: str


@dataclass(frozen=True)
class Diagnosis:
    """A named cause, the evidence for it, and what to do."""

    cause: str
    """One word or two, stable, for programs: `exited`, `unknown-flag`, `startup-timeout`, `stalled`, ..."""
    summary: str
    """One sentence for people, with the values in it."""
    verdict: Verdict = Verdict.UNKNOWN
    advice: str = ""
    evidence: str = ""
    """The log line that shows the cause, if one does."""
    exit_code: int | None = None
    log: str = ""
    """Path of the attempt's whole log, if it has one."""
    tail: tuple[str, ...] = ()
    """The last lines of that log."""

    @property
    def signature(self) -> str:
        """What two failures have in common when they are the same failure: cause, exit code, last words."""
        words = self.evidence or (self.tail[-1] if self.tail else "")
        return f"{self.cause}|{self.exit_code}|{_without_numbers(words)}"

    def text(self) -> str:
        """All of it, in a few lines, for stderr."""
        lines = [f"{self.summary} [{self.cause}]"]
        if self.evidence:
            lines.append(f"  shown by: {self.evidence}")
        if self.advice:
            lines.append(f"  what to do: {self.advice}")
        if self.tail:
            lines.append("  last log lines:")
            lines.extend(f"    | {line}" for line in self.tail)
        if self.log:
            lines.append(f"  whole log: {self.log}")
        return "\n".join(lines)


COMMON_RULES: tuple[Rule, ...] = (
    Rule(
        "unknown-flag",
        r"unrecognized arguments?:|unrecognized option|invalid argument:|unknown argument|no such option|"
        r"invalid choice:|error: argument ",
        Verdict.HOPELESS,
        "remove or correct the flag that the line names",
    ),
    Rule(
        "port-taken",
        r"Address already in use|EADDRINUSE|error while attempting to bind on address|couldn't bind HTTP server socket",
        Verdict.TRANSIENT,
        "another process took a port of this server; it is started again on other ports",
    ),
    Rule(
        "bad-credentials",
        r"401 Client Error|403 Client Error|Cannot access gated repo|trying to access a gated repo|Invalid user token",
        Verdict.HOPELESS,
        "accept the model's terms on its hub page and set HF_TOKEN to a token that may read it",
    ),
    Rule(
        "missing-model",
        r"Repository Not Found|404 Client Error|is not a local folder and is not a valid model identifier|"
        r"Repo id must be in the form|failed to open GGUF file|"
        r"Cannot find any model weights|model path does not exist",
        Verdict.HOPELESS,
        "check the model's name or path",
    ),
    Rule(
        "hub-unreachable",
        r"We couldn't connect to|LocalEntryNotFoundError|Max retries exceeded|Temporary failure in name resolution|"
        r"Name or service not known|Connection (?:refused|reset|timed out)|Network is unreachable|"
        r"50[0234] Server Error",
        Verdict.TRANSIENT,
        "the hub could not be reached; if the weights are on disk, set HF_HUB_OFFLINE=1",
    ),
    Rule(
        "memory-held",
        r"is less than desired GPU memory utilization|Error in memory profiling",
        Verdict.TRANSIENT,
        "another process holds the memory; end it, or ask for less",
    ),
    Rule(
        "out-of-memory",
        r"CUDA out of memory|OutOfMemoryError|Cannot allocate memory|std::bad_alloc|MemoryError",
        Verdict.UNKNOWN,
        "ask for less memory: a smaller model, a shorter context, fewer parallel slots",
    ),
    Rule("disk-full", r"No space left on device", Verdict.HOPELESS, "free some disk space"),
    Rule(
        "missing-library",
        r"ModuleNotFoundError|ImportError|cannot open shared object file|command not found|: not found$",
        Verdict.HOPELESS,
        "install what the line names into the engine's own environment",
    ),
)
"""Causes that any engine can show. Texts: argparse and CPython 3.11, huggingface_hub, transformers, torch, vLLM 0.32,
SGLang 0.5.23 and llama.cpp, as seen in their logs."""

TAIL_LINES = 20
"""Log lines kept in a diagnosis: a screenful with room for the rest of the message."""


def diagnose(
    cause: str,
    summary: str,
    *,
    exit: Exit | None = None,
    lines: Sequence[str] = (),
    rules: Iterable[Rule] = COMMON_RULES,
    verdict: Verdict = Verdict.UNKNOWN,
    advice: str = "",
    log: str = "",
) -> Diagnosis:
    """Name the cause of a failure.

    The last line that matches a rule names it; without one the cause stays what the caller saw (`exited`,
    `startup-timeout`, ...). A shell's 126 and 127 are hopeless whatever the log says.
    """
    code = exit.code if exit else None
    tail = tuple(without_repeats(lines)[-TAIL_LINES:])
    if code in (126, 127):
        verdict, advice = Verdict.HOPELESS, "the command could not be run: check its name and that it is executable"
    compiled = [(rule, re.compile(rule.pattern)) for rule in rules]
    for line in reversed(lines):
        for rule, pattern in compiled:
            if pattern.search(line):
                decided = Verdict.HOPELESS if code in (126, 127) else rule.verdict
                return Diagnosis(rule.cause, summary, decided, rule.advice, line.strip(), code, log, tail)
    return Diagnosis(cause, summary, verdict, advice, "", code, log, tail)


def without_repeats(lines: Iterable[str]) -> list[str]:
    """Lines, those that say the same again and again only once: what came before them must not be pushed out of sight.

    >>> without_repeats(["engine died", "12:00 still waiting", "12:01 still waiting"])
    ['engine died', '12:01 still waiting (2 times)']
    """
    kept: list[str] = []
    for _, group in groupby(lines, _without_numbers):
        same = list(group)
        kept.append(same[-1] if len(same) == 1 else f"{same[-1]} ({len(same)} times)")
    return kept


def _without_numbers(text: str) -> str:
    """Timestamps, pids and ports differ between two runs of one failure; words do not."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text).strip()


def without_clock(line: str) -> str:
    """A log line without the clock at its beginning, so that the same words count once. Other numbers stay: "shard 3"
    after "shard 2" is progress."""
    head, tail = line[:40], line[40:]
    return _CLOCK.sub("", head) + tail


_CLOCK = re.compile(r"\d+(?:[-:.,T]\d+){2,}|\d+:\d\d|\d{9,}(?:\.\d+)?|\[ *\d+\.\d+\]")
"""12:00:01,123; 2026-12-02T03:35; 0.00.123.456 (llama.cpp); 00:12; Unix seconds; [  12.345678]."""
