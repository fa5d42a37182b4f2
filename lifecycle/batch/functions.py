"""A user's own function for records, found by name."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from lifecycle.errors import ConfigError

Rollout = Callable[..., Awaitable[Any]]
"""`async def rollout(record, generate, **context)`: record is a mapping, generate a `Generate`; what it returns, which
JSON must be able to hold, becomes the record's result."""


def find(setting: str, spec: str) -> Any:
    """What `module:name` or `path/to/file.py:name` means. Modules are looked for in the present folder first.

    Raises `ConfigError` that says which part is wrong, and why.
    """
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise ConfigError(f"{setting} = {spec!r} is not module:name or path/to/file.py:name")
    module = _module(setting, spec, place)
    found = module
    for step in name.split("."):
        try:
            found = getattr(found, step)
        except AttributeError:
            near = get_close_matches(step, dir(found), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{setting} = {spec!r}: {place} has no {step!r}{hint}") from None
    return found


def _module(setting: str, spec: str, place: str) -> ModuleType:
    try:
        if place.endswith(".py"):
            return _from_file(Path(place))
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        return import_module(place)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise ConfigError(
            f"{setting} = {spec!r}: {place} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def find_rollout(spec: str) -> Rollout:
    """The function of `JobConfig.rollout`. Raises `ConfigError`."""
    found = find("rollout", spec)
    if not callable(found):
        raise ConfigError(f"rollout = {spec!r} is {type(found).__name__}, not a function")
    rollout: Rollout = found
    return rollout


@asynccontextmanager
async def opened(context: Any) -> AsyncIterator[Mapping[str, Any]]:
    """What rollout functions are given by keyword, for as long as the job lasts.

    `context` is a mapping, a context manager (of either kind) that gives one, or a function that returns one of these.
    Raises `ConfigError` if what comes of it is no mapping.
    """
    value = context() if callable(context) and not isinstance(context, Mapping) else context
    if hasattr(value, "__aenter__"):
        async with value as entered:
            yield _mapping(entered)
    elif hasattr(value, "__enter__"):
        with value as entered:
            yield _mapping(entered)
    else:
        yield _mapping(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"context gives {value!r:.200}; a mapping of names to objects is needed")
    return value
