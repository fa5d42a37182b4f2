"""A server that outlives its manager, and the next manager that takes it over instead of starting another one.

While a server is Healthy (or sleeps), and `keep_for` allows it, its manager leaves a keepsake: a snapshot of where it
stands and what it was started with. Its keeper is told to keep the server for that long should the manager die. Whoever
attaches finds the keepsake, sees that the server is the one it would start itself (`misfit` says what is not), takes
over ports and keeper, and has it verified like any other start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import msgspec

from lifecycle import vigil
from lifecycle.adapter import capabilities_of
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.driver import Activity
from lifecycle.errors import StokerError, Tended
from lifecycle.host import Keepsake, Kept, NoAnswer, Process, base_url
from lifecycle.probing import WrongKey, WrongServer, served_model
from lifecycle.server_facts import Adopted, Facts, FoundKept, NotAdopted

if TYPE_CHECKING:
    from lifecycle.activities import Activities

Act = Activity[Facts]
ITS_OWN = (
    "backend", "model", "revision", "dtype", "context_length", "tensor_parallel", "pipeline_parallel", "data_parallel",
    "nodes", "node_rank", "engine_seed", "trust_remote_code", "python", "served_name", "host", "command", "base_url",
    "env", "engine_args", "options", "cache_dir",
)  # fmt: skip
"""Settings that a running server has from its start. All others are its manager's, and may differ."""


class Adoption:
    """The activities `find_kept`, `adopt` and `entrust` of one server.

    Args:
        of: its other activities, which hold its ports and its process.
    """

    def __init__(self, of: Activities) -> None:
        self._of = of
        self.kept: Kept | None = None
        """The server that was found, if it fits."""
        self._none_found = anyio.Event()
        self._entrusted: Keepsake | None = None

    async def must_start(self) -> None:
        """Return when it is known that there is none to take over."""
        await self._none_found.wait()

    async def find_kept(self, act: Act) -> None:
        label = self._of.config.label
        try:
            kept = await self._of.host.find_kept(label)
        except StokerError as error:
            act.post(FoundKept(0, refused(str(error))))
            return
        if kept is None:
            self._none_found.set()
            return
        wrong = await self._wrong(kept)
        self.kept = None if wrong else kept
        found = f"server {label!r} is kept since its manager {kept.manager} died (pid {kept.keepsake.pid}, port " \
                f"{kept.keepsake.ports[0]})"  # fmt: skip
        if wrong:
            act.post(FoundKept(kept.keepsake.pid, refused(f"{found}, and is not the one that is wanted: {wrong}")))
            return
        act.note(phase=f"{found}: it fits")
        act.post(FoundKept(kept.keepsake.pid))

    async def _wrong(self, kept: Kept) -> str:
        """What of a kept server is not as configured, in words; nothing if it fits."""
        config, sake = self._of.config, kept.keepsake
        wrong = misfit(sake, config)
        if wrong:
            return wrong
        others = self._of.host.strangers(config.host, sake.ports[0], kept.pids)
        if others is not None:
            who = f"pid {', '.join(map(str, sorted(others)))} does" if others else "nobody does"
            return f"it does not listen on its port {sake.ports[0]}, {who}"
        async with self._of.prober(base_url(config.host, sake.ports[0])) as prober:
            try:
                model = await served_model(prober, capabilities_of(self._of.adapter, config), config)
            except NoAnswer:
                return ""  # it is the one; whether it is well is the next question, and not this one
        if isinstance(model, WrongKey):
            return f"it refuses our key (HTTP {model.status})"
        return model.reason if isinstance(model, WrongServer) else ""

    async def adopt(self, act: Act) -> None:
        of, kept = self._of, self.kept
        assert kept is not None
        await of.ports_are_held()
        try:
            process = await of.host.adopt(kept)
        except Tended as error:  # somebody was faster
            act.post(NotAdopted(refused(str(error))))
            return
        except StokerError as error:  # its time is over: another one can be started
            act.post(NotAdopted(Diagnosis("not-adopted", str(error), Verdict.TRANSIENT)))
            return
        sake = kept.keepsake
        of.took_over(process, sake.ports[0])
        try:
            said = await self._wake() if sake.state == "Asleep" else ""
            if said:
                act.post(NotAdopted(Diagnosis("not-asleep", f"the engine does not wake up: {said}")))
            else:
                act.post(Adopted(process.pid, sake.ports[0], str(process.log)))
            await anyio.sleep_forever()
        finally:
            if act.facts.pid != process.pid:  # left by another event: Starting will not own it
                await of.attempt.end(0)

    async def _wake(self) -> str:
        """Its dead manager had put it to sleep, or was about to."""
        can = capabilities_of(self._of.adapter, self._of.config)
        async with self._of.prober(self._of.url) as prober:
            return await vigil.woken(prober, can, self._of.config)

    async def entrust(self, act: Act) -> None:
        process = self._of.process
        assert process is not None
        self._entrusted = Keepsake(
            state="Healthy",
            pid=process.pid,
            ports=self._of.port_numbers,
            log=str(process.log),
            settings=prints(self._of.config),
            model=act.facts.model,
        )
        try:
            if self._remember(process, act.note):
                act.note(phase=f"should its manager die, its keeper keeps it for {self._of.config.keep_for:g} s")
            await anyio.sleep_forever()
        finally:
            self._entrusted = None
            process.keep(None, 0)

    def about_to_sleep(self, note: Callable[..., None]) -> None:
        """Whoever adopts it must know that it may sleep: a request would end it."""
        process = self._of.process
        if self._entrusted is not None and process is not None:
            self._entrusted = replace(self._entrusted, state="Asleep")
            self._remember(process, note)

    def _remember(self, process: Process, note: Callable[..., None]) -> bool:
        try:
            process.keep(self._entrusted, self._of.config.keep_for)
        except OSError as error:  # then it ends with its manager, as without keep_for
            process.keep(None, 0)
            note(phase=f"it cannot be kept for another manager: {error}")
            return False
        return True


def refused(why: str) -> Diagnosis:
    """The diagnosis of a start that could have been an adoption, and must be neither."""
    return Diagnosis(
        "not-adopted", why, Verdict.HOPELESS,
        "give the settings that it was started with, or end it with `stoker stop NAME` and start anew",
    )  # fmt: skip


def prints(config: ServerConfig) -> dict[str, str]:
    """A digest of each setting that a running server has from its start: values may be secret, such as those in env."""
    found = {name: getattr(config, name) for name in ITS_OWN}
    return {name: hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]
            for name, value in found.items()}  # fmt: skip


def misfit(sake: Keepsake, config: ServerConfig) -> str:
    """Which settings of a kept server are not those of `config`, in words; nothing if it fits. Pure."""
    now = prints(config)
    names = {*now, *sake.settings}
    others = sorted(name for name in names if now.get(name) != sake.settings.get(name))
    if others:
        shown = ", ".join(f"{name} = {getattr(config, name)!r}" for name in others if name in PLAIN)
        return f"it was started with another {', '.join(others)}" + (f" than {shown}" if shown else "")
    if config.port is not None and config.port != sake.ports[0]:
        return f"it listens on port {sake.ports[0]}, and port = {config.port} is wanted"
    return ""


PLAIN = frozenset(ITS_OWN) - {"env", "engine_args", "options", "command"}
"""Settings whose values may be shown."""
