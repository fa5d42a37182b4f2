"""A chart, its driver and its mailbox as Promela. No I/O.

The text says again, in another language, what `lifecycle.chart` and `lifecycle.driver` do: rows, guards, spans, ignored
and stale events. Only `reduce` is not said again: what it does to the guards is worked out before, see
`lifecycle.promela.classes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lifecycle.chart import NOT, Event, Row, Span
from lifecycle.promela.claims import Subject
from lifecycle.promela.classes import Classes, classes
from lifecycle.server_facts import Kill, Shutdown, Stop

DEPTH = 3
"""Letters that the mailbox holds: two of anybody's, and one of an activity that does its duty."""
ASKED = (Stop, Kill, Shutdown)
_CLEAR = "which = 0; next = 0; event = stale; sender = 0; again = false"


def promela(subject: Subject) -> str:
    """The whole text for spin: the chart that `subject` is about, and its claims."""
    return "\n".join(_Text(subject).lines()) + "\n"


class _Text:
    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._model = subject.model
        self._chart = subject.model.chart
        self._spans = self._chart.spans
        self._classes: Classes = classes(subject.model)

    def lines(self) -> Iterator[str]:
        yield from self._head()
        yield from self._facts()
        yield from self._driver()
        yield from self._world()
        yield from self._claims()

    def _head(self) -> Iterator[str]:
        chart = self._chart
        written = f"Written by `python -m lifecycle.promela {chart.name}`."
        yield f"/* The chart {chart.name!r}, its driver and its mailbox. {written}"
        yield ""
        yield "   driver      takes letters one by one, as lifecycle/driver.py does: ends activities, the innermost"
        yield "               first, enters the state, begins activities"
        yield "   activities  any activity that is open may report any of its outcomes at any time, or never"
        yield "   duty        what is bounded in time reports at some time"
        yield "   outside     stops, kills and the like at any time, and activities that raise; it may fall silent */"
        yield ""
        yield f"#ifndef DEPTH\n#define DEPTH {DEPTH}\n#endif"
        yield "#ifdef CLAIMS  /* assertions are checked in a search of their own */"
        yield "#define must(said) true\n#else\n#define must(said) assert(said)\n#endif"
        yield "#define NOBODY 255"
        yield "#define room (len(mailbox) < DEPTH - 1)"
        yield f"mtype:state = {{ {', '.join(state.name for state in chart.states)} }}"
        yield f"mtype:event = {{ stale, {', '.join(map(_event, self._events))} }}"
        for number, span in enumerate(self._spans):
            yield f"#define at_{span.activity} {number}"
        yield f"mtype:state state = {chart.initial}, entering = {chart.initial};"
        yield f"byte facts = {self._classes.first[0]};"
        yield f"bool open[{len(self._spans)}];"
        yield "bool asked, silent;"
        yield "chan mailbox = [DEPTH] of { mtype:event, byte };  /* the activity that sent it, or NOBODY */"
        yield f"#define final ({_either('state', sorted(chart.final))})"
        yield f"#define nothing_open ({' && '.join(f'!open[{n}]' for n in range(len(self._spans)))})"

    @property
    def _events(self) -> tuple[type[Event], ...]:
        model = self._model
        reported = (event for span in self._spans for event in span.outcomes)
        return tuple(dict.fromkeys((*self._chart.events, *model.outside, *model.anywhere, *reported)))

    def _facts(self) -> Iterator[str]:
        """Guards, and what each event does to their answers."""
        found = self._classes
        for number, name in enumerate(self._chart.guards):
            yes = [each for each, answers in enumerate(found.answers) if answers[number]]
            yield f"#define says_{name}(f) {_among('f', yes)}"
        yield "inline facts_after(event) {  /* into `next`; what no life comes across changes nothing */\n  if"
        for event in dict.fromkeys(row.event for row in self._chart.rows):
            by_target: dict[int | None, list[int]] = {}
            for each in range(len(found.answers)):
                for target in sorted(found.after.get((each, event), frozenset())):
                    by_target.setdefault(None if target == each else target, []).append(each)
            for goal, sources in by_target.items():
                if goal is not None or len(by_target) > 1:
                    then = "facts" if goal is None else goal
                    yield f"  :: event == {_event(event)} && {_among('facts', sources)} -> next = {then}"
        yield "  :: else -> next = facts\n  fi\n}"

    def _driver(self) -> Iterator[str]:
        yield "active proctype driver() {"
        yield "  mtype:event event, each;\n  byte sender, from, count, which, next;\n  bool again;"
        yield "  if"
        yield from (f"  :: facts = {number}" for number in self._classes.first)
        yield "  fi;"
        yield "end_rest:  /* nobody need ever come */"
        yield "  mailbox?event,sender; goto take;"
        yield "at_work:  /* to wait here for ever is a deadlock */"
        yield "  mailbox?event,sender;"
        yield "take:\n  atomic {\n    if\n    :: event == stale"
        yield '    :: else -> printf("- %e: %e\\n", state, event); facts_after(event);\n      if'
        for state in self._chart.states:
            yield from self._taken_in(state.name)
        yield f"      fi\n    fi;\nsettled:\n    {_CLEAR};\n    {self._wait}\n  }}"
        yield "leave:"
        yield "  atomic {\n    which = NOBODY;"
        for number, span in enumerate(self._spans):
            yield f"    if :: open[{number}] && {_leaves(span)} -> which = {number} :: else fi;"
        yield "    if"
        yield "    :: which != NOBODY ->  /* what it has reported and nobody has read is stale from now on */"
        yield "      open[which] = false;\n      count = len(mailbox);"
        yield "      do\n      :: count > 0 ->\n        mailbox?each,from; count--;"
        yield "        if :: from == which -> mailbox!stale,NOBODY :: else -> mailbox!each,from fi"
        yield "      :: else -> break\n      od"
        yield "    :: else\n    fi;"
        yield "    each = stale; from = 0"
        yield "  }"
        yield "  if :: which != NOBODY -> goto leave :: else fi;"
        yield "  atomic {\n    state = entering;"
        for number, span in enumerate(self._spans):
            when = "".join(f" && {_guard(literal, 'facts')}" for literal in span.when)
            begins = f"({_either('state', span.opens)}) && !open[{number}]{when}"
            yield f"    if :: {begins} -> open[{number}] = true :: else fi;"
        yield "    goto settled\n  }\n}"

    @property
    def _wait(self) -> str:
        return f"if :: state == {self._chart.initial} || final -> goto end_rest :: else -> goto at_work fi"

    def _taken_in(self, state: str) -> Iterator[str]:
        chart = self._chart
        yield f"      :: state == {state} ->"
        yield "      if"
        cells: dict[type[Event], list[Row]] = {}
        for row in chart.rows:
            if row.source == state:
                cells.setdefault(row.event, []).append(row)
        for event, rows in cells.items():
            yield f"      :: event == {_event(event)} ->"
            holding = [" && ".join(_guard(literal, "next") for literal in row.when) or "true" for row in rows]
            if holding != ["true"]:
                yield f"        must({' + '.join(f'({when})' for when in holding)} == 1);"
            yield "        if"
            for row, when in zip(rows, holding, strict=True):
                asked = " asked = true;" if event in ASKED else ""
                go = "goto settled" if row.dest is None else (
                    f"entering = {row.dest}; again = {str(row.dest == state).lower()}; goto leave"
                )  # fmt: skip
                yield f"        :: {when} ->{asked} facts = next; {go}"
            yield "        fi"
        ignored = [event for ignore in chart.ignores if state in ignore.states for event in ignore.events]
        if state in chart.final:
            yield "      :: else  /* late */"
        else:
            if ignored:
                yield f"      :: {_either('event', map(_event, ignored))}  /* ignored */"
            yield f"      :: else -> must({self._may_refuse()})"
        yield "      fi"

    def _may_refuse(self) -> str:
        """Nobody's activity is refused, and nor is what no state may ignore."""
        heard = "".join(f" && event != {_event(event)}" for event in self._chart.never_ignored)
        return f"sender == NOBODY{heard}"

    def _world(self) -> Iterator[str]:
        yield "active proctype activities() {\nend:\n  do"
        for number, span in enumerate(self._spans):
            for event in span.outcomes:
                yield f"  :: atomic {{ room && open[{number}] -> mailbox!{_event(event)},{number} }}"
        yield "#ifdef CLAIMS\n  :: silent = silent  /* or nobody reports anything */\n#endif\n  od\n}"
        yield "active proctype duty() {\nend:\n  do"
        for duty in self._subject.duties:
            number, span = next((n, span) for n, span in enumerate(self._spans) if span.activity == duty.activity)
            for event in (event for event in duty.events if event in span.outcomes):
                yield (
                    f"  :: atomic {{ len(mailbox) < DEPTH && state == {duty.state} && open[{number}] -> "
                    f"mailbox!{_event(event)},{number} }}"
                )
        yield "  od\n}"
        yield "active proctype outside() {\n  do"
        for event in self._model.outside:
            yield f"  :: atomic {{ room -> mailbox!{_event(event)},NOBODY }}"
        for event in self._model.anywhere:
            for number in range(len(self._spans)):
                yield f"  :: atomic {{ room && open[{number}] -> mailbox!{_event(event)},{number} }}"
        yield "  :: silent = true -> break\n  od\n}"

    def _claims(self) -> Iterator[str]:
        for claim in self._subject.claims:
            yield f"/* {claim.meaning} */"
            yield f"ltl {claim.name} {{ {claim.formula} }}"


def _event(event: type[Event]) -> str:
    return f"on_{event.__name__}"


def _guard(literal: str, facts: str) -> str:
    negated = literal.startswith(NOT)
    return f"{'!' if negated else ''}says_{literal.removeprefix(NOT)}({facts})"


def _leaves(span: Span) -> str:
    """Whether entering a state ends a span: one outside it, or again the only one that it has."""
    inside = _either("entering", sorted(span.states))
    return f"(!({inside}) || again)" if len(span.states) == 1 else f"!({inside})"


def _either(what: str, names: Iterable[str]) -> str:
    return " || ".join(f"{what} == {name}" for name in names) or "false"


def _among(what: str, numbers: list[int]) -> str:
    """That a number is one of these, in ranges."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    said = [f"{what} == {low}" if low == high else f"({low} <= {what} && {what} <= {high})" for low, high in ranges]
    return f"({' || '.join(said) or 'false'})"
