"""A view as a picture, drawn without help: states on one rail, transitions as lanes above (forward) and below (back),
what leads out of each state listed under it, and the spans as bars over the states that own them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from string import Template

from lifecycle.chart import Span
from lifecycle.diagram.ink import DARK, LIGHT, width, wrap
from lifecycle.diagram.view import Counts, Edge, View

COLUMN, NARROW, MARGIN = 172, 150, 28
"""Pixels for each state, with and without a card under it; pixels at the sides."""
PILL_W, PILL_H = 112, 44
LANE = 30
"""Pixels between two lanes."""
LINE = 14.5
"""Pixels between two lines of small text."""
SMALL = 11
BADGE = 9
BAR = 28
"""Pixels: the height of an activity's bar."""
STUB = 19
"""Pixels from a state to the badge of what leaves it: before the nearest lane."""
HEADING = 72
"""Pixels of the title and what it says of the numbers."""

SHAPES = """
  text { font-family: Inter, "Helvetica Neue", Helvetica, Arial, "Liberation Sans", sans-serif; }
  .title { font-size:22px; font-weight:600; } .sub { font-size:13px; } .small { font-size:11px; }
  .head { font-size:12px; font-weight:600; letter-spacing:.08em; } .guard { font-style:italic; }
  .state { font-size:16px; font-weight:600; text-anchor:middle; } .mono { font-size:12px; font-weight:600; }
  .num { font-size:10px; font-weight:700; text-anchor:middle; }
  .pill { stroke-width:2; } .edge { fill:none; stroke-width:2; } .pale { opacity:.22; }
  .edge.pale { stroke-dasharray:5 4; } .edge.w2 { stroke-width:3; } .edge.w3 { stroke-width:4; }
  .edge.w4 { stroke-width:5; } .gap { stroke-dasharray:3 4; fill:none; }"""
COLOURS = Template("""
  text { fill:$ink; } .sub, .head, .soft, .guard { fill:$soft; } .num, .paper { fill:$paper; }
  .card { fill:$card; stroke:$rule; } .rule { stroke:$rule; } .pill { fill:$card; }
  .bar { fill:$bar; stroke:$life; } .gap { stroke:$life; } .lit { fill:$bar; }
  .life { stroke:$life; } .end { stroke:$end; } .back { stroke:$back; } .stop { stroke:$stop; } .fail { stroke:$fail; }
  .f-life { fill:$life; } .f-end { fill:$end; } .f-back { fill:$back; } .f-stop { fill:$stop; } .f-fail { fill:$fail; }
""")
# Literal colours, no CSS variables: not every viewer knows those.
STYLE = f"{SHAPES}{COLOURS.substitute(LIGHT)}  @media (prefers-color-scheme: dark) {{{COLOURS.substitute(DARK)}  }}\n"


@dataclass(frozen=True)
class Lane:
    """One horizontal line, shared by every edge that leads to one state from one side."""

    dest: str
    above: bool
    edges: tuple[Edge, ...]
    level: int
    """0 is nearest to the rail."""


