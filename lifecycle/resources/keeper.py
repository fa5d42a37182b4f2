"""The keeper: a tiny process that owns one server's process tree, so that nothing of it outlives its manager.

Run as `python -I -S keeper.py CONTROL OUTPUT` with two inherited descriptors of sockets. It must start in
milliseconds and stay small: standard library only, and of that only what costs next to nothing (no `json`, no
`socket`). It

- is a child subreaper (Linux prctl(2), PR_SET_CHILD_SUBREAPER): every orphan of the tree becomes its child, also one
  that has left the session;
- starts the server in a session of its own, with /dev/null for input and a pipe for its merged output;
- writes that output to a log that is bounded (its beginning and its end are kept) with known secrets masked, and passes
  it on to the manager as far as the manager keeps up. A full disk or a slow manager costs log lines, never the server;
- ends the whole tree when it is told to, when the server's main process has ended, and when its manager disappears (end
  of file on CONTROL). It leaves when no process of the tree is left, and removes the tree's TMPDIR.

To the keeper CONTROL carries the specification first (its length in eight digits, then a `marshal` dump), then lines
`end GRACE`, any number of them. From it, in lines: `started PID` or `failed WHY`, then `exited CODE`, then `gone 0`.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # as in `typing`, which would cost 1 MiB
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE)
ORPHAN_GRACE = 2.0  # seconds from SIGTERM to SIGKILL when the manager has gone
CHUNK = 65536
LAST_WORDS = 64  # chunks of output taken before an exit is told; a child that goes on shouting does not delay it
SIGHT = 0.002  # seconds between two looks at a tree that has been killed


def attempt(function: Callable[..., object], *arguments: object) -> None:
    """Call `function`; an `OSError` means that there was nothing to be done. (`contextlib` would cost 0.6 MiB.)"""
    try:
        function(*arguments)
    except OSError:
        return


class Log:
    """A file of at most `limit` bytes: the first half as it came, then the newest, in two pieces that take turns."""

    def __init__(self, path: str, limit: int, secrets: list[str]) -> None:
        self.path = path
        self.piece = max(1, limit // 4)
        self.room = max(1, limit // 2)
        self.turns = 0
        self.secrets = sorted((secret.encode() for secret in secrets if secret), key=len, reverse=True)
        self.longest = len(self.secrets[0]) if self.secrets else 1
        self.kept_back = b""
        self.fd = self.open(path)

    def open(self, path: str) -> int:
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return -1

    def mask(self, data: bytes, last: bool) -> bytes:
        """`data` without secrets; what may be the beginning of one is kept back until more has come."""
        data = self.kept_back + data
        for secret in self.secrets:
            data = data.replace(secret, b"***")
        keep = 0
        if not last:
            for size in range(min(self.longest - 1, len(data)), 0, -1):
                if any(secret.startswith(data[-size:]) for secret in self.secrets):
                    keep = size
                    break
        self.kept_back = data[len(data) - keep :]
        return data[: len(data) - keep]

    def write(self, data: bytes) -> None:
        while data:
            if self.room <= 0:
                self.turn()
            piece, data = data[: self.room], data[self.room :]
            self.room -= len(piece)
            try:
                while piece and self.fd >= 0:
                    piece = piece[os.write(self.fd, piece) :]
            except OSError:
                pass  # a full disk costs this piece

    def turn(self) -> None:
        """Begin the newer of the two pieces of the end anew; the older one is what was the newer."""
        newer, older = self.path + ".end", self.path + ".end.older"
        if self.fd >= 0:
            os.close(self.fd)
        if self.turns:
            attempt(os.replace, newer, older)
        self.turns += 1
        self.room = self.piece
        self.fd = self.open(newer)


def stat_of(pid: int | str) -> tuple[bytes, int, int] | None:
    """(state, parent, start time) of a process, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            words = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return words[0], int(words[1]), int(words[19])


def tree() -> set[int]:
    """Pids of every descendant, zombies too: as subreaper we are an ancestor of all that the server ever started, and
    what has not been collected yet will be."""
    parents = {int(name): stat[1] for name in os.listdir("/proc") if name.isdigit() and (stat := stat_of(name))}
    ours = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in ours and pid not in ours}:
        ours |= found
    return ours - {os.getpid()}


