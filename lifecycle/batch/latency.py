"""Percentiles of any number of durations in little memory."""

from __future__ import annotations

import math
from collections.abc import Mapping

PRECISION = 0.01
"""A percentile is within this part of the true one, up or down."""
SHORTEST = 1e-6
"""Seconds. What is shorter is counted as this: so there are at most some 1,300 buckets up to a day."""
PERCENTILES: Mapping[str, float] = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}

_GROWTH = (1 + PRECISION) / (1 - PRECISION)
_BUCKETS_PER_E = 1 / math.log(_GROWTH)


class Histogram:
    """Counts of durations in buckets whose bounds grow by 2 %.

    The buckets of DDSketch (Masson, Rim and Lee, "DDSketch: a fast and fully-mergeable quantile sketch with
    relative-error guarantees", VLDB 2019) without its collapsing, which durations do not need.
    """

    def __init__(self) -> None:
        self.count = 0
        self.longest = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        self.count += 1
        if seconds > self.longest:
            self.longest = seconds
        bucket = math.ceil(math.log(seconds) * _BUCKETS_PER_E) if seconds > SHORTEST else _SHORTEST_BUCKET
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def at(self, part: float) -> float:
        """The duration that `part` (0 to 1) of all durations do not exceed, in seconds; 0 if there is none."""
        rank = part * (self.count - 1)
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen > rank:
                return min(self.longest, 2 * _GROWTH**bucket / (_GROWTH + 1))
        return 0.0

    def percentiles(self) -> dict[str, float]:
        """p50, p90, p95, p99 within `PRECISION`, and the exact max; nothing if there is no duration."""
        if not self.count:
            return {}
        return {name: self.at(part) for name, part in PERCENTILES.items()} | {"max": self.longest}


_SHORTEST_BUCKET = math.ceil(math.log(SHORTEST) * _BUCKETS_PER_E)
