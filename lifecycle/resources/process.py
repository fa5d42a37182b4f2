"""Starts a server under a keeper, and is the manager's end of the line to it."""

from __future__ import annotations

import contextlib
import marshal
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import anyio

from lifecycle.adapter import PRIVATE, Command
from lifecycle.diagnosis import Exit
from lifecycle.errors import KeeperKilled, LaunchError
from lifecycle.host import Keepsake, Spawn
from lifecycle.resources import keeper
from lifecycle.resources.log import LineSplitter, tail
from lifecycle.resources.private import keepers_dir
from lifecycle.resources.reap import SIGHT, TAG, Leftover, new_record
from lifecycle.resources.tree import descendants

LONGEST_TMPDIR = Command.longest_tmpdir
PASS_ON = 256 * 1024
"""Bytes of output that may be under way from the keeper before it drops what its manager does not read."""
KEEPER = (sys.executable, "-I", "-S", keeper.__file__)


class KeptProcess:
    """A server under a keeper: implements `lifecycle.host.Process`."""

    def __init__(self, log: Path, leftover: Leftover, line: Line, inbox: bytes) -> None:
        self.pid = leftover.main
        self.log = log
        self._leftover = leftover
        self._child, self._control, self._output = line.child, line.control, line.output
        self._inbox = inbox
        self._exit: Exit | None = None
        self._exited = anyio.Event()
        self._gone = anyio.Event()
        self._lost = False
        self._listening = False
        self._turn = anyio.Event()

    def keep(self, sake: Keepsake | None, seconds: float) -> None:
        """See `lifecycle.host.Process`. In this order: killed in between, we leave a keepsake that nobody's keeper
        heeds, and never a server that is kept without one."""
        if sake is not None:
            self._leftover = self._leftover.keep(sake)
            self._tell_keeper(f"keep {seconds}")
            return
        self._tell_keeper("keep 0")
        if self._leftover.kept and not self._exited.is_set():
            self._leftover = replace(self._leftover, kept=False)
            with contextlib.suppress(OSError):
                self._leftover.write()
        self._leftover.keepsake.unlink(missing_ok=True)

    def _tell_keeper(self, order: str) -> None:
        with contextlib.suppress(OSError):  # a keeper that has gone needs to be told nothing
            self._control.sendall(f"{order}\n".encode())

    async def exited(self) -> Exit:
        """See `lifecycle.host.Process`."""
        await self._listen(self._exited)
        assert self._exit is not None
        return self._exit

    async def end(self, grace: float) -> None:
        """See `lifecycle.host.Process`."""
        self._tell_keeper(f"end {grace}")
        with contextlib.suppress(OSError):
            self._child.send_signal(signal.SIGCONT)  # one that was stopped must hear it
        await self._listen(self._gone)

    def pids(self) -> frozenset[int]:
        """See `lifecycle.host.Process`."""
        if self._gone.is_set():
            return frozenset()
        ours = descendants(self._child.pid)
        return frozenset(pid for pid, (state, *_) in ours.items() if state not in (b"Z", b"X"))

    def tail(self, count: int) -> list[str]:
        """See `lifecycle.host.Process`."""
        return tail(self.log, count)

    async def lines(self) -> AsyncIterator[str]:
        """See `lifecycle.host.Process`."""
        splitter = LineSplitter()
        try:
            while True:
                try:
                    data = self._output.recv(keeper.CHUNK)
                except BlockingIOError:
                    await anyio.wait_readable(self._output)
                    continue
                except OSError:
                    data = b""
                for line in splitter.feed(data) if data else splitter.flush():
                    yield line
                if not data:
                    return
        finally:
            self._output.close()

    async def _listen(self, until: anyio.Event) -> None:
        """Wait for an event that the keeper tells of. One waiter reads for all; when it leaves, another takes over."""
        while not until.is_set():
            if self._listening:
                turn = self._turn
                async with anyio.create_task_group() as group:
                    group.start_soon(_first, turn, group)
                    group.start_soon(_first, until, group)
                continue
            self._listening, self._turn = True, anyio.Event()
            try:
                while not until.is_set():
                    if self._lost:
                        await self._end_tree()
                    elif not self._hear():
                        await anyio.wait_readable(self._control)
            finally:
                self._listening = False
                self._turn.set()

    def _hear(self) -> bool:
        """Take what the keeper has said. False if there is nothing yet."""
        if b"\n" not in self._inbox:
            return self._receive()
        line, _, self._inbox = self._inbox.partition(b"\n")
        word, _, value = line.decode().partition(" ")
        if word == "exited":
            self._has_exited(int(value))
        elif word == "gone":
            self._has_gone()
        return True

    def _receive(self) -> bool:
        try:
            data = self._control.recv(keeper.CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._inbox += data
        else:
            self._lost = True
        return True

    async def _end_tree(self) -> None:
        """The keeper has gone and did not say that the tree has: end the tree from here."""
        struck: dict[int, int] = {}
        while not self._leftover.strike(struck):  # noqa: ASYNC110 - a process is not an event
            await anyio.sleep(SIGHT)
        self._has_gone()

    def _has_exited(self, code: int) -> None:
        if self._exit is None:
            self._exit = Exit(code)
            self._exited.set()

    def _has_gone(self) -> None:
        self._has_exited(-signal.SIGKILL)
        if not self._gone.is_set():
            self._gone.set()
            self._control.close()
            self._child.wait()  # "gone" is the keeper's last word: it is ending or has ended
            self._leftover.forget()  # the keeper has, but if all was over before the record was complete


async def _first(event: anyio.Event, group: Any) -> None:
    await event.wait()
    group.cancel_scope.cancel()


class Child(Protocol):
    """What is used of the process that a keeper is: a child, or one that was a dead manager's."""

    @property
    def pid(self) -> int: ...

    def send_signal(self, number: int) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> object: ...


@dataclass(frozen=True)
class Line:
    """The manager's ends of what joins it to a keeper."""

    child: Child
    control: socket.socket
    output: socket.socket

    def close(self) -> None:
        """Let go: the keeper then ends its tree and itself."""
        self.control.close()
        self.output.close()


async def spawn(what: Spawn) -> KeptProcess:
    """Start a server under a keeper. Raises `LaunchError`; cancelled half way, it leaves nothing behind."""
    label = what.label.encode("utf-8", "replace").decode().replace("\0", " ")
    server, tmpdir = secrets.token_hex(8), private_tmpdir(what.command.longest_tmpdir)
    try:
        line = _start_keeper(label, server)
    except OSError as error:
        raise LaunchError(f"the keeper cannot be started: {error}") from None
    assert isinstance(line.child, subprocess.Popen)
    child = line.child
    leftover = new_record(what.state_dir, server, label, child.pid, tmpdir, str(keepers_dir() / f"{server}.sock"))
    try:
        leftover.write()
        _tell(line.control, _specification(what, leftover))
        line.control.setblocking(False)
        line.output.setblocking(False)
        word, value, inbox = await first_word(line.control)
        if word != "started":
            raise LaunchError(value or "the keeper ended before it could start the server")
        main, pipe = map(int, value.split())
        return KeptProcess(what.log, leftover.started(main, pipe), line, inbox)
    except BaseException as error:
        line.close()
        with anyio.CancelScope(shield=True):
            await _see_gone(child, leftover)
        if isinstance(error, OSError):
            raise LaunchError(f"the server's record cannot be written: {error}; check state_dir") from None
        if isinstance(error, LaunchError) and child.returncode == -signal.SIGKILL:
            raise KeeperKilled("its keeper was killed before the server ran") from None
        raise


def _start_keeper(label: str, server: str) -> Line:
    control, keepers_control = socket.socketpair()
    output, keepers_output = socket.socketpair()
    keepers_output.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PASS_ON)
    # Until the keeper ignores them itself (it lets them through then), none may end it: they may be sent to all
    # processes of a job at once.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, keeper.IGNORED)
    try:
        numbers = (keepers_control.fileno(), keepers_output.fileno())
        child = subprocess.Popen(
            (*KEEPER, *map(str, numbers), label),
            pass_fds=numbers,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**os.environ, TAG: server},  # what it forks is found by the tag before it is the server, too
        )
    except BaseException:
        control.close()
        output.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        keepers_control.close()
        keepers_output.close()
    return Line(child, control, output)


