"""What a measurement comes to, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Figure:
    """One number with its bound."""

    what: str
    value: float
    unit: str
    bound: float | None = None
    at_least: bool = False
    """The bound is a lower one."""
    peer: str = ""
    """What datatrove did with the same."""

    @property
    def holds(self) -> bool:
        if self.bound is None:
            return True
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def median_and_worst(what: str, seconds: Sequence[float], bound: float, worst: float | None, peer: str) -> list[Figure]:
    """Two figures, in milliseconds, of one series in seconds."""
    times = [1000 * value for value in seconds]
    return [
        Figure(f"{what}, median of {len(times)}", median(times), "ms", bound, peer=peer),
        Figure(f"{what}, worst", max(times), "ms", worst),
    ]


def spread(seconds: Sequence[float]) -> str:
    """A series in seconds, in words."""
    return f"{min(seconds):.2f} to {max(seconds):.2f} s" if seconds else "none"


def table(figures: Sequence[Figure]) -> str:
    """A table in Markdown."""
    lines = ["| | Stoker | bound | datatrove 0.10 |", "|---|---|---|---|"]
    for figure in figures:
        sign = "" if figure.bound is None else ("≥ " if figure.at_least else "≤ ") + f"{figure.bound:g} {figure.unit}"
        mark = "" if figure.holds else " **missed**"
        lines.append(f"| {figure.what} | {figure.value:.3g} {figure.unit}{mark} | {sign} | {figure.peer} |")
    return "\n".join(lines)
