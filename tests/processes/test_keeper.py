"""The keeper: its parts, and what becomes of a server's tree when its manager, its keeper or its leader is killed."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifecycle.resources import keeper
from lifecycle.resources.bounded_log import GAP, LEAST_LIMIT, Log, Mask
from lifecycle.resources.log import pieces
from lifecycle.resources.reap import reap
from lifecycle.resources.tree import descendants, kill, kill_groups, stat_of
from tests.fake import fake_command, literal
from tests.processes.trees import HERE, Box, Manager, command_line, is_alive, kill_together, parent_of

CHILDREN = ("same", "session,ignore-term", "double,ignore-term,quiet")


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` in pieces."""
    places = sorted({0, len(data), *(place for place in cuts if place < len(data))})
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


def masked(secrets: list[str], parts: list[bytes]) -> bytes:
    mask = Mask(secrets)
    return b"".join(mask.feed(part) for part in parts) + mask.feed(b"", True)


few = st.text("ab", max_size=6)
secret_lists = st.lists(st.text("abc", max_size=5), max_size=3)


@given(secret_lists, st.text("abcd", max_size=40), st.lists(st.integers(0, 40), max_size=20))
@example(["ab", "abcd"], "abcdab", [2])
@example(["aab"], "aaab", [1, 2, 3])
@example(["ab", "ba"], "aba", [2])
def test_secrets_are_masked_the_same_however_the_stream_is_cut(secrets: list[str], text: str, cuts: list[int]) -> None:
    data = text.encode()
    assert masked(secrets, cut(data, cuts)) == masked(secrets, [data])


@given(secret_lists, st.text("abcd", max_size=40), st.lists(st.integers(0, 40), max_size=20))
def test_no_secret_comes_out_and_all_else_does(secrets: list[str], text: str, cuts: list[int]) -> None:
    out = masked(secrets, cut(text.encode(), cuts)).decode()
    assert not [secret for secret in secrets if secret and secret in out]
    for between in out.split("***"):
        assert between in text
    if not any(secret in text for secret in secrets if secret):
        assert out == text


def test_no_more_is_kept_back_than_could_begin_a_secret() -> None:
    mask = Mask(["secret"])
    assert mask.feed(b"no such thing: se") == b"no such thing: "
    assert mask.feed(b"a") == b"sea"


