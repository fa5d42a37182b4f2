"""A server under a keeper: however it is started and ended, and whatever its tree does, nothing of it is left."""

from __future__ import annotations

import errno
import os
import resource
import signal
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.adapter import PRIVATE
from lifecycle.errors import LaunchError
from lifecycle.resources import process as process_module
from lifecycle.resources.keeper import NOTICES
from lifecycle.resources.log import LONGEST_LINE, pieces
from lifecycle.resources.process import LONGEST_TMPDIR, KeptProcess, private_tmpdir, spawn
from lifecycle.resources.reap import Leftover, records
from tests.fake import fake_argv
from tests.processes.trees import GUARD, Box, command_line, is_alive, parent_of, python, tree, until, wait_for_end

pytestmark = pytest.mark.anyio

EVASIONS = (
    "plain",
    "session",
    "session+double",
    "deaf",
    "stopped",
    "late",
    "bare+session",
    "quiet+session",
    "bare+quiet+deaf+session+double",
)


async def started(box: Box, *argv: str, begins: str = "", **more: Any) -> KeptProcess:
    """Start a server and read its output until a line begins like that; the rest of it is read by nobody."""
    process = await spawn(box.spawn(*argv, **more))
    with anyio.fail_after(GUARD):
        async for line in process.lines():
            if line.startswith(begins):
                return process
    raise AssertionError(f"it ended: {process.tail(20)}")


async def output_of(process: KeptProcess) -> list[str]:
    with anyio.fail_after(GUARD):
        return [line async for line in process.lines()]


@pytest.mark.fault(10)
@pytest.mark.parametrize("grace", [0, 5])
async def test_end_leaves_no_member_of_the_tree_however_it_tries_to_get_away(box: Box, grace: float) -> None:
    process = await started(box, *tree(box.mark, *EVASIONS), begins="ready")
    members = box.processes()
    assert len(members) == 2 + len(EVASIONS)  # with the leader and the keeper
    assert process.pids() == members - {parent_of(process.pid)}
    with anyio.fail_after(GUARD):
        await process.end(grace)
    assert not [pid for pid in members if is_alive(pid)]
    assert box.left() == {}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
async def test_when_the_main_process_dies_its_tree_follows(box: Box, number: signal.Signals) -> None:
    process = await started(box, *tree(box.mark, *EVASIONS, term="exit"), begins="ready")
    os.kill(process.pid, number)
    with anyio.fail_after(GUARD):
        exit = await process.exited()
        await process.end(1000)
    assert exit.code == (0 if number is signal.SIGTERM else -number)
    assert box.left() == {}


async def test_sigterm_goes_to_the_main_process_only(box: Box) -> None:
    process = await started(box, *tree(box.mark, "plain", "session", "double"), begins="ready")
    with anyio.fail_after(GUARD):
        await process.end(60)
        assert (await process.exited()).code == 0
    said = [line for line in process.tail(100) if "SIGTERM" in line]
    assert said == ["leader got SIGTERM"]


async def test_a_main_process_that_ignores_sigterm_is_killed_after_the_grace(box: Box) -> None:
    process = await started(box, *tree(box.mark, "deaf", term="ignore"), begins="ready")
    with anyio.fail_after(GUARD):
        await process.end(0.05)
        assert (await process.exited()).code == -signal.SIGKILL
    assert "leader got SIGTERM" in process.tail(100)
    assert box.left() == {}


async def test_end_without_grace_sends_no_sigterm(box: Box) -> None:
    process = await started(box, *tree(box.mark, "plain"), begins="ready")
    with anyio.fail_after(GUARD):
        await process.end(0)
        assert (await process.exited()).code == -signal.SIGKILL
    assert not [line for line in process.tail(100) if "SIGTERM" in line]


async def test_the_shortest_of_several_graces_holds_and_sigterm_is_sent_once(box: Box) -> None:
    process = await started(box, *tree(box.mark, term="ignore"), begins="ready")
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            for grace in (1e9, 1000, 0.1, 500):
                group.start_soon(process.end, grace)
    assert process.tail(100).count("leader got SIGTERM") == 1
    assert box.left() == {}


