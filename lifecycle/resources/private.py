"""Folders that only this user can open."""

from __future__ import annotations

import os
from pathlib import Path

from lifecycle.errors import ConfigError


def lease_dir() -> Path:
    """Where port leases lie: one folder for each user and host, whatever TMPDIR and the state folder are, since ports
    are the host's."""
    runtime = Path(f"/run/user/{os.getuid()}")
    parent = runtime / "stoker" if os.access(runtime, os.W_OK) else Path(f"/tmp/stoker-{os.getuid()}")
    return private(private(parent) / "leases")


def keepers_dir() -> Path:
    """Where the doors of keepers are: short, since the paths of sockets may have 107 bytes only (unix(7))."""
    return private(lease_dir().parent / "keepers")


def private(folder: Path) -> Path:
    """Make a folder that only this user can open. Raises `ConfigError` if it is another user's or cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_uid != os.getuid():
            raise ConfigError(f"{folder} belongs to user {found.st_uid}; set state_dir to a folder of your own")
        if found.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}; set state_dir to another folder") from None
    return folder
