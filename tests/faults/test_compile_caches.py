"""Compile caches that concurrent starts would break: many writers, half files, old marks, dead builders, and folders
that are another machine's."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import anyio
import msgspec
import pytest

from lifecycle.adapter import CompileCache
from lifecycle.resources import caches
from lifecycle.resources.cache_entries import entries
from lifecycle.resources.compile_lock import Complete, Contender, Held, acquire, holder, void
from lifecycle.resources.mounts import network_mount
from tests.builders import GUARD, Builders, Process, starting_builders

WHOLE = "first half, second half"


@pytest.fixture(scope="module")
def forks() -> Iterator[Builders]:
    with starting_builders() as builders:
        yield builders


@pytest.fixture
def builders(forks: Builders) -> Iterator[Builders]:
    yield forks
    forks.end_all()


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    return CompileCache("vllm 0.32, torch 2.11, H200, a model", tmp_path / "vllm")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def built(process: Process, files: int = 3) -> None:
    assert process.acquire() == "held"
    process.ask("write", count=files)
    assert process.ask("complete") == {"done": "complete"}
    process.ask("release")


async def get(cache: CompileCache, state: Path) -> Held | None:
    with anyio.fail_after(GUARD):
        return await acquire(cache, state)


@pytest.mark.fault(73)
def test_of_eight_that_start_at_once_one_builds_and_nobody_reads_half_a_file(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    processes = [builders.start(cache, state) for _ in range(8)]
    for process in processes:
        process.tell("acquire")
    (first,) = [process for process in processes if next_word(process) == "held"]
    others = [process for process in processes if process is not first]
    first.ask("write", count=20)
    first.ask("complete")
    for process in others:
        assert process.until("got") == "complete"
        files = process.ask("read")["files"]
        assert len(files) == 20
        assert set(files.values()) == {WHOLE}


def next_word(process: Process) -> str:
    """Whether it builds or waits."""
    said = process.says()
    return str(said.get("got", "waits"))


def test_starts_of_different_keys_do_not_wait_for_each_other(builders: Builders, state: Path, tmp_path: Path) -> None:
    keys = [CompileCache(key, tmp_path / engine) for key in ("one", "two") for engine in ("vllm", "sglang")]
    assert [builders.start(key, state).acquire() for key in keys] == ["held"] * 4


@pytest.mark.fault(76)
def test_when_a_builder_is_killed_before_the_mark_the_next_in_line_builds_anew(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    first, *others = (builders.start(cache, state) for _ in range(4))
    assert first.acquire() == "held"
    for process in others:
        process.tell("acquire")
        assert process.until("waiting")["pid"] == first.pid
    first.ask("write", count=3)
    first.kill()
    words = [next_word(process) for process in others]
    assert words.count("held") == 1
    second = others[words.index("held")]
    assert second.ask("read") == {"files": {}}  # nothing of what was perhaps half written
    second.ask("write", count=1)
    second.ask("complete")
    for process in others:
        if process is not second:
            assert process.until("got") == "complete"
            assert process.ask("read") == {"files": {"artefact-0": WHOLE}}


def test_a_builder_that_is_killed_after_the_mark_makes_nobody_build(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    first, second = (builders.start(cache, state) for _ in range(2))
    assert first.acquire() == "held"
    first.ask("write", count=1)
    first.ask("complete")
    first.kill()
    assert second.acquire() == "complete"


def test_the_mark_says_what_where_whose_and_when(builders: Builders, cache: CompileCache, state: Path) -> None:
    process = builders.start(cache, state)
    built(process)
    mark = caches.mark_of(cache.entry(state))
    assert mark is not None
    assert (mark.key, mark.engine, mark.folder) == (cache.key, "vllm", str(cache.files))
    assert mark.pid == process.pid
    assert mark.kept


@pytest.mark.fault(74)
@pytest.mark.anyio
@pytest.mark.parametrize(
    "harm",
    [
        lambda cache, mark: shutil.rmtree(cache.files),
        lambda cache, mark: [path.unlink() for path in cache.files.iterdir()],
        lambda cache, mark: cache.files.rename(cache.files.with_name("x")).joinpath("artefact-0").rename(cache.files),
        lambda cache, mark: mark.write_bytes(b""),
        lambda cache, mark: mark.write_bytes(mark.read_bytes()[:20]),
        lambda cache, mark: mark.write_bytes(b"\xff\xfe"),
        lambda cache, mark: mark.write_bytes(b'{"key": 1}'),
        lambda cache, mark: mark.unlink(),
    ],
    ids=["files gone", "files empty", "files no folder", "empty", "torn", "no text", "other fields", "gone"],
)
async def test_a_mark_is_void_without_its_files_or_if_it_makes_no_sense(
    builders: Builders, cache: CompileCache, state: Path, harm: Callable[[CompileCache, Path], object]
) -> None:
    built(builders.start(cache, state))
    harm(cache, cache.entry(state) / "complete")
    held = await get(cache, state)
    assert held is not None
    assert not (cache.entry(state) / "complete").exists()
    assert cache.files is not None
    assert list(cache.files.iterdir()) == []
    held.release()


@pytest.mark.fault(74)
@pytest.mark.anyio
async def test_a_mark_of_another_key_is_void(builders: Builders, cache: CompileCache, state: Path) -> None:
    """Such as one that was copied from a cache of an older version."""
    built(builders.start(cache, state))
    other = replace(cache, key=cache.key.replace("0.32", "0.33"))
    shutil.copytree(cache.entry(state), other.entry(state))
    held = await get(other, state)
    assert held is not None
    held.release()


@pytest.mark.anyio
async def test_a_build_that_wrote_no_files_is_complete_without_them(cache: CompileCache, state: Path) -> None:
    """An engine that was told to compile nothing: else every start would build in turn, one after the other."""
    held = await get(cache, state)
    assert held is not None
    held.complete()
    held.release()
    assert await get(cache, state) is None


@pytest.mark.anyio
async def test_a_broken_cache_is_built_anew(builders: Builders, cache: CompileCache, state: Path) -> None:
    built(builders.start(cache, state))
    void(cache, state)
    void(cache, state)
    held = await get(cache, state)
    assert held is not None
    assert cache.files is not None
    assert list(cache.files.iterdir()) == []
    assert list(cache.entry(state).glob(".old-*")) == []
    held.release()


@pytest.mark.anyio
async def test_voiding_a_cache_that_somebody_builds_leaves_it_alone(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    first = builders.start(cache, state)
    assert first.acquire() == "held"
    first.ask("write", count=1)
    void(cache, state)
    assert first.ask("read") == {"files": {"artefact-0": WHOLE}}
    first.ask("complete")
    assert await get(cache, state) is None


def test_a_builder_that_died_is_not_named_and_one_of_another_host_is(
    builders: Builders, cache: CompileCache, state: Path
) -> None:
    first = builders.start(cache, state)
    assert first.acquire() == "held"
    found = holder(cache, state)
    assert found is not None
    assert found.pid == first.pid
    first.kill()
    assert holder(cache, state) is None
    path = cache.entry(state) / "holder"
    record = caches.builder_of(cache.entry(state))
    assert record is not None
    path.write_bytes(msgspec.json.encode(replace(record, host="elsewhere", boot="another")))
    found = holder(cache, state)
    assert found is not None
    assert found.host == "elsewhere"


@pytest.mark.anyio
@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"host": 1, "pid": "x", "since": 0}'])
async def test_a_record_of_the_builder_that_makes_no_sense_is_nobody(
    cache: CompileCache, state: Path, content: str
) -> None:
    held = await get(cache, state)
    assert held is not None
    held.release()
    cache.entry(state).mkdir()
    (cache.entry(state) / "holder").write_text(content)
    assert holder(cache, state) is None
    held = await get(cache, state)
    assert held is not None
    held.release()


@pytest.mark.anyio
async def test_who_builds_nothing_leaves_nothing(cache: CompileCache, state: Path) -> None:
    held = await get(cache, state)
    assert held is not None
    held.release()
    assert not cache.entry(state).exists()
    assert entries(cache.entry(state).parent.parent, state) == []


@pytest.mark.anyio
async def test_who_leaves_in_the_middle_of_a_build_leaves_its_files_to_be_seen(
    cache: CompileCache, state: Path
) -> None:
    held = await get(cache, state)
    assert held is not None
    assert cache.files is not None
    (cache.files / "half").touch()
    held.release()
    assert [entry.state for entry in entries(cache.entry(state).parent.parent, state)] == ["unfinished"]


def test_of_many_that_come_and_leave_an_empty_cache_at_once_one_has_it_at_a_time_and_nobody_fails(
    cache: CompileCache, state: Path
) -> None:
    inside: list[int] = []
    most: list[int] = []

    def come_and_go(number: int) -> None:
        contender = Contender(cache, state)
        for _ in range(40):
            while not isinstance(held := contender.look(), Held):
                assert not isinstance(held, Complete)
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)
            held.release()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(come_and_go, range(4)))
    assert max(most) == 1
    assert len(most) == 160
    assert not cache.entry(state).exists()


MOUNTS = r"""
/dev/sda1 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
/etc/auto.home /home autofs rw,fd=7 0 0
server:/vol/home /home nfs4 rw,vers=4.2,local_lock=none 0 0
server:/vol/home/new /home/my\040user nfs rw 0 0
10.0.0.1@tcp:/scratch /scratch lustre rw,localflock 0 0
/dev/nvme0n1 /scratch/local xfs rw 0 0
me@host: /mnt/ssh fuse.sshfs rw 0 0
overlay /home/me/containers fuse.fuse-overlayfs rw 0 0
C:\134 /mnt/c 9p rw 0 0
//server/share /mnt/share cifs rw 0 0
beegfs_nodev /beegfs beegfs rw 0 0
gpfs /gpfs gpfs rw 0 0
1.2.3.4:/ /ceph ceph rw 0 0
broken line
"""


@pytest.mark.fault(75)
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", None),
        ("/home", "nfs4"),
        ("/home/me/.cache/stoker", "nfs4"),
        ("/homework", None),
        ("/home/my user/.cache", "nfs"),
        ("/scratch/caches", "lustre"),
        ("/scratch/local/caches", None),
        ("/mnt/ssh/x", "fuse.sshfs"),
        ("/home/me/containers/x", None),
        ("/mnt/c/Users", "9p"),
        ("/mnt/share", "cifs"),
        ("/beegfs/x", "beegfs"),
        ("/gpfs/x", "gpfs"),
        ("/ceph", "ceph"),
        ("/dev/shm/x", None),
    ],
)
def test_the_mounts_tell_a_network_file_system(path: str, kind: str | None) -> None:
    assert network_mount(Path(path), MOUNTS) == kind


def test_no_mounts_are_no_network() -> None:
    assert network_mount(Path("/home"), "") is None


@pytest.mark.fault(75)
def test_a_cache_on_a_network_file_system_is_warned_of(
    builders: Builders, cache: CompileCache, state: Path, tmp_path: Path
) -> None:
    process = builders.start(cache, state, mounts=f"server:/x {tmp_path} nfs4 rw 0 0\n")
    process.tell("acquire")
    said = process.until("note")
    assert "nfs4" in said
    assert "local disk" in said
