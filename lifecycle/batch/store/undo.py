"""Takes away an output that was begun and has got nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from lifecycle.batch.store import header, journal
from lifecycle.batch.store.disk import Disk
from lifecycle.batch.store.layout import Layout
from lifecycle.resources.caches import LOCK


@dataclass(frozen=True)
class Undo:
    """What this run found before it began an output, so that it can be left like that."""

    disk: Disk
    layout: Layout
    there: bool
    """Its file or folder was there."""

    def __call__(self) -> None:
        """Remove what was made, with the lock held, as far as that goes. The journal goes first: killed after it, this
        leaves what the next run takes for a new output. The lock goes last."""
        disk, layout = self.disk, self.layout
        with suppress(OSError):
            names = disk.names(layout.state)
            for name in sorted(names, key=lambda name: (name != journal.NAME, name == LOCK)):
                disk.unlink(layout.state / name)
            disk.rmdir(layout.state)
            if not self.there and layout.part_size is None:
                disk.unlink(layout.path)
            elif not self.there:
                disk.rmdir(layout.folder)


def before(disk: Disk, layout: Layout) -> Undo | None:
    """To be asked before anything is made; None if the output has been begun already."""
    state = layout.state
    if disk.kind(state) == "folder" and {journal.NAME, header.NAME} & set(disk.names(state)):
        return None
    return Undo(disk, layout, disk.kind(layout.path) != "nothing")
