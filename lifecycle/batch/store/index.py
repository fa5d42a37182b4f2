"""Which records are finished: three bytes each, found by their number."""

from __future__ import annotations

from array import array

from lifecycle.batch.store.entries import ERROR, NO_LINE, Columns

FINISHED = 4
"""Set in the state of every finished record, beside the flags of its entry."""
_STATES = bytes(flags | FINISHED for flags in range(256))
STEP = 4096
KEPT = 0xFFFF
"""Of a checksum: half of it, so that one changed record among all is missed once in 65,536 times."""


class Index:
    """A table by number, as long as the greatest number that is finished."""

    def __init__(self) -> None:
        self.finished = 0
        self.failed = 0
        self._states = bytearray()
        self._checks = array("H")

    def state(self, number: int) -> int:
        """0 if the record is not finished, else `FINISHED` and the flags of its entry."""
        return self._states[number] if number < len(self._states) else 0

    def agrees(self, number: int, check: int) -> bool:
        """Whether a finished record had this checksum."""
        return self._checks[number] == check & KEPT

    def add(self, number: int, check: int, flags: int) -> None:
        """A record that was not finished is."""
        if number >= len(self._states):
            self._grow(number + 1 + max(STEP, number // 16))
        self._states[number] = flags | FINISHED
        self._checks[number] = check & KEPT
        self.finished += 1
        self.failed += flags & ERROR

    def fill(self, columns: Columns) -> None:
        """Add many."""
        flags = columns.flags
        self._grow(max(columns.numbers) + 1)
        states, checks = self._states, self._checks
        for number, check, state in zip(columns.numbers, columns.checks, flags.translate(_STATES), strict=True):
            states[number] = state
            checks[number] = check & KEPT
        self.finished += len(flags)
        self.failed += sum(flags.count(each) for each in (ERROR, ERROR | NO_LINE))

    def _grow(self, size: int) -> None:
        more = size - len(self._states)
        if more > 0:
            self._states.extend(bytes(more))
            self._checks.frombytes(bytes(2 * more))
