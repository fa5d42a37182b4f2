"""Lives as a picture: a row for each, a bar for each time in a state, a mark for each failure. SVG that needs nothing
else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from string import Template

from lifecycle.diagram.ink import DARK, LIGHT, width, wrap
from lifecycle.trace.lives import FINAL, Life
from lifecycle.trace.text import clock, span

WIDTH, MARGIN, NAMES = 1200, 28, 170
"""Pixels: of the picture, at its sides, of the column of names."""
ROW, BAR = 40, 24
"""Pixels of one row, and of the bar in it."""
SMALL = 11
LEAST = 1.5
"""Pixels of the shortest time."""
TICKS = 6
MOST_FAILURES = 40
"""Failures that are told in words; of the others it says how many there are."""
Place = Callable[[float], float]
"""Unix seconds to pixels from the left."""
SHADES = {
    "Healthy": "good", "Starting": "work", "Gathering": "wait", "Joining": "wait", "Locking": "wait", "Placing": "wait",
    "PortBound": "work", "Adopting": "work", "Hosting": "good", "Present": "good", "Asleep": "rest", "Dormant": "rest",
    "Draining": "ends", "Backoff": "back", "Stopped": "over", "Failed": "lost", "Idle": "rest",
}  # fmt: skip
"""How each state is coloured."""
WORDS = {
    "wait": "waits", "work": "comes up", "good": "serves", "rest": "rests", "ends": "drains", "back": "backs off",
}  # fmt: skip
STYLE = """
  text { font-family: Inter, "Helvetica Neue", Helvetica, Arial, "Liberation Sans", sans-serif; font-size: 12px; }
  .title { font-size: 20px; font-weight: 600; } .small { font-size: 11px; } .name { font-weight: 600; }
  .num { font-size: 10px; font-weight: 700; text-anchor: middle; } .in { font-size: 11px; font-weight: 600; }
  .mid { text-anchor: middle; } .far { text-anchor: end; }"""
COLOURS = Template("""
  text { fill: $ink; } .soft { fill: $soft; } .paper { fill: $paper; } .rule { stroke: $rule; } .row { fill: $card; }
  .wait { fill: $back; opacity: .45; } .work { fill: $back; } .good { fill: $life; } .rest { fill: $rule; }
  .ends { fill: $stop; } .back { fill: $end; } .over { fill: $stop; } .lost { fill: $fail; }
  .num, .in { fill: $paper; }
""")


def picture(lives: Sequence[Life], title: str) -> str:
    """The timeline of these lives, all on one clock."""
    began = min((life.began or 0.0 for life in lives), default=0.0)
    ended = max((life.last for life in lives), default=0.0)
    scale = (WIDTH - 2 * MARGIN - NAMES) / max(ended - began, 1e-3)

    def x(at: float) -> float:
        return MARGIN + NAMES + (at - began) * scale

    rows: dict[tuple[str, str], list[Life]] = {}
    for life in lives:  # one that is started again, such as a replica in a rolling restart, goes on in its row
        rows.setdefault((life.source, life.server), []).append(life)
    top = 112.0
    parts = [
        f'<text class="title" x="{MARGIN}" y="40">{escape(_cut(title, WIDTH - 2 * MARGIN, 20))}</text>',
        f'<text class="soft" x="{MARGIN}" y="62">{clock(began)} to {clock(ended)}, {span(ended - began)}</text>',
        *_legend(84),
        *_axis(ended - began, lambda at: x(began + at), top, top + ROW * len(rows)),
    ]
    failures: list[str] = []
    for number, row in enumerate(rows.values()):
        parts += _named(row, top + ROW * number + ROW / 2)
        for life in row:
            parts += _bars(life, top + ROW * number + ROW / 2, x, failures)
    bottom = top + ROW * len(rows) + 48
    for told, failure in enumerate(failures[:MOST_FAILURES], 1):
        parts.append(f'<circle class="lost" cx="{MARGIN + 9}" cy="{bottom - 4:g}" r="8"/>')
        parts.append(f'<text class="num" x="{MARGIN + 9}" y="{bottom - 0.5:g}">{told}</text>')
        for line in wrap(failure, WIDTH - 2 * MARGIN - 30, 12):
            parts.append(f'<text x="{MARGIN + 28}" y="{bottom:g}">{escape(line)}</text>')
            bottom += 16
        bottom += 8
    if len(failures) > MOST_FAILURES:
        parts.append(f'<text class="soft" x="{MARGIN}" y="{bottom:g}">and {len(failures) - MOST_FAILURES} more</text>')
        bottom += 20
    above = 0 if title else 44
    height = bottom + 8 - above
    dark = f"@media (prefers-color-scheme: dark) {{{COLOURS.substitute(DARK)}  }}"
    style = f"{STYLE}{COLOURS.substitute(LIGHT)}  {dark}\n"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {above} {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}" role="img" aria-label="{escape(_spoken(lives))}">\n<style>{style}</style>\n'
        f'<rect class="paper" y="{above}" width="{WIDTH}" height="{height:g}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def shade_of(state: str) -> str:
    """The class that colours a state; of a chart that is not Stoker's own: as if it were at work."""
    return SHADES.get(state, "work")