def _tell(control: socket.socket, specification: dict[str, Any]) -> None:
    told = marshal.dumps(specification)
    try:
        control.sendall(f"{len(told):08}".encode() + told)
    except OSError:
        raise LaunchError("the keeper ended before it was told what to start") from None


def _specification(what: Spawn, leftover: Leftover) -> dict[str, Any]:
    """What the keeper is told. Not in its argv: that would show in `ps`."""
    command = what.command
    variables = {"PYTHONUNBUFFERED": "1", **os.environ, "TMPDIR": leftover.tmpdir, **command.env, TAG: leftover.id}
    private = {PRIVATE: leftover.tmpdir}
    private |= {f"{PRIVATE}/{name}": f"{leftover.tmpdir}/{name}" for name in command.files}
    return {
        "argv": [private.get(word, word) for word in command.argv],
        "files": dict(command.files),
        "env": {name: value for name, value in variables.items() if value is not None},
        "cwd": str(command.cwd or _own_folder()),
        "log": str(what.log),
        "limit": what.log_limit,
        "secrets": list(what.secrets),
        "tmpdir": leftover.tmpdir,
        "record": str(leftover.path),
        "notes": str(leftover.notes),
        "door": leftover.door,
        "keepsake": str(leftover.keepsake),
        "manager": leftover.manager,
    }