def start(spec: dict[str, Any]) -> tuple[int, int, str]:
    """Fork and execute the server. (pid, read end of its output) or the reason why not."""
    output_read, output_write = os.pipe()
    error_read, error_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(output_write, 1)
            os.dup2(output_write, 2)
            for number in (*IGNORED, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if spec["cwd"]:
                os.chdir(spec["cwd"])
            os.closerange(3, error_write)
            os.closerange(error_write + 1, 4096)
            os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
        except BaseException as error:
            reason = f"{spec['argv'][0]}: {getattr(error, 'strerror', None) or error}"
            os.write(error_write, reason.encode("utf-8", "replace")[:4000])
        finally:
            os._exit(127)
    os.close(output_write)
    os.close(error_write)
    why = b""
    while piece := os.read(error_read, 4096):
        why += piece
    os.close(error_read)
    if why:
        os.waitpid(pid, 0)
        os.close(output_read)
        return 0, -1, why.decode("utf-8", "replace")
    os.set_blocking(output_read, False)
    return pid, output_read, ""


class Keeper:
    """One server, from its start to the end of its tree."""

    def __init__(self, control: int, output: int) -> None:
        self.control = control
        self.output = output
        self.inbox = b""
        self.pid = 0
        self.pipe = -1
        self.exited = False
        self.kill_at: float | None = None

    def say(self, word: str, value: object) -> None:
        attempt(os.write, self.control, f"{word} {value}\n".encode("utf-8", "replace"))

    def specification(self) -> dict[str, Any] | None:
        """What to start, or None if the manager goes before it has said so."""
        data = b""
        while len(data) < 8 or len(data) < 8 + int(data[:8]):
            piece = os.read(self.control, CHUNK)
            if not piece:
                return None
            data += piece
        spec: dict[str, Any] = marshal.loads(data[8:])
        return spec

    def hear(self) -> list[float] | None:
        """The graces of the orders to end that have come; None once the manager has gone."""
        try:
            data = os.read(self.control, CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        return [float(line.split()[1]) for line in lines]

    def run(self) -> None:
        spec = self.specification()
        if spec is None:
            return
        self.log = Log(spec["log"], spec["limit"], spec["secrets"])
        self.pid, self.pipe, why = start(spec)
        if not self.pid:
            self.say("failed", why)
            remove(spec["tmpdir"])
            return
        os.set_blocking(self.control, False)
        self.say("started", self.pid)
        self.watch()
        remove(spec["tmpdir"])
        attempt(os.unlink, spec["record"])
        self.say("gone", 0)

    def watch(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        poll = select.poll()
        poll.register(wake_read, select.POLLIN)
        poll.register(self.pipe, select.POLLIN)
        poll.register(self.control, select.POLLIN)
        self.reap()
        while True:
            left = None if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())
            for fd, _ in poll.poll(None if left is None else left * 1000):
                if fd == wake_read:
                    attempt(os.read, wake_read, CHUNK)
                elif fd == self.pipe:
                    if not self.pump():
                        poll.unregister(self.pipe)
                else:
                    graces = self.hear()
                    if graces is None:
                        poll.unregister(self.control)
                        graces = [ORPHAN_GRACE]
                    for grace in graces:
                        self.end(grace)
            self.reap()
            if self.exited or (self.kill_at is not None and time.monotonic() >= self.kill_at):
                break
        self.sweep()

    def end(self, grace: float) -> None:
        """SIGTERM to the main process alone (engines coordinate their own children), SIGKILL for all after `grace`."""
        at = time.monotonic() + grace
        if self.kill_at is None and grace > 0 and not self.exited:
            attempt(os.kill, self.pid, signal.SIGTERM)
        self.kill_at = at if self.kill_at is None else min(at, self.kill_at)

    def reap(self) -> None:
        """Collect every child that has ended; tell of the main one, when all that it said is in the log."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.exited = True
                for _ in range(LAST_WORDS):
                    if not self.pump(again=True):
                        break
                self.say("exited", os.waitstatus_to_exitcode(status))

    def sweep(self) -> None:
        """SIGKILL until nothing is left. Whatever is forked meanwhile becomes our descendant too, and is next."""
        while left := tree():
            for pid in left:
                attempt(os.kill, pid, signal.SIGKILL)
            time.sleep(SIGHT)
            self.reap()
        self.reap()
        while self.pump(again=True):  # whoever could write is dead: this ends
            pass
        self.pass_on(self.log.mask(b"", True))

    def pump(self, again: bool = False) -> bool:
        """Take a piece of output. False at its end, or (`again`) when there is none now."""
        if self.pipe < 0:
            return False
        try:
            data = os.read(self.pipe, CHUNK)
        except BlockingIOError:
            return not again
        except OSError:
            data = b""
        if not data:
            return False
        self.pass_on(self.log.mask(data, False))
        return True

    def pass_on(self, data: bytes) -> None:
        if data:
            self.log.write(data)
            attempt(os.write, self.output, data)  # non-blocking: what the manager has no room for is in the log


def remove(folder: str) -> None:
    """Remove a folder and all that is in it, as far as that goes. (`shutil` would cost megabytes.)"""
    for root, folders, files in os.walk(folder, topdown=False):
        for name in files:
            attempt(os.unlink, os.path.join(root, name))
        for name in folders:
            path = os.path.join(root, name)
            attempt(os.unlink if os.path.islink(path) else os.rmdir, path)
    attempt(os.rmdir, folder)


def main() -> None:
    # Engines signal their new parent when they are orphaned; terminals signal everybody in the foreground.
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    control, output = int(sys.argv[1]), int(sys.argv[2])
    os.set_blocking(output, False)
    for each in (control, output):
        os.set_inheritable(each, False)
    Keeper(control, output).run()
    os._exit(0)


if __name__ == "__main__":
    main()