async def test_many_wait_for_the_exit_and_the_end_and_some_of_them_give_up(box: Box) -> None:
    process = await started(box, *tree(box.mark, "deaf"), begins="ready")
    codes: list[int] = []

    async def wait_for_exit() -> None:
        codes.append((await process.exited()).code)

    async def give_up(scope: anyio.CancelScope) -> None:
        with scope:
            await process.exited()

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as group:
            scopes = [anyio.CancelScope() for _ in range(3)]
            for scope in scopes:  # the first of them reads for all
                group.start_soon(give_up, scope)
            for _ in range(5):
                group.start_soon(wait_for_exit)
            await anyio.wait_all_tasks_blocked()
            for scope in scopes:
                scope.cancel()
            await anyio.wait_all_tasks_blocked()
            assert codes == []
            for _ in range(3):
                group.start_soon(process.end, 60)
    assert codes == [0] * 5


async def test_end_and_exited_return_at_once_when_all_is_over(box: Box) -> None:
    process = await spawn(box.spawn(*box.script("raise SystemExit(7)")))
    with anyio.fail_after(GUARD):
        for _ in range(3):
            assert (await process.exited()).code == 7
            await process.end(60)
    assert process.pids() == frozenset()
    assert box.left() == {}


async def test_pids_are_those_of_live_processes(box: Box) -> None:
    orphan = "import os, time; pid = os.fork(); pid or os._exit(0); os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)"
    process = await started(box, *box.script(f"{orphan}; print('zombie', pid, flush=True); time.sleep(100)"))
    assert process.pids() == {process.pid}
    await process.end(0)


async def test_a_tree_that_forks_all_the_time_ends(box: Box) -> None:
    script = """if True:
        import os, signal, time
        end = time.monotonic() + 30  # not for ever
        for number in range(40):
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if number % 2:
                    os.setsid()
                while time.monotonic() < end:
                    time.sleep(0.001)
                    if os.fork():  # the same, under another pid
                        os._exit(0)
                os._exit(0)
        print("grown", flush=True)
        time.sleep(100)
    """
    process = await started(box, *box.script(script), begins="grown")
    with anyio.fail_after(GUARD):
        await process.end(0)
    assert box.left() == {}


async def test_the_server_gets_three_descriptors_and_none_of_ours(box: Box) -> None:
    listing = "import os; print(sorted(os.listdir('/proc/self/fd'), key=int), flush=True)"
    process = await spawn(box.spawn(*box.script(listing)))
    assert await output_of(process) == ["['0', '1', '2', '3']"]  # 3 is the listing's own
    await process.end(0)


async def test_signals_that_the_keeper_ignores_are_not_ignored_in_the_server(box: Box) -> None:
    process = await spawn(box.spawn("grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"))
    own = 1 << 31 | 1 << 32  # the C library's
    notices = sum(1 << number - 1 for number in NOTICES)  # see test_notices.py
    for line in await output_of(process):
        assert int(line.split()[1], 16) & ~(own | (notices if "Ign" in line else 0)) == 0, line
    await process.end(0)


@pytest.mark.parametrize(
    "child", ["plain", "deaf+stopped", "session+double", "bare+session", "bare+session+double", "quiet+session+double"]
)
async def test_when_the_keeper_is_killed_the_tree_is_ended_from_here(box: Box, child: str) -> None:
    process = await started(box, *tree(box.mark, child, child, term="ignore"), begins="ready")
    os.kill(parent_of(process.pid), signal.SIGKILL)
    with anyio.fail_after(GUARD):
        assert (await process.exited()).code == -signal.SIGKILL
        await process.end(60)
    assert box.left() == {}


async def test_a_keeper_that_was_stopped_ends_its_tree_all_the_same(box: Box) -> None:
    process = await started(box, *tree(box.mark, "session", "deaf"), begins="ready")
    os.kill(parent_of(process.pid), signal.SIGSTOP)
    with anyio.fail_after(GUARD):
        await process.end(5)
    assert box.left() == {}