def _own_folder() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise LaunchError(f"the working folder: {error.strerror}; change to one that exists") from None


async def first_word(control: socket.socket) -> tuple[str, str, bytes]:
    """The keeper's first message in two parts, and what came after it; an empty message if it has gone."""
    said = b""
    while b"\n" not in said:
        try:
            data = control.recv(keeper.CHUNK)
        except BlockingIOError:
            await anyio.wait_readable(control)
            continue
        except OSError:
            data = b""
        if not data:
            return "", "", b""
        said += data
    message, _, rest = said.partition(b"\n")
    word, _, value = message.decode("utf-8", "replace").partition(" ")
    return word, value, rest


async def _see_gone(child: subprocess.Popen[bytes], leftover: Leftover) -> None:
    """Wait for a keeper that is ending its tree; end the tree from here if the keeper does not."""
    with anyio.move_on_after(keeper.ORPHAN_GRACE + 5.0):
        while child.poll() is None:  # noqa: ASYNC110 - a process is not an event
            await anyio.sleep(SIGHT)
    if child.poll() == 0:
        leftover.forget()
        return
    child.kill()
    child.wait()
    struck: dict[int, int] = {}
    while not leftover.strike(struck):  # noqa: ASYNC110
        await anyio.sleep(SIGHT)


def private_tmpdir(longest: int = LONGEST_TMPDIR) -> str:
    """A short path, of `longest` bytes at most, for the folder that the keeper makes, keeps private and removes: in the
    system's own place for such or, if that is too long, in /tmp."""
    name = f"stk-{secrets.token_hex(4)}"
    for parent in (_usual_tmpdir(), "/tmp", "/var/tmp"):
        path = f"{parent}/{name}"
        if len(os.fsencode(path)) <= longest and os.access(parent, os.W_OK | os.X_OK):
            return path
    raise LaunchError(f"no folder for temporary files with a path of at most {longest} characters can be made")


def _usual_tmpdir() -> str:
    """As `tempfile` finds it, but without the file that `tempfile` writes to try the folder: killed just then, we would
    leave it behind."""
    return os.path.abspath(os.environ.get("TMPDIR") or "/tmp")
