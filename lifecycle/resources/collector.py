"""How often Python looks for cycles of garbage: seldom, in a process that has thousands of requests in flight."""

from __future__ import annotations

import gc

HELD = 100
"""Objects that the collector has to look at for each request in flight: about 50 of `Client` and aiohttp 3.14, the rest
for whoever asks."""


def spare_collector(in_flight: int) -> None:
    """Let the collector run once there are more new objects than so many requests hold.

    It runs for each 700 new objects otherwise, which are a dozen requests, walks over all that are in flight, and finds
    nothing, since a request leaves no cycle behind: a third of the CPU at 2,000 in flight. It is never made to run more
    often than it does.
    """
    young, *older = gc.get_threshold()
    if young:  # 0: somebody has turned it off
        gc.set_threshold(max(young, HELD * in_flight), *older)
