"""A log file that does not grow for ever and shows no secret. Part of the keeper: standard library only."""

from __future__ import annotations

import os

try:
    from lifecycle.resources.tree import attempt
except ImportError:  # in a keeper, which has this folder on its path and nothing else
    from tree import attempt  # type: ignore[import-not-found,no-redef]

LEAST_LIMIT = 4096  # bytes; a log is not bounded below this
GAP = b"\n[the middle of this log has been dropped; its end is in the files beside it, .end.older and .end]\n"


class Mask:
    """Replaces secrets in a stream by `***`, however the stream is cut."""

    def __init__(self, secrets: list[str]) -> None:
        known = {secret.encode("utf-8", "surrogateescape") for secret in secrets if secret}
        self.secrets = sorted(known, key=len, reverse=True)
        self.kept = b""

    def feed(self, data: bytes, last: bool = False) -> bytes:
        """`data` without secrets; what may be the beginning of one is kept until more has come."""
        if not self.secrets:
            return data
        data = self.kept + data
        near = range(max(0, len(data) - len(self.secrets[0]) + 1), len(data))
        starts = [] if last else [at for at in near if any(secret.startswith(data[at:]) for secret in self.secrets)]
        done, at = b"", 0
        while True:
            hold = next((start for start in starts if start >= at), len(data))
            found = [(place, secret) for secret in self.secrets if 0 <= (place := data.find(secret, at)) < hold]
            if not found:
                self.kept = data[hold:]
                return done + data[at:hold]
            place, secret = min(found, key=lambda match: match[0])  # the first is the longest of those that tie
            done += data[at:place] + b"***"
            at = place + len(secret)


class Log:
    """A file of at most `limit` bytes: the first half as it came, then the newest, in two pieces that take turns."""

    def __init__(self, path: str, limit: int) -> None:
        limit = max(limit, LEAST_LIMIT)
        self.path = path
        self.piece = limit // 4
        self.room = limit - 2 * self.piece - len(GAP)
        self.turns = 0
        self.fd = self.open(path, 0)

    def open(self, path: str, more: int) -> int:
        # O_NONBLOCK: a FIFO under the log's name must not stop us.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | more
        try:
            return os.open(path, flags, 0o600)
        except OSError:
            return -1

    def write(self, data: bytes) -> None:
        while data:
            if self.room <= 0:
                self.turn()
            piece, data = data[: self.room], data[self.room :]
            self.room -= len(piece)
            self.put(piece)

    def put(self, data: bytes) -> None:
        try:
            while data and self.fd >= 0:
                data = data[os.write(self.fd, data) :]
        except OSError:
            return  # a full disk costs this piece

    def turn(self) -> None:
        """Begin the newer of the two pieces of the end anew; the older one is what was the newer."""
        newer, older = self.path + ".end", self.path + ".end.older"
        if self.turns == 2:  # from now on something is lost
            attempt(os.close, self.fd)
            self.fd = self.open(self.path, 0)
            self.put(GAP)
        attempt(os.close, self.fd)
        if self.turns:
            attempt(os.replace, newer, older)
        self.turns += 1
        self.room = self.piece
        self.fd = self.open(newer, os.O_TRUNC)
