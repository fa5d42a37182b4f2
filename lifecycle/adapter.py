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

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lifecycle.diagnosis import COMMON_RULES, Rule
from lifecycle.errors import ConfigError, nearest

if TYPE_CHECKING:
    from lifecycle.config import ServerConfig


PRIVATE = "{tmpdir}"
"""Stands for the server's private TMPDIR, which is known only when it starts, in words that name `Command.files`."""


@dataclass(frozen=True)
class Command:
    """A command line that starts a server in the foreground."""

    argv: tuple[str, ...]
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Variables added to those that Stoker itself was started with; None takes one away. Keys go here, never into
    argv."""
    cwd: Path | None = None
    longest_tmpdir: int = 70
    """Bytes that the path of the server's private TMPDIR may have at most: engines make UNIX sockets of 37 characters
    more in it, and the kernel allows 107 in all. A word of `argv` names the folder itself by `PRIVATE`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of files, by name, that only this user may read: written into the server's private TMPDIR before it starts
    and removed after its end. For a key that an engine takes from a file only. A word of `argv` names one by its path,
    `f"{PRIVATE}/name"`."""


@dataclass(frozen=True)
class Phase:
    """Where a start has got to, as the engine's log tells it: a name, and progress where there is some (3 of 8)."""

    name: str
    done: int | None = None
    total: int | None = None
    unit: str = ""
    """What `done` and `total` count, if people want it said: "bytes" of a download."""


@dataclass(frozen=True)
class EngineLoad:
    """What an engine says of its own work."""

    running: int
    """Requests that it works on now, whoever sent them."""
    waiting: int
    """Requests in its queue."""
    progress: tuple[float, ...]
    """Counters that move whenever the engine's loop does: while requests run and these stand still, it is stuck."""
    answered: float | None = None
    """Requests that it has answered since it began; None: it does not say, as with those below."""
    tokens: float | None = None
    """Tokens that it has generated."""
    seconds: float | None = None
    """How long the requests that it has answered took, all together."""


@dataclass(frozen=True)
class CompileCache:
    """A compile cache that one start builds while others wait."""

    key: str
    """Names all that the compiled code depends on, for people: two starts with the same key build the same cache."""
    root: Path | None = None
    """Folder of one engine's caches, on any disk that its users share. None: the cache lies where Stoker does not know,
    and only the lock and the mark are kept, in the state folder."""
    locked: bool = True
    """False: another part of the same server builds it at the same time, and has the lock. Waiting for that part, which
    waits for this one, would last for ever."""

    @property
    def digest(self) -> str:
        """A short name for the key, for folders."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    def entry(self, state_dir: Path) -> Path:
        """The folder of the lock and the mark."""
        return (self.root or state_dir / "compile") / self.digest

    @property
    def files(self) -> Path | None:
        """The folder that the engine's cache variables point into; None without a root."""
        return self.root / self.digest / "files" if self.root else None


@dataclass(frozen=True)
class Prepared:
    """What a backend found out before a start."""

    cache: CompileCache | None = None
    """None: this start compiles nothing that others would wait for."""
    engine: Any = None
    """The backend's own facts, handed back to it in `Launch`."""


class Ask(Protocol):
    """Runs a short process: how a backend asks an installed engine something."""

    async def __call__(self, argv: Sequence[str], *, env: Mapping[str, str] = ..., timeout: float = ...) -> str:
        """Its standard output. Raises `LaunchError` if it cannot be run, fails, or takes longer than `timeout` s."""
        ...


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
    prepared: Prepared = Prepared()
    """What `prepare` found; empty for a backend that has none."""


@dataclass(frozen=True)
class NoOptions:
    """The options of a backend that has none of its own."""