@given(
    st.integers(0, 3 * LEAST_LIMIT),
    st.integers(0, 8 * LEAST_LIMIT),
    st.lists(st.integers(0, 8 * LEAST_LIMIT), max_size=20),
)
def test_a_log_never_outgrows_its_limit_and_keeps_both_ends(limit: int, size: int, cuts: list[int]) -> None:
    data = b"".join(b"%07d\n" % number for number in range(size // 8))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        log = Log(str(path), limit)
        for part in cut(data, cuts):
            log.write(part)
        os.close(log.fd)
        first, older, newer = (piece.read_bytes() if piece.exists() else b"" for piece in pieces(path))
    limit = max(limit, LEAST_LIMIT)
    assert len(first) + len(older) + len(newer) <= limit
    if GAP in first:
        begin, end = first.removesuffix(GAP), older + newer
        assert len(data) > len(begin) + len(end)
        assert data.startswith(begin)
        assert data.endswith(end)
        assert min(len(begin), len(end)) >= limit // 4 - len(GAP)
    else:
        assert first + older + newer == data


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(("sleep", "100"), start_new_session=True)


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_a_process_that_has_got_the_pid_since_is_not_killed(
    monkeypatch: pytest.MonkeyPatch, has_pidfd: bool
) -> None:
    if not has_pidfd:
        monkeypatch.setattr(os, "pidfd_open", lambda pid: (_ for _ in ()).throw(OSError(errno.ENOSYS, "")))
    stranger = sleeper()
    try:
        stat = stat_of(stranger.pid)
        assert stat is not None
        _, parent, started, group = stat
        for other in (started - 1, started + 1, 0):
            kill(stranger.pid, other)
            kill_groups({stranger.pid: (b"S", parent, other, group)})
        assert is_alive(stranger.pid)
        kill(stranger.pid, started)
        assert stranger.wait(10) == -signal.SIGKILL
    finally:
        stranger.kill()
        stranger.wait()
    kill(stranger.pid, started)  # nobody has it: nothing happens


def test_no_group_but_those_of_the_tree_is_killed() -> None:
    own, other = sleeper(), subprocess.Popen(("sleep", "100"))
    try:
        kill_groups(descendants(os.getpid()))  # our own group, which `other` is in, is no group of the tree
        assert own.wait(10) == -signal.SIGKILL
        assert is_alive(other.pid)
    finally:
        for process in (own, other):
            process.kill()
            process.wait()


def test_every_descendant_is_found_zombies_too() -> None:
    script = "sleep 100 & sleep 0 & echo; wait $!; exec sleep 100"  # the second is waited for, and then is not
    with subprocess.Popen(("sh", "-c", script), stdout=subprocess.PIPE) as shell:
        try:
            assert shell.stdout is not None
            shell.stdout.readline()
            found = descendants(os.getpid())
            assert shell.pid in found
            assert [pid for pid, stat in found.items() if stat[1] == shell.pid]
            assert os.getpid() not in found
        finally:
            kill_together(*descendants(shell.pid))
            shell.kill()


def test_the_keeper_imports_nothing_of_ours_and_little_of_pythons() -> None:
    """It must start in milliseconds."""
    code = f"import sys; sys.argv = ['x']; __file__ = {keeper.__file__!r}"
    code += "; exec(open(__file__).read().split('if __name')[0])"
    show = f"{code}; print(*sorted(sys.modules))"
    names = subprocess.run((sys.executable, "-I", "-S", "-c", show), capture_output=True, check=True, text=True).stdout
    costly = {"lifecycle", "socket", "json", "re", "typing", "subprocess", "contextlib", "shutil"}
    assert not set(names.split()) & costly


PHASES: dict[str, dict[str, Any]] = {
    "Starting": {"bind_after": 60},
    "Healthy": {},
    "Draining": {"on_term": "ignore"},
}


def brought_to(phase: str, box: Box, **settings: Any) -> tuple[Manager, int]:
    """A manager whose server is in this state, with the pid of the server's leader."""
    command = fake_command(child=CHILDREN, model=box.mark, **PHASES[phase])
    manager = Manager(box, command, drain_timeout=10, terminate_timeout=60, **settings)
    leader = manager.wait_for("Starting")["pid"]
    if phase == "Starting":
        return manager, leader
    manager.wait_for("Healthy")
    if phase == "Draining":
        manager.kill(signal.SIGTERM)
        manager.wait_for("Draining")
        manager.wait(lambda record: record["detail"].get("phase") == "drained")
    return manager, leader


@pytest.mark.parametrize("phase", PHASES)
def test_a_manager_killed_in_any_phase_leaves_nothing(box: Box, phase: str) -> None:
    manager, _ = brought_to(phase, box)
    manager.kill()
    manager.wait_until_ended()
    assert box.left_at_last() == {}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", ["leader", "keeper"])
def test_a_leader_or_a_keeper_killed_in_any_phase_leaves_nothing(box: Box, victim: str, phase: str) -> None:
    manager, leader = brought_to(phase, box)
    os.kill(leader if victim == "leader" else parent_of(leader), signal.SIGKILL)
    record = manager.wait_for("Stopped" if phase == "Draining" else "Failed")
    assert box.processes() <= {manager.pid}, record  # when it is told, it is so
    manager.wait_until_ended()
    assert box.left() == {}


@pytest.mark.parametrize("phase", PHASES)
def test_a_manager_and_a_keeper_killed_in_any_phase_leave_nothing_that_reaping_does_not_find(
    box: Box, phase: str
) -> None:
    manager, leader = brought_to(phase, box)
    kill_together(manager.pid, parent_of(leader))
    manager.wait_until_ended()
    assert is_alive(leader)
    assert [found.label for found in reap(box.state)] == [box.mark]
    assert box.left() == {}


@pytest.mark.parametrize("seed", range(4))
def test_whoever_is_killed_at_whatever_moment_nothing_is_left(box: Box, seed: int) -> None:
    roll = random.Random(seed)
    manager = Manager(box, fake_command(child=CHILDREN, model=box.mark), max_attempts=3, backoff_max=0.1,
                      backoff_initial=0.05)  # fmt: skip
    moment = roll.choice(["PortBound", "Starting", "Healthy"])
    manager.wait_for(moment)
    for _ in range(roll.randrange(300)):  # a moment more, which no clock decides
        box.processes()
        if roll.random() < 0.05:
            break
    victims = sorted(box.processes())
    for pid in roll.sample(victims, roll.randint(1, min(2, len(victims)))):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    manager.kill(signal.SIGTERM)
    manager.process.wait(60)
    manager.wait_until_ended()
    while box.processes() - orphans(box):
        box.left_at_last()
    reap(box.state)
    assert box.left_at_last() == {}


def orphans(box: Box) -> set[int]:
    """Live processes of the server if its keeper has died. (What a manager has just forked may yet be a keeper.)"""
    return set() if box.keepers() else {pid for pid in box.processes() if "manager.py" not in command_line(pid)}


def test_a_manager_inside_a_server_goes_with_it(box: Box) -> None:
    """A keeper inside a keeper's tree: killing the outer manager ends both."""
    inner = {"backend": "custom", "command": fake_command(child=CHILDREN, model=box.mark), "model": box.mark,
             "name": box.mark, "state_dir": str(box.root / "inner")}  # fmt: skip
    command = shlex.join((sys.executable, str(HERE / "manager.py"), literal(json.dumps(inner))))
    manager = Manager(box, command)
    log = Path(manager.wait_for("Starting")["log"])
    while '"Healthy"' not in log.read_text():
        assert manager.process.poll() is None
    assert len(box.processes()) == 4 + 1 + len(CHILDREN)
    manager.kill()
    manager.wait_until_ended()
    assert box.left_at_last() == {}
