"""What a backend brings: an `Adapter`. Small on purpose: a command line, a way to read its log, and facts as data.

An adapter starts nothing and waits for nothing. Everything that takes time is done by Stoker's activities, which ask
the adapter what to do. So an adapter is a few pure functions, and a stranger writes one in an afternoon:

    class MyEngine:
        name = "myengine"
        capabilities = Capabilities(ready_paths=("/health",))
        options = NoOptions

        def command(self, launch: Launch) -> Command:
            return Command(("myengine", "serve", launch.config.model, "--port", str(launch.port)))

        def phase(self, line: str) -> Phase | None:
            return Phase("loading") if "loading weights" in line else None

    adapter = MyEngine()

and names it in its `pyproject.toml`:

    [project.entry-points."stoker.backends"]
    myengine = "my_package:adapter"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lifecycle.diagnosis import COMMON_RULES, Rule
from lifecycle.errors import ConfigError, nearest

if TYPE_CHECKING:
    from lifecycle.config import ServerConfig


@dataclass(frozen=True)
class Command:
    """A command line that starts a server in the foreground."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables added to those that Stoker itself was started with. Keys go here, never into argv."""
    cwd: Path | None = None


@dataclass(frozen=True)
class Phase:
    """Where a start has got to, as the engine's log tells it: a name, and progress where there is some (3 of 8)."""

    name: str
    done: int | None = None
    total: int | None = None


@dataclass(frozen=True)
class Launch:
    """What an adapter is given to build its command line."""

    config: ServerConfig
    port: int
    """Where the server must listen, on `config.host`. Held until it does."""
    extra_ports: tuple[int, ...]
    """As many more as `Capabilities.extra_ports` asks for, held too."""
    attempt: int
    """1 for the first start of this server."""


@dataclass(frozen=True)
class NoOptions:
    """The options of a backend that has none of its own."""


@dataclass(frozen=True)
class Capabilities:
    """Facts about an engine that Stoker's activities and guards ask for."""

    local: bool = True
    """Stoker starts and ends a process. False: somebody else's server at a URL; no process, no port, no lock."""
    holds_port: bool = True
    """The engine binds with SO_REUSEADDR, so its port can be held until it listens. False: the hold is let go just
    before the start (a program that sets neither option fails with EADDRINUSE against a held port)."""
    extra_ports: int = 0
    """Ports that the engine opens besides its HTTP port and that have a flag or variable."""
    ready_paths: tuple[str, ...] = ("/health", "/v1/models")
    """Asked in this order; the first that is not 404 decides. A path that means 'can serve', not 'is listed'."""
    liveness_path: str | None = None
    """A cheap path to ask while Healthy. None: the ready path that was used."""
    reports_model: bool = True
    """`/v1/models` names the model: it must be exactly ours (or, with no model configured, it tells us the name)."""
    generates: bool = True
    """One one-token generation is the last gate before Healthy."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings whose default differs for this backend, e.g. a shorter `startup_timeout`."""


@runtime_checkable
class Adapter(Protocol):
    """A backend. May also have `rules: tuple[Rule, ...]` (its own known failures, see `lifecycle.diagnosis`),
    `compile_key(config) -> str | None` (names the compile cache that starts must not build at the same time),
    `check(config) -> None` (raises `ConfigError` before anything is started), and
    `capabilities_for(config) -> Capabilities` (if facts depend on settings; `local` and `defaults` cannot)."""

    name: str
    capabilities: Capabilities
    options: type[Any]
    """A frozen dataclass: the backend's own settings. Each is set like any other, by TOML or `--set`."""

    def command(self, launch: Launch) -> Command:
        """The command line for one attempt. Raises `ConfigError` if the configuration cannot be turned into one."""
        ...

    def phase(self, line: str) -> Phase | None:
        """What a log line says about progress, or None. A hint only: it never makes a server ready or ends it."""
        ...


def rules_of(adapter: Adapter) -> tuple[Rule, ...]:
    """The failures that an adapter knows of, its own first."""
    own: tuple[Rule, ...] = getattr(adapter, "rules", ())
    return (*own, *COMMON_RULES)


def capabilities_of(adapter: Adapter, config: ServerConfig) -> Capabilities:
    """The facts about an engine that is started with `config`."""
    ask = getattr(adapter, "capabilities_for", None)
    facts: Capabilities = ask(config) if ask else adapter.capabilities
    return facts


def compile_key_of(adapter: Adapter, config: ServerConfig) -> str | None:
    """The name of the compile cache that a start of `config` would build, or None if it builds none."""
    ask = getattr(adapter, "compile_key", None)
    key: str | None = ask(config) if ask else None
    return key


GROUP = "stoker.backends"
"""The entry point group in which backends are found."""


def backends() -> dict[str, Any]:
    """Every installed backend by name, not yet imported."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load_adapter(name: str) -> Adapter:
    """Import the backend called `name`. Raises `ConfigError`, with the nearest known name, if there is none."""
    known = backends()
    if name not in known:
        raise ConfigError(f"backend {name!r} is not installed{nearest(name, known)}")
    adapter = known[name].load()
    if not isinstance(adapter, Adapter):
        raise ConfigError(f"backend {name!r} ({known[name].value}) has no name, capabilities, options, command, phase")
    return adapter
