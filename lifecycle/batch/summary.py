"""What a job came to: counted while it runs, told at its end."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lifecycle.batch.latency import Histogram
from lifecycle.errors import OutputError
from lifecycle.journal import Kind, Record

EXIT_ERRORS = 3
"""Exit code of a job that is through and has lines with errors."""


@dataclass(frozen=True)
class Summary:
    """A finished, or a stopped, job."""

    total: int | None
    """Records of the input; None if it was not read to its end."""
    earlier: int
    """Records that had their output before this run."""
    earlier_errors: int
    """How many of those have an error."""
    answered: int
    errors: Mapping[str, int]
    """Records with an error written by this run, by kind: malformed, refused, failed, request."""
    skipped: int
    """Records left out by this run because they failed and the job was told to skip such."""
    requests: int
    """Requests sent: several for a record whose rollout takes several steps. One sent again counts once."""
    retries: int
    """Attempts beyond the first, of all requests."""
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    latency: Mapping[str, float]
    """Seconds of one answered request, retries included: p50, p90, p95, p99, each within 1 %, and max."""
    uptime: float | None = None
    """Seconds that the server was Healthy; None if nobody looked."""
    cut: int = 0
    """Answers that ended because they were as long as they might be (finish_reason: length)."""
    starts: int = 0
    """Starts of the server that were tried, the first and the failed ones too."""
    restarts: int = 0
    """Times that the server became Healthy again after it had been lost."""

    @property
    def left(self) -> int | None:
        """Records that still have no output; None if the input was not read to its end."""
        if self.total is None:
            return None
        return self.total - self.earlier - self.answered - self.skipped - sum(self.errors.values())

    @property
    def exit_code(self) -> int:
        return EXIT_ERRORS if self.errors or self.earlier_errors else 0

    @property
    def rates(self) -> dict[str, float]:
        """Per second of this run: prompts that a server has answered, prompt and completion tokens."""
        counted = {
            "prompts": self.answered,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }
        return {name: count / self.seconds if self.seconds > 0 else 0.0 for name, count in counted.items()}

    def text(self) -> str:
        """A few lines for people."""
        of = "" if self.total is None else f" of {self.total}"
        first = f"{self.answered}{of} prompts answered in {self.seconds:.1f} s"
        if self.earlier:
            first += f", {self.earlier} were finished before"
            first += f" ({self.earlier_errors} of them with an error)" if self.earlier_errors else ""
        if self.skipped:
            first += f", {self.skipped} were skipped"
        if self.left is None:
            first += ", the input was not read to its end: run the same command again to go on"
        elif self.left:
            first += f", {self.left} are left: run the same command again to go on"
        rates = self.rates
        lines = [
            first,
            f"{self.prompt_tokens} prompt and {self.completion_tokens} completion tokens",
            f"{rates['prompts']:.1f} prompts/s, {rates['prompt_tokens']:.0f} prompt and "
            f"{rates['completion_tokens']:.0f} completion tokens/s",
        ]
        if self.latency:
            lines.append("latency " + ", ".join(f"{name} {value:.2f} s" for name, value in self.latency.items()))
        if self.cut:
            lines.append(f"{self.cut} answers were cut at their longest (finish_reason: length): see --max-tokens")
        if self.errors:
            lines.append(f"lines with an error: {by_kind(self.errors)} (see their `error` field)")
        if server := self._server():
            lines.append(server)
        return "\n".join(lines)

    def _server(self) -> str:
        parts = [f"the server was up for {self.uptime:.1f} s"] if self.uptime is not None else []
        if self.starts > 1:
            parts.append(f"the server was started {self.starts} times")
        if self.retries:
            parts.append(f"{self.retries} requests were sent again")
        return ", ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """The same for programs: numbers, texts and None only. Durations in seconds; rates per second of the run."""
        return {
            "seconds": self.seconds,
            "records": {
                "total": self.total,
                "finished_before": self.earlier,
                "finished_before_with_error": self.earlier_errors,
                "answered": self.answered,
                "failed": sum(self.errors.values()),
                "failed_by_kind": dict(sorted(self.errors.items())),
                "skipped": self.skipped,
                "left": self.left,
            },
            "requests": {
                "sent": self.requests,
                "retries": self.retries,
                "cut_at_length": self.cut,
                "latency_seconds": dict(self.latency),
            },
            "tokens": {"prompt": self.prompt_tokens, "completion": self.completion_tokens},
            "per_second": self.rates,
            "server": {"uptime_seconds": self.uptime, "starts": self.starts, "restarts": self.restarts},
        }


def by_kind(errors: Mapping[str, int]) -> str:
    """Such as "3 failed, 1 refused"."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(errors.items()))


