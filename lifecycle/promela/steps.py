"""Protocols between processes as tables of steps: written as Promela, and followed step by step in Python. No I/O.

A program is a list of steps, each one call of the operating system that cannot be interrupted. Guards and effects are
written in the part of Python that is also Promela but for `and`, `or`, `not`, `True` and `False`; both readings come
from this one text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from lifecycle.promela.claims import Claim

WORDS = {"and": "&&", "or": "||", "not": "!", "True": "true", "False": "false"}
OVER = "over"
"""Where a program ends."""


@dataclass(frozen=True)
class Branch:
    """One way in which a call can come out."""

    when: str
    """Guard: an expression over the world and `me`, this process's number, from 1."""
    does: tuple[str, ...] = ()
    """Assignments, in this order."""
    goto: str = ""
    """The step after it; empty: the next in the list."""


@dataclass(frozen=True)
class Step:
    """One call. Whichever branch's guard holds may be taken; one must."""

    name: str
    call: str
    """What a tracer of the real program calls it; empty: not a call, but a decision of the program or its engine."""
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class Protocol:
    """Programs that share a world.

    Args:
        world: names and first values; a list is an array, which is read and written at [0] where there is nobody.
        programs: of each process, from 1.
        dies: what the kernel does when a process is killed.
        macros: names that formulas and guards use, and what they mean, in Promela.
        claims: see `lifecycle.promela.claims`; `dead[n]`, `at[n] == step` and `ended` may be used.
        immortal: processes that are never killed.
    """

    name: str
    world: Mapping[str, int | list[int]]
    programs: tuple[tuple[Step, ...], ...]
    dies: tuple[str, ...]
    claims: tuple[Claim, ...]
    macros: Mapping[str, str] = field(default_factory=dict)
    immortal: frozenset[int] = frozenset()

    def text(self) -> str:
        """The whole text for spin."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        count = len(self.programs)
        names = dict.fromkeys(step.name for program in self.programs for step in program)
        yield f"/* The protocol {self.name!r}. Written by `python -m lifecycle.promela {self.name}`. */"
        yield f"mtype = {{ {', '.join(names)}, {OVER} }}"
        yield f"mtype at[{count + 1}];\nbool dead[{count + 1}];"
        for name, first in self.world.items():
            yield f"byte {name}[{len(first)}];" if isinstance(first, list) else f"byte {name} = {first};"
        for name, meaning in self.macros.items():
            yield f"#define {name} ({_promela(meaning)})"
        ended = " && ".join(f"(dead[{n}] || at[{n}] == {OVER})" for n in range(1, count + 1))
        yield f"#define ended ({ended})"
        for number, program in enumerate(self.programs, 1):
            yield f"active proctype process_{number}() {{"
            yield from (f"#define me {number}", f"  at[me] = {program[0].name};")
            for position, step in enumerate(program):
                following = program[position + 1].name if position + 1 < len(program) else OVER
                told = f'printf("- {number}: {step.name}\\n");'
                yield f"to_{step.name}:\n  atomic {{ if\n  :: dead[me] -> goto to_{OVER}"
                for branch in step.branches:
                    does = "".join(f" {_promela(each)};" for each in branch.does)
                    goto = branch.goto or following
                    yield f"  :: !dead[me] && ({_promela(branch.when)}) -> {told}{does} at[me] = {goto}; goto to_{goto}"
                yield "  :: else -> assert(false)\n  fi }"
            yield f"to_{OVER}: skip\n#undef me\n}}"
        yield "active proctype killer() {\n  do\n  :: break"
        for number in sorted(set(range(1, count + 1)) - self.immortal):
            does = "".join(f" {_promela(each)};" for each in self.dies)
            told = f'printf("- {number}: killed\\n");'
            does = re.sub(r"\bme\b", str(number), does)
            yield f"  :: atomic {{ !dead[{number}] && at[{number}] != {OVER} -> dead[{number}] = true; {told}{does} }}"
        yield "  od\n}"
        for claim in self.claims:
            yield f"/* {claim.meaning} */\nltl {claim.name} {{ {claim.formula} }}"


@dataclass(frozen=True)
class Now:
    """One state of a protocol that is followed in Python."""

    at: tuple[str, ...]
    world: tuple[tuple[str, int | tuple[int, ...]], ...]
    dead: frozenset[int] = frozenset()

    def value(self, name: str) -> int | tuple[int, ...]:
        return dict(self.world)[name]


def begin(protocol: Protocol) -> Now:
    at = ("", *(program[0].name for program in protocol.programs))
    return Now(at, _frozen(protocol.world))


def killed(protocol: Protocol, now: Now, me: int) -> Now:
    """After `kill -9` of a process."""
    scope = _scope(now, me)
    for each in protocol.dies:
        exec(each, {}, scope)
    return Now(now.at, _kept(protocol, scope), now.dead | {me})


def after(protocol: Protocol, now: Now, me: int) -> Iterator[tuple[str, Now]]:
    """Each way in which a process can go on: the call that it makes, and the state after it."""
    program = protocol.programs[me - 1]
    position = next((n for n, step in enumerate(program) if step.name == now.at[me]), None)
    if position is None or me in now.dead:
        return
    step = program[position]
    following = program[position + 1].name if position + 1 < len(program) else OVER
    for branch in step.branches:
        scope = _scope(now, me)
        if eval(branch.when, {}, scope):
            for each in branch.does:
                exec(each, {}, scope)
            at = (*now.at[:me], branch.goto or following, *now.at[me + 1 :])
            yield step.call, Now(at, _kept(protocol, scope), now.dead)


def pairs(count: int, formula: str) -> str:
    """A formula about the processes `a` and `b`, of each two out of `count`."""
    both = combinations(range(1, count + 1), 2)
    return " && ".join(formula.replace("[a]", f"[{a}]").replace("[b]", f"[{b}]") for a, b in both)


def _promela(text: str) -> str:
    return re.sub(r"\b(and|or|not|True|False)\b", lambda found: WORDS[found[1]], text)


def _scope(now: Now, me: int) -> dict[str, Any]:
    scope: dict[str, Any] = {name: list(v) if isinstance(v, tuple) else v for name, v in now.world}
    number = len(now.at)
    return {**scope, "me": me, "dead": [n in now.dead for n in range(number)]}


def _kept(protocol: Protocol, scope: Mapping[str, Any]) -> tuple[tuple[str, int | tuple[int, ...]], ...]:
    return _frozen({name: scope[name] for name in protocol.world})


def _frozen(world: Mapping[str, int | list[int]]) -> tuple[tuple[str, int | tuple[int, ...]], ...]:
    return tuple((name, tuple(map(int, v)) if isinstance(v, list) else int(v)) for name, v in world.items())
