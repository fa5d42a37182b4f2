"""The keeper: a tiny process that owns one server's process tree, so that nothing of it outlives its manager.

Run as `python -I -S keeper.py CONTROL OUTPUT LABEL`: two inherited descriptors of sockets, and a name for `ps`. It must
start in milliseconds and stay small: standard library only, and of that only what costs next to nothing (no `json`, no
`socket`). It

- is a child subreaper (Linux prctl(2), PR_SET_CHILD_SUBREAPER): every orphan of the tree becomes its child, also one
  that has left the session;
- starts the server in a session of its own, with /dev/null for input and a pipe for its merged output;
- writes that output to a log that is bounded (its beginning and its end are kept) with known secrets masked, and passes
  it on to the manager as far as the manager keeps up. A full disk or a slow manager costs log lines, never the server;
- ends the whole tree when it is told to, when the server's main process has ended, and when its manager disappears;
  unless that had told it to keep the tree for a while then: it opens a door (`handover`) by which another manager can
  come in, and ends the tree if none does in time. It leaves when no process of the tree is left, and removes the tree's
  TMPDIR and what it made in /dev/shm.

To the keeper CONTROL carries the specification first (its length in eight digits, then a `marshal` dump), then lines
`end GRACE` and `keep SECONDS`, any number of them. From it, in lines: `started PID PIPE` (to a manager that came in
later `adopted PID PIPE`) or `failed WHY`, then `exited CODE`, then `gone 0`. PIPE is the inode of the pipe that the
whole tree writes to.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import signal
import sys
import time

try:
    from lifecycle.resources.bounded_log import Log, Mask
    from lifecycle.resources.folder import make_folder, remove, write_files
    from lifecycle.resources.handover import Door
    from lifecycle.resources.shared_memory import NEVER, Watch
    from lifecycle.resources.tree import attempt, descendants, kill, kill_groups
except ImportError:  # run as a script: this folder is added to the path, which holds the standard library alone
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from bounded_log import Log, Mask  # type: ignore[import-not-found,no-redef]
    from folder import make_folder, remove, write_files  # type: ignore[import-not-found,no-redef]
    from handover import Door  # type: ignore[import-not-found,no-redef]
    from shared_memory import NEVER, Watch  # type: ignore[import-not-found,no-redef]
    from tree import attempt, descendants, kill, kill_groups  # type: ignore[import-not-found,no-redef]

TYPE_CHECKING = False  # as in `typing`, which would cost 1 MiB
if TYPE_CHECKING:
    from typing import Any

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
NOTICES = (signal.SIGUSR1, signal.SIGUSR2)  # batch systems announce the end of a job by these, to every process
IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, *NOTICES)
ORPHAN_GRACE = 2.0  # seconds from SIGTERM to SIGKILL when the manager has gone
LONGEST_GRACE = 1e6  # seconds; poll(2) counts milliseconds in an int
CHUNK = 65536
LAST_WORDS = 64  # chunks of output taken before an exit is told; a child that goes on shouting does not delay it
SIGHT = 0.001  # seconds between the first two looks at a tree that has been killed; doubled up to
LONGEST_SIGHT = 0.2  # while a driver takes its time to let a process go
SHED = "\n[%d bytes of output were not passed on here; the log has them]\n"


def execute(spec: dict[str, Any], output: int, failure: int) -> None:
    """Become the server (in a child); if that fails, say why to `failure`."""
    what, hint = "the session", "this cannot be helped"
    try:
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        for number, fd in ((0, null), (1, output), (2, output)):  # all others close on exec
            os.dup2(fd, number)
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):  # 32 and 33 are the C library's own
                # A notice is for the manager; by default it would kill. A server that uses it sets a handler.
                attempt(signal.signal, number, signal.SIG_IGN if number in NOTICES else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        what, hint = f"folder {spec['cwd']!r}", "name one that exists and that you may enter"
        os.chdir(spec["cwd"])
        what, hint = f"program {spec['argv'][0]!r}", "check its name, PATH, and that it can be executed"
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except BaseException as error:
        why = f"{what}: {getattr(error, 'strerror', None) or error}; {hint}".replace("\n", " ")
        os.write(failure, why.encode("utf-8", "replace")[:4000])
    finally:
        os._exit(127)


def start(spec: dict[str, Any]) -> tuple[int, int, str]:
    """Fork and execute the server: (pid, read end of its output, ""), or (0, -1, the reason why not)."""
    output_read, output_write = os.pipe()
    failure_read, failure_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        execute(spec, output_write, failure_write)
    os.close(output_write)
    os.close(failure_write)
    why = b""
    while piece := os.read(failure_read, 4096):
        why += piece
    os.close(failure_read)
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
        self.shed = 0  # bytes that the manager was too slow for since the last that it got
        self.inbox = b""
        self.pid = 0  # the main process, as long as it is not collected: its pid, group and session are ours till then
        self.pipe = -1
        self.exited = False
        self.kill_at: float | None = None
        self.manager = -1  # a descriptor that is readable once the manager has gone
        self.followed = False  # there is a manager
        self.keep = 0.0  # seconds for which the tree is kept then
        self.kept_until = NEVER
        self.door: Door | None = None

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
        end = 8 + int(data[:8])
        self.inbox = data[end:]
        spec: dict[str, Any] = marshal.loads(data[8:end])
        return spec

    def hear(self) -> list[bytes] | None:
        """The orders that have come; None once the manager has gone."""
        try:
            data = os.read(self.control, CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        return lines

    def obey(self, order: bytes) -> None:
        word, value = order.split()
        if word == b"end":
            self.end(float(value))
        elif word == b"keep":
            self.keep = float(value)
            if self.keep > 0 and self.door is None:
                try:
                    self.door = Door(self.door_path)
                except ImportError:  # then the tree ends with its manager, as without this
                    self.keep = 0.0

    def heard(self, fd: int) -> None:
        """Something is to be heard from the manager, or of its end. Its last orders count."""
        lost = fd == self.manager
        while lines := self.hear():
            for line in lines:
                self.obey(line)
        if lost or lines is None:
            self.orphaned()

    def follow(self, manager: int) -> None:
        """Hear what a manager says, and of its end."""
        self.followed = True
        self.poll.register(self.control, select.POLLIN)
        # A process that the manager has forked may hold the other end of `control`: end of file alone is not enough.
        try:
            self.manager = os.pidfd_open(manager)
            self.poll.register(self.manager, select.POLLIN)
        except (OSError, AttributeError):
            self.manager = -1

    def orphaned(self) -> None:
        """The manager has gone."""
        self.followed = False
        self.poll.unregister(self.control)
        if self.manager >= 0:
            self.poll.unregister(self.manager)
            os.close(self.manager)
            self.manager = -1
        if self.keep > 0 and self.kill_at is None and not self.exited and self.door is not None and self.door.open():
            self.poll.register(self.door.fd, select.POLLIN)
            self.kept_until = time.monotonic() + min(self.keep, LONGEST_GRACE)
        else:
            self.end(ORPHAN_GRACE)

    def shut_door(self) -> None:
        if self.door is not None and self.door.fd >= 0:
            self.poll.unregister(self.door.fd)
            self.door.shut()
        self.kept_until = NEVER

    def let_in(self) -> None:
        """Somebody is at the door: the first one is the manager from now on, and there is no other."""
        if self.door is None or (found := self.door.let_in()) is None:
            return
        self.shut_door()
        manager, *lines = found
        for fd, ours in zip(lines, (self.control, self.output), strict=True):
            os.dup2(fd, ours, inheritable=False)
            os.close(fd)
            os.set_blocking(ours, False)
        self.inbox, self.shed = b"", 0
        self.follow(manager)
        self.say("adopted", f"{self.pid} {os.fstat(self.pipe).st_ino}")

    def run(self) -> None:
        spec = self.specification()
        if spec is None:
            return
        self.mask = Mask(spec["secrets"])
        why = make_folder(spec["tmpdir"])
        if not why:
            self.log = Log(spec["log"], spec["limit"])
            why = write_files(spec["tmpdir"], spec["files"])
            self.memory = Watch(spec["notes"])
            self.door_path = spec["door"]
            if not why:
                self.pid, self.pipe, why = start(spec)
            if self.pid:
                os.set_blocking(self.control, False)
                self.say("started", f"{self.pid} {os.fstat(self.pipe).st_ino}")
                try:
                    self.watch(spec["manager"])
                finally:  # also if there is a mistake in here, or no memory
                    self.shut_door()
                    self.sweep()
            self.memory.remove()
            remove(spec["tmpdir"])
            attempt(os.unlink, spec["keepsake"])
        attempt(os.unlink, spec["record"])
        if why:
            self.say("failed", why)
        else:
            self.say("gone", 0)

    def watch(self, manager: int) -> None:
        """Until the main process has ended, or must now."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        poll = self.poll = select.poll()
        for fd in (wake_read, self.pipe, self.memory.fd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        self.follow(manager)
        if os.getppid() != manager:
            self.end(ORPHAN_GRACE)
        self.collect()
        while not self.exited and (self.kill_at is None or time.monotonic() < self.kill_at):
            due = min(NEVER if self.kill_at is None else self.kill_at, self.memory.due, self.kept_until)
            for fd, _ in poll.poll(None if due == NEVER else max(0.0, due - time.monotonic()) * 1000):
                if fd == wake_read:
                    attempt(os.read, wake_read, CHUNK)
                elif fd == self.memory.fd:
                    self.memory.woken()
                elif fd == self.pipe:
                    if not self.pump():
                        poll.unregister(fd)
                elif fd in (self.control, self.manager):
                    if self.followed:  # or else it is an old story
                        self.heard(fd)
                elif self.door is not None and fd == self.door.fd:
                    self.let_in()
            self.collect()
            if time.monotonic() >= self.kept_until:
                self.shut_door()
                self.end(ORPHAN_GRACE)
            if time.monotonic() >= self.memory.due:
                self.memory.look()

    def end(self, grace: float) -> None:
        """SIGTERM to the main process alone (engines coordinate their own children), SIGKILL for all after `grace`."""
        at = time.monotonic() + min(max(grace, 0.0), LONGEST_GRACE)
        if self.kill_at is None and grace > 0 and not self.exited:
            attempt(os.kill, self.pid, signal.SIGTERM)
        self.kill_at = at if self.kill_at is None else min(at, self.kill_at)

    def collect(self) -> None:
        """Collect orphans that have ended. The main process is only looked at, and told of when its last words are in
        the log: as long as it is not collected, its pid and its group cannot become somebody else's."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or (ended.si_pid == self.pid and self.exited):
                return
            if ended.si_pid != self.pid:
                os.waitpid(ended.si_pid, 0)
                continue
            self.exited = True
            self.drain()
            self.say("exited", ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)

    def sweep(self) -> None:
        """SIGKILL until nothing is left. Whatever is forked meanwhile becomes our descendant too, and is next."""
        pause = SIGHT
        self.memory.look()
        while self.kill_all():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SIGHT)
        self.drain()
        self.pass_on(self.mask.feed(b"", True))

    def kill_all(self) -> bool:
        """Kill what there is. False if no process of the tree is left: every one of them has an ancestor among our
        children, so that is when we have none."""
        if self.pid:
            attempt(os.killpg, self.pid, signal.SIGKILL)  # at a stroke: faster than a group that forks
        others = set()
        tree = descendants(os.getpid())
        kill_groups(tree)
        for pid, (_, parent, started, _) in tree.items():
            if pid == self.pid:
                continue
            others.add(pid)
            kill(pid, started)
            if parent == os.getpid() and os.waitpid(pid, os.WNOHANG)[0]:
                others.discard(pid)
        self.collect()
        if self.exited and self.pid and not others:
            os.waitpid(self.pid, 0)
            self.pid = 0
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def pump(self) -> bool:
        """Take a piece of output, if there is one. False at its end."""
        try:
            data = os.read(self.pipe, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self.pass_on(self.mask.feed(data))
        return bool(data)

    def drain(self) -> None:
        """Take what output there is, up to a bound."""
        ready = select.poll()
        ready.register(self.pipe, select.POLLIN)
        for _ in range(LAST_WORDS):
            if not ready.poll(0) or not self.pump():
                return

    def pass_on(self, data: bytes) -> None:
        """To the log, and to the manager as far as it has room; it is told what it has missed."""
        if not data:
            return
        self.log.write(data)
        note = (SHED % self.shed).encode() if self.shed else b""
        sent = 0
        try:
            sent = os.write(self.output, note + data)
        except OSError:
            pass
        missed = len(data) - max(0, sent - len(note))
        self.shed = missed if sent >= len(note) else self.shed + missed


def main() -> None:
    # Engines signal their new parent when they are orphaned; terminals signal everybody in the foreground.
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    control, output = int(sys.argv[1]), int(sys.argv[2])
    os.set_blocking(output, False)
    for each in (control, output):
        os.set_inheritable(each, False)
    code = 1
    try:
        Keeper(control, output).run()
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