def _spoken(lives: Sequence[Life]) -> str:
    return "; ".join(f"{life.server}: {life.state}, {len(life.failed)} failures" for life in lives)


def _legend(y: float) -> list[str]:
    parts, x = [], float(MARGIN)
    for shade, words in (*WORDS.items(), ("lost", "failure")):
        parts.append(f'<rect class="{shade}" x="{x:g}" y="{y - 9:g}" width="12" height="12" rx="3"/>')
        parts.append(f'<text class="small soft" x="{x + 17:g}" y="{y + 1:g}">{words}</text>')
        x += 36 + width(words, SMALL)
    return parts


def _axis(length: float, x: Place, top: float, bottom: float) -> list[str]:
    step = step_of(length)
    parts = []
    for number in range(int(length / step + 1e-6) + 1):
        place = x(number * step)
        parts.append(f'<line class="rule" x1="{place:g}" y1="{top - 4:g}" x2="{place:g}" y2="{bottom:g}"/>')
        label = tick(number * step, length)
        parts.append(f'<text class="small soft mid" x="{place:g}" y="{bottom + 14:g}">{label}</text>')
    return parts


def step_of(seconds: float) -> float:
    """A round distance between the ticks of an axis.

    >>> [step_of(each) for each in (0.5, 6, 100, 4000, 90000, 900000)]
    [0.1, 1, 20, 900, 21600, 172800]
    """
    small = [one * 10.0**power for power in range(-4, 1) for one in (1, 2, 5)]
    for step in (*small, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800):
        if seconds / step <= TICKS:
            return round(step, 4) if step < 1 else int(step)
    return int(seconds / TICKS) + 1


def tick(at: float, length: float) -> str:
    """A time on an axis of this length, in a unit that the whole axis has.

    >>> tick(90, 300), tick(0.5, 3), tick(0, 9000)
    ('1.5 min', '0.5 s', '0 h')
    """
    units = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 0.0))
    name, size = next((name, size) for name, size in units if length >= 2 * size)
    return f"{at / (size or 1):.4g} {name}"


def _named(row: Sequence[Life], middle: float) -> list[str]:
    name, end = _cut(row[0].server, NAMES - 12, 13), _cut(_end(row[-1]), NAMES - 12, SMALL)
    return [
        f'<text class="name" x="{MARGIN}" y="{middle - 1:g}">{escape(name)}</text>',
        f'<text class="small soft" x="{MARGIN}" y="{middle + 12:g}">{escape(end)}</text>',
    ]


def _bars(life: Life, middle: float, x: Place, failures: list[str]) -> list[str]:
    parts = []
    stretches = list(life.stretches)
    for stretch, until in zip(stretches, [*(each.began for each in stretches[1:]), life.last], strict=True):
        left, shade = x(stretch.began), shade_of(stretch.state)
        if stretch.state in FINAL:
            place = f'x="{left - 1.5:g}" y="{middle - 14:g}" width="3" height="28" rx="1.5"'
            parts.append(f'<rect class="{shade}" {place}/>')
            continue
        wide = max(LEAST, x(until) - left)
        told = f"{stretch.state}, {span(until - stretch.began)}"
        parts.append(
            f'<rect class="{shade}" x="{left:g}" y="{middle - BAR / 2:g}" width="{wide:g}" height="{BAR}" '
            f'rx="{min(4.0, wide / 2):g}"><title>{escape(told)}</title></rect>'
        )
        if width(stretch.state, SMALL) + 14 < wide and shade not in ("rest", "wait"):
            parts.append(f'<text class="in" x="{left + 7:g}" y="{middle + 4:g}">{escape(stretch.state)}</text>')
    for attempt in life.failed:
        at = x(attempt.began if attempt.found_at is None else attempt.found_at)
        found = attempt.found
        of = f"{life.server}, attempt {attempt.number}" if attempt.number else life.server
        failures.append(f"{of}: {found.get('summary', '')} [{found.get('cause', '')}]")
        if len(failures) <= MOST_FAILURES:
            parts.append(f'<circle class="paper" cx="{at:g}" cy="{middle:g}" r="10"/>')
            parts.append(f'<circle class="lost" cx="{at:g}" cy="{middle:g}" r="8"/>')
            parts.append(f'<text class="num" x="{at:g}" y="{middle + 3.5:g}">{len(failures)}</text>')
    return parts


def _end(life: Life) -> str:
    starts = max((attempt.number for attempt in life.attempts), default=0)
    return f"{life.state}, {starts} attempts" if starts > 1 else life.state


def _cut(text: str, room: float, size: float) -> str:
    most = int(room / width("x", size))
    return text if len(text) <= most else f"…{text[1 - most:]}"
