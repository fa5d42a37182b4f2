"""What the kernel's memory controller says about this process: limits, and how often its OOM killer struck.

Both versions of control groups are read: `memory.events` and `memory.max` (Documentation/admin-guide/cgroup-v2.rst),
`memory.oom_control` and `memory.limit_in_bytes` (admin-guide/cgroup-v1/memory.rst). A server is in the group of its
manager.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

NO_LIMIT = 1 << 60
"""Bytes. Version 1 says "none" by a number near 2^63."""


@dataclass(frozen=True)
class Group:
    """The folder of this process's group in the memory controller, and the folder that the controller is mounted at."""

    folder: Path
    top: Path
    version: int

    def upwards(self) -> Iterator[Path]:
        """The group's folder, its parent's, up to the one that is mounted: a limit of any of them holds."""
        folder = self.folder
        while True:
            yield folder
            if folder == self.top or folder == folder.parent:
                return
            folder = folder.parent


def oom_kills(root: Path = Path("/")) -> int | None:
    """How many processes of our group the kernel's OOM killer has killed so far. Where the group does not say, those of
    the whole machine; None if nothing does. Only a difference of two readings means something."""
    group = memory_group(root)
    names = {1: "memory.oom_control", 2: "memory.events"}
    if group is not None:
        count = counter(_read(group.folder / names[group.version]), "oom_kill")
        if count is not None:
            return count
    return counter(_read(root / "proc/vmstat"), "oom_kill")


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that our group may use, by the strictest of its own limit and those above it; None if there is none."""
    group = memory_group(root)
    if group is None:
        return None
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    limits = [int(text) for text in (_read(folder / name).strip() for folder in group.upwards()) if text.isdigit()]
    return min((limit for limit in limits if limit < NO_LIMIT), default=None)


def counter(text: str, name: str) -> int | None:
    """The number behind `name` in a file of "name number" lines.

    >>> counter("low 0\\noom 2\\noom_kill 1\\n", "oom_kill")
    1
    """
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def memory_group(root: Path = Path("/")) -> Group | None:
    """Where this process's group lies in the file system; None if no memory controller is mounted."""
    groups = parse_groups(_read(root / "proc/self/cgroup"))
    for version, path in groups.items():
        for mounted, at in parse_mounts(_read(root / "proc/self/mountinfo"), version):
            inside = _below(path, mounted)
            if inside is not None:
                top = root / at.lstrip("/")
                folder = top / inside
                if folder.is_dir():
                    return Group(folder, top, version)
    return None


def parse_groups(text: str) -> Mapping[int, str]:
    """Path of the group by version, from /proc/self/cgroup (cgroups(7)). Where both are mounted, the memory controller
    belongs to version 1 if that names it.

    >>> parse_groups("4:memory:/job\\n0::/user\\n")
    {1: '/job', 2: '/user'}
    """
    found: dict[int, str] = {}
    for line in text.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(","):
            found[1] = path
        elif number == "0" and not controllers and path:
            found[2] = path
    return dict(sorted(found.items()))


def parse_mounts(text: str, version: int) -> Iterator[tuple[str, str]]:
    """(group that is mounted, mount point) of every mount of the memory controller, from /proc/self/mountinfo."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        with suppress(IndexError):
            kind, options = after.split()[0], after.split()[-1].split(",")
            if kind == ("cgroup2" if version == 2 else "cgroup") and (version == 2 or "memory" in options):
                yield before.split()[3], before.split()[4]


def _below(path: str, mounted: str) -> str | None:
    """`path` as seen from the group `mounted`: a container's mount shows only its own part of the tree, and a path
    outside of it (/..) is that part's own top."""
    if path.startswith("/.."):
        return ""
    try:
        return str(PurePosixPath(path).relative_to(mounted))
    except ValueError:
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
