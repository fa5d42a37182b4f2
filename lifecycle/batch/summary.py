"""What a job came to: counted while it runs, told at its end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KEPT = 100_000
"""Latencies kept for the percentiles: of a longer job, every n-th."""
EXIT_ERRORS = 3
"""Exit code of a job that is through and has lines with errors."""


@dataclass(frozen=True)
class Summary:
    """A finished, or a stopped, job."""

    total: int
    earlier: int
    """Lines that had their output before this run."""
    earlier_errors: int
    """How many of those have an error."""
    answered: int
    errors: Mapping[str, int]
    """Lines with an error written by this run, by kind: malformed, refused, failed, request."""
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    latency: Mapping[str, float]
    """Seconds of one request, retries included: p50, p95, p99, max."""

    @property
    def left(self) -> int:
        """Lines that still have no output."""
        return self.total - self.earlier - self.answered - sum(self.errors.values())

    @property
    def exit_code(self) -> int:
        return EXIT_ERRORS if self.errors or self.earlier_errors else 0

    def text(self) -> str:
        """A few lines for people."""
        rate = self.completion_tokens / self.seconds if self.seconds else 0.0
        lines = [f"{self.answered} of {self.total} prompts answered in {self.seconds:.1f} s"]
        if self.earlier:
            lines[0] += f", {self.earlier} were finished before"
            lines[0] += f" ({self.earlier_errors} of them with an error)" if self.earlier_errors else ""
        if self.left:
            lines[0] += f", {self.left} are left: run the same command again to go on"
        lines.append(
            f"{self.prompt_tokens} prompt and {self.completion_tokens} completion tokens, {rate:.0f} tokens/s written"
        )
        if self.latency:
            lines.append("latency " + ", ".join(f"{name} {value:.2f} s" for name, value in self.latency.items()))
        if self.errors:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.errors.items()))
            lines.append(f"lines with an error: {kinds} (see their `error` field)")
        return "\n".join(lines)


@dataclass
class Tally:
    """The numbers of a running job."""

    total: int
    earlier: int
    earlier_errors: int = 0
    answered: int = 0
    malformed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    _latencies: list[float] = field(default_factory=list)
    _every: int = 1
    _began: float = field(default_factory=time.monotonic)

    def count(self, line: Mapping[str, Any], seconds: float) -> None:
        """Count one line of output that has just been written."""
        error = line.get("error")
        if error:
            self.errors[error.get("kind") or error.get("code") or "failed"] += 1
        else:
            self.answered += 1
            usage = usage_of(line)
            self.prompt_tokens += usage[0]
            self.completion_tokens += usage[1]
        if (self.answered + self.errors.total()) % self._every == 0:
            self._latencies.append(seconds)
            if len(self._latencies) >= KEPT:
                self._latencies = self._latencies[::2]
                self._every *= 2

    def summary(self) -> Summary:
        errors = dict(self.errors)
        if self.malformed:
            errors["malformed"] = self.malformed
        return Summary(
            self.total,
            self.earlier,
            self.earlier_errors,
            self.answered,
            errors,
            self.prompt_tokens,
            self.completion_tokens,
            time.monotonic() - self._began,
            percentiles(self._latencies),
        )


def usage_of(line: Mapping[str, Any]) -> tuple[int, int]:
    """(prompt tokens, completion tokens) that a line of output reports."""
    if "generations" in line:
        usage = line["generations"][0].get("usage")
    else:
        body = (line.get("response") or {}).get("body")
        usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return 0, 0
    return int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)


def percentiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    ranked = sorted(values)
    last = len(ranked) - 1
    return {
        "p50": ranked[round(0.50 * last)],
        "p95": ranked[round(0.95 * last)],
        "p99": ranked[round(0.99 * last)],
        "max": ranked[last],
    }
