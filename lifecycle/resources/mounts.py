"""Which file system a folder lies on, as far as that matters: is it another machine's?"""

from __future__ import annotations

import os
import re
from pathlib import Path

NETWORK = frozenset((
    "9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre",
    "lustre_lite", "mmfs", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs",
    "wekafs",
))  # fmt: skip
"""Types of file systems that more than one machine can write to at once, as /proc/mounts calls them."""
LOCAL_FUSE = frozenset((
    "fuse.encfs", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.mergerfs",
    "fuse.portal", "fuse.snapfuse", "fuse.squashfuse", "fuse.unionfs",
))  # fmt: skip
"""Types under `fuse.` that are known to be this machine's own. Any other may be a network's (sshfs, s3fs, juicefs)."""


def network_mount(path: Path, mounts: str) -> str | None:
    """The type of the network file system that `path` lies on, or None if it is a local one.

    Args:
        path: absolute, without links; need not exist.
        mounts: text of /proc/mounts (proc_pid_mounts(5)): device, mount point, type, options; where two are mounted on
            one point, the later one is seen.
    """
    longest, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) >= 3:
            point = _plain(fields[1]).rstrip("/")
            if f"{path}/".startswith(f"{point}/") and len(point) >= longest:
                longest, kind = len(point), fields[2]
    return kind if kind in NETWORK or (kind.startswith("fuse.") and kind not in LOCAL_FUSE) else None


def network_mount_of(path: Path) -> str | None:
    """`network_mount` of a path on this machine, by the mounts that this process sees."""
    try:
        mounts = Path("/proc/self/mounts").read_text(errors="surrogateescape")
    except OSError:
        return None
    return network_mount(Path(os.path.realpath(path)), mounts)


def _plain(text: str) -> str:
    """Space, tab, newline and backslash are written as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
