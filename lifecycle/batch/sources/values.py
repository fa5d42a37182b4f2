"""Rows of tables as JSON.

What JSON has no type for becomes a text or the nearest thing:

- dates, times and timestamps: ISO 8601 (RFC 3339 with an offset where there is one); those with nanoseconds keep all
  nine digits, with a space for the T, as Arrow writes them;
- durations: ISO 8601, those in nanoseconds a whole number of them;
- bytes: Base64; decimals and UUIDs: a text, so that no digit is lost;
- maps: a list of [key, value]; NaN and the infinities: null;
- NumPy scalars and arrays: numbers and lists; anything else: its `str`.
"""

from __future__ import annotations

from datetime import date, time
from typing import Any

import msgspec


def _other(value: Any) -> Any:
    if isinstance(value, date | time):  # pandas' timestamps are a subclass of datetime
        return value.isoformat()
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else str(value)


encode = msgspec.json.Encoder(enc_hook=_other).encode
"""A row, a dict of column to value, as JSON."""
