"""`stoker cache` shows what lies in the cache folder and removes what nobody builds, and nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lifecycle.adapter import CompileCache
from lifecycle.cli.cache import age
from lifecycle.resources.cache_entries import InUse, clear, entries
from lifecycle.resources.locks import Lease
from tests.builders import QUICK, Builders, Process, starting_builders
from tests.cli.command import Ended, Stoker


@pytest.fixture(scope="module")
def forks() -> Iterator[Builders]:
    with starting_builders() as builders:
        yield builders


@pytest.fixture
def builders(forks: Builders) -> Iterator[Builders]:
    yield forks
    forks.end_all()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "caches"


class Caches:
    """One of each state."""

    def __init__(self, builders: Builders, folder: Path, state: Path) -> None:
        vllm = folder / "vllm"
        self.complete = CompileCache("vllm 0.32, model-a", vllm)
        self.building = CompileCache("vllm 0.32, model-b", vllm)
        self.void = CompileCache("sglang 0.5, model-c", folder / "sglang")
        self.unfinished = CompileCache("vllm 0.31, model-d", vllm)
        self.elsewhere = CompileCache("custom, model-e")
        for cache in (self.complete, self.void, self.elsewhere):
            process = builders.start(cache, state)
            process.acquire()
            if cache.files:
                process.ask("write", count=2)
            process.ask("complete")
            process.ask("release")
        assert self.void.files is not None
        for path in self.void.files.iterdir():
            path.unlink()
        self.builder = builders.start(self.building, state)
        self.builder.acquire()
        died = builders.start(self.unfinished, state)
        died.acquire()
        died.kill()


@pytest.fixture
def caches(builders: Builders, folder: Path, tmp_path: Path) -> Caches:
    return Caches(builders, folder, tmp_path / "state" / "stoker")


def run(stoker: Stoker, folder: Path, *words: str) -> Ended:
    return stoker.run("cache", *words, "--cache-dir", str(folder))


def listed(stoker: Stoker, folder: Path, *words: str) -> dict[str, dict[str, Any]]:
    done = run(stoker, folder, *(words or ("list",)), "--json")
    assert done.code == 0, done.err
    found = [json.loads(line) for line in done.out.splitlines()]
    return {entry["key"]: entry for entry in found}


def test_the_list_tells_the_state_of_each_cache(stoker: Stoker, folder: Path, caches: Caches) -> None:
    found = listed(stoker, folder)
    assert {key: entry["state"] for key, entry in found.items()} == {
        caches.complete.key: "complete",
        caches.building.key: "building",
        caches.void.key: "void",
        caches.unfinished.key: "unfinished",
        caches.elsewhere.key: "complete",
    }
    assert found[caches.building.key]["holder"]["pid"] == caches.builder.pid
    assert found[caches.unfinished.key]["holder"] is None
    assert found[caches.complete.key]["engine"] == "vllm"
    assert found[caches.elsewhere.key]["engine"] == ""
    assert found[caches.complete.key]["size"] > len("first half, second half") * 2


def test_the_table_has_a_line_for_each_cache_and_says_where_they_are(
    stoker: Stoker, folder: Path, caches: Caches
) -> None:
    done = run(stoker, folder, "list")
    assert done.code == 0, done.err
    head, *lines = done.out.splitlines()
    assert head.split() == ["CACHE", "ENGINE", "STATE", "AGE", "SIZE", "BY", "USERS", "KEY"]
    (line,) = [line for line in lines if line.endswith(caches.building.key)]
    assert line.split()[:3] == [caches.building.digest, "vllm", "building"]
    assert f":{caches.builder.pid} " in line
    assert f"in {folder / 'vllm'}" in lines


def test_without_caches_it_says_so(stoker: Stoker, folder: Path) -> None:
    assert run(stoker, folder, "list").out == f"no compile caches in {folder}\n"
    assert listed(stoker, folder) == {}


def test_the_default_folder_is_the_users_own(stoker: Stoker, tmp_path: Path) -> None:
    done = stoker.run("cache", "list", env={"XDG_CACHE_HOME": str(tmp_path / "own")})
    assert done.out == f"no compile caches in {tmp_path / 'own' / 'stoker'}\n"


def test_clear_removes_nothing_before_it_is_told_to(stoker: Stoker, folder: Path, caches: Caches) -> None:
    before = listed(stoker, folder)
    done = run(stoker, folder, "clear", "--all")
    assert done.code == 0
    assert caches.complete.digest in done.out
    assert "--yes" in done.err
    assert listed(stoker, folder) == before


def test_clear_removes_what_a_part_of_the_key_names(stoker: Stoker, folder: Path, caches: Caches) -> None:
    done = run(stoker, folder, "clear", "model-a", "--yes")
    assert done.code == 0, done.err
    assert caches.complete.key not in listed(stoker, folder)
    assert len(listed(stoker, folder)) == 4
    assert not [path for path in (folder / "vllm").iterdir() if path.name.startswith(".")]


def test_clear_removes_what_its_name_names(stoker: Stoker, folder: Path, caches: Caches) -> None:
    assert run(stoker, folder, "clear", caches.void.digest, "--yes").code == 0
    assert caches.void.key not in listed(stoker, folder)


def test_clear_all_leaves_what_is_being_built_and_says_so(stoker: Stoker, folder: Path, caches: Caches) -> None:
    done = run(stoker, folder, "clear", "--all", "--yes")
    assert done.code == 1
    assert f"pid {caches.builder.pid}" in done.err
    assert list(listed(stoker, folder)) == [caches.building.key]
    caches.builder.ask("write", count=1)
    assert caches.builder.ask("complete") == {"done": "complete"}
    assert listed(stoker, folder)[caches.building.key]["state"] == "complete"


@contextmanager
def told(path: Path, cwd: Path) -> Iterator[int]:
    """A server that is told to keep its compiled code there, with a child."""
    script = "import os, sys, time; print(os.fork(), flush=True); time.sleep(100)"
    argv = [sys.executable, "-I", "-S", "-c", script]
    with subprocess.Popen(
        argv, env={"TORCHINDUCTOR_CACHE_DIR": str(path)}, cwd=cwd, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.readline()
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("way", ["straight", "relative", "through a link"])
def test_a_cache_that_a_server_uses_is_shown_so_and_kept_until_forced(
    stoker: Stoker, folder: Path, caches: Caches, way: str
) -> None:
    assert caches.complete.files is not None
    path = caches.complete.files / "inductor"
    if way == "relative":
        path = path.relative_to(folder)
    elif way == "through a link":
        (folder.parent / "link").symlink_to(folder)
        path = folder.parent / "link" / path.relative_to(folder)
    with told(path, folder) as pid, told(Path("/elsewhere") / path.relative_to(path.anchor), folder):
        assert listed(stoker, folder)[caches.complete.key]["users"] == [pid]
        assert listed(stoker, folder)[caches.elsewhere.key]["users"] == []
        assert f" {pid} " in run(stoker, folder, "list").out
        done = run(stoker, folder, "clear", "model-a", "--yes")
        assert done.code == 1
        assert f"pid {pid}" in done.err
        assert "--force" in done.err
        assert caches.complete.files.exists()
        assert run(stoker, folder, "clear", "model-a", "--yes", "--force").code == 0
        assert not caches.complete.files.exists()
    assert caches.complete.key not in listed(stoker, folder)


def test_clear_says_in_json_what_became_of_each(stoker: Stoker, folder: Path, caches: Caches) -> None:
    done = run(stoker, folder, "clear", "model-b", "--yes", "--json")
    assert done.code == 1
    answer = json.loads(done.out)
    assert answer["removed"] is False
    assert str(caches.builder.pid) in answer["error"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("clear",), "--all"),
        (("clear", "x", "--all"), "--all"),
        (("clear", "no-such-cache", "--yes"), "no-such-cache"),
        ((), "ACTION"),
    ],
)
def test_wrong_use_is_refused(stoker: Stoker, folder: Path, words: tuple[str, ...], said: str) -> None:
    done = stoker.run("cache", *words)
    assert done.code == 2
    assert said in done.err


def test_nothing_is_touched_that_is_no_cache(stoker: Stoker, folder: Path, caches: Caches) -> None:
    """Somebody's own folder may have been given as the cache folder."""
    for path in (folder / "photos" / "2024", folder / "vllm" / "0123456789abcdef", folder / "vllm" / "notes"):
        path.mkdir(parents=True)
        (path / "file").touch()
    run(stoker, folder, "clear", "--all", "--yes")
    for path in (folder / "photos" / "2024", folder / "vllm" / "0123456789abcdef", folder / "vllm" / "notes"):
        assert (path / "file").exists()


