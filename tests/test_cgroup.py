"""Limits of memory and strikes of the kernel's OOM killer, as files of the kernel tell of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.resources.cgroup import counter, memory_group, memory_limit, oom_kills, parse_groups, parse_mounts

V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 {mounted} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
EVENTS = "low 0\nhigh 0\nmax 117\noom 2\noom_kill {kills}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
NONE_V1 = "9223372036854771712\n"


def machine(root: Path, group: str, mounts: str, files: dict[str, str], vmstat: str = "") -> Path:
    """A file system with what the kernel would show."""
    every = {"proc/self/cgroup": group, "proc/self/mountinfo": mounts, "proc/vmstat": vmstat, **files}
    for name, text in every.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_version_2_counts_the_group_s_own_kills(tmp_path: Path) -> None:
    job = "sys/fs/cgroup/user.slice/job"
    root = machine(tmp_path, "0::/user.slice/job\n", V2, {f"{job}/memory.events": EVENTS.format(kills=3)})
    assert oom_kills(root) == 3


def test_version_1_counts_the_group_s_own_kills(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory/slurm/job_7/memory.oom_control": CONTROL.format(kills=1),
             "sys/fs/cgroup/unified/cgroup.procs": ""}  # fmt: skip
    groups = "4:memory:/slurm/job_7\n2:cpu,cpuacct:/\n0::/\n"
    assert oom_kills(machine(tmp_path, groups, V1.format(mounted="/"), files)) == 1


def test_a_container_sees_only_its_own_part_of_the_tree(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory/memory.oom_control": CONTROL.format(kills=5)}
    root = machine(tmp_path, "4:memory:/docker/abc\n0::/\n", V1.format(mounted="/docker/abc"), files)
    assert oom_kills(root) == 5


def test_the_top_of_version_2_has_no_events_and_the_machine_s_count_stands_in(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n", V2, {"sys/fs/cgroup/cgroup.procs": ""}, "pgfault 12\noom_kill 4\n")
    assert oom_kills(root) == 4


def test_where_nothing_counts_nothing_is_known(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) is None
    assert memory_limit(tmp_path) is None
    assert memory_group(tmp_path) is None


def test_this_machine_has_a_count() -> None:
    found = oom_kills()
    assert found is not None
    assert found >= 0


def test_the_strictest_limit_on_the_way_up_holds(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    files = {f"{top}/a/b/c/memory.max": "max\n", f"{top}/a/b/memory.max": "5000\n", f"{top}/a/memory.max": "7000\n"}
    root = machine(tmp_path, "0::/a/b/c\n", V2, files)
    assert memory_limit(root) == 5000


def test_version_1_says_no_limit_by_a_number(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/memory"
    files = {f"{top}/memory.limit_in_bytes": NONE_V1, f"{top}/job/memory.limit_in_bytes": NONE_V1}
    root = machine(tmp_path, "4:memory:/job\n", V1.format(mounted="/"), files)
    assert memory_limit(root) is None
    (root / top / "job/memory.limit_in_bytes").write_text("8589934592\n")
    assert memory_limit(root) == 8 * 1024**3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0::/job\n", {2: "/job"}),
        ("4:memory:/a\n3:cpuset:/\n0::/b\n", {1: "/a", 2: "/b"}),
        ("4:cpu,memory:/with:colon\n", {1: "/with:colon"}),
        ("9:name=systemd:/\n", {}),
        ("", {}),
    ],
)
def test_groups_are_read_as_the_kernel_writes_them(text: str, expected: dict[int, str]) -> None:
    assert parse_groups(text) == expected


@given(st.text(), st.sampled_from([1, 2]))
def test_no_text_is_an_error(text: str, version: int) -> None:
    parse_groups(text)
    list(parse_mounts(text, version))
    counter(text, "oom_kill")
