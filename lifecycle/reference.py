"""Every setting with its default and its meaning, read from the configuration classes themselves."""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from lifecycle.adapter import backends, load_adapter
from lifecycle.batch.config import JobConfig
from lifecycle.config import ServerConfig
from lifecycle.fleet.front_settings import FrontConfig
from lifecycle.fleet.settings import FleetConfig
from lifecycle.group.settings import GroupConfig
from lifecycle.operate.settings import OperateConfig
from lifecycle.ray.settings import RayConfig


@dataclass(frozen=True)
class Setting:
    """One field of a configuration class."""

    name: str
    kind: str
    default: Any
    meaning: str

    @property
    def shown(self) -> str:
        """The default as one writes it; empty if there is none, or if it says nothing."""
        if self.default is MISSING or self.default in (None, "", {}):
            return ""
        return str(self.default).lower() if isinstance(self.default, bool) else f"{self.default}"


def settings_of(kind: type[Any]) -> tuple[Setting, ...]:
    """The fields of a dataclass with the texts under them, in order."""
    told = dict(_texts(kind))
    found = []
    for field in fields(kind):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        found.append(Setting(field.name, str(field.type), default, told.get(field.name, "")))
    return tuple(found)


def _texts(kind: type[Any]) -> Iterator[tuple[str, str]]:
    """(field, the text under it) as the source has them."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError, SyntaxError):  # no source at hand
        return
    assert isinstance(body, ast.ClassDef)
    for line, below in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            yield line.target.id, " ".join(str(text).split())


def server_settings(backend: str | None = None) -> tuple[Setting, ...]:
    """What every server has; with a backend, with the defaults that it changes and its own options after them."""
    common = tuple(one for one in settings_of(ServerConfig) if one.name not in ("backend", "options"))
    if backend is None:
        return common
    adapter = load_adapter(backend)
    changed = adapter.capabilities.defaults
    common = tuple(Setting(one.name, one.kind, changed.get(one.name, one.default), one.meaning) for one in common)
    return common + settings_of(adapter.options)


def job_settings() -> tuple[Setting, ...]:
    """What a generate job has besides."""
    return tuple(one for one in settings_of(JobConfig) if one.name not in ("input", "output", "model"))


def page() -> str:
    """All of it in Markdown, for the backends that come with Stoker."""
    parts = [
        "# Settings",
        "Made by `make docs` from the code. A setting has one name everywhere: a field of `ServerConfig`, a key of a "
        "TOML file (`--config`), and `--set KEY=VALUE`. Times are seconds.",
        "## Every server",
        _table(server_settings()),
        "## `stoker generate`",
        _table(job_settings()),
        "## Several hosts (`--nodes`)",
        _table(settings_of(GroupConfig)),
        "## Several replicas",
        _table(settings_of(FleetConfig)),
        "## One URL before several replicas (`stoker serve --replicas`)",
        _table(settings_of(FrontConfig)),
        "## Replicas on a Ray cluster",
        _table(settings_of(RayConfig)),
        "## Metrics and hooks",
        _table(settings_of(OperateConfig)),
    ]
    for name in sorted(name for name, point in backends().items() if point.value.startswith("backends.")):
        adapter = load_adapter(name)
        parts.append(f"## Backend `{name}`")
        parts.append(_table(settings_of(adapter.options)) or "It has no settings of its own.")
        if adapter.capabilities.defaults:
            own = ", ".join(f"`{key} = {value}`" for key, value in adapter.capabilities.defaults.items())
            parts.append(f"Other defaults: {own}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(settings: tuple[Setting, ...]) -> str:
    rows = [f"| `{one.name}` | {one.shown and f'`{one.shown}`'} | {one.meaning} |" for one in settings]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows]) if rows else ""


def text(settings: tuple[Setting, ...], columns: int) -> str:
    """Settings for a terminal."""
    lines = []
    for one in settings:
        lines.append(f"{one.name} = {one.shown}".rstrip() if one.shown else f"{one.name}")
        lines += textwrap.wrap(one.meaning, columns, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the page of settings, or check that it is up to date.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check:
        same = args.path.exists() and args.path.read_text(encoding="utf-8") == page()
        print("" if same else f"{args.path} is not what the code says: run `make docs`", file=sys.stderr)
        return 0 if same else 1
    args.path.parent.mkdir(parents=True, exist_ok=True)
    args.path.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