async def test_a_keeper_that_cannot_run_is_a_launch_error(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    for argv in (("/nowhere/python",), python("-c", "raise SystemExit(1)"), python("-c", "import os; os.abort()")):
        monkeypatch.setattr(process_module, "KEEPER", argv)
        with pytest.raises(LaunchError, match="keeper"):
            await spawn(box.spawn("true"))
        assert box.left() == {}


async def test_a_keeper_killed_before_it_is_one_is_a_launch_error(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    start = process_module._start_keeper

    def killed(label: str, server: str) -> process_module.Line:
        line = start(label, server)
        line.child.kill()
        os.waitid(os.P_PID, line.child.pid, os.WEXITED | os.WNOWAIT)
        return line

    monkeypatch.setattr(process_module, "_start_keeper", killed)
    with anyio.fail_after(GUARD), pytest.raises(LaunchError, match="keeper"):
        await spawn(box.spawn("true"))
    assert box.left() == {}


async def test_a_keeper_killed_after_it_forked_and_before_the_server_runs_leaves_nothing(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = box.root / "forked"
    slow = f"""if True:
        import os, runpy, sys, time
        def execute(*arguments, really=os.execvpe):
            os.close(os.open({str(forked)!r}, os.O_CREAT))
            time.sleep(1)
            really(*arguments)
        os.execvpe = execute
        sys.argv[:2] = []
        runpy.run_path({process_module.KEEPER[-1]!r}, run_name="__main__")
    """
    monkeypatch.setattr(process_module, "KEEPER", (*box.script(slow), "keeper.py"))
    async with anyio.create_task_group() as group:

        async def kill() -> None:
            await until(forked.exists)
            child = next(pid for pid in box.processes() if parent_of(pid) in box.processes())
            os.kill(parent_of(child), signal.SIGKILL)
            (record,) = records(box.state)  # as another start would, if the manager were dead as well
            assert record.end()
            assert not is_alive(child)

        group.start_soon(kill)
        with anyio.fail_after(GUARD), pytest.raises(LaunchError):
            await spawn(box.spawn(*tree(box.mark)))
    assert box.left() == {}


async def test_a_keeper_killed_during_the_start_leaves_nothing(box: Box) -> None:
    """Also if the server's process has been forked and is not yet the server."""
    keeper = process_module.KEEPER[-1]
    killed = 0
    for step in range(12):

        async def kill_soon(after: float) -> None:
            nonlocal killed
            await anyio.sleep(after)
            for pid in box.processes():
                if keeper in command_line(pid):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1

        async with anyio.create_task_group() as group:
            group.start_soon(kill_soon, step * 0.003)
            try:
                process = await spawn(box.spawn(*tree(box.mark, "session")))
            except LaunchError:
                continue
        await process.end(0)
        assert box.left() == {}
    assert killed


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("no-such-program-at-all",), ["no-such-program-at-all", "No such file"]),
        (("/no/such/program",), ["/no/such/program", "No such file"]),
        (("{box}/not-executable",), ["not-executable", "Permission denied"]),
        (("/etc",), ["/etc", "Permission denied"]),
        (("{box}/garbage",), ["garbage", "Exec format error"]),
        (("{box}/dangling",), ["dangling", "No such file"]),
        (("true", "x" * 200_000), ["true", "Argument list too long"]),
        (("true", "a\0b"), ["true", "null byte"]),
        (("new\nline",), ["new\\nline", "No such file"]),
    ],
)
async def test_a_command_that_cannot_be_run_is_named_with_the_reason(
    box: Box, argv: tuple[str, ...], words: list[str]
) -> None:
    (box.root / "not-executable").write_text("#!/bin/sh\n")
    (box.root / "garbage").write_bytes(b"\x00\x01\x02")
    (box.root / "garbage").chmod(0o755)
    (box.root / "dangling").write_text("#!/no/such/interpreter\n")
    (box.root / "dangling").chmod(0o755)
    with pytest.raises(LaunchError) as error:
        await spawn(box.spawn(*(word.format(box=box.root) for word in argv)))
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)
    assert box.left() == {}


@pytest.mark.parametrize(("cwd", "reason"), [("missing", "No such file"), ("file", "Not a directory")])
async def test_a_working_folder_that_cannot_be_entered_is_named(box: Box, cwd: str, reason: str) -> None:
    (box.root / "file").touch()
    with pytest.raises(LaunchError, match=reason) as error:
        await spawn(box.spawn("true", cwd=box.root / cwd))
    assert str(box.root / cwd) in str(error.value)
    assert box.left() == {}


