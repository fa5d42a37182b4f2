"""How much vLLM has to do, from the text of its `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator

from lifecycle.adapter import EngineLoad

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
PROGRESS = (
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:iteration_tokens_total_count",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
)
"""What moves while the engine's loop does. Seen with 0.32.0: decoding moves the tokens and the iterations at every
step; a long prefill in chunks moves none of them until it is over, only the usage of the KV cache, which is exact to
the block; with the engine stopped (SIGSTOP) nothing moves."""
ANSWERED, TOKENS = "vllm:e2e_request_latency_seconds_count", "vllm:generation_tokens_total"
SECONDS = "vllm:e2e_request_latency_seconds_sum"
"""A histogram of whole requests (`vllm/v1/metrics/loggers.py` in 0.32.0), which counts those that are over."""


def load(body: str) -> EngineLoad | None:
    """What the text of `/metrics` says, summed over the engines of a data-parallel server; None if it says nothing."""
    sums: dict[str, float] = {}
    for name, value in samples(body):
        if name in (RUNNING, WAITING, *PROGRESS, ANSWERED, SECONDS):
            sums[name] = sums.get(name, 0.0) + value
    if RUNNING not in sums:
        return None
    progress = tuple(sums.get(name, 0.0) for name in PROGRESS)
    done = (sums.get(ANSWERED), sums.get(TOKENS), sums.get(SECONDS))
    return EngineLoad(round(sums[RUNNING]), round(sums.get(WAITING, 0.0)), progress, *done)


def samples(body: str) -> Iterator[tuple[str, float]]:
    """(name without labels, value) of each sample in Prometheus' text format, version 0.0.4. Others are left out."""
    for line in body.splitlines():
        if line.startswith("#"):
            continue
        name, brace, rest = line.partition("{")
        words = rest.rpartition("}")[2].split() if brace else line.split()[1:]
        try:
            yield (name if brace else line.split()[0]), float(words[0])
        except (IndexError, ValueError):
            continue
