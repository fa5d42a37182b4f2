"""What a server does in Locking: find out whether its start builds a compile cache, and be the only one who does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from lifecycle.adapter import Adapter, Ask, Prepared, prepared_by
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.driver import Activity
from lifecycle.errors import ConfigError, LaunchError, StokerError
from lifecycle.findings import cannot_prepare, lock_overdue, of_holder
from lifecycle.host import ASK_TIMEOUT, NOTHING, CompileLock, Holder, Host
from lifecycle.server_facts import Facts, LockAcquired, LockFailed, LockSkipped

Act = Activity[Facts]


class Locking:
    """The activity `compile_lock` of one server, and what it found out.

    Args:
        must_start: returns once it is known that no server runs already that could be taken over.
    """

    def __init__(
        self, config: ServerConfig, adapter: Adapter, host: Host, must_start: Callable[[], Awaitable[None]]
    ) -> None:
        self._config = config
        self._adapter = adapter
        self._host = host
        self._must_start = must_start
        self.prepared = Prepared()

    async def compile_lock(self, act: Act) -> None:
        if act.facts.attaches:
            await self._must_start()
        try:
            self.prepared = await prepared_by(self._adapter, self._config, self._asking(act))
        except (ConfigError, LaunchError) as error:
            act.post(LockFailed(cannot_prepare(error)))
            return
        cache = self.prepared.cache
        if cache is None or not (cache.locked and act.facts.probed):
            act.post(LockSkipped("this start builds no compile cache, or builds it as a part of another"))
            return
        builder: Holder | None = None

        def waiting(holder: Holder | None) -> None:
            nonlocal builder
            builder = holder
            act.note(phase=f"waiting for {of_holder(holder)}, which builds the compile cache", key=cache.key)

        lock: CompileLock | None = None
        try:
            with anyio.move_on_after(self._config.compile_timeout) as limit:
                lock = await self._host.compile_lock(cache, waiting)
        except (StokerError, OSError) as error:
            found = Diagnosis("compile-lock", f"the compile lock of {cache.key!r}: {error}", Verdict.HOPELESS)
            act.post(LockFailed(found))
            return
        if lock is None:
            overdue = limit.cancelled_caught
            skipped = LockSkipped(f"the compile cache of {cache.key!r} is complete")
            act.post(LockFailed(lock_overdue(cache.key, of_holder(builder), self._config)) if overdue else skipped)
            return
        try:
            act.post(LockAcquired(cache.key))
            await anyio.sleep_forever()
        finally:
            try:
                if act.facts.healthy_since is not None:
                    lock.complete()
            finally:
                lock.release()

    def _asking(self, act: Act) -> Ask:
        async def ask(argv: Sequence[str], *, env: Mapping[str, str] = NOTHING, timeout: float = ASK_TIMEOUT) -> str:
            act.note(phase="asking the installed engine what it takes")
            return await self._host.ask(argv, env=env, timeout=timeout)

        return ask
