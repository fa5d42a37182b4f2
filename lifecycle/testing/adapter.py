"""A backend for a `SimulatedHost`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lifecycle.adapter import Ask, Capabilities, Command, CompileCache, EngineLoad, Launch, NoOptions, Phase, Prepared
from lifecycle.config import ServerConfig


@dataclass
class SimulatedAdapter:
    """Starts nothing that exists. Its log lines `phase NAME` and `phase NAME I/N` are phases.

    Args:
        compiles: names the compile cache that a start builds; "": none, so the compile lock is skipped.
        faults: exceptions that `prepare`, `command` or `phase` raise, by their names: an adapter's own bug.
    """

    name: str = "simulated"
    capabilities: Capabilities = field(default_factory=Capabilities)
    options: type[Any] = NoOptions
    compiles: str = ""
    faults: dict[str, BaseException] = field(default_factory=dict)

    def command(self, launch: Launch) -> Command:
        self._maybe_fail("command")
        return Command(("simulated-server", "--port", str(launch.port), *map(str, launch.extra_ports)))

    def phase(self, line: str) -> Phase | None:
        self._maybe_fail("phase")
        words = line.split()
        if words[:1] != ["phase"] or len(words) < 2:
            return None
        done, _, total = words[2].partition("/") if len(words) > 2 else ("", "", "")
        return Phase(words[1], int(done), int(total)) if total else Phase(words[1])

    def load(self, body: Any) -> EngineLoad | None:
        if not isinstance(body, dict):
            return None
        return EngineLoad(body["running"], body["waiting"], (body["steps"],), body.get("answered"))

    async def prepare(self, config: ServerConfig, ask: Ask) -> Prepared:
        self._maybe_fail("prepare")
        await ask(("simulated-server", "--flags"))
        return Prepared(CompileCache(self.compiles) if self.compiles else None)

    def _maybe_fail(self, where: str) -> None:
        if where in self.faults:
            raise self.faults[where]
