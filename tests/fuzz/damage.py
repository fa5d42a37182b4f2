"""What happens to bytes: cuts, flips, insertions, pieces that are gone or there twice. And how hard to try."""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.effort import TIMES

HARD = settings(
    max_examples=60 * TIMES, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)  # fmt: skip
NASTY = st.sampled_from(
    [b"", b"\0" * 9, b"\xff\xfe", b"\xe2\x82", b"\n", b"\r", b'"', b"{}", b"[" * 5000, b'{"a":' * 5000, b"null",
     b"-1", b"1e999", b"9" * 400, b"\x1b[", b"\\ud800", "\u2028\x85\x0b\x1c".encode(), "²/³".encode(), "٣/٤".encode()]
)  # fmt: skip
"""Bytes that have ended readers: open brackets without end, halves of characters, numbers that fit nowhere, ends of
lines that are none in JSON, digits that are no numbers."""


@st.composite
def edits(draw: st.DrawFn, whole: bytes) -> tuple[bytes, int]:
    """(the bytes after one to three changes, how many at the beginning are as they were)."""
    data, sound = whole, len(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["cut", "flip", "insert", "remove", "repeat"]))
        to = min(len(data), at + draw(st.integers(1, 40)))
        if kind == "cut":
            data = data[:at]
        elif kind == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
        elif kind == "insert":
            data = data[:at] + draw(NASTY | st.binary(max_size=30)) + data[at:]
        elif kind == "remove":
            data = data[:at] + data[to:]
        else:
            data = data[:to] + data[at:to] + data[to:]
        sound = min(sound, at)
    return data, sound


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """The same bytes, cut at these places."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


CUTS = st.lists(st.integers(0, 1 << 20), max_size=12)
