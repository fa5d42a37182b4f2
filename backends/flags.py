"""Engine flags from `engine_args`, the same way for every backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lifecycle.errors import ConfigError

SECRET_FLAGS = frozenset({"api-key", "hf-token", "admin-api-key", "token"})
"""Flags whose value would be seen by every user of the machine in `ps`."""


def flags(engine_args: Mapping[str, Any], *, ours: Mapping[str, str] | None = None) -> list[str]:
    """Turn `{"ctx-size": 4096, "no-webui": True, "lora": ["a", "b"]}` into words of a command line.

    True is a bare flag, False and None leave the flag out, a list repeats it with each value.

    Args:
        engine_args: flags by name, with or without leading dashes; `_` and `-` are the same.
        ours: flags that Stoker sets itself, each with the setting that it comes from.

    Raises `ConfigError` for a flag that Stoker sets itself and for one that would show a key in `ps`.
    """
    words: list[str] = []
    for key, value in engine_args.items():
        dashes = "-" if len(key.lstrip("-")) == 1 else "--"
        name = key.lstrip("-").replace("_", "-")
        if not name:
            raise ConfigError(f"engine_args has a flag without a name: {key!r}")
        if name in (ours or {}):
            raise ConfigError(f"engine_args sets {name!r}, which Stoker sets itself: use {(ours or {})[name]}")
        if name in SECRET_FLAGS:
            raise ConfigError(
                f"engine_args sets {name!r}, which every user of the machine could read in ps: "
                "name the key with api_key_env or api_key_file, or set the engine's own variable in env"
            )
        for item in value if isinstance(value, list | tuple) else [value]:
            if item is True:
                words.append(dashes + name)
            elif item is not False and item is not None:
                words += [dashes + name, str(item)]
    return words
