"""One attempt: its process, what the machine was like before it, and why it failed."""

from __future__ import annotations

import os

import anyio

from lifecycle.adapter import Adapter, Command, Launch, asks_itself, capabilities_of, quotes_of, rules_of
from lifecycle.asked import Asked
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis, Exit, diagnose
from lifecycle.findings import MEMORY_CAUSES, died_serving, foreign_listener, hub_unreachable, memory_held
from lifecycle.host import DeviceMemory, Host, Prober, Process
from lifecycle.server_facts import Facts

LINES_FOR_DIAGNOSIS = 5000
"""Log lines searched for a known cause: it may be in the middle of a traceback of 200 lines, and a parent that waits
for a dead engine may have said so a thousand times since."""


class Attempt:
    """What the activities of one server share about its present process."""

    def __init__(self, config: ServerConfig, adapter: Adapter, host: Host) -> None:
        self.config = config
        self.adapter = adapter
        self.host = host
        self.process: Process | None = None
        self._launch: Launch | None = None
        self._longest_grace = capabilities_of(adapter, config).longest_grace
        self._memory: DeviceMemory | None = None
        self._oom_kills: int | None = None

    def command(self, launch: Launch) -> Command:
        """What starts it. Raises `ConfigError`."""
        self._launch = launch
        return self.adapter.command(launch)

    def prober(self, url: str, api_key: str | None) -> Prober:
        """What asks it questions: by HTTP, or as its adapter does."""
        prober = self.host.prober(url, api_key)
        if self._launch is None or not asks_itself(self.adapter):
            return prober
        return Asked(self.adapter, self._launch, self.host, prober)

    def about_to_begin(self) -> None:
        """Note what the machine is like before a process is started."""
        self._memory, self._oom_kills = self.host.device_memory(self.config.env), self.host.oom_kills()

    async def memory_is_back(self) -> bool:
        """Wait, for `memory_timeout` at most, until the GPUs hold no more than before the process was started."""
        memory, self._memory = self._memory, None
        return memory is None or await memory.back(self.config.memory_timeout)

    async def end(self, grace: float) -> None:
        """End the tree and see it gone. Shielded in cleanups only; in `wind_down` a `Kill` must be able to cut it."""
        process = self.process
        if process is None:
            return
        if grace > 0:
            await process.end(min(grace, self._longest_grace))
        else:
            with anyio.CancelScope(shield=True):
                await process.end(0)
        if self.process is process:
            self.process = None

    def stranger(self, facts: Facts, *, named: bool = False) -> Diagnosis | None:
        """A diagnosis if whoever listens on our port is not (only) a process of ours.

        `named`: only a stranger whose pid is known counts, so that a server of ours that has just gone is not one.
        """
        if self.process is None or facts.port is None:
            return None
        strangers = self.host.strangers(self.config.host, facts.port, self.process.pids())
        if strangers is None or (named and not strangers):
            return None
        return foreign_listener(self.config.label, facts.port, strangers, fixed=self.config.port is not None)

    def why_exited(self, exit: Exit, facts: Facts) -> Diagnosis:
        """Why a main process ended that nobody had asked to."""
        if facts.stopping:
            return Diagnosis("exited", f"server {self.config.label!r} {exit.text()} while it was being ended")
        when = "while it was healthy" if facts.has_served else "before it was ready"
        when = when if facts.probed else "although nobody had asked it to"
        found = self.diagnose("exited", f"server {self.config.label!r} {exit.text()} {when}", exit=exit, facts=facts)
        return died_serving(found) if facts.has_served else found

    def diagnose(
        self, cause: str, summary: str, advice: str = "", *, facts: Facts, exit: Exit | None = None
    ) -> Diagnosis:
        """The cause of a failure, from what was seen, the log, and what the machine says."""
        process = self.process
        found = diagnose(
            cause,
            summary,
            exit=exit,
            lines=process.tail(LINES_FOR_DIAGNOSIS) if process is not None else [],
            rules=rules_of(self.adapter),
            advice=advice,
            log=str(process.log) if process is not None else "",
            phase="run" if facts.has_served else "start",
            quotes=quotes_of(self.adapter),
            oom_kills=0 if self._oom_kills is None else (self.host.oom_kills() or 0) - self._oom_kills,
        )
        if found.cause == "hub-unreachable":
            config, environ = self.config, {**os.environ, **self.config.env}
            return hub_unreachable(found, self.host.local_weights(config.model, config.revision, environ))
        if self._memory is None or found.cause not in MEMORY_CAUSES:  # asking the driver takes time
            return found
        return memory_held(found, self._memory.holders(process.pids() if process is not None else frozenset()))


def backoff(failures: int, config: ServerConfig, roll: float) -> float:
    """Seconds to wait before the next attempt: doubled for each failure in a row, the upper half of it at random
    (`roll` in 0..1), so that many servers that failed together do not start together."""
    longest: float = min(config.backoff_max, config.backoff_initial * 2.0 ** min(failures - 1, 60))
    return longest * (0.5 + 0.5 * roll)