def write_summary(path: Path, summary: Summary) -> None:
    """Write the summary as JSON, whole or not at all. Raises `OutputError` if that is not possible."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    text = msgspec.json.format(msgspec.json.encode(summary.as_json()), indent=2) + b"\n"
    try:
        try:
            beside.write_bytes(text)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"summary {path} cannot be written: {error.strerror}; name a file in a folder that can be written to"
        ) from None


@dataclass
class Tally:
    """The numbers of a running job: the job counts, a display and the summary read."""

    total: int | None
    """Records of the input; None until it has been read to its end."""
    earlier: int = 0
    """Records that had their output before this run."""
    earlier_errors: int = 0
    answered: int = 0
    skipped: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    in_flight: int = 0
    at_server: Callable[[], int] | None = None
    """How many requests the server has: the others of those in flight wait for it. None: nobody knows."""
    cut: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    latency: Histogram = field(default_factory=Histogram)
    now: Callable[[], float] = time.monotonic
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.now()

    def request_began(self) -> None:
        self.requests += 1
        self.in_flight += 1

    def request_answered(
        self, seconds: float, prompt_tokens: int, completion_tokens: int, *, cut: bool = False
    ) -> None:
        """A request that began has its answer, `seconds` after it began; `cut`: it was as long as it might be."""
        self.in_flight -= 1
        self.cut += cut
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.latency.add(seconds)

    def request_failed(self) -> None:
        """A request that began will get no answer in this run."""
        self.in_flight -= 1

    def retried(self, count: int = 1) -> None:
        self.retries += count

    def record_answered(self) -> None:
        self.answered += 1

    def record_failed(self, kind: str) -> None:
        """A record got a line with an error."""
        self.errors[kind] += 1

    def record_skipped(self) -> None:
        self.skipped += 1

    @property
    def finished(self) -> int:
        """Records that this run is through with."""
        return self.answered + self.skipped + sum(dict(self.errors).values())  # a copy: a display has its own thread

    def count(self, line: Mapping[str, Any], seconds: float) -> None:
        """Count the line of output of a record that took the one request, which began with `request_began`."""
        error = line.get("error")
        if error:
            self.request_failed()
            self.record_failed(error.get("kind") or error.get("code") or "failed")
        else:
            self.request_answered(seconds, *usage_of(line))
            self.record_answered()

    def summary(self) -> Summary:
        """The numbers as they are now."""
        return Summary(
            total=self.total,
            earlier=self.earlier,
            earlier_errors=self.earlier_errors,
            answered=self.answered,
            errors=dict(self.errors),
            skipped=self.skipped,
            requests=self.requests,
            cut=self.cut,
            retries=self.retries,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            seconds=self.now() - self.began,
            latency=self.latency.percentiles(),
        )


class Uptime:
    """How long, and how often, servers were Healthy: a listener of their journals."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._times: Counter[str] = Counter()
        self._since: dict[str, float] = {}

    def __call__(self, record: Record) -> None:
        """Take a record of the journal."""
        if record.kind is not Kind.TRANSITION or (record.before == "Healthy") == (record.after == "Healthy"):
            return
        if record.after == "Healthy":
            self._since[record.server] = record.time
            self._times[record.server] += 1
        elif record.server in self._since:
            self._seconds[record.server] += record.time - self._since[record.server]

    def seconds(self, server: str) -> float:
        """How long the server, or the fleet, of this name was Healthy."""
        return self._seconds[server]

    def restarts(self, *but: str) -> int:
        """How often any of them became Healthy again, without those of these names."""
        return sum(times - 1 for name, times in self._times.items() if name not in but)


def usage_of(line: Mapping[str, Any]) -> tuple[int, int]:
    """(prompt tokens, completion tokens) that a line of output reports."""
    if "generations" in line:
        return tokens_of(line["generations"][0].get("usage"))
    body = (line.get("response") or {}).get("body")
    return tokens_of(body.get("usage") if isinstance(body, dict) else None)


def is_cut(answer: Mapping[str, Any]) -> bool:
    """Whether an answer, or one of several, ended because it was as long as it might be. It may have any shape."""
    choices = answer.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") == "length" for choice in choices
    )


def tokens_of(usage: Any) -> tuple[int, int]:
    """(prompt tokens, completion tokens) of an answer's `usage`. What is no number there counts as 0."""
    if not isinstance(usage, dict):
        return 0, 0
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return prompt if isinstance(prompt, int) else 0, completion if isinstance(completion, int) else 0
