"""What an engine takes on its command line, as its own parser said, and whether it would take this command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from lifecycle.errors import UnknownFlag, nearest

FLAG, APPEND = "flag", "append"
NEGATIONS = (("--", "--no-"), ("--enable-", "--no-enable-"), ("--enable-", "--disable-"))
"""How engines write the opposite of a flag: argparse's own way first (`BooleanOptionalAction`), then the pairs that
vLLM has since 0.33."""


@dataclass(frozen=True)
class Option:
    """One option of an engine. The fields are those that `backends.parser_dump` prints."""

    names: tuple[str, ...]
    """With dashes; none for a positional argument."""
    dest: str
    kind: str = "store"
    """`flag`: takes no value; `append`: can be given several times; `store`."""
    nargs: int | str | None = None
    choices: tuple[str, ...] | None = None
    type: str = ""
    """Name of the function that reads the value."""

    @property
    def many(self) -> bool:
        """One flag, several values after it."""
        return self.nargs in ("+", "*") or (isinstance(self.nargs, int) and self.nargs > 1)

    @property
    def repeats(self) -> bool:
        """Several flags, one value after each."""
        return self.kind == APPEND

    def negation(self, flag: str) -> str | None:
        """The name of this option that means the opposite of `flag`; None if it has none."""
        for plain, opposite in NEGATIONS:
            for this, other in ((plain, opposite), (opposite, plain)):
                found = other + flag.removeprefix(this)
                if flag.startswith(this) and found != flag and found in self.names:
                    return found
        return None


@dataclass(frozen=True)
class Options:
    """All options of one version of an engine."""

    engine: str
    """Its name and version, for messages."""
    all: tuple[Option, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Option]:
        return {name: option for option in self.all for name in option.names}

    def find(self, flag: str) -> Option | None:
        """The option called `flag`, with its dashes; None if there is none of exactly that name."""
        return self.by_name.get(flag)

    def check(self, words: Sequence[str]) -> None:
        """Raises `UnknownFlag` if the engine would refuse this command line: for a flag that it does not have, naming
        the nearest that it has, for a value that cannot be, or one that is missing."""
        try:
            _, unknown = self._parser.parse_known_args(list(words))
        except _Refused as refusal:
            raise UnknownFlag(f"{self.engine} would not take the command line: {refusal}") from None
        for word in unknown:
            flag, _, _ = word.partition("=")
            if flag.startswith("-"):
                raise UnknownFlag(f"{self.engine} has no flag {flag}{nearest_flag(flag, self.by_name)}")
        if unknown:
            raise UnknownFlag(f"{self.engine} does not know what {unknown[0]!r} in the command line belongs to")

    @cached_property
    def _parser(self) -> argparse.ArgumentParser:
        parser = _Parser(add_help=False)
        for option in self.all:
            names = option.names or (option.dest,)
            place: dict[str, Any] = {"dest": option.dest} if option.names else {}
            if option.kind == FLAG:
                parser.add_argument(*names, dest=option.dest, action="store_true")
                continue
            read = READERS.get(option.type, str)
            parser.add_argument(
                *names,
                **place,
                action="append" if option.kind == APPEND else "store",
                # A positional argument may be missing here: what is required is the engine's own business.
                nargs=option.nargs if option.names else option.nargs or "?",
                type=read,
                choices=_choices(option, read),
            )
        return parser


def nearest_flag(flag: str, known: Mapping[str, Option]) -> str:
    """A hint that names the nearest known flag; nothing if none is near, for all of them would be no help."""
    for plain, opposite in (*OPPOSITES, *((no, yes) for yes, no in OPPOSITES)):
        other = opposite + flag.removeprefix(plain)
        if flag.startswith(plain) and other in known:
            return f"; it has {other}, which means the opposite"
    alike = {name for name in known if name[:3] == flag[:3] and name.startswith("--") == flag.startswith("--")}
    hint = nearest(flag, alike)
    return hint if "did you mean" in hint else ""


def _choices(option: Option, read: Callable[[str], Any]) -> list[Any] | None:
    if option.choices is None:
        return None
    try:
        return [read(choice) for choice in option.choices]
    except ValueError:
        return None


READERS: Mapping[str, Callable[[str], Any]] = {"int": int, "float": float, "loads": json.loads}
"""What reads values of types whose readers are known to accept no more than this; others take any text here."""


OPPOSITES = (("--enable-", "--disable-"), ("--", "--no-"))


class _Refused(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)
