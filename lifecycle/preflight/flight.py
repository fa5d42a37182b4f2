"""All checks of one configuration, one after the other, each under a deadline; one that fails is a row as well."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
import psutil

from lifecycle.adapter import Adapter, Launch, Prepared, capabilities_of, prepared_by
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError, LaunchError, PortTaken, StokerError, UnknownFlag
from lifecycle.preflight import Check, Status, blocker, ok, warning
from lifecycle.preflight import judgements as judge
from lifecycle.preflight import model as models
from lifecycle.preflight.trial import locks_row, try_locks
from lifecycle.probing import Ready, WrongKey, WrongServer, readiness
from lifecycle.resources import cgroup, ports, weights
from lifecycle.resources.caches import default_root
from lifecycle.resources.gpus import VISIBLE, Gpu, chosen, everything
from lifecycle.resources.local import LocalHost, lease_dir, private
from lifecycle.resources.mounts import network_mount_of
from lifecycle.resources.process import LONGEST_TMPDIR, private_tmpdir
from lifecycle.resources.reap import leftovers
from lifecycle.secrets import api_key, known_secrets, mask

T = TypeVar("T")
DEADLINE = 15.0
"""Seconds for one check. A file system or a driver that hangs costs one row so long."""
ENGINE_DEADLINE = 330.0
"""Seconds for asking an engine: the first time it is imported, from a cold network disk that takes minutes."""
SIGHT = 0.01
"""Seconds between two looks at a thread."""

Rows = list[Check]


class Flight:
    """The checks of one configuration. `rows` fills as they are made."""

    def __init__(self, config: ServerConfig, adapter: Adapter, host: LocalHost) -> None:
        self.config = config
        self.adapter = adapter
        self.host = host
        self.rows: Rows = []
        self._environ: Mapping[str, str | None] = {**os.environ, **config.env}
        self._prepared: Prepared | None = None
        self._gpus: tuple[Gpu, ...] = ()
        self._weights: int | None = None
        self._to_fetch = 0
        self._numbers: tuple[int, ...] = ()

    @property
    def blocked(self) -> bool:
        """A start would fail."""
        return any(row.status is Status.BLOCKER for row in self.rows)

    async def fly(self, began: Callable[[str], None] = lambda name: None) -> Rows:
        """Make all the checks. `began` is told the name of each before it is made."""
        if self.adapter.capabilities.local:
            checks: tuple[tuple[str, Callable[[], Awaitable[Rows]], float], ...] = (
                ("settings", self._settings, DEADLINE + 300.0),  # a packaged model may have to be put together
                ("engine", self._engine, ENGINE_DEADLINE),
                ("inspection", self._inspection, ENGINE_DEADLINE),
                ("ports", self._ports, DEADLINE),
                ("command line", self._command, DEADLINE),
                ("model", self._model, DEADLINE),
                ("gpus", self._gpu_rows, DEADLINE),
                ("memory", self._memory, DEADLINE),
                ("state folder", self._state_folder, DEADLINE),
                ("cache folder", self._cache_folder, DEADLINE),
                ("disk", self._disk, DEADLINE),
                ("temporary folder", self._tmpdir, DEADLINE),
                ("open files", self._files, DEADLINE),
                ("proxies", self._proxies, DEADLINE),
                ("leftovers", self._leftovers, DEADLINE),
            )
        else:
            checks = (
                ("settings", self._settings, DEADLINE),
                ("endpoint", self._endpoint, DEADLINE),
                ("open files", self._files, DEADLINE),
                ("proxies", self._proxies, DEADLINE),
            )
        for name, check, deadline in checks:
            began(name)
            self.rows += await guarded(name, check, deadline)
        return self.rows

    async def _settings(self) -> Rows:
        own_check = getattr(self.adapter, "check", None)
        try:
            if own_check is not None:
                await in_thread(lambda: own_check(self.config))
            keyed = api_key(self.config) is not None
        except ConfigError as error:
            return [blocker("settings", str(error), "")]
        rows = [ok("settings", f"backend {self.config.backend!r} takes them")]
        if self.adapter.capabilities.local:
            rows.append(judge.exposure_row(self.config.host, keyed=keyed))
        return rows

    async def _engine(self) -> Rows:
        if not hasattr(self.adapter, "prepare"):
            return []
        try:
            self._prepared = await prepared_by(self.adapter, self.config, self.host.ask)
        except UnknownFlag as error:
            return [blocker("flags", str(error), "")]
        except (ConfigError, LaunchError) as error:
            return [blocker("engine", str(error), "")]
        if self._prepared.engine is None:
            return []
        return [ok("engine", described(self._prepared.engine)), ok("flags", "the engine's own parser takes them")]

    async def _inspection(self) -> Rows:
        inspect = getattr(self.adapter, "inspect", None)
        return list(await inspect(self.config, self.host.ask)) if inspect is not None else []

    async def _command(self) -> Rows:
        if self.blocked or not self._numbers:
            return []  # it could not be made; the rows above say why
        port, *extra = self._numbers
        launch = Launch(self.config, port, tuple(extra), 1, self._prepared or Prepared())
        try:
            command = await in_thread(lambda: self.adapter.command(launch))
        except ConfigError as error:
            return [blocker("command line", str(error), "")]
        program = await in_thread(lambda: shutil.which(command.argv[0], path=command.env.get("PATH")))
        said = mask(shlex.join(command.argv), known_secrets(api_key(self.config), os.environ))
        if program is None:
            return [blocker("command line", said, f"there is no program {command.argv[0]!r} that can be run")]
        return [ok("command line", said)]

    async def _model(self) -> Rows:
        name, environ = self.config.model, self._environ
        if not name:
            return []
        needs_files = "revision" in self.adapter.capabilities.settings
        here = await in_thread(lambda: weights.in_folder(name))
        is_path = weights.looks_like_path(name)
        if here is None and not is_path and not needs_files:
            return []  # a mere name, for all that is known
        hub, rows = None, []
        offline = models.is_offline(environ)
        if here is None and not is_path:
            here = await in_thread(lambda: weights.in_cache(name, self.config.revision, environ))
            hub = None if offline else await models.ask_hub(name, self.config.revision, environ)
            rows = [models.token_row(models.token_of(environ)[1])]
        if here is not None:
            self._weights = here.size or None
        elif hub is not None:
            self._weights, self._to_fetch = hub.size, hub.size or 0
        return [models.model_row(name, here, hub, needs_files=needs_files, offline=offline), *rows]

    async def _gpu_rows(self) -> Rows:
        uses = "tensor_parallel" in self.adapter.capabilities.settings
        config, visible = self.config, self._environ.get(VISIBLE)
        found = await in_thread(everything)
        self._gpus = chosen(visible, found)
        sharing = config.tensor_parallel * config.pipeline_parallel
        needed = sharing * config.data_parallel
        rows = [judge.gpus_row(self._gpus, needed, uses_gpus=uses, visible=visible, bindings=has_bindings())]
        memory = judge.gpu_memory_row(self._gpus, self._weights, sharing, needed) if uses else None
        return [*rows, memory] if memory is not None else rows

    async def _memory(self) -> Rows:
        def look() -> Rows:
            available, swap = psutil.virtual_memory().available, psutil.swap_memory().free
            limit, on_gpu = cgroup.memory_limit(), bool(self._gpus)
            rows = [judge.memory_row(available, swap, limit, self._weights, on_gpu=on_gpu)]
            ranks = self.config.tensor_parallel * self.config.pipeline_parallel * self.config.data_parallel
            shared = Path("/dev/shm")
            return [*rows, judge.shared_memory_row(free_in(shared) if shared.is_dir() else None, ranks)]

        return await in_thread(look)

    async def _ports(self) -> Rows:
        can, host, port = capabilities_of(self.adapter, self.config), self.config.host, self.config.port

        def look() -> Rows:
            try:
                held = ports.hold_ports(host, port, 1 + can.extra_ports, lease_dir(), can.derived_ports)
            except PortTaken as error:
                return [blocker("ports", str(error), "")]
            except OSError as error:
                return [blocker("ports", f"{host} cannot be bound: {error.strerror}", "set host to an address of ours")]
            numbers = self._numbers = held.numbers
            held.release()
            first = f"{port} is free" if port is not None else f"free ones can be held (tried: {numbers[0]})"
            more = f", and {len(numbers) - 1} more" if len(numbers) > 1 else ""
            return [ok("ports", f"{first}{more}")]

        return await in_thread(look)

    async def _state_folder(self) -> Rows:
        return await in_thread(lambda: folder_rows("state folder", "state_dir", self.host.state_dir))

    async def _cache_folder(self) -> Rows:
        cache = self._prepared.cache if self._prepared is not None else None
        if cache is None or cache.root is None:
            return []  # nothing of this start is kept there

        def look() -> Rows:
            folder = Path(self.config.cache_dir).expanduser() if self.config.cache_dir else default_root()
            return folder_rows("cache folder", "cache_dir", private(folder))

        return await in_thread(look)

    async def _disk(self) -> Rows:
        folder = weights.hub_cache(self._environ) if self._to_fetch else self.host.state_dir

        def look() -> Rows:
            free = free_in(folder)
            return [] if free is None else [judge.disk_row(free, self._to_fetch, str(folder))]

        return await in_thread(look)

    async def _tmpdir(self) -> Rows:
        try:
            path = await in_thread(private_tmpdir)
        except LaunchError as error:
            return [blocker("temporary folder", str(error), "set TMPDIR to a short path that can be written to")]
        return [judge.tmpdir_row(os.environ.get("TMPDIR") or "/tmp", path, LONGEST_TMPDIR)]

    async def _files(self) -> Rows:
        return [judge.files_row(*resource.getrlimit(resource.RLIMIT_NOFILE))]

    async def _proxies(self) -> Rows:
        local = self.adapter.capabilities.local
        return [judge.proxies_row(self._environ, self.config.host, local=local)]

    async def _leftovers(self) -> Rows:
        def look() -> Rows:
            found = leftovers(self.host.state_dir)
            files = sum(len(one.memory()) for one in found)
            return [judge.leftovers_row({one.label: len(one.processes()) for one in found}, files)]

        return await in_thread(look)

    async def _endpoint(self) -> Rows:
        if self.blocked:
            return []
        config = self.config
        can = replace(capabilities_of(self.adapter, config), generates=False)  # nobody asked for a token
        prober = self.host.prober(config.base_url, api_key(config))
        try:
            found = await readiness(prober, can, config)
        finally:
            await prober.aclose()
        match found:
            case Ready(model, path):
                return [ok("endpoint", f"{config.base_url} answers at {path}"), ok("model", f"it serves {model!r}")]
            case WrongKey(status):
                return [blocker("endpoint", f"it refuses our key (HTTP {status})", "see api_key_env and api_key_file")]
            case WrongServer(reason):
                return [blocker("endpoint", reason, "check base_url, model and served_name")]
            case _:
                return [blocker("endpoint", found.reason, "check that it runs and that base_url is right")]


async def guarded(name: str, check: Callable[[], Awaitable[Rows]], deadline: float) -> Rows:
    """A check's rows; one row that says so if it takes too long or raises."""
    try:
        with anyio.move_on_after(deadline):
            return list(await check())
    except (StokerError, OSError) as error:
        return [blocker(name, str(error), "")]
    except Exception as error:
        return [warning(name, f"could not be checked: {type(error).__name__}: {error}", "")]
    return [warning(name, f"could not be checked in {deadline:g} s", "a file system, a driver or a network hangs")]


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function that may block, in a thread that dies with the command: a file system that hangs must hang
    neither the row's deadline nor the end."""
    done: list[tuple[bool, Any]] = []

    def work() -> None:
        try:
            done.append((True, function()))
        except BaseException as error:
            done.append((False, error))

    threading.Thread(target=work, daemon=True).start()
    while not done:  # noqa: ASYNC110 - a thread is not an event
        await anyio.sleep(SIGHT)
    good, value = done[0]
    if not good:
        raise value
    result: T = value
    return result


def folder_rows(name: str, setting: str, folder: Path) -> Rows:
    """A folder for locks: its file system, and a trial of its locks."""
    network = network_mount_of(folder)
    return [locks_row(name, setting, folder, network, *try_locks(folder))]


def free_in(folder: Path) -> int | None:
    """Free bytes where a folder is or would be; None if nothing of its path is there."""
    there = next((place for place in (folder, *folder.parents) if place.is_dir()), None)
    return shutil.disk_usage(there).free if there is not None else None


def has_bindings() -> bool:
    """Whether NVML's Python bindings are installed."""
    from importlib.util import find_spec

    return find_spec("pynvml") is not None


def described(engine: Any) -> str:
    """A backend's own facts about its engine, in words, if they have such."""
    name, version = getattr(engine, "name", ""), getattr(engine, "version", "")
    torch, python = getattr(engine, "torch", ""), getattr(engine, "python", "")
    words = f"{name} {version}".strip() or "found"
    return words + (f", torch {torch}" if torch else "") + (f", in {python}" if python else "")