def leased(builders: Builders, tmp_path: Path, host: str) -> tuple[Process, CompileCache]:
    cache = CompileCache("key", tmp_path / "vllm")
    process = builders.start(cache, tmp_path, flock="ENOSYS", host=host)
    assert process.acquire() == "held"
    return process, cache


def test_a_builder_on_another_host_is_believed_as_long_as_it_beats(
    builders: Builders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> None:
        raise OSError(38, "no flock")

    monkeypatch.setattr(fcntl, "flock", missing)
    process, _ = leased(builders, tmp_path, "elsewhere")
    (entry,) = entries(tmp_path, tmp_path / "state")
    assert entry.state == "building"
    with pytest.raises(InUse, match="elsewhere"):
        clear(entry, Lease(*QUICK))
    process.kill()
    clear(entry, Lease(*QUICK))
    assert entries(tmp_path, tmp_path / "state") == []


def test_a_cache_that_was_cleared_is_built_anew(builders: Builders, tmp_path: Path) -> None:
    cache = CompileCache("key", tmp_path / "vllm")
    first, second = (builders.start(cache, tmp_path) for _ in range(2))
    assert first.acquire() == "held"
    first.ask("write", count=1)
    first.ask("complete")
    first.ask("release")
    (entry,) = entries(tmp_path, tmp_path / "state")
    clear(entry)
    assert second.acquire() == "held"
    assert second.ask("read") == {"files": {}}


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (0, "0 s"), (119, "119 s"), (150, "2 min"), (7300, "2 h"), (200_000, "2 d")]
)
def test_an_age_is_in_the_largest_unit_that_it_has_two_of(seconds: float, text: str) -> None:
    assert age(seconds) == text