Post = tuple[str, Mapping[str, Any]]
"""A path, and what to POST there."""


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
    derived_ports: tuple[int, ...] = ()
    """Distances from the HTTP port of further ports that the engine opens and that have no flag: held as well."""
    settings: frozenset[str] = frozenset()
    """Which of `lifecycle.config.MODEL_SETTINGS` the backend turns into flags. The others are refused."""
    probed: bool = True
    """It can be asked whether it is ready: by HTTP, or as the adapter's own `ready` asks. False: a part of a larger
    server that nobody can ask; it counts as Healthy as soon as its process runs, and only its process is watched."""
    ready_paths: tuple[str, ...] = ("/health", "/v1/models")
    """Asked in this order; the first that is not 404 decides. A path that means 'can serve', not 'is listed'."""
    liveness_path: str | None = None
    """A cheap path to ask while Healthy. None: the ready path that was used."""
    reports_model: bool = True
    """`/v1/models` names the model: it must be exactly ours (or, with no model configured, it tells us the name)."""
    generates: bool = True
    """One one-token generation is the last gate before Healthy."""
    load_path: str | None = None
    """Where the engine tells of its own work; the adapter's `load` reads it. None: it does not."""
    abort: Post | None = None
    """Ends what is still in flight when a drain has used up its time."""
    sleep: Post | None = None
    """Makes the engine give its memory back, weights too, and keep its process. None: it cannot."""
    wake: Post | None = None
    """Undoes `sleep`."""
    longest_grace: float = inf
    """Seconds from SIGTERM to SIGKILL that make sense at most: few for a part that ignores SIGTERM and has nothing of
    its own to finish."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings whose default differs for this backend, e.g. a shorter `startup_timeout`."""


@runtime_checkable
class Adapter(Protocol):
    """A backend. May also have

    - `check(config) -> None`: raises `ConfigError` before anything is started;
    - `capabilities_for(config) -> Capabilities`: if facts depend on settings (`local` and `defaults` cannot);
    - `async prepare(config, ask) -> Prepared`: what must be known before a start and takes time to find out: the
      installed engine, the flags it takes, the name of the compile cache that a start builds. Called before each
      attempt; raises `ConfigError`, and then nothing is started and nothing tried again;
    - `async inspect(config, ask) -> tuple[Check, ...]`: further rows of `stoker check` (`lifecycle.preflight`), such as
      what is known of this version of the engine;
    - `async ready(launch, ask) -> str`: asks a server that does not speak HTTP whether it is ready, or still well: what
      it lacks, in words, or nothing. Takes the place of every HTTP probe; each of `Capabilities.ready_paths` then only
      names the question, and `generates` and `reports_model` are False. May raise `LaunchError`: no answer;
    - `load(body) -> EngineLoad | None`: reads what `Capabilities.load_path` answers (its JSON value or its text);
    - `adopts: Mapping[str, str]`: flags of its own, without dashes, that say what a setting says: in `engine_args` they
      are taken for the setting;
    - `rules: tuple[Rule, ...]`: its own known failures, see `lifecycle.diagnosis`;
    - `quotes: tuple[str, ...]`: patterns of log lines that carry users' texts, on which no rule is tried.
    """

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


def quotes_of(adapter: Adapter) -> tuple[str, ...]:
    """Patterns of the log lines that carry users' texts."""
    quotes: tuple[str, ...] = getattr(adapter, "quotes", ())
    return quotes


async def prepared_by(adapter: Adapter, config: ServerConfig, ask: Ask) -> Prepared:
    """What the adapter finds out before a start of `config`; nothing if it has nothing to find out."""
    prepare = getattr(adapter, "prepare", None)
    return await prepare(config, ask) if prepare else Prepared()


def asks_itself(adapter: Adapter) -> bool:
    """Whether an adapter has a question of its own, in the place of HTTP probes."""
    return hasattr(adapter, "ready")


async def ready_of(adapter: Adapter, launch: Launch, ask: Ask) -> str:
    """What a server that does not speak HTTP lacks to be ready; nothing if it is."""
    missing: str = await adapter.ready(launch, ask)  # type: ignore[attr-defined]
    return missing


def load_of(adapter: Adapter, body: Any) -> EngineLoad | None:
    """What an answer of the load path says, or None if it says nothing that the adapter knows."""
    read = getattr(adapter, "load", None)
    load: EngineLoad | None = read(body) if read else None
    return load


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
