"""Engine flags from `engine_args`, the same way for every backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from backends.options import FLAG, Options
from lifecycle.errors import ConfigError

SECRET_FLAGS = frozenset({"api-key", "hf-token", "admin-api-key", "token"})
"""Flags whose value would be seen by every user of the machine in `ps`."""


def flags(
    engine_args: Mapping[str, Any], *, ours: Mapping[str, str] | None = None, options: Options | None = None
) -> list[str]:
    """Turn `{"ctx-size": 4096, "no-webui": True, "lora": ["a", "b"]}` into words of a command line.

    True is a bare flag, None leaves the flag out. False is what the engine has for it (`--no-x`), where its options are
    known and it has something, and else leaves the flag out. A list becomes several values of one flag, or the flag
    several times, as the engine takes it; a table becomes JSON, and `a.b` is `b` in the table of `a`.

    Args:
        engine_args: flags by name, with or without leading dashes; `_` and `-` are the same.
        ours: flags that Stoker sets itself, each with the setting that it comes from.
        options: what the installed engine takes, if that is known.

    Raises `ConfigError` for a flag that Stoker sets itself and for one that would show a key in `ps`.
    """
    whole: dict[str, Any] = {}
    for key, value in engine_args.items():
        name, *inner = key.split(".")
        flag = named(name, ours or {})
        whole[flag] = _within(whole.get(flag), inner, value, key) if inner else value
    return [word for flag, value in whole.items() for word in _words(flag, value, options)]


def _within(table: Any, inner: Sequence[str], value: Any, key: str) -> dict[str, Any]:
    """`table` with `value` at `inner`: a flag of parts, `compilation-config.mode`, is one flag with a table."""
    if table is not None and not isinstance(table, Mapping):
        raise ConfigError(f"engine_args sets {key!r} inside a flag that it also sets as a whole: {table!r}")
    first, *rest = inner
    old = dict(table or {})
    return {**old, first: _within(old.get(first), rest, value, key) if rest else value}


def named(key: str, ours: Mapping[str, str]) -> str:
    """A flag with its dashes. Raises `ConfigError` as `flags` does."""
    short = len(key.lstrip("-")) == 1 or key.startswith("-") != key.startswith("--")
    dashes, name = "-" if short else "--", key.lstrip("-").replace("_", "-")
    if not name:
        raise ConfigError(f"engine_args has a flag without a name: {key!r}")
    if name in ours:
        raise ConfigError(f"engine_args sets {name!r}, which Stoker sets itself: use {ours[name]}")
    if name in SECRET_FLAGS:
        raise ConfigError(
            f"engine_args sets {name!r}, which every user of the machine could read in ps: "
            "name the key with api_key_env or api_key_file, or set the engine's own variable in env"
        )
    return dashes + name


def _words(flag: str, value: Any, options: Options | None) -> Iterator[str]:
    option = options.find(flag) if options else None
    if value is None:
        return
    if isinstance(value, bool) and (option is None or option.kind == FLAG):
        negation = option.negation(flag) if option else None
        if value or negation:
            yield flag if value else negation or flag
        return
    if isinstance(value, list | tuple):
        if option is not None and option.many:
            yield from (flag, *map(text, value))
            return
        if option is not None and not option.repeats:
            yield from given(flag, json(value))
            return
        for item in value:
            yield from _words(flag, item, options)
        return
    yield from given(flag, text(value))


def given(flag: str, value: str) -> tuple[str, ...]:
    """A flag with its value: in one word if the value looks like a flag itself."""
    return (f"{flag}={value}",) if value.startswith("-") else (flag, value)


def text(value: Any) -> str:
    """A value as an engine reads it: JSON for tables, lists and truth values, the plain text otherwise."""
    return json(value) if isinstance(value, Mapping | bool | list | tuple) or value is None else str(value)


def json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
