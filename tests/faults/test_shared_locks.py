"""The lock on compile caches, on file systems that have no locks, whose locks exclude nobody, that are another user's,
stale, full or read-only."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.adapter import CompileCache
from lifecycle.resources.caches import CacheUnusable
from lifecycle.resources.compile_lock import Held, acquire, holder
from lifecycle.resources.locks import Lease
from tests.builders import GUARD, QUICK, Builders, starting_builders

MISSING = ("ENOSYS", "ENOLCK", "EOPNOTSUPP")
NFS = "server:/home / nfs4 rw,local_lock=all 0 0\n"
STRANGER, OTHER = 54321, 54322
"""Users that nobody is."""


@pytest.fixture(scope="module")
def forks() -> Iterator[Builders]:
    with starting_builders() as builders:
        yield builders


@pytest.fixture
def builders(forks: Builders) -> Iterator[Builders]:
    yield forks
    forks.end_all()


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that other users may enter."""
    path = Path(tempfile.mkdtemp(prefix="stk-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def cache(root: Path) -> CompileCache:
    return CompileCache("vllm 0.32, a model", root / "vllm")


@pytest.fixture
def state(root: Path) -> Path:
    return root / "state"


async def get(cache: CompileCache, state: Path) -> Held:
    with anyio.fail_after(GUARD):
        held = await acquire(cache, state, lease=Lease(*QUICK))
    assert held is not None
    return held


@pytest.mark.fault(58)
@pytest.mark.parametrize("missing", MISSING)
def test_without_flock_a_lease_excludes_others_and_everybody_is_told(
    builders: Builders, cache: CompileCache, state: Path, missing: str
) -> None:
    first, second = (builders.start(cache, state, flock=missing) for _ in range(2))
    for process in (first, second):
        process.tell("acquire")
        assert "no flock" in process.until("note")
    assert first.until("got") == "held"
    assert second.until("waiting")["pid"] == first.pid
    first.ask("complete")
    assert second.until("got") == "complete"


@pytest.mark.parametrize("missing", MISSING)
def test_a_holder_of_a_lease_that_is_seen_to_die_is_followed_at_once(
    builders: Builders, cache: CompileCache, state: Path, missing: str
) -> None:
    """At once: long before the lease runs out, which is after the test's deadline."""
    first, second = (builders.start(cache, state, flock=missing, lease=(10 * GUARD, 1)) for _ in range(2))
    assert first.acquire() == "held"
    second.tell("acquire")
    second.until("waiting")
    first.kill()
    assert second.until("got") == "held"


@pytest.mark.fault(60)
def test_a_holder_on_another_host_that_beats_is_never_followed_and_one_that_does_not_is(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    """Its event loop is busy all the time; the heartbeats are not its event loop's. One that is busy for three times as
    long as its lease lasts has had to beat to keep it."""
    first = builders.start(cache, state, flock="ENOSYS", host="elsewhere")
    assert first.acquire() == "held"
    second = builders.start(cache, state, flock="ENOSYS")
    looks = [second.ask("look") for _ in range(2)]
    first.tell("busy", beats=3 * round(QUICK[0] / QUICK[1]))
    second.tell("acquire")
    assert second.until("waiting")["host"] == "elsewhere"
    assert first.until("done") == "busy"
    assert first.ask("complete") == {"done": "complete"}
    assert second.until("got") == "complete"
    assert looks == [{"got": "waiting"}] * 2
    third = builders.start(CompileCache("other", cache.root), state, flock="ENOSYS", host="elsewhere")
    fourth = builders.start(CompileCache("other", cache.root), state, flock="ENOSYS")
    assert third.acquire() == "held"
    fourth.tell("acquire")
    fourth.until("waiting")
    third.kill()
    assert fourth.until("got") == "held"


def test_who_has_lost_a_lease_does_not_mark_the_cache_of_the_next_one(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    """A process that is stopped does not beat; it goes on when another one has begun to build."""
    first = builders.start(cache, state, flock="ENOSYS", host="elsewhere")
    assert first.acquire() == "held"
    os.kill(first.pid, signal.SIGSTOP)
    second = builders.start(cache, state, flock="ENOSYS")
    assert second.acquire() == "held"
    os.kill(first.pid, signal.SIGCONT)
    first.ask("busy", beats=4)
    answer = first.ask("complete")
    assert "lost" in answer["error"]
    assert not (cache.entry(state) / "complete").exists()
    builder = holder(cache, state)
    assert builder is not None
    assert builder.pid == second.pid
    assert second.ask("complete") == {"done": "complete"}


@pytest.mark.parametrize("torn", [b"", b"\0", b"filelock/2\npid=1"])
def test_a_lease_that_was_torn_by_a_kill_is_taken_over(
    builders: Builders, cache: CompileCache, state: Path, torn: bytes
) -> None:
    lease = cache.entry(state) / "lease"
    lease.parent.mkdir(parents=True)
    lease.write_bytes(torn)
    assert builders.start(cache, state, flock="ENOSYS").acquire() == "held"


@pytest.mark.fault(58)
def test_where_neither_lock_is_possible_there_is_an_error_at_once(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    (cache.entry(state) / "lease").mkdir(parents=True)
    process = builders.start(cache, state, flock="ENOSYS")
    process.tell("acquire")
    assert "set cache_dir" in process.until("error")


def test_two_that_do_not_agree_on_the_lease_are_told_so(builders: Builders, cache: CompileCache, state: Path) -> None:
    assert builders.start(cache, state, flock="ENOSYS").acquire() == "held"
    other = builders.start(cache, state, flock="ENOSYS", lease=(9.0, 1.0))
    other.tell("acquire")
    assert "lease" in other.until("error")


@pytest.mark.fault(59)
def test_where_flock_excludes_nobody_a_live_builder_on_the_same_host_is_waited_for(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    first, second = (builders.start(cache, state, flock="succeeds") for _ in range(2))
    assert first.acquire() == "held"
    second.tell("acquire")
    assert second.until("waiting")["pid"] == first.pid
    first.kill()
    assert second.until("got") == "held"


@pytest.mark.fault(59)
def test_where_the_mounts_show_a_network_a_lease_excludes_hosts_that_flock_does_not(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    first, second = (builders.start(cache, state, flock="succeeds", mounts=NFS, host=host) for host in ("one", "two"))
    first.tell("acquire")
    assert "nfs4" in first.until("note")
    assert first.until("got") == "held"
    (cache.entry(state) / "holder").unlink()  # what else would exclude it: here, both are on one host
    assert second.ask("lock") == {"taken": False}


def test_hosts_that_differ_in_what_flock_does_exclude_each_other(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    """Two clients of one server, one of them mounted without locks."""
    for first, second in (("", "ENOSYS"), ("ENOLCK", "")):
        key = CompileCache(f"{first}{second}", cache.root)
        holder = builders.start(key, state, flock=first, mounts=NFS, host="one")
        assert holder.acquire() == "held"
        assert builders.start(key, state, flock=second, mounts=NFS, host="two").ask("lock") == {"taken": False}


@pytest.mark.fault(59)
def test_locks_that_exclude_nobody_do_no_harm_to_the_mark(builders: Builders, cache: CompileCache, state: Path) -> None:
    """Nothing tells two hosts of each other here, so both build. Each mark is whole, whoever writes it last."""
    both = [builders.start(cache, state, flock="succeeds") for _ in range(2)]
    for process in both:
        assert process.acquire() == "held"
        (cache.entry(state) / "holder").unlink()
        process.ask("write", count=3)
    for process in both:
        assert process.ask("complete") == {"done": "complete"}
    assert builders.start(cache, state).acquire() == "complete"


def once(function: Callable[..., Any], number: int, times: int = 1) -> Callable[..., Any]:
    """A call of the system that fails a few times, and then does what it did."""
    failures = iter(range(times))

    def failing(*arguments: Any, **more: Any) -> Any:
        for _ in failures:
            raise OSError(number, os.strerror(number))
        return function(*arguments, **more)

    return failing


CALLS = [(os, "open"), (os, "stat"), (os, "scandir"), (os, "fstat"), (fcntl, "flock")]


@pytest.mark.fault(61)
@pytest.mark.anyio
@pytest.mark.parametrize(("module", "name"), CALLS, ids=[name for _, name in CALLS])
async def test_a_stale_handle_is_tried_again(
    cache: CompileCache, state: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    monkeypatch.setattr(module, name, once(getattr(module, name), errno.ESTALE, times=2))
    (await get(cache, state)).release()


@pytest.mark.fault(61)
@pytest.mark.anyio
async def test_handles_that_stay_stale_are_an_error(
    cache: CompileCache, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", once(fcntl.flock, errno.ESTALE, times=10**9))
    with anyio.fail_after(GUARD), pytest.raises(CacheUnusable, match=r"Stale file handle.*set cache_dir"):
        await acquire(cache, state)


FULL = [("write", errno.ENOSPC), ("write", errno.EDQUOT), ("write", errno.EIO), ("replace", errno.ENOSPC)]


@pytest.mark.anyio
@pytest.mark.parametrize(("call", "number"), FULL)
async def test_a_full_disk_at_the_record_of_the_holder_leaves_nothing_held(
    builders: Builders, cache: CompileCache, state: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, once(getattr(os, call), number))
        with pytest.raises(CacheUnusable, match=os.strerror(number)) as kept:
            await acquire(cache, state)
    assert builders.start(cache, state).acquire() == "held"
    assert kept.value is not None  # with its traceback, in which the lock would live on
    assert not list(cache.entry(state).glob(".holder*"))


@pytest.mark.anyio
@pytest.mark.parametrize(("call", "number"), FULL)
async def test_a_full_disk_at_the_mark_leaves_nothing_held_and_no_mark(
    builders: Builders, cache: CompileCache, state: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    held = await get(cache, state)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, once(getattr(os, call), number))
        with pytest.raises(CacheUnusable, match=os.strerror(number)):
            held.complete()
    assert builders.start(cache, state).acquire() == "held"
    held.release()
    assert not list(cache.entry(state).glob("*complete*"))


@pytest.mark.anyio
async def test_a_full_disk_at_the_lease_leaves_it_free(
    builders: Builders, cache: CompileCache, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", once(fcntl.flock, errno.ENOSYS, times=10**9))
        patch.setattr(os, "write", once(os.write, errno.ENOSPC))
        with pytest.raises(CacheUnusable, match="make room"):
            await acquire(cache, state)
    assert builders.start(cache, state, flock="ENOSYS").acquire() == "held"


@pytest.mark.anyio
async def test_a_folder_that_cannot_be_made_is_a_clear_error(cache: CompileCache, state: Path) -> None:
    for path in (state / "compile", cache.root):
        assert path is not None
        path.parent.mkdir(exist_ok=True)
        path.touch()
    with pytest.raises(CacheUnusable, match="set cache_dir"):
        await acquire(cache, state)
    with pytest.raises(CacheUnusable, match="set state_dir"):
        await acquire(CompileCache("elsewhere"), state)


@pytest.mark.fault(62)
@pytest.mark.anyio
async def test_a_lock_file_that_cannot_be_opened_is_a_clear_error(cache: CompileCache, state: Path) -> None:
    (cache.entry(state) / "lock").mkdir(parents=True)
    with pytest.raises(CacheUnusable, match="set cache_dir"):
        await acquire(cache, state)


def refused(builders: Builders, cache: CompileCache, state: Path) -> str:
    """What a process that is not root is told."""
    process = builders.start(cache, state, user=STRANGER)
    process.tell("acquire")
    return str(process.until("error"))


def test_a_folder_that_cannot_be_written_to_is_a_clear_error(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    assert cache.root is not None
    cache.root.mkdir(mode=0o555)
    said = refused(builders, cache, state)
    assert "Permission denied" in said
    assert "set cache_dir to a folder of your own" in said


def test_a_complete_cache_in_a_folder_that_cannot_be_written_to_is_used(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    process = builders.start(cache, state)
    assert process.acquire() == "held"
    process.ask("write", count=1)
    process.ask("complete")
    process.ask("release")
    for path in (cache.entry(state), cache.entry(state) / "files"):
        path.chmod(0o555)
    (cache.entry(state) / "complete").chmod(0o444)
    assert builders.start(cache, state, user=STRANGER).acquire() == "complete"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that are another user's")


@pytest.mark.fault(62)
@needs_root
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o444])
def test_a_lock_file_of_another_user_is_named_with_its_owner(
    builders: Builders, cache: CompileCache, state: Path, mode: int
) -> None:
    """Made by the first user of a folder, as the umask had it."""
    entry = cache.entry(state)
    entry.mkdir(parents=True)
    os.chown(entry, STRANGER, STRANGER)
    lock = entry / "lock"
    lock.touch()
    lock.chmod(mode)
    os.chown(lock, OTHER, OTHER)
    said = refused(builders, cache, state)
    assert f"{lock}: Permission denied" in said
    assert f"belongs to user {OTHER}" in said
    assert "set cache_dir to a folder of your own" in said


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_compiled_code_of_another_user_is_not_used(
    builders: Builders, cache: CompileCache, state: Path, mode: int
) -> None:
    process = builders.start(cache, state, user=OTHER)
    assert cache.root is not None
    cache.root.mkdir()
    cache.root.chmod(0o1777)
    assert process.acquire() == "held"
    process.ask("write", count=1)
    process.ask("complete")
    process.ask("release")
    cache.entry(state).chmod(mode)
    said = refused(builders, cache, state)
    assert f"belongs to user {OTHER}" in said
    assert "set cache_dir to a folder of your own" in said


@pytest.mark.fault(63)
@needs_root
def test_a_lock_file_of_another_user_in_a_sticky_folder_is_named_with_its_owner(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    """Its mode allows everything, and yet its owner could replace it."""
    entry = cache.entry(state)
    entry.mkdir(parents=True)
    entry.chmod(0o1777)
    lock = entry / "lock"
    lock.touch()
    lock.chmod(0o666)
    os.chown(lock, OTHER, OTHER)
    said = refused(builders, cache, state)
    assert str(lock) in said
    assert str(OTHER) in said
    assert "set cache_dir to a folder of your own" in said
