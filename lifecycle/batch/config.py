"""Everything that can be said about a generate job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lifecycle.batch.records import Defaults
from lifecycle.errors import ConfigError

AUTO = "auto"
AUTO_LIMIT = 1024
"""Most requests in flight at once when their number is found by the job itself. Above vLLM's own default of sequences
that it runs at once (`--max-num-seqs`, 256 to 1024 by GPU)."""
OnError = Literal["record", "skip", "abort"]


@dataclass(frozen=True)
class JobConfig:
    """Everything that can be said about a job."""

    input: str
    """A file (JSON Lines, plain, .gz or .zst; Parquet), a folder or a quoted glob of these, - for standard input, or
    hf:NAME[:CONFIG][@SPLIT][#REVISION] for a dataset of the hub."""
    output: str
    """Path of the JSON Lines file to write or to go on with; or of a folder for numbered parts: one that exists, ends
    with a slash, or has no suffix."""
    model: str = ""
    """Put into every request that names none. Empty: the server's own."""
    concurrency: int = 64
    """Requests in flight at once. With `adaptive`, the most of them."""
    adaptive: bool = False
    """Find the number of requests in flight that gives the best throughput, up to `concurrency`. The same as
    concurrency = auto."""
    max_tokens: int | None = None
    """Longest answer in tokens, unless a record says otherwise."""
    temperature: float | None = None
    """Sent with every request that names none of its own; not given: the server's default."""
    top_p: float | None = None
    """The same for nucleus sampling."""
    seed: int | None = None
    """The same for the seed."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Any other parameters of each request, such as top_k or stop, as the engine names them."""
    system: str = ""
    """System message for every record that has none of its own."""
    template: str = ""
    """Jinja file that makes the prompt from the fields of a record."""
    rollouts: int = 1
    """Answers to each record. Each is asked for with a seed of its own."""
    rollout: str = ""
    """Function that makes a record's result, as module:function or path/to/file.py:function; called as
    await function(record, generate)."""
    context: str = ""
    """What that function is given by keyword, as module:name: a mapping, or a function or context manager that makes
    one when the job begins."""
    on_error: OnError = "record"
    """What becomes of a record that fails: record (a line with its error), skip (no line), abort (the job ends)."""
    retry_errors: bool = False
    """Send the records again that have failed; their lines are taken out first."""
    format: str = "jsonl"
    """Of the parts in a folder: jsonl, jsonl.gz, jsonl.zst or parquet."""
    part_size: int = 10_000
    """Lines of a part."""
    rank: int | None = None
    """Which share of the input this run takes, from 0. Default: what a Slurm array or RANK says, else all of it."""
    world_size: int | None = None
    """How many shares there are."""
    summary: str = ""
    """JSON file to write the summary to."""
    stop_before: float | None = None
    """Seconds before the end of a Slurm job at which no new record is begun, so that the run ends in order. Default: as
    many as a drain may take and 5 more; never more than half of what the job has. 0: only a signal stops it."""
    progress_interval: float = 10.0
    """Seconds between two lines of progress where standard error is no terminal."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a value that cannot be."""
        for name in ("concurrency", "max_tokens", "rollouts", "part_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value} must be at least 1")
        if self.stop_before is not None and not self.stop_before >= 0:
            raise ConfigError(f"stop_before = {self.stop_before} must not be negative")
        if self.params.get("stream"):
            raise ConfigError("params asks for a stream, which a line of output cannot hold; leave stream out")
        if self.context and not self.rollout:
            raise ConfigError(f"context = {self.context!r} is for a rollout function, and rollout is not set")
        if self.rollout and self.template:
            raise ConfigError("rollout and template exclude each other: a rollout function makes its own prompts")

    @property
    def defaults(self) -> Defaults:
        """What each request asks for unless its record says otherwise."""
        from lifecycle.batch.template import Template

        names = ("max_tokens", "temperature", "top_p", "seed")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        given = {**self.params, **given}
        return Defaults(self.model, self.system, given, Template(self.template) if self.template else None)


def with_auto(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which concurrency may be the word auto."""
    given = settings.get("concurrency")
    if given != AUTO:
        if isinstance(given, str) and not given.isdigit():
            raise ConfigError(f"concurrency = {given!r} is neither a whole number nor {AUTO}")
        return dict(settings)
    return {**settings, "concurrency": AUTO_LIMIT, "adaptive": True}