class Drawing:
    """The picture of one view."""

    def __init__(self, view: View, counts: Counts | None, *, details: bool = True, marked: bool = False) -> None:
        self.view = view
        self.details = details
        self.marked = marked
        """For a script: states and edges are named, and the page has the style and the heading."""
        self.column = COLUMN if details else NARROW
        self.counts = counts
        self.at = {state.name: index for index, state in enumerate(view.states)}
        self.final = {state.name for state in view.states if state.final}
        self.parts: list[str] = []
        self.badges: list[str] = []
        """Drawn last: no line may cross a number."""
        above, below = self._lanes(above=True), self._lanes(above=False)
        self.lanes = (*above, *below)
        self.rail = 100 + LANE * len(above) + PILL_H / 2
        self.width = 2 * MARGIN + self.column * len(view.states)
        self.below = self.rail + PILL_H / 2 + 34 + LANE * len(below)

    def x(self, state: str) -> float:
        return MARGIN + self.column * (self.at[state] + 0.5)

    def lane_y(self, lane: Lane) -> float:
        offset = PILL_H / 2 + 34 + LANE * lane.level
        return self.rail - offset if lane.above else self.rail + offset

    def _lanes(self, *, above: bool) -> tuple[Lane, ...]:
        """Edges that do not go to the next state on the rail, by destination; short ways lie nearest to the rail."""
        groups: dict[str, list[Edge]] = {}
        for edge in self.view.edges:
            step = self.at[edge.dest] - self.at[edge.source]
            if edge.internal or step in (0, 1):
                continue
            if (step > 0) is above:
                groups.setdefault(edge.dest, []).append(edge)
        reach = {dest: max(abs(self.at[e.dest] - self.at[e.source]) for e in edges) for dest, edges in groups.items()}
        ranked = sorted(groups, key=lambda dest: (reach[dest], self.at[dest]))
        return tuple(Lane(dest, above, tuple(groups[dest]), level) for level, dest in enumerate(ranked))

    def kind(self, edge: Edge) -> str:
        """The class that colours an edge: by where it leads."""
        if edge.dest in self.final:
            last = [state.name for state in self.view.states if state.final]
            return "fail" if len(last) > 1 and edge.dest == last[-1] else "stop"
        if edge.again or edge.internal:
            return "end"
        if self.at[edge.dest] < self.at[edge.source]:
            return "back"
        ends = {e.dest for e in self.view.edges if len([1 for o in self.view.edges if o.dest == e.dest]) > 3}
        return "end" if edge.dest in ends and self.at[edge.dest] - self.at[edge.source] >= 1 else "life"

    def draw(self) -> str:
        bottom = self.below
        if self.details:
            bottom = self._bars(self._cards(self.below + 18) + 34)
        self._rail()
        self._edges()
        self._pills()
        height = bottom + 24
        if self.marked:
            height -= 34 + HEADING
            head = f'<svg viewBox="0 {HEADING} {self.width:g} {height:g}" width="{self.width:g}">'
            return head + "".join([*self.parts, *self.badges]) + "</svg>"
        self._heading()
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {height:g}" width="{self.width:g}" '
            f'height="{height:g}" role="img" aria-label="{escape(self.view.title)}">\n<style>{STYLE}</style>\n'
        )
        paper = f'<rect class="paper" x="0" y="0" width="{self.width:g}" height="{height:g}"/>\n'
        return head + paper + "\n".join([*self.parts, *self.badges]) + "\n</svg>\n"

    def _mark(self, edges: Sequence[Edge]) -> str:
        return f' data-edges="{" ".join(str(edge.number) for edge in edges)}"' if self.marked else ""

    def add(self, text: str) -> None:
        self.parts.append(text)

    def text(self, x: float, y: float, words: str, kind: str) -> None:
        self.add(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>')

    def _heading(self) -> None:
        self.text(MARGIN, 40, self.view.title, "title")
        where = "under the state that it leaves" if self.details else "in the table of transitions"
        told = f"a number names a transition; it is spelt out {where}"
        if self.counts is not None:
            told = "a badge tells how often a transition was taken, and so does its width; broken lines were not"
        self.text(MARGIN, 60, told, "sub")

    def _rail(self) -> None:
        first = self.x(self.view.states[0].name)
        y = self.rail
        self.add(f'<circle class="f-life" cx="{first - PILL_W / 2 - 20:g}" cy="{y:g}" r="6"/>')
        self._arrow(f"M{first - PILL_W / 2 - 14:g} {y:g} H{first - PILL_W / 2 - 8:g}", "life", "")

    def _tone(self, *edges: Edge) -> str:
        """The class that tells how often these were taken: wider for each power of ten, pale for never."""
        if self.counts is None:
            return ""
        taken = sum(edge.taken(self.counts) for edge in edges)
        return f" w{min(4, len(str(taken)))}" if taken else " pale"

    def _badge(self, x: float, y: float, edges: Sequence[Edge], kind: str) -> None:
        """The numbers of these edges, or how often they were taken together."""
        label = ", ".join(str(edge.number) for edge in edges)
        if self.counts is not None:
            label = str(sum(edge.taken(self.counts) for edge in edges))
        width = max(2 * BADGE, 10 + 5.6 * len(label))
        pale, mark = self._tone(*edges), self._mark(edges)
        place = f'x="{x - width / 2:g}" y="{y - BADGE:g}" width="{width:g}" height="{2 * BADGE}" rx="{BADGE}"'
        self.badges.append(
            f'<rect class="paper"{mark} {place}/><g class="badge{pale}"{mark}><rect class="f-{kind}" {place}/>'
            f'<text class="num" x="{x:g}" y="{y + 3.5:g}">{label}</text></g>'
        )

    def _arrow(self, path: str, kind: str, pale: str, edges: Sequence[Edge] = ()) -> None:
        """A path with a head at its end, which must be a horizontal or vertical run."""
        self.add(f'<path class="edge {kind}{pale}"{self._mark(edges)} d="{path}"/>')

    def _head(self, x: float, y: float, direction: str, kind: str, pale: str, edges: Sequence[Edge]) -> None:
        points = {
            "right": (x, y, x - 9, y - 5, x - 9, y + 5),
            "down": (x, y, x - 5, y - 9, x + 5, y - 9),
            "up": (x, y, x - 5, y + 9, x + 5, y + 9),
        }[direction]
        shape = " ".join(f"{a:g},{b:g}" for a, b in zip(points[::2], points[1::2], strict=True))
        self.add(f'<polygon class="f-{kind}{pale}"{self._mark(edges)} points="{shape}"/>')

    def _edges(self) -> None:
        for lane in self.lanes:
            self._lane(lane)
        for (source, dest), edges in self._straights().items():
            left, right = self.x(source) + PILL_W / 2 + 2, self.x(dest) - PILL_W / 2 - 3
            gap = min(20.0, PILL_H / len(edges))
            for index, edge in enumerate(edges):
                y = self.rail + (index - (len(edges) - 1) / 2) * gap
                kind, pale = self.kind(edge), self._tone(edge)
                self._arrow(f"M{left:g} {y:g} H{right - 6:g}", kind, pale, [edge])
                self._head(right, y, "right", kind, pale, [edge])
                self._badge((left + right) / 2 - 3, y, [edge], kind)
        for state in self.view.states:
            loops = [edge for edge in self.view.edges_from(state.name) if edge.again]
            if loops:
                self._loop(state.name, loops)

    def _straights(self) -> dict[tuple[str, str], list[Edge]]:
        found: dict[tuple[str, str], list[Edge]] = {}
        for edge in self.view.edges:
            if not edge.internal and self.at[edge.dest] - self.at[edge.source] == 1:
                found.setdefault((edge.source, edge.dest), []).append(edge)
        return found

    def _loop(self, state: str, edges: Sequence[Edge]) -> None:
        """Re-entries: a small loop under the pill."""
        x = self.x(state) + PILL_W / 2 - 18
        y = self.rail + PILL_H / 2
        kind = self.kind(edges[0])
        pale = self._tone(*edges)
        self._arrow(f"M{x:g} {y:g} v12 a11 8 0 0 1 -22 0 v-6", kind, pale, edges)
        self._head(x - 22, y + 2, "up", kind, pale, edges)
        self._badge(x - 11, y + 20, edges, kind)

    def _lane(self, lane: Lane) -> None:
        y, sign = self.lane_y(lane), -1 if lane.above else 1
        edge_y = self.rail + sign * PILL_H / 2
        arrive = self._port(lane.dest, lane, arriving=True)
        kind = self.kind(lane.edges[0])
        pale = self._tone(*lane.edges)
        radius = 10
        by_source: dict[str, list[Edge]] = {}
        for edge in lane.edges:
            by_source.setdefault(edge.source, []).append(edge)
        for source, edges in by_source.items():
            x = self._port(source, lane, arriving=False)
            turn = radius if arrive > x else -radius
            own = self._tone(*edges)
            self._arrow(
                f"M{x:g} {edge_y + sign * 2:g} V{y - sign * radius:g} Q{x:g} {y:g} {x + turn:g} {y:g} "
                f"H{arrive - turn:g} Q{arrive:g} {y:g} {arrive:g} {y - sign * radius:g} V{edge_y + sign * 8:g}",
                kind,
                own,
                edges,
            )
            self._badge(x, edge_y + sign * STUB, edges, kind)
        self._head(arrive, edge_y + sign * 2, "down" if lane.above else "up", kind, pale, lane.edges)

    def _port(self, state: str, lane: Lane, *, arriving: bool) -> float:
        """Where a lane meets a pill: arrivals on the side that they come from, departures on the side that they go to,
        each lane at a place of its own so that no two lines lie on each other."""
        mine = [
            (each, True)
            for each in self.lanes
            if each.above is lane.above and each.dest == state
        ] + [
            (each, False)
            for each in self.lanes
            if each.above is lane.above and any(edge.source == state for edge in each.edges)
        ]  # fmt: skip
        forward = lane.above
        # From left to right: arrivals (far ones first), then departures (far ones first) for lanes that run rightwards.
        ranked = sorted(mine, key=lambda pair: (not pair[1], -pair[0].level))
        if not forward:
            ranked.reverse()
        index = next(i for i, pair in enumerate(ranked) if pair == (lane, arriving))
        return self.x(state) + (index - (len(ranked) - 1) / 2) * min(36.0, (PILL_W - 6) / len(ranked))

    def _pills(self) -> None:
        visited = self._visited()
        for state in self.view.states:
            x, y = self.x(state.name) - PILL_W / 2, self.rail - PILL_H / 2
            fails = [each.name for each in self.view.states if each.final][-1:] == [state.name] and len(self.final) > 1
            kind = ("fail" if fails else "stop") if state.final else "life"
            lit = " lit" if state.name in visited else ""
            pale = " pale" if self.counts is not None and not lit else ""
            if self.marked:
                self.add(f'<g data-state="{escape(state.name)}">')
            self.add(f'<rect class="pill {kind}{lit}" x="{x:g}" y="{y:g}" width="{PILL_W}" height="{PILL_H}" rx="12"/>')
            if state.final:
                self.add(
                    f'<rect class="edge {kind}" x="{x + 4:g}" y="{y + 4:g}" width="{PILL_W - 8}" '
                    f'height="{PILL_H - 8}" rx="9" stroke-width="1"/>'
                )
            self.text(self.x(state.name), self.rail + 5, state.name, f"state{pale}")
            if self.marked:
                self.add("</g>")

    def _visited(self) -> set[str]:
        if self.counts is None:
            return set()
        taken = [edge for edge in self.view.edges if edge.taken(self.counts)]
        return {self.view.states[0].name} | {edge.dest for edge in taken} | {edge.source for edge in taken}

    def _cards(self, top: float) -> float:
        """What each state means and what leads out of it. The lowest edge."""
        lowest = top
        for state in self.view.states:
            left, y = self.x(state.name) - COLUMN / 2 + 5, top + 6.0
            self.add(f'<rect class="card" x="{left:g}" y="{top:g}" width="{COLUMN - 10}" height="{{}}" rx="8"/>')
            card = len(self.parts) - 1
            for words in wrap(state.meaning, COLUMN - 32, SMALL):
                y += LINE
                self.text(left + 10, y, words, "small soft")
            for edge in self.view.edges_from(state.name):
                y += LINE / 2
                self._badge(left + 17, y + LINE - 4, [edge], self.kind(edge))
                for words, kind in _spelt_out(edge):
                    y += LINE
                    self.text(left + 32, y, words, kind + self._tone(edge))
            height = y + 12 - top
            self.parts[card] = self.parts[card].format(f"{height:g}")
            lowest = max(lowest, top + height)
        return lowest

    def _bars(self, top: float) -> float:
        """The spans: who is at work in which states. The lowest edge."""
        if not self.view.spans:
            return top - 20
        self.text(MARGIN, top, "ACTIVITIES: A BAR BEGINS AND ENDS WITH ITS STATES; THE LOWEST ENDS FIRST", "head")
        y = top + 14
        states = [state.name for state in self.view.states]
        bottom = y + len(self.view.spans) * (BAR + 6)
        for name in states[1:]:
            x = self.x(name) - COLUMN / 2
            self.add(f'<line class="rule" x1="{x:g}" y1="{y:g}" x2="{x:g}" y2="{bottom:g}"/>')
        for span in self.view.spans:
            runs = list(_runs([self.at[name] for name in states if name in span.states]))
            for first, last in runs:
                x = MARGIN + COLUMN * first + 6
                self.add(
                    f'<rect class="bar" x="{x:g}" y="{y:g}" width="{COLUMN * (last - first + 1) - 12:g}" '
                    f'height="{BAR}" rx="7"/>'
                )
            for (_, end), (begin, _) in pairwise(runs):
                middle = y + BAR / 2
                self.add(
                    f'<line class="gap" x1="{MARGIN + COLUMN * (end + 1) - 6:g}" y1="{middle:g}" '
                    f'x2="{MARGIN + COLUMN * begin + 6:g}" y2="{middle:g}"/>'
                )
            self._bar_text(span, runs, y + BAR / 2 + 4)
            y += BAR + 6
        return bottom

    def _bar_text(self, span: Span, runs: Sequence[tuple[int, int]], y: float) -> None:
        """The activity's name in its bar; what it may report and what bounds it in time beside it, in the bar if there
        is room, to the right of it if not."""
        x = MARGIN + COLUMN * runs[0][0] + 16
        self.text(x, y, span.activity, "mono")
        limits = f"bounded by {', '.join(span.deadlines)}" if span.deadlines else ""
        guards = f"if {', '.join(span.when)}" if span.when else ""
        told = " · ".join(kind.__name__ for kind in span.outcomes)
        note = "; ".join(part for part in (told, limits, guards) if part)
        inside = x + width(span.activity, 12) + 18
        fits = inside + width(note, SMALL) < MARGIN + COLUMN * (runs[0][1] + 1) - 16
        self.text(inside if fits else MARGIN + COLUMN * (runs[-1][1] + 1) + 4, y, note, "small soft")


def _spelt_out(edge: Edge) -> Iterable[tuple[str, str]]:
    """Lines of text and their classes: the events, where they lead, under which guards."""
    room = COLUMN - 54
    goes = "(stays)" if edge.internal else "(anew)" if edge.again else f"→\u00a0{edge.dest}"
    for words in wrap(f"{' · '.join(edge.events)} {goes}", room, SMALL):
        yield words, "small"
    for words in wrap(f"if {', '.join(edge.guards)}", room, SMALL) if edge.guards else ():
        yield words, "small guard"


def _runs(columns: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Consecutive numbers as (first, last)."""
    run: list[int] = []
    for column in sorted(columns):
        if run and column != run[-1] + 1:
            yield run[0], run[-1]
            run = []
        run.append(column)
    if run:
        yield run[0], run[-1]


def svg(view: View, counts: Counts | None = None) -> str:
    """The picture of a view; with `counts`, of what a run did."""
    return Drawing(view, counts).draw()


def overview(view: View, counts: Counts | None = None) -> str:
    """The states and the ways between them alone, large enough to be read in a narrow column."""
    return Drawing(view, counts, details=False).draw()


def marked(view: View) -> str:
    """The overview for a page whose script lights it up: `data-state` names each state, `data-edges` the numbers of the
    edges that a line, its head or its badge stands for. Without style and heading: the page has them."""
    return Drawing(view, None, details=False, marked=True).draw()
