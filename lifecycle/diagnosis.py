"""Why a server ended: exit status, phase and log lines in, a named cause with advice out. Pure; rules are data."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from lifecycle.evidence import Evidence, evidence
from lifecycle.rules import COMMON_RULES, Rule, Verdict

__all__ = ["COMMON_RULES", "Diagnosis", "Exit", "Rule", "Verdict", "diagnose", "without_clock", "without_repeats"]


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
    given_up: str = ""
    """Why there was no further attempt although one might have helped; empty if there was one, or if none can help."""

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
        if self.given_up:
            lines.append(f"  not tried again: {self.given_up}")
        if self.tail:
            lines.append("  last log lines:")
            lines.extend(f"    | {line}" for line in self.tail)
        if self.log:
            lines.append(f"  whole log: {self.log}")
        return "\n".join(lines)


TAIL_LINES = 20
"""Log lines kept in a diagnosis: a screenful with room for the rest of the message."""


CRASHES = {
    signal.SIGILL: next(rule.advice for rule in COMMON_RULES if rule.cause == "illegal-instruction"),
    signal.SIGSEGV: "it read or wrote memory that is not its own: another version of the engine or of its libraries "
    "may do better, and so may less memory per GPU",
    signal.SIGBUS: "often /dev/shm is full or too small: remove what is left in it, or give the container more",
    signal.SIGABRT: "it ended itself: its last lines should say why",
    signal.SIGFPE: "a library divided by zero: another version of the engine may do better",
    signal.SIGTRAP: "it ended itself: its last lines should say why",
    signal.SIGSYS: "a system call is forbidden here: look at the container's seccomp profile",
}
"""Signals by which a process ends through a fault of its own, and what to do."""
SHELL_SIGNAL = 128
"""A shell's exit code for a command that a signal has ended is this and the signal's number."""
SHELL_FAILS = (126, 127)
"""Exit codes of a shell that could not run the command: not executable, not found."""
CANNOT_RUN = "the command could not be run: check its name and that it is executable"


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
    phase: str = "",
    quotes: Iterable[str] = (),
    oom_kills: int = 0,
) -> Diagnosis:
    """Name the cause of a failure, by the exit status, the log and the phase together.

    What the kernel says comes first: its OOM killer, an illegal instruction. Then the last line that a rule explains;
    rules that name consequences only if no other does. Then the signal. Without any of these the cause stays what the
    caller saw (`exited`, `startup-timeout`, ...). A shell's 126 and 127 are hopeless whatever the log says.

    Args:
        lines: the end of the log.
        rules: the backend's own first; on one line the first that fits counts.
        verdict, advice: if nothing explains it.
        phase: "start" before the server was ready, "run" afterwards; "" if that is not known, then every rule counts.
        quotes: patterns of log lines that carry users' texts.
        oom_kills: by how many the control group's count of processes killed for want of memory has risen.
    """
    code = exit.code if exit else None
    tail = tuple(without_repeats(lines)[-TAIL_LINES:])
    fitting = [rule for rule in rules if not (phase and rule.phase) or rule.phase == phase]
    ended_by = -code if code is not None and code < 0 else (code or 0) - SHELL_SIGNAL
    own = [rule.pattern for rule in fitting if rule.phase == "run"]
    shown_by = evidence(lines, quotes, serving=phase == "run", crashed=ended_by in CRASHES, own=own)
    rule, shown = _explained(shown_by, fitting)

    def found(cause: str, verdict: Verdict, advice: str, words: str = "", more: str = "") -> Diagnosis:
        return Diagnosis(cause, summary + more, verdict, advice, words, code, log, tail)

    if code in SHELL_FAILS:
        named = rule.cause if rule else cause
        return found(named, Verdict.HOPELESS, rule.advice if rule else CANNOT_RUN, shown)
    if oom_kills > 0 and (ended_by == signal.SIGKILL or rule is None or rule.general):
        many = f"{oom_kills} processes" if oom_kills > 1 else "one process"
        more = f"; the kernel has killed {many} of this control group for want of memory meanwhile"
        return found("oom-killed", Verdict.UNKNOWN, OOM_ADVICE, more=more)
    if ended_by == signal.SIGILL:
        return found("illegal-instruction", Verdict.HOPELESS, CRASHES[signal.SIGILL], shown)
    if rule is not None:
        return found(rule.cause, rule.verdict, rule.advice, shown)
    if ended_by in CRASHES:
        return found("crashed", verdict, CRASHES[signal.Signals(ended_by)])
    return found(cause, verdict, advice or (KILL_ADVICE if code is not None and code < 0 else ""))


OOM_ADVICE = (
    "the machine's memory or the job's share of it was not enough: give the job more, load a smaller model or less of "
    "it at once, or run fewer servers beside each other"
)
KILL_ADVICE = (
    "somebody killed it, or it did so itself: look at its last lines, at the job's limits and at the kernel's log "
    "(dmesg)"
)


def _explained(lines: Sequence[Evidence], rules: Sequence[Rule]) -> tuple[Rule | None, str]:
    """The rule that explains a failure, and the line that shows it."""
    compiled = [(rule, re.compile(rule.pattern)) for rule in rules]
    for general in (False, True):
        tried = [(rule, pattern) for rule, pattern in compiled if rule.general is general]
        for line in reversed(lines):
            for rule, pattern in tried:
                if any(map(pattern.match, line.heads)) if line.heads else pattern.search(line.text):
                    return rule, line.text.strip()
    return None, ""


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
