"""Engine flags on Stoker's own command line: all that comes after `--`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lifecycle.errors import ConfigError


def engine_args_of(words: Sequence[str]) -> dict[str, Any]:
    """`["--max-num-seqs", "64", "--enforce-eager"]` as `engine_args`: `{"max-num-seqs": "64", "enforce-eager": True}`.

    A flag without a value is True, one with several has a list; `--flag=value` is the same as two words. A flag that
    occurs twice keeps both values. Raises `ConfigError` for a word that belongs to no flag.

    >>> engine_args_of(["--lora", "a", "b", "-O3"])
    {'lora': ['a', 'b'], '-O3': True}
    """
    found: dict[str, Any] = {}
    flag = ""
    for word in words:
        if _is_flag(word):
            flag, equals, value = word.partition("=")
            flag = flag.removeprefix("--")
            if equals:
                _add(found, flag, value)
            else:
                found.setdefault(flag, True)
        elif flag:
            _add(found, flag, word)
        else:
            raise ConfigError(f"{word!r} after -- belongs to no flag; what comes there is given to the engine")
    return found


def _is_flag(word: str) -> bool:
    """A word that begins with a dash and is no negative number."""
    if not word.startswith("-") or word == "-":
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _add(found: dict[str, Any], flag: str, value: str) -> None:
    before = found.get(flag, True)
    if before is True:
        found[flag] = value
    elif isinstance(before, list):
        before.append(value)
    else:
        found[flag] = [before, value]
