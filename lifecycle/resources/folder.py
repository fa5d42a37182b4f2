"""Private folders, made and removed without `shutil`, which costs megabytes. Part of the keeper."""

from __future__ import annotations

import os

try:
    from lifecycle.resources.tree import attempt
except ImportError:  # in a keeper, which has this folder on its path and nothing else
    from tree import attempt  # type: ignore[import-not-found,no-redef]


def make_folder(path: str) -> str:
    """Make the private folder for temporary files; the reason why not, if it cannot be."""
    try:
        os.mkdir(path, 0o700)
    except OSError as error:
        return f"temporary folder {path}: {error.strerror}; set TMPDIR to a folder with room"
    return ""


def write_files(folder: str, files: dict[str, str]) -> str:
    """Write new files that nobody else may read into a folder; the reason why not, if they cannot be."""
    for name, text in files.items():
        path = f"{folder}/{name}"
        try:
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(number, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            return f"file {path}: {error.strerror}; set TMPDIR to a folder with room"
    return ""


def remove(path: str) -> None:
    """Remove a folder and all that is in it, as far as that goes. No link is followed, and what lies deep is moved up
    first, so that no path grows too long. (`shutil` would cost megabytes.)"""
    moved = 0
    inside = entries(path)
    while inside:
        for entry in inside:
            for deeper in entries(entry.path) if entry.is_dir(follow_symlinks=False) else ():
                if deeper.is_dir(follow_symlinks=False):
                    moved += 1
                    attempt(os.chmod, deeper.path, 0o700)
                    attempt(os.rename, deeper.path, f"{path}/.moved-{moved}")
                else:
                    attempt(os.unlink, deeper.path)
            discard(entry.path)
        before, inside = inside, entries(path)
        if [entry.name for entry in before] == [entry.name for entry in inside]:
            return  # nothing of it gives way
    discard(path)


def entries(path: str) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing if it is none, or a link to one."""
    if os.path.islink(path):
        return []
    attempt(os.chmod, path, 0o700)
    try:
        with os.scandir(path) as inside:
            return list(inside)
    except OSError:
        return []


def discard(path: str) -> None:
    """Remove a file, a link or an empty folder, if it can be."""
    try:
        os.unlink(path)
    except OSError:  # EISDIR
        attempt(os.rmdir, path)
