"""What the disk says, as errors that tell a user what is safe and what to do."""

from __future__ import annotations

import errno
from pathlib import Path

from lifecycle.errors import OutputError

FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
AGAIN = "everything finished before is safe; run the same command again"


def not_opened(path: Path, error: OSError) -> OutputError:
    """The output could not be opened, created or read."""
    what = f"output {path} cannot be opened: {reason(error)}{_where(path, error)}"
    if error.errno in FULL:
        return OutputError(f"{what}; make room, and run the same command again")
    return OutputError(f"{what}; name a place that can be written to")


def not_written(path: Path, error: OSError) -> OutputError:
    """A write failed; what was written before can still be brought onto the disk."""
    what = f"output {path} cannot be written any more: {reason(error)}{_where(path, error)}"
    if error.errno in FULL:
        return OutputError(f"{what}; {AGAIN} when there is room")
    if error.errno == errno.EFBIG:
        return OutputError(f"{what}; {AGAIN} where larger files may be written (see `ulimit -f`)")
    return OutputError(f"{what}; {AGAIN} when that is mended")


def not_synced(path: Path, error: OSError, unsafe: int) -> OutputError:
    """`fsync` failed: nothing that was written since the one before can be relied on. It is no use to call it again:
    Linux drops what it could not write, and the next call succeeds (fsync(2); https://lwn.net/Articles/752063/)."""
    return OutputError(
        f"output {path}: the disk did not take what was written to it ({reason(error)}); of the results, the last "
        f"{unsafe} may be lost, those before are safe; look at the disk, then run the same command again: it checks "
        "each of these, and does again what is lost"
    )


def damaged(path: Path, what: str, where: Path) -> OutputError:
    """The output is not as the journal says."""
    return OutputError(
        f"output {path}: {what}; put it back as it was and go on, or name another output (or remove this one with "
        f"{where}, and begin again)"
    )


def reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _where(path: Path, error: OSError) -> str:
    name = error.filename
    return f" ({name})" if isinstance(name, str) and name != str(path) else ""