async def test_a_manager_whose_own_folder_was_removed_says_so(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = box.root / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(LaunchError, match="working folder"):
        await spawn(box.spawn("true"))
    assert box.left() == {}


async def test_a_state_folder_that_cannot_be_written_is_named_and_no_keeper_is_left(box: Box) -> None:
    (box.state / "servers").touch()
    with pytest.raises(LaunchError, match="servers"):
        await spawn(box.spawn("true"))
    assert box.processes() == set()


async def test_a_record_that_cannot_be_completed_ends_the_start(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Leftover:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Leftover, "started", full)
    with pytest.raises(LaunchError, match="No space left"):
        await spawn(box.spawn(*tree(box.mark, "session")))
    assert box.left() == {}


async def test_a_server_that_has_ended_before_its_record_is_complete_leaves_no_record(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Leftover.started

    def late(self: Leftover, main: int, pipe: int) -> Leftover:
        assert not wait_for_end([self.keeper])
        return write(self, main, pipe)

    monkeypatch.setattr(Leftover, "started", late)
    process = await spawn(box.spawn("true"))
    with anyio.fail_after(GUARD):
        assert (await process.exited()).code == 0
        await process.end(0)
    assert box.left() == {}


@pytest.mark.parametrize("label", ["a\0b", "-c", "", "x" * 500, "\udcff"])
async def test_any_label_will_do(box: Box, label: str) -> None:
    process = await spawn(box.spawn("true", label=label))
    with anyio.fail_after(GUARD):
        assert (await process.exited()).code == 0
        await process.end(0)
    assert box.left() == {}


async def test_a_start_cancelled_at_any_moment_leaves_nothing(box: Box) -> None:
    cut = 0
    for step in range(10):
        with anyio.move_on_after(step * 0.004) as scope:
            process = await spawn(box.spawn(*tree(box.mark, "session+double+deaf")))
            with anyio.CancelScope(shield=True):
                await process.end(0)
        cut += scope.cancelled_caught
        assert box.left() == {}
    assert cut


async def test_the_server_gets_a_private_folder_for_temporary_files_that_goes_with_it(box: Box) -> None:
    script = """if True:
        import os
        folder = os.environ["TMPDIR"]
        os.makedirs(folder + "/a/b")
        os.mkfifo(folder + "/a/fifo")
        os.symlink("/etc", folder + "/a/link")
        os.symlink("/no/such", os.fsencode(folder) + b"/\\xff")
        os.mkdir(folder + "/locked")
        os.chmod(folder + "/locked", 0)
        deep = os.open(folder, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("d", dir_fd=deep)
            deep, old = os.open("d", os.O_RDONLY, dir_fd=deep), deep
            os.close(old)
        print(oct(os.stat(folder).st_mode & 0o777), folder, flush=True)
    """
    process = await spawn(box.spawn(*box.script(script)))
    (line,) = await output_of(process)
    with anyio.fail_after(GUARD):
        await process.end(60)
    mode, folder = line.split()
    assert mode == "0o700"
    assert Path(folder).parent == box.temporary
    assert os.path.exists("/etc/hostname")  # noqa: ASYNC240
    assert box.left() == {}


async def test_a_link_in_the_place_of_the_folder_is_not_followed(box: Box) -> None:
    precious = box.root / "precious"
    precious.mkdir(mode=0o755)
    (precious / "file").touch()
    script = f"import os; os.rmdir(os.environ['TMPDIR']); os.symlink({str(precious)!r}, os.environ['TMPDIR'])"
    process = await spawn(box.spawn(*box.script(script)))
    with anyio.fail_after(GUARD):
        assert (await process.exited()).code == 0
        await process.end(60)
    assert (precious / "file").exists()
    assert precious.stat().st_mode & 0o777 == 0o755
    assert box.left() == {}


@pytest.mark.fault(68)
@pytest.mark.parametrize("length", [*range(50, 62), 90, 200])
async def test_its_path_is_short_however_long_ours_is(
    box: Box, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    ours = box.temporary / ("x" * (length - len(str(box.temporary)) - 1))
    ours.mkdir()
    monkeypatch.setenv("TMPDIR", str(ours))
    assert len(private_tmpdir()) <= LONGEST_TMPDIR


async def test_nothing_is_written_to_find_the_place_for_it(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager killed just then would leave it behind."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = box.temporary.stat().st_mtime_ns
    assert private_tmpdir().startswith(f"{box.temporary}/")
    assert box.temporary.stat().st_mtime_ns == before


async def test_a_folder_that_cannot_be_made_is_a_launch_error(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "private_tmpdir", lambda longest: "/proc/stk-nowhere")
    with pytest.raises(LaunchError, match="/proc/stk-nowhere"):
        await spawn(box.spawn("true"))
    assert box.left() == {}


async def test_files_of_a_command_are_private_and_lie_where_its_argv_names_them(box: Box) -> None:
    script = "import os, sys; print(oct(os.stat(sys.argv[2]).st_mode & 0o777), open(sys.argv[2]).read(), *sys.argv[2:])"
    command = (*box.script(script), f"{PRIVATE}/key.yaml", f"{PRIVATE}/other")
    process = await spawn(box.spawn(*command, files={"key.yaml": "sk-Ü"}))
    (line,) = await output_of(process)
    await process.end(0)
    mode, text, path, other = line.split()
    assert (mode, text, other) == ("0o600", "sk-Ü", f"{PRIVATE}/other")  # only names of files are replaced
    assert Path(path).parent.parent == box.temporary
    assert not Path(path).exists()  # noqa: ASYNC240
    assert box.left() == {}


async def test_a_file_that_cannot_be_written_is_a_launch_error(box: Box) -> None:
    with pytest.raises(LaunchError, match=r"no/such.*No such file or directory"):
        await spawn(box.spawn("true", files={"no/such": "text"}))
    assert box.left() == {}


async def test_a_folder_that_is_somebody_elses_is_not_removed(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = box.root / "theirs"
    theirs.mkdir()
    (theirs / "file").touch()
    monkeypatch.setattr(process_module, "private_tmpdir", lambda longest: str(theirs))
    with pytest.raises(LaunchError, match="File exists"):
        await spawn(box.spawn("true"))
    assert (theirs / "file").exists()


async def test_secrets_are_masked_in_log_and_lines_however_they_are_cut(box: Box) -> None:
    secret = "sk-Ünïcode-1234567890"
    halves = [secret.encode()[:cut] + b"|" + secret.encode()[cut:] for cut in range(1, len(secret.encode()))]
    script = f"""if True:
        import os, time
        os.write(1, b"begin ")
        for half in {halves!r}:
            for part in half.split(b"|"):
                os.write(1, part)
                time.sleep(0.0005)
            os.write(1, b"\\n")
        os.write(1, {secret.encode()!r})
    """
    process = await spawn(box.spawn(*box.script(script), secrets=(secret, "")))
    lines = await output_of(process)
    await process.end(0)
    assert lines == ["begin ***", *["***"] * len(halves)]
    assert box.log.read_text().split("\n") == lines


@pytest.mark.fault(90)
async def test_a_secret_is_not_seen_in_ps_or_in_the_record(box: Box) -> None:
    key = "sk-very-secret"
    process = await started(box, *tree(box.mark), begins="ready", secrets=(key,), env={"KEY": key})
    for pid in box.processes():
        assert "sk-very" not in command_line(pid)
    (record,) = (box.state / "servers").glob("*.json")
    assert b"sk-very" not in record.read_bytes()
    assert record.parent.stat().st_mode & 0o077 == 0
    await process.end(0)


async def test_the_log_is_bounded_and_keeps_its_beginning_and_its_end(box: Box) -> None:
    flood = {"say": "the beginning", "flood": 1_000_000, "exit_before_bind": True}
    process = await spawn(box.spawn(*fake_argv(0, **flood), log_limit=100_000))
    with anyio.fail_after(GUARD):
        await process.exited()
        await process.end(0)
    kept = [piece.read_bytes() for piece in pieces(box.log)]
    assert sum(map(len, kept)) <= 100_000
    assert kept[0].startswith(b"the beginning\n")
    assert b"dropped" in kept[0]
    assert f"fake: {1_000_000 // 100 - 1} " in process.tail(1)[0]
    assert len(process.tail(500)) == 500


@pytest.mark.fault(51)
async def test_a_manager_that_reads_nothing_holds_up_nothing(box: Box) -> None:
    """Far more output than pipe and socket hold, and nobody reads lines."""
    process = await spawn(box.spawn(*fake_argv(0, flood=4_000_000, exit_before_bind=True)))
    with anyio.fail_after(GUARD):
        assert (await process.exited()).code == 1
    assert f"fake: {4_000_000 // 100 - 1} " in process.tail(1)[0]
    await process.end(0)


async def test_a_manager_that_reads_late_is_told_what_it_has_missed(box: Box) -> None:
    flood = "for _ in range(20000): print('x' * 99)\nprint('flooded', flush=True)"
    after = "import time\nwhile True: print('after', flush=True); time.sleep(0.01)"
    process = await spawn(box.spawn(*box.script(f"{flood}\n{after}")))
    with anyio.fail_after(GUARD):
        await until(lambda: "after" in process.tail(1))
        async for line in process.lines():
            if "were not passed on" in line:
                break
    await process.end(0)


async def test_a_tree_that_shouts_for_ever_ends_all_the_same(box: Box) -> None:
    shout = "import os, sys\nos.fork(); os.fork()\nwhile True: os.write(1, b'x' * 65536)"
    process = await started(box, *box.script("print('up', flush=True)\n" + shout))
    os.kill(process.pid, signal.SIGKILL)
    with anyio.fail_after(GUARD):
        await process.exited()
        await process.end(60)
    assert box.left() == {}


@pytest.mark.fault(50, 52)
async def test_no_bytes_stop_the_reader(box: Box) -> None:
    odd = b"\x1b[31m\xff\xfe\0\r\n\x00\x00".hex()
    said = {"say": "at first", "say_hex": odd, "long_line": 10_000_000, "progress": 50, "broken_bytes": True}
    process = await spawn(box.spawn(*fake_argv(0, **said, say_err="too", traceback="cause", exit_before_bind=True)))
    lines = await output_of(process)
    await process.end(0)
    assert lines[0] == "at first"
    assert process.tail(1)[0].startswith("RuntimeError")
    assert all(len(line) <= LONGEST_LINE + 100 for line in lines)
    assert any("�" in line for line in lines)


async def test_the_last_words_come_before_the_exit(box: Box) -> None:
    for _ in range(5):
        process = await spawn(box.spawn(*box.script("print('x' * 50000); print('last words')")))
        with anyio.fail_after(GUARD):
            await process.exited()
        assert process.tail(1) == ["last words"]
        await process.end(0)


async def test_a_full_disk_costs_log_lines_and_not_the_server(box: Box) -> None:
    box.log.symlink_to("/dev/full")
    process = await spawn(box.spawn(*fake_argv(0, flood=1_000_000, exit_before_bind=True), log_limit=1 << 30))
    lines = await output_of(process)
    with anyio.fail_after(GUARD):
        assert (await process.exited()).code == 1
        await process.end(0)
    assert len(lines) > 1000


async def test_a_log_goes_on_when_there_is_room_again(box: Box) -> None:
    script = "import sys\nfor line in iter(lambda: __import__('time').sleep(.001), 1): print('x' * 99, flush=True)"
    process = await spawn(box.spawn(*box.script(script)))
    keeper = parent_of(process.pid)
    resource.prlimit(keeper, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    await until(lambda: box.log.stat().st_size == 4096)
    with anyio.fail_after(GUARD):
        seen = 0
        async for _ in process.lines():  # the server goes on all the while
            seen += 1
            if seen == 100:
                break
    assert box.log.stat().st_size == 4096
    resource.prlimit(keeper, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await until(lambda: box.log.stat().st_size > 8192)
    await process.end(0)


@pytest.mark.parametrize("kind", ["missing folder", "folder", "fifo"])
async def test_a_log_that_cannot_be_written_costs_the_log_and_not_the_server(box: Box, kind: str) -> None:
    log = box.root / "no" / "log" if kind == "missing folder" else box.root / "odd"
    if kind == "folder":
        log.mkdir()
    elif kind == "fifo":
        os.mkfifo(log)
    process = await spawn(box.spawn(*box.script("print('hello')"), log=log))
    assert await output_of(process) == ["hello"]
    with anyio.fail_after(GUARD):
        assert (await process.exited()).code == 0
        await process.end(0)
    if kind != "fifo":
        assert process.tail(5) == []


async def test_lines_that_nobody_reads_any_more_do_not_end_the_server(box: Box) -> None:
    process = await started(box, *fake_argv(0, model=box.mark, repeat_line="again", repeat_every=0.001), begins="again")
    size = box.log.stat().st_size
    await until(lambda: box.log.stat().st_size > size + 1000)
    assert is_alive(process.pid)
    await process.end(0)


async def test_a_record_tells_who_runs_what_while_it_runs(box: Box) -> None:
    process = await started(box, *tree(box.mark), begins="ready")
    (record,) = records(box.state)
    assert (record.label, record.manager, record.main) == (box.mark, os.getpid(), process.pid)
    assert record.keeper == parent_of(process.pid)
    assert not record.orphaned
    assert set(record.processes()) == box.processes()
    await process.end(0)
    assert box.left() == {}
