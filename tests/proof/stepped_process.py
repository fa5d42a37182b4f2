"""A process that contends for a compile cache, and stops before each call of the operating system that has to do with
it: it says which, and goes on when it is told to. See `tests/proof/test_lock_steps.py`."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from lifecycle.errors import StokerError
from lifecycle.promela import locks
from lifecycle.resources.caches import FILES, HOLDER, LOCK, MARK
from lifecycle.resources.compile_lock import Complete, Held
from tests.builder_process import Contending, main


class Stepped(Contending):
    def __init__(self, line: socket.socket, given: dict[str, Any]) -> None:
        super().__init__(line, given)
        self._entry = str(self.cache.entry(self.state))
        self._stepping = False
        self._last = ""
        self._releasing = False
        stat = os.stat

        def stepped_stat(path: Any, *more: Any, **others: Any) -> os.stat_result:
            self._at("stat", path)
            return stat(path, *more, **others)

        os.stat = stepped_stat

    def contend(self, builds: bool, completes: bool) -> None:
        """Look until the cache is held or complete; build it, or not; say that it is complete, or not; give it back."""
        self._stepping = True
        found: object = None
        while not isinstance(found, Held | Complete):
            self._last = "look"
            found = self.contender.look()
        if isinstance(found, Held):
            if builds:
                self._stop(locks.BUILD)
                with suppress(OSError):
                    Path(self._entry, FILES, "artefact").write_text("x")
                if completes:
                    with suppress(StokerError):
                        self._complete(found)
            self._releasing = True
            found.release()
        self._stepping = False
        self.say(ended="complete" if isinstance(found, Complete) else "held")

    def _complete(self, held: Held) -> None:
        try:
            held.complete()
        finally:
            self._releasing = True

    def _count(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "fcntl.flock":
            self._stop(locks.UNLOCK if arguments[1] & fcntl.LOCK_UN else locks.FLOCK)
        elif event in ("open", "os.mkdir", "os.rename", "os.remove", "os.scandir", "os.listdir"):
            self._at(event, *arguments)

    def _at(self, event: str, *where: Any) -> None:
        if not self._stepping:
            return
        names = [os.path.relpath(path, self._entry) if isinstance(path, str | os.PathLike) else "" for path in where]
        call = self._call(event, names)
        if call == locks.STAT_ENTRY and self._last in ("look", locks.WRITE_HOLDER):
            return  # whose folder it is; what lies there to be swept away
        if call:
            self._stop(call)

    def _call(self, event: str, names: list[str]) -> str:
        reads = {LOCK: locks.OPEN_LOCK, MARK: locks.READ_MARK, HOLDER: locks.READ_HOLDER}
        removes = {MARK: locks.REMOVE_MARK, HOLDER: locks.REMOVE_HOLDER}
        stats = {".": locks.STAT_ENTRY, LOCK: locks.STAT_LOCK, FILES: locks.STAT_FILES}
        makes = {".": locks.MAKE_ENTRY, FILES: locks.MAKE_FILES}
        moves = {".": locks.MOVE_ENTRY, FILES: locks.MOVE_FILES}
        if event == "os.rename":
            writes = {MARK: locks.WRITE_MARK, HOLDER: locks.WRITE_HOLDER}
            return moves.get(names[0], "") or writes.get(names[1], "")
        if event in ("os.scandir", "os.listdir") and names[0] == ".":
            return locks.LIST_ENTRY if self._releasing and self._last != locks.MOVE_ENTRY else ""
        table = {"open": reads, "os.remove": removes, "stat": stats, "os.mkdir": makes,
                 "os.scandir": {FILES: locks.SCAN_FILES}}  # fmt: skip
        return table.get(event, {}).get(names[0], "")

    def _stop(self, call: str) -> None:
        if not self._stepping:
            return
        self._stepping = False  # what this does itself is no step
        self._last = call
        self.say(call=call)
        self.line.readline()
        self._stepping = True


if __name__ == "__main__":
    main(Stepped)
